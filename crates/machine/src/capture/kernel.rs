//! The kernel: version, command line, configuration, modules, symbols and settings.

use super::recorder::Recorder;

mod config;
mod modules;
mod symbols;

const SYSCTL: &str = "/proc/sys";
const SETTINGS: &[&str] = &[
    "kernel/osrelease",
    "kernel/numa_balancing",
    "kernel/io_uring_disabled",
    "kernel/io_uring_group",
    "kernel/randomize_va_space",
    "kernel/perf_event_paranoid",
    "kernel/shmmax",
    "vm/nr_hugepages",
    "vm/nr_overcommit_hugepages",
    "vm/overcommit_memory",
    "vm/max_map_count",
    "vm/zone_reclaim_mode",
    "vm/dirty_ratio",
    "vm/dirty_background_ratio",
    "fs/aio-max-nr",
    "fs/nr_open",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_wmem",
    "net/ipv4/tcp_congestion_control",
];

pub(super) fn look(r: &mut Recorder<'_>) {
    r.text("/proc/version");
    r.text("/proc/cmdline");
    r.texts(SYSCTL, SETTINGS);
    r.list("/sys/class/iommu");
    r.text("/sys/module/pcie_aspm/parameters/policy");
    modules::look(r);
    config::look(r);
    symbols::look(r);
    peer_memory(r);
}

/// Who registered as a provider of peer memory with the RDMA stack, in every place that
/// distributions of that stack have used.
fn peer_memory(r: &mut Recorder<'_>) {
    const PEERS: &str = "/sys/kernel/mm/memory_peers";
    r.list(PEERS);
    for client in ["nv_mem", "nv_mem_nc", "amdkfd"] {
        r.text(format!("{PEERS}/{client}/version"));
    }
    r.text("/sys/kernel/memory_peers/amdkfd/version");
    r.text("/sys/memory_peers/amdkfd/version");
}
