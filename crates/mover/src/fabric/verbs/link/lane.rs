//! A queue pair of a link, and what came by it.

use crowfly_machine::verbs::{QueuePair, Ready, VerbsError};

/// A queue pair of a link.
pub(in super::super) struct Lane {
    /// `None` once the link was closed.
    pub pair: Option<QueuePair<Ready>>,
    /// The queue pair's number, which completions name.
    pub number: u32,
    /// Why it is of no use any more.
    pub broken: Option<String>,
    /// Receives posted whose completions have not come.
    pub waiting: usize,
    /// Values that have come by it.
    pub arrived: u64,
    /// Values that were sent by it. The peer's lane receives them in this order, or not at all.
    pub sent: u64,
}

impl Lane {
    /// A lane on whose queue pair so many receives were posted.
    pub(in super::super) const fn new(pair: QueuePair<Ready>, receives: usize) -> Self {
        Self {
            number: pair.number(),
            pair: Some(pair),
            broken: None,
            waiting: receives,
            arrived: 0,
            sent: 0,
        }
    }

    pub(super) const fn is_alive(&self) -> bool {
        self.broken.is_none() && self.pair.is_some()
    }

    pub(super) fn room(&self) -> usize {
        match (&self.pair, &self.broken) {
            (Some(pair), None) => pair.room(),
            _ => 0,
        }
    }

    /// A receive has completed; as long as the lane works another takes its place.
    pub(super) fn received(&mut self, wr_id: u64) -> Result<(), VerbsError> {
        self.waiting = self.waiting.saturating_sub(1);
        match &mut self.pair {
            Some(pair) if self.broken.is_none() => {
                pair.receive(wr_id, None)?;
                self.waiting += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Stops it for a reason, once.
    pub(super) fn stop(&mut self, why: String) {
        if self.broken.is_none() {
            self.broken = Some(why);
            if let Some(pair) = &mut self.pair {
                // A refusal leaves it to fail by itself; destroying it stops it in any case.
                let _ = pair.stop();
            }
        }
    }
}
