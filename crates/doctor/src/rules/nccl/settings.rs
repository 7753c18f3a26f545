//! Settings that people made themselves: N11.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::PathType;
use crate::facts::flows::{Span, is_socket, net_uses, span};
use crate::facts::level::parse;
use crate::facts::settings::{Setting, is_on, settings};
use crate::finding::{Finding, Severity};
use crate::rule::{Family, Page, Rule};

pub(super) const SELF_INFLICTED: Rule = Rule {
    id: "N11",
    name: "set-by-the-user",
    family: Family::Nccl,
    summary: "a variable switches a fast path off",
    page: Page {
        condition: "The environment or nccl.conf switches off a transport or narrows a level.",
        detection: "NCCL_NET_GDR_LEVEL=LOC or 0, NCCL_P2P_LEVEL=LOC or 0, NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_SHM_DISABLE, NCCL_NET=Socket; a level that NCCL does not know, which it ignores without a word (names are compared with their capital letters). In `set by environment` lines, env dumps, launch commands and snapshots.",
        consequence: "The slow path is taken on purpose, often left over from a debugging session.",
        fix: "Unset it on every rank.",
        source: "NCCL documentation, environment variables; src/graph/paths.cc, ncclGetLevel",
        false_alarms: "A level that is narrowed to PIX is harmless where each GPU has a NIC that near. Switched-off NVLS or PXN is a choice, reported as a note.",
    },
    check: self_inflicted,
};

struct Watched {
    name: &'static str,
    bad: fn(&str) -> Option<(Severity, &'static str)>,
}

const WATCHED: &[Watched] = &[
    Watched {
        name: "NCCL_NET_GDR_LEVEL",
        bad: |value| match parse(value) {
            Some(PathType::Loc) => Some((Severity::Fault, "switches GPUDirect RDMA off")),
            None => Some((
                Severity::Warning,
                "is no level that NCCL knows, so it has no effect",
            )),
            _ => None,
        },
    },
    Watched {
        name: "NCCL_P2P_LEVEL",
        bad: |value| match parse(value) {
            Some(PathType::Loc) => Some((
                Severity::Fault,
                "switches peer-to-peer DMA between GPUs off",
            )),
            Some(PathType::Nvl) => {
                Some((Severity::Note, "allows peer-to-peer DMA over NVLink alone"))
            }
            None => Some((
                Severity::Warning,
                "is no level that NCCL knows, so it has no effect",
            )),
            _ => None,
        },
    },
    Watched {
        name: "NCCL_P2P_DISABLE",
        bad: |value| {
            is_on(value).then_some((
                Severity::Fault,
                "switches peer-to-peer DMA between GPUs off, NVLink included",
            ))
        },
    },
    Watched {
        name: "NCCL_IB_DISABLE",
        bad: |value| {
            is_on(value).then_some((
                Severity::Fault,
                "keeps NCCL's own RDMA network from being used",
            ))
        },
    },
    Watched {
        name: "NCCL_SHM_DISABLE",
        bad: |value| {
            is_on(value).then_some((
                Severity::Warning,
                "sends what cannot go peer to peer over the network, inside a node as well",
            ))
        },
    },
    Watched {
        name: "NCCL_NET",
        bad: |value| {
            value
                .eq_ignore_ascii_case("socket")
                .then_some((Severity::Fault, "chooses the kernel's network stack"))
        },
    },
    Watched {
        name: "NCCL_NET_GDR_READ",
        bad: |value| {
            (value.trim() == "0").then_some((Severity::Note, "makes NCCL send from host memory"))
        },
    },
    Watched {
        name: "NCCL_NVLS_ENABLE",
        bad: |value| {
            (value.trim() == "0")
                .then_some((Severity::Note, "switches reduction in the NVSwitch off"))
        },
    },
    Watched {
        name: "NCCL_PXN_DISABLE",
        bad: |value| is_on(value).then_some((Severity::Note, "keeps GPUs from using a peer's NIC")),
    },
    Watched {
        name: "RCCL_FORCE_ENABLE_GDRDMA",
        bad: |value| {
            (value.trim() == "0").then_some((Severity::Note, "does not force GPUDirect RDMA"))
        },
    },
];

fn self_inflicted(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for watched in WATCHED {
        let bad: Vec<(Setting<'_>, Severity, &str)> = settings(case, watched.name)
            .into_iter()
            .filter_map(|setting| {
                let (severity, what) = (watched.bad)(setting.value)?;
                Some((setting, severity, what))
            })
            .collect();
        let Some((first, severity, what)) = bad.first() else {
            continue;
        };
        let severity = &in_context(case, watched.name, *severity);
        let mut finding = rule
            .finding(
                *severity,
                format!("{}={} {what}", watched.name, first.value),
            )
            .quoting_all(bad.iter().map(|(setting, ..)| setting.quote.clone()));
        if *severity > Severity::Note {
            finding = finding.fixed_by(
                Fix::run(
                    "Unset it on every rank, and in /etc/nccl.conf and ~/.nccl.conf.",
                    format!("unset {}", watched.name),
                )
                .checked_by(format!(
                    "NCCL_DEBUG=INFO <job> 2>&1 | grep -c '{} set'   # 0 is right",
                    watched.name
                )),
            );
        }
        findings.push(finding);
    }
    findings
}

/// How much a switched-off network matters: nothing on one node, and less where it is not seen that
/// sockets took its place, since plugins bring networks of their own.
fn in_context(case: &Case, name: &str, severity: Severity) -> Severity {
    if severity != Severity::Fault || !matches!(name, "NCCL_IB_DISABLE" | "NCCL_NET") {
        return severity;
    }
    let mut logs = case.nccl_logs().peekable();
    if logs.peek().is_some() && case.nccl_logs().all(|log| span(log) == Span::OneNode) {
        return Severity::Note;
    }
    let over_sockets = case.nccl_logs().any(|log| {
        log.networks.iter().any(|n| is_socket(&n.what))
            || net_uses(log).iter().any(|u| is_socket(&u.network))
    });
    if over_sockets {
        Severity::Fault
    } else {
        Severity::Warning
    }
}
