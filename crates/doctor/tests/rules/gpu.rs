//! H1 to H5.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Fault, Note, Warning};
use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen5};

use super::given::{Example, example, info, machine, paste};

const REFUSED: &str = "\
$ nvidia-smi topo -p2p r
        GPU0    GPU1
 GPU0   X       CNS
 GPU1   CNS     X
";
const ALLOWED: &str = "\
$ nvidia-smi topo -p2p r
        GPU0    GPU1
 GPU0   X       OK
 GPU1   OK      X
";
const NO_NVLINK: &str = "\
$ nvidia-smi topo -p2p n
        GPU0    GPU1
 GPU0   X       NS
 GPU1   NS      X
";
const DATA_DIRECT: &str = "\
        GPU0    NIC0    DD0     CPU Affinity    NUMA Affinity
GPU0     X      SYS     PXB     0-71            0
NIC0    SYS      X      SYS
DD0     PXB     SYS      X

NIC Legend:

  NIC0: mlx5_0
  DD0: mlx5_0 data-direct function
";
const NO_NEARER: &str = "\
        GPU0    NIC0    DD0     CPU Affinity    NUMA Affinity
GPU0     X      PXB     SYS     0-71            0
NIC0    PXB      X      SYS
DD0     SYS     SYS      X

NIC Legend:

  NIC0: mlx5_0
  DD0: mlx5_0 data-direct function
";
const SWITCHES: &str = "\
0005:00:00.0 Bridge [0680]: NVIDIA Corporation GA100 [A100 NVSwitch] [10de:1af1] (rev a1)
0006:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)
";
const NO_SWITCHES: &str = "\
0006:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 80GB] [10de:20b5] (rev a1)
0007:00:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)
";

fn desktop(model: u32) -> Case {
    let mut node = Fixture::new();
    node.processor("GenuineIntel", 6, model, "Intel(R) Core(TM) Ultra 9 285K");
    let socket = node.socket();
    let slot = node.root_port(socket, gen5(16));
    node.gpu(slot, &GpuModel::L40S);
    let slot = node.root_port_beside(slot, gen5(8));
    node.nic(slot, "mlx5_0", &NicModel::CONNECTX6DX);
    machine(&node)
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "H1",
            Note,
            || {
                paste(
                    "I0421 11:56:59.774282 709103 nixl_agent.cpp:259] CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED=1\n",
                )
            },
            || {
                paste(
                    "I0421 11:56:59.774282 709103 nixl_agent.cpp:259] Backend UCX was instantiated\n",
                )
            },
        ),
        example("H2", Warning, || desktop(198), || desktop(151)),
        example("H3", Fault, || paste(REFUSED), || paste(ALLOWED)),
        // The matrix for NVLink says nothing about PCIe.
        example("H3", Fault, || paste(REFUSED), || paste(NO_NVLINK)),
        example(
            "H3",
            Fault,
            || info(&["Could not enable P2P between dev 0(=1b000) and dev 1(=1c000)"]),
            || info(&["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"]),
        ),
        example(
            "H3",
            Fault,
            || {
                paste(
                    "Device=0 CANNOT Access Peer Device=1\nDevice=1 CANNOT Access Peer Device=0\n",
                )
            },
            || paste("Device=0 CAN Access Peer Device=1\nDevice=1 CAN Access Peer Device=0\n"),
        ),
        example("H4", Note, || paste(DATA_DIRECT), || paste(NO_NEARER)),
        example("H5", Note, || paste(SWITCHES), || paste(NO_SWITCHES)),
    ]
}
