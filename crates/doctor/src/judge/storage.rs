//! GPU and storage pairs: GPUDirect Storage as its own tools show it.

use super::pair;
use crate::case::Case;
use crate::evidence::cufile::{CufileLog, NvidiaFsStats};
use crate::evidence::gdscheck::{GdsCheck, Support, Verification};
use crate::facts::storage::{Readiness, fell_back, readiness};
use crate::finding::Quote;
use crate::verdict::{Basis, PairKind, PairVerdict, Verdict};

pub(super) fn pairs(case: &Case) -> Vec<PairVerdict> {
    let mut pairs: Vec<PairVerdict> = case.gds_checks().flat_map(of_check).collect();
    pairs.extend(case.cufile_logs().filter_map(of_log));
    pairs.extend(case.nvidia_fs_stats().filter_map(of_stats));
    pairs.extend(case.machines.iter().flat_map(of_machine));
    pairs
}

fn of_check(check: &GdsCheck) -> Vec<PairVerdict> {
    let failed = check
        .verification
        .as_ref()
        .filter(|v| v.value == Verification::Failed);
    let succeeded = check
        .verification
        .as_ref()
        .is_some_and(|v| v.value == Verification::Succeeded);
    check
        .drivers
        .iter()
        .filter(|driver| {
            let shown = driver.value.support != Support::Unsupported;
            shown && !driver.value.name.to_ascii_lowercase().contains("rdma")
        })
        .map(|driver| {
            let name = &driver.value.name;
            let kind = if is_drive(name) {
                PairKind::GpuDrive
            } else {
                PairKind::GpuFileSystem
            };
            let mut evidence = vec![Quote::from(&driver.cite)];
            let (verdict, why) = if let Some(failed) = failed {
                evidence.insert(0, Quote::from(&failed.cite));
                (
                    Verdict::Broken,
                    format!("{name}: the platform failed verification, so its own state does not matter"),
                )
            } else if driver.value.support == Support::Compat {
                (
                    Verdict::Staged,
                    format!("{name}: compat, so POSIX reads through host memory"),
                )
            } else if succeeded {
                evidence.extend(check.verification.as_ref().map(|v| Quote::from(&v.cite)));
                (
                    Verdict::Direct,
                    format!("{name}: supported, and the platform passed verification"),
                )
            } else {
                (
                    Verdict::InsufficientEvidence,
                    format!("{name}: supported, but the platform's verification is not shown, and a driver's own line is no verdict"),
                )
            };
            pair(
                kind,
                Some(driver.cite.source.to_string()),
                ("every GPU".into(), name.clone()),
                verdict,
                Basis::Predicted,
                why,
                evidence,
            )
        })
        .collect()
}

fn is_drive(name: &str) -> bool {
    ["nvme", "scsi", "scaleflux"]
        .iter()
        .any(|start| name.to_ascii_lowercase().starts_with(start))
}

fn of_log(log: &CufileLog) -> Option<PairVerdict> {
    let message = fell_back(log)?;
    Some(pair(
        PairKind::GpuFileSystem,
        Some(message.first.source.to_string()),
        ("every GPU".into(), "the files it opened".into()),
        Verdict::Staged,
        Basis::Observed,
        "cuFile says that it reads and writes by POSIX calls through host memory",
        [Quote::from(&message.first)],
    ))
}

fn of_stats(stats: &NvidiaFsStats) -> Option<PairVerdict> {
    let mapped = stats
        .counter("Bar1-map", "ok")
        .or_else(|| stats.counter("Mmap", "ok"))?;
    let failed: u64 = ["Bar1-map", "Mmap", "Reads", "Writes"]
        .iter()
        .filter_map(|line| Some(stats.counter(line, "err")?.value))
        .sum();
    let (verdict, why) = match (mapped.value, failed) {
        (0, _) => (
            Verdict::InsufficientEvidence,
            "no GPU memory was ever mapped by nvidia-fs: nothing went this way before this was read".to_owned(),
        ),
        (ok, 0) => (
            Verdict::Direct,
            match ok {
                1 => "nvidia-fs mapped GPU memory once, without an error".to_owned(),
                _ => format!("nvidia-fs mapped GPU memory {ok} times without an error"),
            },
        ),
        (ok, errors) => (
            Verdict::InsufficientEvidence,
            format!("nvidia-fs mapped GPU memory {ok} times and counted {errors} errors; which transfers fell back is not shown"),
        ),
    };
    Some(pair(
        PairKind::GpuDrive,
        Some(mapped.cite.source.to_string()),
        ("every GPU".into(), "nvidia-fs".into()),
        verdict,
        Basis::Observed,
        why,
        [Quote::from(&mapped.cite)],
    ))
}

fn of_machine(machine: &crate::case::Machine) -> Vec<PairVerdict> {
    let site = crate::facts::site::of_machine(machine);
    let readiness = readiness(machine);
    site.of_kind(PairKind::GpuDrive)
        .map(|reach| {
            let word = reach.nearness.word();
            let (verdict, why) = match &readiness {
                Readiness::Ready(how) if reach.nearness <= crate::facts::site::Nearness::Pxb => (
                    Verdict::Direct,
                    format!("{word}, and GPUDirect Storage is ready by {how}"),
                ),
                Readiness::Ready(how) => (
                    Verdict::DirectButSlow,
                    format!(
                        "{word}: GPUDirect Storage is ready by {how}, through the CPU's host bridge"
                    ),
                ),
                Readiness::Missing(what) => (Verdict::Staged, format!("{word}; {what}")),
                Readiness::NotLookedAt => (
                    Verdict::InsufficientEvidence,
                    format!("{word}; whether GPUDirect Storage is ready was not looked at"),
                ),
            };
            pair(
                PairKind::GpuDrive,
                Some(site.on.clone()),
                (reach.gpu.clone(), reach.other.clone()),
                verdict,
                Basis::Predicted,
                why,
                [reach.quote.clone()],
            )
        })
        .collect()
}
