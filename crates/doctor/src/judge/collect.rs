//! What to collect for what is still open.

use crate::case::Case;
use crate::evidence::Format;
use crate::verdict::{Basis, KindVerdict, Missing, PairKind, Verdict};

pub(super) fn missing(case: &Case, verdict: Verdict, kinds: &[KindVerdict]) -> Vec<Missing> {
    let mut missing = Vec::new();
    for kind in kinds {
        let open = kind.verdict == Verdict::InsufficientEvidence;
        if open || kind.basis < Some(Basis::Observed) {
            missing.push(settles(kind.kind, open));
        }
        if open && kind.kind == PairKind::GpuNic && !has_places(case) {
            missing.push(places(Some(PairKind::GpuNic)));
        }
    }
    if verdict == Verdict::InsufficientEvidence && kinds.is_empty() && !case.is_about_no_gpu() {
        if case.machines.is_empty() {
            missing.push(ask(
                None,
                Format::Snapshot,
                "a snapshot of the machine",
                "it shows devices, links, drivers and settings, from which each pair is judged",
            ));
        }
        missing.push(settles(PairKind::GpuNic, true));
    }
    missing.dedup();
    missing
}

fn has_places(case: &Case) -> bool {
    !case.machines.is_empty()
        || case.matrices().next().is_some()
        || case.nccl_topologies().next().is_some()
}

fn places(about: Option<PairKind>) -> Missing {
    ask(
        about,
        Format::TopoMatrix,
        "the topology matrix of a node",
        "it shows how far each GPU is from each NIC",
    )
}

fn settles(kind: PairKind, open: bool) -> Missing {
    let why_log = if open {
        "its channel lines end in /GDRDMA, or they do not: nothing else proves which way bytes go"
    } else {
        "the verdict rests on the layout or on a rate; the channel lines of a run prove it"
    };
    match kind {
        PairKind::GpuNic => ask(
            Some(kind),
            Format::NcclLog,
            "the log of a run over at least two nodes, with its NET and GRAPH lines",
            why_log,
        ),
        PairKind::GpuGpu => ask(
            Some(kind),
            Format::NcclLog,
            "the log of a run on all GPUs of a node",
            "its channel lines say P2P, or SHM for host memory",
        ),
        PairKind::GpuDrive => ask(
            Some(kind),
            Format::GdsCheck,
            "the whole report of gdscheck, to its last line",
            "its last line is the platform's verdict, which a driver's own line is not",
        ),
        PairKind::GpuFileSystem => ask(
            Some(kind),
            Format::CufileLog,
            "cuFile's log of a run, with compat mode switched off (allow_compat_mode false)",
            "it names the reason of each fallback instead of falling back in silence",
        ),
    }
}

fn ask(about: Option<PairKind>, format: Format, what: &str, why: &str) -> Missing {
    Missing {
        about,
        what: what.to_owned(),
        why: why.to_owned(),
        command: format.collect().to_owned(),
        format: Some(format),
    }
}
