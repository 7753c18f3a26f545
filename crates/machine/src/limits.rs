//! Limits of this process that a transfer must know before it meets them.

mod room;

pub use room::memory_room;

use rustix::process::{Resource, getrlimit};

/// The most bytes a file may have that this process writes (`ulimit -f`); `None` when there is no
/// such limit.
///
/// The kernel ends a process that writes past it (SIGXFSZ) before any call returns an error, so it
/// has to be asked first.
pub fn largest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// The permissions that files made by this process do not get (`umask(2)`), as the kernel shows them:
/// asking by the call itself would change them for a moment, under every thread. All but the owner's
/// where they cannot be seen.
pub fn file_mask() -> u32 {
    const PRIVATE: u32 = 0o077;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(PRIVATE)
}
