//! Memory that devices write into.
//!
//! A [`Region`] is what a caller gets back; the [`Memory`] under it is shared with whatever still
//! has requests in flight, so it is unmapped only after the last device is done with it.
//!
//! This module and [`crate::io`] are the only ones of the crate that use `unsafe`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crowfly_route::place::Place;
use crowfly_route::units::{NumaNode, PciAddress};
use rustix::mm::{Advice, MapFlags, ProtFlags};

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
}

impl MemoryError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Host { .. } => "no-host-memory",
            Self::Peer { .. } => "no-peer-memory",
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
    _allocator: Option<OwnedFd>,
}

// SAFETY: the mapping is plain memory without thread affinity; who may write which part is decided
// by the disjoint `Target`s handed out.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access never creates references to bytes that a device may be writing.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
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
            _allocator: None,
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
            _allocator: Some(fd),
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

/// Asks for pages of one NUMA node; the kernel falls back to others when it is full.
fn bind(base: NonNull<u8>, len: usize, node: NumaNode) -> bool {
    const MPOL_PREFERRED: libc::c_int = 1;
    const BITS: u32 = 1024;
    if node.0 >= BITS {
        return false;
    }
    let mut mask = [0u64; (BITS / 64) as usize];
    mask[(node.0 / 64) as usize] = 1 << (node.0 % 64);
    // SAFETY: the range is a mapping of ours, and the mask outlives the call and has BITS bits.
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
    pub(crate) fn map_file(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        self.memory.follows_file.store(true, Ordering::Release);
        // SAFETY: replaces pages inside our own mapping, to which no references exist (a region
        // with mapped parts hands out none), by a mapping of the same size.
        unsafe {
            rustix::mm::mmap(
                self.pointer().cast(),
                self.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
                file,
                offset,
            )?;
        }
        Ok(())
    }

    /// Brings this part's pages into the page table, reading what is not yet in memory.
    ///
    /// # Errors
    /// `EFAULT` when the mapped file ended before; `EINVAL` on kernels before 5.14.
    pub(crate) fn populate(&self) -> io::Result<()> {
        // SAFETY: advice on a part of our own mapping; it changes no contents.
        unsafe {
            rustix::mm::madvise(self.pointer().cast(), self.len(), Advice::LinuxPopulateRead)?
        };
        Ok(())
    }

    /// Gives this part fresh pages, as writing to it would. Whether it works does not matter: the
    /// pages then come when they are first written to.
    pub(crate) fn prefault(&self) {
        // SAFETY: advice on a part of our own mapping; it changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                self.pointer().cast(),
                self.len(),
                Advice::LinuxPopulateWrite,
            )
        };
    }

    /// Has this part made of small pages when it is first touched.
    pub(crate) fn use_small_pages(&self) {
        // SAFETY: advice on a part of our own mapping; it changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(self.pointer().cast(), self.len(), Advice::LinuxNoHugepage)
        };
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

    /// Runs `use_bytes` on the bytes of plain host memory after the device is done with them.
    pub(crate) fn with_bytes<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the part is initialised (anonymous pages start as zeros), nothing writes to it
        // while the request owns it and no device has it in flight, and the slice does not escape.
        use_bytes(unsafe { std::slice::from_raw_parts(self.pointer(), self.len()) })
    }
}

/// Bytes in memory that devices can reach. A clone shares the memory, which nobody can write to
/// while it is shared.
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<Memory>,
    bytes: Range<usize>,
}

impl Region {
    pub(crate) fn new(memory: Arc<Memory>, bytes: Range<usize>) -> Self {
        assert!(
            bytes.start <= bytes.end && bytes.end <= memory.len,
            "outside of the memory"
        );
        Self { memory, bytes }
    }

    /// Host memory of `len` zero bytes, for instance to write to a file later.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn zeroed(len: usize, numa: Option<NumaNode>) -> Result<Self, MemoryError> {
        Ok(Self::new(Memory::host(len, numa)?, 0..len))
    }

    /// Peer memory of `len` bytes published by `address`.
    ///
    /// # Errors
    /// When the device publishes none or none is left.
    pub fn peer(address: PciAddress, len: usize) -> Result<Self, MemoryError> {
        Ok(Self::new(Memory::peer(address, len)?, 0..len))
    }

    pub(crate) const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) const fn start(&self) -> usize {
        self.bytes.start
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Where the bytes live.
    pub fn place(&self) -> Place {
        match self.memory.kind() {
            MemoryKind::Host { numa, .. } => Place::Host(numa),
            MemoryKind::Peer(address) => Place::Peer(address),
        }
    }

    /// Whether parts are a mapping of the file they were loaded from: no copy was made, and if the
    /// file is cut or overwritten in place, the bytes change with it.
    pub fn follows_file(&self) -> bool {
        self.memory.follows_file.load(Ordering::Acquire)
    }

    /// The first byte's address, for handing to a device or another language. It is valid while
    /// the region lives. Reading through it when [`Region::follows_file`] raises SIGBUS if the file
    /// was cut in between.
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the range was checked to lie inside the mapping.
        unsafe { self.memory.base.as_ptr().add(self.bytes.start) }
    }

    /// The bytes, when they are plain host memory that nothing else can change; otherwise use
    /// [`Region::read_at`].
    pub fn as_slice(&self) -> Option<&[u8]> {
        let plain = matches!(self.memory.kind(), MemoryKind::Host { .. }) && !self.follows_file();
        // SAFETY: inside the mapping, initialised, and no request is in flight any more, because a
        // region is handed out only after its transfer has ended; `&self` forbids writers.
        plain.then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// The bytes for writing, when they are plain host memory and this is the only user.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let plain = matches!(self.memory.kind(), MemoryKind::Host { .. }) && !self.follows_file();
        let alone = Arc::get_mut(&mut self.memory).is_some();
        let (pointer, len) = (self.as_ptr().cast_mut(), self.len());
        // SAFETY: as in `as_slice`, and no other handle to the memory exists.
        (plain && alone).then(|| unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }

    /// Copies bytes from `offset` on into `out`, whatever the memory is made of, without the risk
    /// of a signal. Returns how many bytes were copied (fewer at the end of the region).
    ///
    /// # Errors
    /// `EFAULT` when the mapped file was cut, or the device behind peer memory is gone.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.len().saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        match self.as_slice() {
            Some(bytes) => out[..len].copy_from_slice(&bytes[offset..offset + len]),
            None => {
                let start = self.bytes.start + offset;
                let mut done = 0;
                let mut relay = Relay::new()?;
                while done < len {
                    let step = Relay::SIZE.min(len - done);
                    let target = self.memory.target(start + done..start + done + step);
                    relay.bytes_of(&target, |bytes| {
                        out[done..done + step].copy_from_slice(bytes)
                    })?;
                    done += step;
                }
            }
        }
        Ok(len)
    }
}

/// Copies from memory that may vanish (a cut file's mapping, an unbound device's BAR) by letting
/// the kernel read it, which answers `EFAULT` where a load would raise SIGBUS.
pub(crate) struct Relay {
    file: OwnedFd,
    buffer: Arc<Memory>,
}

impl Relay {
    pub(crate) const SIZE: usize = 1 << 20;

    pub(crate) fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("crowfly-relay", rustix::fs::MemfdFlags::CLOEXEC)?;
        let buffer = Memory::host(Self::SIZE, None).map_err(io::Error::other)?;
        Ok(Self { file, buffer })
    }

    /// Runs `use_bytes` on a copy of the target's bytes; the target is at most [`Relay::SIZE`] long.
    pub(crate) fn bytes_of<R>(
        &mut self,
        target: &Target,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        let copy = self.buffer.target(0..target.len());
        let mut done = 0;
        while done < target.len() {
            let rest = target
                .memory
                .target(target.range.start + done..target.range.end);
            done += rest.write_to(self.file.as_fd(), done as u64)?;
        }
        let read = copy.read_from(self.file.as_fd(), 0)?;
        if read == target.len() {
            Ok(copy.with_bytes(use_bytes))
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_memory_starts_on_a_huge_page_and_is_zero() {
        let mut region = Region::zeroed(HUGE_PAGE + 5, None).expect("2 MiB");
        assert_eq!(region.as_ptr().align_offset(HUGE_PAGE), 0);
        assert_eq!(region.len(), HUGE_PAGE + 5);
        assert!(region.as_slice().is_some_and(|b| b.iter().all(|b| *b == 0)));
        region.as_mut_slice().expect("plain memory")[7] = 9;
        let mut out = [0; 2];
        assert_eq!(region.read_at(7, &mut out).expect("plain memory"), 2);
        assert_eq!(out, [9, 0]);
        assert_eq!(
            region
                .read_at(region.len() + 1, &mut out)
                .expect("past the end"),
            0
        );
    }

    #[test]
    fn given_a_mapped_file_that_was_cut_reading_gives_an_error_and_no_signal() {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[5; 3 * BLOCK]).expect("three blocks");
        let mut region = Region::zeroed(3 * BLOCK, None).expect("three blocks");
        region
            .memory
            .target(0..3 * BLOCK)
            .map_file(file.as_fd(), 0)
            .expect("mapped");
        assert!(region.as_slice().is_none() && region.as_mut_slice().is_none());
        let mut out = [0; 4];
        assert_eq!(region.read_at(2 * BLOCK, &mut out).expect("still there"), 4);
        assert_eq!(out, [5; 4]);
        file.set_len(BLOCK as u64).expect("cut");
        let error = region
            .read_at(2 * BLOCK, &mut out)
            .expect_err("the page is gone");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        let populate = region.memory.target(2 * BLOCK..3 * BLOCK).populate();
        assert_eq!(
            populate.expect_err("gone").raw_os_error(),
            Some(libc::EFAULT)
        );
    }

    #[test]
    fn peer_memory_of_a_device_that_does_not_exist_is_refused_by_name() {
        let address = "ffff:ff:1f.7".parse().expect("an address");
        let error = Region::peer(address, 4096).expect_err("no such device");
        assert_eq!(error.code(), "no-peer-memory");
        assert!(error.to_string().contains("ffff:ff:1f.7"), "{error}");
    }

    #[test]
    fn more_memory_than_addresses_is_an_error_and_no_panic() {
        assert_eq!(
            Region::zeroed(usize::MAX, None)
                .expect_err("too much")
                .code(),
            "no-host-memory"
        );
    }
}
