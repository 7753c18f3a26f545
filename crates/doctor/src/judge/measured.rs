//! Pairs as measurements prove them.

use super::pair;
use crate::case::Case;
use crate::facts::measured::{Measured, beyond_pcie, measured};
use crate::facts::nics::few_nics;
use crate::finding::Quote;
use crate::verdict::{Basis, PairKind, PairVerdict, Verdict};

pub(super) fn pairs(case: &Case) -> Vec<PairVerdict> {
    let channels_shown = case.nccl_logs().any(|log| log.totals != Default::default());
    case.tests()
        .filter_map(measured)
        .flat_map(|run| {
            let network = (!channels_shown).then(|| network(case, &run)).flatten();
            peers(&run, channels_shown).into_iter().chain(network)
        })
        .collect()
}

fn peers(run: &Measured<'_>, channels_shown: bool) -> Option<PairVerdict> {
    let (verdict, why) = if let Some(limit) = beyond_pcie(run) {
        (
            Verdict::Direct,
            format!(
                "{:.1} GB/s of bus bandwidth is more than PCIe carries ({limit:.0} GB/s at most), so GPUs reach each other over NVLink or xGMI",
                run.peak
            ),
        )
    } else if !run.is_over_network() && run.hosts.len() <= 1 && !channels_shown {
        (
            Verdict::InsufficientEvidence,
            format!(
                "{:.1} GB/s of bus bandwidth fits PCIe, direct or staged, and a slow network alike",
                run.peak
            ),
        )
    } else {
        return None;
    };
    Some(of_all(run, PairKind::GpuGpu, verdict, Basis::Observed, why))
}

/// What the rate says of the network, where the run went over one.
fn network(case: &Case, run: &Measured<'_>) -> Option<PairVerdict> {
    if run.hosts.len() == 1 {
        return None;
    }
    let (verdict, why) = match run.filled_wire() {
        Some(wire) => {
            let fills = format!(
                "{:.1} GB/s, steady over the largest sizes, fills {wire} ({:.1} GB/s)",
                run.peak,
                wire.gb()
            );
            match few_nics(case) {
                Some(few) => (
                    Verdict::DirectButSlow,
                    format!(
                        "{fills}; NCCL_IB_HCA leaves {} to the {} GPUs of a node, which share it",
                        few.counted(),
                        few.gpus
                    ),
                ),
                None => (
                    Verdict::Direct,
                    format!("{fills}: the wire is what ends it, not the way to the wire"),
                ),
            }
        }
        _ => (
            Verdict::InsufficientEvidence,
            format!(
                "{:.1} GB/s of bus bandwidth: nothing says which NICs carried it, so there is no line rate to hold it against",
                run.peak
            ),
        ),
    };
    Some(of_all(run, PairKind::GpuNic, verdict, Basis::Measured, why))
}

fn of_all(
    run: &Measured<'_>,
    kind: PairKind,
    verdict: Verdict,
    basis: Basis,
    why: String,
) -> PairVerdict {
    let other = match kind {
        PairKind::GpuNic => "its NIC",
        _ => "every rank",
    };
    pair(
        kind,
        Some(run.peak_cite.source.to_string()),
        ("every rank".to_owned(), other.to_owned()),
        verdict,
        basis,
        why,
        [Quote::from(run.peak_cite)],
    )
}
