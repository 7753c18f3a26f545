//! T1 to T4.

use crowfly_doctor::Case;
use crowfly_doctor::Severity::{Broken, Fault, Note, Warning};

use super::given::{Example, example, log, paste, pastes};

/// A run on hosts with this many GPUs each, and these rows: size, time in µs, bus bandwidth, wrong.
fn run(hosts: &[&str], gpu: &str, rows: &[(u64, f64, f64, u64)]) -> String {
    let mut text = "# nThread 1 nGpus 2 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n# Using devices\n".to_owned();
    let mut rank = 0;
    for host in hosts {
        for device in 0..2 {
            text.push_str(&format!(
                "#  Rank {rank:2} Group  0 Pid 1 on {host} device  {device} [0x1b] {gpu}\n"
            ));
            rank += 1;
        }
    }
    text.push_str("#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n");
    for (size, time, bus, wrong) in rows {
        let columns = format!("{time:8.2} {bus:8.2} {bus:8.2} {wrong:6}");
        text.push_str(&format!(
            "{size:12} {:12} float     sum      -1 {columns} {columns}\n",
            size / 4
        ));
    }
    text
}

const HOPPER: &str = "NVIDIA H100 80GB HBM3";
const GIB: u64 = 1 << 30;

fn one_node(bus: f64) -> Case {
    paste(&run(&["alpha"], HOPPER, &[(GIB, 5000.0, bus, 0)]))
}

/// Two nodes with one NIC of 400 Gb/s in use on each.
fn two_nodes(bus: f64) -> Case {
    let channels = "\
alpha:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.0.0.1<0>
alpha:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
beta:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.0.0.2<0>
beta:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0/GDRDMA
";
    let rates = "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n";
    pastes(&[
        &run(&["alpha", "beta"], HOPPER, &[(GIB, 5000.0, bus, 0)]),
        channels,
        rates,
    ])
}

fn small(time: f64) -> Case {
    let rows: Vec<(u64, f64, f64, u64)> =
        (3..12).map(|power| (1 << power, time, 0.01, 0)).collect();
    paste(&run(&["alpha"], HOPPER, &rows))
}

fn dip(middle: f64) -> Case {
    paste(&run(
        &["alpha"],
        HOPPER,
        &[
            (1 << 20, 50.0, 40.0, 0),
            (1 << 21, 400.0, middle, 0),
            (1 << 22, 60.0, 90.0, 0),
        ],
    ))
}

fn wrong(count: u64) -> Case {
    paste(&run(&["alpha"], HOPPER, &[(1 << 20, 50.0, 40.0, count)]))
}

pub fn examples() -> Vec<Example> {
    vec![
        example(
            "T1",
            Warning,
            || one_node(120.0),
            || paste(&log(&["Using network IB"])),
        ),
        // Without NVLink the PCIe link is what the result is held against.
        example(
            "T1",
            Note,
            || paste(&run(&["alpha"], "Tesla T4", &[(GIB, 5000.0, 8.0, 0)])),
            || paste(&log(&["Using network IB"])),
        ),
        example(
            "T1",
            Note,
            || one_node(440.0),
            || paste(&log(&["Using network IB"])),
        ),
        example(
            "T1",
            Fault,
            || two_nodes(20.0),
            || paste(&log(&["Using network IB"])),
        ),
        // Reduction in switches lets bus bandwidth exceed the line rate.
        example(
            "T1",
            Note,
            || two_nodes(58.0),
            || paste(&log(&["Using network IB"])),
        ),
        example("T2", Note, || small(140.0), || small(18.0)),
        example("T2", Warning, || small(900.0), || small(70.0)),
        example("T3", Warning, || dip(10.0), || dip(60.0)),
        example("T4", Broken, || wrong(17), || wrong(0)),
    ]
}
