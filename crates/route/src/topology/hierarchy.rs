//! The PCI hierarchy as a whole: which function lies below which bridge, what each bridge is, and
//! the links between them.

use std::collections::BTreeMap;

use super::pcie::{self, PciDevice, PcieLink, PcieSpeed, PortKind};
use super::{Oddity, Topology};
use crate::units::{BytesPerSecond, PciAddress};

/// The most bridges above a function. A domain has 256 buses, so a longer chain is none.
pub(super) const MAX_BRIDGES: usize = 256;

/// The most functions of one machine; a server with all its virtual functions has a few thousand.
pub(super) const MAX_FUNCTIONS: usize = 16_384;

/// The link that a function's port is an end of, as that end sees it.
#[derive(Clone, Copy, Default)]
pub(super) struct PortSpeeds {
    pub current: Option<PcieSpeed>,
    pub maximum: Option<PcieSpeed>,
    pub rate: Option<BytesPerSecond>,
    /// Whether the function can be PCI Express at all.
    pub express: bool,
}

/// Functions in any order, on their way to a hierarchy.
#[derive(Default)]
pub(super) struct Builder {
    functions: BTreeMap<PciAddress, PciDevice>,
    above: BTreeMap<PciAddress, Vec<PciAddress>>,
    speeds: BTreeMap<PciAddress, PortSpeeds>,
    left_out: usize,
}

impl Builder {
    /// Adds a function and the functions above it, from the top down.
    pub(super) fn add(&mut self, function: PciDevice, above: Vec<PciAddress>, speeds: PortSpeeds) {
        let address = function.address;
        if self.functions.len() >= MAX_FUNCTIONS {
            self.left_out += 1;
            return;
        }
        self.functions.insert(address, function);
        self.above.insert(address, above);
        self.speeds.insert(address, speeds);
    }

    pub(super) fn settle(mut self, oddities: &mut Vec<Oddity>) -> BTreeMap<PciAddress, PciDevice> {
        self.attach(oddities);
        self.break_circles(oddities);
        self.tell_ports();
        self.tell_links();
        if self.left_out > 0 {
            oddities.push(Oddity::new(
                "PCI",
                format!(
                    "{} functions more than {MAX_FUNCTIONS} were left out",
                    self.left_out
                ),
            ));
        }
        self.functions
    }

    /// Sets every parent, standing in for bridges that were passed but not looked at.
    fn attach(&mut self, oddities: &mut Vec<Oddity>) {
        for (address, above) in &self.above {
            let Some(root) = self.functions.get(address).map(|f| f.root) else {
                continue;
            };
            let mut parent = None;
            for bridge in above {
                self.functions.entry(*bridge).or_insert_with(|| {
                    oddities.push(Oddity::new(
                        bridge.to_string(),
                        format!("{address} lies below it, but it was not looked at"),
                    ));
                    PciDevice {
                        parent,
                        class: pcie::BRIDGE,
                        ..PciDevice::unseen(*bridge, root)
                    }
                });
                parent = Some(*bridge);
            }
            if let Some(function) = self.functions.get_mut(address) {
                function.parent = parent;
            }
        }
    }

    /// Chains come from many links, which need not agree.
    fn break_circles(&mut self, oddities: &mut Vec<Oddity>) {
        let addresses: Vec<_> = self.functions.keys().copied().collect();
        for address in addresses {
            if depth(&self.functions, address).is_none()
                && let Some(function) = self.functions.get_mut(&address)
            {
                function.parent = None;
                oddities.push(Oddity::new(
                    address.to_string(),
                    "the bridges above it run in a circle; taken as directly below a host bridge",
                ));
            }
        }
    }

    /// Where configuration space did not say, a bridge is what its place makes it: below a host
    /// bridge a root port, below a port with a link the upstream port of a switch, below an
    /// upstream port a downstream one.
    fn tell_ports(&mut self) {
        let mut by_depth: Vec<_> = self
            .functions
            .values()
            .filter(|f| f.is_bridge() && f.port.is_none())
            .map(|f| (depth(&self.functions, f.address), f.address, f.parent))
            .collect();
        by_depth.sort_unstable();
        for (_, address, parent) in by_depth {
            let express = self.speeds.get(&address).is_none_or(|s| s.express);
            let above = parent.and_then(|p| self.functions.get(&p)?.port);
            let port = match above {
                _ if !express => PortKind::Conventional,
                None => PortKind::Root,
                Some(PortKind::Root | PortKind::Downstream) => PortKind::Upstream,
                Some(PortKind::Upstream | PortKind::Switch) => PortKind::Downstream,
                Some(PortKind::Conventional) => PortKind::Conventional,
            };
            if let Some(function) = self.functions.get_mut(&address) {
                function.port = Some(port);
            }
        }
    }

    /// Gives every function that has one the link above it, capped by what the port above can do.
    fn tell_links(&mut self) {
        let links: Vec<_> = self.functions.values().map(|f| self.link(f)).collect();
        for (function, link) in self.functions.values_mut().zip(links) {
            function.link = link;
        }
    }

    fn link(&self, function: &PciDevice) -> Option<PcieLink> {
        let own = self
            .speeds
            .get(&function.address)
            .copied()
            .unwrap_or_default();
        let above = function.parent.and_then(|p| self.functions.get(&p));
        let partner = match (function.port, above.map(|port| port.port)) {
            (Some(PortKind::Root | PortKind::Downstream), _) => return None,
            (_, Some(Some(PortKind::Root | PortKind::Downstream | PortKind::Switch))) => above,
            // A function passed through to a virtual machine shows its link but no port above.
            (None, None) if own.maximum.is_some() => None,
            (Some(PortKind::Switch), None) => None,
            _ => return None,
        };
        let ends_there = partner.is_some_and(|p| p.port != Some(PortKind::Switch));
        let far_end = partner
            .filter(|_| ends_there)
            .and_then(|port| self.speeds.get(&port.address)?.maximum);
        Some(PcieLink {
            current: own.current,
            rate: own.rate,
            maximum: match (own.maximum, far_end) {
                (Some(own), Some(far)) => Some(own.meet(far)),
                (own, _) => own,
            },
        })
    }
}

/// How many functions lie above; `None` when they run in a circle.
fn depth(functions: &BTreeMap<PciAddress, PciDevice>, address: PciAddress) -> Option<usize> {
    let mut at = functions.get(&address)?.parent;
    for depth in 0..=MAX_BRIDGES {
        match at {
            None => return Some(depth),
            Some(parent) => at = functions.get(&parent).and_then(|f| f.parent),
        }
    }
    None
}

impl Topology {
    /// The functions above a function, from the bottom up.
    pub fn above(&self, address: PciAddress) -> impl Iterator<Item = &PciDevice> {
        let parent = |function: &&PciDevice| function.parent.and_then(|p| self.pci.get(&p));
        std::iter::successors(self.pci.get(&address), parent)
            .skip(1)
            .take(MAX_BRIDGES)
    }
}
