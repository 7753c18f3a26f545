//! Working numbers out of two pieces of memory of which one may be shared: number by number, without
//! a copy in between.
//!
//! The loop is compiled twice, for any processor and for one with wider registers, and the processor
//! is asked once.

use super::Backing;
use super::ahead::{STRETCH, ask_ahead};

impl Backing {
    /// Replaces each number of `into`, of `N` bytes, by what `of` makes of it and of the number at the
    /// same place of this memory, which begins at `offset`; `false`, and nothing is changed, where
    /// the numbers do not lie inside.
    pub(crate) fn zip_into<const N: usize>(
        &self,
        offset: usize,
        into: &mut [u8],
        of: impl Fn([u8; N], [u8; N]) -> [u8; N],
    ) -> bool {
        let Some(with) = self.place_of(offset, into.len()) else {
            return false;
        };
        // SAFETY: `into.len()` bytes from `with` on lie inside the mapping as checked; no references to
        // registered memory exist, so the slice lies elsewhere. Nothing is written there.
        unsafe { zip::<N>(into.as_mut_ptr(), with, into.len() / N, of) };
        true
    }

    /// Where so many bytes from `offset` on are; `None` where they do not lie inside.
    pub(super) fn place_of(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.base.as_ptr().wrapping_add(offset))
    }
}

/// The same of two slices, as many numbers as both have.
pub(crate) fn zip_slices<const N: usize>(
    into: &mut [u8],
    with: &[u8],
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let count = into.len().min(with.len()) / N;
    let (into, with) = (into.as_mut_ptr(), with.as_ptr());
    // SAFETY: both slices have at least `count` numbers, and one is borrowed mutably. Nothing is written
    // to the other.
    unsafe { zip::<N>(into, with, count, of) };
}

/// # Safety
/// `count` numbers of `N` bytes can be read and written at `into` and read at `with`, and the two do not overlap.
unsafe fn zip<const N: usize>(
    into: *mut u8,
    with: *const u8,
    count: usize,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and the rest is promised by the caller.
        return unsafe { zip_in_wide_registers::<N>(into, with, count, of) };
    }
    // SAFETY: promised by the caller.
    unsafe { zip_each::<N>(into, with, count, of) }
}

/// # Safety
/// As for [`zip`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn zip_in_wide_registers<const N: usize>(
    into: *mut u8,
    with: *const u8,
    count: usize,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    // SAFETY: promised by the caller.
    unsafe { zip_each::<N>(into, with, count, of) }
}

/// # Safety
/// As for [`zip`].
#[inline(always)]
unsafe fn zip_each<const N: usize>(
    into: *mut u8,
    with: *const u8,
    count: usize,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (into, with) = (into.cast::<[u8; N]>(), with.cast::<[u8; N]>());
    let one = |at: usize| {
        // SAFETY: number `at` lies inside both, as the caller promised; arrays of bytes have no
        // alignment.
        unsafe {
            let (to, other) = (into.add(at), with.add(at));
            let result = of(to.read(), other.read());
            to.write(result);
        }
    };
    let each = STRETCH / N;
    let whole = count / each * each;
    for start in (0..whole).step_by(each) {
        ask_ahead(into.wrapping_add(start).cast());
        (start..start + each).for_each(one);
    }
    (whole..count).for_each(one);
}

#[cfg(test)]
mod tests {
    use crate::fabric::{Buffer, Caches, zip_slices};

    fn sum(one: [u8; 2], other: [u8; 2]) -> [u8; 2] {
        u16::from_le_bytes(one)
            .wrapping_add(u16::from_le_bytes(other))
            .to_le_bytes()
    }

    #[test]
    fn whole_numbers_are_worked_out_and_what_is_left_stays() {
        let mut into: Vec<u8> = (0..101).collect();
        zip_slices(&mut into, &[1; 77], sum);
        let wanted = (0..101u8).map(|byte| if byte < 76 { byte + 1 } else { byte });
        assert_eq!(into, wanted.collect::<Vec<u8>>());
    }

    #[test]
    fn shared_memory_is_read_where_it_lies_and_nothing_beyond_its_end() {
        let memory = Buffer::zeroed(80, None).expect("memory").into_backing();
        assert!(memory.copy_in(3, &[2; 77], Caches::Keep));
        let mut into = vec![5; 76];
        assert!(memory.zip_into(4, &mut into, sum));
        assert_eq!(into, [7; 76]);
        assert!(!memory.zip_into(5, &mut into, sum));
        assert!(!memory.zip_into(usize::MAX, &mut into, sum));
        assert_eq!(into, [7; 76]);
        let mut there = [0; 80];
        assert!(memory.copy_out(0, &mut there, Caches::Keep));
        assert_eq!(there[3..], [2; 77], "as it was");
    }
}
