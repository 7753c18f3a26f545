//! From a path to the drives that hold it.

use std::collections::BTreeSet;

use super::{BlockDevice, Drive, Mount, Topology};

impl Topology {
    /// The mount that a path lies on. The path is absolute and free of links, `.` and `..`, as
    /// the kernel would print it.
    pub fn mount_of(&self, path: &str) -> Option<&Mount> {
        let covers = |mount: &&Mount| {
            let point = mount.point.trim_end_matches('/');
            path.strip_prefix(point)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // `max_by_key` takes the last of equals: the later mount covers the earlier one.
        self.mounts
            .iter()
            .filter(covers)
            .max_by_key(|mount| mount.point.trim_end_matches('/').len())
    }

    /// The block device that a mounted file system lies on, by name. `None` for file systems that
    /// lie on none, or on one that was not looked at.
    pub fn block_of(&self, mount: &Mount) -> Option<&str> {
        let by_number = |block: &BlockDevice| block.number.as_deref() == Some(&mount.device);
        if let Some((name, _)) = self.blocks.iter().find(|(_, block)| by_number(block)) {
            return Some(name);
        }
        // File systems over several devices, such as btrfs, have a number of their own.
        let source = mount.source.strip_prefix("/dev/")?;
        if let Some((name, _)) = self.blocks.get_key_value(source) {
            return Some(name);
        }
        let mapped = source.strip_prefix("mapper/")?;
        self.blocks
            .iter()
            .find(|(_, block)| block.mapped_name.as_deref() == Some(mapped))
            .map(|(name, _)| name.as_str())
    }

    /// The block devices from one down to the disks, each once, the given one first. Empty when
    /// there is no such block device.
    pub fn stack_under<'a>(&'a self, block: &'a str) -> Vec<(&'a str, &'a BlockDevice)> {
        let mut stack = Vec::new();
        let mut seen = BTreeSet::new();
        let mut ahead = vec![block];
        while let Some(name) = ahead.pop() {
            if !seen.insert(name) {
                continue;
            }
            if let Some((name, device)) = self.blocks.get_key_value(name) {
                stack.push((name.as_str(), device));
                ahead.extend(device.below.iter().rev().map(String::as_str));
            }
        }
        stack
    }

    /// The physical drives that a block device is made of, in the order of the topology. A drive
    /// with several controllers counts once a controller.
    pub fn drives_under(&self, block: &str) -> Vec<&Drive> {
        let stack: BTreeSet<&str> = self
            .stack_under(block)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        self.drives
            .iter()
            .filter(|drive| drive.blocks.iter().any(|b| stack.contains(b.as_str())))
            .collect()
    }
}
