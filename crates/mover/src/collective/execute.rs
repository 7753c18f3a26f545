//! Carries a schedule out over the lanes of a group.

use std::collections::VecDeque;
use std::ops::Range;

use super::arena::Head;
use super::call::Call;
use super::element::Element;
use super::error::{Called, CollectiveError};
use super::lane::Lane;
use super::patience::{Patience, Rest};
use super::reduce::{self, Reduction, With};
use super::schedule::{Action, How};

/// Bytes that are reduced at a time, out of a core's nearest cache.
pub(super) const BLOCK: usize = 16 << 10;

/// What a schedule works on.
pub(crate) struct Work<'a> {
    /// Where sends come from; the buffer when `None`.
    pub input: Option<&'a [u8]>,
    /// Where receives go to.
    pub buffer: &'a mut [u8],
    pub element: Element,
    pub reduction: Reduction,
    pub ranks: usize,
    pub call: Call,
}

struct Executor<'a, 'b> {
    lanes: &'a mut [Option<Lane>],
    work: Work<'a>,
    patience: &'a mut Patience<'b>,
    /// Sends that wait for room, by rank, in bytes.
    waiting: Vec<VecDeque<Range<usize>>>,
    /// How many there are of them.
    behind: usize,
    sent: u64,
}

/// Carries out all actions; answers how many chunks were sent.
pub(crate) fn execute(
    lanes: &mut [Option<Lane>],
    actions: &[Action],
    work: Work<'_>,
    patience: &mut Patience<'_>,
) -> Result<u64, CollectiveError> {
    let mut executor = Executor {
        waiting: vec![VecDeque::new(); lanes.len()],
        lanes,
        work,
        patience,
        behind: 0,
        sent: 0,
    };
    let size = executor.work.element.size();
    let bytes = |part: &Range<usize>| part.start * size..part.end * size;
    for action in actions {
        match action {
            Action::Send { to, part } => executor.send(*to, bytes(part))?,
            Action::Receive { from, part, how } => executor.receive(*from, bytes(part), *how)?,
        }
    }
    executor.finish()?;
    Ok(executor.sent)
}

impl Executor<'_, '_> {
    fn send(&mut self, to: usize, part: Range<usize>) -> Result<(), CollectiveError> {
        let first = self.waiting.get(to).is_none_or(VecDeque::is_empty);
        if first && self.try_send(to, &part)? {
            return Ok(());
        }
        if let Some(queue) = self.waiting.get_mut(to) {
            queue.push_back(part);
            self.behind += 1;
        }
        Ok(())
    }

    fn try_send(&mut self, to: usize, part: &Range<usize>) -> Result<bool, CollectiveError> {
        let source = self.work.input.unwrap_or(self.work.buffer);
        let (Some(bytes), Some(Some(lane))) = (source.get(part.clone()), self.lanes.get_mut(to))
        else {
            return Err(self.patience.broke(to, "there is no way to it"));
        };
        let head = Head {
            number: self.patience.number,
            call: self.work.call,
            len: bytes.len() as u64,
        };
        match lane.try_send(&head.encode(), bytes, self.patience.left()) {
            Ok(sent) => {
                self.sent += u64::from(sent);
                Ok(sent)
            }
            Err(broken) => Err(self.patience.broke(to, &broken.0)),
        }
    }

    /// Sends what there is room for; answers whether anything was.
    fn pump(&mut self) -> Result<bool, CollectiveError> {
        if self.behind == 0 {
            return Ok(false);
        }
        let mut any = false;
        for to in 0..self.waiting.len() {
            while let Some(part) = self.waiting.get(to).and_then(VecDeque::front).cloned() {
                if !self.try_send(to, &part)? {
                    break;
                }
                if let Some(queue) = self.waiting.get_mut(to) {
                    queue.pop_front();
                    self.behind -= 1;
                }
                any = true;
            }
        }
        Ok(any)
    }

    /// Whether something that waits to be sent would be overwritten.
    fn is_wanted(&self, part: &Range<usize>) -> bool {
        let wanted = |sent: &Range<usize>| sent.start < part.end && part.start < sent.end;
        self.behind > 0 && self.work.input.is_none() && self.waiting.iter().flatten().any(wanted)
    }

    fn receive(
        &mut self,
        from: usize,
        part: Range<usize>,
        how: How,
    ) -> Result<(), CollectiveError> {
        loop {
            self.patience.look();
            let moved = self.pump()?;
            if !self.is_wanted(&part) {
                let arrived = self.lanes.get_mut(from).and_then(Option::as_mut);
                if let Some(head) = arrived.and_then(Lane::arrived) {
                    self.patience.reset();
                    return self.take(from, part, how, head);
                }
            }
            if moved {
                self.patience.reset();
                continue;
            }
            let lane = self.lanes.get(from).and_then(Option::as_ref);
            let rest = match lane {
                Some(Lane::Network(_)) if self.behind > 0 => Rest::Briefly,
                Some(Lane::Network(_)) => Rest::UntilArrival,
                _ => Rest::Spin,
            };
            self.patience.pause(Some(from), rest)?;
        }
    }

    fn take(
        &mut self,
        from: usize,
        part: Range<usize>,
        how: How,
        head: Option<Head>,
    ) -> Result<(), CollectiveError> {
        let Some(head) = head else {
            return Err(self.patience.broke(from, "it sent what makes no sense"));
        };
        self.patience.same(from, head.number, &head.call)?;
        if head.len != part.len() as u64 {
            let rank = self.patience.rank;
            let theirs = Called {
                rank: from,
                what: format!("sent {} bytes", head.len),
            };
            let ours = Called {
                rank,
                what: format!("expected {} from it", part.len()),
            };
            return Err(self.patience.differs(from, theirs, ours));
        }
        let (element, reduction) = (self.work.element, self.work.reduction);
        let buffer = self.work.buffer.get_mut(part);
        let (Some(buffer), Some(Some(lane))) = (buffer, self.lanes.get_mut(from)) else {
            return Err(self.patience.broke(from, "there is no way to it"));
        };
        if how == How::Store {
            lane.read(0, buffer);
        } else {
            let mut block = [0; BLOCK];
            for (at, into) in buffer.chunks_mut(BLOCK).enumerate() {
                let (block, _) = block.split_at_mut(into.len());
                lane.read(at * BLOCK, block);
                reduce::fold(element, reduction, into, With::Slice(block));
                if how == How::FoldLast {
                    reduce::finish(element, reduction, into, self.work.ranks);
                }
            }
        }
        lane.release();
        Ok(())
    }

    /// Sends what is left, and waits until everything has arrived where it should.
    fn finish(&mut self) -> Result<(), CollectiveError> {
        loop {
            let moved = self.pump()?;
            let mut done = self.behind == 0;
            for (rank, lane) in self.lanes.iter_mut().enumerate() {
                let Some(lane) = lane else { continue };
                match lane.flushed() {
                    Ok(flushed) => done &= flushed,
                    // It had what it wanted, and left before it could say so.
                    Err(_) if self.patience.leaves(rank) => {}
                    Err(broken) => return Err(self.patience.broke(rank, &broken.0)),
                }
            }
            if done {
                self.patience.reset();
                return Ok(());
            }
            if moved {
                self.patience.reset();
            } else {
                self.patience.pause(None, Rest::Spin)?;
            }
        }
    }
}
