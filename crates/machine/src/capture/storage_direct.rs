//! GPUDirect Storage: NVIDIA's kernel module, cuFile's configuration, and what both depend on.

use super::recorder::Recorder;

const NVIDIA_FS: &str = "/proc/driver/nvidia-fs";

pub(super) fn look(r: &mut Recorder<'_>) {
    r.list(NVIDIA_FS);
    r.texts(
        NVIDIA_FS,
        &[
            "version",
            "stats",
            "modules",
            "devcount",
            "devices",
            "bridges",
            "peer_affinity",
            "peer_distance",
        ],
    );
    r.text("/etc/cufile.json");
    if r.root().is_live() {
        configured(r, "CUFILE_ENV_PATH_JSON");
    }
    // cuFile finds the drive of a file through udev's database, and goes through host memory
    // where it cannot read it.
    r.list("/run/udev");
    r.kind("/run/udev/data");
}

/// Records the configuration file that an environment variable names.
fn configured(r: &mut Recorder<'_>, variable: &str) {
    if let Some(path) = std::env::var_os(variable).and_then(|path| path.into_string().ok())
        && path.starts_with('/')
    {
        r.text(path);
    }
}
