//! What NCCL makes of distances.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{CpuMaker, Nearness, Reach, Site};
use crate::case::Case;
use crate::evidence::nccl_log::PathType;
use crate::facts::level::{Level, parse};
use crate::facts::settings::{is_on, settings};
use crate::finding::Quote;
use crate::verdict::PairKind;

/// A GPU's nearest NICs, and what NCCL does about them.
#[derive(Clone, Debug)]
pub(crate) struct GpuNics<'a> {
    pub(crate) gpu: &'a str,
    /// The NICs that are nearest, all at the same distance.
    pub(crate) nearest: Vec<&'a Reach>,
    pub(crate) near: Near<'a>,
}

/// Whether a GPU's nearest NIC is near enough.
#[derive(Clone, Debug)]
pub(crate) enum Near<'a> {
    /// Within the level.
    Enough,
    /// Not within the level, but another GPU that it has NVLink to has such a NIC (PXN).
    ThroughPeer(&'a str),
    /// Not within the level, and no NIC waits for it: each is near some GPU. NCCL's rings enter and
    /// leave a node at the GPU that is nearest to a NIC, such as this one.
    ThroughRing(&'a str),
    /// Too far, and no peer helps.
    Too,
    /// It depends on what the evidence does not show.
    Open(&'static str),
}

/// The nearest NICs of each GPU.
fn nearest_nics(site: &Site) -> BTreeMap<&str, Vec<&Reach>> {
    let mut nearest: BTreeMap<&str, Vec<&Reach>> = BTreeMap::new();
    for reach in site.of_kind(PairKind::GpuNic) {
        let best = nearest.entry(&reach.gpu).or_default();
        match best
            .first()
            .map(|found| found.nearness.cmp(&reach.nearness))
        {
            Some(Ordering::Less) => {}
            Some(Ordering::Greater) => *best = vec![reach],
            Some(Ordering::Equal) | None => best.push(reach),
        }
    }
    nearest
}

/// What NCCL makes of each GPU's nearest NICs at this level.
pub(crate) fn gpu_nics<'a>(site: &'a Site, level: &Level) -> Vec<GpuNics<'a>> {
    let within = |nearness: Nearness| {
        let (least, most) = nearness.paths();
        (least <= level.path, most <= level.path)
    };
    let nearest = nearest_nics(site);
    let has_near = |gpu: &str| {
        let reach = nearest.get(gpu).and_then(|reaches| reaches.first());
        reach.is_some_and(|reach| within(reach.nearness).1)
    };
    let served = site
        .gpus
        .iter()
        .map(String::as_str)
        .find(|gpu| has_near(gpu));
    let all_served = site.nics.iter().all(|nic| {
        site.of_kind(PairKind::GpuNic)
            .any(|reach| reach.other == *nic && within(reach.nearness).1)
    });
    site.gpus
        .iter()
        .filter_map(|gpu| {
            let nearest = nearest.get(gpu.as_str())?.clone();
            let nearness = nearest.first()?.nearness;
            let near = match within(nearness) {
                (true, true) => Near::Enough,
                (true, false) => Near::Open(
                    "NCCL knows no NODE: by its own walk it calls this PHB or SYS, and the level lies between the two",
                ),
                _ if site.coherent.contains(gpu) => Near::Open(
                    "this GPU has a chip-to-chip link to its CPU, over which NCCL 2.27 and later may reach the NIC",
                ),
                _ if site.hides_places() => Near::Open(
                    "a whole board of GPUs with as many NICs, none of them near: so virtual machines look, whose topology file tells NCCL the real places",
                ),
                _ if site.amd_gpus => Near::Open(
                    "RCCL raises its level on machines that it knows, which the topology alone does not show",
                ),
                _ => {
                    let peer = site
                        .of_kind(PairKind::GpuGpu)
                        .filter(|r| matches!(r.nearness, Nearness::Link(_)))
                        .filter_map(|r| match (r.gpu == *gpu, r.other == *gpu) {
                            (true, _) => Some(r.other.as_str()),
                            (_, true) => Some(r.gpu.as_str()),
                            _ => None,
                        })
                        .find(|peer| has_near(peer));
                    match (peer, all_served.then_some(served).flatten()) {
                        (Some(peer), _) => Near::ThroughPeer(peer),
                        (None, Some(served)) => Near::ThroughRing(served),
                        (None, None) => Near::Too,
                    }
                }
            };
            Some(GpuNics {
                gpu,
                nearest,
                near,
            })
        })
        .collect()
}

/// How far two GPUs may be apart for NCCL to use peer-to-peer DMA, and where that was set.
pub(crate) fn gpu_gpu_level(case: &Case, site: &Site) -> (Option<PathType>, Option<Quote>) {
    if let Some(off) = settings(case, "NCCL_P2P_DISABLE")
        .into_iter()
        .find(|setting| is_on(setting.value))
    {
        return (Some(PathType::Loc), Some(off.quote));
    }
    let set = settings(case, "NCCL_P2P_LEVEL")
        .into_iter()
        .find_map(|setting| Some((parse(setting.value)?, setting.quote)));
    if let Some((path, quote)) = set {
        return (Some(path), Some(quote));
    }
    // With two GPUs or fewer, NCCL goes through an AMD CPU; it does not through others.
    let few = site.gpus.len() <= 2;
    let path = match (site.cpu, few) {
        (CpuMaker::Amd, true) => Some(PathType::Sys),
        (CpuMaker::Unknown, true) => None,
        _ => Some(PathType::Pxb),
    };
    (path, None)
}
