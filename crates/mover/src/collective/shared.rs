//! Memory of a group: a buffer of each rank that the others of its host have mapped, so that an
//! all-reduce works where the numbers lie and copies nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::error::CollectiveError;
use crate::fabric::{Backing, Buffer, Caches, Region};

/// Ranges of a shared buffer begin at multiples of this many bytes: a cache line, and whole numbers
/// of every kind.
pub const SHARED_ALIGNMENT: usize = 64;

pub(super) enum Memory {
    /// This rank's alone: the ranks are on several hosts.
    Own(Buffer),
    /// All ranks'.
    Shared {
        #[expect(dead_code, reason = "held for its drop: others map it")]
        region: Arc<Region>,
        /// This rank's.
        own: Arc<Backing>,
        /// Those of all ranks, in their order.
        all: Vec<Arc<Backing>>,
    },
}

/// A buffer of this rank in a group's memory ([`Group::buffer`](super::Group::buffer)). Where all
/// ranks are on one host, each has mapped those of all others.
///
/// Other ranks write into it while they are in a call on it, and only then, so it is read and
/// written by copies, or by raw pointers outside of calls.
pub struct SharedBuffer {
    pub(super) group: u64,
    /// Which of the group's buffers it is.
    pub(super) number: u32,
    pub(super) memory: Memory,
    len: usize,
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_shared() { "shared" } else { "own" };
        write!(f, "SharedBuffer({} bytes, {kind})", self.len)
    }
}

impl SharedBuffer {
    pub(super) const fn new(group: u64, number: u32, len: usize, memory: Memory) -> Self {
        Self {
            group,
            number,
            memory,
            len,
        }
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the other ranks have mapped it, so that collectives on it need no copies.
    pub const fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared { .. })
    }

    /// The first byte, for libraries that work on addresses. Valid as long as this lives; others
    /// write to the bytes while this rank is in a call on them.
    pub fn as_ptr(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Own(buffer) => buffer
                .as_mut_slice()
                .map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr),
            Memory::Shared { own, .. } => own.as_ptr(),
        }
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Errors
    /// [`CollectiveError::BadCall`] where they do not lie inside.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), CollectiveError> {
        let range = self.inside(at, bytes.len())?;
        match &mut self.memory {
            Memory::Own(buffer) => {
                let place = buffer.as_mut_slice().and_then(|all| all.get_mut(range));
                place.unwrap_or_default().copy_from_slice(bytes);
            }
            Memory::Shared { own, .. } => {
                own.copy_in(at, bytes, Caches::Keep);
            }
        }
        Ok(())
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    /// [`CollectiveError::BadCall`] where they do not lie inside.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), CollectiveError> {
        let range = self.inside(at, out.len())?;
        match &self.memory {
            Memory::Own(buffer) => {
                out.copy_from_slice(buffer.as_slice().get(range).unwrap_or_default());
            }
            Memory::Shared { own, .. } => {
                own.copy_out(at, out, Caches::Keep);
            }
        }
        Ok(())
    }

    /// A range of it.
    fn inside(&self, at: usize, len: usize) -> Result<Range<usize>, CollectiveError> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        end.map(|end| at..end).ok_or_else(|| {
            let what = format!(
                "{len} bytes from {at} on of a shared buffer of {}",
                self.len
            );
            CollectiveError::BadCall {
                collective: "shared buffer",
                what,
            }
        })
    }

    /// A range that a collective may work on.
    pub(super) fn usable(&self, range: &Range<usize>) -> Result<(), CollectiveError> {
        self.inside(range.start, range.len())?;
        if range.start.is_multiple_of(SHARED_ALIGNMENT) {
            return Ok(());
        }
        let start = range.start;
        Err(CollectiveError::BadCall {
            collective: "shared buffer",
            what: format!("byte {start}, where it begins, is no multiple of {SHARED_ALIGNMENT}"),
        })
    }
}
