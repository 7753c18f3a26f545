//! What a machine is and has, in the words that several rules need.

use crowfly_route::topology::GpuVendor;

use crate::case::Machine;

pub(crate) fn has_nvidia_gpu(machine: &Machine) -> bool {
    machine
        .topology
        .gpus
        .iter()
        .any(|gpu| gpu.vendor == GpuVendor::Nvidia)
}

pub(crate) fn has_amd_gpu(machine: &Machine) -> bool {
    machine.topology.gpus.iter().any(|gpu| {
        gpu.vendor == GpuVendor::Amd && crate::facts::site::is_compute(gpu.vendor, &gpu.name)
    })
}

pub(crate) fn has_rdma(machine: &Machine) -> bool {
    machine
        .topology
        .nics
        .iter()
        .any(|nic| !nic.ports.is_empty())
}

pub(crate) fn is_virtual(machine: &Machine) -> bool {
    machine.topology.host.hypervisor.is_some()
}

/// Whether a kernel module is loaded; `None` when nobody looked.
pub(crate) fn module_loaded(machine: &Machine, name: &str) -> Option<bool> {
    let key = format!("/sys/module/{name}");
    if machine.has(&key) {
        return Some(true);
    }
    let listed = machine.text("/proc/modules").map(|modules| {
        modules
            .lines()
            .any(|line| line.split(' ').next() == Some(name))
    });
    match listed {
        Some(true) => Some(true),
        _ if machine.lacks(&key) => Some(false),
        listed => listed,
    }
}

/// Whether NVIDIA's peer memory client is there, under any of its names.
pub(crate) fn peermem_loaded(machine: &Machine) -> Option<bool> {
    let old = ["nv_mem", "nv_mem_nc"]
        .iter()
        .any(|name| machine.has(&format!("/sys/kernel/mm/memory_peers/{name}/version")));
    if old {
        return Some(true);
    }
    let modules = [
        module_loaded(machine, "nvidia_peermem"),
        module_loaded(machine, "nv_peer_mem"),
    ];
    if modules.contains(&Some(true)) {
        Some(true)
    } else {
        modules.into_iter().flatten().next()
    }
}

/// The kernel's version as two numbers; `None` when it was not looked at.
pub(crate) fn kernel(machine: &Machine) -> Option<(u32, u32)> {
    let release = machine.topology.host.kernel.as_deref()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(crate) fn kernel_at_least(machine: &Machine, version: (u32, u32)) -> Option<bool> {
    kernel(machine).map(|found| found >= version)
}
