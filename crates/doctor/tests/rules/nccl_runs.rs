//! N13 to N27.

use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};

use super::given::{Example, example, info, log, paste, pastes};

/// One rank of a job on two nodes.
const MANY: &str = "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0";
/// The only node of a job.
const ONE: &str = "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0";

pub fn examples() -> Vec<Example> {
    let mut all = networks();
    all.extend(peers());
    all.extend(failures());
    all.extend(topologies());
    all
}

fn networks() -> Vec<Example> {
    vec![
        example(
            "N13",
            Fault,
            || {
                info(&[
                    MANY,
                    "NET/IB : No device found.",
                    "NET/Socket : Using [0]eth0:10.0.0.1<0>",
                    "Using network Socket",
                ])
            },
            || {
                info(&[
                    MANY,
                    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
                    "Using network IB",
                ])
            },
        ),
        // A plugin's network was taken instead of NCCL's own.
        example(
            "N13",
            Fault,
            || info(&[MANY, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"]),
            || {
                info(&[
                    MANY,
                    "NET/IB : No device found.",
                    "Using network AWS Libfabric",
                ])
            },
        ),
        example(
            "N13",
            Note,
            || {
                info(&[
                    ONE,
                    "NET/Socket : Using [0]eth0:10.0.0.1<0>",
                    "Using network Socket",
                ])
            },
            || info(&[ONE, "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"]),
        ),
        example(
            "N14",
            Fault,
            || info(&[MANY, "NET/Socket : Using [0]docker0:172.17.0.1<0>"]),
            || info(&[MANY, "NET/Socket : Using [0]eno1:10.0.0.1<0>"]),
        ),
        example(
            "N14",
            Note,
            || info(&[ONE, "Bootstrap : Using lo:127.0.0.1<0>"]),
            || info(&[ONE, "Bootstrap : Using local0:10.1.0.1<0>"]),
        ),
        example(
            "N17",
            Warning,
            || info(&["PXN Disabled as plugin is v4"]),
            || info(&["NET/Plugin: Loaded net plugin IBext_v10 (v10)"]),
        ),
        example(
            "N26",
            Warning,
            || {
                info(&[
                    MANY,
                    "WARN NET/OFI aws-ofi-nccl initialization failed",
                    "Using network Socket",
                ])
            },
            || {
                info(&[
                    MANY,
                    "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
                    "Using network Libfabric",
                ])
            },
        ),
        example("N27", Warning, || paste(IDLE), || paste(ALL_USED)),
        example(
            "N27",
            Warning,
            || {
                pastes(&[
                    "mpirun -np 16 -x NCCL_IB_HCA=mlx5_0 -x NCCL_DEBUG=INFO all_reduce_perf -b 8\n",
                    TWO_NODES,
                ])
            },
            || {
                pastes(&[
                    "mpirun -np 16 -x NCCL_IB_HCA=mlx5 -x NCCL_DEBUG=INFO all_reduce_perf -b 8\n",
                    TWO_NODES,
                ])
            },
        ),
    ]
}

const IDLE: &str = "\
n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
n1:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/0/GDRDMA
n1:1:1 [0] NCCL INFO Connected all rings
";
const ALL_USED: &str = "\
n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB ib0:10.0.0.1<0>
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
n1:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [send] via NET/IB/1/GDRDMA
n1:1:1 [0] NCCL INFO Connected all rings
";
const TWO_NODES: &str = "\
# nThread 1 nGpus 4 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#  Rank  0 Group  0 Pid 1 on alpha device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid 1 on alpha device  3 [0x43] NVIDIA H100 80GB HBM3
#  Rank  4 Group  0 Pid 1 on beta device  0 [0x1b] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.00    0.05    0.10      0    20.00    0.05    0.10      0
";

/// Two GPUs behind one switch.
const BEHIND_ONE_SWITCH: &str = "\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      PIX     0-31            0
GPU1    PIX      X      0-31            0
";
const ON_TWO_SOCKETS: &str = "\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity
GPU0     X      SYS     SYS     0-31            0
GPU1    SYS      X      SYS     32-63           1
GPU2    SYS     SYS      X      32-63           1
";
const THROUGH_MEMORY: &str = "\
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
n1:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct
";
const EIGHT_H100: &str = "\
# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# Using devices
#  Rank  0 Group  0 Pid 1 on n1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 1 on n1 device  1 [0x1c] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid 1 on n1 device  2 [0x1d] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid 1 on n1 device  3 [0x1e] NVIDIA H100 80GB HBM3
#  Rank  4 Group  0 Pid 1 on n1 device  4 [0x1f] NVIDIA H100 80GB HBM3
#  Rank  5 Group  0 Pid 1 on n1 device  5 [0x20] NVIDIA H100 80GB HBM3
#  Rank  6 Group  0 Pid 1 on n1 device  6 [0x21] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid 1 on n1 device  7 [0x22] NVIDIA H100 80GB HBM3
";

fn peers() -> Vec<Example> {
    vec![
        // The layout explains shared memory between sockets: that is N16.
        example(
            "N15",
            Fault,
            || pastes(&[BEHIND_ONE_SWITCH, THROUGH_MEMORY]),
            || pastes(&[ON_TWO_SOCKETS, THROUGH_MEMORY]),
        ),
        example(
            "N15",
            Fault,
            || paste(THROUGH_MEMORY),
            || info(&["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"]),
        ),
        example(
            "N16",
            Warning,
            || paste(ON_TWO_SOCKETS),
            || paste(BEHIND_ONE_SWITCH),
        ),
        example(
            "N16",
            Warning,
            || paste(ON_TWO_SOCKETS),
            || {
                pastes(&[
                    ON_TWO_SOCKETS,
                    &log(&["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"]),
                ])
            },
        ),
        example(
            "N18",
            Warning,
            || {
                pastes(&[
                    EIGHT_H100,
                    &log(&["NVLS multicast support is not available on dev 0"]),
                ])
            },
            || {
                pastes(&[
                    EIGHT_H100,
                    &log(&["NVLS multicast support is available on dev 0"]),
                ])
            },
        ),
    ]
}

fn failures() -> Vec<Example> {
    vec![
        example(
            "N19",
            Broken,
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=4 opcode=0 len=0 vendor err 81 (Send)",
                ])
            },
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)",
                ])
            },
        ),
        example(
            "N20",
            Broken,
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)",
                ])
            },
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=4 opcode=0 len=0 vendor err 81 (Send)",
                ])
            },
        ),
        example(
            "N23",
            Broken,
            || {
                info(&[
                    "WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver)",
                ])
            },
            || info(&["NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"]),
        ),
        example(
            "N24",
            Broken,
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=10 opcode=0 len=0 vendor err 136 (Recv)",
                ])
            },
            || {
                info(&[
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=12 opcode=0 len=0 vendor err 129 (Send)",
                    "WARN NET/IB : Got completion from peer 10.0.0.2<4242> with status=5 opcode=0 len=0 vendor err 244 (Send)",
                ])
            },
        ),
        example(
            "N25",
            Broken,
            || {
                info(&[
                    "WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
                    "init.cc:900 -> 5",
                ])
            },
            || info(&["WARN MSCCL: could not find an algorithm file"]),
        ),
        example(
            "N25",
            Note,
            || info(&["WARN SHARP coll init error: Cannot create SHArP job(-11)"]),
            || info(&["Connected all rings"]),
        ),
        // A probe that found nothing leaves a code and no warning.
        example(
            "N25",
            Broken,
            || {
                info(&[
                    "WARN transport.cc: something unheard of",
                    "group.cc:64 -> 2",
                ])
            },
            || {
                info(&[
                    "transport/net_ib.cc:708 -> 2",
                    "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE",
                ])
            },
        ),
    ]
}

const VIRTUAL: &str = r#"
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="" link_width="0">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
  </cpu>
</system>
"#;
const REAL: &str = r#"
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
  </cpu>
</system>
"#;
const ONLY_ETHERNET: &str = r#"
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
    <nic>
      <net name="eth0" dev="0" speed="100000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"#;
const GRAPH: &str = r#"
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="8" speedintra="20" speedinter="20" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
  </graph>
</graphs>
"#;

fn topologies() -> Vec<Example> {
    vec![
        example("N21", Warning, || paste(VIRTUAL), || paste(REAL)),
        example("N21", Fault, || paste(ONLY_ETHERNET), || paste(REAL)),
        example("N22", Note, || paste(GRAPH), || paste(REAL)),
    ]
}
