//! The PCI tree: every function with its place in the tree, its link, its memory and its owners.

use super::recorder::Recorder;

const DEVICES: &str = "/sys/bus/pci/devices";
const SLOTS: &str = "/sys/bus/pci/slots";
const IOMMU_GROUPS: &str = "/sys/kernel/iommu_groups";

/// The whole configuration space of a PCI Express function. Without privilege the kernel shows the
/// first 64 bytes; the length recorded says how much there was to see.
const MAX_CONFIG_BYTES: usize = 4096;

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
    let waking = ["current_link_speed", "current_link_width"];
    r.texts(device, &waking);
    r.bytes(format!("{device}/config"), MAX_CONFIG_BYTES);
}
