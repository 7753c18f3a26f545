//! The detour by a buffer: where large pieces of fresh memory are slow to get and small ones are slow for the drive
//! to write to, the drive fills large buffers that are used again and again, and a core copies out of them.

use crowfly_machine::huge_pages;

use super::{Ring, Worker};
use crate::digest::GRID;
use crate::error::TransferError;
use crate::fresh::Landfall;
use crate::io::{Direction, Io};
use crate::job::Lane;
use crate::memory::Memory;
use crate::source::Direct;
use crate::work::{Chunk, Way};

/// Buffers of each worker: one is copied out of while the drive fills the others.
const BUFFERS: usize = 4;

impl<I: Io> Worker<'_, I> {
    /// Where a direct read of the lane had best land, of what it may.
    pub(super) fn landfall(&self, lane: &Lane) -> Landfall {
        match lane.may_detour && self.job.direction == Direction::Read {
            true => self.job.fresh().landfall(),
            false => Landfall::Destination,
        }
    }

    /// Makes the buffers where there are none yet; whether one is free. Without huge pages they would lie as
    /// scattered as the destination.
    pub(super) fn has_buffers(&mut self) -> bool {
        if self.ring.is_none() && huge_pages::forbidden().is_none() {
            let memory = Memory::host(BUFFERS * GRID as usize, None);
            self.ring = memory.ok().map(|memory| Ring::new(memory, BUFFERS));
        }
        self.ring.as_ref().is_some_and(|ring| !ring.free.is_empty())
    }

    /// Reads a chunk into a buffer.
    pub(super) fn bounce(&mut self, chunk: Chunk, direct: &Direct) {
        self.meet_slow_memory();
        let chunk = Chunk {
            way: Way::Bounce,
            ..chunk
        };
        let span = chunk.span(direct.align);
        self.launch(chunk, span);
    }

    /// Copies a chunk out of its buffer into its destination.
    pub(super) fn put_down(
        &mut self,
        chunk: &Chunk,
        buffer: &crate::memory::Target,
        slot: Option<usize>,
    ) {
        let Some(target) = self.lane(chunk).landing.target(&chunk.wanted) else {
            return self.job.fail(TransferError::WorkerDied);
        };
        self.job.fresh().fill(&target);
        buffer.with_bytes(|bytes| target.put(0, bytes));
        self.ledger.bounced += target.len() as u64;
        self.release(slot);
        self.landed(chunk, &target);
    }
}
