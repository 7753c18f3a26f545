//! Algorithms as lists of what one rank sends and receives, in order. They are pure functions of the
//! group's shape, so all of them are tried for many sizes without any network, and one executor
//! carries all of them out over whatever joins the ranks.
//!
//! The `k`-th [`Action::Send`] from one rank to another meets the `k`-th [`Action::Receive`] there.
//! Sends do not wait: what a later action needs of an earlier one is only that it came before in the
//! list. A transfer is cut into chunks that follow each other, so that what was received of one step
//! is sent on in the next while the rest is still coming.

mod direct;
mod halving;
mod hierarchical;
mod ring;
#[cfg(test)]
mod simulation;
mod tree;

use std::ops::Range;

pub(crate) use direct::{all_to_all, direct_gather, direct_reduce, direct_scatter};
pub(crate) use halving::{dissemination, doubling_reduce, halving_reduce};
pub(crate) use hierarchical::hierarchical_reduce;
pub(crate) use ring::{chain, ring_gather, ring_reduce, ring_scatter};
pub(crate) use tree::{tree_broadcast, tree_reduce};

/// What becomes of received numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// They replace what is there.
    Store,
    /// They are reduced into what is there.
    Fold,
    /// The same, and they are the last.
    FoldLast,
}

impl How {
    const fn folding(last: bool) -> Self {
        if last { Self::FoldLast } else { Self::Fold }
    }
}

/// One thing that a rank does. Ranges are in numbers from the start of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send {
        to: usize,
        part: Range<usize>,
    },
    Receive {
        from: usize,
        part: Range<usize>,
        how: How,
    },
}

/// What one rank does, in order.
pub(crate) type Schedule = Vec<Action>;

/// Who takes part in an algorithm, and as what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circle<'a> {
    /// The ranks that take part.
    pub members: &'a [usize],
    /// Which of them this one is.
    pub me: usize,
    /// Numbers of one chunk.
    pub chunk: usize,
    /// Whether its reductions are the last.
    pub last: bool,
}

impl Circle<'_> {
    fn len(&self) -> usize {
        self.members.len()
    }

    /// The rank `by` places further round.
    fn after(&self, by: usize) -> usize {
        self.member((self.me + by) % self.len().max(1))
    }

    fn member(&self, at: usize) -> usize {
        self.members.get(at).copied().unwrap_or_default()
    }

    fn send(&self, out: &mut Schedule, to: usize, part: Range<usize>) {
        for part in chunks(part, self.chunk) {
            out.push(Action::Send { to, part });
        }
    }

    fn receive(&self, out: &mut Schedule, from: usize, part: Range<usize>, how: How) {
        for part in chunks(part, self.chunk) {
            out.push(Action::Receive { from, part, how });
        }
    }

    /// Receives chunk by chunk and sends each on as it comes.
    fn relay(&self, out: &mut Schedule, from: usize, to: usize, part: Range<usize>, how: How) {
        for part in chunks(part, self.chunk) {
            out.push(Action::Receive {
                from,
                part: part.clone(),
                how,
            });
            out.push(Action::Send { to, part });
        }
    }
}

/// A range cut into pieces of `chunk` at most.
pub(crate) fn chunks(part: Range<usize>, chunk: usize) -> impl Iterator<Item = Range<usize>> {
    let end = part.end;
    let starts = part.step_by(chunk.max(1));
    starts.map(move |start| start..end.min(start.saturating_add(chunk.max(1))))
}

/// The part of a range that one of `of` members has to do with: the first ones have one number
/// more where it does not divide.
pub(crate) fn share(whole: &Range<usize>, at: usize, of: usize) -> Range<usize> {
    let of = of.max(1);
    let (each, more) = (whole.len() / of, whole.len() % of);
    let start = whole.start + at * each + at.min(more);
    start..start + each + usize::from(at < more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_each_other_and_make_up_the_whole() {
        let shares: Vec<_> = (0..4).map(|at| share(&(10..21), at, 4)).collect();
        assert_eq!(shares, [10..13, 13..16, 16..19, 19..21]);
        let few: Vec<_> = (0..3).map(|at| share(&(0..2), at, 3)).collect();
        assert_eq!(few, [0..1, 1..2, 2..2]);
    }

    #[test]
    fn a_range_is_cut_into_chunks_and_the_last_is_shorter() {
        let cut: Vec<_> = chunks(3..10, 3).collect();
        assert_eq!(cut, [3..6, 6..9, 9..10]);
        assert_eq!(chunks(5..5, 3).count(), 0);
    }
}
