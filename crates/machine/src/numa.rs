//! Which NUMA node a drive or another device is attached to.

use std::path::Path;

use crowfly_route::units::{NumaNode, PciAddress};

/// The node of the PCIe device behind a block device, as the firmware tells it; `None` when it does
/// not (`-1`), or when the device is made of others (md, dm) or is no PCIe device.
pub fn node_of_block_device(major: u32, minor: u32) -> Option<NumaNode> {
    node_above(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")))
}

/// The node of a PCIe device, as the firmware tells it; `None` when it does not.
pub fn node_of_pci_device(address: PciAddress) -> Option<NumaNode> {
    node_above(&Path::new("/sys/bus/pci/devices").join(address.to_string()))
}

/// The nearest `numa_node` on the way up from a device's folder.
fn node_above(device: &Path) -> Option<NumaNode> {
    let folder = device.canonicalize().ok()?;
    let told = |folder: &Path| std::fs::read_to_string(folder.join("numa_node")).ok();
    let text = folder.ancestors().find_map(told)?;
    text.trim().parse().ok().map(NumaNode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_that_of_the_nearest_device_above_and_minus_one_is_none() {
        let root = tempfile::tempdir().expect("a folder");
        for (bridge, node) in [("0000:00:01.0", "1\n"), ("0000:00:02.0", "-1\n")] {
            let drive = root
                .path()
                .join(bridge)
                .join("nvme/nvme0/nvme0n1/nvme0n1p1");
            std::fs::create_dir_all(&drive).expect("folders");
            std::fs::write(root.path().join(bridge).join("numa_node"), node).expect("written");
            let expected = (node == "1\n").then_some(NumaNode(1));
            assert_eq!(node_above(&drive), expected);
        }
        assert_eq!(node_above(&root.path().join("nothing")), None);
    }
}
