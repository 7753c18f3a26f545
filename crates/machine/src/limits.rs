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
