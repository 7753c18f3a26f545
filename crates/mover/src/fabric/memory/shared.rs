//! Memory that several processes use at the same time: counters that they read and write in one
//! piece, and bytes that are copied in and out.

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{Backing, Caches, copy};

impl Backing {
    /// A counter in host memory; `None` where it does not lie inside, is not aligned to its size, or
    /// the memory may only be read.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let address = self.aligned(offset, size_of::<AtomicU64>())?;
        // SAFETY: the word lies inside the mapping, which is writable, aligned as checked, and lives
        // as long as `self`. An atomic may be changed by anyone at any time.
        Some(unsafe { AtomicU64::from_ptr(address.cast()) })
    }

    /// The same of half the size, which is what the kernel lets processes wait for.
    pub(crate) fn half_word(&self, offset: usize) -> Option<&AtomicU32> {
        let address = self.aligned(offset, size_of::<AtomicU32>())?;
        // SAFETY: as in `word`.
        Some(unsafe { AtomicU32::from_ptr(address.cast()) })
    }

    /// Where so many bytes are that may be written to in one piece, a power of two.
    fn aligned(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        let address = self.base.as_ptr().wrapping_add(offset);
        let usable = inside && self.writable && self.is_host();
        (usable && (address as usize).is_multiple_of(size)).then_some(address)
    }

    /// Copies bytes into host memory; `false`, and nothing is copied, where they do not lie inside or
    /// the memory may only be read.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8], caches: Caches) -> bool {
        let end = offset.checked_add(bytes.len());
        if !self.writable || !self.is_host() || end.is_none_or(|end| end > self.len) {
            return false;
        }
        let to = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: the target lies inside the mapping as checked, and no references to registered
        // memory exist that it could alias.
        unsafe { copy::copy(bytes.as_ptr(), to, bytes.len(), caches) };
        true
    }

    /// Copies bytes out of host memory; `false`, and nothing is copied, where they do not lie inside.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8], caches: Caches) -> bool {
        let end = offset.checked_add(out.len());
        if !self.is_host() || end.is_none_or(|end| end > self.len) {
            return false;
        }
        let from = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: as in `copy_in`.
        unsafe { copy::copy(from, out.as_mut_ptr(), out.len(), caches) };
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::fabric::{Buffer, Caches};

    #[test]
    fn a_word_is_one_and_the_same_in_both_mappings() {
        let one = Buffer::zeroed(4096, None).expect("memory").into_backing();
        let file = rustix::io::dup(one.file().expect("a memory file")).expect("dup");
        let other = super::Backing::map(file, 4096, true).expect("mapped");
        one.word(64).expect("inside").store(7, Ordering::Release);
        assert_eq!(other.word(64).expect("inside").load(Ordering::Acquire), 7);
        assert!(one.word(4090).is_none() && one.word(4096).is_none());
        assert!(one.word(4).is_none(), "not aligned");
        one.half_word(4)
            .expect("inside")
            .store(9, Ordering::Release);
        assert_eq!(
            other.half_word(4).expect("inside").load(Ordering::Acquire),
            9
        );
        assert!(one.half_word(2).is_none() && one.half_word(4094).is_none());
    }

    #[test]
    fn nothing_is_copied_beyond_the_end() {
        let memory = Buffer::zeroed(16, None).expect("memory").into_backing();
        assert!(memory.copy_in(8, &[1; 8], Caches::Keep));
        assert!(!memory.copy_in(9, &[2; 8], Caches::Keep));
        assert!(!memory.copy_in(usize::MAX, &[2; 8], Caches::Keep));
        let mut out = [0; 9];
        assert!(!memory.copy_out(8, &mut out, Caches::Keep));
        assert!(memory.copy_out(7, &mut out, Caches::Keep));
        assert_eq!(out, [0, 1, 1, 1, 1, 1, 1, 1, 1]);
    }
}
