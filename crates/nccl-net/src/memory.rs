//! Memory that NCCL registered.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crowfly_machine::gpu::{DeviceMemory, Gpu, GpuError};
use crowfly_mover::fabric::{Access, Buffer, Fabric, FabricError, LocalSlice, Region};
use crowfly_route::place::Place;

use crate::abi;
use crate::error::NetError;
use crate::gpus::Gpus;

/// Numbers by which receivers name their memory to senders, within this process.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Memory that NCCL registered.
pub(crate) struct Memory {
    /// By which postings name it.
    pub number: u32,
    start: usize,
    len: usize,
    /// The GPU that it is memory of.
    gpu: Option<Arc<Gpu>>,
    /// Gone once the memory is NCCL's own again.
    region: RwLock<Option<Region>>,
}

impl Memory {
    /// Registers memory of the host or of a GPU.
    ///
    /// # Safety
    /// The bytes must be valid until [`Memory::release`] was called, and until then nobody may hold
    /// references to them: NCCL promises the first, and is not written in Rust.
    pub(crate) unsafe fn register(
        fabric: &Fabric,
        gpus: &Gpus,
        data: *mut c_void,
        len: usize,
        kind: c_int,
        access: Access,
    ) -> Result<Self, NetError> {
        let base = NonNull::new(data.cast::<u8>()).ok_or_else(|| NetError::Argument {
            argument: "data",
            why: "it is null".into(),
        })?;
        let refused = |error: GpuError| NetError::Memory {
            kind,
            why: error.to_string(),
        };
        let (buffer, gpu) = match kind {
            abi::PTR_HOST => {
                let place = Place::Host(None);
                // SAFETY: as the caller promises; the keeper has nothing to keep, since NCCL does.
                let buffer = unsafe { Buffer::foreign(base, len, true, place, Arc::new(())) };
                (buffer, None)
            }
            abi::PTR_CUDA => {
                let address = data.addr() as u64;
                let (index, gpu) = gpus.owner_of(address).map_err(refused)?;
                // SAFETY: as above.
                let memory = unsafe { DeviceMemory::lent(&gpu, address, len, Arc::new(())) };
                let buffer = Buffer::of_gpu(index, memory.map_err(refused)?);
                (buffer.map_err(FabricError::from)?, Some(gpu))
            }
            _ => {
                return Err(NetError::Memory {
                    kind,
                    why: "it is neither of the host nor of a GPU".into(),
                });
            }
        };
        let region = fabric.register(buffer, access)?;
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            start: data.addr(),
            len,
            gpu,
            region: RwLock::new(Some(region)),
        })
    }

    /// The GPU that it is memory of.
    pub(crate) const fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu.as_ref()
    }

    /// Where these bytes are within the memory.
    pub(crate) fn range(&self, data: *mut c_void, len: usize) -> Result<Range<usize>, NetError> {
        let address = data.addr();
        let outside = NetError::Outside { address, len };
        let start = address.checked_sub(self.start);
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        range.filter(|range| range.end <= self.len).ok_or(outside)
    }

    /// These bytes as the local end of a transfer.
    pub(crate) fn slice(&self, data: *mut c_void, len: usize) -> Result<LocalSlice, NetError> {
        let range = self.range(data, len)?;
        let region = self.region.read().unwrap_or_else(PoisonError::into_inner);
        let region = region.as_ref().ok_or(NetError::Unknown("memory"))?;
        Ok(region.slice(range)?)
    }

    /// What a sender needs to know to write into it.
    pub(crate) fn described(&self) -> Result<Vec<u8>, NetError> {
        let region = self.region.read().unwrap_or_else(PoisonError::into_inner);
        let region = region.as_ref().ok_or(NetError::Unknown("memory"))?;
        let bytes = region.descriptor().to_bytes();
        Ok(bytes.map_err(FabricError::from)?)
    }

    /// Gives the memory back: no peer and no transfer touches it any more when this returns well.
    pub(crate) fn release(&self) -> Result<(), NetError> {
        let region = {
            let mut region = self.region.write().unwrap_or_else(PoisonError::into_inner);
            region.take()
        };
        match region {
            Some(region) => Ok(region.deregister().map(drop)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
