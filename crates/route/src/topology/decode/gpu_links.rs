//! Links between GPUs that are not PCIe.
//!
//! | key | used for |
//! |---|---|
//! | `nvml:N/nvlink/L/state` | `active` or another word |
//! | `nvml:N/nvlink/L/remote_type` | `gpu`, `switch` or `npu` (a processor with NVLink) |
//! | `nvml:N/nvlink/L/remote_bus_id` | PCI address of the other end |
//! | `/sys/class/kfd/kfd/topology/nodes/N/properties` | AMD's numbering: `domain`, `location_id` |
//! | `/sys/class/kfd/kfd/topology/nodes/N/io_links/M/properties` | `type`, `node_to`, bandwidths |

use std::collections::BTreeMap;

use super::{gpus, numbered};
use crate::snapshot::Snapshot;
use crate::topology::gpu_links::{self, LinkEnds};
use crate::topology::{Gpu, GpuLink, GpuLinkKind, Oddity};
use crate::units::{BytesPerSecond, PciAddress};

const KFD_NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
/// `CRAT_IOLINK_TYPE_XGMI` of the kernel's `kfd_crat.h`.
const KFD_XGMI: u64 = 11;
/// The most NVLinks a GPU can have; a larger index in a file is not believed.
const MAX_NVLINKS: u32 = 64;

pub(super) fn decode(
    snapshot: &Snapshot,
    gpus: &[Gpu],
    oddities: &mut Vec<Oddity>,
) -> Vec<GpuLink> {
    let mut links = nvlinks(snapshot, gpus, oddities);
    links.extend(xgmi(snapshot, gpus));
    links
}

/// Index of the GPU at each address.
fn indices(gpus: &[Gpu]) -> BTreeMap<PciAddress, u32> {
    (0u32..)
        .zip(gpus)
        .filter_map(|(index, gpu)| Some((gpu.address?, index)))
        .collect()
}

fn nvlinks(snapshot: &Snapshot, gpus: &[Gpu], oddities: &mut Vec<Oddity>) -> Vec<GpuLink> {
    let by_address = indices(gpus);
    let mut active: BTreeMap<u32, LinkEnds> = BTreeMap::new();
    for (address, nvml) in gpus::nvml_indices(snapshot) {
        let Some(gpu) = by_address.get(&address) else {
            let at = format!("nvml:{nvml}/bus_id");
            oddities.push(Oddity::new(
                at,
                format!("no GPU at {address} on the PCI bus"),
            ));
            continue;
        };
        let ends = active.entry(*gpu).or_default();
        for link in numbered(snapshot, &format!("nvml:{nvml}/nvlink"), "") {
            let at = format!("nvml:{nvml}/nvlink/{link}");
            let text = |what: &str| snapshot.text(&format!("{at}/{what}"));
            if link >= MAX_NVLINKS || text("state") != Some("active") {
                continue;
            }
            let remote = text("remote_bus_id").and_then(|address| address.parse().ok());
            let remote_gpu = remote.and_then(|address| by_address.get(&address));
            match (text("remote_type"), remote_gpu) {
                (_, Some(other)) => ends.add_gpu_links(*other, GpuLinkKind::NvLink, 1),
                (Some("switch"), _) => ends.add_switch_links(1),
                (Some("npu"), _) => {}
                _ => oddities.push(Oddity::new(
                    at,
                    "active, but what is at its other end is unknown",
                )),
            }
        }
    }
    let rate = |gpu: u32, _| {
        let gpu = gpus.get(gpu as usize)?;
        gpu_links::nvlink_rate(gpu.compute_capability.as_deref()?)
    };
    gpu_links::join(&active, rate, oddities)
}

fn xgmi(snapshot: &Snapshot, gpus: &[Gpu]) -> Vec<GpuLink> {
    let by_address = indices(gpus);
    let mut gpu_of_node = BTreeMap::new();
    let nodes = numbered(snapshot, KFD_NODES, "");
    for node in &nodes {
        let properties = Properties::at(snapshot, &format!("{KFD_NODES}/{node}/properties"));
        if let Some(gpu) = properties.address().and_then(|a| by_address.get(&a)) {
            gpu_of_node.insert(u64::from(*node), *gpu);
        }
    }
    let mut links = BTreeMap::new();
    for node in nodes {
        let Some(from) = gpu_of_node.get(&u64::from(node)) else {
            continue;
        };
        let directory = format!("{KFD_NODES}/{node}/io_links");
        for link in numbered(snapshot, &directory, "") {
            let properties = Properties::at(snapshot, &format!("{directory}/{link}/properties"));
            let to = properties.get("node_to").and_then(|n| gpu_of_node.get(&n));
            let (Some(to), Some(KFD_XGMI)) = (to, properties.get("type")) else {
                continue;
            };
            if from == to {
                continue;
            }
            let (a, b) = (*from.min(to), *from.max(to));
            links.entry((a, b)).or_insert_with(|| GpuLink {
                a,
                b,
                kind: GpuLinkKind::Xgmi,
                count: properties.xgmi_count(),
                rate: properties
                    .get("max_bandwidth")
                    .filter(|megabytes| *megabytes > 0)
                    .map(|megabytes| BytesPerSecond(megabytes as f64 * 1e6)),
            });
        }
    }
    links.into_values().collect()
}

/// `name value` lines of the AMD kernel driver.
struct Properties<'a>(&'a str);

impl<'a> Properties<'a> {
    fn at(snapshot: &'a Snapshot, key: &str) -> Self {
        Self(snapshot.text(key).unwrap_or_default())
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == name).then(|| words.next()?.parse().ok())?
        })
    }

    /// `location_id` holds the bus in bits 15:8, the device in 7:3, the function in 2:0.
    fn address(&self) -> Option<PciAddress> {
        let location = self.get("location_id").filter(|id| *id != 0)?;
        let [bus, slot] = u16::try_from(location).ok()?.to_be_bytes();
        Some(PciAddress {
            domain: self.get("domain").unwrap_or(0).try_into().ok()?,
            bus,
            device: slot >> 3,
            function: slot & 7,
        })
    }

    /// The driver gives one link's rate as the minimum and that of all links as the maximum
    /// (`amdgpu_amdkfd_get_xgmi_bandwidth_mbytes`).
    fn xgmi_count(&self) -> u32 {
        let ratio = self
            .get("max_bandwidth")
            .zip(self.get("min_bandwidth"))
            .and_then(|(all, one)| all.checked_div(one))
            .unwrap_or(1);
        u32::try_from(ratio).unwrap_or(1).max(1)
    }
}
