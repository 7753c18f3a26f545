//! Results of nccl-tests and rccl-tests.

use crowfly_doctor::evidence::nccl_tests::{Check, NcclTests};
use crowfly_doctor::evidence::{Artefact, Format, LineNumber, read};
use crowfly_route::units::Bytes;

fn tests(text: &str) -> Vec<NcclTests> {
    let sections = read("run.txt", text.as_bytes()).sections;
    sections
        .into_iter()
        .filter_map(|s| match s.artefact {
            Artefact::NcclTests(tests) => Some(tests),
            _ => None,
        })
        .collect()
}

const RUN: &str = "\
$ mpirun -np 2 -x NCCL_IB_HCA=mlx5_0 /opt/nccl-tests/build/all_reduce_perf -b 8 -e 16M -f 2 -g 1
# nThread 1 nGpus 1 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1001 on   alpha device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1002 on    beta device  0 [0x43] NVIDIA H100 80GB HBM3
NCCL version 2.23.4+cuda12.6
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.90    0.00    0.00      0    12.87    0.00    0.00      0
alpha:1001:1001 [0] NCCL INFO Launch mode Parallel
    16777216       4194304     float     sum      -1    432.9   38.76   72.67      3    435.1   38.56   72.31    N/A
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 36.2205
#
";

#[test]
fn given_a_run_then_header_rows_and_verdict_read_exactly() {
    let runs = tests(RUN);
    assert_eq!(runs.len(), 1);
    let run = &runs[0];
    assert_eq!(
        run.program.as_ref().map(|p| p.value.as_str()),
        Some("all_reduce_perf")
    );
    let parameter = |name: &str| {
        run.parameters
            .iter()
            .find(|p| p.value.0 == name)
            .map(|p| p.value.1.as_str())
    };
    assert_eq!(parameter("nGpus"), Some("1"));
    assert_eq!(parameter("step"), Some("2(factor)"));
    assert_eq!(parameter("warmup iters"), Some("5"));
    let device = &run.devices[1].value;
    assert_eq!(
        (device.rank, device.host.as_str(), device.device),
        (1, "beta", 0)
    );
    assert_eq!(
        (device.bus.as_deref(), device.gpu.as_str()),
        (Some("0x43"), "NVIDIA H100 80GB HBM3")
    );
    assert_eq!(
        run.library
            .as_ref()
            .map(|l| l.value.release.to_string())
            .as_deref(),
        Some("2.23.4")
    );
    let row = &run.rows[1];
    assert_eq!(row.cite.line, LineNumber(14));
    assert_eq!(
        (row.value.size, row.value.count, row.value.root),
        (Bytes(16_777_216), 4_194_304, Some(-1))
    );
    let timing = row.value.out_of_place.unwrap();
    assert_eq!(
        (timing.time_us, timing.algorithm_gb, timing.bus_gb),
        (432.9, 38.76, 72.67)
    );
    assert_eq!(timing.check, Check::Wrong(3));
    assert_eq!(row.value.in_place.map(|t| t.check), Some(Check::NotChecked));
    assert_eq!(
        run.out_of_bounds.as_ref().map(|o| o.value),
        Some((3, false))
    );
    assert_eq!(run.average_bus.as_ref().map(|a| a.value), Some(36.2205));
}

#[test]
fn given_a_log_between_the_rows_then_both_are_read() {
    let formats: Vec<_> = read("run.txt", RUN.as_bytes())
        .sections
        .iter()
        .map(|s| s.format)
        .collect();
    assert!(formats.contains(&Format::NcclTests) && formats.contains(&Format::NcclLog));
    assert_eq!(tests(RUN)[0].rows.len(), 2);
}

#[test]
fn given_older_and_odder_layouts_then_the_rows_read() {
    let old = &tests(
        "\
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        262144   float     sum    135.3    7.75   15.02  7e-07    132.7    7.90   15.31    N/A
",
    )[0];
    let row = &old.rows[0].value;
    assert_eq!((row.reduction.as_deref(), row.root), (Some("sum"), None));
    assert_eq!(
        row.out_of_place.map(|t| t.check),
        Some(Check::Deviation(7e-7))
    );

    let tagged = &tests(
        "[1,0]<stdout>:     256       4     float    none      -1    86.95    0.00    0.00       0    88.21    0.00    0.00       0\n",
    )[0];
    assert_eq!(tagged.rows[0].value.size, Bytes(256));
}

#[test]
fn given_two_runs_in_one_file_then_they_are_two_results() {
    let runs = tests(&format!("{RUN}{RUN}"));
    assert_eq!(runs.len(), 2);
    assert_eq!((runs[0].rows.len(), runs[1].rows.len()), (2, 2));
    assert_eq!(
        runs[1].program.as_ref().map(|p| p.cite.line),
        Some(LineNumber(18))
    );
}

#[test]
fn given_a_failed_run_then_the_failure_is_evidence() {
    let run = &tests(
        "\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
alpha: Test NCCL failure common.cu:1005 'remote process exited or there was a network error'
 .. alpha pid 77: Test failure common.cu:891
",
    )[0];
    assert_eq!(run.failures.len(), 2);
    assert!(run.rows.is_empty());
}

#[test]
fn given_numbers_that_are_no_result_then_there_is_no_run() {
    for text in [
        "8 2 float sum -1 12.90 0.00 0.00\n",
        "8 2 floating sum -1 12.9 0 0 0 12.8 0 0 0\n",
        "99999999999999999999 2 float sum -1 12.9 0 0 0 12.8 0 0 0\n",
        "8 2 float sum -1 inf nan 0 0 NaN 0 0 0\n",
    ] {
        assert_eq!(tests(text), [], "{text}");
    }
}
