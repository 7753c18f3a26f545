//! How the numbers of all ranks of a host become one, straight from where they lie.

use crate::collective::element::Element;
use crate::collective::execute::BLOCK;
use crate::collective::reduce::{self, Reduction, With};
use crate::fabric::{Backing, Caches, Everywhere};

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

impl Rule {
    /// Reduces into `into` what lies from `at` on in each board, in their order, a piece that fits a
    /// core's nearest cache at a time.
    pub(super) fn reduce<'a>(
        self,
        into: &mut [u8],
        boards: impl Iterator<Item = &'a Backing> + Clone,
        at: usize,
    ) {
        for (index, piece) in into.chunks_mut(BLOCK / 2).enumerate() {
            let at = at + index * (BLOCK / 2);
            if self.wide {
                self.widened(piece, boards.clone().map(Some), at);
            } else {
                self.plain(piece, boards.clone(), at);
            }
        }
    }

    /// Reduces the numbers of all places in the order of these, with the result in each of them.
    pub(super) fn reduce_everywhere(self, all: Everywhere<'_>) {
        if !self.wide {
            reduce::fold_everywhere(self.element, self.reduction, all, self.ranks);
            return;
        }
        let Everywhere {
            memories,
            offset,
            len,
            instead,
        } = all;
        let (me, mut own) = instead.unzip();
        let mut sums = [0; BLOCK / 2];
        for start in (0..len).step_by(BLOCK / 2) {
            let (sums, _) = sums.split_at_mut((len - start).min(BLOCK / 2));
            let own = own.as_mut().and_then(|own| own.get_mut(start..));
            let own = own.and_then(|own| own.get_mut(..sums.len()));
            if let Some(own) = &own {
                sums.copy_from_slice(own);
            }
            let boards = memories.iter().map(AsRef::as_ref).enumerate();
            let places = boards.map(|(at, board)| (Some(at) != me).then_some(board));
            self.widened(sums, places.clone(), offset + start);
            if let Some(own) = own {
                own.copy_from_slice(sums);
            }
            for board in places.flatten() {
                board.copy_in(offset + start, sums, Caches::Keep);
            }
        }
    }

    fn plain<'a>(self, piece: &mut [u8], mut boards: impl Iterator<Item = &'a Backing>, at: usize) {
        if let Some(board) = boards.next() {
            board.copy_out(at, piece, Caches::Keep);
        }
        for board in boards {
            let with = With::Shared(board, at);
            reduce::fold(self.element, self.reduction, piece, with);
        }
        reduce::finish(self.element, self.reduction, piece, self.ranks);
    }

    /// The same in single precision; the numbers of a place that is `None` are in `piece` already.
    // In a frame of its own: inlined into a function that returns early, so large a frame made rustc 1.95
    // (LLVM 22.1.2) probe the stack with a register that held an argument.
    #[inline(never)]
    fn widened<'a>(
        self,
        piece: &mut [u8],
        places: impl Iterator<Item = Option<&'a Backing>>,
        at: usize,
    ) {
        let (mut narrow, mut sum, mut wide) = ([0; BLOCK / 2], [0; BLOCK], [0; BLOCK]);
        let (narrow, _) = narrow.split_at_mut(piece.len());
        let (sum, _) = sum.split_at_mut(2 * piece.len());
        let (wide, _) = wide.split_at_mut(2 * piece.len());
        for (index, place) in places.enumerate() {
            match place {
                Some(board) => {
                    board.copy_out(at, narrow, Caches::Keep);
                }
                None => narrow.copy_from_slice(piece),
            }
            if index == 0 {
                reduce::widen(self.element, narrow, sum);
            } else {
                reduce::widen(self.element, narrow, wide);
                reduce::fold(Element::F32, self.reduction, sum, With::Slice(wide));
            }
        }
        reduce::finish(Element::F32, self.reduction, sum, self.ranks);
        reduce::narrow(self.element, sum, piece);
    }
}
