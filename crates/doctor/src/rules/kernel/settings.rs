//! The IOMMU and NUMA: K5, K9, K10.

use crowfly_route::obstacle::Fix;

use crate::case::{Case, Machine};
use crate::evidence::kernel::{CmdlineOrigin, KernelCmdline, Topic};
use crate::evidence::nccl_log::Note;
use crate::facts::host::{has_amd_gpu, has_nvidia_gpu, is_virtual};
use crate::finding::{Finding, Quote};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const IOMMU: Rule = Rule {
    id: "K5",
    name: "iommu-translates",
    family: Family::Kernel,
    summary: "an IOMMU translates device addresses on bare metal",
    page: Page {
        condition: "The IOMMU is on and not in passthrough mode.",
        detection: "Domain type DMA or DMA-FQ of a GPU's IOMMU group; iommu=, intel_iommu= and amd_iommu= on the kernel's command line; `IOMMU:` of gdscheck; faults that the kernel reports. amd_iommu=off and intel_iommu=off switch it off whatever iommu=pt says beside them.",
        consequence: "Peer traffic goes up to the IOMMU, slower or not at all; GPUDirect Storage refuses it on many platforms.",
        fix: "iommu=pt, or off where nothing needs it.",
        source: "NVIDIA GPUDirect Storage guide; Linux kernel parameters",
        false_alarms: "In a virtual machine the host decides. DGX A100 and later support passthrough.",
    },
    check: iommu,
};

fn iommu(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = case
        .machines
        .iter()
        .filter_map(|machine| translating(rule, machine))
        .collect();
    for line in case.command_lines() {
        findings.extend(on_command_line(rule, line));
    }
    findings.extend(faults(rule, case));
    for check in case.gds_checks() {
        let Some(state) = &check.iommu else { continue };
        let words = state.value.to_ascii_lowercase();
        if words.starts_with("enabled") {
            findings.push(
                fix_iommu(rule.warning("gdscheck sees an IOMMU that is on"))
                    .quoting(&state.cite)
                    .doubting("In passthrough mode it does little harm, and some versions of gdscheck do not tell the modes apart."),
            );
        } else if words.contains("enabled") {
            findings.push(
                rule.note("gdscheck sees an IOMMU that is on or in passthrough mode; which, it does not say")
                    .quoting(&state.cite)
                    .fixed_by(Fix::run("See which.", "cat /proc/cmdline; cat /sys/kernel/iommu_groups/*/type | sort | uniq -c")),
            );
        }
    }
    findings
}

/// Accesses that the IOMMU refused.
fn faults(rule: &Rule, case: &Case) -> Option<Finding> {
    let refused: Vec<_> = case
        .kernel_logs()
        .flat_map(|log| &log.messages)
        .filter(|m| m.what.topic == Topic::Iommu)
        .filter(|m| {
            ["fault addr", "IO_PAGE_FAULT", "fault reason"]
                .iter()
                .any(|words| m.what.text.contains(words))
        })
        .collect();
    (!refused.is_empty()).then(|| {
        fix_iommu(
            rule.fault("The IOMMU refused what a device read or wrote by DMA")
                .quoting_all(refused.iter().map(|m| &m.first))
                .doubting("A driver that maps its memory wrongly looks the same; see which device the message names."),
        )
    })
}

fn fix_iommu(finding: Finding) -> Finding {
    finding.fixed_by(
        Fix::run(
            "Set passthrough on the kernel's command line and boot again.",
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub",
        )
        .checked_by("cat /proc/cmdline; cat /sys/kernel/iommu_groups/*/type | sort | uniq -c"),
    )
}

fn translating(rule: &Rule, machine: &Machine) -> Option<Finding> {
    if is_virtual(machine) || !(has_nvidia_gpu(machine) || has_amd_gpu(machine)) {
        return None;
    }
    let topology = &machine.topology;
    let gpu = topology.gpus.iter().find_map(|gpu| {
        let function = topology.pci.get(&gpu.address?)?;
        let kind = function.iommu_type.as_deref()?;
        kind.starts_with("DMA").then_some((function.address, kind))
    })?;
    let (address, kind) = gpu;
    Some(
        fix_iommu(
            rule.fault(format!(
                "The IOMMU translates the addresses of the GPU at {address} (domain type {kind})"
            ))
            .implying(PairKind::GpuNic, Verdict::DirectButSlow),
        )
        .quoting(Quote::device(
            machine.source.clone(),
            address.to_string(),
            &format!("IOMMU domain type {kind}"),
        ))
        .quoting_all(machine.quote("/proc/cmdline")),
    )
}

/// What a command line does about the IOMMU.
fn on_command_line(rule: &Rule, line: &KernelCmdline) -> Option<Finding> {
    let found: Vec<(&str, &str)> = line
        .arguments
        .iter()
        .filter(|a| matches!(a.value.name.as_str(), "iommu" | "intel_iommu" | "amd_iommu"))
        .map(|a| {
            (
                a.value.name.as_str(),
                a.value.value.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    let has = |name: &str, wanted: &str| {
        found
            .iter()
            .any(|(n, v)| *n == name && v.split(',').any(|part| part == wanted))
    };
    let off = has("amd_iommu", "off") || has("intel_iommu", "off") || has("iommu", "off");
    let passthrough = has("iommu", "pt") || has("iommu", "passthrough");
    let on = has("intel_iommu", "on") || has("amd_iommu", "on") || has("iommu", "force");
    let Some(first) = found.first() else {
        return Some(
            rule.note("Nothing on the kernel's command line is about the IOMMU: the kernel's and the firmware's defaults hold")
                .quoting(&line.cite)
                .fixed_by(Fix::run("See what they are.", "cat /sys/kernel/iommu_groups/*/type | sort | uniq -c")),
        );
    };
    let later = match line.origin {
        CmdlineOrigin::BootLoader => {
            " after the next boot, once the boot loader's files are written"
        }
        CmdlineOrigin::Running => "",
    };
    let finding = if off && passthrough {
        rule.note(format!(
            "The IOMMU is off{later}: `off` wins, and iommu=pt beside it has no effect"
        ))
    } else if off {
        rule.note(format!(
            "The IOMMU is off{later}, as peer-to-peer traffic likes it"
        ))
    } else if passthrough {
        rule.note(format!("The IOMMU is in passthrough mode{later}"))
    } else if on {
        fix_iommu(rule.warning(format!(
            "{}={} switches the IOMMU on without iommu=pt{later}",
            first.0, first.1
        )))
        .doubting("A virtual machine host needs it, and then ATS keeps peer traffic fast.")
    } else {
        return None;
    };
    Some(finding.quoting(&line.cite))
}

pub(super) const NO_NUMA_NODE: Rule = Rule {
    id: "K9",
    name: "no-numa-node",
    family: Family::Kernel,
    summary: "devices of a machine with several sockets have no NUMA node",
    page: Page {
        condition: "The firmware does not say which socket a GPU or NIC belongs to.",
        detection: "numa_node -1 of a GPU or NIC, and of the bridges above it, on a machine with more than one socket.",
        consequence: "Memory and threads land on the wrong socket half the time.",
        fix: "A firmware setting or update (NUMA nodes per socket, proximity domains).",
        source: "Linux sysfs numa_node; practice",
        false_alarms: "Machines with one socket need none.",
    },
    check: no_numa_node,
};

fn no_numa_node(rule: &Rule, case: &Case) -> Vec<Finding> {
    use crowfly_route::topology::Device;
    case.machines
        .iter()
        .filter_map(|machine| {
            let topology = &machine.topology;
            let several = topology.host.sockets.is_some_and(|s| s > 1) && topology.numa.len() > 1;
            if !several || machine.snapshot.is_none() {
                return None;
            }
            let lost: Vec<_> = topology
                .devices()
                .filter(|d| !matches!(d, Device::Drive(_)))
                .filter_map(|device| {
                    let address = topology.address_of(device)?;
                    let key = format!("/sys/bus/pci/devices/{address}/numa_node");
                    (topology.numa_of(address).is_none() && machine.text(&key) == Some("-1"))
                        .then(|| machine.quote(&key))?
                })
                .collect();
            let count = lost.len();
            if count == 0 {
                return None;
            }
            Some(
                rule.warning(format!(
                    "{count} GPUs and NICs of {} have no NUMA node, on a machine with several sockets",
                    machine.source
                ))
                .quoting_all(lost)
                .fixed_by(
                    Fix::by_hand("Look in the firmware's settings for NUMA nodes per socket and for proximity domains of PCIe, or update it.")
                        .checked_by("cat /sys/bus/pci/devices/*/numa_node | sort | uniq -c"),
                ),
            )
        })
        .collect()
}

pub(super) const NUMA_BALANCING: Rule = Rule {
    id: "K10",
    name: "numa-balancing",
    family: Family::Kernel,
    summary: "automatic NUMA balancing is on",
    page: Page {
        condition: "The kernel moves pages between NUMA nodes by itself.",
        detection: "/proc/sys/kernel/numa_balancing is 1 on a machine with GPUs; RCCL's own remark.",
        consequence: "Jitter; and on Hyper-V, RCCL switches GPUDirect RDMA off unless relaxed ordering is set.",
        fix: "Switch it off: sysctl kernel.numa_balancing=0.",
        source: "RCCL init.cc and net_ib.cc; AMD system tuning guides",
        false_alarms: "One NUMA node has nothing to balance.",
    },
    check: numa_balancing,
};

const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

fn numa_balancing(rule: &Rule, case: &Case) -> Vec<Finding> {
    let on_machines = case
        .machines
        .iter()
        .filter(|m| m.text(BALANCING) == Some("1") && m.topology.numa.len() > 1)
        .filter(|m| has_nvidia_gpu(m) || has_amd_gpu(m))
        .filter_map(|m| m.quote(BALANCING));
    let in_logs = case.nccl_logs().filter_map(|log| {
        let said = log.notes.iter().find(|n| n.what == Note::NumaBalancing)?;
        Some(Quote::from(&said.first))
    });
    on_machines
        .chain(in_logs)
        .map(|quote| {
            rule.warning("Automatic NUMA balancing is on: it moves pages under the GPUs' transfers")
                .quoting(quote)
                .fixed_by(
                    Fix::run("Switch it off.", "sudo sysctl kernel.numa_balancing=0")
                        .checked_by("cat /proc/sys/kernel/numa_balancing   # 0 is right"),
                )
        })
        .take(1)
        .collect()
}
