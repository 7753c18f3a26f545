//! What the device says has ended or arrived, and how the engine is told.

use std::time::{Duration, Instant};

use crowfly_machine::verbs::{Completion, Failed, Kind, Status};

use super::super::super::error::FabricError;
use super::super::super::provider::{Imm, OpError, OpId};
use super::super::lock;
use super::{CHAIN_BITS, InFlight, State, VerbsLink};

/// How long a link that is closed waits for a device to give back what was posted; software needs a few
/// milliseconds, and NICs microseconds.
const GIVING_BACK: Duration = Duration::from_millis(200);

/// What is to be told to the engine once no lock is held.
pub(super) enum News {
    Ended {
        op: OpId,
        result: Result<(), OpError>,
        /// Whether a value went with it.
        valued: bool,
    },
    Arrived(Imm),
    Down(String),
}

impl VerbsLink {
    /// Fetches what has completed and tells the engine; returns how many completions there were.
    pub(in super::super) fn progress(&self, completions: &mut Vec<Completion>) -> usize {
        completions.clear();
        let polled = self.queue.poll(completions);
        if completions.is_empty() && polled.is_ok() {
            return 0;
        }
        let mut news = Vec::new();
        {
            let mut state = lock(&self.state);
            for completion in completions.iter() {
                self.take(&mut state, completion, &mut news);
            }
            if let Err(error) = polled {
                for lane in &mut state.lanes {
                    lane.stop(error.to_string());
                }
            }
            self.notice_end(&mut state, &mut news);
        }
        self.tell(news);
        completions.len()
    }

    /// Takes from the device what it still gives back of a link that is being closed, for all values that
    /// came to be counted; answers whether that was everything. What was sent stays in doubt: the engine
    /// has dropped it already, and the peer knows.
    pub(super) fn give_back(&self) -> bool {
        let until = Instant::now() + GIVING_BACK;
        let mut completions = Vec::new();
        loop {
            completions.clear();
            let polled = self.queue.poll(&mut completions);
            let mut state = lock(&self.state);
            let mut news = Vec::new();
            for completion in &completions {
                self.take(&mut state, completion, &mut news);
            }
            state
                .late
                .extend(news.into_iter().filter_map(|one| match one {
                    News::Arrived(imm) => Some(imm),
                    News::Ended { .. } | News::Down(_) => None,
                }));
            if state.lanes.iter().all(|lane| lane.waiting == 0) {
                return true;
            }
            drop(state);
            if polled.is_err() || Instant::now() >= until {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Tells the values that came while it was being closed.
    pub(in super::super) fn tell_late(&self) {
        let late = std::mem::take(&mut lock(&self.state).late);
        self.tell(late.into_iter().map(News::Arrived).collect());
    }

    pub(super) fn tell(&self, news: Vec<News>) {
        let rail = &self.ends.rail;
        let Some(events) = self.ends.events.upgrade() else {
            return;
        };
        for one in news {
            match one {
                News::Ended { op, result, valued } => {
                    // What failed with its rail stays in doubt until the peer's tally is known.
                    let known = valued && !matches!(result, Err(OpError::Rail(_)));
                    events.completed(*rail, op, result);
                    if known {
                        self.heard_of(op);
                    }
                }
                News::Arrived(imm) => {
                    // Not counted means that nobody can wait for it.
                    let _ = events.arrived(imm, None);
                }
                News::Down(why) => events.down(*rail, why),
            }
        }
    }

    /// The engine knows what became of a value; of a link that was closed meanwhile it does not.
    fn heard_of(&self, op: OpId) {
        let mut state = lock(&self.state);
        if !state.closed {
            state.values.heard_of(op);
        }
    }

    fn take(&self, state: &mut State, completion: &Completion, news: &mut Vec<News>) {
        let number = completion.qp_num;
        let Some(at) = state.lanes.iter().position(|lane| lane.number == number) else {
            return;
        };
        if let Some(pair) = &mut state.lanes[at].pair {
            pair.retire(completion);
        }
        if let Err(failed) = completion.outcome {
            let why = self.sentence(completion.qp_num, failed);
            state.lanes[at].stop(why);
        }
        if completion.receive {
            self.take_received(state, at, completion, news);
        } else {
            self.take_sent(state, completion, news);
        }
    }

    fn take_received(
        &self,
        state: &mut State,
        at: usize,
        completion: &Completion,
        news: &mut Vec<News>,
    ) {
        let lane = &mut state.lanes[at];
        if let Ok(done) = completion.outcome
            && let (Kind::Notified, Some(value)) = (done.kind, done.immediate)
        {
            lane.arrived += 1;
            news.push(News::Arrived(Imm(value)));
        }
        if let Err(error) = lane.received(completion.wr_id) {
            lane.stop(error.to_string());
        }
    }

    fn take_sent(&self, state: &mut State, completion: &Completion, news: &mut Vec<News>) {
        let key = completion.wr_id >> CHAIN_BITS;
        let Some(flight) = state.ops.get_mut(&key) else {
            return;
        };
        if let Err(failed) = completion.outcome
            && flight.failed.is_none_or(|f| f.status == Status::FLUSHED)
        {
            flight.failed = Some(failed);
        }
        if completion.wr_id != flight.last {
            return;
        }
        let Some(flight) = state.ended(key) else {
            return;
        };
        if state.closed {
            // The engine has dropped it already: whether the pump or the closing thread fetches its
            // completion, nothing is told.
            return;
        }
        let result = match flight.failed {
            None => Ok(()),
            Some(failed) => Err(self.blame(state, &flight, failed)),
        };
        news.push(News::Ended {
            op: flight.op.id,
            result,
            valued: flight.op.imm.is_some(),
        });
    }

    /// Whether an op's failure is its own or its lane's.
    fn blame(&self, state: &State, flight: &InFlight, failed: Failed) -> OpError {
        match (failed.status, &flight.op.remote) {
            // Range and access were checked against the descriptor, so it is the key.
            (Status::REMOTE_ACCESS, Some(remote)) => OpError::Op(FabricError::NoSuchRegion {
                peer: remote.owner(),
            }),
            _ => {
                let lane = state.lanes.get(flight.lane);
                let why = lane.and_then(|lane| lane.broken.clone());
                OpError::Rail(why.unwrap_or_else(|| self.sentence(0, failed)))
            }
        }
    }

    fn sentence(&self, qp_num: u32, failed: Failed) -> String {
        let (ours, theirs) = (&self.ends.nic.name, &self.ends.peer_nic);
        let (status, vendor) = (failed.status, failed.vendor_error);
        format!(
            "{ours} to {theirs} of the peer, queue pair {qp_num}: {status}, vendor error {vendor:#x}"
        )
    }

    /// Tells that the link is down once no lane is left.
    pub(super) fn notice_end(&self, state: &mut State, news: &mut Vec<News>) {
        let dead = state.lanes.iter().all(|lane| lane.broken.is_some());
        if !dead || state.down || state.closed {
            return;
        }
        state.down = true;
        let whys = state.lanes.iter().filter_map(|lane| lane.broken.clone());
        let why = whys.into_iter().next().unwrap_or_default();
        news.push(News::Down(why));
    }
}
