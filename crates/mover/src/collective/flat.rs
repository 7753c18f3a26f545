//! Collectives of ranks that share one host's memory: each writes what it has on its board, and all
//! take what they need straight from each other's boards.
//!
//! Boards come in pairs that are used in turn. A rank's *stage* says how far it has come; nobody
//! goes on before all are as far. Who sees all others at a stage knows that they are through with
//! everything before it, so the board of the block before the last is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::{BOARD, Layout};
use super::element::Element;
use super::error::CollectiveError;
use super::execute::BLOCK;
use super::patience::{Patience, Rest};
use super::reduce::{self, Reduction};
use super::schedule::share;
use crate::fabric::{Backing, Caches};

/// Up to this many bytes of all ranks together every rank reduces everything itself: one wait
/// instead of two.
pub(super) const ALONE: usize = 64 << 10;

/// The boards of all ranks of a host, and how far this rank has come.
pub(crate) struct Flat {
    layout: Layout,
    me: usize,
    boards: Vec<Arc<Backing>>,
    stage: u64,
    block: u64,
    /// Bytes that this rank took from others' memory.
    pub taken: u64,
}

/// How numbers are reduced.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub element: Element,
    pub reduction: Reduction,
    /// Half precision is summed in single precision.
    pub wide: bool,
}

impl Flat {
    pub(crate) const fn new(layout: Layout, me: usize, boards: Vec<Arc<Backing>>) -> Self {
        Self {
            layout,
            me,
            boards,
            stage: 0,
            block: 0,
            taken: 0,
        }
    }

    fn ranks(&self) -> usize {
        self.boards.len()
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
        for (rank, board) in self.boards.iter().enumerate() {
            let Some(word) = board.word(at) else { continue };
            while word.load(Ordering::Acquire) < self.stage {
                patience.pause(Some(rank), Rest::Spin)?;
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
        if rule.wide {
            return self.fold_wide(rule, offset, out);
        }
        let mut block = [0; BLOCK];
        for (at, into) in out.chunks_mut(BLOCK).enumerate() {
            let (block, _) = block.split_at_mut(into.len());
            let offset = offset + at * BLOCK;
            self.read(0, offset, into);
            for rank in 1..self.ranks() {
                self.read(rank, offset, block);
                reduce::fold(rule.element, rule.reduction, into, block);
            }
            reduce::finish(rule.element, rule.reduction, into, self.ranks());
        }
        self.taken += (out.len() * (self.ranks() - 1)) as u64;
    }

    fn fold_wide(&mut self, rule: Rule, offset: usize, out: &mut [u8]) {
        let (mut narrow, mut sum, mut wide) = ([0; BLOCK / 2], [0; BLOCK], [0; BLOCK]);
        for (at, into) in out.chunks_mut(BLOCK / 2).enumerate() {
            let (narrow, _) = narrow.split_at_mut(into.len());
            let (sum, _) = sum.split_at_mut(2 * into.len());
            let (wide, _) = wide.split_at_mut(2 * into.len());
            let offset = offset + at * (BLOCK / 2);
            self.read(0, offset, narrow);
            reduce::widen(rule.element, narrow, sum);
            for rank in 1..self.ranks() {
                self.read(rank, offset, narrow);
                reduce::widen(rule.element, narrow, wide);
                reduce::fold(Element::F32, rule.reduction, sum, wide);
            }
            reduce::finish(Element::F32, rule.reduction, sum, self.ranks());
            reduce::narrow(rule.element, sum, into);
        }
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
        let (n, size) = (self.ranks(), rule.element.size());
        if data.len() * n <= ALONE && data.len() <= BOARD {
            self.block += 1;
            self.write(0, data);
            self.open(patience)?;
            self.fold(rule, 0, data);
            return Ok(());
        }
        let mut own = Vec::new();
        for (at, block) in data.chunks_mut(BOARD).enumerate() {
            self.block += 1;
            self.write(0, block);
            self.enter(at, patience)?;
            let numbers = 0..block.len() / size;
            let bytes = |rank: usize| {
                let part = share(&numbers, rank, n);
                part.start * size..part.end * size
            };
            let mine = bytes(self.me);
            own.resize(mine.len(), 0);
            self.fold(rule, mine.start, &mut own);
            // Nobody but this rank reads this part of its board before the next meeting.
            self.write(mine.start, &own);
            self.meet(patience)?;
            for rank in 0..n {
                let Some(part) = block.get_mut(bytes(rank)) else {
                    continue;
                };
                if rank == self.me {
                    part.copy_from_slice(&own);
                    continue;
                }
                self.read(rank, bytes(rank).start, part);
                self.taken += part.len() as u64;
            }
        }
        if data.is_empty() {
            self.open(patience)
        } else {
            Ok(())
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
