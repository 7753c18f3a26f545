//! A device with seeded faults, for driving the production worker through them.

use std::io;
use std::time::Duration;

use super::{Direction, Done, Io, Op, run};

/// What a faulty device does. Each `one_in` is a probability of 1/n per request; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub seed: u64,
    pub short_one_in: u64,
    pub interrupted_one_in: u64,
    pub busy_one_in: u64,
    /// Answers this error to a request that covers this offset.
    pub error_at: Option<(u64, i32)>,
    /// Answers nothing but this error.
    pub always: Option<i32>,
    /// Answers zero bytes from this offset on, as a file that ends there.
    pub ends_at: Option<u64>,
}

/// Completes requests out of order, short, interrupted or with errors, as its seed says.
pub(crate) struct Faulty {
    faults: Faults,
    state: u64,
    queue: Vec<Op>,
    room: usize,
    meanwhile: Option<(u64, Box<dyn FnOnce()>)>,
}

impl Faulty {
    pub(crate) fn new(faults: Faults, room: usize) -> Self {
        Self {
            faults,
            state: faults.seed,
            queue: Vec::new(),
            room,
            meanwhile: None,
        }
    }

    /// Has something happen right before the first answer to a request that covers this offset.
    pub(crate) fn before(mut self, offset: u64, happens: impl FnOnce() + 'static) -> Self {
        self.meanwhile = Some((offset, Box::new(happens)));
        self
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.random().is_multiple_of(n)
    }

    fn answer(&mut self, op: Op) -> Done {
        let faults = self.faults;
        let covers =
            |offset: u64| (op.offset..op.offset + op.target.len() as u64).contains(&offset);
        if let Some((_, happens)) = self.meanwhile.take_if(|(offset, _)| covers(*offset)) {
            happens();
        }
        let error = match faults.error_at {
            Some((offset, error)) if covers(offset) => Some(error),
            _ => faults.always,
        };
        let error = match error {
            None if self.one_in(faults.interrupted_one_in) => Some(libc::EINTR),
            None if self.one_in(faults.busy_one_in) => Some(libc::EAGAIN),
            error => error,
        };
        if let Some(error) = error {
            return Done {
                op,
                result: Err(error),
            };
        }
        if let Some(end) = faults.ends_at
            && op.offset + op.target.len() as u64 > end
        {
            let left = end.saturating_sub(op.offset) as usize;
            return Done {
                op,
                result: Ok(left),
            };
        }
        let blocks = op.target.len() / 512;
        if blocks > 1 && self.one_in(faults.short_one_in) {
            let keep = (1 + self.random() as usize % (blocks - 1)) * 512;
            let part = Op {
                target: op.target.part(0, keep),
                file: op.file.clone(),
                ..op
            };
            let Done { result, .. } = run(part);
            return Done { op, result };
        }
        run(op)
    }
}

impl Io for Faulty {
    fn submit(&mut self, op: Op) {
        assert!(
            self.queue.len() < self.room,
            "more requests than there is room for"
        );
        assert!(op.direction == Direction::Read || op.target.len() > 0);
        self.queue.push(op);
    }

    fn room(&self) -> usize {
        self.room - self.queue.len()
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn wait(&mut self, _patience: Duration, done: &mut Vec<Done>) -> io::Result<()> {
        let some = 1 + self.random() as usize % self.queue.len().max(1);
        for _ in 0..some.min(self.queue.len()) {
            let pick = self.random() as usize % self.queue.len();
            let op = self.queue.swap_remove(pick);
            let answer = self.answer(op);
            done.push(answer);
        }
        Ok(())
    }
}
