//! Pairs as a machine's layout predicts them, at NCCL's defaults and the settings given.

use std::collections::BTreeMap;

use super::pair;
use crate::case::Case;
use crate::evidence::topo_matrix::P2pStatus;
use crate::facts::level::gdr_level;
use crate::facts::site::{MAX_GPUS, Near, Nearness, Reach, Site, gpu_gpu_level, gpu_nics, sites};
use crate::finding::Quote;
use crate::verdict::{Basis, PairKind, PairVerdict, Verdict};

pub(super) fn pairs(case: &Case) -> Vec<PairVerdict> {
    let sites = sites(case);
    let mut pairs = Vec::new();
    for site in &sites {
        pairs.extend(gpu_gpu(case, site));
        pairs.extend(gpu_nic(case, site));
    }
    pairs
}

fn gpu_gpu(case: &Case, site: &Site) -> Vec<PairVerdict> {
    let (level, _) = gpu_gpu_level(case, site);
    let refused = refused_pairs(case);
    let all_linked = linked_together(site);
    site.of_kind(PairKind::GpuGpu)
        .map(|reach| {
            let (verdict, why) = if let Some(quote) = refusal(&refused, reach) {
                return predicted(
                    site,
                    reach,
                    Verdict::Staged,
                    format!(
                        "{} by the topology, but the driver refuses peer access",
                        reach.nearness.word()
                    ),
                    quote.clone(),
                );
            } else {
                by_nearness(site, reach.nearness, level, all_linked)
            };
            predicted(site, reach, verdict, why, reach.quote.clone())
        })
        .collect()
}

fn by_nearness(
    site: &Site,
    nearness: Nearness,
    level: Option<crate::evidence::nccl_log::PathType>,
    all_linked: bool,
) -> (Verdict, String) {
    let word = nearness.word();
    let (least, most) = nearness.paths();
    match (nearness, level) {
        (Nearness::Link(_), Some(level)) if least > level => (
            Verdict::Staged,
            format!("{word}, which NCCL_P2P_DISABLE or NCCL_P2P_LEVEL keeps from being used"),
        ),
        (Nearness::Link(0), _) if site.amd_gpus => (Verdict::Direct, "xGMI".into()),
        (Nearness::Link(0), _) => (Verdict::Direct, "NVLink".into()),
        (Nearness::Link(count), _) if site.amd_gpus => {
            (Verdict::Direct, format!("{count} xGMI links"))
        }
        (Nearness::Link(count), _) => (Verdict::Direct, format!("{count} NVLinks")),
        (_, Some(level)) if most <= level && nearness <= Nearness::Pxb => (
            Verdict::Direct,
            format!("{word}: peer to peer below one root port"),
        ),
        (_, Some(level)) if most <= level => (
            Verdict::DirectButSlow,
            format!("{word}: peer to peer through the CPU's host bridge, which caps it"),
        ),
        _ if all_linked => (
            Verdict::Direct,
            format!(
                "{word} by PCIe, but NVLink joins both through other GPUs, which collectives follow"
            ),
        ),
        _ if site.amd_gpus => (
            Verdict::InsufficientEvidence,
            format!("{word}: whether RCCL goes peer to peer here, only its log shows"),
        ),
        (_, None) => (
            Verdict::InsufficientEvidence,
            format!(
                "{word}: with two GPUs NCCL goes peer to peer through an AMD CPU and not through others; the CPU is not shown"
            ),
        ),
        (_, Some(level)) if least <= level => (
            Verdict::InsufficientEvidence,
            format!("{word}: NCCL calls this PHB or SYS by its own walk, and its level is {level}"),
        ),
        (_, Some(level)) => (
            Verdict::Staged,
            format!(
                "{word}: farther than NCCL goes peer to peer ({level}), so through shared host memory"
            ),
        ),
    }
}

/// Whether NVLink joins all GPUs into one graph, straight or through others.
fn linked_together(site: &Site) -> bool {
    let Some(first) = site.gpus.first() else {
        return false;
    };
    let mut joined = vec![first.as_str()];
    let mut at = 0;
    while let Some(gpu) = joined.get(at).copied() {
        at += 1;
        for reach in site.of_kind(PairKind::GpuGpu) {
            if !matches!(reach.nearness, Nearness::Link(_)) {
                continue;
            }
            let next = match (reach.gpu == gpu, reach.other == gpu) {
                (true, _) => reach.other.as_str(),
                (_, true) => reach.gpu.as_str(),
                _ => continue,
            };
            if !joined.contains(&next) {
                joined.push(next);
            }
        }
    }
    joined.len() == site.gpus.len() && site.gpus.len() > 1
}

/// Pairs that `topo -p2p` says the driver refuses, by GPU number, the lower one first.
fn refused_pairs(case: &Case) -> BTreeMap<(u32, u32), Quote> {
    let mut refused = BTreeMap::new();
    for matrix in case.p2p_matrices() {
        if matrix.capability == Some('n') || matrix.capability == Some('a') {
            continue;
        }
        for row in matrix.rows.iter().take(MAX_GPUS) {
            for (column, cell) in matrix.columns.iter().zip(&row.value.1).take(MAX_GPUS) {
                let ok = matches!(
                    cell,
                    None | Some(P2pStatus::Ok | P2pStatus::Same | P2pStatus::Unknown)
                );
                let (a, b) = (row.value.0, *column);
                if !ok && a != b {
                    refused
                        .entry((a.min(b), a.max(b)))
                        .or_insert_with(|| Quote::from(&row.cite));
                }
            }
        }
    }
    refused
}

fn refusal<'a>(refused: &'a BTreeMap<(u32, u32), Quote>, reach: &Reach) -> Option<&'a Quote> {
    if matches!(reach.nearness, Nearness::Link(_)) {
        return None;
    }
    let number = |name: &str| -> Option<u32> {
        name.trim_start_matches("GPU")
            .trim_start_matches("gpu")
            .parse()
            .ok()
    };
    let (a, b) = (number(&reach.gpu)?, number(&reach.other)?);
    refused.get(&(a.min(b), a.max(b)))
}

fn gpu_nic(case: &Case, site: &Site) -> Vec<PairVerdict> {
    let level = gdr_level(case);
    let judged = gpu_nics(site, &level);
    if judged.is_empty() {
        return vec![pair(
            PairKind::GpuNic,
            Some(site.on.clone()),
            ("every GPU".into(), "its NIC".into()),
            Verdict::InsufficientEvidence,
            Basis::Predicted,
            "no NIC is shown, which proves nothing: the tool may not list this machine's kind (EFA never is)",
            None,
        )];
    }
    // Where no GPU has a NIC near, links between GPUs help none of them to one.
    let some_near = judged.iter().any(|gpu| matches!(gpu.near, Near::Enough));
    let mut pairs = Vec::new();
    for gpu in judged {
        for reach in &gpu.nearest {
            let word = reach.nearness.word();
            let through = reach
                .through
                .as_ref()
                .map(|t| format!(" through its data-direct function {t}"))
                .unwrap_or_default();
            let (verdict, why) = match &gpu.near {
                Near::Enough if reach.nearness <= Nearness::Pxb => (
                    Verdict::Direct,
                    format!("{word}{through}: near enough for GPUDirect RDMA"),
                ),
                Near::Enough => (
                    Verdict::DirectButSlow,
                    format!(
                        "{word}{through}: GPUDirect RDMA is allowed by NCCL_NET_GDR_LEVEL, through the CPU's host bridge"
                    ),
                ),
                Near::ThroughPeer(peer) => (
                    Verdict::DirectButSlow,
                    format!(
                        "{word}: too far itself; NCCL 2.12 and later goes over NVLink and {peer}'s NIC (PXN), which both then share"
                    ),
                ),
                Near::ThroughRing(peer) => (
                    Verdict::DirectButSlow,
                    format!(
                        "{word}: too far itself; rings over several nodes leave this one through {peer}, which has a NIC near, and what this GPU sends by itself goes through host memory"
                    ),
                ),
                Near::Too if site.links_unknown && some_near => (
                    Verdict::InsufficientEvidence,
                    format!(
                        "{word}, but NVLink does not show here: whether another GPU's NIC can be used is open"
                    ),
                ),
                Near::Too => (
                    Verdict::Staged,
                    format!(
                        "{word}: farther than NCCL uses GPUDirect RDMA ({}{}), so through host memory",
                        level.path,
                        if level.set.is_some() {
                            " as set"
                        } else {
                            " by default"
                        }
                    ),
                ),
                Near::Open(why) => (Verdict::InsufficientEvidence, format!("{word}: {why}")),
            };
            pairs.push(predicted(site, reach, verdict, why, reach.quote.clone()));
        }
    }
    pairs
}

fn predicted(
    site: &Site,
    reach: &Reach,
    verdict: Verdict,
    why: String,
    quote: Quote,
) -> PairVerdict {
    pair(
        reach.kind,
        Some(site.on.clone()),
        (reach.gpu.clone(), reach.other.clone()),
        verdict,
        Basis::Predicted,
        why,
        [quote],
    )
}
