//! Memory of a GPU: allocated, mapped from pieces, opened from another process, or lent by another
//! library. It is addressed, never touched, by the CPU.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::abi::{
    self, ACCESS_READ_WRITE, ALLOCATION_PINNED, AccessDescriptor, AllocationProperties, Location,
};
use super::device::Gpu;
use super::error::GpuError;
use crate::verbs::Pinned;

mod share;

pub use share::Shared;

/// Keeps memory of another library alive.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// How memory was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// In one piece by the runtime's allocator.
    Allocated,
    /// Of physical pieces mapped side by side into reserved addresses, as PyTorch's expandable
    /// segments are.
    Mapped,
    /// By another process, and opened in this one.
    Opened,
    /// By another library of this process, which lent it.
    Lent,
}

enum Owner {
    Allocator,
    /// Reserved bytes, and the physical pieces in order, each with its length.
    Map {
        reserved: usize,
        pieces: Vec<(u64, usize)>,
    },
    /// Where the allocation starts that was opened.
    Ipc(u64),
    Other(#[expect(dead_code, reason = "held for its drop")] Keeper),
}

/// Memory of a GPU, freed when the last user lets go.
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: u64,
    len: usize,
    owner: Owner,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gpu, making) = (self.gpu.facts().address, self.making());
        write!(f, "DeviceMemory({} bytes of {gpu}, {making:?})", self.len)
    }
}

// SAFETY: the address range stays the GPU's memory until this is dropped, and no CPU reference to
// it can exist.
unsafe impl Pinned for DeviceMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else {
            return;
        };
        let f = self.gpu.functions();
        match &self.owner {
            // SAFETY: allocated by this type and not freed; in-flight work holds an `Arc` of it.
            Owner::Allocator => drop(unsafe { f.free(self.address) }),
            // SAFETY: opened by this type, and as above.
            Owner::Ipc(start) => drop(unsafe { f.ipc_close(*start) }),
            Owner::Map { reserved, pieces } => self.unmap(*reserved, pieces),
            Owner::Other(_) => {}
        }
    }
}

impl DeviceMemory {
    /// `len` bytes in one piece; what they hold is not defined.
    ///
    /// # Errors
    /// When the GPU has no room, or fails.
    pub fn allocate(gpu: &Arc<Gpu>, len: usize) -> Result<Arc<Self>, GpuError> {
        let _current = gpu.enter()?;
        let mut address = 0;
        // SAFETY: it writes one address. Runtimes refuse empty allocations.
        gpu.did(unsafe { gpu.functions().alloc(&raw mut address, len.max(1)) })?;
        Ok(Arc::new(Self {
            gpu: Arc::clone(gpu),
            address,
            len,
            owner: Owner::Allocator,
        }))
    }

    /// `len` bytes of pieces of at most `piece` bytes each, mapped side by side, and fit to be
    /// registered with a NIC. What they hold is not defined.
    ///
    /// # Errors
    /// When the runtime cannot map, the GPU has no room, or fails.
    pub fn map(gpu: &Arc<Gpu>, len: usize, piece: usize) -> Result<Arc<Self>, GpuError> {
        let _current = gpu.enter()?;
        let f = gpu.functions();
        let location = Location {
            kind: abi::LOCATION_DEVICE,
            id: gpu.device(),
        };
        let properties = AllocationProperties {
            kind: ALLOCATION_PINNED,
            handle_types: abi::HANDLE_POSIX_FD,
            location,
            win32_metadata: std::ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma_capable: 1,
            usage: 0,
            reserved: [0; 4],
        };
        let (mut grain, option) = (0, abi::GRANULARITY_MINIMUM);
        // SAFETY: it writes one integer and reads the properties.
        gpu.did(unsafe { f.memory_granularity(&raw mut grain, &raw const properties, option) })?;
        let whole = |bytes: usize| {
            let bytes = bytes.max(1).checked_next_multiple_of(grain.max(1));
            bytes.ok_or(GpuError::OutOfBounds {
                start: 0,
                end: len,
                len: usize::MAX,
            })
        };
        let (reserved, piece) = (whole(len)?, whole(piece)?);
        let mut done = 0;
        Self::assemble(gpu, len, reserved, || {
            let bytes = piece.min(reserved - done);
            let mut handle = 0;
            // SAFETY: it writes one handle and reads the properties.
            gpu.did(unsafe { f.memory_create(&raw mut handle, bytes, &raw const properties, 0) })?;
            done += bytes;
            Ok((handle, bytes))
        })
    }

    /// Maps physical pieces side by side into new addresses, until `reserved` bytes are mapped. The
    /// GPU is current.
    fn assemble(
        gpu: &Arc<Gpu>,
        len: usize,
        reserved: usize,
        mut next: impl FnMut() -> Result<(u64, usize), GpuError>,
    ) -> Result<Arc<Self>, GpuError> {
        let f = gpu.functions();
        let mut address = 0;
        // SAFETY: it writes one address.
        gpu.did(unsafe { f.address_reserve(&raw mut address, reserved, 0, 0, 0) })?;
        // From here on the value's drop undoes what was done.
        let mut memory = Self {
            gpu: Arc::clone(gpu),
            address,
            len,
            owner: Owner::Map {
                reserved,
                pieces: Vec::new(),
            },
        };
        let mut done = 0;
        while done < reserved {
            let (handle, bytes) = next()?;
            // SAFETY: the range lies in the reservation and nothing is mapped there.
            let mapped = unsafe { f.memory_map(address + done as u64, bytes, 0, handle, 0) };
            if mapped.is_err() {
                // SAFETY: just made, and mapped nowhere.
                drop(unsafe { f.memory_release(handle) });
                gpu.did(mapped)?;
            }
            if let Owner::Map { pieces, .. } = &mut memory.owner {
                pieces.push((handle, bytes));
            }
            done += bytes;
        }
        let access = AccessDescriptor {
            location: Location {
                kind: abi::LOCATION_DEVICE,
                id: gpu.device(),
            },
            flags: ACCESS_READ_WRITE,
        };
        // SAFETY: the whole range is mapped; it reads one descriptor.
        gpu.did(unsafe { f.memory_access(address, reserved, &raw const access, 1) })?;
        Ok(Arc::new(memory))
    }

    fn unmap(&self, reserved: usize, pieces: &[(u64, usize)]) {
        let f = self.gpu.functions();
        let mut at = self.address;
        for (handle, bytes) in pieces {
            // SAFETY: mapped there by `map`, and in-flight work holds an `Arc` of this.
            unsafe {
                drop(f.memory_unmap(at, *bytes));
                drop(f.memory_release(*handle));
            }
            at += *bytes as u64;
        }
        // SAFETY: reserved by `map`, and nothing is mapped there any more.
        drop(unsafe { f.address_free(self.address, reserved) });
    }

    /// Memory of another library of this process, such as a tensor's.
    ///
    /// # Safety
    /// From `address` on, `len` bytes must stay allocated until `keeper` is dropped, and nobody may
    /// rely on what they hold while they are written.
    ///
    /// # Errors
    /// When the runtime says that the address is not memory of this GPU.
    pub unsafe fn lent(
        gpu: &Arc<Gpu>,
        address: u64,
        len: usize,
        keeper: Keeper,
    ) -> Result<Arc<Self>, GpuError> {
        for end in [address, address.saturating_add(len.max(1) as u64 - 1)] {
            Self::check(gpu, end)?;
        }
        Ok(Arc::new(Self {
            gpu: Arc::clone(gpu),
            address,
            len,
            owner: Owner::Other(keeper),
        }))
    }

    fn check(gpu: &Arc<Gpu>, address: u64) -> Result<(), GpuError> {
        let not_its = |found: String| GpuError::NotItsMemory {
            gpu: gpu.facts().address.to_string(),
            address,
            found,
        };
        let ask = |attribute| {
            let mut value = 0u32;
            let to = (&raw mut value).cast();
            // SAFETY: both attributes asked for are integers of 32 bits.
            let asked = unsafe { gpu.functions().pointer_attribute(to, attribute, address) };
            gpu.did(asked).map(|()| value)
        };
        let _current = gpu.enter()?;
        match ask(abi::POINTER_MEMORY_TYPE) {
            Ok(abi::MEMORY_TYPE_DEVICE) => {}
            Ok(other) => return Err(not_its(format!("its memory type is {other}"))),
            Err(error) if error.answer() == Some(abi::INVALID_VALUE) => {
                return Err(not_its("the runtime does not know the address".into()));
            }
            Err(error) => return Err(error),
        }
        let ordinal = ask(abi::POINTER_DEVICE_ORDINAL)?;
        if i64::from(ordinal) == i64::from(gpu.device()) {
            return Ok(());
        }
        Err(not_its(format!("it is memory of device {ordinal}")))
    }

    /// The GPU.
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// How it was made.
    pub const fn making(&self) -> Making {
        match self.owner {
            Owner::Allocator => Making::Allocated,
            Owner::Map { .. } => Making::Mapped,
            Owner::Ipc(_) => Making::Opened,
            Owner::Other(_) => Making::Lent,
        }
    }

    /// Has the runtime's own copies from and to this memory be seen in order by other devices, as
    /// memory that a NIC reads or writes needs.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn order_for_devices(&self) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        let on = 1u32;
        let value = (&raw const on).cast();
        // SAFETY: the attribute is an integer of 32 bits.
        self.gpu.did(unsafe {
            self.gpu.functions().pointer_set_attribute(
                value,
                abi::POINTER_SYNC_MEMOPS,
                self.address,
            )
        })
    }

    /// Whether a range lies in the memory.
    ///
    /// # Errors
    /// [`GpuError::OutOfBounds`] when it does not.
    pub const fn contains(&self, range: &Range<usize>) -> Result<(), GpuError> {
        in_bounds(range, self.len)
    }

    /// The address of a part.
    pub(crate) fn at(&self, range: &Range<usize>) -> Result<u64, GpuError> {
        in_bounds(range, self.len)?;
        Ok(self.address + range.start as u64)
    }
}

pub(super) const fn in_bounds(range: &Range<usize>, len: usize) -> Result<(), GpuError> {
    if range.start > range.end || range.end > len {
        return Err(GpuError::OutOfBounds {
            start: range.start,
            end: range.end,
            len,
        });
    }
    Ok(())
}
