//! How much memory can still be filled before the kernel ends a process for it.

use std::fs;
use std::path::{Path, PathBuf};

/// What a hierarchy of control groups calls its figures.
struct Names {
    base: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Pages of files, which the kernel gives up before it ends anybody.
    files: [&'static str; 2],
}

const VERSION_1: Names = Names {
    base: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Names = Names {
    base: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    files: ["inactive_file", "active_file"],
};

/// Bytes that this process can fill: what the machine has available, swap included, and what the
/// limits of its control groups leave, whichever is least. `None` when neither is told.
pub fn memory_room() -> Option<u64> {
    room(Path::new("/"))
}

fn room(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let names = match controllers {
            "" => VERSION_2,
            named if named.split(',').any(|name| name == "memory") => VERSION_1,
            _ => return None,
        };
        below_limits(root, &names, group)
    });
    of_groups.chain(of_machine(root)).min()
}

fn of_machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name| value(&text, name);
    let free = kib("MemAvailable:")? + kib("SwapFree:").unwrap_or(0);
    Some(free * 1024)
}

/// The least room below the limits of a group and of all it belongs to. A container may see its group
/// under another name or as the top one, so what is not there limits nothing.
fn below_limits(root: &Path, names: &Names, group: &str) -> Option<u64> {
    let base = root.join(names.base);
    let parts: Vec<&str> = group.split('/').filter(|part| !part.is_empty()).collect();
    let climbs = parts.contains(&"..");
    let depths = if climbs { 0..=0 } else { 0..=parts.len() };
    depths
        .filter_map(|depth| {
            let folder: PathBuf = base.join(parts.get(..depth)?.join("/"));
            let figure = |file| fs::read_to_string(folder.join(file)).ok();
            let number = |file| figure(file)?.trim().parse::<u64>().ok();
            let stat = figure("memory.stat").unwrap_or_default();
            let files: u64 = names
                .files
                .iter()
                .filter_map(|name| value(&stat, name))
                .sum();
            let held = number(names.usage)?.saturating_sub(files);
            Some(number(names.limit)?.saturating_sub(held))
        })
        .min()
}

/// The number behind a name at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:  1000 kB\nMemAvailable:  600 kB\nSwapFree:  40 kB\n";

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn given_no_groups_the_machine_alone_counts_and_given_nothing_nothing_is_known() {
        let alone = machine(&[("proc/meminfo", MEMINFO)]);
        assert_eq!(room(alone.path()), Some(640 * 1024));
        assert_eq!(room(machine(&[]).path()), None);
    }

    #[test]
    fn given_a_limit_above_in_version_2_the_least_room_counts_and_file_pages_are_free() {
        let root = machine(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/pod/job\n"),
            ("sys/fs/cgroup/pod/memory.max", "300000\n"),
            ("sys/fs/cgroup/pod/memory.current", "250000\n"),
            (
                "sys/fs/cgroup/pod/memory.stat",
                "anon 1\ninactive_file 100000\nactive_file 50000\n",
            ),
            ("sys/fs/cgroup/pod/job/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/job/memory.current", "250000\n"),
        ]);
        assert_eq!(room(root.path()), Some(200_000));
    }

    #[test]
    fn given_version_1_its_own_names_are_read_and_other_controllers_are_not() {
        let root = machine(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "5:cpu:/a\n4:memory:/job\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900\n"),
            (
                "sys/fs/cgroup/memory/job/memory.stat",
                "total_inactive_file 300\n",
            ),
        ]);
        assert_eq!(room(root.path()), Some(400));
    }
}
