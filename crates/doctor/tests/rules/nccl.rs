//! N1 to N12.

use crowfly_doctor::Severity::{Fault, Note, Warning};
use crowfly_route::fixture::machines;

use super::given::{Example, example, info, log, machine, paste, pastes};

/// Two GPUs, none near the NIC.
const FAR: &str = "\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tSYS\t0-31\t0
GPU1\tSYS\t X \tNODE\t32-63\t1
mlx5_0\tSYS\tNODE\t X \t\t
";
/// Two GPUs, one behind the NIC's switch and one on the other socket.
pub const MIXED: &str = "\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      SYS     PIX     0-31            0
GPU1    SYS      X      SYS     32-63           1
NIC0    PIX     SYS      X

NIC Legend:

  NIC0: mlx5_0
";

/// All near.
pub const NEAR: &str = "\
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV18    PIX     SYS     0-31            0
GPU1    NV18     X      SYS     PXB     32-63           1
NIC0    PIX     SYS      X      SYS
NIC1    SYS     PXB     SYS      X
";

const DIRECT: &str = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA";
const PLAIN: &str = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0";

pub fn examples() -> Vec<Example> {
    vec![
        example("N1", Fault, || paste(FAR), || paste(NEAR)),
        // Rings leave the node through the GPU that has the NIC near.
        example("N1", Warning, || paste(MIXED), || paste(NEAR)),
        example(
            "N1",
            Fault,
            || pastes(&[MIXED, &log(&[PLAIN])]),
            || pastes(&[MIXED, &log(&[DIRECT])]),
        ),
        example(
            "N1",
            Fault,
            || {
                info(&[
                    "NCCL version 2.21.5+cuda12.4",
                    "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 7 > 4)",
                    PLAIN,
                ])
            },
            // NCCL also says so of NICs that it does not use.
            || {
                info(&[
                    "NCCL version 2.21.5+cuda12.4",
                    "GPU Direct RDMA Disabled for GPU 1b000 / HCA 3 (distance 7 > 4)",
                    DIRECT,
                ])
            },
        ),
        example(
            "N1",
            Fault,
            || paste(FAR),
            || {
                pastes(&[
                    FAR,
                    "export NCCL_NET_GDR_LEVEL=SYS\nexport NCCL_DEBUG=INFO\n",
                ])
            },
        ),
        example(
            "N1",
            Warning,
            || machine(&machines::pcie_box()),
            || machine(&machines::dgx_h100()),
        ),
        example(
            "N2",
            Note,
            || {
                info(&[
                    "NCCL version 2.27.5+cuda12.9",
                    "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 0",
                ])
            },
            || info(&["NCCL version 2.27.5+cuda12.9", DIRECT]),
        ),
        example(
            "N3",
            Note,
            || info(&["NCCL version 2.30.3+cuda13.0", PLAIN]),
            || info(&["NCCL version 2.29.2+cuda13.0", PLAIN]),
        ),
        example(
            "N4",
            Warning,
            || {
                info(&[
                    "NCCL version 2.21.5+cuda12.4",
                    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                    PLAIN,
                ])
            },
            || {
                info(&[
                    "NCCL version 2.23.4+cuda12.4",
                    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                    PLAIN,
                ])
            },
        ),
        example(
            "N4",
            Fault,
            || {
                let mut node = machines::dgx_h100();
                node.text("/sys/module/nvidia_peermem", "there");
                let text = log(&[
                    "NCCL version 2.20.3+cuda12.4",
                    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                ]);
                paste(&text).with_snapshot("node.json", node.snapshot())
            },
            // The channels show that it works.
            || {
                info(&[
                    "NCCL version 2.21.5+cuda12.4",
                    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                    DIRECT,
                ])
            },
        ),
        example(
            "N5",
            Fault,
            || {
                info(&[
                    "NCCL version 2.23.4+cuda12.4",
                    "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)",
                    PLAIN,
                ])
            },
            || {
                info(&[
                    "NCCL version 2.23.4+cuda12.4",
                    "NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0'",
                    DIRECT,
                ])
            },
        ),
        example(
            "N5",
            Warning,
            || {
                let mut node = machines::dgx_h100();
                node.observe(
                    "/sys/module/nvidia_peermem",
                    crowfly_route::snapshot::Observation::Absent,
                );
                machine(&node)
            },
            // Nobody looked: that is not absence.
            || machine(&machines::dgx_h100()),
        ),
        example(
            "N6",
            Warning,
            || {
                let mut node = machines::dgx_h100();
                node.text("uname:release", "4.18.0-553.el8.x86_64");
                machine(&node)
            },
            || machine(&machines::dgx_h100()),
        ),
        example(
            "N6",
            Warning,
            || {
                info(&[
                    "NET/OFI Support for DMA-BUF registrations: false",
                    "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/0",
                ])
            },
            || {
                info(&[
                    "NET/OFI Support for DMA-BUF registrations: false",
                    "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Libfabric/0/GDRDMA",
                ])
            },
        ),
        example(
            "N7",
            Note,
            || info(&["DMA-BUF is available on GPU device 0", PLAIN]),
            || info(&["DMA-BUF is available on GPU device 0", DIRECT]),
        ),
        example("N8", Fault, || info(&[PLAIN]), || info(&[DIRECT])),
        // PXN names another rank's NIC and is no fault.
        example(
            "N8",
            Fault,
            || info(&[DIRECT, PLAIN]),
            || info(&["Channel 00/0 : 0[0] -> 9[1] [send] via NET/IBext_v10/0(4)/GDRDMA"]),
        ),
        // A suffix that other output cut short counts as nothing.
        example(
            "N8",
            Note,
            || {
                info(&[
                    "Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/0/GDLoading checkpoint shards",
                ])
            },
            || {
                info(&[
                    DIRECT,
                    "Channel 01/0 : 0[0] -> 9[1] [send] via NET/IB/0/GDLoading checkpoint shards",
                ])
            },
        ),
        example(
            "N9",
            Note,
            || info(&["Connected all rings, use ring PXN 0 GDR 1"]),
            || info(&[DIRECT, "Connected all rings, use ring PXN 0 GDR 1"]),
        ),
        example(
            "N9",
            Note,
            || info(&[DIRECT, "Connected all rings, use ring PXN 0 GDR 0"]),
            || info(&[PLAIN, "Connected all rings, use ring PXN 0 GDR 0"]),
        ),
        example(
            "N10",
            Note,
            || {
                info(&[
                    PLAIN,
                    "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0/GDRDMA",
                ])
            },
            || info(&[PLAIN, "Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0"]),
        ),
        example(
            "N11",
            Fault,
            || info(&["NCCL_P2P_DISABLE set by environment to 1."]),
            || info(&["NCCL_P2P_DISABLE set by environment to 0."]),
        ),
        example(
            "N11",
            Fault,
            || paste("export NCCL_NET_GDR_LEVEL=LOC\nexport NCCL_DEBUG=INFO\n"),
            // Narrower is not off.
            || paste("export NCCL_NET_GDR_LEVEL=PIX\nexport NCCL_DEBUG=INFO\n"),
        ),
        // NCCL compares the letters as they are.
        example(
            "N11",
            Warning,
            || info(&["NCCL_NET_GDR_LEVEL set by environment to sys"]),
            || info(&["NCCL_NET_GDR_LEVEL set by environment to SYS"]),
        ),
        example("N12", Warning, || paste(TWO_VALUES), || paste(ONE_VALUE)),
        example("N12", Warning, || paste(SILENT_HOST), || paste(BOTH_HOSTS)),
    ]
}

const TWO_VALUES: &str = "\
n1:1:1 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
n2:2:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to PHB
";
const ONE_VALUE: &str = "\
n1:1:1 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
n2:2:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
";
const SILENT_HOST: &str = "\
n1:1:1 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n2:2:2 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
";
const BOTH_HOSTS: &str = "\
n1:1:1 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
n2:2:2 [0] NCCL INFO NCCL_NET_GDR_LEVEL set by environment to SYS
n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n2:2:2 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
";
