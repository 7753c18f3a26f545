//! R1 to R9.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};
use crowfly_route::fixture::machines;

use super::given::{Example, example, info, machine, paste, pastes};

/// One adapter as `ibstat` shows it.
fn adapter(name: &str, model: &str, state: &str, rate: u32, layer: &str) -> String {
    format!(
        "CA '{name}'\n\tCA type: {model}\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n\t\tBase lid: 3\n\t\tLink layer: {layer}\n"
    )
}

fn adapters(list: &[(&str, &str, &str, u32, &str)]) -> Case {
    let text: String = list
        .iter()
        .map(|(name, model, state, rate, layer)| adapter(name, model, state, *rate, layer))
        .collect();
    paste(&text)
}

const UP: (&str, &str, &str, u32, &str) = ("mlx5_0", "MT4129", "Active", 400, "InfiniBand");

fn firmware(second: &str) -> Case {
    let device = |name: &str, version: &str| {
        format!(
            "hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{version}\n\tvendor_part_id:\t\t\t4129\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n\t\t\tlink_layer:\t\tInfiniBand\n\n"
        )
    };
    paste(&format!(
        "{}{}",
        device("mlx5_0", "28.39.1002"),
        device("mlx5_1", second)
    ))
}

fn mtu(active: u32, state: &str) -> Case {
    paste(&format!(
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\t{state}\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t{active} (3)\n\t\t\tlink_layer:\t\tEthernet\n"
    ))
}

const GIDS: &str = "\
DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
mlx5_0  1       0       fe80:0000:0000:0000:0000:00ff:fe00:0001                 v1      eth2
mlx5_0  1       1       fe80:0000:0000:0000:0000:00ff:fe00:0001                 v2      eth2
mlx5_0  1       2       0000:0000:0000:0000:0000:ffff:0a0a:0a01 10.10.10.1      v1      eth2
mlx5_0  1       3       0000:0000:0000:0000:0000:ffff:0a0a:0a01 10.10.10.1      v2      eth2
n_gids_found=4
";
const NO_IPV4: &str = "\
DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
---     ----    -----   ---                                     ------------    ---     ---
mlx5_0  1       0       fe80:0000:0000:0000:0000:00ff:fe00:0001                 v1      eth2
mlx5_0  1       1       fe80:0000:0000:0000:0000:00ff:fe00:0001                 v2      eth2
n_gids_found=2
";

fn counter(count: &str) -> Case {
    let mut node = machines::dgx_h100();
    node.text(
        "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err",
        count,
    );
    machine(&node)
}

const ROCE: &str = "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>";
const FAILED: &str = "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)";

fn ucx(protocol: &str, over: &str) -> Case {
    paste(&format!(
        "[1704982673.833459] [alpha:23:0]     ucp_context.c:2137 UCX  INFO  Version 1.18.0 (loaded from /lib/libucp.so.0)\n\
         [1704982674.111965] [alpha:23:0]   +---------------------------+----------------------------------------------+\n\
         [1704982674.111989] [alpha:23:0]   | perftest inter-node cfg#0 | tagged message by ucp_tag_send* from cuda/GPU0 |\n\
         [1704982674.111993] [alpha:23:0]   +---------------------------+-----------------------------+----------------+\n\
         [1704982674.111994] [alpha:23:0]   |                   0..2039 | copy-in                     | rc_mlx5/mlx5_0:1 |\n\
         [1704982674.111995] [alpha:23:0]   |                 2040..inf | {protocol} | {over} |\n"
    ))
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "R1",
            Broken,
            || {
                adapters(&[
                    ("mlx5_0", "MT4129", "Down", 40, "InfiniBand"),
                    ("mlx5_1", "MT4129", "Initializing", 400, "InfiniBand"),
                ])
            },
            || adapters(&[UP]),
        ),
        example(
            "R1",
            Warning,
            || adapters(&[UP, ("mlx5_1", "MT4129", "Down", 40, "InfiniBand")]),
            || adapters(&[UP, ("mlx5_1", "MT4129", "Active", 400, "InfiniBand")]),
        ),
        example("R1", Note, || adapters(&[UP]), || adapters(&[])),
        // One of two like cards is slow.
        example(
            "R2",
            Fault,
            || adapters(&[UP, ("mlx5_1", "MT4129", "Active", 200, "InfiniBand")]),
            // What a port that is down shows says nothing.
            || adapters(&[UP, ("mlx5_1", "MT4129", "Down", 40, "InfiniBand")]),
        ),
        example(
            "R2",
            Warning,
            || adapters(&[UP, ("mlx5_1", "MT4117", "Active", 25, "Ethernet")]),
            || adapters(&[UP, ("mlx5_1", "MT4129", "Active", 400, "InfiniBand")]),
        ),
        example(
            "R3",
            Warning,
            || mtu(1024, "PORT_ACTIVE (4)"),
            || mtu(1024, "PORT_DOWN (1)"),
        ),
        example(
            "R3",
            Warning,
            || mtu(2048, "PORT_ACTIVE (4)"),
            || mtu(4096, "PORT_ACTIVE (4)"),
        ),
        example(
            "R4",
            Fault,
            || pastes(&[GIDS, "export NCCL_IB_GID_INDEX=1\nexport NCCL_DEBUG=INFO\n"]),
            || pastes(&[GIDS, "export NCCL_IB_GID_INDEX=3\nexport NCCL_DEBUG=INFO\n"]),
        ),
        example("R4", Warning, || paste(NO_IPV4), || paste(GIDS)),
        example("R4", Note, || paste(GIDS), || adapters(&[UP])),
        example(
            "R4",
            Note,
            || paste("export NCCL_IB_GID_INDEX=3\nexport NCCL_DEBUG=INFO\n"),
            || paste("export NCCL_IB_TIMEOUT=22\nexport NCCL_DEBUG=INFO\n"),
        ),
        // Without a symptom there is nothing to look for.
        example("R5", Warning, || info(&[ROCE, FAILED]), || info(&[ROCE])),
        example(
            "R5",
            Warning,
            || paste("export NCCL_IB_TC=26\nexport NCCL_DEBUG=INFO\n"),
            || paste("export NCCL_IB_TC=104\nexport NCCL_DEBUG=INFO\n"),
        ),
        // The low two bits mark congestion.
        example(
            "R5",
            Warning,
            || paste("export NCCL_IB_TC=416\nexport NCCL_DEBUG=INFO\n"),
            || paste("export NCCL_IB_TC=41\nexport NCCL_DEBUG=INFO\n"),
        ),
        example("R6", Warning, || counter("12"), || counter("0")),
        example(
            "R7",
            Warning,
            || firmware("28.43.2566"),
            || firmware("28.39.1002"),
        ),
        example(
            "R8",
            Fault,
            || {
                paste(
                    "[   12.345678] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)\n",
                )
            },
            || paste("[   12.345678] snd_pcm: Unknown symbol snd_ctl_new1 (err -2)\n"),
        ),
        example(
            "R9",
            Fault,
            || {
                ucx(
                    "rendezvous cuda copy pipeline from host",
                    "rc_mlx5/mlx5_0:1",
                )
            },
            || ucx("rendezvous zero-copy read from remote", "rc_mlx5/mlx5_0:1"),
        ),
        example(
            "R9",
            Warning,
            || {
                paste(
                    "[1704982674.0] [a:1:0] ucp_worker.c:1903 UCX  INFO    ucp_context_1 inter-node cfg#1 am(tcp/eth0)\n",
                )
            },
            || {
                paste(
                    "[1704982674.0] [a:1:0] ucp_worker.c:1903 UCX  INFO    ucp_context_1 inter-node cfg#1 am(rc_mlx5/mlx5_0:1)\n",
                )
            },
        ),
        example(
            "R10",
            Broken,
            || {
                paste(
                    "E0421 11:56:59.774282 709103 rdma_endpoint.cpp:259] Failed to modify QP to RTR, check mtu, gid, peer lid\n",
                )
            },
            || {
                paste(
                    "I0421 11:56:59.774282 709103 rdma_endpoint.cpp:259] Connection established\n",
                )
            },
        ),
    ]
}
