//! Distances: N1 to N3.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::distance::era_of;
use crate::evidence::nccl_log::{GdrPair, NcclLog, PathType, Sighting};
use crate::facts::flows::{NetUse, is_socket, net_uses};
use crate::facts::level::{Level, gdr_level, release};
use crate::facts::site::{GpuNics, Near, Site, gpu_nics, sites};
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{Pair, PairKind};

pub(super) const TOO_FAR: Rule = Rule {
    id: "N1",
    name: "gpu-nic-too-far",
    family: Family::Nccl,
    summary: "a GPU's nearest NIC is farther than NCCL uses GPUDirect RDMA",
    page: Page {
        condition: "The nearest NIC of a GPU lies behind the CPU's host bridge or another socket.",
        detection: "The best cell of the GPU's row in the topology matrix (data-direct functions counted in), NCCL's topology XML, the PCI tree or the machine itself, held against NCCL_NET_GDR_LEVEL; by default PXB, and P2C since 2.29 on machines with a chip-to-chip link. In a log: `distance a > b`, together with channels that lack /GDRDMA.",
        consequence: "NCCL does not let the NIC reach GPU memory; each message is copied to host memory first and again at the other end.",
        fix: "Put the GPU and the NIC under one PCIe switch. Where that cannot be, set NCCL_NET_GDR_LEVEL=PHB or SYS on every rank and measure both ways.",
        source: "NCCL src/graph/paths.cc, ncclTopoCheckGdr, each tag since 2.4",
        false_alarms: "Other NICs of the same GPU are meant to be far; only the nearest counts. GPUs joined by NVLink can go through a peer's NIC (PXN, 2.12 and later). On Grace the CPU's own link to the GPU may be used. A level that was raised on purpose is not a fault.",
    },
    check: too_far,
};

fn too_far(rule: &Rule, case: &Case) -> Vec<Finding> {
    let level = gdr_level(case);
    let uses: Vec<NetUse> = case
        .nccl_logs()
        .flat_map(net_uses)
        .filter(|u| !is_socket(&u.network))
        .collect();
    let all_direct = !uses.is_empty() && uses.iter().all(|u| u.plain() == 0);
    if all_direct {
        // Transfers outweigh distances.
        return Vec::new();
    }
    let mut findings: Vec<Finding> = sites(case)
        .iter()
        .filter_map(|site| of_site(rule, case, site, &level, &uses))
        .collect();
    if findings.is_empty() && uses.iter().any(|u| u.plain() > 0) {
        findings.extend(case.nccl_logs().filter_map(|log| of_log(rule, log)));
    }
    findings
}

fn of_site(
    rule: &Rule,
    case: &Case,
    site: &Site,
    level: &Level,
    uses: &[NetUse],
) -> Option<Finding> {
    let judged = gpu_nics(site, level);
    let far: Vec<&GpuNics<'_>> = judged
        .iter()
        .filter(|gpu| matches!(gpu.near, Near::Too))
        .collect();
    let helped: Vec<&GpuNics<'_>> = judged
        .iter()
        .filter(|gpu| matches!(gpu.near, Near::ThroughPeer(_) | Near::ThroughRing(_)))
        .collect();
    let by_nvlink = helped
        .iter()
        .any(|gpu| matches!(gpu.near, Near::ThroughPeer(_)));
    let some_near = judged.iter().any(|gpu| matches!(gpu.near, Near::Enough));
    let affected = if far.is_empty() { &helped } else { &far };
    let first = affected.first()?.nearest.first()?;
    let word = first.nearness.word();
    let names = list(affected.iter().map(|gpu| gpu.gpu));
    let limit = match &level.set {
        Some(_) => format!("NCCL_NET_GDR_LEVEL is set to {}", level.path),
        None => format!("NCCL's default is {}", level.path),
    };
    let plain: Vec<&NetUse> = uses.iter().filter(|u| u.plain() > 0).collect();
    let mut finding = if !plain.is_empty() {
        let ranks = ranks(plain.iter().map(|u| u.rank));
        rule.fault(format!(
            "No GPUDirect RDMA on {ranks}: the nearest NIC of {names} is {word} away, and {limit}"
        ))
    } else if far.is_empty() && !by_nvlink {
        rule.warning(format!(
            "{names}: the nearest NIC is {word} away, and {limit}; rings over several nodes leave this one through a GPU that has a NIC near, and only what {names} sends by itself goes without GPUDirect RDMA"
        ))
    } else if far.is_empty() {
        rule.warning(format!(
            "{names}: the nearest NIC is {word} away; NCCL goes through a peer's NIC over NVLink instead (PXN), so NICs are shared"
        ))
    } else {
        let title =
            format!("{names}: the nearest NIC is {word} away, and {limit}: no GPUDirect RDMA");
        if site.links_unknown && some_near {
            rule.warning(title)
        } else {
            rule.fault(title)
        }
    };
    finding = finding
        .quoting_all(plain.iter().filter_map(|u| u.cite(false)).take(2))
        .quoting_all(
            affected
                .iter()
                .filter_map(|gpu| gpu.nearest.first())
                .map(|reach| reach.quote.clone()),
        )
        .quoting_all(level.set.clone())
        .about(affected.iter().flat_map(|gpu| {
            gpu.nearest.iter().map(|reach| Pair {
                kind: PairKind::GpuNic,
                on: Some(site.on.clone()),
                gpu: reach.gpu.clone(),
                other: reach.other.clone(),
            })
        }));
    finding = with_fix(finding, word);
    if level.set.is_none() && release(case).is_none() {
        finding = finding.doubting(
            "The NCCL version is not shown; the default has been PXB since 2.6, and P2C since 2.29 where the GPU has a chip-to-chip link to its CPU.",
        );
    }
    if plain.is_empty() {
        finding = finding.doubting(
            "This follows from the layout; a log whose NET channels end in /GDRDMA would disprove it.",
        );
    }
    if site.clipped {
        finding = finding.doubting("Part of the matrix is missing, so a nearer NIC may be too.");
    }
    Some(finding)
}

/// Steps that let NCCL use GPUDirect RDMA over the distance that is there. NCCL has no level `NODE`: by
/// its own walk of sysfs such a pair is `PHB` or `SYS`, so only `SYS` is sure to reach it.
fn with_fix(finding: Finding, word: &str) -> Finding {
    let value = if word == "PHB" { "PHB" } else { "SYS" };
    finding
        .fixed_by(
            Fix::run(
                "Let NCCL use GPUDirect RDMA over this distance, on every rank, and keep it only if it measures faster.",
                format!("export NCCL_NET_GDR_LEVEL={value}   # mpirun: -x NCCL_NET_GDR_LEVEL; srun: --export=ALL"),
            )
            .checked_by("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH <job> 2>&1 | grep 'via NET' | grep -vc GDRDMA   # 0 is right"),
        )
        .fixed_by(Fix::by_hand(
            "Or put the GPU and a NIC under the same PCIe switch, where the board allows it.",
        ))
        .doubting("Through the host bridge GPUDirect RDMA can be slower than the copy on some CPUs: measure both.")
}

/// The distance as the log itself prints it.
fn of_log(rule: &Rule, log: &NcclLog) -> Option<Finding> {
    let plain: Vec<NetUse> = net_uses(log)
        .into_iter()
        .filter(|u| u.plain() > 0 && !is_socket(&u.network))
        .collect();
    if plain.is_empty() {
        return None;
    }
    let refused: Vec<&Sighting<GdrPair>> = log
        .gdr_pairs
        .iter()
        .filter(|pair| !pair.what.enabled && concerns(pair, &plain))
        .collect();
    let first = refused.first()?;
    let reach = first.what.reach;
    let named = log
        .release()
        .and_then(|release| Some((reach.distance_name(release)?, reach.limit_name(release)?)));
    let distance = match named {
        Some((distance, limit)) => format!("{distance}, and the level is {limit}"),
        None => format!(
            "distance {}, and the level is {} (numbers of a version that is not shown)",
            reach.distance, reach.limit
        ),
    };
    let ranks = ranks(plain.iter().map(|u| u.rank));
    let word = match named {
        Some((PathType::Phb, _)) => "PHB",
        _ => "SYS",
    };
    let finding = rule
        .fault(format!(
            "No GPUDirect RDMA on {ranks}: GPU to NIC is {distance}"
        ))
        .quoting_all(refused.iter().map(|pair| &pair.first).take(3))
        .quoting_all(plain.iter().filter_map(|u| u.cite(false)).take(2));
    Some(with_fix(finding, word))
}

/// Whether a decision is about a NIC that is used without GPUDirect.
fn concerns(pair: &Sighting<GdrPair>, plain: &[NetUse]) -> bool {
    let number = pair.what.nic.rsplit('-').next().unwrap_or_default();
    let hexadecimal = u32::from_str_radix(number, 16).ok();
    plain
        .iter()
        .any(|u| hexadecimal == Some(u.device) || number.parse() == Ok(u.device))
        || hexadecimal.is_some_and(|n| n > u32::from(u8::MAX))
}

pub(super) const NUMBERS: Rule = Rule {
    id: "N2",
    name: "distance-numbers",
    family: Family::Nccl,
    summary: "the distance numbers in a log mean what its version says",
    page: Page {
        condition: "A log prints distances as bare numbers, whose meaning changed with versions.",
        detection: "Lines `distance a <= b` or `a > b`, decoded by the version line of the same log: PIX is 2 in 2.6 and 2.7, 3 from 2.8 to 2.25, 4 from 2.26; PXN and P2C change places at 2.27.5.",
        consequence: "Advice from another version's table is wrong.",
        fix: "Nothing to fix. Without a version line the numbers stay numbers.",
        source: "NCCL git tags 2.4 to 2.30, src/graph/topo.h",
        false_alarms: "None: this is a note.",
    },
    check: numbers,
};

fn numbers(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let pair = log.gdr_pairs.first()?;
            let reach = pair.what.reach;
            let decoded = log.release().and_then(|release| {
                Some((release, reach.distance_name(release)?, reach.limit_name(release)?))
            });
            let title = match decoded {
                Some((release, distance, limit)) => format!(
                    "In version {release} distance {} is {distance} and {} is {limit}",
                    reach.distance, reach.limit
                ),
                None => format!(
                    "Distance {} and level {} cannot be named: the log shows no one version whose numbers are known",
                    reach.distance, reach.limit
                ),
            };
            Some(rule.note(title).quoting(&pair.first))
        })
        .collect()
}

pub(super) const NO_PAIR_LINES: Rule = Rule {
    id: "N3",
    name: "no-per-gpu-lines",
    family: Family::Nccl,
    summary: "since 2.30.3 no per-GPU GPUDirect lines are printed: their absence is no evidence",
    page: Page {
        condition: "The log shows no `GPU Direct RDMA Enabled/Disabled for GPU` line.",
        detection: "The version line says 2.30.3 or later, where these lines are printed at TRACE level only.",
        consequence: "A search for them finds nothing on healthy machines as well.",
        fix: "Look at the suffix of `via NET/…` instead.",
        source: "NCCL src/graph/paths.cc, 2.30.3",
        false_alarms: "None: this is a note.",
    },
    check: no_pair_lines,
};

fn no_pair_lines(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter(|log| log.gdr_pairs.is_empty())
        .filter(|log| {
            log.release()
                .and_then(era_of)
                .is_some_and(|era| !era.pair_lines)
        })
        .filter_map(|log| {
            let version = log.versions.first()?;
            Some(
                rule.note(
                    "This version prints no line for each GPU and NIC; that none is there says nothing",
                )
                .quoting(Quote::from(&version.first)),
            )
        })
        .collect()
}

/// Names as a person lists them, shortened.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    let rest = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    let shown = all.join(", ");
    if rest == 0 {
        shown
    } else {
        format!("{shown} and {rest} more")
    }
}

/// Ranks as a person lists them: `rank 2`, `ranks 0–3, 7`.
pub(crate) fn ranks(numbers: impl Iterator<Item = u32>) -> String {
    let listed = list_numbers(numbers);
    let one = listed.bytes().all(|b| b.is_ascii_digit());
    format!("{} {listed}", if one { "rank" } else { "ranks" })
}

/// Numbers as ranges: `0–3, 7`.
pub(crate) fn list_numbers(numbers: impl Iterator<Item = u32>) -> String {
    const SHOWN: usize = 8;
    let mut sorted: Vec<u32> = numbers.collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let rest = ranges.len().saturating_sub(SHOWN);
    let mut words: Vec<String> = ranges
        .iter()
        .take(SHOWN)
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}–{last}"),
        })
        .collect();
    if rest > 0 {
        words.push("…".into());
    }
    words.join(", ")
}
