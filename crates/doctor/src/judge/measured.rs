//! Pairs as measurements prove them.

use super::pair;
use crate::case::Case;
use crate::facts::measured::{Measured, beyond_pcie, measured};
use crate::finding::Quote;
use crate::verdict::{Basis, PairKind, PairVerdict, Verdict};

pub(super) fn pairs(case: &Case) -> Vec<PairVerdict> {
    let channels_shown = case.nccl_logs().any(|log| log.totals != Default::default());
    case.tests()
        .filter_map(measured)
        .flat_map(|run| of_run(&run, channels_shown))
        .collect()
}

fn of_run(run: &Measured<'_>, channels_shown: bool) -> Vec<PairVerdict> {
    let mut pairs = Vec::new();
    let ends = || ("every rank".to_owned(), "every rank".to_owned());
    let quote = || [Quote::from(run.peak_cite)];
    let on = || Some(run.peak_cite.source.to_string());
    if let Some(limit) = beyond_pcie(run) {
        pairs.push(pair(
            PairKind::GpuGpu,
            on(),
            ends(),
            Verdict::Direct,
            Basis::Observed,
            format!(
                "{:.1} GB/s of bus bandwidth is more than PCIe carries ({limit:.0} GB/s at most), so GPUs reach each other over NVLink or xGMI",
                run.peak
            ),
            quote(),
        ));
    } else if run.hosts.len() <= 1 && !channels_shown {
        pairs.push(pair(
            PairKind::GpuGpu,
            on(),
            ends(),
            Verdict::InsufficientEvidence,
            Basis::Observed,
            format!(
                "{:.1} GB/s of bus bandwidth fits PCIe, direct or staged, and a slow network alike",
                run.peak
            ),
            quote(),
        ));
    }
    if run.hosts.len() != 1 && !channels_shown {
        pairs.push(pair(
            PairKind::GpuNic,
            on(),
            ("every rank".into(), "its NIC".into()),
            Verdict::InsufficientEvidence,
            Basis::Observed,
            format!(
                "{:.1} GB/s of bus bandwidth: nothing says which NICs carried it, so there is no line rate to hold it against",
                run.peak
            ),
            quote(),
        ));
    }
    pairs
}
