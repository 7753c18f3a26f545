//! One transfer as its workers see it: the chunks to move, where each lands, and what happened.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crowfly_machine::gpu::{DeviceMemory, Gpu};
use crowfly_machine::gpu_storage::StorageFile;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::CpuSeconds;

use crate::error::TransferError;
use crate::fresh::FreshMemory;
use crate::io::Direction;
use crate::memory::{Memory, MemoryKind, Target};
use crate::source::Direct;
use crate::tune::Tuner;
use crate::work::{Chunk, Way};

/// Sees bytes that pass through without being kept.
pub trait Sink: Send + Sync {
    /// Takes `bytes` that lie at `offset` of the request's piece number `piece`. Called from
    /// several threads, in any order, once for every byte.
    fn take(&self, piece: usize, offset: u64, bytes: &[u8]);
}

/// A file as the workers use it.
pub(crate) struct Lane {
    pub name: String,
    pub buffered: Arc<File>,
    pub direct: Option<Direct>,
    pub landing: Landing,
    /// Whether a detour may be taken where fresh memory is slow.
    pub may_detour: bool,
    /// Whether all of the piece lay in the page cache when the transfer was set up.
    pub was_cached: bool,
}

/// Where a piece's bytes lie in memory.
pub(crate) enum Landing {
    /// In memory, `shift` bytes further than in the file.
    Region { memory: Arc<Memory>, shift: i64 },
    /// In a ring of buffers that are used again and again.
    Ring,
    /// In a GPU's memory, `shift` bytes further than in the file.
    Gpu {
        memory: Arc<DeviceMemory>,
        shift: i64,
        /// The file as the storage library of the GPU's maker knows it.
        file: Option<Arc<StorageFile>>,
    },
}

impl Landing {
    /// The part of a GPU's memory for a range of file offsets; `None` of other memory.
    pub(crate) fn device_range(&self, span: &Range<u64>) -> Option<Range<usize>> {
        match self {
            Self::Gpu { shift, .. } => {
                let at = |offset: u64| offset.wrapping_add_signed(*shift) as usize;
                Some(at(span.start)..at(span.end))
            }
            _ => None,
        }
    }

    /// Whether the storage library of a GPU's maker knows the file.
    pub(crate) const fn by_storage(&self) -> bool {
        matches!(self, Self::Gpu { file: Some(_), .. })
    }

    /// The GPU whose memory it is.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match self {
            Self::Gpu { memory, .. } => Some(memory.gpu()),
            _ => None,
        }
    }

    /// The memory for a range of file offsets; `None` where it is a buffer's.
    pub(crate) fn target(&self, span: &Range<u64>) -> Option<Target> {
        match self {
            Self::Region { memory, shift } => {
                let at = |offset: u64| offset.wrapping_add_signed(*shift) as usize;
                Some(memory.target(at(span.start)..at(span.end)))
            }
            Self::Ring | Self::Gpu { .. } => None,
        }
    }

    /// Whether the bytes can be read by the CPU without the risk of a signal.
    pub(crate) fn is_plain(&self) -> bool {
        match self {
            Self::Region { memory, .. } => matches!(memory.kind(), MemoryKind::Host { .. }),
            // What a core looks at is the buffer that the bytes pass.
            Self::Ring | Self::Gpu { .. } => true,
        }
    }
}

/// What the workers counted, where it happened.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Bytes of the request delivered, by way.
    pub delivered: BTreeMap<Way, u64>,
    /// Bytes of direct ways that were moved one request at a time, without a ring.
    pub by_threads: u64,
    /// Bytes that were to go directly and whose destination became the page cache's pages instead.
    pub mapped_instead: u64,
    /// Bytes copied by the CPU through a buffer that is not the destination.
    pub bounced: u64,
    /// Bytes moved beyond those asked for.
    pub overread: u64,
    /// Requests submitted again.
    pub retries: u64,
    /// CPU time of the workers.
    pub cpu: CpuSeconds,
    /// Obstacles met on the way, each once.
    pub obstacles: Vec<Obstacle>,
}

impl Ledger {
    pub(crate) fn meet(&mut self, obstacle: Obstacle) {
        if !self
            .obstacles
            .iter()
            .any(|known| known.code == obstacle.code)
        {
            self.obstacles.push(obstacle);
        }
    }

    fn add(&mut self, other: Self) {
        for (way, bytes) in other.delivered {
            *self.delivered.entry(way).or_default() += bytes;
        }
        self.by_threads += other.by_threads;
        self.mapped_instead += other.mapped_instead;
        self.bounced += other.bounced;
        self.overread += other.overread;
        self.retries += other.retries;
        self.cpu += other.cpu;
        for obstacle in other.obstacles {
            self.meet(obstacle);
        }
    }
}

/// One transfer, shared by its workers and its handle.
pub(crate) struct Job {
    pub direction: Direction,
    pub lanes: Vec<Lane>,
    chunks: Vec<Chunk>,
    next: AtomicUsize,
    again: Mutex<Vec<Chunk>>,
    /// Whether a refused direct request is an error rather than a detour.
    pub strict: bool,
    pub sink: Option<Arc<dyn Sink>>,
    digests: Option<Vec<AtomicU64>>,
    moved: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<TransferError>>,
    tuner: Mutex<Tuner>,
    fresh: FreshMemory,
    /// Whether the page cache was asked to read a chunk ahead.
    ahead: Vec<AtomicBool>,
    ledger: Mutex<Ledger>,
    started: Instant,
    /// Nanoseconds after `started`.
    last_landed: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A worker that panicked left a consistent value: every update is a single assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    pub(crate) fn new(
        direction: Direction,
        lanes: Vec<Lane>,
        chunks: Vec<Chunk>,
        tuner: Tuner,
    ) -> Self {
        Self {
            direction,
            lanes,
            ahead: chunks.iter().map(|_| AtomicBool::new(false)).collect(),
            chunks,
            next: AtomicUsize::new(0),
            again: Mutex::default(),
            strict: false,
            sink: None,
            digests: None,
            moved: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            tuner: Mutex::new(tuner),
            fresh: FreshMemory::default(),
            ledger: Mutex::default(),
            started: Instant::now(),
            last_landed: AtomicU64::new(0),
        }
    }

    /// Makes the workers hash every chunk where it landed.
    pub(crate) fn with_digests(mut self) -> Self {
        self.digests = Some(self.chunks.iter().map(|_| AtomicU64::new(0)).collect());
        self
    }

    pub(crate) fn wants_digests(&self) -> bool {
        self.digests.is_some()
    }

    pub(crate) fn record_digest(&self, chunk: usize, hash: u64) {
        if let Some(slot) = self.digests.as_ref().and_then(|d| d.get(chunk)) {
            slot.store(hash, Ordering::Relaxed);
        }
    }

    /// Digest over all chunks in order, once every one has landed.
    pub(crate) fn digest(&self) -> Option<u64> {
        let pieces = self
            .digests
            .as_ref()?
            .iter()
            .map(|h| h.load(Ordering::Relaxed));
        Some(crate::digest::whole(pieces))
    }

    /// The next chunk to move; `None` when none is left or the transfer stopped.
    pub(crate) fn take(&self) -> Option<Chunk> {
        if self.stopped() {
            return None;
        }
        if let Some(chunk) = locked(&self.again).pop() {
            return Some(chunk);
        }
        self.chunks
            .get(self.next.fetch_add(1, Ordering::Relaxed))
            .cloned()
    }

    /// Whether [`Self::take`] may still return a chunk.
    pub(crate) fn has_more(&self) -> bool {
        let never_taken = self.next.load(Ordering::Relaxed) < self.chunks.len();
        !self.stopped() && (never_taken || !locked(&self.again).is_empty())
    }

    /// The chunks of the same piece from this one on, as many as asked for, that nobody asked the page cache to
    /// read ahead so far; whoever gets them does.
    pub(crate) fn to_read_ahead(&self, from: &Chunk, most: usize) -> impl Iterator<Item = &Chunk> {
        let coming = self
            .chunks
            .iter()
            .zip(&self.ahead)
            .skip(from.index)
            .take(most);
        let piece = from.piece;
        coming
            .filter(move |(chunk, asked)| {
                chunk.piece == piece && !asked.swap(true, Ordering::Relaxed)
            })
            .map(|(chunk, _)| chunk)
    }

    /// Puts a chunk back, to be moved another way.
    pub(crate) fn put_back(&self, chunk: Chunk) {
        locked(&self.again).push(chunk);
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The GPU whose memory the bytes go to or come from.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.lanes.iter().find_map(|lane| lane.landing.gpu())
    }

    pub(crate) fn landed(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        let now = self.started.elapsed();
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.last_landed.fetch_max(nanos, Ordering::Relaxed);
        locked(&self.tuner).completed(now, bytes);
    }

    /// From the start to the last completion, however late the caller comes to ask.
    pub(crate) fn wall(&self) -> Duration {
        Duration::from_nanos(self.last_landed.load(Ordering::Relaxed))
    }

    /// Bytes of the request that have arrived so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// What fresh memory has been found to cost.
    pub(crate) const fn fresh(&self) -> &FreshMemory {
        &self.fresh
    }

    /// How many requests all workers together should keep in flight.
    pub(crate) fn level(&self) -> usize {
        locked(&self.tuner).level()
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Records the first failure and stops the others.
    pub(crate) fn fail(&self, error: TransferError) {
        locked(&self.failure).get_or_insert(error);
        self.stop();
    }

    pub(crate) fn failure(&self) -> Option<TransferError> {
        locked(&self.failure).take()
    }

    pub(crate) fn settle(&self, ledger: Ledger) {
        locked(&self.ledger).add(ledger);
    }

    pub(crate) fn take_ledger(&self) -> Ledger {
        std::mem::take(&mut *locked(&self.ledger))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_read_ahead_once_whichever_is_come_to_first_and_no_further_than_its_piece() {
        let chunk = |piece, index| Chunk {
            piece,
            index,
            wanted: 0..1,
            way: Way::Map,
        };
        let chunks = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5)];
        let chunks: Vec<Chunk> = chunks.map(|(piece, index)| chunk(piece, index)).into();
        let job = Job::new(Direction::Read, Vec::new(), chunks, Tuner::fixed(1));
        let asked = |from: usize| -> Vec<usize> {
            let from = job.chunks()[from].clone();
            job.to_read_ahead(&from, 2)
                .map(|chunk| chunk.index)
                .collect()
        };
        // Direct reads went before: the first to be mapped is in the middle.
        assert_eq!(asked(1), [1, 2]);
        assert_eq!(asked(1), [0; 0]);
        assert_eq!(asked(2), [3]);
        assert_eq!(asked(3), [0; 0], "the next is another file's");
        assert_eq!(asked(4), [4, 5]);
        assert_eq!(asked(0), [0], "one that was put back");
    }
}
