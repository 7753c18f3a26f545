//! Bytes in a GPU's memory, as the threads that move bytes reach them: by the GPU's copy engine, through
//! small pinned buffers of host memory. Ways that go past host memory (a NIC, another GPU) do not come
//! by here, or only to have a GPU copy to another.
//!
//! What a GPU answers is an [`io::Error`] that carries a [`Fault`], so that whoever moves bytes between it
//! and a socket can tell which of the two failed.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crowfly_machine::gpu::{DeviceMemory, GpuError, HostRegistration, Stream};
use crowfly_machine::verbs::Pinned;

use super::{Backing, Span};

/// Bytes of one buffer: large enough that starting a copy costs little beside it, small enough that a
/// socket that takes only part of it wastes little.
pub(super) const BUFFER: usize = 256 << 10;

/// A GPU's memory and the buffers for it.
pub(super) struct Device {
    memory: Arc<DeviceMemory>,
    /// Those that are not in use now; there are as many in all as ever were at one time.
    idle: Mutex<Vec<Bounce>>,
}

/// A pinned buffer and the stream that copies into and out of it.
struct Bounce {
    stream: Arc<Stream>,
    host: Arc<Backing>,
    /// `None` where pinning was refused: copies then go through a buffer of the runtime's as well.
    _pin: Option<HostRegistration>,
}

impl Bounce {
    fn new(memory: &DeviceMemory) -> io::Result<Self> {
        let gpu = memory.gpu();
        let host = Backing::private(BUFFER).map_err(|error| fault(0, error))?;
        let host = Arc::new(host);
        let pinned: Arc<dyn Pinned> = Arc::clone(&host) as _;
        Ok(Self {
            stream: Stream::new(gpu).map_err(|error| fault(0, error))?,
            host,
            _pin: HostRegistration::new(gpu, pinned).ok(),
        })
    }
}

/// What a GPU answered that did not give or take bytes.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(in crate::fabric) struct Fault {
    why: String,
    /// Bytes that were taken from elsewhere for it before, and are lost.
    pub taken: usize,
}

impl Fault {
    /// The GPU's answer, if it is what an error is about.
    pub(in crate::fabric) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

fn fault(taken: usize, error: impl std::error::Error) -> io::Error {
    io::Error::other(Fault {
        why: error.to_string(),
        taken,
    })
}

/// A part of a GPU's memory, copied to buffers that are given back when this is dropped.
pub(in crate::fabric) struct Lease {
    of: Arc<Backing>,
    bounces: Vec<Bounce>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(device) = self.of.by_gpu() {
            device.idle().append(&mut self.bounces);
        }
    }
}

impl Span {
    /// Copies this part of a GPU's memory to buffers, all at one time, and answers what holds those and
    /// where the bytes are; `None` of host memory.
    ///
    /// # Errors
    /// What the GPU answers.
    pub(super) fn leased(&self) -> io::Result<Option<(Lease, Vec<Self>)>> {
        let Some(device) = self.backing.by_gpu() else {
            return Ok(None);
        };
        let mut bounces = Vec::new();
        let (mut copies, mut spans) = (Vec::new(), Vec::new());
        let mut start = self.range.start;
        while start < self.range.end {
            let len = BUFFER.min(self.range.end - start);
            let bounce = device.bounce()?;
            let host: Arc<dyn Pinned> = Arc::clone(&bounce.host) as _;
            let part = start..start + len;
            let copy = bounce.stream.copy_out(&host, 0, &device.memory, part);
            spans.push(Self {
                backing: Arc::clone(&bounce.host),
                range: 0..len,
            });
            bounces.push(bounce);
            copies.push(copy.map_err(|error| fault(0, error))?);
            start += len;
        }
        copies
            .into_iter()
            .try_for_each(|copy| copy.wait().map_err(|error| fault(0, error)))?;
        let lease = Lease {
            of: Arc::clone(&self.backing),
            bounces,
        };
        Ok(Some((lease, spans)))
    }
}

impl Device {
    pub(super) fn new(memory: Arc<DeviceMemory>) -> Self {
        Self {
            memory,
            idle: Mutex::default(),
        }
    }

    pub(super) const fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Bounce>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bounce(&self) -> io::Result<Bounce> {
        let kept = self.idle().pop();
        kept.map_or_else(|| Bounce::new(&self.memory), Ok)
    }

    fn with<R>(&self, work: impl FnOnce(&Bounce) -> io::Result<R>) -> io::Result<R> {
        let bounce = self.bounce()?;
        let result = work(&bounce);
        // A buffer that the GPU failed with may still be touched by it: the next one is new.
        let failed = result
            .as_ref()
            .is_err_and(|error| Fault::of(error).is_some());
        if !failed {
            self.idle().push(bounce);
        }
        result
    }

    /// Lets `put` fill a buffer with up to [`BUFFER`] of the bytes of a range, and copies what it put
    /// there to the start of the range; answers how many bytes that was.
    pub(super) fn fill(
        &self,
        range: Range<usize>,
        put: impl FnOnce(*mut u8, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let len = range.len().min(BUFFER);
        self.with(|bounce| {
            let put = put(bounce.host.as_ptr(), len)?.min(len);
            if put > 0 {
                let host: Arc<dyn Pinned> = Arc::clone(&bounce.host) as _;
                let copy = bounce
                    .stream
                    .copy_in(&self.memory, range.start, &host, 0..put);
                let done = copy.and_then(|copy| copy.wait());
                done.map_err(|error| fault(put, error))?;
            }
            Ok(put)
        })
    }

    /// Copies up to [`BUFFER`] bytes from the start of a range into a buffer and lets `take` have them.
    pub(super) fn drain(
        &self,
        range: Range<usize>,
        take: impl FnOnce(*const u8, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let len = range.len().min(BUFFER);
        self.with(|bounce| {
            let host: Arc<dyn Pinned> = Arc::clone(&bounce.host) as _;
            let part = range.start..range.start + len;
            let copy = bounce.stream.copy_out(&host, 0, &self.memory, part);
            settled(copy.and_then(|copy| copy.wait()))?;
            take(bounce.host.as_ptr(), len)
        })
    }

    /// Has the GPU copy a range to another GPU's memory, or within its own.
    pub(super) fn copy_to(&self, range: Range<usize>, to: &Self, at: usize) -> io::Result<()> {
        self.with(|bounce| {
            let copy = bounce
                .stream
                .copy_across(&to.memory, at, &self.memory, range);
            settled(copy.and_then(|copy| copy.wait()))
        })
    }
}

fn settled(copied: Result<(), GpuError>) -> io::Result<()> {
    copied.map_err(|error| fault(0, error))
}
