//! How far two devices are from each other, and which links lie in between.
//!
//! The words are those of `nvidia-smi topo -m`, which the field knows.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::hierarchy::MAX_BRIDGES;
use super::pcie::{PciDevice, PortKind};
use super::{Device, GpuLinkKind, Topology};
use crate::hop::{Crossing, LinkKind};
use crate::units::{NumaNode, PciAddress};

/// What lies between two devices, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// Nothing: they are the same.
    Same,
    /// This many NVLinks, directly or through NVSwitches.
    NvLink(u32),
    /// This many xGMI links.
    Xgmi(u32),
    /// At most one PCIe switch or bridge.
    Pix,
    /// Several PCIe switches, without the host bridge.
    Pxb,
    /// The host bridge that both are below.
    Phb,
    /// The interconnect between host bridges within one NUMA node.
    Node,
    /// The interconnect between NUMA nodes, such as UPI or xGMI between sockets.
    Sys,
    /// Nobody can say.
    Unknown,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(count) => f.pad(&format!("NV{count}")),
            Self::Xgmi(count) => f.pad(&format!("XG{count}")),
            Self::Same => f.pad("X"),
            Self::Pix => f.pad("PIX"),
            Self::Pxb => f.pad("PXB"),
            Self::Phb => f.pad("PHB"),
            Self::Node => f.pad("NODE"),
            Self::Sys => f.pad("SYS"),
            Self::Unknown => f.pad("?"),
        }
    }
}

impl Serialize for Relation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What data passes on its way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// PCI bridges in the order they are passed.
    pub bridges: Vec<PciAddress>,
    /// Links in the order they are crossed.
    pub crossings: Vec<Crossing>,
    /// What about the path is not known, for a person.
    pub doubts: Vec<String>,
}

/// How far two devices are from each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distance {
    /// What lies between them.
    pub relation: Relation,
    /// The way from the first to the second.
    pub path: Path,
}

impl Topology {
    /// How far two devices are from each other, by the nearest way: between GPUs NVLink or xGMI
    /// where there is one, else PCIe.
    pub fn distance(&self, a: Device, b: Device) -> Distance {
        match (a, b) {
            (Device::Gpu(from), Device::Gpu(to)) if a != b => self
                .gpu_link_distance(from, to)
                .unwrap_or_else(|| self.pcie_distance(a, b)),
            _ => self.pcie_distance(a, b),
        }
    }

    fn gpu_link_distance(&self, from: usize, to: usize) -> Option<Distance> {
        let ends = |a: u32, b: u32| (a as usize, b as usize);
        let link = self.gpu_links.iter().find(|link| {
            ends(link.a, link.b) == (from, to) || ends(link.b, link.a) == (from, to)
        })?;
        let (relation, kind) = match link.kind {
            GpuLinkKind::NvLink => (Relation::NvLink(link.count), LinkKind::NvLink),
            GpuLinkKind::Xgmi => (Relation::Xgmi(link.count), LinkKind::Xgmi),
        };
        let crossing = Crossing {
            link: format!("gpu{from}–gpu{to} {relation}"),
            kind,
            rate: link.rate,
            degraded: false,
        };
        let path = Path {
            crossings: vec![crossing],
            ..Path::default()
        };
        Some(Distance { relation, path })
    }

    /// How far two devices are from each other by PCIe and the CPUs alone.
    pub fn pcie_distance(&self, a: Device, b: Device) -> Distance {
        let ends = (self.placed(a), self.placed(b));
        match ends {
            _ if a == b => Distance {
                relation: Relation::Same,
                path: Path::default(),
            },
            (Ok(a), Ok(b)) => self.between(a, b),
            (a, b) => Distance {
                relation: Relation::Unknown,
                path: Path {
                    doubts: [a.err(), b.err()].into_iter().flatten().collect(),
                    ..Path::default()
                },
            },
        }
    }

    /// A device's function, or why it has no place in the tree.
    fn placed(&self, device: Device) -> Result<&PciDevice, String> {
        let name = || self.name_of(device);
        let address = self
            .address_of(device)
            .ok_or_else(|| format!("{} is no PCI device", name()))?;
        self.pci
            .get(&address)
            .ok_or_else(|| format!("nothing is known about {address} ({})", name()))
    }

    fn between(&self, a: &PciDevice, b: &PciDevice) -> Distance {
        if a.address == b.address {
            // Two ports of one function, or two drives of one controller: no bridge in between.
            return Distance {
                relation: Relation::Pix,
                path: Path::default(),
            };
        }
        let up = self.to_root(a);
        let down = self.to_root(b);
        let common = up.iter().find(|bridge| {
            bridge.port.is_some() && down.iter().any(|other| other.address == bridge.address)
        });
        let until = |chain: &[&PciDevice]| match common {
            Some(common) => chain.iter().position(|f| f.address == common.address),
            None => None,
        };
        let below = |chain: &[&PciDevice]| until(chain).unwrap_or(chain.len());
        let (a_side, b_side) = (below(&up), below(&down));
        let a_side = up.get(..a_side).unwrap_or_default();
        let b_side = down.get(..b_side).unwrap_or_default();

        let passed = a_side
            .iter()
            .chain(common)
            .chain(b_side.iter().rev())
            .filter(|f| f.is_bridge());
        let bridges: Vec<PciAddress> = passed.clone().map(|f| f.address).collect();
        let crossing = |f: &&PciDevice| self.crossing_above(f.address);
        let mut crossings: Vec<Crossing> = a_side.iter().filter_map(crossing).collect();
        let mut doubts = Vec::new();
        let relation = match common {
            Some(_) => {
                let switches: BTreeSet<PciAddress> = passed.map(|f| switch_of(f)).collect();
                match switches.len() {
                    0 | 1 => Relation::Pix,
                    _ => Relation::Pxb,
                }
            }
            None => {
                let (relation, middle) = self.across(a, b, &mut doubts);
                crossings.extend(middle);
                relation
            }
        };
        crossings.extend(b_side.iter().rev().filter_map(crossing));
        Distance {
            relation,
            path: Path {
                bridges,
                crossings,
                doubts,
            },
        }
    }

    /// What lies between two devices that no bridge connects.
    fn across(
        &self,
        a: &PciDevice,
        b: &PciDevice,
        doubts: &mut Vec<String>,
    ) -> (Relation, Option<Crossing>) {
        let host_bridge = |link: String| {
            Some(Crossing {
                link,
                kind: LinkKind::HostBridge,
                rate: None,
                degraded: false,
            })
        };
        let nodes = (self.numa_of(a.address), self.numa_of(b.address));
        match (nodes, a.root.zip(b.root)) {
            ((Some(from), Some(to)), _) if from != to => {
                (Relation::Sys, Some(self.between_nodes(from, to, doubts)))
            }
            (_, Some((one, other))) if one == other => {
                (Relation::Phb, host_bridge(one.to_string()))
            }
            ((Some(_), Some(_)), Some((one, other))) => {
                (Relation::Node, host_bridge(format!("{one}–{other}")))
            }
            ((Some(node), Some(_)), None) => {
                doubts.push("whether they share a host bridge is not known: NODE, or PHB".into());
                (Relation::Node, host_bridge(format!("within {node}")))
            }
            ((from, to), _) => {
                for (function, _) in [(a, from), (b, to)].iter().filter(|(_, n)| n.is_none()) {
                    doubts.push(format!(
                        "the NUMA node of {} is not known: whether the way leaves the socket is open",
                        function.address
                    ));
                }
                (Relation::Unknown, None)
            }
        }
    }

    fn between_nodes(&self, from: NumaNode, to: NumaNode, doubts: &mut Vec<String>) -> Crossing {
        let kind = match (self.socket_of(from), self.socket_of(to)) {
            (Some(a), Some(b)) if a == b => LinkKind::HostBridge,
            (Some(_), Some(_)) => LinkKind::Socket,
            _ => {
                let (one, other) = (from.min(to), from.max(to));
                doubts.push(format!(
                    "whether {one} and {other} are of one socket is not known; taken as two"
                ));
                LinkKind::Socket
            }
        };
        Crossing {
            link: format!("{from}–{to}"),
            kind,
            rate: None,
            degraded: false,
        }
    }

    /// The way from a device to host memory on a NUMA node, or on the nearest one.
    pub fn path_to_host(&self, device: Device, memory: Option<NumaNode>) -> Path {
        let function = match self.placed(device) {
            Ok(function) => function,
            Err(doubt) => {
                return Path {
                    doubts: vec![doubt],
                    ..Path::default()
                };
            }
        };
        let chain = self.to_root(function);
        let mut path = Path {
            bridges: chain
                .iter()
                .filter(|f| f.is_bridge())
                .map(|f| f.address)
                .collect(),
            crossings: chain
                .iter()
                .filter_map(|f| self.crossing_above(f.address))
                .collect(),
            doubts: Vec::new(),
        };
        match (self.numa_of(function.address), memory) {
            (Some(own), Some(memory)) if own != memory => {
                let crossing = self.between_nodes(own, memory, &mut path.doubts);
                path.crossings.push(crossing);
            }
            (None, Some(memory)) => path.doubts.push(format!(
                "the NUMA node of {} is not known: whether {memory} is near it is open",
                function.address
            )),
            _ => {}
        }
        path
    }

    /// A function and what is above it, from the bottom up.
    fn to_root<'a>(&'a self, function: &'a PciDevice) -> Vec<&'a PciDevice> {
        std::iter::once(function)
            .chain(self.above(function.address))
            .take(MAX_BRIDGES)
            .collect()
    }
}

/// What a bridge belongs to: a downstream port to the switch of its upstream port.
fn switch_of(bridge: &PciDevice) -> PciAddress {
    match (bridge.port, bridge.parent) {
        (Some(PortKind::Downstream), Some(upstream)) => upstream,
        _ => bridge.address,
    }
}
