//! Drives and block devices.
//!
//! | key | used for |
//! |---|---|
//! | `/sys/class/nvme/X` (link), `transport`, `model`, `address` | NVMe controllers |
//! | `/sys/block/X` (link) | what the device hangs off: `…/virtio0/block/vda` |
//! | `…/X/dev`, `size` (512-byte sectors), `slaves` | number, size, what is below |
//! | `…/X/Y/partition`, `dev`, `size` | its partitions |
//! | `…/X/queue/{logical_block_size,max_sectors_kb,max_segments}` | limits |
//! | `…/X/dm/{name,uuid}`, `md/level` | stacked devices |
//! | `…/X/device/model` | model of a SCSI drive |

use std::collections::{BTreeMap, BTreeSet};

use super::entries;
use super::nics::natural;
use super::pci::function_name;
use crate::snapshot::{Observation, Snapshot};
use crate::topology::pcie::PciDevice;
use crate::topology::{BlockDevice, Drive, DriveTransport};
use crate::units::{Bytes, PciAddress};

const NVME: &str = "/sys/class/nvme";
const BLOCK: &str = "/sys/block";
/// The kernel counts sectors of this size whatever the drive's own are.
const SECTOR: u64 = 512;

pub(super) fn decode(
    snapshot: &Snapshot,
    pci: &BTreeMap<PciAddress, PciDevice>,
) -> (Vec<Drive>, BTreeMap<String, BlockDevice>) {
    let names = entries(snapshot, BLOCK);
    let mut blocks = BTreeMap::new();
    for name in names.iter().filter(|name| nvme_path(name).is_none()) {
        let whole = block(snapshot, name);
        blocks.extend(partitions(snapshot, name, &whole));
        blocks.insert((*name).to_owned(), whole);
    }
    let mut namespaces = namespaces(snapshot, &names);
    let mut drives: Vec<Drive> = entries(snapshot, NVME)
        .into_iter()
        .map(|name| controller(snapshot, name, &mut namespaces, pci))
        .collect();
    let claimed: BTreeSet<String> = drives.iter().flat_map(|d| d.blocks.clone()).collect();
    for (name, block) in &blocks {
        if block.kind == "disk" && !claimed.contains(name) {
            drives.push(disk(snapshot, name, pci));
        }
    }
    drives.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
    (drives, blocks)
}

/// The hidden device of one path to a namespace: `nvme0c3n1` is the way through controller 3 to
/// namespace 1 of subsystem 0, whose own device is `nvme0n1`.
fn nvme_path(name: &str) -> Option<(String, String)> {
    let (subsystem, rest) = name.strip_prefix("nvme")?.split_once('c')?;
    let (controller, namespace) = rest.split_once('n')?;
    let number = |text: &str| text.parse::<u32>().is_ok();
    (number(subsystem) && number(controller) && number(namespace)).then(|| {
        (
            format!("nvme{controller}"),
            format!("nvme{subsystem}n{namespace}"),
        )
    })
}

/// Namespaces by the controller that leads to them.
fn namespaces(snapshot: &Snapshot, blocks: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut by_controller: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for block in blocks {
        let owner = || {
            // The link ends in `nvme0/nvme0n1`.
            let link = snapshot.link(&format!("{BLOCK}/{block}"))?;
            let owner = link.rsplit('/').nth(1)?;
            Some((owner.to_owned(), (*block).to_owned()))
        };
        if let Some((controller, namespace)) = nvme_path(block).or_else(owner) {
            by_controller.entry(controller).or_default().push(namespace);
        }
    }
    by_controller
}

fn controller(
    snapshot: &Snapshot,
    name: &str,
    namespaces: &mut BTreeMap<String, Vec<String>>,
    pci: &BTreeMap<PciAddress, PciDevice>,
) -> Drive {
    let at = format!("{NVME}/{name}");
    let text = |file: &str| snapshot.text(&format!("{at}/{file}"));
    let by_link = |key: &str| snapshot.link(key)?.rsplit('/').find_map(function_name);
    let address = by_link(&at)
        .or_else(|| by_link(&format!("{at}/device")))
        .or_else(|| text("address")?.parse().ok());
    let transport = match text("transport") {
        Some("pcie") => DriveTransport::NvmePcie,
        Some(_) => DriveTransport::NvmeFabrics,
        None if address.is_some() => DriveTransport::NvmePcie,
        None => DriveTransport::Other,
    };
    Drive {
        name: name.to_owned(),
        // An address over fabrics is that of a network, not of a PCI function.
        address: address.filter(|_| transport != DriveTransport::NvmeFabrics),
        model: text("model")
            .map(|model| model.trim().to_owned())
            .or_else(|| Some(pci.get(&address?)?.name.clone())),
        transport,
        blocks: namespaces.remove(name).unwrap_or_default(),
    }
}

/// A disk that no NVMe controller owns.
fn disk(snapshot: &Snapshot, name: &str, pci: &BTreeMap<PciAddress, PciDevice>) -> Drive {
    let at = format!("{BLOCK}/{name}");
    let link = snapshot.link(&at).unwrap_or_default();
    let address = link.rsplit('/').find_map(function_name);
    let model = snapshot
        .text(&format!("{at}/device/model"))
        .map(|model| model.trim().to_owned());
    let transport = if link.split('/').any(|part| part.starts_with("virtio")) {
        DriveTransport::Virtio
    } else if name.starts_with("nvme") {
        DriveTransport::NvmePcie
    } else if link.split('/').any(|part| part.starts_with("target")) || name.starts_with("sd") {
        DriveTransport::Scsi
    } else {
        DriveTransport::Other
    };
    Drive {
        name: name.to_owned(),
        address,
        model: model.or_else(|| Some(pci.get(&address?)?.name.clone())),
        transport,
        blocks: vec![name.to_owned()],
    }
}

fn block(snapshot: &Snapshot, name: &str) -> BlockDevice {
    let at = format!("{BLOCK}/{name}");
    let text = |file: &str| snapshot.text(&format!("{at}/{file}"));
    let link = snapshot.link(&at).unwrap_or_default();
    let mapping = text("dm/uuid");
    let kind = if let Some(level) = text("md/level") {
        format!("md {level}")
    } else if name.starts_with("dm-") || mapping.is_some() {
        mapping.map_or("dm".into(), mapping_kind)
    } else if name.starts_with("loop") {
        "loop".into()
    } else if link.contains("/devices/virtual/block/") {
        "virtual".into()
    } else {
        "disk".into()
    };
    let below = entries(snapshot, &format!("{at}/slaves"));
    BlockDevice {
        number: text("dev").map(str::to_owned),
        multipath: kind == "dm multipath" || link.contains("/nvme-subsystem/"),
        kind,
        mapped_name: text("dm/name").map(str::to_owned),
        below: below.into_iter().map(str::to_owned).collect(),
        size: size(snapshot, &at),
        logical_block: snapshot.number(&format!("{at}/queue/logical_block_size")),
        max_request: snapshot
            .number::<u64>(&format!("{at}/queue/max_sectors_kb"))
            .and_then(|kib| kib.checked_mul(1024))
            .map(Bytes),
        max_segments: snapshot.number(&format!("{at}/queue/max_segments")),
    }
}

fn size(snapshot: &Snapshot, at: &str) -> Option<Bytes> {
    let sectors: u64 = snapshot.number(&format!("{at}/size"))?;
    sectors.checked_mul(SECTOR).map(Bytes)
}

/// The partitions of a disk, which share its queue.
fn partitions(snapshot: &Snapshot, disk: &str, whole: &BlockDevice) -> Vec<(String, BlockDevice)> {
    let prefix = format!("{BLOCK}/{disk}/");
    snapshot
        .under(&prefix)
        .filter_map(|(key, seen)| {
            let name = key.strip_prefix(&prefix)?.strip_suffix("/partition")?;
            matches!(seen, Observation::Value(_)).then_some(())?;
            let at = format!("{prefix}{name}");
            let partition = BlockDevice {
                number: snapshot.text(&format!("{at}/dev")).map(str::to_owned),
                kind: "partition".into(),
                below: vec![disk.to_owned()],
                size: size(snapshot, &at),
                ..whole.clone()
            };
            (!name.contains('/')).then(|| (name.to_owned(), partition))
        })
        .collect()
}

/// The kind that the tool which made a mapping wrote in front of its UUID.
fn mapping_kind(uuid: &str) -> String {
    match uuid.split('-').next() {
        Some("LVM") => "dm lvm".into(),
        Some("CRYPT") => "dm crypt".into(),
        Some("mpath") => "dm multipath".into(),
        // kpartx writes `part1-mpath-…`.
        Some(part) if part.starts_with("part") => "dm partition".into(),
        _ => "dm".into(),
    }
}
