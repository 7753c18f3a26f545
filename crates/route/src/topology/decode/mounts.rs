//! Mounted file systems, from `/proc/self/mountinfo` (proc(5)), or else from the older
//! `/proc/mounts`, which has no device numbers and does not tell what covers what; the devices of a
//! btrfs from `/sys/fs/btrfs/UUID/devices`.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::Snapshot;
use crate::topology::storage::block_named;
use crate::topology::{BlockDevice, Mount, Oddity};

const MOUNTINFO: &str = "/proc/self/mountinfo";
const MOUNTS: &str = "/proc/mounts";
const BTRFS: &str = "/sys/fs/btrfs/";
/// The most mounts on one point that are followed.
const MAX_STACKED: usize = 64;
/// The longest mount point, `PATH_MAX`.
const MAX_POINT: usize = 4096;

struct Line {
    id: u64,
    parent: u64,
    mount: Mount,
}

pub(super) fn decode(
    snapshot: &Snapshot,
    blocks: &BTreeMap<String, BlockDevice>,
    oddities: &mut Vec<Oddity>,
) -> Vec<Mount> {
    let mut mounts = table(snapshot, oddities);
    let file_systems: Vec<&[String]> = snapshot
        .under(BTRFS)
        .filter(|(key, _)| key.ends_with("/devices"))
        .map(|(key, _)| snapshot.list(key))
        .collect();
    for mount in mounts.iter_mut().filter(|m| m.fs_type == "btrfs") {
        let named = block_named(blocks, &mount.source);
        let whole = named.and_then(|n| file_systems.iter().find(|d| d.iter().any(|d| d == n)));
        mount.members = match (whole, named) {
            (Some(devices), _) => devices.to_vec(),
            (None, Some(device)) => vec![device.to_owned()],
            (None, None) => Vec::new(),
        };
    }
    mounts
}

fn table(snapshot: &Snapshot, oddities: &mut Vec<Oddity>) -> Vec<Mount> {
    let Some(text) = snapshot.text(MOUNTINFO) else {
        let text = snapshot.text(MOUNTS).unwrap_or_default();
        return lines(MOUNTS, text, old_line, oddities);
    };
    let lines = lines(MOUNTINFO, text, line, oddities);
    let reachable = reachable(&lines);
    lines
        .into_iter()
        .filter(|line| reachable.contains(&line.id))
        .map(|line| line.mount)
        .collect()
}

fn lines<T>(
    file: &str,
    text: &str,
    read: impl Fn(&str) -> Option<T>,
    oddities: &mut Vec<Oddity>,
) -> Vec<T> {
    let mut all = Vec::new();
    for (number, text) in (1u32..).zip(text.lines()) {
        match read(text) {
            Some(line) => all.push(line),
            None if text.trim().is_empty() => {}
            None => oddities.push(Oddity::new(
                format!("{file}:{number}"),
                "not a line of the mount table; left out",
            )),
        }
    }
    all
}

/// `/dev/sda1 /mnt/data ext4 rw,noatime 0 0`
fn old_line(text: &str) -> Option<Mount> {
    let mut fields = text.split(' ');
    let source = unescape(fields.next()?);
    let point = fields
        .next()
        .map(unescape)
        .filter(|p| p.len() <= MAX_POINT)?;
    Some(Mount {
        point,
        source,
        fs_type: unescape(fields.next()?),
        options: fields.next()?.split(',').map(unescape).collect(),
        device: String::new(),
        members: Vec::new(),
    })
}

/// `36 35 98:0 /root /mnt/data rw,noatime shared:1 - ext4 /dev/sda1 rw,data=ordered`
fn line(text: &str) -> Option<Line> {
    let (front, back) = text.split_once(" - ")?;
    let mut front = front.split(' ');
    let (id, parent) = (front.next()?.parse().ok()?, front.next()?.parse().ok()?);
    let device = front.next()?.to_owned();
    let _root_within_file_system = front.next()?;
    let point = front
        .next()
        .map(unescape)
        .filter(|p| p.len() <= MAX_POINT)?;
    let mount_options = front.next()?;
    let mut back = back.split(' ');
    let fs_type = unescape(back.next()?);
    let source = unescape(back.next()?);
    let super_options = back.next().unwrap_or_default();
    let mut seen = BTreeSet::new();
    let options = mount_options
        .split(',')
        .chain(super_options.split(','))
        .filter(|option| !option.is_empty() && seen.insert(*option))
        .map(unescape)
        .collect();
    Some(Line {
        id,
        parent,
        mount: Mount {
            point,
            fs_type,
            source,
            options,
            device,
            members: Vec::new(),
        },
    })
}

/// The kernel writes space, tab, newline, `\` and `#` as `\` and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0u32, |value, digit| {
                matches!(digit, b'0'..=b'7').then(|| value * 8 + u32::from(digit - b'0'))
            })
        };
        let escaped = (*first == b'\\')
            .then(|| tail.get(..3).and_then(octal))
            .flatten()
            .and_then(|value| u8::try_from(value).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The mounts that a path can reach, by their number.
///
/// A lookup walks down the path and steps onto whatever is mounted on the mount it is in, so a
/// mount is covered when walking to its own point ends in another one.
fn reachable(lines: &[Line]) -> BTreeSet<u64> {
    let known: BTreeSet<u64> = lines.iter().map(|l| l.id).collect();
    let mut on: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    let mut root = None;
    for line in lines {
        if line.mount.point == "/" && (line.parent == line.id || !known.contains(&line.parent)) {
            root = Some(line.id);
        } else {
            on.insert((line.parent, line.mount.point.as_str()), line.id);
        }
    }
    // Without a root the numbers do not fit together: hide nothing.
    let Some(root) = root else {
        return known;
    };
    let covered_by = |mut at: u64, point: &str| {
        // Mounts stacked on one point each cover the one below; circles are cut.
        for _ in 0..MAX_STACKED {
            match on.get(&(at, point)) {
                Some(next) => at = *next,
                None => break,
            }
        }
        at
    };
    let arrives = |point: &str| {
        let ends = point.match_indices('/').map(|(end, _)| end).skip(1);
        ends.chain([point.len()])
            .filter_map(|end| point.get(..end))
            .fold(covered_by(root, "/"), covered_by)
    };
    lines
        .iter()
        .filter(|line| arrives(&line.mount.point) == line.id)
        .map(|line| line.id)
        .collect()
}
