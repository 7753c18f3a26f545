//! The loop that every transfer's threads run: keep requests in flight, finish short ones, retry
//! interrupted ones, and account for every byte where it landed.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::digest;
use crate::error::TransferError;
use crate::fresh::Landfall;
use crate::io::{Direction, Done, Io, Op};
use crate::job::{Job, Landing, Lane, Ledger};
use crate::memory::{Relay, Target};
use crate::work::{Chunk, Way};

mod bounce;
mod device;
mod fault;
mod pages;

pub(crate) use device::Staging;

use fault::{failed, refusal};

/// How often one chunk's request is submitted before it counts as stuck.
pub(crate) const MAX_ATTEMPTS: u32 = 64;
/// How long to wait for a completion before looking whether the caller cancelled.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same while copies to or from a GPU are on their way.
const GLANCE: Duration = Duration::from_micros(100);
/// How long an idle worker of a group sleeps before looking whether it is needed.
const IDLE: Duration = Duration::from_millis(2);

/// A request that has been submitted.
struct Flight {
    chunk: Chunk,
    span: Range<u64>,
    /// Bytes of the span that have arrived.
    got: u64,
    attempts: u32,
    /// The ring buffer that holds it, if any.
    slot: Option<usize>,
}

/// Buffers for bytes that pass through.
pub(crate) struct Ring {
    memory: Arc<crate::memory::Memory>,
    free: Vec<usize>,
    registered: bool,
}

impl Ring {
    pub(crate) fn new(memory: Arc<crate::memory::Memory>, slots: usize) -> Self {
        Self {
            memory,
            free: (0..slots).rev().collect(),
            registered: false,
        }
    }

    fn slot(&self, slot: usize, length: usize) -> Target {
        let start = slot * digest::GRID as usize;
        self.memory.target(start..start + length)
    }

    /// The buffers, for registering them.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let all = 0..self.free.len();
        all.map(|slot| self.slot(slot, digest::GRID as usize))
            .collect()
    }

    pub(crate) fn mark_registered(&mut self) {
        self.registered = true;
    }
}

/// One thread's part in a job.
pub(crate) struct Worker<'j, I> {
    job: &'j Job,
    io: I,
    /// This worker's number and how many there are.
    rank: (usize, usize),
    ring: Option<Ring>,
    flights: Vec<Option<Flight>>,
    relay: Option<Relay>,
    staging: Option<Staging>,
    ledger: Ledger,
}

impl<'j, I: Io> Worker<'j, I> {
    pub(crate) fn new(
        job: &'j Job,
        io: I,
        rank: (usize, usize),
        ring: Option<Ring>,
        ledger: Ledger,
    ) -> Self {
        Self {
            job,
            io,
            rank,
            ring,
            flights: Vec::new(),
            relay: None,
            staging: None,
            ledger,
        }
    }

    /// With what it needs of the GPU whose memory the bytes go to or come from.
    pub(crate) fn with_staging(mut self, staging: Option<Staging>) -> Self {
        self.staging = staging;
        self
    }

    /// Runs until the job has no more chunks, and returns what was counted.
    pub(crate) fn run(mut self) -> Ledger {
        let mut done = Vec::new();
        loop {
            let more = self.fill(0);
            let waits_for_drive = self.io.in_flight() > 0;
            if self.copies() {
                self.reap(!waits_for_drive);
                if !waits_for_drive {
                    continue;
                }
            }
            if self.io.in_flight() == 0 {
                if !more && !self.copies() {
                    break;
                }
                if !self.copies() {
                    std::thread::sleep(IDLE);
                }
                continue;
            }
            let patience = if self.copies() { GLANCE } else { PATIENCE };
            if let Err(source) = self.io.wait(patience, &mut done) {
                self.job.fail(TransferError::Setup {
                    what: "waiting for completions",
                    source,
                });
                break;
            }
            let mut unseen = done.len();
            for completion in done.drain(..) {
                // So that the drive works on while a core copies or hashes what it has delivered.
                self.fill(unseen);
                unseen -= 1;
                self.completed(completion);
            }
        }
        self.ledger
    }

    /// How many requests this worker should have in flight: its share of the level found so far.
    fn share(&self) -> usize {
        let (rank, of) = self.rank;
        let level = self.job.level();
        level / of + usize::from(rank < level % of)
    }

    /// Submits until the share is in flight, but leaves room for `unseen` requests that may have to be
    /// repeated; whether chunks may be left.
    fn fill(&mut self, unseen: usize) -> bool {
        let share = self.share();
        loop {
            if self.io.in_flight() >= share || self.io.room() <= unseen {
                // A worker without a share would otherwise wait for one that never comes.
                return self.job.has_more();
            }
            if self.ring.as_ref().is_some_and(|ring| ring.free.is_empty()) {
                return true;
            }
            let Some(chunk) = self.job.take() else {
                return false;
            };
            self.begin(chunk);
        }
    }

    fn lane(&self, chunk: &Chunk) -> &'j Lane {
        &self.job.lanes[chunk.piece]
    }

    fn begin(&mut self, chunk: Chunk) {
        let lane = self.lane(&chunk);
        match (chunk.way, &lane.direct) {
            (Way::Storage, _) => self.through_storage(chunk),
            _ if self.job.direction == Direction::Write && lane.landing.gpu().is_some() => {
                self.fetch(match &lane.direct {
                    Some(_) => chunk,
                    None => Chunk {
                        way: Way::Copy,
                        ..chunk
                    },
                });
            }
            (Way::Direct, Some(_)) if self.landfall(lane) == Landfall::PageCache => {
                self.map_instead(chunk)
            }
            (Way::Direct, Some(direct))
                if self.landfall(lane) == Landfall::Buffer && self.has_buffers() =>
            {
                self.bounce(chunk, direct)
            }
            (Way::Direct, Some(direct)) => {
                let span = chunk.span(direct.align);
                self.take_fresh_memory(lane, &span);
                self.launch(chunk, span);
            }
            (Way::Map, _) => self.map(chunk),
            (Way::Direct | Way::Bounce | Way::Copy, _) => self.copy(chunk),
        }
    }

    /// Starts to read a chunk for the first time, into a slot of the ring where there is a ring. The drive is told at
    /// once: getting memory for the next one may take longer than the read.
    fn launch(&mut self, chunk: Chunk, span: Range<u64>) {
        let slot = self.ring.as_mut().and_then(|ring| ring.free.pop());
        self.attempt(chunk, span, slot);
        self.io.send();
    }

    /// Moves bytes of a chunk for the first time.
    fn attempt(&mut self, chunk: Chunk, span: Range<u64>, slot: Option<usize>) {
        self.submit(Flight {
            chunk,
            span,
            got: 0,
            attempts: 1,
            slot,
        });
    }

    /// Where the bytes of a chunk arrive: in its destination or, on their way there, in a buffer.
    fn target(&self, chunk: &Chunk, span: &Range<u64>, slot: Option<usize>) -> Option<Target> {
        let landing = &self.lane(chunk).landing;
        let passes = matches!(landing, Landing::Ring | Landing::Gpu { .. });
        match (&self.ring, slot) {
            (Some(ring), Some(slot)) if passes || chunk.way == Way::Bounce => {
                Some(ring.slot(slot, (span.end - span.start) as usize))
            }
            _ => landing.target(span),
        }
    }

    fn submit(&mut self, flight: Flight) {
        let lane = self.lane(&flight.chunk);
        let target = self.target(&flight.chunk, &flight.span, flight.slot);
        let (Some(direct), Some(target)) = (&lane.direct, target) else {
            unreachable!("a direct flight has an O_DIRECT file and memory");
        };
        let registered = match (&self.ring, flight.slot) {
            (Some(ring), Some(slot)) if ring.registered => u16::try_from(slot).ok(),
            _ => None,
        };
        let (file, offset, got) = (
            Arc::clone(&direct.file),
            flight.span.start + flight.got,
            flight.got,
        );
        let token = match self.flights.iter().position(Option::is_none) {
            Some(token) => token,
            None => {
                self.flights.push(None);
                self.flights.len() - 1
            }
        };
        self.flights[token] = Some(flight);
        self.io.submit(Op {
            direction: self.job.direction,
            file,
            offset,
            target: target.skip(got as usize),
            registered,
            token,
        });
    }

    fn completed(&mut self, done: Done) {
        let Some(mut flight) = self.flights.get_mut(done.op.token).and_then(Option::take) else {
            return;
        };
        drop(done.op);
        match done.result {
            Ok(bytes) => {
                let before = flight.got;
                flight.got += bytes as u64;
                let lane = self.lane(&flight.chunk);
                let align = lane.direct.as_ref().map_or(1, |d| d.align);
                let needed = match self.job.direction {
                    Direction::Read => flight.chunk.wanted.end - flight.span.start,
                    Direction::Write => flight.span.end - flight.span.start,
                };
                if flight.got >= needed {
                    return self.arrived(flight);
                }
                let offset = flight.span.start + flight.got;
                flight.got = flight.got / align * align;
                if flight.got > before {
                    self.again(flight);
                } else {
                    // Less than a block: the file ends here.
                    self.give_up(flight, self.ended(lane, offset));
                }
            }
            Err(libc::EINTR | libc::EAGAIN) => self.again(flight),
            Err(error) => self.refused(flight, error),
        }
    }

    fn ended(&self, lane: &Lane, offset: u64) -> TransferError {
        match self.job.direction {
            Direction::Read => TransferError::Shrank {
                path: lane.name.clone(),
                offset,
            },
            Direction::Write => TransferError::Write {
                path: lane.name.clone(),
                offset,
                source: io::Error::from(io::ErrorKind::WriteZero),
            },
        }
    }

    fn again(&mut self, mut flight: Flight) {
        if self.job.stopped() {
            self.release(flight.slot);
        } else if flight.attempts >= MAX_ATTEMPTS {
            let error = TransferError::Stuck {
                path: self.lane(&flight.chunk).name.clone(),
                offset: flight.span.start + flight.got,
                attempts: flight.attempts,
            };
            self.give_up(flight, error);
        } else {
            flight.attempts += 1;
            self.ledger.retries += 1;
            self.submit(flight);
        }
    }

    /// A request came back with an error that repeating will not change.
    fn refused(&mut self, flight: Flight, error: i32) {
        let lane = self.lane(&flight.chunk);
        let offset = flight.span.start + flight.got;
        let not_this_way = matches!(error, libc::EINVAL | libc::EOPNOTSUPP | libc::EREMOTEIO);
        let obstacle = not_this_way.then(|| refusal(lane, self.job.direction, error));
        match obstacle {
            Some(obstacle) if !self.job.strict => {
                self.ledger.meet(obstacle);
                self.ledger.retries += 1;
                self.release(flight.slot);
                self.job.put_back(Chunk {
                    way: Way::Copy,
                    ..flight.chunk
                });
            }
            Some(obstacle) => {
                self.ledger.meet(obstacle);
                let error = failed(lane, self.job.direction, offset, &flight.span, error);
                self.give_up(flight, error);
            }
            None => {
                let error = failed(lane, self.job.direction, offset, &flight.span, error);
                self.give_up(flight, error);
            }
        }
    }

    fn give_up(&mut self, flight: Flight, error: TransferError) {
        self.release(flight.slot);
        self.job.fail(error);
    }

    fn release(&mut self, slot: Option<usize>) {
        if let (Some(ring), Some(slot)) = (&mut self.ring, slot) {
            ring.free.push(slot);
        }
    }

    /// Writes what lies in a buffer, directly.
    fn write_from(&mut self, chunk: Chunk, slot: Option<usize>) {
        let align = self.lane(&chunk).direct.as_ref().map_or(1, |d| d.align);
        let span = chunk.span(align);
        self.attempt(chunk, span, slot);
    }

    /// A direct request has delivered all that was wanted.
    fn arrived(&mut self, flight: Flight) {
        let wanted = flight.chunk.wanted.end - flight.chunk.wanted.start;
        self.ledger.overread += flight.got.saturating_sub(wanted);
        let lane = self.lane(&flight.chunk);
        if lane.landing.gpu().is_some() {
            self.ledger.bounced += wanted;
        }
        match self.target(&flight.chunk, &flight.span, flight.slot) {
            Some(target) => {
                let lead = (flight.chunk.wanted.start - flight.span.start) as usize;
                let target = target.part(lead, wanted as usize);
                self.delivered(flight.chunk, target, flight.slot);
            }
            None => self.release(flight.slot),
        }
    }

    /// The bytes of a chunk are where the drive or the kernel puts them: in place, or in a buffer
    /// from which a GPU takes them.
    fn delivered(&mut self, chunk: Chunk, target: Target, slot: Option<usize>) {
        if chunk.way == Way::Bounce {
            return self.put_down(&chunk, &target, slot);
        }
        let on_way = self.lane(&chunk).landing.gpu().is_some();
        if on_way && self.job.direction == Direction::Read {
            return self.forward(chunk, target, slot);
        }
        self.landed(&chunk, &target);
        self.release(slot);
    }

    /// Counts a chunk whose bytes are all in place, and shows them to whoever asked.
    fn landed(&mut self, chunk: &Chunk, target: &Target) {
        if (self.job.wants_digests() || self.job.sink.is_some())
            && let Err(source) = self.look(chunk, target)
        {
            let error = source.raw_os_error().unwrap_or(libc::EIO);
            return self.job.fail(failed(
                self.lane(chunk),
                self.job.direction,
                chunk.wanted.start,
                &chunk.wanted,
                error,
            ));
        }
        let bytes = target.len() as u64;
        *self.ledger.delivered.entry(chunk.way).or_default() += bytes;
        if chunk.way == Way::Direct && !self.io.by_ring() {
            self.ledger.by_threads += bytes;
        }
        self.job.landed(bytes);
    }

    fn look(&mut self, chunk: &Chunk, target: &Target) -> io::Result<()> {
        let job = self.job;
        let offset = chunk.wanted.start;
        if self.lane(chunk).landing.is_plain() && chunk.way != Way::Map {
            target.with_bytes(|bytes| {
                if let Some(sink) = &job.sink {
                    sink.take(chunk.piece, offset, bytes);
                }
                if job.wants_digests() {
                    job.record_digest(chunk.index, digest::piece(bytes));
                }
            });
            return Ok(());
        }
        let relay = match &mut self.relay {
            Some(relay) => relay,
            empty => empty.insert(Relay::new()?),
        };
        let mut hash = digest::Running::default();
        let mut done = 0;
        while done < target.len() {
            let step = Relay::SIZE.min(target.len() - done);
            relay.bytes_of(&target.part(done, step), |bytes| {
                if let Some(sink) = &job.sink {
                    sink.take(chunk.piece, offset + done as u64, bytes);
                }
                hash.update(bytes);
            })?;
            done += step;
        }
        job.record_digest(chunk.index, hash.finish());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
