//! What the kernel reported: K11 to K14.

use crowfly_route::obstacle::Fix;

use crate::case::Case;
use crate::evidence::Sighting;
use crate::evidence::kernel::{KernelLog, KernelMessage, Topic};
use crate::finding::{Finding, Severity};
use crate::rule::{Family, Page, Rule};

fn about(log: &KernelLog, wanted: impl Fn(&Topic) -> bool) -> Vec<&Sighting<KernelMessage>> {
    log.messages
        .iter()
        .filter(|m| wanted(&m.what.topic))
        .collect()
}

pub(super) const XID: Rule = Rule {
    id: "K11",
    name: "gpu-error",
    family: Family::Kernel,
    summary: "the GPU driver reported an error (Xid or SXid)",
    page: Page {
        condition: "The NVIDIA driver wrote an Xid or SXid message.",
        detection: "`NVRM: Xid` and `nvidia-nvswitch … SXid` in the kernel's messages, by number.",
        consequence: "48, 63, 64, 94, 95: memory errors; 74: NVLink error; 79: the GPU has fallen off the bus; 119, 120: its firmware does not answer; 13, 31, 43, 45: usually the application's own fault. A job that lost its GPU hangs or fails.",
        fix: "By number: drain the node and reset or replace the GPU for hardware numbers, look at the application for the others.",
        source: "NVIDIA Xid errors documentation",
        false_alarms: "13, 31, 43 and 45 most often follow from a fault in a kernel or from a killed process.",
    },
    check: xid,
};

/// Numbers after which the GPU or link cannot be relied on.
const HARDWARE: [u32; 12] = [48, 62, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143];

fn xid(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.kernel_logs() {
        for message in about(log, |t| matches!(t, Topic::Xid(_) | Topic::SXid(_))) {
            let (number, switch) = match message.what.topic {
                Topic::Xid(number) => (number, false),
                Topic::SXid(number) => (number, true),
                _ => continue,
            };
            let grave = HARDWARE.contains(&number);
            let severity = if grave && !switch {
                Severity::Broken
            } else {
                Severity::Warning
            };
            let on = message
                .what
                .device
                .map(|device| format!(" on {device}"))
                .unwrap_or_default();
            let meaning = match (switch, number) {
                (true, _) => "an NVSwitch error",
                (_, 13 | 31 | 43 | 45) => "most often the application's own fault",
                (_, 48 | 63 | 64 | 94 | 95) => "a memory error",
                (_, 74) => "an NVLink error",
                (_, 79) => "the GPU has fallen off the bus",
                (_, 119 | 120) => "the GPU's firmware does not answer",
                _ => "see NVIDIA's list",
            };
            let kind = if switch { "SXid" } else { "Xid" };
            findings.push(
                rule.finding(severity, format!("{kind} {number}{on}: {meaning}"))
                    .quoting(&message.first)
                    .fixed_by(
                        Fix::run("Look at the GPU's own state, and reset or replace it if it is the hardware.", "nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER")
                            .checked_by("sudo dmesg | grep -i xid"),
                    )
                    .doubting("The message may be older than the run in question."),
            );
        }
    }
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}

pub(super) const CRASHED: Rule = Rule {
    id: "K12",
    name: "process-killed",
    family: Family::Kernel,
    summary: "a process of the job was killed by a bad memory access, or for want of memory",
    page: Page {
        condition: "The kernel killed a process with a segmentation fault or because memory ran out.",
        detection: "`segfault at … in libnccl.so` (or another communication or GPU library), `Out of memory: Killed process`.",
        consequence: "That rank is gone; its peers see a connection that failed.",
        fix: "For a crash in a library: another version of it, with a core dump for its makers. For memory: the limit of the job or control group.",
        source: "Linux arch fault handlers; practice",
        false_alarms: "Crashes of unrelated programs are not counted.",
    },
    check: crashed,
};

const LIBRARIES: [&str; 10] = [
    "nccl",
    "rccl",
    "libcuda",
    "libcudart",
    "ucp",
    "uct",
    "ibverbs",
    "cufile",
    "fabric",
    "libhsa",
];

fn crashed(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.kernel_logs() {
        for message in about(log, |t| {
            matches!(t, Topic::Segfault { .. } | Topic::OutOfMemory)
        }) {
            let title = match &message.what.topic {
                Topic::Segfault { process, library } => {
                    let concerned = library
                        .as_deref()
                        .is_some_and(|name| LIBRARIES.iter().any(|l| name.contains(l)));
                    if !concerned {
                        continue;
                    }
                    let library = library.as_deref().unwrap_or_default();
                    format!("{process} crashed in {library}")
                }
                _ => "The kernel killed a process because memory ran out".to_owned(),
            };
            findings.push(
                rule.broken(title)
                    .quoting(&message.first)
                    .fixed_by(
                        Fix::run("Keep the core dump and its stack for the library's makers, and try another version.", "coredumpctl gdb")
                            .checked_by("sudo dmesg | grep -E 'segfault|Killed process'"),
                    )
                    .doubting("Whether it is the job in question shows in the time and the process number."),
            );
        }
    }
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}

pub(super) const BUS_ERRORS: Rule = Rule {
    id: "K13",
    name: "pcie-errors",
    family: Family::Kernel,
    summary: "PCIe links report errors",
    page: Page {
        condition: "Advanced error reporting counts errors of a link.",
        detection: "AER messages of the kernel; totals of GPUs and NICs in a snapshot.",
        consequence: "Correctable errors cost retries and point to a bad contact; uncorrectable ones lose transfers.",
        fix: "Reseat, replace riser or cable.",
        source: "Linux drivers/pci/pcie/aer.c",
        false_alarms: "A few correctable errors at boot are common.",
    },
    check: bus_errors,
};

/// Correctable errors since boot that are worth a word.
const MANY_CORRECTABLE: u64 = 100;

fn bus_errors(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    for log in case.kernel_logs() {
        let seen = about(log, |t| matches!(t, Topic::Aer { .. }));
        let Some(first) = seen.first() else { continue };
        let grave = seen.iter().any(|m| {
            matches!(&m.what.topic, Topic::Aer { severity } if severity.starts_with("Unc") || severity.contains("atal"))
        });
        let on = first
            .what
            .device
            .map(|device| format!(" at {device}"))
            .unwrap_or_default();
        let finding = if grave {
            rule.fault(format!("PCIe reports uncorrectable errors{on}"))
        } else {
            rule.warning(format!("PCIe reports corrected errors{on}"))
        };
        findings.push(reseat(finding).quoting_all(seen.iter().map(|m| &m.first)));
    }
    for machine in &case.machines {
        let topology = &machine.topology;
        for device in topology.devices() {
            let Some(address) = topology.address_of(device) else {
                continue;
            };
            let Some(totals) = topology.pci.get(&address).and_then(|f| f.aer) else {
                continue;
            };
            let lost = totals.fatal + totals.nonfatal;
            if lost == 0 && totals.correctable < MANY_CORRECTABLE {
                continue;
            }
            let shows = format!(
                "{} corrected, {} non-fatal, {} fatal PCIe errors",
                totals.correctable, totals.nonfatal, totals.fatal
            );
            findings.push(
                reseat(rule.warning(format!(
                    "{} has {shows} since boot",
                    topology.name_of(device)
                )))
                .quoting(crate::finding::Quote::device(
                    machine.source.clone(),
                    address.to_string(),
                    &shows,
                )),
            );
        }
    }
    findings.truncate(Finding::MAX_EVIDENCE);
    findings
}

fn reseat(finding: Finding) -> Finding {
    finding
        .fixed_by(
            Fix::by_hand("Reseat the board, its riser or its cable, and see whether the count still grows under load.")
                .checked_by("cat /sys/bus/pci/devices/*/aer_dev_correctable | grep TOTAL"),
        )
        .doubting("A few corrected errors at boot are common.")
}

pub(super) const PEERMEM_MESSAGES: Rule = Rule {
    id: "K14",
    name: "peermem-messages",
    family: Family::Kernel,
    summary: "nvidia-peermem wrote an error when memory was released",
    page: Page {
        condition: "The peer memory module met a registration whose memory was gone already.",
        detection: "`nv_get_p2p_free_callback … ERROR detected invalid context` in the kernel's messages.",
        consequence: "Known behaviour of the driver when GPU memory is freed before its registration; the data path is not affected.",
        fix: "Deregister before freeing; a newer driver.",
        source: "NVIDIA open-gpu-kernel-modules, nvidia-peermem; practice",
        false_alarms: "It is a warning: transfers go on.",
    },
    check: peermem_messages,
};

fn peermem_messages(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.kernel_logs()
        .filter_map(|log| {
            let seen = about(log, |t| *t == Topic::PeerMem);
            let bad: Vec<_> = seen
                .into_iter()
                .filter(|m| {
                    let text = m.what.text.to_ascii_lowercase();
                    text.contains("error") || text.contains("fail") || text.contains("invalid")
                })
                .collect();
            let first = bad.first()?;
            let known = first.what.text.contains("invalid context");
            let title = if known {
                "nvidia-peermem found memory freed before its registration: known, and harmless to the data path"
            } else {
                "nvidia-peermem reports an error"
            };
            Some(
                rule.warning(title)
                    .quoting_all(bad.iter().map(|m| &m.first))
                    .fixed_by(
                        Fix::by_hand("Deregister memory before it is freed, and use a newer driver; dma-buf does not have this.")
                            .checked_by("sudo dmesg | grep -c nvidia-peermem"),
                    ),
            )
        })
        .collect()
}
