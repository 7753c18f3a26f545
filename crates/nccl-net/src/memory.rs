//! Memory that NCCL registered.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crowfly_mover::fabric::{Access, Buffer, Fabric, LocalSlice, Region};
use crowfly_route::place::Place;

use crate::abi;
use crate::error::NetError;

/// Numbers by which receivers name their memory to senders, within this process.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Memory that NCCL registered.
pub(crate) struct Memory {
    /// By which postings name it.
    pub number: u32,
    start: usize,
    len: usize,
    /// Gone once the memory is NCCL's own again.
    region: RwLock<Option<Region>>,
}

impl Memory {
    /// Registers memory of the host.
    ///
    /// # Safety
    /// The bytes must be valid until [`Memory::release`] was called, and until then nobody may hold
    /// references to them: NCCL promises the first, and is not written in Rust.
    pub(crate) unsafe fn register(
        fabric: &Fabric,
        data: *mut c_void,
        len: usize,
        kind: c_int,
        access: Access,
    ) -> Result<Self, NetError> {
        if kind != abi::PTR_HOST {
            return Err(NetError::Memory {
                kind,
                why: "this device moves host memory only".into(),
            });
        }
        let base = NonNull::new(data.cast::<u8>()).ok_or_else(|| NetError::Argument {
            argument: "data",
            why: "it is null".into(),
        })?;
        // SAFETY: as the caller promises; the keeper has nothing to keep, since NCCL does.
        let buffer = unsafe { Buffer::foreign(base, len, true, Place::Host(None), Arc::new(())) };
        let region = fabric.register(buffer, access)?;
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            start: data.addr(),
            len,
            region: RwLock::new(Some(region)),
        })
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
        Ok(bytes.map_err(crowfly_mover::fabric::FabricError::from)?)
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
mod tests {
    use crowfly_mover::fabric::{Settings, SharedKey};

    use super::*;

    fn registered(bytes: &mut [u8], kind: c_int) -> Result<Memory, NetError> {
        let fabric = Fabric::new(Settings::new(SharedKey::derive("memory"))).expect("a fabric");
        let data = bytes.as_mut_ptr().cast();
        // SAFETY: the bytes outlive the registration in each test, which does not touch them.
        unsafe { Memory::register(&fabric, data, bytes.len(), kind, Access::WRITE) }
    }

    #[test]
    fn only_bytes_inside_of_the_memory_are_moved() {
        let mut bytes = vec![0u8; 4096];
        let memory = registered(&mut bytes, abi::PTR_HOST).expect("registered");
        let at = |offset: usize| std::ptr::without_provenance_mut(memory.start + offset);
        assert_eq!(memory.range(at(96), 4000).expect("inside"), 96..4096);
        assert_eq!(memory.range(at(4096), 0).expect("its end"), 4096..4096);
        assert_eq!(memory.slice(at(0), 4096).expect("inside").len(), 4096);
        for (data, len) in [
            (at(97), 4000),
            (at(0), usize::MAX),
            (at(1).wrapping_sub(2), 1),
        ] {
            let error = memory.range(data, len).expect_err("outside");
            assert_eq!(error.code(), "outside-of-memory");
        }
        memory.release().expect("released");
        assert_eq!(
            memory.slice(at(0), 1).expect_err("gone").code(),
            "unknown-object"
        );
        memory.release().expect("again");
    }

    #[test]
    fn memory_of_a_gpu_is_refused_where_only_host_memory_is_moved() {
        let mut bytes = vec![0u8; 16];
        let error = registered(&mut bytes, abi::PTR_CUDA)
            .err()
            .expect("refused");
        assert_eq!(
            (error.code(), error.result()),
            ("memory-type", abi::SYSTEM_ERROR)
        );
    }
}
