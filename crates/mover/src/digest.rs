//! Checksums of data that arrives in any order.
//!
//! The data is cut on a fixed grid of [`GRID`] bytes of *file* offset; each piece is hashed with
//! XXH3-64, and the digest is the XXH3-64 of the pieces' hashes in order. The result depends only
//! on the bytes and their offsets, not on the path or the order in which they arrived.

use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// The grid on which data is cut, in bytes of file offset.
pub const GRID: u64 = 2 << 20;

/// The name of this checksum in receipts.
pub const ALGORITHM: &str = "xxh3-64/2MiB";

/// Cuts a range of file offsets on the grid.
pub fn grid(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let end = (at / GRID + 1).saturating_mul(GRID).min(range.end);
            let piece = at..end;
            at = end;
            piece
        })
    })
}

/// Hash of one piece of the grid.
pub fn piece(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Hash of one piece that comes in parts.
#[derive(Default)]
pub(crate) struct Running(Xxh3Default);

impl Running {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The same value as [`piece`] of all parts together.
    pub(crate) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// Digest of all pieces in order.
pub fn whole(pieces: impl IntoIterator<Item = u64>) -> u64 {
    let mut hasher = Xxh3Default::new();
    for piece in pieces {
        hasher.update(&piece.to_le_bytes());
    }
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_covers_a_range_exactly_and_cuts_at_fixed_offsets() {
        let cut: Vec<_> = grid(5..GRID * 2 + 1).collect();
        assert_eq!(cut, vec![5..GRID, GRID..GRID * 2, GRID * 2..GRID * 2 + 1]);
        assert_eq!(grid(7..7).count(), 0);
        assert_eq!(grid(u64::MAX - 1..u64::MAX).count(), 1);
    }

    #[test]
    fn two_pieces_swapped_give_another_digest() {
        assert_ne!(whole([1, 2]), whole([2, 1]));
        assert_eq!(whole([1, 2]), whole([1, 2]));
    }
}
