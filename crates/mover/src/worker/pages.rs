//! The ways that need no request in flight: fresh pages for a direct read, the page cache's pages as
//! the destination, and copies out of it.

use std::ops::Range;
use std::os::fd::AsFd;

use crowfly_route::obstacle::{Code, Confidence, Fix, Obstacle};

use super::{MAX_ATTEMPTS, Worker, failed};
use crate::error::TransferError;
use crate::io::{Direction, Io};
use crate::job::{Lane, Ledger};
use crate::memory::BLOCK;
use crate::work::{Chunk, Way};

/// Chunks that the page cache is asked to read before they are mapped.
const READ_AHEAD: usize = 8;

impl<I: Io> Worker<'_, I> {
    /// Has the kernel give host memory its pages now, of the size that has proved cheaper.
    pub(super) fn take_fresh_memory(&mut self, lane: &Lane, span: &Range<u64>) {
        let Some(target) = lane
            .landing
            .target(span)
            .filter(|_| lane.landing.is_plain())
        else {
            return;
        };
        if self.job.direction == Direction::Write {
            return;
        }
        let fresh = self.job.fresh();
        if !fresh.take_huge() {
            self.meet_slow_memory();
        }
        fresh.fill(&target);
    }

    pub(super) fn meet_slow_memory(&mut self) {
        if let Some(rate) = self.job.fresh().slow() {
            self.ledger.meet(
                Obstacle::slows(Code::SlowFreshMemory, "fresh memory costs more than copying out of the page cache")
                    .seen("madvise(MADV_POPULATE_WRITE)", format!("{rate} of CPU time in huge pages on this machine"))
                    .with_confidence(Confidence::Likely)
                    .fixed_by(Fix::by_hand(
                        "In a virtual machine, turn off free page reporting and ballooning, or back the guest with huge pages.",
                    )),
            );
        }
    }

    /// Takes the page cache's pages as the destination, because fresh memory is slow to get.
    pub(super) fn map_instead(&mut self, chunk: Chunk) {
        let lane = self.lane(&chunk);
        let chunk = Chunk {
            way: Way::Map,
            ..chunk
        };
        let span = chunk.span(BLOCK as u64);
        let mapped = lane
            .landing
            .target(&span)
            .map(|t| t.map_file(lane.buffered.as_fd(), span.start));
        if !matches!(mapped, Some(Ok(()))) {
            return self.copy(chunk);
        }
        self.meet_slow_memory();
        let mapped = |ledger: &Ledger| ledger.delivered.get(&Way::Map).copied().unwrap_or(0);
        let before = mapped(&self.ledger);
        self.map(chunk);
        self.ledger.mapped_instead += mapped(&self.ledger) - before;
    }

    /// Starts reading what of this chunk and of those soon to come is not in the page cache.
    fn read_ahead(&self, chunk: &Chunk) {
        let lane = self.lane(chunk);
        // The kernel would look for every page only to find that it is there.
        if lane.was_cached {
            return;
        }
        // This one too: what the kernel reads ahead by itself lies in large pieces of memory, which a virtual
        // machine may first have to fetch from its host.
        for next in self.job.to_read_ahead(chunk, 1 + READ_AHEAD) {
            let length = std::num::NonZeroU64::new(next.wanted.end - next.wanted.start);
            let _ = rustix::fs::fadvise(
                &*lane.buffered,
                next.wanted.start,
                length,
                rustix::fs::Advice::WillNeed,
            );
        }
    }

    /// The page cache's pages are the destination already; bring them in.
    pub(super) fn map(&mut self, chunk: Chunk) {
        let lane = self.lane(&chunk);
        let span = chunk.span(BLOCK as u64);
        let Some(target) = lane.landing.target(&span) else {
            return self.copy(chunk);
        };
        self.read_ahead(&chunk);
        match target.populate() {
            Ok(()) => {
                let lead = (chunk.wanted.start - span.start) as usize;
                let wanted = target.part(lead, (chunk.wanted.end - chunk.wanted.start) as usize);
                self.landed(&chunk, &wanted);
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                let (offset, wanted) = (chunk.wanted.start, &chunk.wanted);
                let error = failed(lane, self.job.direction, offset, wanted, libc::EFAULT);
                self.job.fail(error);
            }
            // A kernel before 5.14: fresh memory, which cannot vanish with the file, and a copy.
            Err(_) => {
                let _ = target.let_go_of_file();
                self.copy(chunk);
            }
        }
    }

    /// Moves a chunk by kernel copies between the page cache and the destination.
    pub(super) fn copy(&mut self, chunk: Chunk) {
        let chunk = Chunk {
            way: Way::Copy,
            ..chunk
        };
        let slot = self.ring.as_mut().and_then(|ring| ring.free.pop());
        self.copy_by(chunk, slot);
    }

    /// The same with a buffer of the ring's that was taken already.
    pub(super) fn copy_by(&mut self, chunk: Chunk, slot: Option<usize>) {
        let lane = self.lane(&chunk);
        let Some(target) = self.target(&chunk, &chunk.wanted, slot) else {
            return self.job.fail(TransferError::WorkerDied);
        };
        let length = chunk.wanted.end - chunk.wanted.start;
        let (mut got, mut attempts) = (0, 0);
        while got < length && !self.job.stopped() {
            let offset = chunk.wanted.start + got;
            let rest = target.part(got as usize, (length - got) as usize);
            let result = match self.job.direction {
                Direction::Read => rest.read_from(lane.buffered.as_fd(), offset),
                Direction::Write => rest.write_to(lane.buffered.as_fd(), offset),
            };
            match result {
                Ok(0) => self.job.fail(self.ended(lane, offset)),
                Ok(bytes) => {
                    got += bytes as u64;
                    self.ledger.retries += u64::from(got < length);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) if attempts < MAX_ATTEMPTS => {
                        attempts += 1;
                        self.ledger.retries += 1;
                    }
                    code => {
                        let code = code.unwrap_or(libc::EIO);
                        self.job.fail(failed(
                            lane,
                            self.job.direction,
                            offset,
                            &chunk.wanted,
                            code,
                        ));
                    }
                },
            }
        }
        if got < length {
            return self.release(slot);
        }
        self.ledger.bounced += length;
        self.delivered(chunk, target, slot);
    }
}
