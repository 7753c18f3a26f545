//! PCI functions, from `/sys/bus/pci/devices/*`.
//!
//! | key below the function | used for |
//! |---|---|
//! | (the link itself) | the chain of bridges: `../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0` |
//! | `class`, `vendor`, `device`, `numa_node`, `power_state` | as they read |
//! | `current_link_speed`, `current_link_width`, `max_link_speed`, `max_link_width` | the link |
//! | `driver`, `iommu_group`, `physfn` (links) | as they are named |
//! | `resource` | sizes of the memory BARs |
//! | `config` | ACS, port type, MaxPayload, MaxReadReq, relaxed ordering |
//! | `p2pmem/size`, `p2pmem/available`, `p2pmem/published` | peer memory |
//! | `aer_dev_correctable`, `aer_dev_nonfatal`, `aer_dev_fatal` | error totals |
//! | `iommu_group/type`, or `/sys/kernel/iommu_groups/N/type` | the IOMMU's domain type |

use std::collections::BTreeMap;

use super::entries;
use crate::snapshot::{Directory, Observation, Snapshot};
use crate::topology::Oddity;
use crate::topology::config_space::ConfigSpace;
use crate::topology::hierarchy;
use crate::topology::pcie::{
    self, AerTotals, PciDevice, PcieGeneration, PcieSpeed, PeerMemory, RootComplex,
};
use crate::units::{Bytes, NumaNode, PciAddress};

const DEVICES: &str = "/sys/bus/pci/devices";
/// BARs 0 to 5 come first in `resource`; the ROM and a bridge's windows follow.
const BARS: usize = 6;
/// `IORESOURCE_MEM` of `include/linux/ioport.h`.
const RESOURCE_IS_MEMORY: u64 = 0x200;

pub(super) fn decode(
    snapshot: &Snapshot,
    oddities: &mut Vec<Oddity>,
) -> BTreeMap<PciAddress, PciDevice> {
    let mut hierarchy = hierarchy::Builder::default();
    let names = entries(snapshot, DEVICES);
    if names.is_empty() {
        // No function, no right to look and nobody who looked are three things.
        let why = match snapshot.get(DEVICES) {
            Some(Observation::Value(_)) => None,
            Some(seen) => Some(seen.shows()),
            None => Some("not looked at".into()),
        };
        oddities.extend(why.map(|why| Oddity::new(DEVICES, format!("no PCI functions: {why}"))));
    }
    for name in names {
        let at = format!("{DEVICES}/{name}");
        match name.parse::<PciAddress>() {
            Ok(address) => {
                let (root, above) = attachment(snapshot, &at, address, oddities);
                let files = snapshot.directory(&at);
                let mut function = function(&files, &at, address, root, oddities);
                function.iommu_type = iommu_type(snapshot, &files, function.iommu_group);
                hierarchy.add(function, above, port_speeds(&files));
            }
            Err(_) => oddities.push(Oddity::new(at, "not a PCI address; left out")),
        }
    }
    hierarchy.settle(oddities)
}

/// The host bridge above a function, and the functions above it from the top down.
fn attachment(
    snapshot: &Snapshot,
    at: &str,
    address: PciAddress,
    oddities: &mut Vec<Oddity>,
) -> (Option<RootComplex>, Vec<PciAddress>) {
    if let Some((root, above)) = snapshot.link(at).and_then(|link| chain(link, address)) {
        return (Some(root), above);
    }
    let seen = match snapshot.get(at) {
        Some(observation) => format!("`{}` does not lead to the function", observation.shows()),
        None => "where the function is attached was not looked at".into(),
    };
    oddities.push(Oddity::new(
        at,
        format!("{seen}; taken as directly below some host bridge"),
    ));
    (None, Vec::new())
}

fn function(
    files: &Directory<'_>,
    at: &str,
    address: PciAddress,
    root: Option<RootComplex>,
    oddities: &mut Vec<Oddity>,
) -> PciDevice {
    let number = |file| files.get(file)?.as_number();
    let text = |file| files.get(file)?.as_text();
    let link_name = |file| files.get(file)?.link_name();
    let (vendor, device) = (number("vendor"), number("device"));
    let class = files.get("class").and_then(Observation::as_number);
    let config = files.get("config").and_then(Observation::as_bytes);
    let config = config.unwrap_or_default();
    let removed = config.starts_with(&pcie::NO_ID.to_le_bytes());
    if vendor.is_none() || class.is_none() || removed {
        oddities.push(Oddity::new(
            at,
            "the function does not answer (removed, or not readable); kept for the paths through it",
        ));
    }
    let unseen = PciDevice::unseen(address, root);
    let (vendor, device) = (
        vendor.unwrap_or(unseen.vendor),
        device.unwrap_or(unseen.device),
    );
    let config = ConfigSpace::read(config);
    let class = class.unwrap_or(unseen.class);
    PciDevice {
        class,
        vendor,
        device,
        name: pcie::name(vendor, device),
        driver: link_name("driver").map(str::to_owned),
        numa: files
            .get("numa_node")
            .and_then(Observation::as_number)
            .map(NumaNode),
        port: config.port.filter(|_| pcie::is_bridge(class)),
        power_state: text("power_state").map(str::to_owned),
        acs: config.acs,
        bars: text("resource").map(bars).unwrap_or_default(),
        iommu_group: link_name("iommu_group").and_then(|group| group.parse().ok()),
        max_read_request: config.max_read_request,
        max_payload: config.max_payload,
        relaxed_ordering: config.relaxed_ordering,
        peer_memory: peer_memory(files),
        physical_function: link_name("physfn").and_then(|name| name.parse().ok()),
        aer: aer(files),
        ..unseen
    }
}

/// The host bridge above all, and the functions in between from the top down.
///
/// The link's text runs through every bridge: host bridges read `pciDOMAIN:BUS`, functions read
/// as addresses. Behind Intel's VMD a second host bridge follows the VMD function; the first one
/// is where the data meets the CPU.
fn chain(link: &str, address: PciAddress) -> Option<(RootComplex, Vec<PciAddress>)> {
    let mut root = None;
    let mut above = Vec::new();
    for part in link.split('/') {
        if let Some(bridge) = part.strip_prefix("pci").and_then(host_bridge) {
            root = root.or(Some(bridge));
        } else if root.is_some()
            && let Some(function) = function_name(part)
        {
            above.push(function);
        }
    }
    (above.pop() == Some(address)).then_some(())?;
    Some((root?, above))
}

fn host_bridge(text: &str) -> Option<RootComplex> {
    let (domain, bus) = text.split_once(':')?;
    Some(RootComplex {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
    })
}

/// An address as the kernel writes it, with its domain; `1.2` of a USB path is none.
pub(super) fn function_name(part: &str) -> Option<PciAddress> {
    (part.bytes().filter(|b| *b == b':').count() == 2)
        .then(|| part.parse().ok())
        .flatten()
}

/// What the four link files say of the link that a function's own port is an end of.
fn port_speeds(files: &Directory<'_>) -> hierarchy::PortSpeeds {
    let speed = |speed: &str, width: &str| {
        let width: u8 = files.get(width)?.as_number()?;
        Some(PcieSpeed {
            generation: PcieGeneration::from_gigatransfers(files.get(speed)?.as_text()?)?,
            width: PcieSpeed::WIDTHS.contains(&width).then_some(width)?,
        })
    };
    hierarchy::PortSpeeds {
        current: speed("current_link_speed", "current_link_width"),
        maximum: speed("max_link_speed", "max_link_width"),
        rate: None,
        // The kernel shows these files for PCI Express functions alone.
        express: files.get("max_link_width") != Some(&Observation::Absent),
    }
}

fn bars(resource: &str) -> Vec<(u8, Bytes)> {
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let size = |line: &str| {
        let mut fields = line.split_whitespace().map(hex);
        let (start, end, flags) = (fields.next()??, fields.next()??, fields.next()??);
        (flags & RESOURCE_IS_MEMORY != 0 && end > start)
            .then(|| Bytes((end - start).saturating_add(1)))
    };
    let lines = resource.lines().take(BARS).map(size);
    (0u8..)
        .zip(lines)
        .filter_map(|(index, size)| Some((index, size?)))
        .collect()
}

fn iommu_type(snapshot: &Snapshot, files: &Directory<'_>, group: Option<u32>) -> Option<String> {
    snapshot
        .text(&format!("/sys/kernel/iommu_groups/{}/type", group?))
        .or_else(|| files.get("iommu_group/type")?.as_text())
        .map(str::to_owned)
}

fn peer_memory(files: &Directory<'_>) -> Option<PeerMemory> {
    let bytes = |file| files.get(file)?.as_number().map(Bytes);
    let published = files.get("p2pmem/published").and_then(Observation::as_text);
    Some(PeerMemory {
        size: bytes("p2pmem/size")?,
        available: bytes("p2pmem/available")?,
        published: published == Some("1"),
    })
}

fn aer(files: &Directory<'_>) -> Option<AerTotals> {
    let total = |file| {
        let text = files.get(file)?.as_text()?;
        let line = text.lines().find_map(|l| l.strip_prefix("TOTAL_ERR_"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some(AerTotals {
        correctable: total("aer_dev_correctable")?,
        nonfatal: total("aer_dev_nonfatal")?,
        fatal: total("aer_dev_fatal")?,
    })
}
