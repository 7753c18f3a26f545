//! Mounted file systems.

use crowfly_route::snapshot::Observation;

use super::recorder::Recorder;

/// A node that runs many containers has thousands of mounts of some two hundred bytes each.
const MAX_MOUNTS_BYTES: usize = crowfly_route::snapshot::MAX_VALUE_BYTES;

pub(super) fn look(r: &mut Recorder<'_>) {
    let path = "/proc/self/mountinfo";
    r.text_up_to(path, MAX_MOUNTS_BYTES);
    if r.seen(path).is_none() {
        // Copies of machines made by other tools often have only this older table.
        r.text_up_to("/proc/mounts", MAX_MOUNTS_BYTES);
    }
    r.text("/proc/filesystems");
    btrfs(r);
}

/// The devices of each mounted btrfs: the mount table names one of them.
fn btrfs(r: &mut Recorder<'_>) {
    const BTRFS: &str = "/sys/fs/btrfs";
    for name in r.peek(BTRFS) {
        // Besides a directory for each file system, named by its UUID, there is `features`.
        let devices = format!("{BTRFS}/{name}/devices");
        if matches!(r.root().kind(&devices), Observation::Value(_)) {
            r.list(devices);
        }
    }
}
