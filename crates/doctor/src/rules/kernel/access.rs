//! Whether devices may address each other: K1 to K4.

use std::collections::BTreeSet;

use crowfly_route::obstacle::Fix;
use crowfly_route::topology::{AcsState, Topology};
use crowfly_route::units::PciAddress;

use crate::case::{Case, Machine};
use crate::evidence::kernel::Topic;
use crate::evidence::lspci::{AcsControl, Lspci, LspciTree, PciFunction};
use crate::evidence::{Cite, Located};
use crate::facts::host::{has_amd_gpu, has_nvidia_gpu, has_rdma, is_virtual};
use crate::facts::site::{is_gpu, is_nic};
use crate::facts::storage::kernel_p2pdma;
use crate::finding::{Finding, Quote, Severity};
use crate::rule::{Family, Page, Rule};
use crate::verdict::{PairKind, Verdict};

pub(super) const ACS_REDIRECT: Rule = Rule {
    id: "K1",
    name: "acs-redirect",
    family: Family::Kernel,
    summary: "a bridge between two devices sends their traffic up to the root complex",
    page: Page {
        condition: "Access Control Services redirect requests or completions on a bridge between two devices.",
        detection: "ACSCtl of `lspci -vvv`, or the capability 0x000d in configuration space, on every bridge between the pair: ReqRedir, CmpltRedir or EgressCtrl set. SrcValid alone is harmless. A redirect on a bridge of no such pair is no fault.",
        consequence: "Peer traffic goes through the root complex: half the bandwidth, or hangs and protection errors.",
        fix: "Off in the firmware; setpci ECAP_ACS+6.w=0 until the next boot; pci=disable_acs_redir=<bridge> on the kernel's command line. A host that passes devices to virtual machines needs ACS: use ATS there.",
        source: "Linux drivers/pci/p2pdma.c, pci_bridge_has_acs_redir; NCCL documentation",
        false_alarms: "Root ports above a switch redirect nothing of what the switch itself turns around. Where no device is named (as from grep), nothing can be said of a pair.",
    },
    check: acs_redirect,
};

/// A bridge that redirects, and where that was read.
struct Redirecting {
    bridge: PciAddress,
    quote: Quote,
}

fn acs_redirect(rule: &Rule, case: &Case) -> Vec<Finding> {
    let mut findings: Vec<Finding> = case
        .machines
        .iter()
        .filter_map(|machine| on_machine(rule, machine))
        .collect();
    findings.extend(
        case.pci_lists()
            .filter_map(|list| in_list(rule, case, list)),
    );
    findings
}

fn on_machine(rule: &Rule, machine: &Machine) -> Option<Finding> {
    let topology = &machine.topology;
    let between = bridges_between(topology);
    let redirecting: Vec<Redirecting> = between
        .iter()
        .filter(|bridge| {
            topology
                .pci
                .get(bridge)
                .is_some_and(|function| function.acs.redirects() == Some(true))
        })
        .map(|bridge| Redirecting {
            bridge: *bridge,
            quote: Quote::device(
                machine.source.clone(),
                bridge.to_string(),
                &shown(topology, *bridge),
            ),
        })
        .collect();
    let severity = if is_virtual(machine) {
        Severity::Warning
    } else {
        Severity::Fault
    };
    finding(rule, severity, &redirecting)
}

fn shown(topology: &Topology, bridge: PciAddress) -> String {
    match topology.pci.get(&bridge).map(|function| function.acs) {
        Some(AcsState::Control { control, .. }) => format!("ACS control {control:#06x}"),
        _ => String::new(),
    }
}

/// Bridges below a common one that the traffic of two accelerators, or of an accelerator and a NIC
/// or drive, passes.
fn bridges_between(topology: &Topology) -> BTreeSet<PciAddress> {
    use crowfly_route::topology::Device;
    let ends: Vec<Device> = topology.devices().collect();
    let mut bridges = BTreeSet::new();
    for (at, a) in ends.iter().enumerate() {
        for b in ends.iter().skip(at + 1) {
            if !matches!(a, Device::Gpu(_)) {
                continue;
            }
            let distance = topology.pcie_distance(*a, *b);
            let switched = distance.relation <= crowfly_route::topology::Relation::Pxb;
            if switched {
                bridges.extend(distance.path.bridges);
            }
        }
    }
    bridges
}

fn finding(rule: &Rule, severity: Severity, redirecting: &[Redirecting]) -> Option<Finding> {
    let first = redirecting.first()?;
    let names: Vec<String> = redirecting.iter().map(|r| r.bridge.to_string()).collect();
    let weighty = severity == Severity::Fault;
    let few: Vec<&str> = names.iter().map(String::as_str).collect();
    let list = crate::rules::nccl::list(few.iter().copied());
    Some(
        rule.finding(
            severity,
            format!("ACS sends peer traffic up to the root complex at {list}"),
        )
        .quoting_all(redirecting.iter().map(|r| r.quote.clone()))
        .fixed_by(
            Fix::run(
                "Switch the redirect off until the next boot (not on a host that passes devices to virtual machines).",
                format!("sudo setpci -s {} ECAP_ACS+6.w=0", first.bridge),
            )
            .checked_by(format!("sudo lspci -vvv -s {} | grep ACSCtl", first.bridge)),
        )
        .fixed_by(Fix::run(
            "Or at each boot, on the kernel's command line.",
            format!("pci=disable_acs_redir={}", names.iter().take(16).cloned().collect::<Vec<_>>().join(";")),
        ))
        .doubting("A host of virtual machines needs ACS to keep guests apart; there, ATS lets translated requests go straight."),
    )
    .map(|finding| {
        if weighty {
            finding.implying(PairKind::GpuNic, Verdict::DirectButSlow)
        } else {
            finding
        }
    })
}

/// The ACS lines of a list: bridges that lead to a GPU and to another device, or a remark when no
/// device is named.
fn in_list(rule: &Rule, case: &Case, list: &Lspci) -> Option<Finding> {
    let orphans = &list.orphans.acs;
    if !orphans.is_empty() && list.functions.iter().all(|f| f.details.acs.is_empty()) {
        let on: Vec<&Located<AcsControl>> =
            orphans.iter().filter(|acs| acs.value.redirects()).collect();
        let first = orphans.first()?;
        return Some(match on.first() {
            None => rule
                .note("No port redirects peer traffic (ACS); this is as it should be, though no port is named")
                .quoting(&first.cite),
            Some(redirects) => rule
                .warning(format!(
                    "{} of {} ports redirect peer traffic (ACS); which ones, and whether they lie between a GPU and its NIC, is not shown",
                    on.len(),
                    orphans.len()
                ))
                .quoting(&redirects.cite)
                .fixed_by(Fix::run("Collect it with the ports' addresses.", "sudo lspci -vvv -D"))
                .doubting("Only ports on the way between two devices that talk to each other matter."),
        });
    }
    let redirecting: Vec<Redirecting> = list
        .functions
        .iter()
        .filter_map(|function| {
            let acs = function.details.acs.iter().find(|a| a.value.redirects())?;
            Some((function, &acs.cite))
        })
        .filter(|(function, _)| case_joins(case, list, function))
        .map(|(function, cite): (&PciFunction, &Cite)| Redirecting {
            bridge: function.address,
            quote: Quote::from(cite),
        })
        .collect();
    let certain = redirecting
        .iter()
        .any(|r| below_switch(case, list, r.bridge));
    let severity = if certain {
        Severity::Fault
    } else {
        Severity::Warning
    };
    finding(rule, severity, &redirecting).map(|f| {
        if certain {
            f
        } else {
            f.doubting("Nothing given shows which devices lie behind these ports; `lspci -t` does.")
        }
    })
}

/// Whether a port may lie between a GPU and another device: it leads to one of them, or nothing
/// says where it leads.
fn case_joins(case: &Case, list: &Lspci, port: &PciFunction) -> bool {
    match behind(case, list, port.address) {
        Some(names) => names.iter().any(|n| is_gpu(n) || is_nic(n)),
        None => !port.class.contains("Ethernet") && !port.class.contains("controller"),
    }
}

/// Whether a port is a downstream port of a switch that has a GPU below and more than one port.
fn below_switch(case: &Case, list: &Lspci, port: PciAddress) -> bool {
    let leads = behind(case, list, port).is_some_and(|names| names.iter().any(|n| is_gpu(n)));
    let switch = list
        .functions
        .iter()
        .filter_map(|f| f.details.bridges_to.first())
        .any(|b| b.value.0 == port.bus)
        || case.pci_trees().any(|tree| in_tree(tree, port));
    leads && switch
}

fn in_tree(tree: &LspciTree, port: PciAddress) -> bool {
    tree.functions
        .iter()
        .any(|f| f.address == port && !f.above.is_empty())
}

/// Names of the functions behind a port, where a tree or bus numbers show them.
fn behind(case: &Case, list: &Lspci, port: PciAddress) -> Option<Vec<String>> {
    for tree in case.pci_trees() {
        let below: Vec<String> = tree
            .functions
            .iter()
            .filter(|f| f.above.contains(&port))
            .map(|f| f.name.clone())
            .collect();
        if !below.is_empty() {
            return Some(below);
        }
    }
    let function = list.functions.iter().find(|f| f.address == port)?;
    let (first, last) = function.details.bridges_to.first()?.value;
    Some(
        list.functions
            .iter()
            .filter(|f| f.address.domain == port.domain && (first..=last).contains(&f.address.bus))
            .map(|f| f.name.clone())
            .collect(),
    )
}

pub(super) const MAP_TYPE: Rule = Rule {
    id: "K2",
    name: "no-peer-path",
    family: Family::Kernel,
    summary: "the kernel does not let these two devices address each other",
    page: Page {
        condition: "Two devices share no PCIe switch, and the CPU is not one whose host bridges are known to forward peer traffic.",
        detection: "No common upstream bridge, and a CPU that is neither AMD of family 0x17 or later nor on the kernel's list of Intel host bridges (3c00, 3c01, 2f00, 2f01 within one host bridge; 2030 to 2033, 2020, 09a2).",
        consequence: "Peer-to-peer DMA through the kernel (dma-buf, GPUDirect Storage by P2PDMA) is refused. Drivers that bypass it decide for themselves.",
        fix: "Move one of the two under a common switch.",
        source: "Linux drivers/pci/p2pdma.c",
        false_alarms: "NVIDIA's peer memory module does not ask the kernel. In virtual machines the kernel sees no real bridges.",
    },
    check: map_type,
};

fn map_type(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter(|machine| !is_virtual(machine) && machine.snapshot.is_some())
        .filter_map(|machine| {
            let host = &machine.topology.host;
            let listed = listed_bridge(machine);
            let allowed = match (host.cpu_vendor.as_deref(), host.cpu_family) {
                (Some("AuthenticAMD"), Some(family)) => family >= 0x17,
                (Some("GenuineIntel"), _) => listed?,
                (Some(_), _) => false,
                (None, _) => return None,
            };
            if allowed {
                return None;
            }
            let site = crate::facts::site::of_machine(machine);
            let apart: Vec<_> = site
                .reaches
                .iter()
                .filter(|r| r.nearness > crate::facts::site::Nearness::Pxb)
                .filter(|r| r.kind != PairKind::GpuGpu)
                .collect();
            let first = apart.first()?;
            Some(
                rule.warning(format!(
                    "{} and {} share no switch, and the kernel does not know this CPU's host bridge to forward peer traffic",
                    first.gpu, first.other
                ))
                .quoting_all(apart.iter().map(|r| r.quote.clone()))
                .about(apart.iter().map(|r| crate::verdict::Pair {
                    kind: r.kind,
                    on: Some(site.on.clone()),
                    gpu: r.gpu.clone(),
                    other: r.other.clone(),
                }))
                .fixed_by(Fix::by_hand("Move one of the two under a common PCIe switch."))
                .doubting("NVIDIA's peer memory module does not ask the kernel and may work all the same."),
            )
        })
        .collect()
}

/// Whether one of the machine's host bridges is on the kernel's list; `None` when none was seen.
fn listed_bridge(machine: &Machine) -> Option<bool> {
    const LISTED: [u16; 10] = [
        0x3c00, 0x3c01, 0x2f00, 0x2f01, 0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09a2,
    ];
    const INTEL: u16 = 0x8086;
    const HOST_BRIDGE: u32 = 0x0600;
    let intel: Vec<_> = machine
        .topology
        .pci
        .values()
        .filter(|f| f.vendor == INTEL)
        .collect();
    if intel.iter().any(|f| LISTED.contains(&f.device)) {
        return Some(true);
    }
    intel
        .iter()
        .any(|f| f.subclass() == HOST_BRIDGE)
        .then_some(false)
}

pub(super) const REFUSED: Rule = Rule {
    id: "K3",
    name: "p2pdma-refused",
    family: Family::Kernel,
    summary: "the kernel said that two devices cannot address each other",
    page: Page {
        condition: "Someone asked for peer-to-peer DMA and the kernel refused.",
        detection: "Kernel messages `ACS redirect is set between the client and provider` and `cannot be used for peer-to-peer DMA`.",
        consequence: "The transfer takes another way, through host memory.",
        fix: "The message itself prints the pci=disable_acs_redir list where ACS is the cause.",
        source: "Linux drivers/pci/p2pdma.c",
        false_alarms: "None.",
    },
    check: refused,
};

fn refused(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.kernel_logs()
        .filter_map(|log| {
            let seen: Vec<_> = log
                .messages
                .iter()
                .filter(|m| matches!(m.what.topic, Topic::P2pdmaAcsRedirect | Topic::P2pdmaRefused))
                .collect();
            let first = seen.first()?;
            let acs = seen.iter().any(|m| m.what.topic == Topic::P2pdmaAcsRedirect);
            let title = if acs {
                "The kernel refused peer-to-peer DMA because ACS redirects it"
            } else {
                "The kernel refused peer-to-peer DMA between two devices"
            };
            Some(
                rule.fault(title)
                    .quoting_all(seen.iter().map(|m| &m.first))
                    .quoting(&first.first)
                    .fixed_by(
                        Fix::by_hand("Use the pci=disable_acs_redir list that the message prints, or move one device under the other's switch.")
                            .checked_by("sudo dmesg | grep -i p2pdma"),
                    ),
            )
        })
        .collect()
}

pub(super) const NOT_BUILT: Rule = Rule {
    id: "K4",
    name: "kernel-without-p2pdma",
    family: Family::Kernel,
    summary: "the kernel was built without peer-to-peer DMA",
    page: Page {
        condition: "CONFIG_PCI_P2PDMA is not set.",
        detection: "The kernel's configuration, or the absence of p2pdma_pgmap_ops among its symbols.",
        consequence: "No dma-buf peer-to-peer on AMD GPUs, no GPUDirect Storage by P2PDMA.",
        fix: "Another kernel.",
        source: "siderolabs/pkgs issue 1356; NVIDIA GPUDirect Storage guide, chapter on P2PDMA",
        false_alarms: "NVIDIA's peer memory module and nvidia-fs do not need it, so with those it is a note.",
    },
    check: not_built,
};

fn not_built(rule: &Rule, case: &Case) -> Vec<Finding> {
    case.machines
        .iter()
        .filter(|machine| kernel_p2pdma(machine) == Some(false))
        .filter_map(|machine| {
            let title = format!("The kernel of {} was built without CONFIG_PCI_P2PDMA", machine.source);
            let finding = if has_amd_gpu(machine) && has_rdma(machine) {
                rule.fault(title)
            } else if has_nvidia_gpu(machine) || has_amd_gpu(machine) {
                rule.warning(title)
                    .doubting("NVIDIA's own modules nvidia-peermem and nvidia-fs work without it.")
            } else {
                return None;
            };
            Some(
                finding
                    .quoting_all(machine.quote("kconfig:CONFIG_PCI_P2PDMA"))
                    .fixed_by(
                        Fix::by_hand("Use a kernel that is built with CONFIG_PCI_P2PDMA=y, as distributions' server kernels are.")
                            .checked_by("grep PCI_P2PDMA /boot/config-$(uname -r)"),
                    ),
            )
        })
        .collect()
}
