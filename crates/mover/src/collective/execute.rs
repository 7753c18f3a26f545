//! Carries a schedule out over the lanes of a group.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::arena::Head;
use super::call::Call;
use super::council::HAD_LEFT;
use super::element::Element;
use super::error::{Called, CollectiveError};
use super::lane::{Broken, Lane};
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

/// How far a chunk has been taken.
#[derive(Default)]
struct Taking {
    /// Bytes that are where they belong.
    done: usize,
    /// Bytes after those that wait to be reduced.
    held: usize,
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
    /// What waits to be reduced.
    block: Vec<u8>,
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
        block: Vec::new(),
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
        let mut taking: Option<Taking> = None;
        loop {
            self.patience.look();
            let mut moved = self.pump()?;
            if taking.is_none()
                && !self.is_wanted(&part)
                && let Some(head) = self.arrived(from)?
            {
                self.check(from, &part, head)?;
                taking = Some(Taking::default());
                moved = true;
            }
            if let Some(taking) = &mut taking {
                moved |= self.take(from, &part, how, taking)?;
                if taking.done == part.len() {
                    if let Some(lane) = self.lanes.get_mut(from).and_then(Option::as_mut) {
                        lane.release();
                    }
                    self.patience.reset();
                    return Ok(());
                }
            }
            if moved {
                self.patience.reset();
            } else {
                self.rest(from)?;
            }
        }
    }

    fn arrived(&mut self, from: usize) -> Result<Option<Option<Head>>, CollectiveError> {
        let lane = self.lanes.get_mut(from).and_then(Option::as_mut);
        match lane.map_or(Ok(None), Lane::arrived) {
            Ok(head) => Ok(head),
            Err(broken) => Err(self.parted(from, &broken)),
        }
    }

    /// A connection ended: the end of a rank that took its leave, or of one that was lost.
    fn parted(&self, rank: usize, broken: &Broken) -> CollectiveError {
        if self.patience.leaves(rank) {
            return self.patience.broke(rank, HAD_LEFT);
        }
        self.patience.broke(rank, &broken.0)
    }

    fn rest(&mut self, from: usize) -> Result<(), CollectiveError> {
        let lane = self.lanes.get(from).and_then(Option::as_ref);
        match lane {
            Some(Lane::Network(_)) if self.behind > 0 => {
                self.patience.pause(Some(from), Rest::Briefly)
            }
            Some(Lane::Network(_)) => self.patience.pause(Some(from), Rest::UntilArrival),
            Some(Lane::Stream(_)) => {
                let sleep = |time| sleep_on(self.lanes, Some(from), time);
                self.patience.pause(Some(from), Rest::Sockets(&sleep))
            }
            _ => self.patience.pause(Some(from), Rest::Spin),
        }
    }

    /// Sees to it that what arrives is what is wanted.
    fn check(
        &mut self,
        from: usize,
        part: &Range<usize>,
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
        Ok(())
    }

    /// Takes what has arrived of a chunk; answers whether anything had.
    fn take(
        &mut self,
        from: usize,
        part: &Range<usize>,
        how: How,
        taking: &mut Taking,
    ) -> Result<bool, CollectiveError> {
        let buffer = self.work.buffer.get_mut(part.clone());
        let (Some(buffer), Some(Some(lane))) = (buffer, self.lanes.get_mut(from)) else {
            return Err(self.patience.broke(from, "there is no way to it"));
        };
        let mut moved = false;
        while taking.done < buffer.len() {
            let rest = buffer.get_mut(taking.done..).unwrap_or_default();
            let filled = if how == How::Store {
                lane.fill(taking.done, rest)
            } else {
                let wanted = rest.len().min(BLOCK);
                self.block.resize(BLOCK, 0);
                let block = self.block.get_mut(taking.held..wanted).unwrap_or_default();
                lane.fill(taking.done + taking.held, block)
            };
            let filled = match filled {
                Ok(0) => break,
                Ok(filled) => filled,
                Err(broken) => return Err(self.parted(from, &broken)),
            };
            moved = true;
            if how == How::Store {
                taking.done += filled;
                continue;
            }
            taking.held += filled;
            let wanted = rest.len().min(BLOCK);
            if taking.held == wanted {
                let (element, reduction) = (self.work.element, self.work.reduction);
                let (into, _) = rest.split_at_mut(wanted);
                let block = self.block.get(..wanted).unwrap_or_default();
                reduce::fold(element, reduction, into, With::Slice(block));
                if how == How::FoldLast {
                    reduce::finish(element, reduction, into, self.work.ranks);
                }
                (taking.done, taking.held) = (taking.done + wanted, 0);
            }
        }
        Ok(moved)
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
            } else if self.behind > 0 {
                let sleep = |time| sleep_on(self.lanes, None, time);
                self.patience.pause(None, Rest::Sockets(&sleep))?;
            } else {
                self.patience.pause(None, Rest::Spin)?;
            }
        }
    }
}

/// Sleeps until something comes from a rank, or there is room to send to any.
fn sleep_on(lanes: &[Option<Lane>], from: Option<usize>, time: Duration) {
    let sockets = lanes.iter().enumerate().filter_map(|(rank, lane)| {
        let (socket, behind) = lane.as_ref()?.socket()?;
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, behind);
        flags.set(PollFlags::IN, from == Some(rank));
        (!flags.is_empty()).then(|| PollFd::from_borrowed_fd(socket, flags))
    });
    let mut sockets: Vec<PollFd<'_>> = sockets.collect();
    if sockets.is_empty() {
        return std::thread::sleep(time);
    }
    let time = Timespec::try_from(time).ok();
    // What it was interrupted for is looked at in any case.
    let _ = poll(&mut sockets, time.as_ref());
}
