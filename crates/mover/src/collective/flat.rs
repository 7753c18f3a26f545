//! Collectives of ranks that share one host's memory: each writes what it has on its board, and all
//! take what they need straight from each other's boards.
//!
//! An all-reduce of few numbers goes by posts, one of many in blocks (`post`, `stream`), and one of
//! numbers in the group's own memory where they lie (`in_place`). The others go
//! by boards, which come in pairs that are used in turn. A rank's *stage* says how far it has come;
//! nobody goes on before all are as far. Who sees all others at a stage knows that they are through
//! with everything before it, so the board of the block before the last is free.

mod in_place;
mod post;
mod rule;
mod stream;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::{BOARD, Layout};
use super::bell::ring;
use super::error::CollectiveError;
use super::patience::{Patience, Rest};
use crate::fabric::{Backing, Caches};
pub(super) use post::ALONE;
pub(crate) use rule::Rule;

/// The boards of all ranks of a host, and how far this rank has come.
pub(crate) struct Flat {
    layout: Layout,
    me: usize,
    boards: Vec<Arc<Backing>>,
    stage: u64,
    block: u64,
    /// Posts so far, and blocks of all-reduces.
    posted: u64,
    streamed: u64,
    /// Bytes that this rank took from others' memory.
    pub taken: u64,
}

/// All ranks but one.
fn others(me: usize, ranks: usize) -> impl Iterator<Item = usize> + Clone {
    (0..ranks).filter(move |rank| *rank != me)
}

impl Flat {
    pub(crate) const fn new(layout: Layout, me: usize, boards: Vec<Arc<Backing>>) -> Self {
        Self {
            layout,
            me,
            boards,
            stage: 0,
            block: 0,
            posted: 0,
            streamed: 0,
            taken: 0,
        }
    }

    fn ranks(&self) -> usize {
        self.boards.len()
    }

    /// Wakes those that wait for what this rank has just put up.
    fn ring(&self) {
        let others = others(self.me, self.ranks()).filter_map(|rank| self.boards.get(rank));
        ring(others, &self.layout, self.me);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        if let Some(board) = self.boards.get(self.me) {
            board.copy_in(self.layout.board(self.block) + offset, bytes, Caches::Keep);
        }
    }

    fn read(&self, rank: usize, offset: usize, out: &mut [u8]) {
        if let Some(board) = self.boards.get(rank) {
            board.copy_out(self.layout.board(self.block) + offset, out, Caches::Keep);
        }
    }

    /// Says that this rank has come to the next stage, and waits for the others.
    fn meet(&mut self, patience: &mut Patience<'_>) -> Result<(), CollectiveError> {
        self.stage += 1;
        let at = self.layout.stage();
        if let Some(word) = self.boards.get(self.me).and_then(|board| board.word(at)) {
            word.store(self.stage, Ordering::Release);
        }
        self.ring();
        for (rank, board) in self.boards.iter().enumerate() {
            let Some(word) = board.word(at) else { continue };
            while word.load(Ordering::Acquire) < self.stage {
                patience.pause(Some(rank), Rest::Memory)?;
            }
            patience.reset();
        }
        Ok(())
    }

    /// The first look at what the others call, which the first meeting of a call makes possible.
    fn open(&mut self, patience: &mut Patience<'_>) -> Result<(), CollectiveError> {
        self.meet(patience)?;
        patience.compare()
    }

    /// Reduces a part of all boards into `out`, in the order of the ranks.
    fn fold(&mut self, rule: Rule, offset: usize, out: &mut [u8]) {
        let at = self.layout.board(self.block) + offset;
        let boards = self.boards.iter().map(AsRef::as_ref);
        rule.reduce(out, boards, at);
        self.taken += (out.len() * (self.ranks() - 1)) as u64;
    }

    /// Waits for everyone's block; with the first of a call, for what they call to be the same.
    fn enter(&mut self, at: usize, patience: &mut Patience<'_>) -> Result<(), CollectiveError> {
        match at {
            0 => self.open(patience),
            _ => self.meet(patience),
        }
    }

    pub(crate) fn barrier(&mut self, patience: &mut Patience<'_>) -> Result<(), CollectiveError> {
        self.open(patience)
    }

    pub(crate) fn all_reduce(
        &mut self,
        data: &mut [u8],
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        if data.len() * self.ranks() <= ALONE {
            self.reduce_posts(data, rule, patience)
        } else {
            self.reduce_blocks(data, rule, patience)
        }
    }

    /// Everyone's part of a block as long as `each` bytes, at its rank's place on the boards.
    fn blocks(&self, part: usize, size: usize) -> (usize, usize) {
        let each = (BOARD / self.ranks() / size * size).max(size);
        (each, part.div_ceil(each).max(1))
    }

    pub(crate) fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        let part = output.len();
        let (each, blocks) = self.blocks(part, rule.element.size());
        for at in 0..blocks {
            let here = (at * each).min(part)..((at + 1) * each).min(part);
            self.spread(input, part, &here, each);
            self.enter(at, patience)?;
            if let Some(out) = output.get_mut(here) {
                self.fold(rule, self.me * each, out);
            }
        }
        Ok(())
    }

    /// Writes a range of what is for each rank to its place on the board.
    fn spread(&mut self, input: &[u8], part: usize, here: &std::ops::Range<usize>, each: usize) {
        self.block += 1;
        for rank in 0..self.ranks() {
            let start = rank * part;
            if let Some(bytes) = input.get(start + here.start..start + here.end) {
                self.write(rank * each, bytes);
            }
        }
    }

    pub(crate) fn all_to_all(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        size: usize,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        let part = output.len() / self.ranks();
        let (each, blocks) = self.blocks(part, size);
        for at in 0..blocks {
            let here = (at * each).min(part)..((at + 1) * each).min(part);
            self.spread(input, part, &here, each);
            self.enter(at, patience)?;
            self.collect(output, part, &here, self.me * each);
        }
        Ok(())
    }

    /// Takes every rank's block, which lies `from` bytes into its board, to the range `here` of that
    /// rank's part of `output`.
    fn collect(
        &mut self,
        output: &mut [u8],
        part: usize,
        here: &std::ops::Range<usize>,
        from: usize,
    ) {
        for rank in 0..self.ranks() {
            let start = rank * part;
            if let Some(out) = output.get_mut(start + here.start..start + here.end) {
                self.read(rank, from, out);
                self.taken += if rank == self.me { 0 } else { out.len() as u64 };
            }
        }
    }

    pub(crate) fn all_gather(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        let part = input.len();
        for at in 0..part.div_ceil(BOARD).max(1) {
            let here = (at * BOARD).min(part)..((at + 1) * BOARD).min(part);
            self.block += 1;
            self.write(0, input.get(here.clone()).unwrap_or_default());
            self.enter(at, patience)?;
            self.collect(output, part, &here, 0);
        }
        Ok(())
    }

    pub(crate) fn broadcast(
        &mut self,
        data: &mut [u8],
        root: usize,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        let len = data.len();
        for at in 0..len.div_ceil(BOARD).max(1) {
            let here = (at * BOARD).min(len)..((at + 1) * BOARD).min(len);
            self.block += 1;
            let block = data.get_mut(here).unwrap_or_default();
            if self.me == root {
                self.write(0, block);
            }
            self.enter(at, patience)?;
            if self.me != root {
                self.read(root, 0, block);
                self.taken += block.len() as u64;
            }
        }
        Ok(())
    }
}
