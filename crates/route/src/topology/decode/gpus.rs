//! GPUs and other accelerators: PCI functions of their classes, with what their drivers add.
//!
//! | key | used for |
//! |---|---|
//! | `nvml:N/bus_id` | which function NVML's GPU N is |
//! | `nvml:N/name`, `nvml:N/memory` (bytes), `nvml:N/compute_capability`, `nvml:N/performance_state` | as they read |
//! | `/proc/driver/nvidia/gpus/ADDRESS/information` | the model, where NVML does not load |
//! | `product_name`, `mem_info_vram_total` below the function | AMD's model and memory |

use std::collections::BTreeMap;

use crate::snapshot::Snapshot;
use crate::topology::pcie::PciDevice;
use crate::topology::{Gpu, GpuVendor};
use crate::units::{Bytes, PciAddress};

/// VGA-compatible controller, 3D controller, other display controller.
const DISPLAY: [u32; 3] = [0x0300, 0x0302, 0x0380];
const PROCESSING_ACCELERATOR: u32 = 0x1200;
const MASS_STORAGE: u32 = 0x01;

const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;
const HABANA: u16 = 0x1da3;
/// Makers of accelerators with memory of their own: Google, Qualcomm, Tenstorrent, Xilinx.
const OTHER_MAKERS: [u16; 4] = [0x1ae0, 0x17cb, 0x1e52, 0x10ee];

pub(super) fn decode(snapshot: &Snapshot, pci: &BTreeMap<PciAddress, PciDevice>) -> Vec<Gpu> {
    let nvml = nvml_indices(snapshot);
    pci.values()
        .filter_map(|function| {
            let vendor = vendor(function, pci)?;
            Some(gpu(snapshot, function, vendor, nvml.get(&function.address)))
        })
        .collect()
}

/// NVML numbers GPUs its own way: its index by PCI address.
pub(super) fn nvml_indices(snapshot: &Snapshot) -> BTreeMap<PciAddress, u32> {
    let mut indices = BTreeMap::new();
    for (key, _) in snapshot.under("nvml:") {
        let index = key
            .strip_prefix("nvml:")
            .and_then(|rest| rest.strip_suffix("/bus_id"))
            .and_then(|index| index.parse().ok());
        if let (Some(index), Some(address)) =
            (index, snapshot.text(key).and_then(|t| t.parse().ok()))
        {
            indices.insert(address, index);
        }
    }
    indices
}

/// Whose accelerator a function is; `None` for everything else, such as the graphics of a
/// hypervisor or a management controller, graphics without memory of their own, and virtual
/// functions of a card that is listed itself.
pub(in crate::topology) fn vendor(
    function: &PciDevice,
    pci: &BTreeMap<PciAddress, PciDevice>,
) -> Option<GpuVendor> {
    if function
        .physical_function
        .is_some_and(|physical| pci.contains_key(&physical))
    {
        return None;
    }
    let display = DISPLAY.contains(&function.subclass());
    let accelerator = function.subclass() == PROCESSING_ACCELERATOR;
    // Intel integrates graphics and NPUs into the root complex, on the first bus.
    let integrated = function.vendor == INTEL
        && function.address.bus == 0
        && function.parent.is_none()
        && function.link.is_none();
    match function.vendor {
        _ if integrated => None,
        NVIDIA if display || accelerator => Some(GpuVendor::Nvidia),
        AMD if display || accelerator => Some(GpuVendor::Amd),
        INTEL if display || accelerator => Some(GpuVendor::Intel),
        HABANA if accelerator => Some(GpuVendor::Intel),
        other if accelerator && OTHER_MAKERS.contains(&other) => Some(GpuVendor::Other),
        _ => {
            let publishes = function.peer_memory.is_some_and(|memory| memory.published);
            let drive = function.class >> 16 == MASS_STORAGE;
            (publishes && !drive).then_some(GpuVendor::StandIn)
        }
    }
}

fn gpu(snapshot: &Snapshot, function: &PciDevice, vendor: GpuVendor, nvml: Option<&u32>) -> Gpu {
    let address = function.address;
    let asked = |what: &str| snapshot.text(&format!("nvml:{}/{what}", nvml?));
    let own = |file: &str| format!("/sys/bus/pci/devices/{address}/{file}");
    let name = asked("name")
        .or_else(|| model(snapshot, address))
        .or_else(|| {
            snapshot
                .text(&own("product_name"))
                .filter(|n| !n.is_empty())
        })
        .unwrap_or(&function.name);
    let published = function.peer_memory.map(|memory| memory.size);
    Gpu {
        address: Some(address),
        name: name.to_owned(),
        vendor,
        memory: asked("memory")
            .and_then(|bytes| bytes.parse().ok())
            .or_else(|| snapshot.number(&own("mem_info_vram_total")))
            .map(Bytes)
            .or(published.filter(|_| vendor == GpuVendor::StandIn)),
        // Every maker reaches the device's memory through the largest BAR.
        bar: function.bars.iter().map(|(_, size)| *size).max(),
        compute_capability: asked("compute_capability").map(str::to_owned),
        performance_state: asked("performance_state").and_then(|state| state.parse().ok()),
    }
}

/// A line `Model: NVIDIA H100 80GB HBM3`, padded with tabs.
fn model(snapshot: &Snapshot, address: PciAddress) -> Option<&str> {
    snapshot
        .text(&format!("/proc/driver/nvidia/gpus/{address}/information"))?
        .lines()
        .find_map(|line| line.strip_prefix("Model:"))
        .map(str::trim)
        .filter(|model| !model.is_empty())
}
