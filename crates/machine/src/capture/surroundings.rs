//! What surrounds the process: container, hypervisor, firmware, and the device nodes it was given.

use crowfly_route::snapshot::Observation;

use super::recorder::Recorder;

const DMI: &str = "/sys/class/dmi/id";

pub(super) fn look(r: &mut Recorder<'_>) {
    for marker in [
        "/.dockerenv",
        "/run/.containerenv",
        "/run/systemd/container",
    ] {
        r.kind(marker);
    }
    for file in ["/proc/1/cgroup", "/proc/self/cgroup", "/proc/self/uid_map"] {
        r.text(file);
    }
    control_groups(r);
    // Never serial numbers or UUIDs: nothing needs them, and they name the machine.
    r.texts(
        DMI,
        &[
            "sys_vendor",
            "product_name",
            "product_version",
            "board_vendor",
            "board_name",
            "bios_vendor",
            "bios_version",
            "chassis_type",
        ],
    );
    r.text("/sys/hypervisor/type");
    r.texts("/proc/device-tree", &["model", "compatible"]);
    r.text("/etc/nccl.conf");
    device_nodes(r);
}

/// Limits that a container's control group sets, in the second version's tree and the first's.
fn control_groups(r: &mut Recorder<'_>) {
    r.texts(
        "/sys/fs/cgroup",
        &[
            "memory.max",
            "cpu.max",
            "cpuset.cpus.effective",
            "cpuset.mems.effective",
            "memory/memory.limit_in_bytes",
            "cpuset/cpuset.effective_cpus",
            "cpuset/cpuset.effective_mems",
        ],
    );
}

/// Records the device nodes that drivers are reached through: what each is, denied where this
/// process may not read and write it. None is opened.
fn device_nodes(r: &mut Recorder<'_>) {
    for node in [
        "kfd",
        "gdrdrv",
        "udmabuf",
        "nvidiactl",
        "nvidia-uvm",
        "aperture_devices",
    ] {
        device_node(r, &format!("/dev/{node}"));
    }
    for directory in ["/dev/infiniband", "/dev/dri", "/dev/dma_heap"] {
        for name in r.list(directory) {
            device_node(r, &format!("{directory}/{name}"));
        }
    }
    for name in r.peek("/dev") {
        let numbered = |prefix: &str| {
            name.strip_prefix(prefix)
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if numbered("nvidia") || numbered("nvidia-fs") {
            device_node(r, &format!("/dev/{name}"));
        }
    }
}

fn device_node(r: &mut Recorder<'_>, path: &str) {
    let seen = match r.root().kind(path) {
        kind @ Observation::Value(_) => match r.root().usable(path) {
            Ok(()) => kind,
            Err(refused) => refused,
        },
        refused => refused,
    };
    r.record(path, seen);
}
