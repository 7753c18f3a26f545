//! What is evidence of the way bytes go, and what only looks like it: N7 to N10.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{NcclLog, Note};
use crate::facts::flows::{NetUse, is_socket, net_uses};
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};
use crate::verdict::{Pair, PairKind};

use super::distance::ranks;

/// NICs that are used, sockets left out.
fn rdma_uses(log: &NcclLog) -> Vec<NetUse> {
    net_uses(log)
        .into_iter()
        .filter(|u| !is_socket(&u.network))
        .collect()
}

pub(super) const DMABUF_AVAILABLE: Rule = Rule {
    id: "N7",
    name: "dmabuf-available-is-no-proof",
    family: Family::Nccl,
    summary: "`DMA-BUF is available` does not prove that GPUDirect RDMA is used",
    page: Page {
        condition: "A log says `DMA-BUF is available on GPU device`.",
        detection: "That line, in a log without a single NET channel that ends in /GDRDMA.",
        consequence: "It is a general test of GPU and driver, printed before any NIC is looked at, and easily taken for success.",
        fix: "Require /GDRDMA on the channels.",
        source: "NVIDIA/nccl-tests issue 245",
        false_alarms: "None: this is a note.",
    },
    check: dmabuf_available,
};

fn dmabuf_available(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter(|log| log.totals.net_channels(true) == 0 && log.totals.collnet_gdr == 0)
        .filter_map(|log| {
            let said = log
                .notes
                .iter()
                .find(|note| note.what == Note::DmaBufAvailable)?;
            Some(
                rule.note(
                    "`DMA-BUF is available` says nothing about whether GPUDirect RDMA is used",
                )
                .quoting(&said.first),
            )
        })
        .collect()
}

pub(super) const CHANNELS: Rule = Rule {
    id: "N8",
    name: "channels-without-gdrdma",
    family: Family::Nccl,
    summary: "network channels lack /GDRDMA: data is copied through host memory",
    page: Page {
        condition: "NET channels of an RDMA network do not end in /GDRDMA.",
        detection: "The suffix `via NET/<plugin>/<n>[(<proxy rank>)][/GDRDMA]` of each channel line; all should carry it. A number in parentheses is PXN and no fault. A suffix cut short by another writer's text counts as nothing.",
        consequence: "The NIC reads and writes host memory, and the GPU or CPU copies. If only some ranks are concerned, the cause lies with those GPUs and NICs.",
        fix: "Find the cause: distance (N1), module (N4, N5), settings (N11), cloud (V1). The lines `GPU Direct RDMA` of the same log name it.",
        source: "NCCL src/transport/net.cc",
        false_alarms: "Sending without and receiving with it is NCCL's choice on GPUs before Ampere without NVLink (N10).",
    },
    check: channels,
};

fn channels(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.nccl_logs() {
        findings.extend(without_gdr(rule, log));
        let nothing = rdma_uses(log).is_empty();
        if let (true, Some(cut)) = (nothing, &log.cut) {
            let lines = match cut.count {
                1 => "A channel line was cut short by other output; it proves nothing".to_owned(),
                count => format!(
                    "{count} channel lines were cut short by other output; they prove nothing"
                ),
            };
            findings.push(rule.note(format!("{lines} either way")).quoting(&cut.first));
        }
    }
    findings
}

fn without_gdr(rule: &Rule, log: &NcclLog) -> Option<Finding> {
    let uses = rdma_uses(log);
    let plain: Vec<&NetUse> = uses
        .iter()
        .filter(|u| u.plain() > 0 && !by_choice(u))
        .collect();
    let first = plain.first()?;
    let (bad, all) = (
        plain.iter().map(|u| u.plain()).sum::<u64>(),
        uses.iter().map(|u| u.plain() + u.direct()).sum::<u64>(),
    );
    let ranks = ranks(plain.iter().map(|u| u.rank));
    let title = if bad == all {
        format!(
            "None of the {all} NET/{} channels ends in /GDRDMA: all network data is copied through host memory",
            first.network
        )
    } else {
        format!(
            "{bad} of {all} NET channels lack /GDRDMA, on {ranks}: only those GPUs and NICs are concerned"
        )
    };
    let explained = log.gdr_pairs.iter().any(|pair| !pair.what.enabled)
        || log.gdr_nics.iter().any(|nic| !nic.what.enabled)
        || log.notes.iter().any(|note| {
            matches!(
                note.what,
                Note::PluginDisablesGdr(_) | Note::GdrModuleMissing
            )
        });
    let mut finding = rule
        .fault(title)
        .quoting_all(plain.iter().filter_map(|u| u.cite(false)).take(4))
        .about(plain.iter().map(|u| Pair {
            kind: PairKind::GpuNic,
            on: u.host.clone(),
            gpu: format!("rank {}", u.rank),
            other: u
                .nic
                .clone()
                .unwrap_or_else(|| format!("{}/{}", u.network, u.device)),
        }))
        .fixed_by(
            Fix::run(
                "See why NCCL decided so, in the lines about GPUDirect RDMA.",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH <job> 2>&1 | grep -E 'GPU Direct RDMA|via NET'",
            )
            .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'via NET' | grep -vc GDRDMA   # 0 is right"),
        );
    if !explained {
        finding = finding.doubting("The log does not say why; distance, module, settings and the platform are all possible.");
    }
    Some(finding)
}

/// NCCL reads through host memory and writes straight, as it chooses to on some GPUs.
fn by_choice(u: &NetUse) -> bool {
    u.receive.plain == 0 && u.receive.direct > 0 && u.send.direct == 0 && u.send.plain > 0
}

pub(super) const RING_SUMMARY: Rule = Rule {
    id: "N9",
    name: "ring-summary-is-no-proof",
    family: Family::Nccl,
    summary: "`use ring PXN a GDR b` is never evidence alone",
    page: Page {
        condition: "A log says `Connected all rings, use ring PXN a GDR b` (2.24 and later).",
        detection: "GDR 1 without any NET channel, or GDR 0 beside channels that all end in /GDRDMA, or either without channel lines at all.",
        consequence: "GDR 1 is printed as well when there is no network at all, and GDR 0 when a single connection of a ring lacks it.",
        fix: "Look at the suffix of `via NET/…`.",
        source: "NCCL src/transport/generic.cc",
        false_alarms: "None: this is a note.",
    },
    check: ring_summary,
};

fn ring_summary(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let plain = log.totals.net_channels(false);
            let direct = log.totals.net_channels(true);
            let misleading = log.rings.iter().find(|ring| match ring.what.gdr {
                Some(true) => direct == 0,
                Some(false) => plain == 0,
                None => false,
            })?;
            let title = match (misleading.what.gdr, direct) {
                (Some(true), _) => "`GDR 1` is printed although no channel of a network uses GPUDirect RDMA",
                (_, 0) => "`GDR 0` is printed, and no channel line shows whether that means anything",
                _ => "`GDR 0` is printed although every NET channel ends in /GDRDMA; the channels are right",
            };
            Some(rule.note(title).quoting(&misleading.first))
        })
        .collect()
}

pub(super) const READ_AND_WRITE: Rule = Rule {
    id: "N10",
    name: "gdr-read-off",
    family: Family::Nccl,
    summary: "sending lacks GPUDirect RDMA and receiving has it, by NCCL's choice",
    page: Page {
        condition: "Channels that send lack /GDRDMA while those that receive have it.",
        detection: "Both directions of one rank and NIC.",
        consequence: "The NIC does not read GPU memory, which is slow on some PCIe paths, and writes it directly.",
        fix: "NCCL_NET_GDR_READ=1 only if it measures faster.",
        source: "NCCL src/graph/paths.cc, NCCL_NET_GDR_READ",
        false_alarms: "Normal on GPUs before Ampere that have no NVLink.",
    },
    check: read_and_write,
};

fn read_and_write(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.nccl_logs()
        .filter_map(|log| {
            let uses = rdma_uses(log);
            let chosen: Vec<&NetUse> = uses.iter().filter(|u| by_choice(u)).collect();
            let first = chosen.first()?;
            let ranks = ranks(chosen.iter().map(|u| u.rank));
            Some(
                rule.note(format!(
                    "GPUDirect RDMA for receiving alone on {ranks}, as NCCL chooses on GPUs before Ampere without NVLink"
                ))
                .quoting_all(first.send.first_plain.as_ref())
                .quoting_all(first.receive.first_direct.as_ref())
                .fixed_by(
                    Fix::run("Try reading as well, and keep it only if it measures faster.", "export NCCL_NET_GDR_READ=1")
                        .checked_by("NCCL_DEBUG=INFO <job> 2>&1 | grep 'send. via NET' | grep -c GDRDMA"),
                ),
            )
        })
        .collect()
}
