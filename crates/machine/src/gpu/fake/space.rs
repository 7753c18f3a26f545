//! Addresses of devices: nothing that a core may touch, over bytes that the fake reaches by another
//! mapping of the same memory file.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::POISON;

const PAGE: usize = 4096;

/// Physical memory of a device.
pub(super) struct Physical {
    file: OwnedFd,
    bytes: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, which is only touched with the world locked.
unsafe impl Send for Physical {}
// SAFETY: as above.
unsafe impl Sync for Physical {}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing points into it once the last mapping is gone.
        let _ = unsafe { rustix::mm::munmap(self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Physical {
    pub(super) fn new(len: usize) -> Option<Arc<Self>> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let file = rustix::fs::memfd_create("fake-gpu", MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&file, len as u64).ok()?;
        let (read, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses.
        let bytes =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, read, shared, &file, 0) }.ok()?;
        let bytes = NonNull::new(bytes.cast::<u8>())?;
        // SAFETY: the mapping is that long.
        unsafe { bytes.write_bytes(POISON, len) };
        Some(Arc::new(Self { file, bytes, len }))
    }

    pub(super) fn file(&self) -> std::io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Whether a descriptor is of this memory.
    pub(super) fn is(&self, descriptor: std::ffi::c_int) -> bool {
        // SAFETY: it is only looked at, and callers hand in open ones.
        let other = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
        let number = |of: std::os::fd::BorrowedFd<'_>| Some(rustix::fs::fstat(of).ok()?.st_ino);
        number(self.file.as_fd()).is_some_and(|own| number(other) == Some(own))
    }

    /// Copies out; the range lies within.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len);
        // SAFETY: within the mapping (asserted), and the world is locked.
        unsafe {
            let from = self.bytes.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
    }

    /// Copies in; the range lies within.
    pub(super) fn write(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len);
        // SAFETY: as above.
        unsafe {
            let to = self.bytes.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
    }
}

/// Addresses that belong to a device and that no core may touch.
pub(super) struct Reserved {
    start: u64,
    len: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`, and nothing can point there.
        let _ = unsafe { rustix::mm::munmap(self.start as *mut _, self.len) };
    }
}

impl Reserved {
    pub(super) fn new(len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)
        };
        Some(Self {
            start: start.ok()? as u64,
            len,
        })
    }

    pub(super) const fn start(&self) -> u64 {
        self.start
    }
}
