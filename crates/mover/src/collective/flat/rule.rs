//! How the numbers of all ranks of a host become one, straight from where they lie.

use crate::collective::element::Element;
use crate::collective::execute::BLOCK;
use crate::collective::reduce::{self, Reduction, With};
use crate::fabric::{Backing, Caches};

/// How numbers are reduced.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub element: Element,
    pub reduction: Reduction,
    /// Half precision is summed in single precision.
    pub wide: bool,
    /// Ranks whose numbers come together.
    pub ranks: usize,
}

/// What a reduction begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// The numbers that are in place already.
    Own,
    /// Those of the first board.
    Board,
}

impl Rule {
    /// Reduces into `into` what lies from `at` on in each board, in their order, a piece that fits a
    /// core's nearest cache at a time; `done` gets each piece with its place.
    pub(super) fn reduce<'a>(
        self,
        into: &mut [u8],
        first: First,
        boards: impl Iterator<Item = &'a Backing> + Clone,
        at: usize,
        mut done: impl FnMut(usize, &[u8]),
    ) {
        for (index, piece) in into.chunks_mut(BLOCK / 2).enumerate() {
            let offset = index * (BLOCK / 2);
            if self.wide {
                self.widened(piece, first, boards.clone(), at + offset);
            } else {
                self.plain(piece, first, boards.clone(), at + offset);
            }
            done(offset, piece);
        }
    }

    /// The same of this rank's numbers, which are in `into`, with the result on every board as well.
    pub(super) fn reduce_in_all<'a>(
        self,
        into: &mut [u8],
        boards: impl Iterator<Item = &'a Backing> + Clone,
        at: usize,
    ) {
        let mut each = boards.clone();
        if let (Some(board), None) = (each.next(), each.next())
            && !self.wide
            && self.reduction != Reduction::Mean
        {
            // Each result goes to both places at once.
            reduce::fold(self.element, self.reduction, into, With::Both(board, at));
            return;
        }
        self.reduce(into, First::Own, boards.clone(), at, |offset, piece| {
            for board in boards.clone() {
                board.copy_in(at + offset, piece, Caches::Keep);
            }
        });
    }

    fn plain<'a>(
        self,
        piece: &mut [u8],
        first: First,
        mut boards: impl Iterator<Item = &'a Backing>,
        at: usize,
    ) {
        if first == First::Board
            && let Some(board) = boards.next()
        {
            board.copy_out(at, piece, Caches::Keep);
        }
        for board in boards {
            let with = With::Shared(board, at);
            reduce::fold(self.element, self.reduction, piece, with);
        }
        reduce::finish(self.element, self.reduction, piece, self.ranks);
    }

    // In a frame of its own: inlined into a function that returns early, so large a frame made rustc 1.95
    // (LLVM 22.1.2) probe the stack with a register that held an argument.
    #[inline(never)]
    fn widened<'a>(
        self,
        piece: &mut [u8],
        first: First,
        mut boards: impl Iterator<Item = &'a Backing>,
        at: usize,
    ) {
        let (mut narrow, mut sum, mut wide) = ([0; BLOCK / 2], [0; BLOCK], [0; BLOCK]);
        let (narrow, _) = narrow.split_at_mut(piece.len());
        let (sum, _) = sum.split_at_mut(2 * piece.len());
        let (wide, _) = wide.split_at_mut(2 * piece.len());
        if first == First::Board
            && let Some(board) = boards.next()
        {
            board.copy_out(at, piece, Caches::Keep);
        }
        reduce::widen(self.element, piece, sum);
        for board in boards {
            board.copy_out(at, narrow, Caches::Keep);
            reduce::widen(self.element, narrow, wide);
            reduce::fold(Element::F32, self.reduction, sum, With::Slice(wide));
        }
        reduce::finish(Element::F32, self.reduction, sum, self.ranks);
        reduce::narrow(self.element, sum, piece);
    }
}
