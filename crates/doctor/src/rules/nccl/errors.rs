//! Runs that failed: N19, N20 and what else ends a run.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{CompletionError, NcclLog, Sighting};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};

/// `ibv_wc_status` values of `infiniband/verbs.h`.
const LOC_PROT_ERR: u32 = 4;
const WR_FLUSH_ERR: u32 = 5;
const RETRY_EXC_ERR: u32 = 12;

fn verbs(log: &NcclLog, wanted: impl Fn(u32) -> bool) -> Vec<&Sighting<CompletionError>> {
    log.completions
        .iter()
        .filter(|c| matches!(&c.what, CompletionError::Ib { status, .. } if wanted(*status)))
        .collect()
}

pub(super) const LOCAL_PROTECTION: Rule = Rule {
    id: "N19",
    name: "local-protection-error",
    family: Family::Nccl,
    summary: "the NIC was not allowed to reach the memory it was told to (status 4)",
    page: Page {
        condition: "A work completion failed with local protection error.",
        detection: "NET/IB completion with status=4 or LOC_PROT_ERR.",
        consequence: "The run ends. With GPUDirect RDMA the usual cause is a bridge that redirects peer traffic (ACS), or an IOMMU.",
        fix: "Switch ACS redirect off on the bridges between GPU and NIC. A run with NCCL_NET_GDR_LEVEL=LOC that passes shows that GPUDirect RDMA is what fails.",
        source: "NCCL net_ib/common.h, its own hint; NCCL documentation, PCI access control services",
        false_alarms: "An application that frees memory under NCCL causes the same.",
    },
    check: local_protection,
};

fn local_protection(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let seen = verbs(log, |status| status == LOC_PROT_ERR);
            let first = seen.first()?;
            Some(
                rule.broken("The NIC was refused access to memory (local protection error): with GPUDirect RDMA, usually ACS redirect or an IOMMU between GPU and NIC")
                    .quoting_all(seen.iter().map(|s| &s.first))
                    .quoting(&first.first)
                    .fixed_by(
                        Fix::run("See whether it is GPUDirect RDMA that fails: run once without it.", "NCCL_NET_GDR_LEVEL=LOC <job>"),
                    )
                    .fixed_by(
                        Fix::run("Switch ACS redirect off on the bridges between GPU and NIC (not on a host that passes devices to virtual machines).", "sudo setpci -s <bridge> ECAP_ACS+6.w=0")
                            .checked_by("sudo lspci -vvv | grep ACSCtl | grep -c 'ReqRedir+'   # 0 is right"),
                    )
                    .doubting("Memory that was freed while a transfer was under way gives the same error."),
            )
        })
        .collect()
}

pub(super) const RETRIES_EXCEEDED: Rule = Rule {
    id: "N20",
    name: "retries-exceeded",
    family: Family::Nccl,
    summary: "the peer did not answer (status 12)",
    page: Page {
        condition: "A work completion failed because all retries were used up.",
        detection: "NET/IB completion with status=12, often with vendor error 129.",
        consequence: "The run ends.",
        fix: "On RoCE: the same kind of GID on both sides (NCCL_IB_GID_INDEX unset since 2.21), routes between all rails, PFC on the priority in use. Else: links, the subnet manager, NCCL_IB_TIMEOUT, and whether the peer had died first.",
        source: "NVIDIA/nccl issue 426; infiniband/verbs.h",
        false_alarms: "When one rank dies for another reason, its peers see this afterwards: look for the first error of all ranks.",
    },
    check: retries_exceeded,
};

fn retries_exceeded(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let seen = verbs(log, |status| status == RETRY_EXC_ERR);
            let first = seen.first()?;
            let CompletionError::Ib { peer, .. } = &first.what else {
                return None;
            };
            let whom = peer
                .as_ref()
                .map_or_else(|| "A peer".to_owned(), |peer| format!("Peer {peer}"));
            Some(
                rule.broken(format!("{whom} did not answer until all retries were used up: wrong GID, no route, loss without PFC, or a peer that had died"))
                    .quoting_all(seen.iter().map(|s| &s.first))
                    .fixed_by(Fix::run("See whether plain RDMA works between the two nodes and NICs.", "ib_write_bw -d <nic> -x <gid index> <peer>"))
                    .fixed_by(
                        Fix::run("Let NCCL find the GID itself (2.21 and later).", "unset NCCL_IB_GID_INDEX")
                            .checked_by("show_gids"),
                    )
                    .doubting("If a rank died first for another reason, this is only what its peers saw."),
            )
        })
        .collect()
}

pub(super) const PEER_UNREACHABLE: Rule = Rule {
    id: "N23",
    name: "fabric-peer-unreachable",
    family: Family::Nccl,
    summary: "libfabric reports a peer that does not respond",
    page: Page {
        condition: "A request of aws-ofi-nccl completed with an error.",
        detection: "`NET/OFI Request … completed with error. RC: … Error: …`.",
        consequence: "The run ends. It says nothing about GPUDirect RDMA.",
        fix: "Security groups must allow all traffic of the group to itself in both directions; all nodes in one subnet or placement group; the peer's own log for why it died.",
        source: "libfabric prov/efa error codes; AWS EFA user guide",
        false_alarms: "The peer may have died first for another reason.",
    },
    check: peer_unreachable,
};

fn peer_unreachable(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let seen: Vec<_> = log
                .completions
                .iter()
                .filter(|c| matches!(c.what, CompletionError::Ofi { .. }))
                .collect();
            let first = seen.first()?;
            let CompletionError::Ofi { text: words, .. } = &first.what else {
                return None;
            };
            Some(
                rule.broken(format!("The network plugin's peer failed: {}", sentence(words)))
                    .quoting_all(seen.iter().map(|s| &s.first))
                    .fixed_by(Fix::by_hand("Allow all traffic between the nodes' security group and itself, in and out, and read the peer's own log for why it died."))
                    .fixed_by(Fix::run("See whether EFA works between the two nodes.", "fi_pingpong -p efa -e rdm <peer>"))
                    .doubting("This is about reaching the peer, not about GPUDirect RDMA. A peer that died first looks the same."),
            )
        })
        .collect()
}

/// The beginning of a message, as much as fits a title.
pub(super) fn sentence(words: &str) -> String {
    const LONGEST: usize = 120;
    let end = words
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= LONGEST)
        .last()
        .unwrap_or(0);
    words.get(..end).unwrap_or_default().trim().to_owned()
}

pub(super) const OTHER_COMPLETION: Rule = Rule {
    id: "N24",
    name: "completion-error",
    family: Family::Nccl,
    summary: "a work completion failed in another way",
    page: Page {
        condition: "A work completion of NET/IB failed with a status other than 4 or 12.",
        detection: "The status number by infiniband/verbs.h: 9 remote invalid request, 10 remote access error, 11 remote operation error, 13 receiver not ready.",
        consequence: "The run ends.",
        fix: "The status names the side that refused; look at the first error of all ranks.",
        source: "rdma-core, infiniband/verbs.h",
        false_alarms: "Status 5, flushed, follows another error and is not reported when one is there.",
    },
    check: other_completion,
};

fn other_completion(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let any_other = !verbs(log, |status| status != WR_FLUSH_ERR).is_empty();
            let seen = verbs(log, |status| {
                !matches!(status, LOC_PROT_ERR | RETRY_EXC_ERR)
                    && (status != WR_FLUSH_ERR || !any_other)
            });
            let first = seen.first()?;
            let CompletionError::Ib { status, .. } = &first.what else {
                return None;
            };
            let meaning = match status {
                1 => "local length error",
                2 => "local queue pair operation error",
                5 => "flushed after an error that is not in this log",
                6 => "memory window bind error",
                9 => "the peer calls the request invalid",
                10 => "the peer refused access to its memory",
                11 => "the peer could not carry it out",
                13 => "the peer was not ready to receive",
                _ => "see infiniband/verbs.h",
            };
            Some(
                rule.broken(format!("A transfer failed with status {status}: {meaning}"))
                    .quoting_all(seen.iter().map(|s| &s.first))
                    .doubting(
                        "The first error of all ranks is the cause; later ones follow from it.",
                    ),
            )
        })
        .collect()
}
