//! Places from the path listings of a NCCL log, in NCCL's own names.

use super::{MAX_GPUS, Nearness, Reach, Site};
use crate::evidence::nccl_log::{NcclLog, PathType};
use crate::finding::Quote;
use crate::verdict::PairKind;

pub(super) fn of_log(log: &NcclLog) -> Site {
    let source = log.paths.first().map(|path| path.first.source.to_string());
    let mut site = Site::new(source.unwrap_or_default());
    for sighting in &log.paths {
        let path = &sighting.what;
        let kind = if path.to.starts_with("NET/") {
            PairKind::GpuNic
        } else {
            PairKind::GpuGpu
        };
        if !site.gpus.contains(&path.from) {
            if site.gpus.len() >= MAX_GPUS {
                site.clipped = true;
                continue;
            }
            site.gpus.push(path.from.clone());
        }
        if kind == PairKind::GpuNic && !site.nics.contains(&path.to) {
            site.nics.push(path.to.clone());
        }
        let Some(nearness) = nearness(path.kind) else {
            continue;
        };
        if path.kind == PathType::P2c && !site.coherent.contains(&path.from) {
            site.coherent.push(path.from.clone());
        }
        let twin = |r: &Reach| r.kind == kind && r.gpu == path.to && r.other == path.from;
        if site.reaches.iter().any(twin) {
            continue;
        }
        site.reaches.push(Reach {
            kind,
            gpu: path.from.clone(),
            other: path.to.clone(),
            nearness,
            through: (path.kind == PathType::Pxn).then(|| "a peer's NIC".to_owned()),
            quote: Quote::from(&sighting.first),
        });
    }
    site
}

fn nearness(kind: PathType) -> Option<Nearness> {
    Some(match kind {
        PathType::Nvl | PathType::Nvb => Nearness::Link(0),
        PathType::Pix => Nearness::Pix,
        // Over NVLink and a peer's near NIC.
        PathType::Pxb | PathType::Pxn => Nearness::Pxb,
        PathType::Phb | PathType::P2c | PathType::C2c => Nearness::Phb,
        PathType::Node => Nearness::Node,
        PathType::Sys => Nearness::Sys,
        PathType::Loc | PathType::Net | PathType::Dis => return None,
    })
}
