//! Numbers in buffers that all ranks have mapped: each reduces its share straight out of everyone's
//! buffer and writes the result into all of them. Two waits, and no byte is copied to or from
//! anywhere else.

use std::ops::Range;
use std::sync::Arc;

use super::Flat;
use super::rule::{First, Rule};
use super::stream::part;
use crate::collective::error::CollectiveError;
use crate::collective::execute::BLOCK;
use crate::collective::patience::Patience;
use crate::fabric::{Backing, Caches};

impl Flat {
    /// Reduces a range of the buffers of all ranks, in their order.
    pub(crate) fn reduce_in_place(
        &mut self,
        buffers: &[Arc<Backing>],
        range: &Range<usize>,
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        self.open(patience)?;
        let own = part(range.len(), self.me, self.ranks());
        // What is worked on fits a core's nearest cache, whatever the buffers do.
        let mut piece = [0; BLOCK / 2];
        let (mut at, end) = (range.start + own.start, range.start + own.end);
        while at < end {
            let len = piece.len().min(end - at);
            let (piece, _) = piece.split_at_mut(len);
            let all = || buffers.iter().map(AsRef::as_ref);
            rule.reduce(piece, First::Board, all(), at, |_, piece| {
                // Nobody but this rank touches this part of any buffer before all have met.
                for buffer in all() {
                    buffer.copy_in(at, piece, Caches::Keep);
                }
            });
            at += len;
        }
        self.taken += (own.len() * (self.ranks() - 1)) as u64;
        self.meet(patience)?;
        // What others wrote into this rank's buffer.
        self.taken += (range.len() - own.len()) as u64;
        Ok(())
    }
}
