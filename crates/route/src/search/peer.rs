//! Whether one PCIe device can reach the memory of another, and what that path costs.
//!
//! Two parties decide, by different rules:
//!
//! * **the kernel** ([`Ruling::Kernel`]), for P2PDMA pages and dma-buf importers that use them:
//!   `drivers/pci/p2pdma.c` of Linux. Below one bridge, without ACS redirect on the way, the peers'
//!   bus addresses are used and the traffic stays below that bridge, whatever the IOMMU does. In
//!   every other case the traffic meets the CPU, and is allowed only where the CPU is known to
//!   route between its ports: AMD from family 0x17 on, and host bridges on a list.
//! * **a vendor's driver** ([`Ruling::Driver`]), such as NVIDIA's for nvidia-fs, peermem and its
//!   own peers: it hands out bus addresses without asking. Nothing refuses a bad path, the
//!   hardware is slow on it or fails.

use super::World;
use super::seen::Truth;
use crate::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};
use crate::topology::{AcsState, Device, PciDevice, PortKind, Relation, RootComplex};
use crate::units::PciAddress;

/// Who decides whether two devices may talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    Kernel,
    Driver,
}

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const AMD_VENDOR: &str = "AuthenticAMD";
/// AMD's Zen, the first that routes between its root ports.
const AMD_ZEN_FAMILY: u32 = 0x17;
/// Intel's host bridges that route between root ports, Skylake-SP and later Xeons.
const INTEL_ANY_BRIDGE: [u16; 6] = [0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09a2];
/// Intel's host bridges that route between root ports of the same bridge: Xeon E5, E5 v3, E7 v3.
const INTEL_SAME_BRIDGE: [u16; 4] = [0x3c00, 0x3c01, 0x2f00, 0x2f01];
/// Makers of the devices that hypervisors emulate: Red Hat (twice), VMware, Microsoft.
const EMULATED: [u16; 4] = [0x1af4, 0x1b36, 0x15ad, 0x1414];

impl World<'_> {
    /// What stands between two devices, or slows the way between them.
    pub(super) fn between_peers(&self, a: Device, b: Device, ruling: Ruling) -> Vec<Obstacle> {
        let mut found = self.rule(a, b, ruling);
        found.extend(self.translated(a, b, ruling));
        found.extend(self.behind_hypervisor(a, b, ruling));
        found
    }

    fn rule(&self, a: Device, b: Device, ruling: Ruling) -> Vec<Obstacle> {
        let distance = self.topology.pcie_distance(a, b);
        let names = self.pair(a, b);
        let Some((one, other)) = self.functions(a, b) else {
            return vec![self.unplaced(&names, &distance.path.doubts)];
        };
        match distance.relation {
            Relation::Pix | Relation::Pxb | Relation::Same => {
                let mut ports = vec![one.address, other.address];
                ports.extend(&distance.path.bridges);
                ports.dedup();
                self.access_control(&names, one, other, &ports, ruling)
                    .into_iter()
                    .collect()
            }
            Relation::Phb | Relation::Node | Relation::Sys => {
                vec![self.through_cpu(&names, one, other, distance.relation, ruling)]
            }
            _ => {
                let mut found = vec![self.unplaced(&names, &distance.path.doubts)];
                if ruling == Ruling::Kernel && self.cpu_routes(one, other).0 == Truth::No {
                    found.push(self.through_cpu(&names, one, other, Relation::Node, ruling));
                }
                found
            }
        }
    }

    fn functions(&self, a: Device, b: Device) -> Option<(&PciDevice, &PciDevice)> {
        let function = |device| self.topology.pci.get(&self.topology.address_of(device)?);
        Some((function(a)?, function(b)?))
    }

    fn pair(&self, a: Device, b: Device) -> String {
        let (a, b) = (self.topology.name_of(a), self.topology.name_of(b));
        format!("{a} and {b}")
    }

    fn unplaced(&self, names: &str, doubts: &[String]) -> Obstacle {
        let doubts = doubts.iter().map(|doubt| Evidence::new("topology", doubt));
        Obstacle::unproven(
            Code::PathUnreadable,
            format!("What lies between {names} could not be found out."),
        )
        .proved_by(doubts)
        .fixed_by(Fix::run(
            "Capture the machine itself, as root.",
            "sudo crowfly capture -o machine.json",
        ))
    }

    /// Peers below one bridge: only ports between them count, and only their redirect bits.
    fn access_control(
        &self,
        names: &str,
        one: &PciDevice,
        other: &PciDevice,
        ports: &[PciAddress],
        ruling: Ruling,
    ) -> Option<Obstacle> {
        let state = |address: &PciAddress| {
            self.topology
                .pci
                .get(address)
                .map_or(AcsState::Unreadable, |function| function.acs)
        };
        let redirecting: Vec<PciAddress> = ports
            .iter()
            .copied()
            .filter(|port| state(port).redirects() == Some(true))
            .collect();
        if !redirecting.is_empty() {
            return Some(self.redirected(names, one, other, &redirecting, ruling));
        }
        let unreadable: Vec<PciAddress> = ports
            .iter()
            .copied()
            .filter(|port| state(port).redirects().is_none())
            .collect();
        if unreadable.is_empty() {
            return None;
        }
        let unknown = format!(
            "Whether access control (ACS) sends the traffic between {names} up to the CPU could not be read \
             on {}",
            list(&unreadable)
        );
        // Where the CPU routes peers anyway, the kernel allows both ways.
        let taken = ruling == Ruling::Kernel && self.cpu_routes(one, other).0 == Truth::Yes;
        let obstacle = if taken {
            Obstacle::slows(
                Code::PathUnreadable,
                format!("{unknown}. The CPU would route it back, slower."),
            )
            .with_confidence(Confidence::Possible)
        } else {
            Obstacle::unproven(Code::PathUnreadable, format!("{unknown}."))
        };
        let evidence = unreadable.iter().map(|port| {
            let seen = self
                .seen
                .0
                .and_then(|snapshot| snapshot.bytes(&config(*port)));
            let decoded = match (self.seen.get(&config(*port)), seen) {
                (_, Some(bytes)) => format!("the first {} bytes of 4096", bytes.len()),
                (Some(refused), None) => refused.shows(),
                (None, None) => "not looked at".into(),
            };
            Evidence::new(config(*port), decoded)
        });
        let fix = Fix::by_hand(
            "Look, or capture the machine, as root: the kernel shows others too little.",
        )
        .checked_by(format!(
            "sudo setpci -s {} ECAP_ACS+6.w",
            unreadable.last()?
        ));
        Some(obstacle.proved_by(evidence).fixed_by(fix))
    }

    fn redirected(
        &self,
        names: &str,
        one: &PciDevice,
        other: &PciDevice,
        ports: &[PciAddress],
        ruling: Ruling,
    ) -> Obstacle {
        let refused = ruling == Ruling::Kernel && self.cpu_routes(one, other).0 != Truth::Yes;
        let start = format!(
            "Access control (ACS) on {} redirects the traffic between {names} up to the CPU",
            list(ports)
        );
        let mut obstacle = if refused {
            Obstacle::blocks(
                Code::AcsRedirect,
                format!("{start}, and the kernel does not know this CPU to route it back."),
            )
        } else if ruling == Ruling::Kernel {
            Obstacle::slows(
                Code::AcsRedirect,
                format!("{start}, which routes it back: slower than through the switch alone."),
            )
        } else {
            Obstacle::slows(
                Code::AcsRedirect,
                format!("{start}: at half the rate or less, or transfers hang."),
            )
            .with_confidence(Confidence::Likely)
        };
        for port in ports {
            let Some(AcsState::Control { offset, control }) =
                self.topology.pci.get(port).map(|function| function.acs)
            else {
                continue;
            };
            let clear = control & !AcsState::REDIRECT;
            obstacle = obstacle
                .seen(
                    config(*port),
                    format!("ACS control {control:#06x} at {offset:#x}+6"),
                )
                .fixed_by(
                    Fix::run(
                        format!("Clear the redirect bits of {port} and keep the rest, until the next boot."),
                        format!("sudo setpci -s {port} ECAP_ACS+6.w={clear:04x}"),
                    )
                    .checked_by(format!("sudo setpci -s {port} ECAP_ACS+6.w")),
                );
        }
        if refused {
            // p2pdma.c keeps its answer for a pair (map_types) as long as the memory is registered.
            obstacle = obstacle.fixed_by(Fix::by_hand(
                "If a transfer was refused before the change, the kernel keeps refusing this pair: unbind and bind \
                 the driver whose memory it is (or restart), and the kernel decides anew.",
            ));
        }
        let ports: Vec<String> = ports.iter().map(PciAddress::to_string).collect();
        obstacle.fixed_by(Fix::by_hand(format!(
            "To keep it: pci=disable_acs_redir={} on the kernel's command line, or ACS off in the firmware. \
             Not where devices are passed to virtual machines, which ACS keeps apart: use ATS there.",
            ports.join(";")
        )))
    }

    /// Peers without a common bridge: the traffic passes the CPU.
    fn through_cpu(
        &self,
        names: &str,
        one: &PciDevice,
        other: &PciDevice,
        relation: Relation,
        ruling: Ruling,
    ) -> Obstacle {
        let (routes, evidence) = self.cpu_routes(one, other);
        let moved = Fix::by_hand(
            "Use a device behind the same PCIe switch, or move one of the two to a slot behind it.",
        );
        if ruling == Ruling::Kernel && routes != Truth::Yes {
            let summary = format!(
                "{names} share no PCIe switch, and the kernel allows DMA between root ports only on CPUs \
                 known to route it"
            );
            let obstacle = match routes {
                Truth::No => Obstacle::blocks(
                    Code::NoCommonSwitch,
                    format!("{summary}, of which this is none."),
                ),
                _ => Obstacle::unproven(
                    Code::NoCommonSwitch,
                    format!("{summary}; which CPU this is was not looked at."),
                ),
            };
            return obstacle.proved_by(evidence).fixed_by(moved);
        }
        let numa = [one, other].map(|function| {
            let node = self.topology.numa_of(function.address);
            let decoded = node.map_or("-1".into(), |node| node.0.to_string());
            self.seen
                .quote_or(sysfs(function.address, "numa_node"), decoded)
        });
        let obstacle = if relation == Relation::Sys {
            Obstacle::slows(
                Code::AcrossSockets,
                format!(
                    "{names} hang off different NUMA nodes: the traffic crosses the link between sockets, \
                     which carries less for peers than for memory."
                ),
            )
        } else {
            Obstacle::slows(
                Code::ThroughHostBridge,
                format!(
                    "{names} share no PCIe switch: the traffic passes the CPU's host bridge, which carries \
                     less for peers than for memory."
                ),
            )
        };
        obstacle
            .proved_by(numa)
            .proved_by(evidence)
            .with_confidence(Confidence::Likely)
            .fixed_by(moved)
    }

    /// Whether the kernel knows the CPU to route between the root ports of two functions.
    fn cpu_routes(&self, one: &PciDevice, other: &PciDevice) -> (Truth, Vec<Evidence>) {
        let host = &self.topology.host;
        let mut evidence = Vec::new();
        if let Some(vendor) = &host.cpu_vendor {
            let family = host
                .cpu_family
                .map_or(String::new(), |family| format!(" family {family:#x}"));
            evidence.push(Evidence::new("/proc/cpuinfo", format!("{vendor}{family}")));
        }
        let zen = host.cpu_vendor.as_deref() == Some(AMD_VENDOR)
            && host
                .cpu_family
                .is_some_and(|family| family >= AMD_ZEN_FAMILY);
        if zen {
            return (Truth::Yes, evidence);
        }
        let (a, b) = (one.root, other.root);
        let same = a.is_some() && a == b;
        let bridges = [a, b].map(|root| root.and_then(|root| self.host_bridge(root)));
        for bridge in bridges.into_iter().flatten() {
            let seen = Evidence::new(
                sysfs(bridge.address, "device"),
                format!("host bridge {:04x}:{:04x}", bridge.vendor, bridge.device),
            );
            if !evidence.contains(&seen) {
                evidence.push(seen);
            }
        }
        let listed = |bridge: &PciDevice| match bridge.vendor {
            GOOGLE => true,
            INTEL => {
                INTEL_ANY_BRIDGE.contains(&bridge.device)
                    || same && INTEL_SAME_BRIDGE.contains(&bridge.device)
            }
            _ => false,
        };
        let truth = match bridges {
            [Some(a), Some(b)] => Truth::of(Some(listed(a) && listed(b))),
            // A host bridge without a function of its own is on no list.
            _ if host.cpu_vendor.is_some() && a.is_some() && b.is_some() => Truth::No,
            _ => Truth::Open,
        };
        (truth, evidence)
    }

    /// The function that stands for a host bridge: the first of its bus, if that is device 0 or a
    /// root port.
    fn host_bridge(&self, root: RootComplex) -> Option<&PciDevice> {
        let on_bus = |function: &&PciDevice| {
            function.parent.is_none()
                && (function.address.domain, function.address.bus) == (root.domain, root.bus)
        };
        let first = self.topology.pci.values().find(on_bus)?;
        let zero = (first.address.device, first.address.function) == (0, 0);
        (zero || first.port == Some(PortKind::Root)).then_some(first)
    }

    /// An IOMMU in the way. Traffic that stays below one bridge never meets it.
    fn translated(&self, a: Device, b: Device, ruling: Ruling) -> Option<Obstacle> {
        let (one, other) = self.functions(a, b)?;
        let stays_below = self.stays_below(a, b);
        if ruling == Ruling::Kernel && stays_below {
            return None;
        }
        let translating: Vec<(&PciDevice, u32, &str)> = [one, other]
            .into_iter()
            .filter_map(|function| {
                let kind = function.iommu_type.as_deref()?;
                kind.starts_with("DMA")
                    .then_some((function, function.iommu_group?, kind))
            })
            .collect();
        let (_, group, _) = *translating.first()?;
        let names = self.pair(a, b);
        let obstacle = match ruling {
            Ruling::Driver => Obstacle::blocks(
                Code::IommuTranslates,
                format!(
                    "An IOMMU translates the addresses that {names} use; NVIDIA's drivers hand out physical \
                     ones, which need it off or passing through."
                ),
            ),
            Ruling::Kernel => Obstacle::slows(
                Code::IommuTranslates,
                format!(
                    "An IOMMU translates every transfer between {names} on its way through the CPU."
                ),
            ),
        };
        let evidence = translating.iter().map(|(_, group, kind)| {
            self.seen
                .quote_or(format!("/sys/kernel/iommu_groups/{group}/type"), *kind)
        });
        Some(
            obstacle
                .proved_by(evidence)
                .with_confidence(Confidence::Likely)
                .fixed_by(
                    Fix::by_hand(
                        "Add iommu=pt to the kernel's command line and start the machine again.",
                    )
                    .checked_by(format!("cat /sys/kernel/iommu_groups/{group}/type")),
                ),
        )
    }

    /// Whether traffic between two devices is known to turn round below the CPU.
    fn stays_below(&self, a: Device, b: Device) -> bool {
        let distance = self.topology.pcie_distance(a, b);
        matches!(
            distance.relation,
            Relation::Same | Relation::Pix | Relation::Pxb
        ) && !distance.path.bridges.iter().any(|port| {
            self.topology
                .pci
                .get(port)
                .is_some_and(|function| function.acs.redirects() == Some(true))
        })
    }

    /// In a virtual machine the ports that are seen are the hypervisor's; what lies between two
    /// devices that were passed through is known outside only.
    fn behind_hypervisor(&self, a: Device, b: Device, ruling: Ruling) -> Option<Obstacle> {
        let hypervisor = self.topology.host.hypervisor.as_ref()?;
        let (one, other) = self.functions(a, b)?;
        let real = [one, other]
            .into_iter()
            .any(|function| !EMULATED.contains(&function.vendor));
        real.then(|| {
            let slower = match ruling {
                Ruling::Kernel => "this kernel decides by what it sees, but how fast the path is",
                Ruling::Driver => "whether the host lets them reach each other, and how fast,",
            };
            Obstacle::unproven(
                Code::BehindHypervisor,
                format!(
                    "This is a virtual machine ({hypervisor}): the PCIe ports between {} are not the real \
                     ones; {slower} is known on the host only.",
                    self.pair(a, b)
                ),
            )
            .proved_by([self
                .seen
                .quote_or("/sys/class/dmi/id/sys_vendor", hypervisor)])
            .fixed_by(Fix::by_hand(
                "Ask whoever runs the host: devices passed through need ATS on the adapter and ACS direct translated on the ports, or a shape whose guests are meant to have it.",
            ))
        })
    }
}

pub(super) fn sysfs(address: PciAddress, file: &str) -> String {
    format!("/sys/bus/pci/devices/{address}/{file}")
}

fn config(address: PciAddress) -> String {
    sysfs(address, "config")
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list<T: ToString>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(T::to_string).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}
