//! Writing a file that is never in memory as a whole: through a few buffers, filled while others are
//! on their way.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crowfly_machine::usage;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path, Receipt};
use crowfly_route::units::Bytes;

use super::flights::{Flights, IN_FLIGHT};
use super::parts::{Parts, gather};
use super::{WriteTerms, Writing};
use crate::engine::{Engine, since};
use crate::error::TransferError;
use crate::memory::{BLOCK, Region};
use crate::receipt::joined;

/// The most bytes of one buffer. There are as many as are in flight at one time, and one that is
/// filled meanwhile.
pub const BUFFER: usize = 32 << 20;

const _: () = assert!(
    BUFFER.is_multiple_of(BLOCK),
    "buffers would not end on blocks"
);

/// What to write, and where to.
pub struct PartsRequest {
    /// The bytes. They may not change until the save is over.
    pub parts: Arc<dyn Parts>,
    /// The file they become, replaced atomically, or the block device whose first bytes they become.
    pub path: PathBuf,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// One engine path for all bytes, to compare.
    pub path_asked: Option<Path>,
}

/// A save that goes on in a thread of its own. Dropping it gives the save up and waits until nobody
/// looks at the parts any more.
#[must_use = "dropping it gives the save up"]
pub struct Saving {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Receipt, TransferError>>>,
    total: Bytes,
    /// Held until the thread has ended, so that the parts are let go of where this is, not there.
    _parts: Arc<dyn Parts>,
}

#[derive(Default)]
struct Shared {
    moved: AtomicU64,
    stopped: AtomicBool,
}

impl Engine {
    /// Starts writing parts end to end to a file, through at most `IN_FLIGHT + 1` buffers of
    /// [`BUFFER`] bytes.
    ///
    /// The path holds the old file until every byte of the new one is durable, as with
    /// [`Engine::save`].
    ///
    /// # Errors
    /// Before the first byte moves: no space, no permission, or a policy that no open route allows.
    pub fn save_parts(&self, request: PartsRequest) -> Result<Saving, TransferError> {
        let PartsRequest {
            parts,
            path,
            policy,
            path_asked,
        } = request;
        let mut ends = Vec::with_capacity(parts.count());
        let mut end = 0;
        for number in 0..parts.count() {
            end += parts.part(number).len() as u64;
            ends.push(end);
        }
        let terms = WriteTerms {
            policy,
            path_asked,
            past: 0,
            on_gpu: false,
        };
        let writing = Writing::begin(&path, end, terms, &Place::Host(None))?;
        let shared = Arc::new(Shared::default());
        let pass = Pass {
            engine: self.clone(),
            writing,
            parts: Arc::clone(&parts),
            ends,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name("crowfly-save".into())
            .spawn(move || pass.run())
            .map_err(|source| TransferError::Setup {
                what: "starting a thread",
                source,
            })?;
        Ok(Saving {
            shared,
            thread: Some(thread),
            total: Bytes(end),
            _parts: parts,
        })
    }
}

impl Saving {
    /// Bytes of the file.
    pub const fn total(&self) -> Bytes {
        self.total
    }

    /// Bytes that have been written so far.
    pub fn moved(&self) -> Bytes {
        Bytes(self.shared.moved.load(Ordering::Relaxed))
    }

    /// Whether [`Saving::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks it to stop; [`Saving::wait`] then answers [`TransferError::Cancelled`], unless the file
    /// was complete already.
    pub fn cancel(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Waits until the file is durable and has its name.
    ///
    /// # Errors
    /// What went wrong; the path then holds what it held before.
    pub fn wait(mut self) -> Result<Receipt, TransferError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(TransferError::WorkerDied),
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel();
            let _ = thread.join();
        }
    }
}

/// One pass over the parts, in a thread of its own.
struct Pass {
    engine: Engine,
    writing: Writing,
    parts: Arc<dyn Parts>,
    /// Where each part ends in the file.
    ends: Vec<u64>,
    shared: Arc<Shared>,
}

impl Pass {
    fn run(self) -> Result<Receipt, TransferError> {
        let (cpu, began) = (usage::this_thread(), Instant::now());
        let length = self.ends.last().copied().unwrap_or(0);
        let size = BUFFER.min((length as usize).next_multiple_of(BLOCK).max(BLOCK));
        let mut flights = Flights::default();
        let mut free = Vec::new();
        let mut at = 0;
        // A file without bytes is written all the same, so that it has a receipt.
        while at < length || (length == 0 && flights.is_empty()) {
            self.go_on()?;
            let mut buffer = match free.pop() {
                Some(buffer) => buffer,
                None => Region::zeroed(size, None)?,
            };
            let room = buffer.as_mut_slice().ok_or(TransferError::WorkerDied)?;
            let filled = gather(self.placed(at), at, room);
            flights.launch(&self.engine, &self.writing, buffer, filled, at)?;
            at += filled as u64;
            if filled == 0 {
                break;
            }
            flights.land(IN_FLIGHT - 1, |buffer| free.push(buffer))?;
            self.shared.moved.store(flights.moved(), Ordering::Relaxed);
        }
        while !flights.is_empty() {
            self.go_on()?;
            flights.land(flights.len() - 1, drop)?;
            self.shared.moved.store(flights.moved(), Ordering::Relaxed);
        }
        if at != length {
            return Err(TransferError::WorkerDied);
        }
        self.writing.publish()?;
        let wall = began.elapsed().as_secs_f64();
        let own: CpuSeconds = since(cpu);
        joined(flights.into_receipts(), wall, own, Bytes(length)).ok_or(TransferError::WorkerDied)
    }

    fn go_on(&self) -> Result<(), TransferError> {
        match self.shared.stopped.load(Ordering::Relaxed) {
            true => Err(TransferError::Cancelled),
            false => Ok(()),
        }
    }

    /// The parts with their places in the file, from the one on that lies at `at`.
    fn placed(&self, at: u64) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        let first = self.ends.partition_point(|end| *end <= at);
        let begin = match first {
            0 => 0,
            more => self.ends.get(more - 1).copied().unwrap_or(0),
        };
        let ends = self.ends.iter().enumerate().skip(first);
        ends.scan(begin, |begin, (number, end)| {
            let range = *begin..*end;
            *begin = *end;
            Some((range, self.parts.part(number)))
        })
    }
}
