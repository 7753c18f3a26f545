//! Memory with one owner.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crowfly_machine::gpu::DeviceMemory;
use crowfly_machine::verbs::Pinned;
use crowfly_route::place::Place;
use crowfly_route::units::NumaNode;

use super::{Backing, Keeper, Owner};
use crate::memory::MemoryError;

/// Memory with one owner that can be registered with a [`Fabric`](crate::fabric::Fabric).
pub struct Buffer {
    pub(super) backing: Arc<Backing>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {})", self.len(), self.place())
    }
}

impl Buffer {
    /// Zeroed host memory that a process on the same host can map, on a NUMA node if asked.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn zeroed(len: usize, numa: Option<NumaNode>) -> Result<Self, MemoryError> {
        Backing::shared(len, numa).map(|backing| Self {
            backing: Arc::new(backing),
        })
    }

    /// Zeroed memory of this process alone, as an allocator gives it. Peers on this host reach it
    /// by the kernel's copy between processes at best, never by mapping it.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn private(len: usize) -> Result<Self, MemoryError> {
        Backing::private(len).map(|backing| Self {
            backing: Arc::new(backing),
        })
    }

    /// Zeroed host memory that says to be in another place.
    #[cfg(test)]
    pub(crate) fn claiming(len: usize, place: Place) -> Self {
        let mut backing = Backing::shared(len, None).expect("memory");
        backing.place = place;
        Self {
            backing: Arc::new(backing),
        }
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn copy_of(bytes: &[u8]) -> Result<Self, MemoryError> {
        let mut buffer = Self::zeroed(bytes.len(), None)?;
        if let Some(slice) = buffer.as_mut_slice() {
            slice.copy_from_slice(bytes);
        }
        Ok(buffer)
    }

    /// What the storage half loaded, without a copy; peers can only read it.
    ///
    /// `None` when the bytes are not plain host memory: a mapping of a file that could be cut, or
    /// a device's memory.
    pub fn loaded(region: crate::Region) -> Option<Self> {
        let bytes = region.as_slice()?;
        let (base, len) = (NonNull::from(bytes).cast::<u8>(), bytes.len());
        let place = region.place();
        Some(Self {
            backing: Arc::new(Backing {
                base,
                len,
                owner: Owner::Other(Arc::new(region)),
                file: None,
                writable: false,
                place,
            }),
        })
    }

    /// Memory that someone else manages, such as another library's tensor.
    ///
    /// # Safety
    /// `base` must be the start of `len` initialised bytes in place `place` that stay valid until
    /// `keeper` is dropped. While the buffer or a region made of it exists, nobody else may hold
    /// references to the bytes (raw copies are fine); nobody else may write to them through
    /// anything but raw pointers or other processes; when `writable`, the fabric may write too.
    pub unsafe fn foreign(
        base: NonNull<u8>,
        len: usize,
        writable: bool,
        place: Place,
        keeper: Keeper,
    ) -> Self {
        Self {
            backing: Arc::new(Backing {
                base,
                len,
                owner: Owner::Other(keeper),
                file: None,
                writable,
                place,
            }),
        }
    }

    /// Memory of GPU number `gpu`: peers and NICs reach it as far as the machine allows, by RDMA, by
    /// the copy engines of GPUs, or through host memory.
    ///
    /// # Errors
    /// When the memory has no address, which none has.
    pub fn of_gpu(gpu: u32, memory: Arc<DeviceMemory>) -> Result<Self, MemoryError> {
        let bytes = memory.len();
        let backing = Backing::of_gpu(gpu, memory, true);
        let backing = backing.map_err(|source| MemoryError::Host { bytes, source })?;
        Ok(Self {
            backing: Arc::new(backing),
        })
    }

    /// What the storage half loaded into a GPU's memory, without a copy; peers can only read it.
    ///
    /// # Errors
    /// [`MemoryError::NotDevice`] when it lies elsewhere ([`Buffer::loaded`] is for host memory), and
    /// what the GPU answers.
    pub fn of_loaded(region: &crate::Region) -> Result<Self, MemoryError> {
        let place = region.place();
        let (Place::Gpu(gpu), Some((memory, range))) = (&place, region.device()) else {
            return Err(MemoryError::NotDevice { place });
        };
        let (gpu, bytes) = (*gpu, range.len());
        let start = memory.address() + range.start as u64;
        let keeper: Keeper = Arc::clone(memory) as _;
        // SAFETY: the range lies in memory that the keeper holds, and nobody writes to what was loaded.
        let part = unsafe { DeviceMemory::lent(memory.gpu(), start, bytes, keeper) };
        let part = part.map_err(|source| MemoryError::Gpu { gpu, bytes, source })?;
        let backing = Backing::of_gpu(gpu, part, false);
        let backing = backing.map_err(|source| MemoryError::Host { bytes, source })?;
        Ok(Self {
            backing: Arc::new(backing),
        })
    }

    /// `len` new bytes of a GPU's memory; what they hold is not defined.
    ///
    /// # Errors
    /// When the GPU has no room.
    pub fn on_gpu(gpu: &crate::gpu::Gpu, len: usize) -> Result<Self, MemoryError> {
        let memory = DeviceMemory::allocate(gpu.device(), len);
        let memory = memory.map_err(|source| MemoryError::Gpu {
            gpu: gpu.index(),
            bytes: len,
            source,
        })?;
        Self::of_gpu(gpu.index(), memory)
    }

    /// Hands the backing over for registration.
    pub(crate) fn into_backing(self) -> Arc<Backing> {
        self.backing
    }

    /// A buffer again, of a backing that nobody else holds.
    pub(crate) fn from_backing(backing: Backing) -> Self {
        Self {
            backing: Arc::new(backing),
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.backing.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes are.
    pub fn place(&self) -> &Place {
        &self.backing.place
    }

    /// The bytes; empty when they are not host memory.
    pub fn as_slice(&self) -> &[u8] {
        if !self.backing.is_host() {
            return &[];
        }
        // SAFETY: the bytes are initialised host memory, and this buffer is the backing's only
        // user: nothing is registered, so no peer, NIC or thread writes to it.
        unsafe { std::slice::from_raw_parts(self.backing.as_ptr(), self.len()) }
    }

    /// The bytes for writing; `None` when they are not host memory or may only be read.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let host = self.backing.is_host();
        // SAFETY: as in `as_slice`, and `&mut self` makes this the only reference.
        (host && self.backing.writable)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.backing.as_ptr(), self.len()) })
    }
}
