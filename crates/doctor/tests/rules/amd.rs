//! A1 to A3.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Fault, Note, Warning};
use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen5};
use crowfly_route::snapshot::{Observation, Value};

use super::given::{Example, example, info, machine};

const PLAIN: &str = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0 comm 0x1 nRanks 16";
const DIRECT: &str = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA comm 0x1 nRanks 16";

fn server(change: impl Fn(&mut Fixture)) -> Case {
    let mut node = Fixture::new();
    node.processor("AuthenticAMD", 25, 17, "AMD EPYC 9654");
    let socket = node.socket();
    let port = node.root_port(socket, gen5(16));
    let switch = node.switch(port, gen5(16));
    let slot = node.slot(switch, gen5(16));
    node.gpu(slot, &GpuModel::MI300X);
    let slot = node.slot(switch, gen5(16));
    node.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
    change(&mut node);
    machine(&node)
}

const CLIENTS: [&str; 4] = [
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/kernel/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
    "kallsyms:ib_register_peer_memory_client",
];

fn without_client(node: &mut Fixture) {
    for place in CLIENTS {
        node.observe(place, Observation::Absent);
    }
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "A1",
            Fault,
            || {
                info(&[
                    "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol",
                    PLAIN,
                ])
            },
            || {
                info(&[
                    "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol",
                    DIRECT,
                ])
            },
        ),
        example(
            "A1",
            Warning,
            || server(without_client),
            || {
                server(|node| {
                    without_client(node);
                    node.text("kallsyms:ib_register_peer_memory_client", "T [ib_core]");
                })
            },
        ),
        example(
            "A2",
            Warning,
            || {
                info(&[
                    "Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1",
                    PLAIN,
                ])
            },
            || info(&[PLAIN]),
        ),
        // The peer memory client does as well.
        example(
            "A2",
            Note,
            || {
                info(&[
                    "Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1",
                    DIRECT,
                ])
            },
            || info(&[DIRECT]),
        ),
        example(
            "A3",
            Warning,
            || {
                info(&[
                    "WARN Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!",
                ])
            },
            || info(&[DIRECT]),
        ),
        example(
            "A3",
            Warning,
            || server(|node| boot(node, "root=/dev/sda1 ro")),
            || server(|node| boot(node, "root=/dev/sda1 ro iommu=pt")),
        ),
    ]
}

fn boot(node: &mut Fixture, line: &str) {
    node.text("/proc/cmdline", line);
    node.observe(
        "/sys/class/iommu",
        Observation::Value(Value::List(vec!["ivhd0".into()])),
    );
}
