//! V1 to V4.

use crowfly_doctor::Severity::{Fault, Note, Warning};
use crowfly_route::fixture::machines;

use super::given::{Example, example, info, log, paste, pastes};

const FABRIC: &str = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0";
const FABRIC_DIRECT: &str = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/0/GDRDMA";
const PROVIDER: &str = "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)";
const T4: &str = "\
# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#  Rank  0 Group  0 Pid 1 on alpha device  0 [0x1e] Tesla T4
";
const AZURE: &str = "NET/IB : Using [0]mlx5_ib0:1/IB [1]mlx5_ib1:1/IB [2]mlx5_ib2:1/IB [3]mlx5_ib3:1/IB ; OOB eth0:10.0.0.1<0>";

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "V1",
            Fault,
            || info(&[PROVIDER, FABRIC]),
            || info(&[PROVIDER, FABRIC_DIRECT]),
        ),
        example(
            "V1",
            Fault,
            || {
                info(&[
                    "NET/OFI Running on p5.48xlarge platform, topology file /opt/x.xml",
                    PROVIDER,
                    FABRIC,
                ])
            },
            // The plugin's default protocol there is no fault.
            || {
                info(&[
                    "NET/OFI Running on p4d.24xlarge platform, topology file /opt/x.xml",
                    "NET/OFI Using transport protocol SENDRECV (platform set)",
                    PROVIDER,
                    FABRIC_DIRECT,
                ])
            },
        ),
        // These GPUs are on instance types without device RDMA.
        example(
            "V1",
            Note,
            || pastes(&[T4, &log(&[PROVIDER, FABRIC])]),
            || pastes(&[T4, &log(&[PROVIDER, FABRIC_DIRECT])]),
        ),
        // EFA is chosen and no channel shows what became of it.
        example(
            "V1",
            Note,
            || info(&[PROVIDER]),
            || info(&[PROVIDER, FABRIC_DIRECT]),
        ),
        example(
            "V2",
            Fault,
            || {
                let mut node = machines::dgx_h100();
                node.text("/dev/aperture_devices", "directory");
                paste(&log(&["Using network Socket"])).with_snapshot("node.json", node.snapshot())
            },
            || {
                let mut node = machines::dgx_h100();
                node.text("/dev/aperture_devices", "directory");
                paste(&log(&["Using network FasTrak"])).with_snapshot("node.json", node.snapshot())
            },
        ),
        example(
            "V2",
            Warning,
            || {
                info(&[
                    "NET/FasTrak plugin initialized",
                    "NCCL_CROSS_NIC set by environment to 1.",
                ])
            },
            || {
                info(&[
                    "NET/FasTrak plugin initialized",
                    "NCCL_CROSS_NIC set by environment to 0.",
                ])
            },
        ),
        example(
            "V3",
            Fault,
            || {
                info(&[
                    "NET/Plugin: Loaded net plugin gIB (v10)",
                    "Using network Socket",
                ])
            },
            || {
                info(&[
                    "NET/Plugin: Loaded net plugin gIB (v10)",
                    "Using network gIB",
                ])
            },
        ),
        example(
            "V4",
            Warning,
            || info(&[AZURE]),
            || {
                info(&[
                    AZURE,
                    "NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml",
                ])
            },
        ),
        example(
            "V4",
            Note,
            || {
                info(&[
                    AZURE,
                    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
                ])
            },
            || {
                info(&[
                    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB ; OOB eth0:10.0.0.1<0>",
                ])
            },
        ),
    ]
}
