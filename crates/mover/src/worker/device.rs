//! The ways into and out of a GPU's memory: through the worker's pinned buffers and the GPU's copy
//! engine, overlapped with the requests to the drive; or by the storage library of its maker.

use std::sync::Arc;

use crowfly_machine::gpu::{Gpu, GpuError, HostRegistration, InFlight, Stream};
use crowfly_machine::gpu_storage::StorageError;
use crowfly_machine::verbs::Pinned;
use crowfly_route::obstacle::{Code, Fix, Obstacle};

use super::{MAX_ATTEMPTS, Ring, Worker};
use crate::error::TransferError;
use crate::io::{Direction, Io};
use crate::job::{Landing, Ledger};
use crate::memory::{BLOCK, Target};
use crate::work::{Chunk, Way};

/// Queues of the GPU that one worker takes in turns: while one copies, the next is filled.
const STREAMS: usize = 2;
/// What a buffer is full of before a GPU's memory is copied back into it, so that a copy that did
/// nothing shows.
const POISON: u8 = 0x5a;

/// What a worker needs of a GPU.
pub(crate) struct Staging {
    streams: Vec<Arc<Stream>>,
    next: usize,
    /// Keeps the worker's buffers pinned; `None` where they could not be.
    _pinned: Option<HostRegistration>,
    copies: Vec<Copying>,
}

/// A copy between a buffer and the GPU.
struct Copying {
    chunk: Chunk,
    /// The buffer's part that holds what is wanted.
    target: Target,
    slot: Option<usize>,
    flight: InFlight,
}

impl Staging {
    /// Queues of the GPU, and the worker's buffers pinned for it.
    ///
    /// # Errors
    /// When the GPU gives no queues. Buffers that cannot be pinned are slow, and no error.
    pub(crate) fn new(gpu: &Arc<Gpu>, ring: &Ring, ledger: &mut Ledger) -> Result<Self, GpuError> {
        let pinned = HostRegistration::new(gpu, ring.pinned());
        if let Err(error) = &pinned {
            ledger.meet(
                Obstacle::slows(
                    Code::HostMemoryNotPinned,
                    "the buffers between drive and GPU could not be pinned",
                )
                .seen(error.call().unwrap_or("host register"), error.to_string())
                .fixed_by(
                    Fix::run("Raise the limit on locked memory.", "ulimit -l unlimited")
                        .checked_by("ulimit -l"),
                ),
            );
        }
        let streams = (0..STREAMS).map(|_| Stream::new(gpu));
        Ok(Self {
            streams: streams.collect::<Result<_, _>>()?,
            next: 0,
            _pinned: pinned.ok(),
            copies: Vec::new(),
        })
    }

    fn stream(&mut self) -> Option<Arc<Stream>> {
        self.next = self.next.wrapping_add(1);
        let at = self.next % self.streams.len().max(1);
        self.streams.get(at).map(Arc::clone)
    }
}

impl Ring {
    fn pinned(&self) -> Arc<dyn Pinned> {
        Arc::clone(&self.memory) as _
    }
}

impl<I: Io> Worker<'_, I> {
    /// Whether copies are on their way.
    pub(super) fn copies(&self) -> bool {
        self.staging.as_ref().is_some_and(|s| !s.copies.is_empty())
    }

    /// Queues the copy of what has arrived in a buffer into the GPU's memory.
    pub(super) fn forward(&mut self, chunk: Chunk, target: Target, slot: Option<usize>) {
        let lane = self.lane(&chunk);
        let (Landing::Gpu { memory, .. }, Some(at)) =
            (&lane.landing, lane.landing.device_range(&chunk.wanted))
        else {
            return self.job.fail(TransferError::WorkerDied);
        };
        let stream = self.staging.as_mut().and_then(Staging::stream);
        let copy = stream.map(|stream| {
            let buffer: Arc<dyn Pinned> = Arc::clone(target.memory()) as _;
            stream.copy_in(memory, at.start, &buffer, target.range())
        });
        self.copying(copy, chunk, target, slot);
    }

    /// Queues the copy of what is to be written from the GPU's memory into a buffer.
    pub(super) fn fetch(&mut self, chunk: Chunk) {
        let lane = self.lane(&chunk);
        let slot = self.ring.as_mut().and_then(|ring| ring.free.pop());
        let align = lane.direct.as_ref().map_or(1, |direct| direct.align);
        let span = chunk.span(align);
        let (Landing::Gpu { memory, .. }, Some(from), Some(whole)) = (
            &lane.landing,
            lane.landing.device_range(&chunk.wanted),
            self.target(&chunk, &span, slot),
        ) else {
            return self.job.fail(TransferError::WorkerDied);
        };
        // The rest of the last block becomes part of the file until it is cut to its length.
        whole.fill(0);
        let lead = (chunk.wanted.start - span.start) as usize;
        let target = whole.part(lead, (chunk.wanted.end - chunk.wanted.start) as usize);
        let stream = self.staging.as_mut().and_then(Staging::stream);
        let copy = stream.map(|stream| {
            let buffer: Arc<dyn Pinned> = Arc::clone(target.memory()) as _;
            stream.copy_out(&buffer, target.range().start, memory, from)
        });
        self.copying(copy, chunk, target, slot);
    }

    fn copying(
        &mut self,
        copy: Option<Result<InFlight, GpuError>>,
        chunk: Chunk,
        target: Target,
        slot: Option<usize>,
    ) {
        match (copy, &mut self.staging) {
            (Some(Ok(flight)), Some(staging)) => staging.copies.push(Copying {
                chunk,
                target,
                slot,
                flight,
            }),
            (Some(Err(error)), _) => self.failed_on_gpu(&chunk, error),
            _ => self.job.fail(TransferError::WorkerDied),
        }
    }

    fn failed_on_gpu(&mut self, chunk: &Chunk, source: GpuError) {
        self.job.fail(TransferError::Gpu {
            path: self.lane(chunk).name.clone(),
            offset: chunk.wanted.start,
            source,
        });
    }

    /// Goes on with the chunks whose copies are done; waits for the oldest one if `waits`.
    pub(super) fn reap(&mut self, mut waits: bool) {
        while let Some(copies) = self.staging.as_mut().map(|staging| &mut staging.copies) {
            let Some(oldest) = copies.first() else { return };
            match oldest.flight.is_done() {
                Ok(false) if !waits => return,
                _ => {}
            }
            waits = false;
            let Copying {
                chunk,
                target,
                slot,
                flight,
            } = copies.remove(0);
            match flight.wait() {
                Ok(()) => self.copied(chunk, target, slot),
                // Its buffer is not used again: nobody knows whether the GPU is done with it.
                Err(error) => self.failed_on_gpu(&chunk, error),
            }
        }
    }

    fn copied(&mut self, chunk: Chunk, target: Target, slot: Option<usize>) {
        match (self.job.direction, chunk.way) {
            (Direction::Read, _) => self.in_place(chunk, target, slot),
            (Direction::Write, Way::Direct) => self.write_from(chunk, slot),
            (Direction::Write, _) => self.copy_by(chunk, slot),
        }
    }

    /// A chunk lies in the GPU's memory: it is counted, and looked at there if somebody asked.
    fn in_place(&mut self, chunk: Chunk, target: Target, slot: Option<usize>) {
        let back = match self.job.wants_digests() || self.job.sink.is_some() {
            true => self.read_back(&chunk, &target),
            false => Ok(()),
        };
        match back {
            Ok(()) => {
                self.landed(&chunk, &target);
                self.release(slot);
            }
            Err(error) => self.failed_on_gpu(&chunk, error),
        }
    }

    /// Copies what the GPU's memory holds of a chunk into a buffer.
    fn read_back(&mut self, chunk: &Chunk, target: &Target) -> Result<(), GpuError> {
        let lane = self.lane(chunk);
        let stream = self.staging.as_mut().and_then(Staging::stream);
        if let (Landing::Gpu { memory, .. }, Some(from), Some(stream)) = (
            &lane.landing,
            lane.landing.device_range(&chunk.wanted),
            stream,
        ) {
            target.fill(POISON);
            let buffer: Arc<dyn Pinned> = Arc::clone(target.memory()) as _;
            let back = stream.copy_out(&buffer, target.range().start, memory, from)?;
            back.wait()?;
        }
        Ok(())
    }

    /// Moves a chunk by the storage library; where it refuses, the chunk goes another way.
    pub(super) fn through_storage(&mut self, chunk: Chunk) {
        let lane = self.lane(&chunk);
        let Landing::Gpu {
            memory,
            file: Some(file),
            ..
        } = &lane.landing
        else {
            return self.job.put_back(Chunk {
                way: Way::Direct,
                ..chunk
            });
        };
        // Whole blocks are read without a buffer of the library's; the memory has room for them.
        let span = match self.job.direction {
            Direction::Read => Chunk {
                way: Way::Direct,
                ..chunk.clone()
            }
            .span(BLOCK as u64),
            Direction::Write => chunk.wanted.clone(),
        };
        let needed = chunk.wanted.end - span.start;
        let (mut got, mut attempts) = (0, 0);
        while got < needed && !self.job.stopped() {
            let offset = span.start + got;
            let Some(range) = lane.landing.device_range(&(offset..span.end)) else {
                return self.job.fail(TransferError::WorkerDied);
            };
            let moved = match self.job.direction {
                Direction::Read => file.read(memory, range, offset),
                Direction::Write => file.write(memory, range, offset),
            };
            match moved {
                Ok(0) => return self.job.fail(self.ended(lane, offset)),
                Ok(bytes) => {
                    got += bytes as u64;
                    self.ledger.retries += u64::from(got < needed);
                }
                Err(StorageError::Io { source, .. })
                    if matches!(source.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
                        && attempts < MAX_ATTEMPTS =>
                {
                    attempts += 1;
                    self.ledger.retries += 1;
                }
                Err(error) => return self.refused_by_storage(chunk, offset, error),
            }
        }
        if got < needed {
            return;
        }
        self.ledger.overread += got.saturating_sub(chunk.wanted.end - chunk.wanted.start);
        let slot = self.ring.as_mut().and_then(|ring| ring.free.pop());
        match self.target(&chunk, &chunk.wanted, slot) {
            Some(target) if self.job.direction == Direction::Read => {
                self.in_place(chunk, target, slot);
            }
            Some(target) => {
                self.landed(&chunk, &target);
                self.release(slot);
            }
            None => self.job.fail(TransferError::WorkerDied),
        }
    }

    fn refused_by_storage(&mut self, chunk: Chunk, offset: u64, source: StorageError) {
        let name = &self.lane(&chunk).name;
        let call = match self.job.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        self.ledger.meet(
            Obstacle::blocks(
                Code::FileNotRegistered,
                format!("the storage library refused to {call} {name}"),
            )
            .seen(
                source.refusal().map_or(call, |(call, _)| call),
                source.to_string(),
            )
            .fixed_by(Fix::by_hand(
                "Look at its log, and at what `gdscheck -p` says.",
            )),
        );
        if self.job.strict {
            let path = name.clone();
            return self.job.fail(TransferError::Storage {
                path,
                offset,
                source,
            });
        }
        self.ledger.retries += 1;
        self.job.put_back(Chunk {
            way: Way::Direct,
            ..chunk
        });
    }
}
