//! Memory that devices write into.
//!
//! A [`Region`] is what a caller gets back; the [`Memory`] under it is shared with whatever still
//! has requests in flight, so it is unmapped only after the last device is done with it.
//!
//! This module, with its parts, and [`crate::io`] are the only ones of the crate that use `unsafe`.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crowfly_machine::gpu::{DeviceMemory, GpuError};
use crowfly_machine::verbs::Pinned;
use crowfly_route::place::Place;
use crowfly_route::units::{NumaNode, PciAddress};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fabric::Backing;
use pages::{Changes, Pages};

mod heap;
mod pages;
mod region;
mod relay;

pub(crate) use heap::{copy_into, fill_up, zeros};
pub use region::Region;
pub(crate) use relay::Relay;

/// Host regions lie at the same offset within a huge page as their bytes in the file, so that
/// chunks cut on the file's grid start on huge pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// The strictest alignment any file system asks of O_DIRECT.
pub const BLOCK: usize = 4096;

/// What a memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Anonymous host memory.
    Host {
        /// The node it was bound to, if asked.
        numa: Option<NumaNode>,
        /// Whether the kernel accepted the advice to use huge pages.
        huge: bool,
    },
    /// A BAR published for peer-to-peer DMA by this function.
    Peer(PciAddress),
    /// Memory of this GPU, numbered in PCI address order, which no core can touch.
    Gpu(u32),
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The kernel gave none.
    #[error("cannot map {bytes} bytes of host memory: {source}")]
    Host {
        /// How much was asked for.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is not enough, and the kernel would end the process that filled it.
    #[error("{bytes} bytes do not fit into host memory: {room} bytes are available")]
    NoRoom {
        /// How much would be filled.
        bytes: u64,
        /// How much can be, within the machine and the limits of its control groups.
        room: u64,
    },
    /// The device publishes none, or none is left.
    #[error("cannot take {bytes} bytes of peer memory from {address}: {source}")]
    Peer {
        /// The device.
        address: PciAddress,
        /// How much was asked for.
        bytes: usize,
        /// The kernel's answer; ENOMEM and EINVAL mean that the pool is used up.
        source: io::Error,
    },
    /// It was to be memory of a GPU's.
    #[error("memory of {place} is no memory of a GPU's")]
    NotDevice {
        /// Where it is.
        place: Place,
    },
    /// The GPU has none left.
    #[error("cannot take {bytes} bytes of the memory of gpu:{gpu}: {source}")]
    Gpu {
        /// The GPU.
        gpu: u32,
        /// How much was asked for.
        bytes: usize,
        /// The runtime's answer.
        source: GpuError,
    },
}

impl MemoryError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Host { .. } | Self::NoRoom { .. } => "no-host-memory",
            Self::Peer { .. } => "no-peer-memory",
            Self::NotDevice { .. } => "not-gpu-memory",
            Self::Gpu { .. } => "no-gpu-memory",
        }
    }
}

/// A mapping that lives until the last user lets go.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    /// Whether pages of a file were laid over part of it.
    follows_file: AtomicBool,
    pages: Pages,
    owner: Owner,
}

/// Who gives the memory back.
#[derive(Debug)]
enum Owner {
    /// It is a mapping of this process's own, for instance of an allocator's file.
    Mapping(#[expect(dead_code, reason = "held for its drop")] Option<OwnedFd>),
    /// It is the fabric's.
    Fabric(#[expect(dead_code, reason = "held for its drop")] Arc<Backing>),
    /// It is a GPU's.
    Gpu(Arc<DeviceMemory>),
}

// SAFETY: the mapping stays at its address as long as the value lives; the disjoint `Target`s handed
// out decide who may write which part.
unsafe impl Pinned for Memory {
    fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: the mapping is plain memory without thread affinity; who may write which part is decided
// by the disjoint `Target`s handed out.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access never creates references to bytes that a device may be writing.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Mapping(_)) {
            return;
        }
        // SAFETY: the mapping was made by this type with exactly this base and length, and no
        // `Target` or `Region` can exist any more since each holds an `Arc` of it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Memory {
    /// Anonymous memory of at least `len` bytes that starts on a huge page.
    pub(crate) fn host(len: usize, numa: Option<NumaNode>) -> Result<Arc<Self>, MemoryError> {
        let failed = |source: io::Error| MemoryError::Host { bytes: len, source };
        let overflow = || failed(io::Error::from(io::ErrorKind::OutOfMemory));
        let rounded = len
            .max(1)
            .checked_next_multiple_of(BLOCK)
            .ok_or_else(overflow)?;
        let reserve = rounded.checked_add(HUGE_PAGE).ok_or_else(overflow)?;
        // SAFETY: a new anonymous mapping at an address the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserve,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| failed(e.into()))?
        .cast::<u8>();
        let lead = start.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: gives back the parts of the new mapping before and after the aligned span; both
        // lie inside it, are page-aligned, and nothing refers to them.
        unsafe {
            if lead > 0 {
                let _ = rustix::mm::munmap(start.cast(), lead);
            }
            if HUGE_PAGE > lead {
                let _ = rustix::mm::munmap(start.add(lead + rounded).cast(), HUGE_PAGE - lead);
            }
        }
        // SAFETY: `lead` is inside the mapping, whose addresses are never null.
        let base = unsafe { NonNull::new_unchecked(start.add(lead)) };
        let bound = numa.filter(|node| bind(base, rounded, *node));
        // SAFETY: advice on the mapping just made; it changes no contents.
        let huge =
            unsafe { rustix::mm::madvise(base.as_ptr().cast(), rounded, Advice::LinuxHugepage) };
        Ok(Arc::new(Self {
            base,
            len: rounded,
            kind: MemoryKind::Host {
                numa: bound,
                huge: huge.is_ok(),
            },
            follows_file: AtomicBool::new(false),
            pages: Pages::default(),
            owner: Owner::Mapping(None),
        }))
    }

    /// Memory that a PCIe function publishes for peer-to-peer DMA.
    pub(crate) fn peer(address: PciAddress, len: usize) -> Result<Arc<Self>, MemoryError> {
        let failed = |source: io::Error| MemoryError::Peer {
            address,
            bytes: len,
            source,
        };
        let rounded = len
            .max(1)
            .checked_next_multiple_of(BLOCK)
            .ok_or_else(|| failed(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        let path = format!("/sys/bus/pci/devices/{address}/p2pmem/allocate");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
            .map_err(|e| failed(e.into()))?;
        // SAFETY: a new shared mapping of the allocator file at an address the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                rounded,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }
        .map_err(|e| failed(e.into()))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| failed(io::Error::other("mapped at null")))?;
        Ok(Arc::new(Self {
            base,
            len: rounded,
            kind: MemoryKind::Peer(address),
            follows_file: AtomicBool::new(false),
            pages: Pages::default(),
            owner: Owner::Mapping(Some(fd)),
        }))
    }

    /// Memory of a GPU. What is written to or read from it goes by the GPU.
    ///
    /// # Errors
    /// When the memory has no address, which none has.
    pub(crate) fn of_gpu(gpu: u32, memory: Arc<DeviceMemory>) -> Result<Arc<Self>, MemoryError> {
        let base = NonNull::new(memory.address() as *mut u8);
        let base = base.ok_or(MemoryError::Host {
            bytes: memory.len(),
            source: io::Error::from(io::ErrorKind::AddrNotAvailable),
        })?;
        Ok(Arc::new(Self {
            base,
            len: memory.len(),
            kind: MemoryKind::Gpu(gpu),
            follows_file: AtomicBool::new(false),
            pages: Pages::default(),
            owner: Owner::Gpu(memory),
        }))
    }

    /// The GPU's memory that this is.
    pub(crate) const fn device(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.owner {
            Owner::Gpu(memory) => Some(memory),
            Owner::Mapping(_) | Owner::Fabric(_) => None,
        }
    }

    /// Memory that is registered with the fabric, so that what storage reads can leave from where
    /// it landed. `None` when it is not host memory that may be written to.
    pub(crate) fn over(backing: &Arc<Backing>) -> Option<Arc<Self>> {
        let Place::Host(numa) = *backing.place() else {
            return None;
        };
        let base = NonNull::new(backing.as_ptr()).filter(|_| backing.writable())?;
        Some(Arc::new(Self {
            base,
            len: backing.len(),
            kind: MemoryKind::Host { numa, huge: false },
            follows_file: AtomicBool::new(false),
            pages: Pages::default(),
            owner: Owner::Fabric(Arc::clone(backing)),
        }))
    }

    pub(crate) const fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The part that one request may write or read; parts handed out at one time must not overlap
    /// (the chunks of a transfer are disjoint by construction).
    pub(crate) fn target(self: &Arc<Self>, range: Range<usize>) -> Target {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "outside of the memory"
        );
        Target {
            memory: Arc::clone(self),
            range,
        }
    }
}

/// Asks for pages of one NUMA node for a mapping of this process; the kernel falls back to others
/// when it is full.
pub(crate) fn bind(base: NonNull<u8>, len: usize, node: NumaNode) -> bool {
    const MPOL_PREFERRED: libc::c_int = 1;
    const BITS: u32 = 1024;
    if node.0 >= BITS {
        return false;
    }
    let mut mask = [0u64; (BITS / 64) as usize];
    mask[(node.0 / 64) as usize] = 1 << (node.0 % 64);
    // SAFETY: the call changes no contents, wherever the range lies; the mask outlives the call and has BITS bits.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            len,
            MPOL_PREFERRED,
            mask.as_ptr(),
            libc::c_ulong::from(BITS),
            0,
        )
    };
    rc == 0
}

/// A part of a memory that one request owns while it is in flight.
#[derive(Debug)]
pub(crate) struct Target {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Target {
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Where a device may write; valid as long as this target lives.
    pub(crate) fn pointer(&self) -> *mut u8 {
        // SAFETY: the range was checked to lie inside the mapping when the target was made.
        unsafe { self.memory.base.as_ptr().add(self.range.start) }
    }

    /// The memory that this is a part of, and which part.
    pub(crate) const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Which part of the memory.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.range.start..self.range.end
    }

    /// Sets every byte of a part that the request owns.
    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: inside our own mapping, which is host memory; the request owns the part, so no
        // references to it exist and no device has it in flight.
        unsafe { self.pointer().write_bytes(byte, self.len()) };
    }

    /// The rest of this part, from `skip` bytes on.
    pub(crate) fn skip(mut self, skip: usize) -> Self {
        self.range.start = self.range.end.min(self.range.start + skip);
        self
    }

    /// `len` bytes of this part from `start` on.
    pub(crate) fn part(&self, start: usize, len: usize) -> Self {
        let start = self.range.end.min(self.range.start + start);
        Self {
            memory: Arc::clone(&self.memory),
            range: start..self.range.end.min(start + len),
        }
    }

    /// Replaces this part's pages by a private mapping of the file's, without reading them.
    ///
    /// # Errors
    /// What the file system answers, such as `ENODEV`; the part is then fresh memory again.
    pub(crate) fn map_file(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        self.memory.follows_file.store(true, Ordering::Release);
        // SAFETY: replaces pages inside our own mapping, to which no references exist (a region
        // with mapped parts hands out none), by a mapping of the same size.
        let mapped = unsafe {
            rustix::mm::mmap(
                self.pointer().cast(),
                self.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
                file,
                offset,
            )
        };
        match mapped {
            Ok(_) => Ok(()),
            Err(error) => {
                // The kernel may have taken the old pages away before the file system refused.
                self.let_go_of_file()?;
                Err(error.into())
            }
        }
    }

    /// Replaces pages of a file that were laid over this part by fresh ones.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub(crate) fn let_go_of_file(&self) -> io::Result<()> {
        // SAFETY: as for mapping the file: our own mapping, to which no references exist, becomes
        // one of the same size.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.pointer().cast(),
                self.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )?;
        }
        Ok(())
    }

    /// Brings this part's pages into the page table, reading what is not yet in memory.
    ///
    /// # Errors
    /// `EFAULT` when the mapped file ended before or could not be read; `EINVAL` on kernels before
    /// 5.14.
    pub(crate) fn populate(&self) -> io::Result<()> {
        // SAFETY: advice on a part of our own mapping; it changes no contents.
        unsafe {
            rustix::mm::madvise(self.pointer().cast(), self.len(), Advice::LinuxPopulateRead)?
        };
        Ok(())
    }

    /// The pages that hold this part: the kernel advises on whole ones alone.
    fn pages(&self) -> Self {
        let end = self.range.end.next_multiple_of(BLOCK).min(self.memory.len);
        Self {
            memory: Arc::clone(&self.memory),
            range: self.range.start / BLOCK * BLOCK..end,
        }
    }

    /// Gives this part fresh pages, as writing to it would. Whether it works does not matter: the
    /// pages then come when they are first written to.
    pub(crate) fn prefault(&self) {
        let pages = self.pages();
        // SAFETY: advice on whole pages of our own mapping; it changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                pages.pointer().cast(),
                pages.len(),
                Advice::LinuxPopulateWrite,
            )
        };
    }

    /// How many bytes of this part have pages.
    #[cfg(test)]
    pub(crate) fn there(&self) -> usize {
        let mut pages = vec![0u8; self.len().div_ceil(BLOCK)];
        // SAFETY: the part lies inside our own mapping, and there is a byte for each of its pages.
        let rc = unsafe { libc::mincore(self.pointer().cast(), self.len(), pages.as_mut_ptr()) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| *page & 1 == 1).count() * BLOCK
    }

    /// Has the memory that this is a part of made of huge or of small pages where it has none yet. Advice for a part
    /// alone would cut the mapping in two, and each such call waits for the threads that take pages at the time.
    pub(crate) fn take_pages(&self, huge: bool) -> Changes {
        let memory = &self.memory;
        let advice = match huge {
            true => Advice::LinuxHugepage,
            false => Advice::LinuxNoHugepage,
        };
        memory.pages.take(!huge, || {
            // SAFETY: advice on our own mapping; it changes no contents.
            let _ = unsafe { rustix::mm::madvise(memory.base.as_ptr().cast(), memory.len, advice) };
        })
    }

    /// How often the size of this memory's pages has changed.
    pub(crate) fn page_changes(&self) -> Changes {
        self.memory.pages.changes()
    }

    /// Reads from the file into this part by a kernel copy.
    pub(crate) fn read_from(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        // SAFETY: the kernel writes only inside this part, which the request owns.
        let read = unsafe {
            rustix::io::pread(
                file,
                std::slice::from_raw_parts_mut(
                    self.pointer().cast::<std::mem::MaybeUninit<u8>>(),
                    self.len(),
                ),
                offset,
            )
        }?;
        Ok(read.0.len())
    }

    /// Writes this part to the file.
    pub(crate) fn write_to(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the kernel only reads inside this part; a page it cannot read gives EFAULT.
        let written =
            unsafe { libc::pwrite(file.as_raw_fd(), self.pointer().cast(), self.len(), offset) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Copies bytes out, from `skip` on; returns how many there were. Unlike [`Self::with_bytes`], it
    /// may be used on memory that peers can write to at the same time.
    pub(crate) fn copy_out(&self, skip: usize, out: &mut [u8]) -> usize {
        let len = out.len().min(self.len().saturating_sub(skip));
        // SAFETY: `len` bytes from `skip` on lie inside this part of host memory and in `out`, which
        // cannot overlap it: no references to the bytes of a memory exist while parts are handed out.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pointer().add(skip.min(self.len())),
                out.as_mut_ptr(),
                len,
            );
        }
        len
    }

    /// Copies bytes into this part of plain host memory, from `at` on; what has no room is left out.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let to = self.part(at, bytes.len());
        // SAFETY: the part lies inside our own mapping, which the borrowed bytes do not (a region
        // lends its bytes only when nothing else can write to them), and parts that are written at
        // one time do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.pointer(), to.len());
        }
    }

    /// Makes this part of host memory zero.
    pub(crate) fn clear(&self) {
        // SAFETY: the part lies inside the mapping, and no references to its bytes exist.
        unsafe { std::ptr::write_bytes(self.pointer(), 0, self.len()) }
    }

    /// Runs `use_bytes` on the bytes of plain host memory after the device is done with them.
    pub(crate) fn with_bytes<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the part is initialised (anonymous pages start as zeros), nothing writes to it
        // while the request owns it and no device has it in flight, and the slice does not escape.
        use_bytes(unsafe { std::slice::from_raw_parts(self.pointer(), self.len()) })
    }
}
