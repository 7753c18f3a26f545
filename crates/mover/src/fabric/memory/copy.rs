//! Copies by a CPU core, through the caches or past them.
//!
//! A plain copy first reads the lines it is about to overwrite into the cache. Stores that go past
//! the caches save that read, a third of the traffic to memory, and leave other data in the caches.
//! They lose where source and target fit into the caches anyway.

/// What a copy does with the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caches {
    /// The bytes are left in them, for a reader who comes soon.
    Keep,
    /// The bytes go past them to memory: there are more than a core's own caches hold.
    Pass,
}

/// Copies as much of a slice as another takes.
pub(crate) fn copy_slice(from: &[u8], to: &mut [u8], caches: Caches) {
    let len = from.len().min(to.len());
    // SAFETY: both slices have at least `len` bytes, and one of them is borrowed mutably.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len, caches) };
}

/// Copies `len` bytes; the two ranges may overlap.
///
/// # Safety
/// As for [`std::ptr::copy`].
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, caches: Caches) {
    #[cfg(target_arch = "x86_64")]
    {
        let apart = (from as usize).abs_diff(to as usize) >= len;
        if caches == Caches::Pass && apart && std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX, the ranges do not overlap, and the rest is promised
            // by the caller.
            return unsafe { past_caches(from, to, len) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = caches;
    // SAFETY: promised by the caller.
    unsafe { std::ptr::copy(from, to, len) }
}

/// Copies with stores that go past the caches, ordered before everything the thread stores after.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn past_caches(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    /// Bytes of a cache line; only whole ones leave the write-combining buffers in one piece.
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    // SAFETY: head, lines and tail together are exactly the range, line stores are aligned, and
    // both ranges are valid and apart, as the caller promised.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut target) = (from.add(head), to.add(head));
        for _ in 0..lines {
            let low = _mm256_loadu_si256(source.cast());
            let high = _mm256_loadu_si256(source.add(LINE / 2).cast());
            _mm256_stream_si256(target.cast::<__m256i>(), low);
            _mm256_stream_si256(target.add(LINE / 2).cast::<__m256i>(), high);
            source = source.add(LINE);
            target = target.add(LINE);
        }
        std::ptr::copy_nonoverlapping(source, target, len - head - lines * LINE);
    }
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_length_the_alignment_and_the_caches() {
        let source: Vec<u8> = (0..1024u32).map(|n| (n * 7 % 251) as u8).collect();
        for caches in [Caches::Keep, Caches::Pass] {
            for skip in [0, 1, 31, 63] {
                for len in [0, 1, 63, 64, 65, 127, 200, 800] {
                    let mut target = vec![0xee; 1024];
                    let (from, to) = (&source[skip / 2..], &mut target[skip..]);
                    assert!(from.len() >= len && to.len() >= len);
                    // SAFETY: both slices have at least `len` bytes and are different vectors.
                    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len, caches) };
                    assert_eq!(to[..len], from[..len]);
                    assert!(
                        to[len..].iter().all(|byte| *byte == 0xee),
                        "nothing behind it"
                    );
                    assert!(target[..skip].iter().all(|byte| *byte == 0xee));
                }
            }
        }
    }

    #[test]
    fn given_overlapping_ranges_the_target_has_what_the_source_had() {
        for caches in [Caches::Keep, Caches::Pass] {
            for (from, to) in [(0usize, 40usize), (40, 0)] {
                let mut bytes: Vec<u8> = (0..=255).collect();
                let before = bytes.clone();
                let base = bytes.as_mut_ptr();
                // SAFETY: both ranges lie in the vector.
                unsafe { copy(base.add(from), base.add(to), 200, caches) };
                assert_eq!(bytes[to..to + 200], before[from..from + 200]);
            }
        }
    }
}
