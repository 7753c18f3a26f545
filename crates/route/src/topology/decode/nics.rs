//! Network adapters: RDMA devices and network interfaces of one device merged.
//!
//! | key | used for |
//! |---|---|
//! | `/sys/class/infiniband/X`, `/sys/class/net/X` (links) | the device: `…/0000:3b:00.0/infiniband/mlx5_0` |
//! | `…/X/device` (link) | the same, where the link above was not looked at |
//! | `/sys/class/infiniband/X/fw_ver` | firmware |
//! | `/sys/class/infiniband/X/ports/P/{state,rate,link_layer}` | ports |
//! | `/sys/class/infiniband/X/ports/P/gids/I`, `gid_attrs/types/I` | GIDs |
//! | `/sys/class/net/X/{operstate,speed,mtu}` | interfaces |
//!
//! Interfaces without a device (`lo`, `veth…`, `docker0`, bonds, bridges, VLANs) are no adapters.

use std::collections::{BTreeMap, BTreeSet};

use super::pci::function_name;
use super::{entries, numbered};
use crate::snapshot::Snapshot;
use crate::topology::pcie::PciDevice;
use crate::topology::{Gid, Interface, Nic, RdmaPort};
use crate::units::{BytesPerSecond, PciAddress};

const RDMA: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";
const NETWORK_CLASS: u32 = 0x02;
/// A port whose table could not be listed is asked for this many GIDs.
const MAX_GIDS: u32 = 4096;

/// The device that an RDMA device or interface belongs to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Parent {
    /// Its name on its bus: `0000:3b:00.0`, `virtio0`, `mlx5_core.sf.2`.
    name: String,
    /// The PCI function it is, or hangs off.
    address: Option<PciAddress>,
}

pub(super) fn decode(snapshot: &Snapshot, pci: &BTreeMap<PciAddress, PciDevice>) -> Vec<Nic> {
    let mut interfaces = interfaces(snapshot);
    let mut nics: Vec<Nic> = entries(snapshot, RDMA)
        .into_iter()
        .map(|name| rdma(snapshot, pci, name, &mut interfaces))
        .collect();
    for (parent, of_parent) in interfaces {
        let name = of_parent.first().map(|i| i.name.clone());
        nics.push(Nic {
            interfaces: of_parent,
            ..adapter(pci, name.unwrap_or(parent.name), parent.address)
        });
    }
    let found: BTreeSet<_> = nics.iter().filter_map(|nic| nic.address).collect();
    nics.extend(
        pci.values()
            .filter(|f| f.class >> 16 == NETWORK_CLASS && !found.contains(&f.address))
            // Idle virtual functions come by the hundred and carry nothing.
            .filter(|f| f.physical_function.is_none())
            .map(|f| adapter(pci, f.address.to_string(), Some(f.address))),
    );
    nics.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
    nics
}

/// `mlx5_10` sorts behind `mlx5_9`.
pub(in crate::topology) fn natural(name: &str) -> (&str, u64, &str) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name
        .get(stem.len()..)
        .and_then(|digits| digits.parse().ok());
    (stem, number.unwrap_or(0), name)
}

fn adapter(
    pci: &BTreeMap<PciAddress, PciDevice>,
    name: String,
    address: Option<PciAddress>,
) -> Nic {
    let function = address.and_then(|address| pci.get(&address));
    let of_network = function.filter(|f| f.class >> 16 == NETWORK_CLASS);
    Nic {
        name,
        address,
        model: of_network.map(|f| f.name.clone()),
        firmware: None,
        ports: Vec::new(),
        interfaces: Vec::new(),
        // Inside a virtual machine the physical function is out of sight, but the name tells.
        virtual_function: function
            .is_some_and(|f| f.physical_function.is_some() || f.name.contains("Virtual Function")),
    }
}

fn rdma(
    snapshot: &Snapshot,
    pci: &BTreeMap<PciAddress, PciDevice>,
    name: &str,
    interfaces: &mut BTreeMap<Parent, Vec<Interface>>,
) -> Nic {
    let at = format!("{RDMA}/{name}");
    // Soft-RoCE and the like are no device of their own, and the interface they run on stays its
    // own adapter.
    let parent = parent(snapshot, &at, "infiniband");
    let own = parent.as_ref().and_then(|parent| interfaces.remove(parent));
    let mut ports: Vec<RdmaPort> = numbered(snapshot, &format!("{at}/ports"), "")
        .into_iter()
        .map(|number| port(snapshot, &format!("{at}/ports/{number}"), number))
        .collect();
    ports.sort_by_key(|port| port.number);
    Nic {
        firmware: snapshot.text(&format!("{at}/fw_ver")).map(str::to_owned),
        ports,
        interfaces: own.unwrap_or_default(),
        ..adapter(pci, name.to_owned(), parent.and_then(|p| p.address))
    }
}

fn port(snapshot: &Snapshot, at: &str, number: u32) -> RdmaPort {
    let text = |file: &str| snapshot.text(&format!("{at}/{file}"));
    let state = text("state");
    RdmaPort {
        number,
        active: state.map(|s| s.trim_start().starts_with('4')),
        state: state.map(str::to_owned),
        link_layer: text("link_layer").map(str::to_owned),
        rate: text("rate").and_then(rate),
        gids: numbered(snapshot, &format!("{at}/gids"), "")
            .into_iter()
            .filter(|index| *index < MAX_GIDS)
            .filter_map(|index| {
                let gid = text(&format!("gids/{index}"))?;
                let zero = gid.chars().all(|c| c == '0' || c == ':');
                (!zero).then(|| Gid {
                    index,
                    gid: gid.to_owned(),
                    kind: text(&format!("gid_attrs/types/{index}")).map(str::to_owned),
                })
            })
            .collect(),
    }
}

/// `400 Gb/sec (4X NDR)`
fn rate(text: &str) -> Option<BytesPerSecond> {
    let (number, unit) = text.split_once(' ')?;
    let gigabits: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/sec") && gigabits > 0.0 && gigabits.is_finite())
        .then(|| BytesPerSecond::from_gbps(gigabits))
}

fn interfaces(snapshot: &Snapshot) -> BTreeMap<Parent, Vec<Interface>> {
    let mut by_parent: BTreeMap<Parent, Vec<Interface>> = BTreeMap::new();
    for name in entries(snapshot, NET) {
        let at = format!("{NET}/{name}");
        if let Some(parent) = parent(snapshot, &at, "net") {
            by_parent
                .entry(parent)
                .or_default()
                .push(interface(snapshot, &at, name));
        }
    }
    by_parent
}

fn interface(snapshot: &Snapshot, at: &str, name: &str) -> Interface {
    let megabits: Option<u32> = snapshot.number(&format!("{at}/speed"));
    Interface {
        name: name.to_owned(),
        state: snapshot.text(&format!("{at}/operstate")).map(str::to_owned),
        rate: megabits
            // The kernel prints -1 or 2³²−1 where it does not know.
            .filter(|m| *m > 0 && *m < u32::MAX)
            .map(|m| BytesPerSecond::from_gbps(f64::from(m) / 1e3)),
        mtu: snapshot.number(&format!("{at}/mtu")),
    }
}

/// The device of a class entry, from the entry's own link or else from its `device` link; `None`
/// for virtual ones.
fn parent(snapshot: &Snapshot, at: &str, class: &str) -> Option<Parent> {
    if let Some(link) = snapshot.link(at) {
        let (entry, _) = link.trim_end_matches('/').rsplit_once('/')?;
        let device = entry.strip_suffix(class)?.strip_suffix('/')?;
        (!device.ends_with("devices/virtual")).then_some(())?;
        return Some(Parent {
            name: device.rsplit('/').next()?.to_owned(),
            address: device.split('/').rev().find_map(function_name),
        });
    }
    let name = snapshot.link_name(&format!("{at}/device"))?;
    Some(Parent {
        name: name.to_owned(),
        address: function_name(name),
    })
}
