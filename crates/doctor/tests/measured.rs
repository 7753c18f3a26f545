//! What a run of nccl-tests proves by its rates alone.

use crowfly_doctor::evidence::read;
use crowfly_doctor::verdict::Basis;
use crowfly_doctor::{Case, Diagnosis, PairKind, Verdict, diagnose};

/// Rows of an operation on `ranks` ranks without a header: bus bandwidths for sizes from 128 MiB on.
fn rows(whole: f64, ranks: f64, bus: &[f64]) -> String {
    let factor = whole * (ranks - 1.0) / ranks;
    let mut text = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n".to_owned();
    for (at, bus) in bus.iter().enumerate() {
        let size = (128_u64 << 20) << at;
        let columns = format!("{:9.1} {:7.2} {bus:7.2}      0", 1000.0, bus / factor);
        text += &format!(
            "{size:12} {:12} float sum -1 {columns} {columns}\n",
            size / 4
        );
    }
    text
}

fn header(hosts: &[&str], gpu: &str) -> String {
    let mut text = String::new();
    for (rank, host) in hosts.iter().enumerate() {
        text += &format!(
            "#  Rank {rank:2} Group  0 Pid 1 on {host} device  {} [0x1b] {gpu}\n",
            rank % 2
        );
    }
    text
}

fn diagnosed(text: &str) -> Diagnosis {
    diagnose(&Case::new().with_document(read("run.txt", text.as_bytes())))
}

fn network(diagnosis: &Diagnosis) -> Option<(Verdict, Option<Basis>)> {
    let of = diagnosis
        .kinds
        .iter()
        .find(|k| k.kind == PairKind::GpuNic)?;
    Some((of.verdict, of.basis))
}

fn t1(diagnosis: &Diagnosis) -> &str {
    let finding = diagnosis.findings.iter().find(|f| f.code == "T1");
    finding.map_or("", |f| f.title.as_str())
}

#[test]
fn given_more_ranks_than_a_board_and_a_rate_that_stays_at_a_wires_then_the_wire_ends_it() {
    let diagnosis = diagnosed(&rows(2.0, 16.0, &[44.0, 47.8, 48.1, 48.2]));
    assert_eq!(
        network(&diagnosis),
        Some((Verdict::Direct, Some(Basis::Measured)))
    );
    assert_eq!(
        t1(&diagnosis),
        "48.2 GB/s over 16 ranks, steady over the largest sizes: 96 % of a 400 Gb/s NIC, which is as much as a healthy run gets of that"
    );
    assert!(
        diagnosis
            .missing
            .iter()
            .any(|m| m.about == Some(PairKind::GpuNic))
    );
}

#[test]
fn given_ranks_of_one_board_then_the_same_rate_proves_nothing() {
    let diagnosis = diagnosed(&rows(2.0, 8.0, &[44.0, 47.8, 48.1, 48.2]));
    assert_eq!(
        network(&diagnosis),
        Some((Verdict::InsufficientEvidence, None))
    );
}

#[test]
fn given_a_rate_between_wires_or_still_growing_or_of_sockets_then_nothing_is_concluded() {
    for bus in [
        &[30.0, 31.5, 31.6, 31.7][..],
        &[12.0, 24.0, 36.0, 48.0],
        &[2.70, 2.80, 2.82, 2.83],
        &[48.2],
    ] {
        let diagnosis = diagnosed(&rows(2.0, 16.0, bus));
        assert_eq!(
            network(&diagnosis),
            Some((Verdict::InsufficientEvidence, None)),
            "{bus:?}"
        );
    }
}

#[test]
fn given_operations_that_share_out_then_ranks_are_counted_by_their_own_formula() {
    let diagnosis = diagnosed(&rows(1.0, 16.0, &[49.0, 49.8, 50.0, 50.1]));
    assert_eq!(
        network(&diagnosis),
        Some((Verdict::Direct, Some(Basis::Measured)))
    );
}

#[test]
fn given_one_nic_named_for_many_gpus_then_a_filled_wire_is_direct_but_shared() {
    let text = format!(
        "mpirun -x NCCL_IB_HCA=mlx5_0 all_reduce_perf\n{}{}",
        header(&["a", "a", "b", "b"], "NVIDIA H200"),
        rows(2.0, 4.0, &[44.0, 47.8, 48.1, 48.2])
    );
    let diagnosis = diagnosed(&text);
    assert_eq!(
        network(&diagnosis),
        Some((Verdict::DirectButSlow, Some(Basis::Measured)))
    );
}

#[test]
fn given_more_than_pcie_carries_then_gpus_have_links() {
    let diagnosis = diagnosed(&rows(2.0, 8.0, &[380.0, 440.0, 441.0, 442.0]));
    let of = diagnosis.kinds.iter().find(|k| k.kind == PairKind::GpuGpu);
    assert_eq!(
        of.map(|k| (k.verdict, k.basis)),
        Some((Verdict::Direct, Some(Basis::Observed)))
    );
}
