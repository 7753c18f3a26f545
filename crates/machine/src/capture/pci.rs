//! The PCI tree: every function with its place in the tree, its link, its memory and its owners.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crowfly_route::snapshot::{Observation, Value};

use super::recorder::Recorder;
use crate::root::refusal;

mod config_space;

const DEVICES: &str = "/sys/bus/pci/devices";
const SLOTS: &str = "/sys/bus/pci/slots";
const IOMMU_GROUPS: &str = "/sys/kernel/iommu_groups";

/// `vendor` of AMD's functions.
const AMD: &str = "0x1002";

const ATTRIBUTES: &[&str] = &[
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "class",
    "revision",
    "numa_node",
    "local_cpulist",
    "resource",
    "enable",
    "power_state",
    "d3cold_allowed",
    "max_link_speed",
    "max_link_width",
    "sriov_numvfs",
    "sriov_totalvfs",
    "ari_enabled",
    "label",
    "p2pmem/size",
    "p2pmem/available",
    "p2pmem/published",
    "aer_dev_correctable",
    "aer_dev_nonfatal",
    "aer_dev_fatal",
];

/// What AMD's graphics driver says of the device's memory and of its links to others.
const AMD_ATTRIBUTES: &[&str] = &[
    "product_name",
    "mem_info_vram_total",
    "mem_info_vis_vram_total",
    "vbios_version",
    "xgmi_hive_info/xgmi_hive_id",
    "xgmi_device_id",
    "pcie_replay_count",
];

const LINKS: &[&str] = &["driver", "iommu_group", "physfn"];

pub(super) fn look(r: &mut Recorder<'_>) {
    for address in r.list(DEVICES) {
        let device = format!("{DEVICES}/{address}");
        // The link's target is the path down the tree: it names the parents.
        r.link(device.as_str());
        if r.enter(&device, "vendor") {
            function(r, &device);
        }
    }
    for slot in r.list(SLOTS) {
        r.texts(
            &format!("{SLOTS}/{slot}"),
            &["address", "cur_bus_speed", "max_bus_speed"],
        );
    }
    for group in r.list(IOMMU_GROUPS) {
        r.text(format!("{IOMMU_GROUPS}/{group}/type"));
    }
}

fn function(r: &mut Recorder<'_>, device: &str) {
    r.texts(device, ATTRIBUTES);
    for link in LINKS {
        r.link(format!("{device}/{link}"));
    }
    if r.seen(&format!("{device}/vendor")) == Some(AMD) {
        r.texts(device, AMD_ATTRIBUTES);
    }
    if r.seen(&format!("{device}/power_state")) == Some("D3cold") {
        for waking in ["current_link_speed", "current_link_width", "config"] {
            let why = "not read: the device sleeps in D3cold, and reading would wake it";
            r.record(format!("{device}/{waking}"), Observation::Error(why.into()));
        }
        return;
    }
    r.texts(device, &["current_link_speed", "current_link_width"]);
    if r.config_space() {
        config_space(r, device);
    }
}

/// Records the configuration space as far as it is useful. Without privilege the kernel shows the
/// first 64 bytes; the length recorded says how much there was to see.
fn config_space(r: &mut Recorder<'_>, device: &str) {
    let path = format!("{device}/config");
    let seen = match r.root().regular(&path).map(read_config_space) {
        Ok(Ok(bytes)) => Observation::Value(Value::Bytes(bytes)),
        Ok(Err(error)) => Observation::Error(error.to_string()),
        Err(why) => refusal(why),
    };
    r.record(path, seen);
}

fn read_config_space(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Read::take(&mut file, config_space::CONVENTIONAL as u64).read_to_end(&mut bytes)?;
    if bytes.len() == config_space::CONVENTIONAL {
        let length = config_space::useful_length(&mut |offset| {
            let mut dword = [0; 4];
            file.read_exact_at(&mut dword, offset as u64).ok()?;
            Some(u32::from_le_bytes(dword))
        });
        let rest = length.saturating_sub(bytes.len());
        Read::take(&mut file, rest as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
