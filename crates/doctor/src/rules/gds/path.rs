//! Files on their way: G5, G6, G9, G11.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::Sighting;
use crate::evidence::cufile::CufileMessage;
use crate::facts::settings::is_on;
use crate::facts::storage::nvidia_fs_loaded;
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};

pub(super) const FILE_SYSTEM: Rule = Rule {
    id: "G5",
    name: "file-system-not-direct",
    family: Family::Gds,
    summary: "cuFile cannot use this file system or its mount options",
    page: Page {
        condition: "A file lies on a file system that GPUDirect Storage does not support, or whose mode it cannot verify.",
        detection: "cuFile's log: mount option not found, journal options not found, unsupported file system, O_DIRECT refused; in a snapshot, ext4 mounted with another mode than data=ordered.",
        consequence: "POSIX reads and writes through host memory, or error 5030.",
        fix: "xfs, or ext4 with data=ordered, mounted where the process runs; in a container mount the file system itself, not a layer over it.",
        source: "NVIDIA GPUDirect Storage guide, file system requirements; LMCache issue 795",
        false_alarms: "ext4 without a data= option is data=ordered; cuFile says that it cannot verify it where the mount table lacks the device, as in containers.",
    },
    check: file_system,
};

fn about_file_system(message: &CufileMessage) -> bool {
    let text = message.text.to_ascii_lowercase();
    [
        "journal",
        "mount option",
        "mount table",
        "data=ordered",
        "unsupported file",
        "file system",
        "filesystem",
        "o_direct",
        "overlay",
    ]
    .iter()
    .any(|word| text.contains(word))
        && matches!(message.level.as_str(), "ERROR" | "WARN" | "NOTICE")
}

fn file_system(rule: &Rule, case: &Case) -> Vec<Finding> {
    let fixed = |finding: Finding| {
        finding.fixed_by(
            Fix::run("See what the process itself sees of the mount; use xfs, or ext4 with data=ordered.", "grep -E 'ext4|xfs' /proc/self/mounts")
                .checked_by("grep -c 'compat mode' cufile.log   # 0 is right, after a run"),
        )
    };
    let mut findings = Vec::new();
    for log in case.cufile_logs() {
        let seen: Vec<&Sighting<CufileMessage>> = log
            .messages
            .iter()
            .filter(|m| about_file_system(&m.what))
            .collect();
        let Some(first) = seen.first() else { continue };
        let journal = seen
            .iter()
            .any(|m| m.what.text.to_ascii_lowercase().contains("journal"));
        let title = if journal {
            "cuFile cannot verify that the file's ext4 is mounted with data=ordered".to_owned()
        } else {
            format!(
                "cuFile cannot use the file's file system: {}",
                first.what.text
            )
        };
        findings.push(fixed(
            rule.fault(title)
                .quoting_all(seen.iter().map(|m| &m.first))
                .doubting("In a container the mount table may lack the device although the file system is right."),
        ));
    }
    for machine in case
        .machines
        .iter()
        .filter(|m| nvidia_fs_loaded(m) == Some(true))
    {
        for mount in &machine.topology.mounts {
            let mode = mount.options.iter().find(|o| o.starts_with("data="));
            if let ("ext4", Some(mode)) = (mount.fs_type.as_str(), mode)
                && mode != "data=ordered"
            {
                let shows = format!("{} {} {mode}", mount.point, mount.fs_type);
                findings.push(fixed(
                    rule.warning(format!(
                        "{} is mounted with {mode}; GPUDirect Storage needs data=ordered",
                        mount.point
                    ))
                    .quoting(Quote::device(
                        machine.source.clone(),
                        mount.point.clone(),
                        &shows,
                    )),
                ));
            }
        }
    }
    findings
}

pub(super) const COMPAT_HIDES: Rule = Rule {
    id: "G6",
    name: "compat-mode-hides-faults",
    family: Family::Gds,
    summary: "compat mode is allowed: cuFile falls back without an error",
    page: Page {
        condition: "cuFile may fall back to POSIX calls.",
        detection: "allow_compat_mode true in cufile.json, properties.use_compat_mode true in gdscheck.",
        consequence: "A broken direct path looks like a slow disk.",
        fix: "While checking, set allow_compat_mode to false: what cannot go direct then fails with a reason.",
        source: "NVIDIA GPUDirect Storage guide, cufile.json; stelline documentation",
        false_alarms: "For production it is the safe setting, so this is a note.",
    },
    check: compat_hides,
};

fn compat_hides(rule: &Rule, case: &Case) -> Vec<Finding> {
    let in_config = case.cufile_configs().filter_map(|config| {
        let value = config.values.get("properties.allow_compat_mode")?;
        is_on(&value.value).then(|| Quote::from(&value.cite))
    });
    let in_check = case.gds_checks().filter_map(|check| {
        let value = check.config("properties.use_compat_mode")?;
        is_on(value.value).then(|| Quote::from(&value.cite))
    });
    in_config
        .chain(in_check)
        .map(|quote| {
            rule.note("Compat mode is allowed: where the direct path fails, cuFile goes through host memory in silence")
                .quoting(quote)
                .fixed_by(
                    Fix::by_hand("While checking, set \"allow_compat_mode\": false in /etc/cufile.json.")
                        .checked_by("/usr/local/cuda/gds/tools/gdscheck -p | grep compat_mode"),
                )
        })
        .collect()
}

pub(super) const COUNTERS: Rule = Rule {
    id: "G9",
    name: "nvidia-fs-counters",
    family: Family::Gds,
    summary: "nvidia-fs counts errors, or nothing ever went its way",
    page: Page {
        condition: "The module's statistics show errors, or no mapping of GPU memory.",
        detection: "err, io_state_err and the Error line of /proc/driver/nvidia-fs/stats; Bar1-map ok is 0, or does not grow over a transfer.",
        consequence: "Those transfers failed or went another way.",
        fix: "Read the statistics before and after a transfer; dmesg and cufile.log name the reason.",
        source: "NVIDIA GPUDirect Storage guide, nvidia-fs statistics",
        false_alarms: "Reads and writes are not counted while IO stats are disabled: mappings are.",
    },
    check: counters,
};

fn counters(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for stats in case.nvidia_fs_stats() {
        let mut errors: Vec<Quote> = Vec::new();
        for (line, counters) in &stats.counters {
            let failed = counters.value.iter().any(|(name, count)| {
                *count > 0
                    && (name.contains("err")
                        || name.contains("fail")
                        || name.contains("eio")
                        || line == "Error")
            });
            if failed {
                errors.push(Quote::from(&counters.cite));
            }
        }
        if !errors.is_empty() {
            findings.push(
                rule.warning(
                    "nvidia-fs counted errors: some transfers failed or went through host memory",
                )
                .quoting_all(errors)
                .fixed_by(
                    Fix::run(
                        "See the reasons.",
                        "sudo dmesg | grep -i nvidia-fs; tail -50 cufile.log",
                    )
                    .checked_by("cat /proc/driver/nvidia-fs/stats   # before and after a transfer"),
                )
                .doubting("The counters run since the module was loaded; the errors may be old."),
            );
        } else if let Some(mapped) = stats.counter("Bar1-map", "ok")
            && mapped.value == 0
        {
            findings.push(
                rule.note(
                    "nvidia-fs never mapped GPU memory: nothing went this way since it was loaded",
                )
                .quoting(&mapped.cite)
                .doubting("If nothing has used cuFile yet, this is as it should be."),
            );
        } else if let Some(io) = &stats.io_stats
            && !io.value
        {
            findings.push(
                rule.note("Reads and writes are not counted while IO stats are disabled; that they are 0 says nothing")
                    .quoting(&io.cite)
                    .fixed_by(Fix::run("Count them.", "echo 1 | sudo tee /sys/module/nvidia_fs/parameters/rw_stats_enabled")),
            );
        }
    }
    findings
}

pub(super) const ERRORS: Rule = Rule {
    id: "G11",
    name: "cufile-errors",
    family: Family::Gds,
    summary: "cuFile's log holds errors",
    page: Page {
        condition: "cuFile wrote error messages that no other rule explains.",
        detection: "Lines of level ERROR in cufile.log.",
        consequence: "What the message says.",
        fix: "By message.",
        source: "practice",
        false_alarms: "PCI devices that are missing from its topology table cost only the choice of the best GPU and NIC.",
    },
    check: errors,
};

fn errors(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.cufile_logs()
        .filter_map(|log| {
            let seen: Vec<_> = log
                .messages
                .iter()
                .filter(|m| m.what.level == "ERROR" && !about_file_system(&m.what))
                .collect();
            let first = seen.first()?;
            Some(
                rule.warning(format!(
                    "cuFile logged {} kinds of errors, the first: {}",
                    seen.len(),
                    first.what.text
                ))
                .quoting_all(seen.iter().map(|m| &m.first)),
            )
        })
        .collect()
}
