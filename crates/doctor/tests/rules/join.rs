//! J1 to J4.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Note, Warning};
use crowfly_route::fixture::{Fixture, gen5, machines};
use crowfly_route::snapshot::Observation;

use super::given::{Example, example, paste, pastes};

/// The same server twice, the second one changed.
fn twins(change: impl Fn(&mut Fixture)) -> Case {
    let first = machines::dgx_h100();
    let mut second = machines::dgx_h100();
    change(&mut second);
    Case::new()
        .with_snapshot("a.json", first.snapshot())
        .with_snapshot("b.json", second.snapshot())
}

/// The log of one of two ranks, each on a node of its own.
fn rank(rank: u32, version: &str, words: &str) -> String {
    let words = match words {
        "" => String::new(),
        words => format!("n{rank}:1:1 [0] NCCL INFO {words}\n"),
    };
    format!(
        "n{rank}:1:1 [0] NCCL INFO NCCL version {version}+cuda12.4\n{words}n{rank}:1:1 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n"
    )
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "J1",
            Warning,
            || {
                paste(
                    "n1:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\nn2:2:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n",
                )
            },
            || {
                paste(
                    "n1:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\nn2:2:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n",
                )
            },
        ),
        // One file for each node of a job, and two jobs.
        example(
            "J1",
            Warning,
            || pastes(&[&rank(0, "2.27.5", ""), &rank(1, "2.21.5", "")]),
            || pastes(&[&rank(0, "2.27.5", ""), &rank(0, "2.21.5", "")]),
        ),
        example(
            "N12",
            Warning,
            || {
                pastes(&[
                    &rank(0, "2.27.5", "NCCL_IB_GID_INDEX set by environment to 3."),
                    &rank(1, "2.27.5", "NCCL_IB_GID_INDEX set by environment to 1."),
                ])
            },
            || {
                pastes(&[
                    &rank(0, "2.27.5", "NCCL_IB_GID_INDEX set by environment to 3."),
                    &rank(1, "2.27.5", "NCCL_IB_GID_INDEX set by environment to 3."),
                ])
            },
        ),
        // NCCL reads this one at the start on every rank, so that silence tells.
        example(
            "N12",
            Warning,
            || {
                pastes(&[
                    &rank(0, "2.27.5", "NCCL_NET_GDR_LEVEL set by environment to SYS"),
                    &rank(1, "2.27.5", ""),
                ])
            },
            || {
                pastes(&[
                    &rank(0, "2.27.5", "NCCL_IB_GID_INDEX set by environment to 3."),
                    &rank(1, "2.27.5", ""),
                ])
            },
        ),
        example(
            "N12",
            Warning,
            || {
                paste(
                    "b1: NCCL_DEBUG=INFO\nb1: NCCL_NET_GDR_LEVEL=SYS\nb2: NCCL_DEBUG=INFO\nb2: HOME=/root\n",
                )
            },
            || paste("b1: NCCL_DEBUG=INFO\nb1: HOME=/a\nb2: NCCL_DEBUG=INFO\nb2: HOME=/root\n"),
        ),
        example(
            "J2",
            Warning,
            || {
                twins(|node| {
                    let gpu = node.topology().gpus[0].address.expect("a PCI device");
                    node.degrade(gpu, gen5(8));
                })
            },
            || twins(|_| {}),
        ),
        example(
            "J3",
            Warning,
            || {
                twins(|node| {
                    node.text("uname:release", "5.15.0-91-generic");
                })
            },
            || twins(|_| {}),
        ),
        example(
            "J3",
            Warning,
            || {
                let mut with = machines::dgx_h100();
                with.text("/sys/module/nvidia_peermem", "there");
                let mut without = machines::dgx_h100();
                without.observe("/sys/module/nvidia_peermem", Observation::Absent);
                Case::new()
                    .with_snapshot("a.json", with.snapshot())
                    .with_snapshot("b.json", without.snapshot())
            },
            // Nobody looked on the second one.
            || {
                let mut with = machines::dgx_h100();
                with.text("/sys/module/nvidia_peermem", "there");
                Case::new()
                    .with_snapshot("a.json", with.snapshot())
                    .with_snapshot("b.json", machines::dgx_h100().snapshot())
            },
        ),
        example(
            "J4",
            Note,
            || paste("Dear all,\nit is slow. Please help.\n"),
            || paste("n1:1:1 [0] NCCL INFO Using network IB\n"),
        ),
        example(
            "J4",
            Note,
            || paste("BZh91AY&SY"),
            || paste("n1:1:1 [0] NCCL INFO Using network IB\n"),
        ),
    ]
}
