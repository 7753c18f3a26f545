//! C1 to C4.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};
use crowfly_route::fixture::machines;
use crowfly_route::snapshot::Observation;

use super::given::{Example, example, info, machine, paste};

fn with(key: &str, text: &str) -> Case {
    let mut node = machines::dgx_h100();
    node.text(key, text);
    machine(&node)
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "C1",
            Warning,
            || with("limit:memlock", "8388608"),
            || with("limit:memlock", "unlimited"),
        ),
        // The capability lifts the limit.
        example(
            "C1",
            Warning,
            || with("limit:memlock", "8388608"),
            || {
                let mut node = machines::dgx_h100();
                node.text("limit:memlock", "8388608");
                node.text("/proc/self/status", "CapEff:\t000001ffffffffff");
                machine(&node)
            },
        ),
        example(
            "C1",
            Broken,
            || info(&["WARN Call to ibv_reg_mr failed with error Cannot allocate memory"]),
            || info(&["WARN Call to ibv_modify_qp failed with error Connection timed out"]),
        ),
        example(
            "C2",
            Fault,
            || {
                let mut node = machines::dgx_h100();
                node.observe("/dev/infiniband", Observation::Absent);
                machine(&node)
            },
            || machine(&machines::dgx_h100()),
        ),
        example(
            "C3",
            Warning,
            || with("statfs:/dev/shm/total", "67108864"),
            || with("statfs:/dev/shm/total", "8589934592"),
        ),
        example(
            "C3",
            Broken,
            || {
                info(&[
                    "WARN Error: failed to extend /dev/shm/nccl-a1b2c3 to 9637892 bytes, error: No space left on device (28)",
                ])
            },
            || info(&["WARN Cuda failure 'out of memory'"]),
        ),
        example("C4", Fault, || paste(INSIDE), || paste(BETWEEN)),
        example(
            "C4",
            Note,
            || {
                info(&[
                    "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x1 - Init START",
                    "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
                ])
            },
            || {
                info(&[
                    "comm 0x1 rank 0 nranks 16 cudaDev 0 busId 1b000 commId 0x1 - Init START",
                    "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
                ])
            },
        ),
    ]
}

const INSIDE: &str = "\
n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n1:2:2 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 busId 1c000 - Init COMPLETE
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA
";
const BETWEEN: &str = "\
n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n2:2:2 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE
n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
";
