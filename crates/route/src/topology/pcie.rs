//! PCI functions and the links between them.

use std::fmt;

use pci_ids::FromId;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, BytesPerSecond, NumaNode, PciAddress};

/// A host bridge: where a PCI hierarchy meets the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootComplex {
    /// PCI domain.
    pub domain: u32,
    /// First bus.
    pub bus: u8,
}

impl fmt::Display for RootComplex {
    /// As sysfs names its directory: `pci0000:3a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pci{:04x}:{:02x}", self.domain, self.bus)
    }
}

/// One PCI function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciDevice {
    /// Its address.
    pub address: PciAddress,
    /// The bridge above it; `None` directly below the host bridge.
    pub parent: Option<PciAddress>,
    /// The host bridge above all; `None` where the source does not say.
    pub root: Option<RootComplex>,
    /// Class code, `0x030200`.
    pub class: u32,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Names of vendor and device from the PCI id list, as far as listed.
    pub name: String,
    /// The bound driver.
    pub driver: Option<String>,
    /// NUMA node; `None` when the firmware does not say (`-1`).
    pub numa: Option<NumaNode>,
    /// What a bridge is in the PCIe hierarchy; `None` for functions that are no bridge.
    pub port: Option<PortKind>,
    /// The link above this function; `None` for functions integrated in the root complex, for
    /// root ports, and for the ports of a switch that its internal bus connects.
    pub link: Option<PcieLink>,
    /// Power state as the kernel prints it: `D0`, `D3hot`, `D3cold`.
    pub power_state: Option<String>,
    /// Access Control Services of this port.
    pub acs: AcsState,
    /// Memory BARs: index and size.
    pub bars: Vec<(u8, Bytes)>,
    /// IOMMU group number.
    pub iommu_group: Option<u32>,
    /// The group's domain type: `DMA`, `DMA-FQ`, `identity`; `None` when no IOMMU is on or unreadable.
    pub iommu_type: Option<String>,
    /// MaxReadReq in bytes, from configuration space.
    pub max_read_request: Option<u32>,
    /// MaxPayload in bytes, from configuration space.
    pub max_payload: Option<u32>,
    /// Relaxed ordering enabled, from configuration space.
    pub relaxed_ordering: Option<bool>,
    /// Memory published for peer-to-peer DMA.
    pub peer_memory: Option<PeerMemory>,
    /// The physical function, when this is a virtual one.
    pub physical_function: Option<PciAddress>,
    /// Correctable, non-fatal and fatal AER totals, where the kernel counts them.
    pub aer: Option<AerTotals>,
}

/// Class code of a function that told none.
const UNCLASSIFIED: u32 = 0;
/// What a read answers when no device does.
pub(super) const NO_ID: u16 = 0xffff;
/// Class code of a PCI-to-PCI bridge.
pub(super) const BRIDGE: u32 = 0x06_0400;

pub(super) const fn is_bridge(class: u32) -> bool {
    class >> 8 == BRIDGE >> 8
}

/// Names of a vendor and its device from the PCI id list, as far as listed.
pub(super) fn name(vendor: u16, device: u16) -> String {
    match (
        pci_ids::Vendor::from_id(vendor),
        pci_ids::Device::from_vid_pid(vendor, device),
    ) {
        (Some(vendor), Some(device)) => format!("{} {}", vendor.name(), device.name()),
        (Some(vendor), None) => format!("{} device {device:04x}", vendor.name()),
        (None, _) => format!("device {vendor:04x}:{device:04x}"),
    }
}

impl PciDevice {
    /// A function of which only the address is known.
    pub fn unseen(address: PciAddress, root: Option<RootComplex>) -> Self {
        Self {
            address,
            parent: None,
            root,
            class: UNCLASSIFIED,
            vendor: NO_ID,
            device: NO_ID,
            name: "not looked at".into(),
            driver: None,
            numa: None,
            port: None,
            link: None,
            power_state: None,
            acs: AcsState::Unreadable,
            bars: Vec::new(),
            iommu_group: None,
            iommu_type: None,
            max_read_request: None,
            max_payload: None,
            relaxed_ordering: None,
            peer_memory: None,
            physical_function: None,
            aer: None,
        }
    }

    /// Whether this is a PCI-to-PCI bridge (root port, switch port).
    pub const fn is_bridge(&self) -> bool {
        is_bridge(self.class)
    }

    /// Base class and subclass, `0x0302`.
    pub const fn subclass(&self) -> u32 {
        self.class >> 8
    }
}

/// What a PCI-to-PCI bridge is in the PCIe hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A port of the root complex; its link is the one below it.
    Root,
    /// The port of a switch that faces the CPU; its link is the one above it.
    Upstream,
    /// A port of a switch that faces the devices; its link is the one below it.
    Downstream,
    /// A whole switch as one node, as NCCL's topology files fold it.
    Switch,
    /// A bridge to conventional PCI.
    Conventional,
}

/// Memory that a function publishes for peer-to-peer DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMemory {
    /// All of it.
    pub size: Bytes,
    /// Not handed out yet.
    pub available: Bytes,
    /// Whether other drivers may use it.
    pub published: bool,
}

/// Totals of the Advanced Error Reporting counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AerTotals {
    /// Corrected by the link.
    pub correctable: u64,
    /// Uncorrected, link still reliable.
    pub nonfatal: u64,
    /// Uncorrected, link unreliable.
    pub fatal: u64,
}

/// What Access Control Services do at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "acs")]
pub enum AcsState {
    /// Configuration space beyond 64 bytes could not be read (needs root), or was not captured.
    #[default]
    Unreadable,
    /// The port has no such capability.
    NoCapability,
    /// The capability's control register.
    Control {
        /// Offset of the capability in configuration space.
        offset: u16,
        /// The register.
        control: u16,
    },
}

impl AcsState {
    /// Request redirect, completion redirect and egress control: the bits that send peer traffic
    /// up to the root complex. Source validation alone is harmless (Linux `drivers/pci/p2pdma.c`).
    pub const REDIRECT: u16 = 0x04 | 0x08 | 0x20;

    /// Whether peer traffic is redirected; `None` when it could not be read.
    pub const fn redirects(self) -> Option<bool> {
        match self {
            Self::Unreadable => None,
            Self::NoCapability => Some(false),
            Self::Control { control, .. } => Some(control & Self::REDIRECT != 0),
        }
    }
}

/// A PCIe generation, 1 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PcieGeneration(pub u8);

impl PcieGeneration {
    /// From a transfer rate in GT/s as sysfs prints it: `2.5 GT/s PCIe`, `32.0 GT/s PCIe`.
    pub fn from_gigatransfers(text: &str) -> Option<Self> {
        let number = text.split_whitespace().next()?;
        let rates = ["2.5", "5", "8", "16", "32", "64", "128"];
        let number = number.strip_suffix(".0").unwrap_or(number);
        let position = rates.iter().position(|r| *r == number)?;
        Some(Self(position as u8 + 1))
    }

    /// Transfers per second on one lane, in 10⁹.
    pub const fn gigatransfers(self) -> f64 {
        match self.0 {
            0 => 0.0,
            1 => 2.5,
            2 => 5.0,
            n => 8.0 * (1u64 << (n - 3)) as f64,
        }
    }

    /// Bytes per second and lane after line encoding: 8b/10b up to Gen2, 128b/130b up to Gen5,
    /// 242B/256B FLITs from Gen6 (PCI Express Base Specification).
    pub fn per_lane(self) -> BytesPerSecond {
        let efficiency = match self.0 {
            0..=2 => 0.8,
            3..=5 => 128.0 / 130.0,
            _ => 242.0 / 256.0,
        };
        BytesPerSecond(self.gigatransfers() * 1e9 / 8.0 * efficiency)
    }
}

/// Speed and width of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PcieSpeed {
    /// Generation.
    pub generation: PcieGeneration,
    /// Lanes.
    pub width: u8,
}

impl PcieSpeed {
    /// The widths that links come in.
    pub const WIDTHS: [u8; 7] = [1, 2, 4, 8, 12, 16, 32];

    /// The best a link can do between an end of this speed and one of the other.
    pub fn meet(self, other: Self) -> Self {
        Self {
            generation: self.generation.min(other.generation),
            width: self.width.min(other.width),
        }
    }

    /// Bytes per second in one direction after line encoding, before packet headers.
    pub fn rate(self) -> BytesPerSecond {
        BytesPerSecond(self.generation.per_lane().0 * f64::from(self.width))
    }
}

impl fmt::Display for PcieSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("Gen{} x{}", self.generation.0, self.width))
    }
}

/// The link above a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PcieLink {
    /// What it runs at; `None` when not trained or not shown (virtual functions).
    pub current: Option<PcieSpeed>,
    /// The best both ends can do, as far as known.
    pub maximum: Option<PcieSpeed>,
    /// What it runs at where the source tells the rate alone, which several speeds and widths
    /// share (hwloc's files).
    pub rate: Option<BytesPerSecond>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_rates_follow_the_encoding_of_their_generation() {
        let rate = |generation, width| {
            let speed = PcieSpeed {
                generation: PcieGeneration(generation),
                width,
            };
            (speed.rate().as_gb() * 1000.0).round() / 1000.0
        };
        assert_eq!(rate(1, 1), 0.25);
        assert_eq!(rate(2, 4), 2.0);
        assert_eq!(rate(3, 16), 15.754);
        assert_eq!(rate(4, 4), 7.877);
        assert_eq!(rate(5, 16), 63.015);
        assert_eq!(rate(6, 16), 121.0);
    }

    #[test]
    fn generations_read_as_sysfs_prints_them() {
        let read = |t| PcieGeneration::from_gigatransfers(t).map(|g| g.0);
        assert_eq!(read("2.5 GT/s PCIe"), Some(1));
        assert_eq!(read("8.0 GT/s PCIe"), Some(3));
        assert_eq!(read("8 GT/s"), Some(3));
        assert_eq!(read("64.0 GT/s PCIe"), Some(6));
        assert_eq!(read("Unknown"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn source_validation_alone_redirects_nothing() {
        let control = |control| {
            AcsState::Control {
                offset: 0x100,
                control,
            }
            .redirects()
        };
        assert_eq!(control(0x01), Some(false));
        assert_eq!(control(0x1d), Some(true));
        assert_eq!(control(0x20), Some(true));
        assert_eq!(AcsState::NoCapability.redirects(), Some(false));
        assert_eq!(AcsState::Unreadable.redirects(), None);
    }
}
