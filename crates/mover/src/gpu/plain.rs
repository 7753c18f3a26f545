//! A copy by the runtime alone, which every other way into a GPU's memory is held against.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::gpu::{DeviceMemory, GpuError, HostRegistration, Stream};
use crowfly_machine::verbs::Pinned;

use super::Gpu;
use crate::error::TransferError;
use crate::memory::{Memory, MemoryError};

/// What `cudaMemcpy` does (or `hipMemcpy`), again and again between the same two memories.
#[derive(Debug)]
pub struct PlainCopy {
    stream: Arc<Stream>,
    from: Arc<Memory>,
    to: Arc<DeviceMemory>,
    len: usize,
    gpu: String,
    _pin: Option<HostRegistration>,
}

impl PlainCopy {
    /// Takes `len` bytes of host memory, on the node that is nearest to the GPU and each page of it
    /// touched, and as many of the GPU's. Host memory that is not `pinned` passes a buffer of the
    /// runtime's.
    ///
    /// # Errors
    /// When there is no room, or the memory cannot be pinned.
    pub fn new(gpu: &Gpu, len: usize, pinned: bool) -> Result<Self, TransferError> {
        let device = gpu.device();
        let place = gpu.place().to_string();
        let failed = |source| failed(&place, source);
        let to = DeviceMemory::allocate(device, len);
        let to = to.map_err(|source| MemoryError::Gpu {
            gpu: gpu.index(),
            bytes: len,
            source,
        })?;
        let from = Memory::host(len, device.facts().numa)?;
        from.target(0..len).fill(0x5a);
        let pin = pinned.then(|| HostRegistration::new(device, Arc::clone(&from) as _));
        Ok(Self {
            _pin: pin.transpose().map_err(&failed)?,
            stream: Stream::new(device).map_err(&failed)?,
            from,
            to,
            len,
            gpu: place,
        })
    }

    /// Copies once, and waits for it; the time that this took.
    ///
    /// # Errors
    /// What the GPU answers.
    pub fn run(&self) -> Result<Duration, TransferError> {
        let from: Arc<dyn Pinned> = Arc::clone(&self.from) as _;
        let started = Instant::now();
        let copy = self.stream.copy_in(&self.to, 0, &from, 0..self.len);
        let done = copy.and_then(|copy| copy.wait());
        done.map_err(|source| failed(&self.gpu, source))?;
        Ok(started.elapsed())
    }

    /// The GPU's memory that the bytes go to.
    pub const fn target(&self) -> &Arc<DeviceMemory> {
        &self.to
    }
}

fn failed(gpu: &str, source: GpuError) -> TransferError {
    TransferError::Gpu {
        path: gpu.to_owned(),
        offset: 0,
        source,
    }
}
