//! Containers and platforms: G8 and G10.

use crowfly_route::obstacle::Fix;

use crate::case::{Case, Machine};
use crate::evidence::gdscheck::Verification;
use crate::facts::storage::nvidia_fs_loaded;
use crate::finding::Finding;
use crate::rule::{Family, Page, Rule};

pub(super) const CONTAINER: Rule = Rule {
    id: "G8",
    name: "gds-not-in-container",
    family: Family::Gds,
    summary: "a container lacks what GPUDirect Storage needs of the host",
    page: Page {
        condition: "nvidia-fs is loaded on the host, and the container does not see its devices or udev's database.",
        detection: "No /dev/nvidia-fs* or no /run/udev in a container on a host whose nvidia-fs is loaded.",
        consequence: "cuFile falls back to host memory, or does not find which drive a file is on.",
        fix: "Pass /dev/nvidia-fs0 … and mount /run/udev read-only.",
        source: "NVIDIA GPUDirect Storage guide, containers",
        false_alarms: "A container that does not use GPUDirect Storage needs neither.",
    },
    check: container,
};

/// Whether a device node of nvidia-fs was seen; `None` when nobody looked into /dev.
fn node(machine: &Machine) -> Option<bool> {
    let snapshot = machine.snapshot.as_ref()?;
    let seen = snapshot
        .under("/dev/nvidia-fs")
        .any(|(key, _)| machine.has(key));
    let looked = snapshot.under("/dev/nvidia").next().is_some();
    (seen || looked).then_some(seen)
}

fn container(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter(|m| m.topology.host.container.is_some() && nvidia_fs_loaded(m) == Some(true))
        .filter_map(|machine| {
            let no_node = node(machine) == Some(false);
            let no_udev = machine.lacks("/run/udev");
            let title = match (no_node, no_udev) {
                (true, true) => "The container sees neither /dev/nvidia-fs* nor /run/udev",
                (true, false) => "The container does not see /dev/nvidia-fs*",
                (false, true) => "The container does not see /run/udev, by which cuFile finds the drive of a file",
                (false, false) => return None,
            };
            let finding = if no_node { rule.fault(title) } else { rule.warning(title) };
            Some(
                finding
                    .quoting_all(machine.quote("/run/udev"))
                    .quoting_all(machine.quote("/sys/module/nvidia_fs"))
                    .fixed_by(
                        Fix::run("Pass them in.", "docker run --device /dev/nvidia-fs0 … -v /run/udev:/run/udev:ro …")
                            .checked_by("ls /dev/nvidia-fs* /run/udev/data"),
                    ),
            )
        })
        .collect()
}

pub(super) const VERIFICATION: Rule = Rule {
    id: "G10",
    name: "gds-platform-failed",
    family: Family::Gds,
    summary: "gdscheck failed the platform",
    page: Page {
        condition: "gdscheck's own last word is that the platform is not supported.",
        detection: "`Platform verification failed`, or an error in its place; a GPU without the supported architecture (compute capability 6 or later).",
        consequence: "GPUDirect Storage is unusable, whatever the drivers' lines say: `NVMe : Supported` can stand beside it.",
        fix: "What the error lines name: another GPU, the open GPU driver, IOMMU off.",
        source: "NVIDIA GPUDirect Storage guide, gdscheck",
        false_alarms: "None.",
    },
    check: verification,
};

fn verification(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.gds_checks()
        .filter_map(|check| {
            let failed = check
                .verification
                .as_ref()
                .filter(|v| v.value == Verification::Failed);
            let too_old = check
                .errors
                .iter()
                .map(|e| &e.cite)
                .chain(check.gpus.iter().map(|g| &g.cite))
                .find(|cite| cite.quote.contains("supported architecture"));
            let all_refused = !check.gpus.is_empty() && check.gpus.iter().all(|g| !g.value.supported);
            let died = check.errors.first().filter(|_| check.verification.is_none());
            if failed.is_none() && !all_refused && died.is_none() {
                return None;
            }
            let title = match (too_old, failed) {
                (Some(_), _) => "GPUDirect Storage does not support this GPU's architecture, whatever the drivers' lines say",
                (None, Some(_)) => "gdscheck failed the platform, whatever the drivers' lines say",
                (None, None) if died.is_some() => "gdscheck ended in an error before it could verify the platform: cuFile does not start here",
                (None, None) => "No GPU here supports GPUDirect Storage",
            };
            let finding: Finding = rule
                .broken(title)
                .quoting_all(failed.map(|f| &f.cite))
                .quoting_all(too_old)
                .quoting_all(check.gpus.iter().filter(|g| !g.value.supported).map(|g| &g.cite))
                .quoting_all(check.errors.iter().map(|e| &e.cite));
            Some(finding.fixed_by(
                Fix::by_hand("Use a GPU of compute capability 6 or later, and what else the error lines name.")
                    .checked_by("/usr/local/cuda/gds/tools/gdscheck -p | tail -1"),
            ))
        })
        .collect()
}
