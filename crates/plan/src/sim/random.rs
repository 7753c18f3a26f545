//! Numbers that look random and are the same for the same seed, on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): the next state is a sum, the number a hash of it.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

/// A hash of a number.
pub(super) const fn hash(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(hash(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0)
    }

    /// Below `bound`, which is above zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        // The bias of the remainder is below 2^-40 for the few millions that are drawn from.
        (self.next() % bound.max(1) as u64) as usize
    }

    /// `count` of `0..all`, each at most once, in no order.
    pub(super) fn choose(&mut self, count: usize, all: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..all).collect();
        let count = count.min(all);
        for at in 0..count {
            let other = at + self.below(all - at);
            numbers.swap(at, other);
        }
        numbers.truncate(count);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_gives_others() {
        let draw = |seed| Random::new(seed).choose(5, 1000);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_choice_holds_each_number_once() {
        let mut all = Random::new(7).choose(100, 100);
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert_eq!(Random::new(7).choose(200, 3).len(), 3);
    }
}
