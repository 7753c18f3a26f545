//! Bytes that follow from a seed and a position.

/// The increment of SplitMix64: 2^64 divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

const WORD: usize = 8;

/// Fills `out` with the stream of `seed` from byte `offset` on.
///
/// The stream is the output of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014), each number as eight little-endian bytes. Its state is a counter, so any part
/// of the stream is made without what comes before.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let mut number = offset / WORD as u64;
    let skip = (offset % WORD as u64) as usize;
    let mut rest = out;
    if skip > 0 {
        let bytes = word(seed, number).to_le_bytes();
        let tail = bytes.get(skip..).unwrap_or_default();
        let len = tail.len().min(rest.len());
        let (first, after) = rest.split_at_mut(len);
        first.copy_from_slice(tail.get(..len).unwrap_or_default());
        rest = after;
        number = number.wrapping_add(1);
    }
    let (words, last) = rest.as_chunks_mut::<WORD>();
    for bytes in words {
        *bytes = word(seed, number).to_le_bytes();
        number = number.wrapping_add(1);
    }
    for (to, from) in last.iter_mut().zip(word(seed, number).to_le_bytes()) {
        *to = from;
    }
}

/// A seed for the `n`th stream of a family.
pub(super) const fn nth_seed(seed: u64, n: u64) -> u64 {
    // Two rounds: streams whose seeds lie whole increments apart would repeat each other.
    word(word(seed, n), n)
}

/// The SplitMix64 output number `n`, from 0.
const fn word(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(GAMMA));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // The published generator's first outputs for the seed 1234567.
        let mut out = [0; 24];
        fill(1_234_567, 0, &mut out);
        let expected = [
            6_457_827_717_110_365_317_u64,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(
            out.as_chunks::<8>()
                .0
                .iter()
                .map(|b| u64::from_le_bytes(*b))
                .collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn any_part_of_the_stream_is_the_same_part_of_the_whole() {
        let mut whole = [0; 64];
        fill(7, 0, &mut whole);
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                let mut part = vec![0; end - start];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn the_end_of_the_stream_wraps_without_overflow() {
        let mut out = [0; 32];
        fill(u64::MAX, u64::MAX - 3, &mut out);
    }
}
