//! Positioned reads and writes on the calling thread: portable, and one request at a time.

use std::io;
use std::time::Duration;

use super::{Done, Io, Op, run};

/// One request at a time on the calling thread.
#[derive(Debug, Default)]
pub(crate) struct Blocking {
    waiting: Option<Op>,
}

impl Io for Blocking {
    fn submit(&mut self, op: Op) {
        self.waiting = Some(op);
    }

    fn room(&self) -> usize {
        usize::from(self.waiting.is_none())
    }

    fn in_flight(&self) -> usize {
        usize::from(self.waiting.is_some())
    }

    fn by_ring(&self) -> bool {
        false
    }

    fn wait(&mut self, _patience: Duration, done: &mut Vec<Done>) -> io::Result<()> {
        done.extend(self.waiting.take().map(run));
        Ok(())
    }
}
