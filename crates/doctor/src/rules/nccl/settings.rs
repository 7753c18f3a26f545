//! Settings that people made themselves: N11 and N12.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::{NcclLog, PathType, SettingOrigin};
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

pub(super) const NOT_ON_ALL_RANKS: Rule = Rule {
    id: "N12",
    name: "settings-differ-between-ranks",
    family: Family::Nccl,
    summary: "ranks or nodes run with different settings",
    page: Page {
        condition: "A variable reached some ranks and not others, or with another value.",
        detection: "`set by environment` lines of each rank of a log, held against each other: different values, or a whole host whose ranks started and never named it. The same between env dumps and snapshots of several machines.",
        consequence: "One side goes direct and the other does not; the slower one sets the pace, or they cannot talk at all.",
        fix: "mpirun -x NAME, srun --export=ALL, or the launcher's own way to pass the environment.",
        source: "NVIDIA/nccl-tests issue 350",
        false_alarms: "Interfaces, HCA names and GID indices may differ rightly between unlike nodes. NCCL names a variable when it first needs it, so a log that was cut early shows fewer.",
    },
    check: not_on_all_ranks,
};

fn not_on_all_ranks(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = case
        .nccl_logs()
        .flat_map(|log| {
            differing_values(rule, log)
                .into_iter()
                .chain(silent_hosts(rule, log))
        })
        .collect();
    findings.extend(differing_machines(rule, case));
    findings
}

fn export_fix(finding: Finding, name: &str) -> Finding {
    finding.fixed_by(
        Fix::run(
            "Pass it to every rank.",
            format!("mpirun -x {name} …   # or: srun --export=ALL,{name}=<value> …"),
        )
        .checked_by(format!(
            "NCCL_DEBUG=INFO <job> 2>&1 | grep '{name} set' | sort | uniq -c"
        )),
    )
}

fn differing_values(rule: &Rule, log: &NcclLog) -> Vec<Finding> {
    let mut values: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for setting in &log.settings {
        if setting.what.origin == SettingOrigin::Environment {
            values.entry(&setting.what.name).or_default().push(setting);
        }
    }
    values
        .into_iter()
        .filter_map(|(name, seen)| {
            let distinct: BTreeSet<&str> = seen.iter().map(|s| s.what.value.as_str()).collect();
            // One process that says two values took the second over later, as from a plugin.
            let speakers: BTreeSet<_> = seen.iter().flat_map(|s| &s.by).collect();
            let said: usize = seen.iter().map(|s| s.by.len()).sum();
            if distinct.len() < 2 || said > speakers.len() {
                return None;
            }
            let shown: Vec<&str> = distinct.into_iter().take(4).collect();
            Some(export_fix(
                rule.warning(format!(
                    "{name} differs between ranks: {}",
                    shown.join(", ")
                ))
                .quoting_all(seen.iter().map(|s| &s.first)),
                name,
            ))
        })
        .collect()
}

/// Variables that NCCL reads on every rank while it starts, so that silence means something.
const READ_AT_START: [&str; 8] = [
    "NCCL_SOCKET_IFNAME",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_LEVEL",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_NET",
    "NCCL_TOPO_FILE",
];

fn silent_hosts(rule: &Rule, log: &NcclLog) -> Vec<Finding> {
    let host_of = |id: &crate::evidence::nccl_log::ProcessId| {
        log.process(*id).and_then(|p| p.host.as_deref())
    };
    // Only hosts whose ranks finished starting have read all of these.
    let started: BTreeSet<&str> = log
        .members
        .iter()
        .filter(|m| m.completed.is_some())
        .filter_map(|m| host_of(&m.process))
        .collect();
    if started.len() < 2 {
        return Vec::new();
    }
    READ_AT_START
        .iter()
        .filter_map(|name| {
            let said: Vec<_> = log
                .settings
                .iter()
                .filter(|s| s.what.name == *name && s.what.origin == SettingOrigin::Environment)
                .collect();
            let first = said.first()?;
            let named: BTreeSet<&str> = said
                .iter()
                .flat_map(|s| &s.by)
                .filter_map(host_of)
                .collect();
            let silent: Vec<&str> = started.difference(&named).copied().collect();
            if named.is_empty() || silent.is_empty() {
                return None;
            }
            let shown = super::distance::list(silent.iter().copied());
            Some(export_fix(
                rule.warning(format!("{name} is set on some nodes and not on {shown}"))
                    .quoting(&first.first)
                    .doubting(
                        "If part of the log is missing, the lines of those nodes may be in it.",
                    ),
                name,
            ))
        })
        .collect()
}

fn differing_machines(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    for machine in &case.machines {
        if let Some(snapshot) = &machine.snapshot {
            names.extend(snapshot.under("env:NCCL_").map(|(key, _)| key.to_owned()));
        }
    }
    names
        .into_iter()
        .filter_map(|key| {
            let seen: Vec<_> = case
                .machines
                .iter()
                .filter(|m| m.has("capture:environment") || m.has(&key))
                .collect();
            let values: BTreeSet<Option<&str>> = seen.iter().map(|m| m.text(&key)).collect();
            if seen.len() < 2 || values.len() < 2 {
                return None;
            }
            let name = key.trim_start_matches("env:").to_owned();
            Some(export_fix(
                rule.warning(format!("{name} differs between machines"))
                    .quoting_all(seen.iter().filter_map(|m| m.quote(&key))),
                &name,
            ))
        })
        .collect()
}
