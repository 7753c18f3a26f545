//! The seam between the engine and the kernel: requests go in, completions come out.
//!
//! Three kinds stand behind it: io_uring, plain positioned reads and writes, and, in tests, a fake
//! with seeded faults. The worker above is the same production code for all of them.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::Target;

pub(crate) mod blocking;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod uring;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

/// One request. It owns its memory and its file until it completes.
#[derive(Debug)]
pub(crate) struct Op {
    /// Which way.
    pub direction: Direction,
    /// The open file.
    pub file: Arc<File>,
    /// Offset in the file.
    pub offset: u64,
    /// The memory.
    pub target: Target,
    /// Index of a registered buffer that holds the memory, if any.
    pub registered: Option<u16>,
    /// The caller's mark, returned with the completion.
    pub token: usize,
}

/// One completion.
#[derive(Debug)]
pub(crate) struct Done {
    /// The request, whose memory is the caller's again.
    pub op: Op,
    /// Bytes moved, or the error number.
    pub result: Result<usize, i32>,
}

/// Takes requests and gives completions.
pub(crate) trait Io {
    /// Accepts a request; never more than [`Io::room`] of them.
    fn submit(&mut self, op: Op);

    /// Hands the requests accepted so far to the device, and waits for none of them; [`Io::wait`] does so too.
    fn send(&mut self) {}

    /// How many more requests fit.
    fn room(&self) -> usize;

    /// How many requests have not completed.
    fn in_flight(&self) -> usize;

    /// Whether requests go through a ring rather than one at a time.
    fn by_ring(&self) -> bool {
        true
    }

    /// Waits for at least one completion or for `patience` to pass, and appends what completed.
    fn wait(&mut self, patience: Duration, done: &mut Vec<Done>) -> io::Result<()>;
}

/// Runs a request to its completion on this thread.
fn run(op: Op) -> Done {
    let result = match op.direction {
        Direction::Read => op.target.read_from(op.file.as_fd(), op.offset),
        Direction::Write => op.target.write_to(op.file.as_fd(), op.offset),
    };
    Done {
        result: result.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)),
        op,
    }
}
