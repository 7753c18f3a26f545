//! Working one number out of those at the same place of several pieces of memory, with the result in all
//! of them: each is read once and written once, where it lies, and nothing is copied in between.
//!
//! All are fetched ahead side by side. One after the other, as through a buffer in between, a core has
//! too few reads under way to use what memory gives it.

use std::sync::Arc;

use super::Backing;
use super::ahead::{STRETCH, ask_ahead};

/// Pieces of memory of which each has a number for each place.
pub(crate) struct Everywhere<'a> {
    /// In the order in which numbers are merged.
    pub memories: &'a [Arc<Backing>],
    /// Where the numbers begin in each of them.
    pub offset: usize,
    /// How many bytes there are of each.
    pub len: usize,
    /// Takes the place of the memory of this index.
    pub instead: Option<(usize, &'a mut [u8])>,
}

/// Where the numbers are.
struct Places<'a> {
    memories: &'a [Arc<Backing>],
    offset: usize,
    instead: Option<(usize, *mut u8)>,
}

impl Places<'_> {
    #[inline(always)]
    fn all(&self) -> impl Iterator<Item = *mut u8> {
        let place = |(at, memory): (usize, &Arc<Backing>)| match self.instead {
            Some((index, own)) if index == at => own,
            _ => memory.base.as_ptr().wrapping_add(self.offset),
        };
        self.memories.iter().enumerate().map(place)
    }
}

/// Replaces the numbers of `N` bytes at each place by what `of` makes of all of them, one after the other,
/// and `last` of that; `false`, and nothing is changed, where they do not lie inside all memories, or one of
/// these may only be read.
pub(crate) fn merge<const N: usize>(
    all: Everywhere<'_>,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
    last: impl Fn([u8; N]) -> [u8; N],
) -> bool {
    let Everywhere {
        memories,
        offset,
        len,
        instead,
    } = all;
    let own = instead.as_ref().map(|(index, slice)| (*index, slice.len()));
    let fits = |(at, memory): (usize, &Arc<Backing>)| match own {
        Some((index, there)) if index == at => len <= there,
        _ => memory.writable && memory.is_host() && memory.place_of(offset, len).is_some(),
    };
    if !memories.iter().enumerate().all(fits) {
        return false;
    }
    let places = Places {
        memories,
        offset,
        instead: instead.map(|(index, slice)| (index, slice.as_mut_ptr())),
    };
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and `len` bytes of each place were found inside above.
        unsafe { merge_in_wide_registers(&places, len, of, last) };
        return true;
    }
    // SAFETY: `len` bytes of each place were found inside above.
    unsafe { merge_all(&places, len, of, last) };
    true
}

/// # Safety
/// As for [`merge_all`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn merge_in_wide_registers<const N: usize>(
    places: &Places<'_>,
    len: usize,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
    last: impl Fn([u8; N]) -> [u8; N],
) {
    // SAFETY: promised by the caller.
    unsafe { merge_all(places, len, of, last) }
}

/// # Safety
/// `len` bytes can be read and written at each place.
#[inline(always)]
unsafe fn merge_all<const N: usize>(
    places: &Places<'_>,
    len: usize,
    of: impl Fn([u8; N], [u8; N]) -> [u8; N],
    last: impl Fn([u8; N]) -> [u8; N],
) {
    let whole = len / STRETCH * STRETCH;
    for start in (0..whole).step_by(STRETCH) {
        places
            .all()
            .for_each(|place| ask_ahead(place.wrapping_add(start)));
        // SAFETY: the stretch lies inside the `len` bytes.
        unsafe { merge_stretch(places, start, STRETCH, &of, &last) };
    }
    // SAFETY: what is left of the `len` bytes, less than a stretch.
    unsafe { merge_stretch(places, whole, len - whole, &of, &last) };
}

/// # Safety
/// `len` bytes, at most [`STRETCH`], can be read and written from `start` on at each place.
#[inline(always)]
unsafe fn merge_stretch<const N: usize>(
    places: &Places<'_>,
    start: usize,
    len: usize,
    of: &impl Fn([u8; N], [u8; N]) -> [u8; N],
    last: &impl Fn([u8; N]) -> [u8; N],
) {
    let mut all = places.all().map(|place| place.wrapping_add(start));
    let Some(first) = all.next() else { return };
    let mut merged = [0; STRETCH];
    let merged = merged.as_mut_ptr();
    let count = len / N;
    // SAFETY: `merged` holds a stretch, and the bytes at each place may be read and written as the caller
    // promised; arrays of bytes have no alignment.
    unsafe {
        first.copy_to_nonoverlapping(merged, len);
        let merged = merged.cast::<[u8; N]>();
        for place in all {
            let place = place.cast::<[u8; N]>();
            for at in 0..count {
                let merged = merged.add(at);
                merged.write(of(merged.read(), place.add(at).read()));
            }
        }
        for at in 0..count {
            let merged = merged.add(at);
            merged.write(last(merged.read()));
        }
    }
    for place in places.all() {
        // SAFETY: as above.
        unsafe { merged.copy_to_nonoverlapping(place.wrapping_add(start), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Buffer, Caches};

    fn sum(one: [u8; 2], other: [u8; 2]) -> [u8; 2] {
        (u16::from_le_bytes(one).wrapping_add(u16::from_le_bytes(other))).to_le_bytes()
    }

    fn memory(len: usize, byte: u8) -> Arc<Backing> {
        let memory = Buffer::zeroed(len, None).expect("memory").into_backing();
        assert!(memory.copy_in(0, &vec![byte; len], Caches::Keep));
        memory
    }

    fn bytes(memory: &Backing, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(memory.copy_out(0, &mut bytes, Caches::Keep));
        bytes
    }

    #[test]
    fn every_place_has_what_comes_of_all_and_nothing_else_changes() {
        const ALL: usize = 2 * STRETCH + 40;
        for len in [0, 2, STRETCH - 2, STRETCH, 2 * STRETCH + 6] {
            for count in 1..=4u8 {
                let memories: Vec<_> = (0..count).map(|at| memory(ALL, 1 << at)).collect();
                let all = Everywhere {
                    memories: &memories,
                    offset: 8,
                    len,
                    instead: None,
                };
                assert!(merge(all, sum, |[low, high]: [u8; 2]| [low, !high]));
                let total = (1u16 << count) as u8 - 1;
                for (at, memory) in memories.iter().enumerate() {
                    let mut wanted = vec![1 << at; ALL];
                    for pair in wanted[8..8 + len].as_chunks_mut().0 {
                        *pair = [total, !total];
                    }
                    assert_eq!(bytes(memory, ALL), wanted, "{at} of {count}, {len} bytes");
                }
            }
        }
    }

    #[test]
    fn a_slice_takes_the_place_of_the_memory_it_stands_for() {
        let memories = [memory(80, 1), memory(80, 2), memory(80, 4)];
        let mut own = vec![64; 70];
        let all = Everywhere {
            memories: &memories,
            offset: 4,
            len: 66,
            instead: Some((1, &mut own)),
        };
        // Each number is what came before it, doubled, and itself: the order shows.
        let of = |one: [u8; 1], other: [u8; 1]| [one[0] * 2 + other[0]];
        assert!(merge(all, of, |number| number));
        let merged = (2 + 64) * 2 + 4;
        assert_eq!((&own[..66], &own[66..]), (&[merged; 66][..], &[64; 4][..]));
        assert_eq!(bytes(&memories[1], 80), [2; 80], "as it was");
        for at in [0, 2] {
            let there = bytes(&memories[at], 80);
            assert_eq!(there[4..70], [merged; 66]);
            assert_eq!((there[3], there[70]), (1 << at, 1 << at));
        }
    }

    #[test]
    fn nothing_changes_where_one_memory_is_too_short_or_may_only_be_read() {
        let long = memory(80, 1);
        let file = rustix::io::dup(long.file().expect("a memory file")).expect("dup");
        let read_only = Arc::new(Backing::map(file, 80, false).expect("mapped"));
        let pair = [long.clone(), long.clone()];
        let mut short = [1; 15];
        let refused = [
            (&[long.clone(), memory(20, 1)], 8, None),
            (&[long.clone(), read_only], 8, None),
            (&pair, usize::MAX, None),
            (&pair, 8, Some((1, &mut short[..]))),
        ];
        for (memories, offset, instead) in refused {
            let all = Everywhere {
                memories,
                offset,
                len: 16,
                instead,
            };
            assert!(!merge(all, sum, |_| [9; 2]));
            assert_eq!(bytes(&long, 80), [1; 80]);
        }
    }
}
