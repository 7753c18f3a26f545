//! The checksums of a part: one for each stretch between multiples of the grid in its file.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::digest::GRID;

/// Checksums in the order of the bytes they stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(Vec<u64>);

impl Sums {
    pub(crate) fn push(&mut self, sum: u64) {
        self.0.push(sum);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many a range of file offsets needs.
    pub(crate) fn needed(range: &Range<u64>) -> usize {
        if range.is_empty() {
            return 0;
        }
        let stretches = (range.end - 1) / GRID - range.start / GRID + 1;
        usize::try_from(stretches).unwrap_or(usize::MAX)
    }

    /// That of the stretch which begins at this offset, of a part that begins at `begin`.
    pub(crate) fn at(&self, begin: u64, offset: u64) -> Option<u64> {
        let number = (offset / GRID).checked_sub(begin / GRID)?;
        self.0.get(usize::try_from(number).ok()?).copied()
    }

    pub(crate) fn encode(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        STANDARD_NO_PAD.encode(bytes)
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let (numbers, rest) = bytes.as_chunks::<8>();
        rest.is_empty()
            .then(|| Self(numbers.iter().map(|n| u64::from_le_bytes(*n)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_needs_a_checksum_for_each_block_of_the_file_that_it_touches() {
        assert_eq!(Sums::needed(&(5..5)), 0);
        assert_eq!(Sums::needed(&(0..GRID)), 1);
        assert_eq!(Sums::needed(&(GRID - 1..GRID + 1)), 2);
        let ranges = [1..3 * GRID, GRID..GRID + 1, 7..2 * GRID + 7];
        for range in ranges {
            assert_eq!(
                Sums::needed(&range),
                crate::digest::grid(range.clone()).count()
            );
        }
    }

    #[test]
    fn checksums_survive_their_text_and_other_text_is_none() {
        let sums = Sums(vec![0, u64::MAX, 0x0123_4567_89ab_cdef]);
        assert_eq!(Sums::decode(&sums.encode()), Some(sums.clone()));
        assert_eq!(sums.at(GRID - 1, 2 * GRID), Some(0x0123_4567_89ab_cdef));
        assert_eq!(sums.at(GRID, 0), None);
        for bad in ["AAAA", "!", "AAAAAAAAAAA="] {
            assert_eq!(Sums::decode(bad), None, "{bad}");
        }
    }
}
