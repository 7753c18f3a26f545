//! Cutting a request into chunks and choosing a path for each. Pure.

use std::ops::Range;

use crate::digest;

/// How one chunk travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Way {
    /// O_DIRECT into the destination.
    Direct,
    /// O_DIRECT into a buffer, and copied from there by a core.
    Bounce,
    /// The page cache's pages become the destination.
    Map,
    /// Copied out of the page cache by the kernel.
    Copy,
    /// Between drive and GPU by the storage library of the GPU's maker.
    Storage,
}

/// A part of a piece that is handled as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Which piece of the request.
    pub piece: usize,
    /// Position among all chunks of the request.
    pub index: usize,
    /// The bytes asked for, as file offsets.
    pub wanted: Range<u64>,
    /// How.
    pub way: Way,
}

impl Chunk {
    /// The bytes that are moved: what is wanted, grown to the alignment that the way needs.
    pub(crate) fn span(&self, align: u64) -> Range<u64> {
        match self.way {
            Way::Direct | Way::Bounce | Way::Map => {
                let start = self.wanted.start / align * align;
                start..self.wanted.end.next_multiple_of(align)
            }
            Way::Copy | Way::Storage => self.wanted.clone(),
        }
    }
}

/// What is known and allowed for one piece.
pub(crate) struct Terms<'a> {
    /// Whether the drive's own DMA can be used, by O_DIRECT or a storage library.
    pub direct: bool,
    /// By which of them.
    pub straight: Way,
    /// Whether the page cache may be used.
    pub cache: bool,
    /// Whether the page cache's pages may become the destination.
    pub map: bool,
    /// Whether cached bytes are to be taken from the page cache though O_DIRECT can be used.
    pub prefer_cache: bool,
    /// Bytes of a range that lie in the page cache.
    pub cached: &'a dyn Fn(&Range<u64>) -> Option<u64>,
}

/// Cuts a piece on the digest's grid and chooses a way for each chunk. Every byte of the piece is
/// in exactly one chunk.
pub(crate) fn cut(piece: usize, range: Range<u64>, terms: &Terms<'_>, chunks: &mut Vec<Chunk>) {
    let length = range.end.saturating_sub(range.start);
    let straight = terms.straight;
    let by_cache = if terms.map { Way::Map } else { Way::Copy };
    let asked = (terms.direct && terms.cache && terms.prefer_cache)
        .then(|| (terms.cached)(&range))
        .flatten();
    for wanted in digest::grid(range) {
        let size = wanted.end - wanted.start;
        let way = match (terms.direct, asked) {
            (false, _) => by_cache,
            (true, None | Some(0)) => straight,
            (true, Some(all)) if all >= length => by_cache,
            // A chunk that is mostly cached is cheaper to complete than to read again.
            (true, Some(_))
                if (terms.cached)(&wanted).is_some_and(|c| c.saturating_mul(2) > size) =>
            {
                by_cache
            }
            (true, Some(_)) => straight,
        };
        chunks.push(Chunk {
            piece,
            index: chunks.len(),
            wanted,
            way,
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::GRID;

    fn ways(terms: &Terms<'_>, range: Range<u64>) -> Vec<Way> {
        let mut chunks = Vec::new();
        cut(0, range, terms, &mut chunks);
        chunks.iter().map(|c| c.way).collect()
    }

    fn terms<'a>(
        direct: bool,
        map: bool,
        cached: &'a dyn Fn(&Range<u64>) -> Option<u64>,
    ) -> Terms<'a> {
        Terms {
            direct,
            straight: Way::Direct,
            cache: true,
            map,
            prefer_cache: true,
            cached,
        }
    }

    #[test]
    fn given_a_cold_file_everything_goes_direct_and_a_warm_one_is_mapped() {
        let cold = |_: &Range<u64>| Some(0);
        let warm = |r: &Range<u64>| Some(r.end - r.start);
        let unknown = |_: &Range<u64>| None;
        assert_eq!(
            ways(&terms(true, true, &cold), 0..2 * GRID),
            [Way::Direct; 2]
        );
        assert_eq!(ways(&terms(true, true, &warm), 0..2 * GRID), [Way::Map; 2]);
        assert_eq!(
            ways(&terms(true, false, &warm), 0..2 * GRID),
            [Way::Copy; 2]
        );
        assert_eq!(
            ways(&terms(true, true, &unknown), 0..2 * GRID),
            [Way::Direct; 2]
        );
        assert_eq!(
            ways(&terms(false, false, &cold), 0..2 * GRID),
            [Way::Copy; 2]
        );
    }

    #[test]
    fn given_a_half_warm_file_each_chunk_goes_its_own_way() {
        let half = |r: &Range<u64>| Some(GRID.clamp(r.start, r.end) - r.start);
        assert_eq!(
            ways(&terms(true, true, &half), 0..3 * GRID),
            [Way::Map, Way::Direct, Way::Direct]
        );
    }

    proptest! {
        #[test]
        fn chunks_cover_the_piece_exactly(start in 0u64..1 << 40, length in 0u64..1 << 26, align_log in 9u32..13) {
            let mut chunks = Vec::new();
            let cold = |_: &Range<u64>| Some(0);
            cut(3, start..start + length, &terms(true, true, &cold), &mut chunks);
            let mut at = start;
            for (index, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!((chunk.piece, chunk.index, chunk.wanted.start), (3, index, at));
                at = chunk.wanted.end;
                let span = chunk.span(1 << align_log);
                prop_assert!(span.start <= chunk.wanted.start && span.end >= chunk.wanted.end);
                prop_assert!(span.start % (1 << align_log) == 0 && span.end % (1 << align_log) == 0);
                prop_assert!(span.end - span.start <= GRID);
            }
            prop_assert_eq!(at, start + length);
        }
    }
}
