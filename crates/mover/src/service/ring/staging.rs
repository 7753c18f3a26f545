//! Between the buffers of a copy and a GPU's memory: by the GPU's copy engine, for what comes from or goes
//! to a socket of this process, which reaches host memory alone.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_machine::gpu::{DeviceMemory, Gpu as Device, GpuError, HostRegistration, Stream};
use crowfly_machine::verbs::Pinned;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;

use super::Slot;
use crate::error::TransferError;
use crate::gpu::{Gpu, pin};
use crate::memory::{Memory, MemoryError, Region};
use crate::service::error::ServiceError;

/// What a buffer is full of before a GPU's memory is copied back into it, so that a copy that did nothing
/// shows.
const POISON: u8 = 0x5a;

/// What buffers need to have a GPU's bytes copied out of them and into them.
pub(crate) struct Staging {
    index: u32,
    gpu: Arc<Device>,
    host: Arc<Memory>,
    /// As long as the buffers; `None` where the bytes come from the GPU.
    arrivals: Option<Arc<DeviceMemory>>,
    /// Those that no thread uses now.
    streams: Mutex<Vec<Arc<Stream>>>,
    unpinned: Vec<Obstacle>,
    _pinned: Option<HostRegistration>,
}

impl Staging {
    /// For bytes that arrive in a GPU's memory.
    ///
    /// # Errors
    /// When the GPU has no room.
    pub(super) fn arriving(gpu: &Gpu, host: Arc<Memory>) -> Result<Self, ServiceError> {
        let bytes = Pinned::len(&*host);
        let room = DeviceMemory::allocate(gpu.device(), bytes);
        let room = room.map_err(|source| MemoryError::Gpu {
            gpu: gpu.index(),
            bytes,
            source,
        })?;
        Ok(Self {
            arrivals: Some(room),
            ..Self::leaving(gpu.index(), gpu.device(), host)
        })
    }

    /// For bytes that lie in a GPU's memory.
    pub(super) fn leaving(index: u32, gpu: &Arc<Device>, host: Arc<Memory>) -> Self {
        let mut unpinned = Vec::new();
        let memory: Arc<dyn Pinned> = Arc::clone(&host) as _;
        let pinned = pin(gpu, &memory, &mut unpinned);
        Self {
            index,
            gpu: Arc::clone(gpu),
            host,
            arrivals: None,
            streams: Mutex::default(),
            unpinned,
            _pinned: pinned,
        }
    }

    /// The GPU's number.
    pub(crate) const fn gpu(&self) -> u32 {
        self.index
    }

    /// Why the buffers are not pinned, where they are not.
    pub(crate) fn unpinned(&self) -> &[Obstacle] {
        &self.unpinned
    }

    /// Copies the first `len` bytes of a buffer to where they belong in the GPU's memory; answers whether
    /// they belong there.
    ///
    /// # Errors
    /// What the GPU answers.
    pub(crate) fn enter(&self, slot: &Slot<'_>, len: usize) -> Result<bool, ServiceError> {
        let Some(room) = &self.arrivals else {
            return Ok(false);
        };
        let host: Arc<dyn Pinned> = Arc::clone(&self.host) as _;
        let bytes = slot.at..slot.at + len;
        self.by_stream(|stream| stream.copy_in(room, bytes.start, &host, bytes)?.wait())?;
        Ok(true)
    }

    /// Brings back what [`Self::enter`] put there, to be compared.
    ///
    /// # Errors
    /// What the GPU answers.
    pub(crate) fn bring_back(&self, slot: &Slot<'_>, len: usize) -> Result<(), ServiceError> {
        match &self.arrivals {
            Some(room) => self.out(room, slot.at..slot.at + len, slot),
            None => Ok(()),
        }
    }

    /// Copies a part of what lies in the GPU's memory into a buffer.
    ///
    /// # Errors
    /// What the GPU answers.
    pub(crate) fn leave(
        &self,
        region: &Region,
        range: &Range<u64>,
        slot: &Slot<'_>,
    ) -> Result<(), ServiceError> {
        let (start, end) = (range.start as usize, range.end as usize);
        let part = region.part(start..end);
        let Some((memory, bytes)) = part.as_ref().and_then(Region::device) else {
            return Err(ServiceError::Protocol {
                peer: "this process".into(),
                what: "what it loaded is no longer in the GPU's memory",
            });
        };
        self.out(memory, bytes, slot)
    }

    fn out(
        &self,
        from: &Arc<DeviceMemory>,
        bytes: Range<usize>,
        slot: &Slot<'_>,
    ) -> Result<(), ServiceError> {
        let host: Arc<dyn Pinned> = Arc::clone(&self.host) as _;
        self.host
            .target(slot.at..slot.at + bytes.len())
            .fill(POISON);
        self.by_stream(|stream| stream.copy_out(&host, slot.at, from, bytes)?.wait())
    }

    fn by_stream(
        &self,
        copy: impl FnOnce(&Stream) -> Result<(), GpuError>,
    ) -> Result<(), ServiceError> {
        let idle = || self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle().pop();
        let copied = kept.map_or_else(|| Stream::new(&self.gpu), Ok);
        let copied = copied.and_then(|stream| {
            copy(&stream)?;
            idle().push(stream);
            Ok(())
        });
        copied.map_err(|source| {
            let failed = TransferError::Gpu {
                path: Place::Gpu(self.index).to_string(),
                offset: 0,
                source,
            };
            failed.into()
        })
    }
}

/// Why the bytes of an object do not go straight between its store and a GPU.
pub(crate) fn through_host(gpu: &Place) -> Obstacle {
    Obstacle::blocks(
        Code::GpuThroughHost,
        format!("what HTTP carries passes pinned buffers in host memory on its way to or from {gpu}"),
    )
    .seen(
        "HTTP",
        "the kernel's sockets take and give bytes of host memory only",
    )
    .fixed_by(Fix::by_hand(
        "Keep the data on a file system that GPUDirect Storage reaches, or on a server that RDMA reaches (crowfly serve).",
    ))
}
