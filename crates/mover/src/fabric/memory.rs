//! Memory that can be registered with the fabric.
//!
//! A [`Buffer`] has one owner and can be read and written as a slice. Registering consumes it; from
//! then on peers and NICs may touch the bytes at any time, so they are only *copied* in and out.
//! The [`Backing`] under it is shared with whatever still moves bytes and is unmapped by the last.
//!
//! This module is the only one of the fabric's core that uses `unsafe`.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crowfly_machine::gpu::{DeviceMemory, PeerRefusal};
use crowfly_machine::verbs::Pinned;
use crowfly_route::place::Place;
use crowfly_route::receipt::CpuSeconds;
use crowfly_route::units::NumaNode;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory::{MemoryError, bind};

mod ahead;
mod attach;
mod buffer;
mod copy;
mod device;
mod duo;
pub(crate) mod gather;
mod merge;
mod shared;
mod zip;

pub(crate) use ahead::ask_for;
pub(crate) use attach::peek;
pub use buffer::Buffer;
pub(crate) use copy::{Caches, copy_slice};
pub(in crate::fabric) use device::Fault;
pub(crate) use duo::{Duo, second};
pub(crate) use merge::{Everywhere, merge};
pub(crate) use zip::zip_slices;

/// Keeps foreign memory alive.
pub type Keeper = Arc<dyn std::any::Any + Send + Sync>;

/// Who frees the bytes.
enum Owner {
    /// A mapping of this type's own.
    Mapping,
    /// Someone else, once this is dropped.
    Other(#[expect(dead_code, reason = "held for its drop")] Keeper),
    /// A GPU, whose memory no core may touch.
    Device(device::Device),
}

/// Bytes that live until the last user lets go.
pub struct Backing {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// The memory file that the bytes are a mapping of, from offset 0.
    file: Option<OwnedFd>,
    writable: bool,
    place: Place,
}

// SAFETY: plain memory without thread affinity. Shared access never creates references to bytes
// that another thread, process or device may write; they are copied through raw pointers.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Owner::Mapping = self.owner {
            // SAFETY: the mapping was made by this type with exactly this base and length, and no
            // `Span` exists any more since each holds an `Arc` of it.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len.max(1)) };
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backing({} bytes, {})", self.len, self.place)
    }
}

impl Backing {
    /// Zeroed memory in a memory file, so that a process on the same host can map it as well.
    fn shared(len: usize, numa: Option<NumaNode>) -> Result<Self, MemoryError> {
        let failed = |source: io::Error| MemoryError::Host { bytes: len, source };
        let size = u64::try_from(len.max(1)).map_err(|e| failed(io::Error::other(e)))?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let make = || -> io::Result<OwnedFd> {
            let file = rustix::fs::memfd_create("crowfly-region", flags)?;
            rustix::fs::ftruncate(&file, size)?;
            // Whoever maps it can rely on its length: cut under a mapping it would raise SIGBUS.
            rustix::fs::fcntl_add_seals(&file, SEALS)?;
            Ok(file)
        };
        let file = make().map_err(failed)?;
        let mut backing = Self::map(file, len, true).map_err(failed)?;
        backing.place =
            Place::Host(numa.filter(|node| bind(backing.base, backing.len.max(1), *node)));
        Ok(backing)
    }

    /// Zeroed memory that no other process can map.
    fn private(len: usize) -> Result<Self, MemoryError> {
        // SAFETY: a new private mapping at an address the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let base = base.map_err(io::Error::from).and_then(|base| {
            NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))
        });
        let base = base.map_err(|source| MemoryError::Host { bytes: len, source })?;
        Ok(Self {
            base,
            len,
            owner: Owner::Mapping,
            file: None,
            writable: true,
            place: Place::Host(None),
        })
    }

    /// Maps a memory file that someone else made.
    ///
    /// # Errors
    /// When the file is shorter than `len` or could be cut later, which would turn every access
    /// into a signal.
    pub(crate) fn map(file: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let size = rustix::fs::fstat(&file)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(size).is_ok_and(|s| s < len) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new shared mapping at an address the kernel chooses; the seal keeps the file
        // at least this long for ever.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len.max(1),
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: advice on the mapping just made; it changes no contents. Refused where shared
        // memory has no huge pages.
        let _ =
            unsafe { rustix::mm::madvise(base.as_ptr().cast(), len.max(1), Advice::LinuxHugepage) };
        Ok(Self {
            base,
            len,
            owner: Owner::Mapping,
            file: Some(file),
            writable,
            place: Place::Host(None),
        })
    }

    /// Memory of GPU number `gpu`.
    pub(crate) fn of_gpu(gpu: u32, memory: Arc<DeviceMemory>, writable: bool) -> io::Result<Self> {
        let base = NonNull::new(memory.address() as *mut u8);
        Ok(Self {
            base: base.ok_or_else(|| io::Error::other("memory at address 0"))?,
            len: memory.len(),
            owner: Owner::Device(device::Device::new(memory)),
            file: None,
            writable,
            place: Place::Gpu(gpu),
        })
    }

    /// The GPU's memory that the bytes are; `None` of host memory.
    pub(crate) const fn device(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.owner {
            Owner::Device(device) => Some(device.memory()),
            Owner::Mapping | Owner::Other(_) => None,
        }
    }

    const fn by_gpu(&self) -> Option<&device::Device> {
        match &self.owner {
            Owner::Device(device) => Some(device),
            Owner::Mapping | Owner::Other(_) => None,
        }
    }

    /// Whether a core may touch the bytes.
    fn is_host(&self) -> bool {
        matches!(self.place, Place::Host(_))
    }

    /// How many bytes there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, to register with a NIC. Valid as long as this lives.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether peers and NICs may write into it.
    pub const fn writable(&self) -> bool {
        self.writable
    }

    /// Where the bytes are.
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// The memory file behind the bytes, which a process on the same host could map.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A part of it, borrowed; `None` when the range lies outside.
    pub(crate) fn part(&self, range: Range<usize>) -> Option<Part<'_>> {
        (range.start <= range.end && range.end <= self.len).then_some(Part {
            backing: self,
            start: range.start,
            len: range.end - range.start,
        })
    }

    /// A part of it; `None` when the range lies outside.
    pub(crate) fn span(self: &Arc<Self>, range: Range<usize>) -> Option<Span> {
        (range.start <= range.end && range.end <= self.len).then(|| Span {
            backing: Arc::clone(self),
            range,
        })
    }
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

// SAFETY: the bytes stay mapped at the same address until the backing is dropped, and nobody holds
// references to them while it is registered (see `Buffer`).
unsafe impl Pinned for Backing {
    fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// A part of a backing that is borrowed while bytes are copied into or out of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    backing: &'a Backing,
    start: usize,
    len: usize,
}

impl Part<'_> {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: the range was checked to lie inside the backing when the part was made.
        unsafe { self.backing.as_ptr().add(self.start) }
    }

    /// At most so many bytes of its start.
    fn first(self, most: usize) -> Self {
        Self {
            len: self.len.min(most),
            ..self
        }
    }

    /// What is left from `skip` bytes on.
    fn skip(self, skip: usize) -> Self {
        let skip = skip.min(self.len);
        Self {
            start: self.start + skip,
            len: self.len - skip,
            ..self
        }
    }

    /// Copies this part into another of the same length, which may overlap it; past the caches
    /// where that is asked for and possible, and with the help of a second core, whose cost this
    /// answers. Between memories of GPUs it is one of them that copies, where it reaches the other;
    /// what else comes from or goes to a GPU passes a buffer.
    pub(crate) fn copy_to(
        self,
        to: Part<'_>,
        caches: Caches,
        second: Option<&Duo>,
    ) -> io::Result<CpuSeconds> {
        if !to.backing.writable || to.len != self.len {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        if !self.backing.is_host() || !to.backing.is_host() {
            return self.copy_by_gpu(to).map(|()| CpuSeconds::default());
        }
        // SAFETY: both parts lie inside mappings that live as long as their backings, the target is
        // mapped writable, and `copy` allows them to overlap. No references to the bytes exist.
        unsafe {
            let (from, to, len) = (self.pointer(), to.pointer(), self.len);
            match second {
                Some(duo) => Ok(duo.copy(from, to, len, caches)),
                None => {
                    copy::copy(from, to, len, caches);
                    Ok(CpuSeconds::default())
                }
            }
        }
    }

    fn copy_by_gpu(self, to: Part<'_>) -> io::Result<()> {
        if let (Some(from), Some(into)) = (self.backing.by_gpu(), to.backing.by_gpu())
            && reaches(self.backing, to.backing).is_ok()
        {
            return from.copy_to(self.start..self.start + self.len, into, to.start);
        }
        match (self.backing.is_host(), to.backing.is_host()) {
            (_, true) => self.in_steps(|from, done| {
                from.drain(|bytes, len| Ok(to.skip(done).put_raw(bytes, len)))
            }),
            (true, false) => to.in_steps(|into, done| {
                let from = self.skip(done);
                into.fill(|bytes, len| Ok(from.get_raw(bytes, len)))
            }),
            (false, false) => self.in_steps(|from, done| {
                from.drain(|bytes, len| {
                    to.skip(done).first(len).fill(|buffer, len| {
                        // SAFETY: both are buffers of at least `len` bytes, and different ones.
                        unsafe { std::ptr::copy_nonoverlapping(bytes, buffer, len) };
                        Ok(len)
                    })
                })
            }),
        }
    }

    /// Does a step of the work on what is left of this part until nothing is.
    fn in_steps(self, step: impl Fn(Self, usize) -> io::Result<usize>) -> io::Result<()> {
        let mut done = 0;
        while done < self.len {
            match step(self.skip(done), done)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                moved => done += moved,
            }
        }
        Ok(())
    }

    /// Copies bytes into this part; returns how many fitted, none where it can only be read.
    ///
    /// # Errors
    /// What the GPU answers, where it is one's memory.
    pub(crate) fn put(self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.len);
        if !self.backing.writable {
            return Ok(0);
        }
        self.first(len).in_steps(|into, done| {
            let rest = bytes.get(done..).unwrap_or_default();
            into.fill(|buffer, room| {
                let len = room.min(rest.len());
                // SAFETY: `fill` gives memory of `room` bytes, which no slice can overlap: no
                // references to registered memory exist.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer, len) };
                Ok(len)
            })
        })?;
        Ok(len)
    }

    /// Copies bytes out of this part; returns how many there were.
    ///
    /// # Errors
    /// What the GPU answers, where it is one's memory.
    pub(crate) fn get(self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.len);
        let mut done = 0;
        while done < len {
            let rest = out.get_mut(done..len).unwrap_or_default();
            done += self.skip(done).first(len - done).drain(|bytes, there| {
                let len = there.min(rest.len());
                // SAFETY: `drain` gives memory of `there` bytes, which no exclusive slice overlaps.
                unsafe { std::ptr::copy_nonoverlapping(bytes, rest.as_mut_ptr(), len) };
                Ok(len)
            })?;
        }
        Ok(len)
    }

    /// Lets `put` write the start of this part: in place where it is host memory, through a buffer
    /// where it is a GPU's. Answers how many bytes were put.
    fn fill(self, put: impl FnOnce(*mut u8, usize) -> io::Result<usize>) -> io::Result<usize> {
        match (self.backing.by_gpu(), self.backing.is_host()) {
            (Some(device), _) => device.fill(self.start..self.start + self.len, put),
            (None, true) => put(self.pointer(), self.len),
            (None, false) => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    /// Lets `take` have the start of this part, as [`Part::fill`] does the other way.
    fn drain(self, take: impl FnOnce(*const u8, usize) -> io::Result<usize>) -> io::Result<usize> {
        match (self.backing.by_gpu(), self.backing.is_host()) {
            (Some(device), _) => device.drain(self.start..self.start + self.len, take),
            (None, true) => take(self.pointer(), self.len),
            (None, false) => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    /// Copies up to `len` bytes into this part of host memory, from memory of that length.
    fn put_raw(self, bytes: *const u8, len: usize) -> usize {
        let len = len.min(self.len);
        // SAFETY: `len` bytes lie inside this part and behind the pointer, which cannot overlap: no
        // references to registered memory exist, and buffers are nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(bytes, self.pointer(), len) };
        len
    }

    /// Copies up to `len` bytes out of this part of host memory, into memory of that length.
    fn get_raw(self, out: *mut u8, len: usize) -> usize {
        let len = len.min(self.len);
        // SAFETY: as in `put_raw`.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(), out, len) };
        len
    }
}

/// Whether the copy engine of one GPU gets from its memory to the other's.
pub(crate) fn reaches(from: &Backing, to: &Backing) -> Result<(), PeerRefusal> {
    match (from.device(), to.device()) {
        (Some(from), Some(to)) => from.gpu().reach(to.gpu()),
        _ => Ok(()),
    }
}

/// A part of a backing that bytes are moved into or out of. Its bytes may change at any time.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Span {
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY: the range was checked to lie inside the backing when the span was made.
        unsafe { self.backing.as_ptr().add(self.range.start) }
    }

    /// Where the part is in this process's memory.
    pub(crate) fn address(&self) -> u64 {
        self.pointer() as u64
    }

    /// At most so many bytes of its start.
    pub(crate) fn first(&self, most: usize) -> Self {
        Self {
            backing: Arc::clone(&self.backing),
            range: self.range.start..self.range.end.min(self.range.start.saturating_add(most)),
        }
    }

    /// What is left from `skip` bytes on.
    pub(crate) fn skip(&self, skip: usize) -> Self {
        let start = self.range.end.min(self.range.start.saturating_add(skip));
        Self {
            backing: Arc::clone(&self.backing),
            range: start..self.range.end,
        }
    }

    fn part(&self) -> Part<'_> {
        Part {
            backing: &self.backing,
            start: self.range.start,
            len: self.range.len(),
        }
    }

    /// Lets `put` write the start of this part; see [`Part::fill`].
    fn fill(&self, put: impl FnOnce(*mut u8, usize) -> io::Result<usize>) -> io::Result<usize> {
        self.part().fill(put)
    }

    /// Receives from a socket into this part: straight, where it is host memory.
    pub(crate) fn receive(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        if !self.backing.writable {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        self.fill(|to, len| {
            // SAFETY: `fill` gives memory of that length that the kernel may write.
            let got = unsafe { libc::recv(socket.as_raw_fd(), to.cast(), len, libc::MSG_DONTWAIT) };
            usize::try_from(got).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Copies bytes into this part; returns how many fitted.
    ///
    /// # Errors
    /// What the GPU answers, where it is one's memory.
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<usize> {
        self.part().put(bytes)
    }

    /// Copies bytes out of this part; returns how many there were.
    ///
    /// # Errors
    /// What the GPU answers, where it is one's memory.
    pub(crate) fn get(&self, out: &mut [u8]) -> io::Result<usize> {
        self.part().get(out)
    }
}

/// Throws away up to `len` bytes that a TCP socket has received; the kernel copies nothing.
pub(crate) fn discard(socket: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: with MSG_TRUNC, TCP drops the bytes and writes nowhere.
    let got = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), len, flags) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zero_and_sealed_so_that_nobody_who_maps_it_gets_a_signal() {
        let mut buffer = Buffer::zeroed(10_000, None).expect("memory");
        assert!(buffer.as_slice().iter().all(|byte| *byte == 0));
        buffer.as_mut_slice().expect("writable")[9_999] = 7;
        let file = buffer.backing.file().expect("a memory file");
        assert!(rustix::fs::ftruncate(file, 1).is_err(), "sealed");
        let copy = rustix::io::dup(file).expect("dup");
        let mapped = Arc::new(Backing::map(copy, 10_000, false).expect("mapped"));
        let mut out = [0; 2];
        let read = mapped.span(9_998..10_000).expect("inside").get(&mut out);
        assert_eq!(read.expect("host memory"), 2);
        assert_eq!(out, [0, 7]);
        let put = mapped.span(0..1).expect("inside").put(&[1]);
        assert_eq!(put.expect("host memory"), 0, "read only");
        assert!(mapped.span(9_999..10_001).is_none());
    }

    #[test]
    fn a_memory_file_that_is_too_short_or_could_be_cut_is_not_mapped() {
        let unsealed =
            rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("a memory file");
        rustix::fs::ftruncate(&unsealed, 8192).expect("sized");
        let copy = rustix::io::dup(&unsealed).expect("dup");
        assert!(Backing::map(copy, 4096, true).is_err(), "could be cut");
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).expect("sealed");
        let copy = rustix::io::dup(&unsealed).expect("dup");
        assert!(Backing::map(copy, 8193, true).is_err(), "too short");
        assert!(Backing::map(unsealed, 8192, true).is_ok());
    }

    #[test]
    fn loaded_memory_is_registered_without_a_copy_and_cannot_be_written() {
        let region = crate::Region::zeroed(4096, None).expect("memory");
        let address = region.as_ptr();
        let mut buffer = Buffer::loaded(region).expect("plain memory");
        assert_eq!(buffer.as_slice().as_ptr(), address);
        assert!(buffer.as_mut_slice().is_none());
    }
}
