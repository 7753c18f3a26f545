//! The processor and the memory: NUMA nodes, huge pages, and what `/proc` says of both.

use super::recorder::Recorder;

const NODES: &str = "/sys/devices/system/node";
const CPUS: &str = "/sys/devices/system/cpu";
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// As much of `/proc/cpuinfo` as is read: its first block tells vendor, family, model and flags,
/// and reading the whole makes older kernels measure the frequency of every processor.
const CPUINFO_BYTES: usize = 8 << 10;

pub(super) fn look(r: &mut Recorder<'_>) {
    r.text("/proc/meminfo");
    first_processor(r);
    r.texts(CPUS, &["online", "present", "possible"]);
    for cpu in numbered(r.peek(CPUS), "cpu") {
        r.text(format!("{CPUS}/{cpu}/topology/physical_package_id"));
    }
    for node in numbered(r.list(NODES), "node") {
        let node = format!("{NODES}/{node}");
        r.texts(&node, &["cpulist", "meminfo", "distance"]);
        let pages = format!("{node}/hugepages");
        for size in r.list(pages.as_str()) {
            r.texts(
                &format!("{pages}/{size}"),
                &["nr_hugepages", "free_hugepages"],
            );
        }
    }
    for size in r.list(HUGE_PAGES) {
        r.texts(
            &format!("{HUGE_PAGES}/{size}"),
            &["nr_hugepages", "free_hugepages"],
        );
    }
    r.texts(THP, &["enabled", "defrag", "shmem_enabled"]);
}

/// Records the first block of `/proc/cpuinfo` only.
fn first_processor(r: &mut Recorder<'_>) {
    use crowfly_route::snapshot::Observation;
    let path = "/proc/cpuinfo";
    let seen = match r.root().head(path, CPUINFO_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let block = text.trim_start().split("\n\n").next().unwrap_or_default();
            Observation::text(block.trim_end())
        }
        Err(refusal) => crate::root::refusal(refusal),
    };
    r.record(path, seen);
}

/// The entries that are `prefix` and a number, in number order.
fn numbered(names: Vec<String>, prefix: &str) -> Vec<String> {
    let number = |name: &String| {
        let digits = name.strip_prefix(prefix)?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u32>().ok().filter(|_| plain)
    };
    let mut found: Vec<_> = names
        .into_iter()
        .filter_map(|name| Some((number(&name)?, name)))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}
