//! From a path to the drives that hold it.

use std::collections::{BTreeMap, BTreeSet};

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

    /// The block device that a mounted file system lies on, by name; the first of
    /// [`Topology::blocks_of`].
    pub fn block_of<'a>(&'a self, mount: &Mount) -> Option<&'a str> {
        self.blocks_of(mount).into_iter().next()
    }

    /// The block devices that a mounted file system lies on, by name, each once. Empty for file
    /// systems that lie on none, or on one that was not looked at.
    ///
    /// Those of an overlay are the devices of the file systems that its layers lie on.
    pub fn blocks_of<'a>(&'a self, mount: &Mount) -> Vec<&'a str> {
        let mut blocks = Vec::new();
        for mount in self.bearers(mount) {
            for block in self.named_by(mount) {
                if !blocks.contains(&block) {
                    blocks.push(block);
                }
            }
        }
        blocks
    }

    /// The mounts whose file systems hold the files of this one: itself, or those below the layers
    /// of an overlay, each once. Empty where the layers' paths lead nowhere else: seen from inside
    /// a container they are the host's, and lead back to the overlay.
    pub(crate) fn bearers<'a>(&'a self, mount: &'a Mount) -> Vec<&'a Mount> {
        let mut seen: Vec<&Mount> = Vec::new();
        let mut bearers: Vec<&Mount> = Vec::new();
        let mut ahead = vec![mount];
        while let Some(mount) = ahead.pop() {
            if seen.contains(&mount) {
                continue;
            }
            seen.push(mount);
            if mount.fs_type == "overlay" {
                let layers = layers(mount);
                ahead.extend(layers.iter().rev().filter_map(|path| self.mount_of(path)));
            } else {
                bearers.push(mount);
            }
        }
        bearers
    }

    fn named_by<'a>(&'a self, mount: &Mount) -> Vec<&'a str> {
        if !mount.members.is_empty() {
            let known = mount.members.iter();
            let known = known.filter_map(|name| self.blocks.get_key_value(name));
            return known.map(|(name, _)| name.as_str()).collect();
        }
        let by_number = |block: &BlockDevice| block.number.as_deref() == Some(&mount.device);
        if let Some((name, _)) = self.blocks.iter().find(|(_, block)| by_number(block)) {
            return vec![name];
        }
        // bcachefs names all its devices: `/dev/sda:/dev/sdb`.
        let sources = mount.source.split(':');
        sources
            .filter_map(|source| block_named(&self.blocks, source))
            .collect()
    }

    /// The block devices from one down to the disks, each once, the given one first. Empty when
    /// there is no such block device.
    pub fn stack_under<'a>(&'a self, block: &'a str) -> Vec<(&'a str, &'a BlockDevice)> {
        self.stacks_under(vec![block])
    }

    /// The block devices from several down to the disks, each once.
    pub(crate) fn stacks_under<'a>(
        &'a self,
        mut ahead: Vec<&'a str>,
    ) -> Vec<(&'a str, &'a BlockDevice)> {
        let mut stack = Vec::new();
        let mut seen = BTreeSet::new();
        ahead.reverse();
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
        self.drives_in(&self.stack_under(block))
    }

    /// The physical drives of a stack of block devices, in the order of the topology.
    pub(crate) fn drives_in(&self, stack: &[(&str, &BlockDevice)]) -> Vec<&Drive> {
        let stack: BTreeSet<&str> = stack.iter().map(|(name, _)| *name).collect();
        self.drives
            .iter()
            .filter(|drive| drive.blocks.iter().any(|b| stack.contains(b.as_str())))
            .collect()
    }
}

/// The block device that a mount's source names: `/dev/NAME`, or `/dev/mapper/NAME` by the name of
/// the mapping.
pub(super) fn block_named<'a>(
    blocks: &'a BTreeMap<String, BlockDevice>,
    source: &str,
) -> Option<&'a str> {
    let name = source.strip_prefix("/dev/")?;
    if let Some((name, _)) = blocks.get_key_value(name) {
        return Some(name);
    }
    let mapped = name.strip_prefix("mapper/")?;
    blocks
        .iter()
        .find(|(_, block)| block.mapped_name.as_deref() == Some(mapped))
        .map(|(name, _)| name.as_str())
}

/// The folders that an overlay shows as one, the upper first (overlayfs of the kernel's
/// documentation): `upperdir=`, `lowerdir=` with colons between, and `lowerdir+=`, `datadir+=` once
/// for each.
fn layers(overlay: &Mount) -> Vec<String> {
    let given = |option: &'static str| {
        let values = overlay.options.iter();
        values.filter_map(move |o| o.strip_prefix(option))
    };
    let single = given("upperdir=")
        .chain(given("lowerdir+="))
        .chain(given("datadir+="))
        .map(str::to_owned);
    let mut layers: Vec<String> = single.collect();
    layers.extend(given("lowerdir=").flat_map(separated));
    layers
}

/// Paths between colons; a colon that is part of a path has a backslash before it.
fn separated(paths: &str) -> Vec<String> {
    let (mut all, mut path) = (Vec::new(), String::new());
    let mut characters = paths.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => path.extend(characters.next()),
            ':' => all.push(std::mem::take(&mut path)),
            other => path.push(other),
        }
    }
    all.push(path);
    // Two colons mark where the layers that hold only data begin.
    all.retain(|path| !path.is_empty());
    all
}
