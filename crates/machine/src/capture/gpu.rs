//! GPUs as the kernel's drivers describe them in files; NVML's answers are asked for elsewhere.

use super::recorder::Recorder;

const DRM: &str = "/sys/class/drm";
const NVIDIA: &str = "/proc/driver/nvidia";
const KFD: &str = "/sys/class/kfd/kfd/topology";

pub(super) fn look(r: &mut Recorder<'_>) {
    for name in r.list(DRM) {
        // `card0-DP-1` is a connector of `card0`; `version` is a file.
        if name.starts_with("card") && !name.contains('-') || name.starts_with("renderD") {
            r.link(format!("{DRM}/{name}/device"));
        }
    }
    r.texts(NVIDIA, &["version", "params", "registry"]);
    for gpu in r.list(format!("{NVIDIA}/gpus")) {
        r.text(format!("{NVIDIA}/gpus/{gpu}/information"));
    }
    compute_topology(r);
}

/// AMD's compute nodes, processors included, with the xGMI and PCIe links between them.
fn compute_topology(r: &mut Recorder<'_>) {
    r.text(format!("{KFD}/system_properties"));
    let nodes = format!("{KFD}/nodes");
    for node in r.list(nodes.as_str()) {
        let node = format!("{nodes}/{node}");
        r.texts(&node, &["gpu_id", "name", "properties"]);
        for below in ["io_links", "p2p_links", "mem_banks"] {
            let directory = format!("{node}/{below}");
            for entry in r.list(directory.as_str()) {
                r.text(format!("{directory}/{entry}/properties"));
            }
        }
    }
}
