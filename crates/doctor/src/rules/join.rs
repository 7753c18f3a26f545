//! Differences between ranks, nodes and documents: J1 to J4.

use std::collections::{BTreeMap, BTreeSet};

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::nccl_log::NcclLog;
use crate::facts::job::split_logs;
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};

pub(crate) const RULES: &[Rule] = &[VERSIONS, LINKS, MODULES, UNREADABLE];

const VERSIONS: Rule = Rule {
    id: "J1",
    name: "library-versions-differ",
    family: Family::Join,
    summary: "ranks run different versions of NCCL or RCCL",
    page: Page {
        condition: "Processes of one job loaded different libraries.",
        detection: "Version lines that differ, in one log or in the logs of one job.",
        consequence: "NCCL refuses or hangs across versions; across releases the meaning of distances and defaults differs.",
        fix: "One library on every rank: the container, LD_LIBRARY_PATH and the framework's own copy.",
        source: "NCCL documentation, compatibility; practice",
        false_alarms: "Logs of two jobs in one file differ rightly.",
    },
    check: versions,
};

fn versions(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = case
        .nccl_logs()
        .filter_map(|log| {
            let distinct: BTreeSet<String> = log
                .versions
                .iter()
                .map(|v| v.what.release.to_string())
                .collect();
            if distinct.len() < 2 {
                return None;
            }
            let names: Vec<String> = distinct.into_iter().collect();
            Some(
                rule.warning(format!(
                    "Processes of one log run versions {}",
                    names.join(" and ")
                ))
                .quoting_all(log.versions.iter().map(|v| &v.first))
                .fixed_by(Fix::run(
                    "See which library each rank loads.",
                    "<launcher> python -c 'import torch; print(torch.cuda.nccl.version())'",
                ))
                .doubting("Logs of two jobs in one file look the same."),
            )
        })
        .collect();
    findings.extend(split_logs(case).and_then(|logs| across(rule, &logs)));
    findings
}

/// Each rank or node wrote a file of its own.
fn across(rule: &Rule, logs: &[&NcclLog]) -> Option<Finding> {
    let of: Vec<_> = logs
        .iter()
        .filter_map(|log| Some((log.release()?.to_string(), &log.versions.first()?.first)))
        .collect();
    let distinct: BTreeSet<&str> = of.iter().map(|(release, _)| release.as_str()).collect();
    let names: Vec<&str> = distinct.into_iter().collect();
    (names.len() > 1).then(|| {
        rule.warning(format!(
            "Files of one job show versions {}",
            names.join(" and ")
        ))
        .quoting_all(of.iter().map(|(_, cite)| *cite))
        .fixed_by(Fix::run(
            "See which library each rank loads.",
            "<launcher> python -c 'import torch; print(torch.cuda.nccl.version())'",
        ))
    })
}

const LINKS: Rule = Rule {
    id: "J2",
    name: "links-differ-between-nodes",
    family: Family::Join,
    summary: "the same device runs at another link speed or width on another node",
    page: Page {
        condition: "Nodes that are meant to be alike differ in the PCIe link of the same device.",
        detection: "GPUs and NICs by name in several snapshots: width, or speed of those that are not resting.",
        consequence: "One node holds up all.",
        fix: "As for K7, on the node that is slower.",
        source: "practice",
        false_alarms: "Nodes of different models differ rightly.",
    },
    check: links,
};

fn links(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut seen: BTreeMap<String, Vec<(u8, Quote)>> = BTreeMap::new();
    for machine in &case.machines {
        let topology = &machine.topology;
        for device in topology.devices() {
            let Some(address) = topology.address_of(device) else {
                continue;
            };
            let model = topology
                .pci
                .get(&address)
                .map(|f| f.name.clone())
                .unwrap_or_default();
            if let Some(current) = topology.link_above(address).and_then(|l| l.current) {
                let name = topology.name_of(device);
                let quote = Quote::device(
                    machine.source.clone(),
                    address.to_string(),
                    &format!("{name} link {current}"),
                );
                // The width does not change when a device rests.
                seen.entry(format!("{name} ({model})"))
                    .or_default()
                    .push((current.width, quote));
            }
        }
    }
    seen.into_iter()
        .filter(|(_, links)| {
            let sources: BTreeSet<_> = links.iter().map(|(_, q)| &q.source).collect();
            let widths: BTreeSet<u8> = links.iter().map(|(width, _)| *width).collect();
            sources.len() > 1 && widths.len() > 1
        })
        .map(|(name, links)| {
            rule.warning(format!("The link of {name} is wider on one node than on another"))
                .quoting_all(links.into_iter().map(|(_, quote)| quote))
                .fixed_by(
                    Fix::by_hand("On the node with the narrow link, reseat the board and look at the slot's bifurcation.")
                        .checked_by("sudo lspci -vvv | grep LnkSta:"),
                )
        })
        .take(Finding::MAX_EVIDENCE)
        .collect()
}

const MODULES: Rule = Rule {
    id: "J3",
    name: "software-differs-between-nodes",
    family: Family::Join,
    summary: "nodes differ in kernel, driver or modules that the data path needs",
    page: Page {
        condition: "Machines of one case run different kernels or drivers, or one lacks a module that another has.",
        detection: "Kernel release, versions of nvidia, nvidia_fs, mlx5_core and amdgpu, and presence of nvidia_peermem and nvidia_fs in several snapshots.",
        consequence: "One side goes direct and the other does not.",
        fix: "The same image on every node.",
        source: "practice",
        false_alarms: "Kernels may differ without harm.",
    },
    check: modules,
};

/// Keys that ought to be alike on nodes that are.
const ALIKE: [(&str, &str); 8] = [
    ("uname:release", "the kernel"),
    ("/sys/module/nvidia/version", "the NVIDIA driver"),
    ("/sys/module/amdgpu/version", "the AMD driver"),
    ("/sys/module/mlx5_core/version", "mlx5_core"),
    ("/sys/module/nvidia_fs/version", "nvidia-fs"),
    ("/sys/module/nvidia_peermem", "nvidia_peermem"),
    ("/sys/module/nvidia_fs", "nvidia_fs"),
    ("/sys/module/gdrdrv", "gdrdrv"),
];

fn modules(rule: &Rule, case: &Case) -> Vec<Finding> {
    ALIKE
        .iter()
        .filter_map(|(key, what)| {
            let seen: Vec<_> = case
                .machines
                .iter()
                .filter(|m| m.has(key) || m.lacks(key))
                .collect();
            let directory = key.starts_with("/sys/module/") && !key.ends_with("/version");
            let states: BTreeSet<Option<&str>> = seen
                .iter()
                .map(|m| match (directory, m.has(key)) {
                    (true, true) => Some("loaded"),
                    (true, false) => None,
                    (false, _) => m.text(key),
                })
                .collect();
            if seen.len() < 2 || states.len() < 2 {
                return None;
            }
            let title = if directory {
                format!("{what} is loaded on one node and not on another")
            } else {
                format!("Nodes run different versions of {what}")
            };
            Some(
                rule.warning(title)
                    .quoting_all(seen.iter().filter_map(|m| m.quote(key)))
                    .fixed_by(Fix::by_hand("Bring all nodes to one image.")),
            )
        })
        .collect()
}

const UNREADABLE: Rule = Rule {
    id: "J4",
    name: "unread-evidence",
    family: Family::Join,
    summary: "something that was given could not be read",
    page: Page {
        condition: "A snapshot or topology is damaged, cut off or of another version; or a source holds nothing that is known, such as an archive.",
        detection: "The reader's own error; a source in which no format was recognised.",
        consequence: "What it would show is missing from the diagnosis.",
        fix: "Send it again, whole, as a file.",
        source: "crowfly",
        false_alarms: "None: this is a note.",
    },
    check: unreadable,
};

fn unreadable(rule: &Rule, case: &Case) -> Vec<Finding> {
    let unread = case
        .documents
        .iter()
        .filter(|d| d.sections.is_empty())
        .map(|document| {
            let name = &document.source;
            let title = match document.unread.binary {
                Some(kind) => format!(
                    "{name} is a {kind}, which is not read; unpack it and give the files in it"
                ),
                None if document.unread.lines == 0 => format!("{name} is empty"),
                None => format!(
                    "None of the {} lines of {name} belongs to a format that is known",
                    document.unread.lines
                ),
            };
            rule.note(title)
                .quoting_all(document.unread.first.iter().take(3))
        });
    case.refused
        .iter()
        .map(|refused| {
            rule.note(format!(
                "It could not be read ({}): {}",
                refused.code, refused.why
            ))
            .quoting(refused.quote.clone())
        })
        .chain(unread)
        .collect()
}
