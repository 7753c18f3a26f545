//! Mounted file systems.

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
}
