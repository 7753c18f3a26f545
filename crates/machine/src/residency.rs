//! How much of a file lies in the page cache, by asking the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `cachestat(2)`, Linux 6.5; the number is the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
#[derive(Default)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Bytes of `file[offset..offset + length]` that lie in the page cache, in whole pages.
///
/// Uses `cachestat(2)` and, on kernels before 6.5, `mincore(2)` over a mapping.
///
/// # Errors
/// When the kernel offers neither for this file; the caller then does not know.
pub fn cached_bytes(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    if length == 0 {
        return Ok(0);
    }
    let range = CachestatRange { offset, length };
    let mut answer = Cachestat::default();
    // SAFETY: both pointers are to live values of the layout that the call reads and fills.
    let rc = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut answer),
            0u32,
        )
    };
    if rc == 0 {
        return Ok(answer.cached.saturating_mul(page_size()).min(length));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOSYS) => by_mincore(file, offset, length),
        error => Err(error),
    }
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

fn by_mincore(file: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<u64> {
    let page = page_size();
    let start = offset / page * page;
    let span = usize::try_from(offset + length - start).map_err(io::Error::other)?;
    let mut pages = vec![0u8; span.div_ceil(page as usize)];
    // SAFETY: a new shared read-only mapping at an address the kernel chooses; it is never read.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            span,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            file,
            start,
        )?
    };
    // SAFETY: the mapping spans `span` bytes from `base`, and the vector has a byte for each page.
    let rc = unsafe { libc::mincore(base, span, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: unmaps exactly the mapping made above; nothing refers to it.
    unsafe { rustix::mm::munmap(base, span)? };
    if rc != 0 {
        return Err(error);
    }
    let resident = pages.iter().filter(|p| *p & 1 == 1).count() as u64;
    Ok((resident * page).min(length))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ways_of_asking_see_what_was_just_written() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&vec![7u8; 1 << 20]).expect("1 MiB fits");
        assert_eq!(
            cached_bytes(file.as_fd(), 0, 1 << 20).expect("a regular file"),
            1 << 20
        );
        assert_eq!(
            by_mincore(file.as_fd(), 4096, 8192).expect("a regular file"),
            8192
        );
        assert_eq!(cached_bytes(file.as_fd(), 0, 0).expect("nothing to ask"), 0);
    }
}
