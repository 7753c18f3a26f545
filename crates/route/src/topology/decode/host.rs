//! The processor, kernel, hypervisor and container, from `/proc/cpuinfo`, `uname:release`,
//! `/proc/sys/kernel/osrelease`,
//! `uname:machine`, `/sys/devices/system/cpu/cpuN/topology/physical_package_id`, `/sys/hypervisor/type`, `/sys/class/dmi/id/{sys_vendor,product_name}`,
//! `env:container`, `env:KUBERNETES_SERVICE_HOST`, `/.dockerenv`, `/run/.containerenv` and
//! `/proc/self/cgroup`.

use std::collections::BTreeSet;

use crate::snapshot::{Observation, Snapshot};
use crate::topology::{Host, NumaInfo};

pub(super) fn decode(snapshot: &Snapshot, numa: &[NumaInfo]) -> Host {
    let cpuinfo = snapshot.text("/proc/cpuinfo").unwrap_or_default();
    let text = |key: &str| snapshot.text(key).map(str::to_owned);
    Host {
        cpu_vendor: field(cpuinfo, "vendor_id")
            .or_else(|| field(cpuinfo, "CPU implementer"))
            .map(str::to_owned),
        cpu_family: field(cpuinfo, "cpu family").and_then(|v| v.parse().ok()),
        cpu_model: field(cpuinfo, "model").and_then(|v| v.parse().ok()),
        cpu_name: field(cpuinfo, "model name")
            .or_else(|| field(cpuinfo, "cpu"))
            .map(str::to_owned),
        sockets: sockets(snapshot, cpuinfo, numa),
        // Of a copied tree there is no `uname`.
        kernel: text("uname:release").or_else(|| text("/proc/sys/kernel/osrelease")),
        machine: text("uname:machine"),
        hypervisor: hypervisor(snapshot, cpuinfo),
        container: container(snapshot),
    }
}

/// The value of the first `name : value` line whose name is exactly this.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Packages that the CPUs are in. `/proc/cpuinfo` may hold the first CPU alone, and a NUMA node
/// may span packages, so the sources are put together.
fn sockets(snapshot: &Snapshot, cpuinfo: &str, numa: &[NumaInfo]) -> Option<u32> {
    let of_nodes = numa.iter().filter_map(|node| node.socket);
    let of_cpus = snapshot
        .under("/sys/devices/system/cpu/cpu")
        .filter(|(key, _)| key.ends_with("/topology/physical_package_id"))
        .filter_map(|(key, _)| snapshot.number(key));
    let listed = cpuinfo.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "physical id").then(|| value.trim().parse().ok())?
    });
    let packages: BTreeSet<u32> = of_nodes.chain(of_cpus).chain(listed).collect();
    (!packages.is_empty()).then_some(packages.len() as u32)
}

fn hypervisor(snapshot: &Snapshot, cpuinfo: &str) -> Option<String> {
    let dmi = |file: &str| {
        snapshot
            .text(&format!("/sys/class/dmi/id/{file}"))
            .unwrap_or_default()
    };
    let (vendor, product) = (dmi("sys_vendor"), dmi("product_name"));
    let by_firmware = || {
        let named = [
            ("QEMU", "QEMU"),
            ("VMware", "VMware"),
            ("innotek", "VirtualBox"),
            ("Xen", "Xen"),
            ("Amazon EC2", "Amazon EC2"),
            ("Google", "Google Compute Engine"),
            ("OpenStack", "OpenStack"),
            ("Parallels", "Parallels"),
        ];
        named
            .iter()
            .find(|(start, _)| vendor.starts_with(start) || product.starts_with(start))
            .map(|(_, name)| *name)
            .or((product == "Virtual Machine").then_some("Hyper-V"))
            .or(product.starts_with("KVM").then_some("KVM"))
    };
    // Bare metal of Amazon and Google carries their names too: only the processor's own flag
    // tells the two apart, and processors other than x86 have none.
    let flagged = field(cpuinfo, "flags").map(|f| f.split_whitespace().any(|f| f == "hypervisor"));
    let virtual_firmware = ["QEMU", "VMware", "innotek", "Xen"]
        .iter()
        .any(|start| vendor.starts_with(start));
    match snapshot.text("/sys/hypervisor/type") {
        Some("none") | None if flagged.unwrap_or(virtual_firmware) => {
            Some(by_firmware().unwrap_or("unnamed hypervisor").to_owned())
        }
        Some("none") | None => None,
        Some(kind) => Some(kind.to_owned()),
    }
}

fn container(snapshot: &Snapshot) -> Option<String> {
    let exists = |key: &str| matches!(snapshot.get(key), Some(Observation::Value(_)));
    let cgroup = snapshot.text("/proc/self/cgroup").unwrap_or_default();
    let by_cgroup = ["kubepods", "docker", "libpod", "containerd", "lxc"]
        .into_iter()
        .find(|name| cgroup.contains(name));
    if exists("env:KUBERNETES_SERVICE_HOST") {
        return Some("kubernetes".into());
    }
    if let Some(name) = snapshot.text("env:container").filter(|n| !n.is_empty()) {
        return Some(name.to_owned());
    }
    if exists("/run/.containerenv") {
        return Some("podman".into());
    }
    if exists("/.dockerenv") {
        return Some("docker".into());
    }
    by_cgroup.map(|name| match name {
        "kubepods" => "kubernetes".into(),
        "libpod" => "podman".into(),
        name => name.into(),
    })
}
