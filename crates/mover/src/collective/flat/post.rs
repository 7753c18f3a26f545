//! Few numbers: each rank puts its own up where all see them, and reduces everyone's itself. One wait,
//! and a cache line or a few from each rank.
//!
//! Posts come in pairs that are used in turn. Who sees all others' posts of a call knows that they are
//! through with everything before it, so the post before the last is free.

use super::rule::Rule;
use super::{Flat, others};
use crate::collective::arena::{POST, look_up, put_up};
use crate::collective::call::Call;
use crate::collective::error::CollectiveError;
use crate::collective::patience::{Patience, Rest};
use crate::fabric::Caches;

/// Up to this many bytes of all ranks together every rank reduces everything itself.
pub(in crate::collective) const ALONE: usize = 2 * POST;

impl Flat {
    pub(super) fn reduce_posts(
        &mut self,
        data: &mut [u8],
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        self.posted += 1;
        let head = self.layout.post_head(self.posted);
        let at = self.layout.post(self.posted, data.len());
        if let Some(own) = self.boards.get(self.me) {
            own.copy_in(at, data, Caches::Keep);
            put_up(own, head, patience.number, &patience.call);
        }
        self.ring();
        for rank in others(self.me, self.ranks()) {
            let (number, call) = self.posted_by(rank, head, patience)?;
            patience.same(rank, number, &call)?;
        }
        let boards = self.boards.iter().map(AsRef::as_ref);
        rule.reduce(data, boards, at);
        self.taken += (data.len() * (self.ranks() - 1)) as u64;
        Ok(())
    }

    /// Waits for a rank's post.
    fn posted_by(
        &self,
        rank: usize,
        head: usize,
        patience: &mut Patience<'_>,
    ) -> Result<(u64, Call), CollectiveError> {
        let board = self.boards.get(rank);
        loop {
            let found = board.and_then(|board| look_up(board, head, patience.number));
            if let Some(found) = found {
                patience.reset();
                return Ok(found);
            }
            patience.pause(Some(rank), Rest::Memory)?;
        }
    }
}
