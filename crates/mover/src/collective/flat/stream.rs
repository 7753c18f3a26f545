//! Many numbers: block by block, each rank puts up what others reduce, reduces its own share, and
//! takes the shares of others.
//!
//! Whoever reduces a share writes it back over the numbers that it was given, on every board: the
//! lines are in its core's cache by then, and each rank finds everything on its own board. So a line
//! goes to the reducing core and back and no further, and a rank's blocks are free as soon as it has
//! taken them, whatever the others do.
//!
//! The three steps of different blocks overlap, and a rank does whichever is possible: where each has
//! a core, none waits long for another, and where they share cores, each does several blocks before
//! it must give way. Numbers that are needed again soon stay in the caches: each rank's buffer is read
//! from memory once and written to it once, which is the least that an all-reduce can do.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::rule::Rule;
use super::{Flat, others};
use crate::collective::arena::{BLOCK, BLOCKS, BLOCKS_APART, Step};
use crate::collective::error::CollectiveError;
use crate::collective::patience::{Patience, Rest};
use crate::collective::schedule::share;
use crate::collective::shared::SHARED_ALIGNMENT;
use crate::fabric::{Caches, Everywhere};

/// Shares begin at multiples of this many bytes, a cache line and whole numbers of every kind.
const UNIT: usize = SHARED_ALIGNMENT;

/// A rank's share of a block of `len` bytes.
pub(super) fn part(len: usize, rank: usize, ranks: usize) -> Range<usize> {
    let units = share(&(0..len.div_ceil(UNIT)), rank, ranks);
    (units.start * UNIT).min(len)..(units.end * UNIT).min(len)
}

/// The blocks of one call.
struct Blocks<'a> {
    data: &'a mut [u8],
    rule: Rule,
    /// Blocks of all calls before.
    before: u64,
    /// How far this rank is with each step.
    done: [u64; 3],
    /// How many may be under way; the same at all ranks.
    most: usize,
}

impl Blocks<'_> {
    const fn done(&self, step: Step) -> u64 {
        self.done[step as usize]
    }

    /// A block of the buffer.
    fn block(&mut self, at: u64) -> &mut [u8] {
        let start = usize::try_from(at).map_or(self.data.len(), |at| at * BLOCK);
        let end = start.saturating_add(BLOCK).min(self.data.len());
        self.data.get_mut(start..end).unwrap_or_default()
    }
}

impl Flat {
    pub(super) fn reduce_blocks(
        &mut self,
        data: &mut [u8],
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        let count = data.len().div_ceil(BLOCK) as u64;
        let mut blocks = Blocks {
            data,
            rule,
            before: self.streamed,
            done: [0; 3],
            most: if patience.roomy { BLOCKS_APART } else { BLOCKS },
        };
        let mut compared = false;
        while blocks.done(Step::Taken) < count {
            let Some((step, awaited)) = self.next(&blocks, count) else {
                break;
            };
            if let Some(rank) = awaited {
                patience.pause(Some(rank), Rest::Memory)?;
                continue;
            }
            patience.reset();
            match step {
                Step::Put => self.put(&mut blocks),
                Step::Reduced => {
                    if !std::mem::replace(&mut compared, true) {
                        patience.compare()?;
                    }
                    self.reduce(&mut blocks);
                }
                Step::Taken => self.take(&mut blocks),
            }
            self.note(&mut blocks, step);
        }
        self.streamed += count;
        Ok(())
    }

    /// What to do next, or what to do once a rank has come as far as that needs.
    fn next(&self, blocks: &Blocks<'_>, count: u64) -> Option<(Step, Option<usize>)> {
        let [put, reduced, taken] = blocks.done;
        // What is furthest on makes room for others and is likeliest still in the caches.
        let steps = [
            (taken < reduced, Step::Taken, Step::Reduced, taken + 1),
            (reduced < put, Step::Reduced, Step::Put, reduced + 1),
        ];
        let mut awaited = None;
        for (_, step, needs, of) in steps.into_iter().filter(|(open, ..)| *open) {
            match self.behind(needs, blocks.before + of) {
                None => return Some((step, None)),
                Some(rank) => {
                    awaited.get_or_insert((step, Some(rank)));
                }
            }
        }
        if put < count && put - taken < blocks.most as u64 {
            return Some((Step::Put, None));
        }
        awaited
    }

    /// A rank that has not come so far with a step.
    fn behind(&self, step: Step, goal: u64) -> Option<usize> {
        let at = self.layout.progress(step);
        let here = |rank: &usize| {
            let word = self.boards.get(*rank).and_then(|board| board.word(at));
            word.is_none_or(|word| word.load(Ordering::Acquire) < goal)
        };
        others(self.me, self.ranks()).find(here)
    }

    fn note(&self, blocks: &mut Blocks<'_>, step: Step) {
        if let Some(done) = blocks.done.get_mut(step as usize) {
            *done += 1;
            // Nobody waits for what a rank takes off its own board.
            if step == Step::Taken {
                return;
            }
            let own = self.boards.get(self.me);
            if let Some(word) = own.and_then(|own| own.word(self.layout.progress(step))) {
                word.store(blocks.before + *done, Ordering::Release);
            }
            self.ring();
        }
    }

    fn put(&self, blocks: &mut Blocks<'_>) {
        let at = blocks.done(Step::Put);
        let to = self.layout.block(blocks.before + at, blocks.most);
        let block = blocks.block(at);
        let own = part(block.len(), self.me, self.ranks());
        let (before, after) = (block.get(..own.start), block.get(own.end..));
        if let (Some(board), Some(before), Some(after)) = (self.boards.get(self.me), before, after)
        {
            board.copy_in(to, before, Caches::Keep);
            board.copy_in(to + own.end, after, Caches::Keep);
        }
    }

    fn reduce(&mut self, blocks: &mut Blocks<'_>) {
        let (at, rule) = (blocks.done(Step::Reduced), blocks.rule);
        let from = self.layout.block(blocks.before + at, blocks.most);
        let block = blocks.block(at);
        let own = part(block.len(), self.me, self.ranks());
        self.taken += (own.len() * (self.ranks() - 1)) as u64;
        if let Some(share) = block.get_mut(own.clone()) {
            // Nobody but this rank touches this part of any board before it is told.
            rule.reduce_everywhere(Everywhere {
                memories: &self.boards,
                offset: from + own.start,
                len: own.len(),
                instead: Some((self.me, share)),
            });
        }
    }

    fn take(&mut self, blocks: &mut Blocks<'_>) {
        let at = blocks.done(Step::Taken);
        let from = self.layout.block(blocks.before + at, blocks.most);
        let block = blocks.block(at);
        let own = part(block.len(), self.me, self.ranks());
        let Some(board) = self.boards.get(self.me) else {
            return;
        };
        if let Some(before) = block.get_mut(..own.start) {
            board.copy_out(from, before, Caches::Keep);
        }
        if let Some(after) = block.get_mut(own.end..) {
            board.copy_out(from + own.end, after, Caches::Keep);
        }
        self.taken += (block.len() - own.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_block_are_whole_cache_lines_and_make_it_up() {
        let of = |len, ranks| (0..ranks).map(|r| part(len, r, ranks)).collect::<Vec<_>>();
        assert_eq!(of(200, 3), [0..128, 128..192, 192..200]);
        assert_eq!(of(2, 3), [0..2, 2..2, 2..2]);
        assert_eq!(of(128, 2), [0..64, 64..128]);
    }
}
