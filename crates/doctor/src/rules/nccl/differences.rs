//! Settings that did not reach every rank: N12.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::Cite;
use crate::evidence::environment::VariableOrigin;
use crate::evidence::nccl_log::{NcclLog, SettingOrigin};
use crate::facts::job::split_logs;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};

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
    findings.extend(
        split_logs(case)
            .into_iter()
            .flat_map(|logs| differing_logs(rule, &logs)),
    );
    findings.extend(differing_dumps(rule, case));
    findings.extend(differing_machines(rule, case));
    findings
}

/// Each rank or node wrote a file of its own.
fn differing_logs(rule: &Rule, logs: &[&NcclLog]) -> Vec<Finding> {
    let by_log: Vec<BTreeMap<&str, (&str, &Cite)>> = logs
        .iter()
        .map(|log| {
            log.settings
                .iter()
                .filter(|s| s.what.origin == SettingOrigin::Environment)
                .map(|s| (s.what.name.as_str(), (s.what.value.as_str(), &s.first)))
                .collect()
        })
        .collect();
    let all_started = logs
        .iter()
        .all(|log| log.members.iter().any(|m| m.completed.is_some()));
    // A variable that NCCL reads later than a log goes is not missing there.
    let tells = |name: &str| all_started && READ_AT_START.contains(&name);
    differing(rule, &by_log, "files of one job", tells)
}

/// `env` of several machines.
fn differing_dumps(rule: &Rule, case: &Case) -> Vec<Finding> {
    let dumps: Vec<BTreeMap<&str, (&str, &Cite)>> = case
        .environments()
        .filter(|env| {
            // A script or a launch command names what it sets, not all that is set.
            env.variables
                .iter()
                .all(|v| v.value.origin == VariableOrigin::Dump)
        })
        .map(|env| {
            env.variables
                .iter()
                .filter(|v| v.value.name.contains("NCCL_") || v.value.name.starts_with("UCX_"))
                .filter_map(|v| Some((v.value.name.as_str(), (v.value.value.as_deref()?, &v.cite))))
                .collect()
        })
        .collect();
    differing(rule, &dumps, "machines", |_| true)
}

/// Variables with other values in some of several places, or, where silence tells, in none.
fn differing(
    rule: &Rule,
    places: &[BTreeMap<&str, (&str, &Cite)>],
    which: &str,
    silence_tells: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let names: BTreeSet<&str> = places.iter().flat_map(|p| p.keys().copied()).collect();
    let some = |name: &&str| !IDENTITIES.contains(name);
    names
        .into_iter()
        .filter(some)
        .filter_map(|name| {
            let seen: Vec<_> = places.iter().filter_map(|p| p.get(name)).collect();
            let distinct: BTreeSet<&str> = seen.iter().map(|(value, _)| *value).collect();
            let absent = places.len() - seen.len();
            let title = match (distinct.len(), absent) {
                (2.., _) => {
                    let shown: Vec<&str> = distinct.into_iter().take(4).collect();
                    format!("{name} differs between {which}: {}", shown.join(", "))
                }
                (_, 1..) if silence_tells(name) => {
                    format!(
                        "{name} is set in {} of {} {which}",
                        seen.len(),
                        places.len()
                    )
                }
                _ => return None,
            };
            Some(export_fix(
                rule.warning(title)
                    .quoting_all(seen.iter().map(|(_, cite)| *cite))
                    .doubting(
                        "Unlike nodes may need unlike values, of interfaces and devices above all.",
                    ),
                name,
            ))
        })
        .collect()
}

/// Variables that differ by nature.
const IDENTITIES: [&str; 3] = ["NCCL_DEBUG_FILE", "NCCL_HOSTID", "NCCL_COMM_ID"];

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
