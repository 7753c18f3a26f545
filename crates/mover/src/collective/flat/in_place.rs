//! Numbers in buffers that all ranks have mapped: each reduces its share straight out of everyone's
//! buffer and writes the result into all of them. Two waits, and no byte is copied to or from
//! anywhere else. For few numbers the waits are what takes the time, so those go by posts, in one.

use std::ops::Range;
use std::sync::Arc;

use super::Flat;
use super::post::ALONE;
use super::rule::Rule;
use super::stream::part;
use crate::collective::error::CollectiveError;
use crate::collective::patience::Patience;
use crate::fabric::{Backing, Caches, Everywhere};

/// Up to this many bytes of a rank two copies take less time than a wait.
const FEW: usize = 4096;
/// What fits the line of a post's head, with room to spare: nothing larger is cleared for it.
const VERY_FEW: usize = 64;

impl Flat {
    /// Reduces a range of the buffers of all ranks, in their order.
    pub(crate) fn reduce_in_place(
        &mut self,
        buffers: &[Arc<Backing>],
        range: &Range<usize>,
        rule: Rule,
        patience: &mut Patience<'_>,
    ) -> Result<(), CollectiveError> {
        if range.len() <= FEW && range.len() * self.ranks() <= ALONE {
            let (mut very_few, mut few);
            let numbers = if range.len() <= VERY_FEW {
                very_few = [0; VERY_FEW];
                very_few.split_at_mut(range.len()).0
            } else {
                few = [0; FEW];
                few.split_at_mut(range.len()).0
            };
            return self.reduce_few(buffers, range.start, numbers, (rule, patience));
        }
        self.open(patience)?;
        let own = part(range.len(), self.me, self.ranks());
        // Nobody but this rank touches this part of any buffer before all have met.
        rule.reduce_everywhere(Everywhere {
            memories: buffers,
            offset: range.start + own.start,
            len: own.len(),
            instead: None,
        });
        self.taken += (own.len() * (self.ranks() - 1)) as u64;
        self.meet(patience)?;
        // What others wrote into this rank's buffer.
        self.taken += (range.len() - own.len()) as u64;
        Ok(())
    }

    fn reduce_few(
        &mut self,
        buffers: &[Arc<Backing>],
        at: usize,
        numbers: &mut [u8],
        (rule, patience): (Rule, &mut Patience<'_>),
    ) -> Result<(), CollectiveError> {
        let Some(own) = buffers.get(self.me) else {
            return Ok(());
        };
        own.copy_out(at, numbers, Caches::Keep);
        self.reduce_posts(numbers, rule, patience)?;
        own.copy_in(at, numbers, Caches::Keep);
        Ok(())
    }
}
