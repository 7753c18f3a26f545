//! Bytes in a GPU's memory, as the threads that move bytes reach them: by the GPU's copy engine, through
//! small pinned buffers of host memory. Ways that go past host memory (a NIC, another GPU) do not come
//! by here, or only to have a GPU copy to another.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_machine::gpu::{DeviceMemory, GpuError, HostRegistration, Stream};
use crowfly_machine::verbs::Pinned;

use super::Backing;

/// Bytes of one buffer: large enough that starting a copy costs little beside it, small enough that a
/// socket that takes only part of it wastes little.
pub(super) const BUFFER: usize = 256 << 10;

/// A GPU's memory and the buffers for it.
pub(super) struct Device {
    memory: Arc<DeviceMemory>,
    /// Those that no thread uses now; there are as many in all as threads ever used at one time.
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
        let host = Backing::private(BUFFER).map_err(io::Error::other)?;
        let host = Arc::new(host);
        let pinned: Arc<dyn Pinned> = Arc::clone(&host) as _;
        Ok(Self {
            stream: Stream::new(gpu).map_err(io::Error::other)?,
            host,
            _pin: HostRegistration::new(gpu, pinned).ok(),
        })
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

    fn with<R>(&self, work: impl FnOnce(&Bounce) -> io::Result<R>) -> io::Result<R> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let bounce = match kept {
            Some(bounce) => bounce,
            None => Bounce::new(&self.memory)?,
        };
        let result = work(&bounce);
        idle().push(bounce);
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
                settled(copy.and_then(|copy| copy.wait()))?;
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
    copied.map_err(io::Error::other)
}
