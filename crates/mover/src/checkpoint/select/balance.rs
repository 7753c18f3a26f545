//! One rank's share: whole tensors, balanced by bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use super::error::SelectError;
use crate::checkpoint::header::Tensor;
use crate::checkpoint::open::TensorId;
use crate::checkpoint::quoted::Quoted;

/// The most ranks a checkpoint may be divided among.
pub const MAX_RANKS: u32 = 1_000_000;

/// One rank out of several, counted from 0 as launchers do: `0/4` to `3/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSlice {
    rank: u32,
    ranks: u32,
}

/// The text or the numbers name no rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given} is not a rank and a number of ranks, such as 0/4 to 3/4 (at most {MAX_RANKS} ranks)"
)]
pub struct BadRankSlice {
    /// What was given.
    pub given: Quoted,
}

impl BadRankSlice {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        "bad-rank-slice"
    }
}

impl RankSlice {
    /// Rank `rank` of `ranks`.
    ///
    /// # Errors
    /// When there is no such rank.
    pub fn new(rank: u32, ranks: u32) -> Result<Self, BadRankSlice> {
        if rank < ranks && ranks <= MAX_RANKS {
            Ok(Self { rank, ranks })
        } else {
            Err(BadRankSlice {
                given: format!("{rank}/{ranks}").as_str().into(),
            })
        }
    }

    /// The rank, from 0.
    pub const fn rank(self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub const fn ranks(self) -> u32 {
        self.ranks
    }

    /// This rank's tensors, in the order given.
    ///
    /// Every rank computes the same division: tensors are dealt out from the largest to the smallest,
    /// each to the rank with the fewest bytes so far (Graham's LPT rule, so no rank has more than 4/3
    /// of the best possible share). Equal sizes go by name and equal loads to the lower rank, so the
    /// division depends neither on the order of the files nor on how the model is cut into them.
    pub(super) fn share<'a>(
        self,
        picked: Vec<(TensorId, Tensor<'a>)>,
    ) -> Result<Vec<(TensorId, Tensor<'a>)>, SelectError> {
        let mut order: Vec<usize> = (0..picked.len()).collect();
        order.sort_unstable_by_key(|&number| {
            picked
                .get(number)
                .map(|(_, tensor)| (Reverse(tensor.bytes()), tensor.name))
        });
        // Ranks beyond the number of tensors get none: do not count their loads.
        let busy = (self.ranks as usize).min(picked.len());
        let mut loads: BinaryHeap<Reverse<(u64, usize)>> =
            (0..busy).map(|rank| Reverse((0, rank))).collect();
        let mut mine = vec![false; picked.len()];
        for number in order {
            let Some(Reverse((load, rank))) = loads.pop() else {
                break;
            };
            let bytes = picked.get(number).map_or(0, |(_, tensor)| tensor.bytes());
            loads.push(Reverse((load.saturating_add(bytes), rank)));
            if let Some(flag) = mine.get_mut(number) {
                *flag = rank == self.rank as usize;
            }
        }
        let tensors = picked.len();
        let share: Vec<_> = picked
            .into_iter()
            .zip(mine)
            .filter_map(|(tensor, mine)| mine.then_some(tensor))
            .collect();
        if share.is_empty() {
            return Err(SelectError::EmptyShare {
                slice: self,
                tensors,
            });
        }
        Ok(share)
    }
}

impl fmt::Display for RankSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rank, self.ranks)
    }
}

impl FromStr for RankSlice {
    type Err = BadRankSlice;

    fn from_str(text: &str) -> Result<Self, BadRankSlice> {
        let bad = || BadRankSlice { given: text.into() };
        let (rank, ranks) = text.split_once('/').ok_or_else(bad)?;
        let number = |digits: &str| digits.trim().parse::<u32>().map_err(|_| bad());
        Self::new(number(rank)?, number(ranks)?).map_err(|_| bad())
    }
}
