//! GPUs of one node: N15, N16, N18.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{NcclLog, Note};
use crate::facts::flows::{PeerUse, peer_uses};
use crate::facts::site::{Nearness, Reach, Site, gpu_gpu_level, sites};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{Pair, PairKind};

use super::distance::ranks;

pub(super) const SHM_INSTEAD: Rule = Rule {
    id: "N15",
    name: "shm-instead-of-p2p",
    family: Family::Nccl,
    summary: "GPUs that could reach each other go through host memory",
    page: Page {
        condition: "Two GPUs of a node exchange data through shared host memory.",
        detection: "`via SHM/direct/direct` or `via direct shared memory` between two ranks that the topology puts at PIX, PXB or NVLink.",
        consequence: "Each message is written to host memory and read again.",
        fix: "ACS redirect (K1), containers that do not share /dev/shm and the process namespace (C3, C4), a GeForce driver (H3), or NCCL_P2P_DISABLE and NCCL_P2P_LEVEL (N11).",
        source: "NCCL src/graph/paths.cc, ncclTopoCheckP2p",
        false_alarms: "Between root ports and sockets NCCL prefers shared memory by default (N16).",
    },
    check: shm_instead,
};

/// The distance of two ranks' GPUs, where a layout of the same case shows their device numbers.
fn reach_of<'a>(sites: &'a [Site], log: &NcclLog, peers: &PeerUse) -> Option<&'a Reach> {
    let device = |rank: u32| {
        log.processes
            .iter()
            .find(|p| p.rank == Some(rank) && p.host == peers.host)
            .and_then(|p| p.device)
    };
    let (a, b) = (device(peers.from)?, device(peers.to)?);
    let named = |name: &str, device: u32| name.eq_ignore_ascii_case(&format!("gpu{device}"));
    sites.iter().find_map(|site| {
        site.of_kind(PairKind::GpuGpu).find(|reach| {
            (named(&reach.gpu, a) && named(&reach.other, b))
                || (named(&reach.gpu, b) && named(&reach.other, a))
        })
    })
}

fn shm_instead(rule: &Rule, case: &Case) -> Vec<Finding> {
    let sites = sites(case);
    case.nccl_logs()
        .filter_map(|log| {
            let staged: Vec<PeerUse> = peer_uses(log).into_iter().filter(|p| p.shm > 0).collect();
            let near: Vec<(&PeerUse, &Reach)> = staged
                .iter()
                .filter_map(|p| Some((p, reach_of(&sites, log, p)?)))
                .filter(|(_, reach)| reach.nearness <= Nearness::Pxb)
                .collect();
            let first = staged.first()?;
            let finding = if let Some((_, reach)) = near.first() {
                rule.fault(format!(
                    "Data between {} goes through host memory, although their GPUs are {} to each other",
                    ranks(near.iter().flat_map(|(p, _)| [p.from, p.to])),
                    reach.nearness.word()
                ))
                .quoting_all(near.iter().filter_map(|(p, _)| p.first_shm.as_ref()).take(3))
                .quoting_all(near.iter().map(|(_, reach)| reach.quote.clone()).take(2))
                .about(near.iter().map(|(p, _)| pair(p)))
            } else if staged.iter().any(|p| reach_of(&sites, log, p).is_some()) {
                // The layout explains it, which is another rule's matter.
                return None;
            } else {
                rule.fault(format!(
                    "Data between {} goes through shared host memory instead of peer to peer",
                    ranks(staged.iter().flat_map(|p| [p.from, p.to]))
                ))
                .quoting_all(first.first_shm.as_ref())
                .quoting_all(staged.iter().skip(1).filter_map(|p| p.first_shm.as_ref()).take(2))
                .about(staged.iter().map(pair))
                .doubting("The layout is not shown. Between root ports or sockets this is NCCL's default (N16), and GeForce drivers allow nothing else (H3).")
            };
            Some(fix_p2p(finding))
        })
        .collect()
}

fn pair(peers: &PeerUse) -> Pair {
    Pair {
        kind: PairKind::GpuGpu,
        on: peers.host.clone(),
        gpu: format!("rank {}", peers.from),
        other: format!("rank {}", peers.to),
    }
}

fn fix_p2p(finding: Finding) -> Finding {
    finding
        .fixed_by(Fix::run("See what the driver allows.", "nvidia-smi topo -p2p r"))
        .fixed_by(Fix::run("See whether a bridge redirects peer traffic.", "sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl' | grep -B1 'ReqRedir+'"))
        .fixed_by(
            Fix::by_hand("In containers, give all ranks of a node one container, or share the IPC namespace.")
                .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'via SHM'   # 0 is right"),
        )
}

pub(super) const DEFAULT_LEVEL: Rule = Rule {
    id: "N16",
    name: "p2p-beyond-default-level",
    family: Family::Nccl,
    summary: "GPUs are farther apart than NCCL goes peer to peer by default",
    page: Page {
        condition: "Two GPUs without NVLink lie under different root ports or sockets.",
        detection: "A GPU–GPU cell of PHB, NODE or SYS against NCCL's default level: PXB, and SYS on AMD CPUs with two GPUs at most.",
        consequence: "NCCL goes through shared host memory.",
        fix: "NCCL_P2P_LEVEL=SYS (or PHB), measured against the default.",
        source: "NCCL src/graph/paths.cc, ncclTopoCheckP2p",
        false_alarms: "Pairs that NVLink joins through other GPUs are not used over PCIe. Whether the CPU forwards peer traffic well is for a measurement to say.",
    },
    check: default_level,
};

fn default_level(rule: &Rule, case: &Case) -> Vec<Finding> {
    let goes_p2p = case.nccl_logs().any(|log| {
        let uses = peer_uses(log);
        !uses.is_empty() && uses.iter().all(|u| u.shm == 0)
    });
    if goes_p2p {
        return Vec::new();
    }
    sites(case)
        .iter()
        .filter(|site| !site.amd_gpus)
        .filter_map(|site| {
            let linked = site
                .of_kind(PairKind::GpuGpu)
                .any(|r| matches!(r.nearness, Nearness::Link(_)));
            let far: Vec<&Reach> = site
                .of_kind(PairKind::GpuGpu)
                .filter(|r| r.nearness > Nearness::Pxb)
                .collect();
            let first = far.first()?;
            if linked {
                return None;
            }
            let (level, set) = gpu_gpu_level(case, site);
            let word = first.nearness.word();
            let (least, most) = first.nearness.paths();
            let finding = match level {
                Some(level) if most <= level => return None,
                Some(level) if least > level => rule.warning(format!(
                    "{} of the GPU pairs are {word} or farther, beyond NCCL's level {level}: shared host memory instead of peer to peer",
                    far.len()
                )),
                _ => rule.note(format!(
                    "{word} between GPUs: with two GPUs NCCL goes peer to peer through an AMD CPU and through host memory on others; the CPU is not shown"
                )),
            };
            Some(
                finding
                    .quoting_all(far.iter().map(|r| r.quote.clone()))
                    .quoting_all(set)
                    .about(far.iter().map(|r| Pair {
                        kind: PairKind::GpuGpu,
                        on: Some(site.on.clone()),
                        gpu: r.gpu.clone(),
                        other: r.other.clone(),
                    }))
                    .fixed_by(
                        Fix::run("Let NCCL go peer to peer over this distance, and keep it only if it measures faster.", "export NCCL_P2P_LEVEL=SYS")
                            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep -c 'via P2P'"),
                    )
                    .doubting("This follows from the layout; a log whose channels say P2P would disprove it."),
            )
        })
        .collect()
}

pub(super) const NO_NVLS: Rule = Rule {
    id: "N18",
    name: "nvls-missing",
    family: Family::Nccl,
    summary: "reduction in the NVSwitch is not available on GPUs that have it",
    page: Page {
        condition: "NVLink SHARP multicast is missing on Hopper or later GPUs behind NVSwitches.",
        detection: "`NVLS multicast support is not available`, with GPUs of that kind named elsewhere in the evidence.",
        consequence: "All-reduce inside the node is slower than it could be.",
        fix: "Start nvidia-fabricmanager of the driver's own version; for multi-node NVLink, IMEX.",
        source: "NCCL src/transport/nvls.cc",
        false_alarms: "GPUs before Hopper, PCIe boards and virtual machines with a part of a board have no such multicast, and the line is printed there too.",
    },
    check: no_nvls,
};

fn no_nvls(rule: &Rule, case: &Case) -> Vec<Finding> {
    let hopper = |name: &str| {
        [
            "H100 80GB HBM3",
            "H100 SXM",
            "H200",
            "H800",
            "H20",
            "B200",
            "B300",
            "GB200",
            "GB300",
        ]
        .iter()
        .any(|word| name.contains(word))
            && !name.contains("PCIe")
            && !name.contains("NVL")
    };
    let on_machine = case
        .machines
        .iter()
        .any(|m| m.topology.gpus.iter().filter(|g| hopper(&g.name)).count() >= 8);
    let in_tests = case
        .tests()
        .any(|t| t.devices.iter().filter(|d| hopper(&d.value.gpu)).count() >= 8);
    case.nccl_logs()
        .filter_map(|log| {
            let said = log.notes.iter().find(|n| n.what == Note::Nvls(false))?;
            let off = log
                .settings
                .iter()
                .any(|s| s.what.name == "NCCL_NVLS_ENABLE" && s.what.value == "0");
            if off {
                return None;
            }
            let finding = if on_machine || in_tests {
                rule.warning("Eight GPUs with NVSwitch reduction, and NCCL cannot use it (NVLS)")
                    .fixed_by(
                        Fix::run("See whether the fabric manager runs, in the driver's own version.", "systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric")
                            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'NVLS multicast support is available'"),
                    )
            } else {
                rule.note("NCCL has no reduction in the NVSwitch here; only on Hopper and later boards with NVSwitch is that a fault, and the GPUs are not named")
            };
            Some(finding.quoting(&said.first))
        })
        .collect()
}
