//! What ranks told, in the order in which it was heard.

use std::time::Duration;

use crowfly_mover::step::{Lost, Moment, Restored, Saved, Stepped};
use serde::{Deserialize, Serialize};

/// All that ranks told, in the order in which it was heard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Log {
    pub(super) entries: Vec<(usize, Moment)>,
    /// Ranks that were ended, and by which signal.
    pub(super) killed: Vec<(usize, i32)>,
    /// From the start of the ranks to the end of the run.
    pub(super) seconds: f64,
    latest: u64,
}

impl Log {
    /// The run is over, and took so long.
    pub fn end(mut self, took: Duration) -> Self {
        self.seconds = took.as_secs_f64();
        self
    }

    /// A rank told something.
    pub fn add(&mut self, rank: usize, moment: Moment) {
        if let Moment::Stepped(stepped) = &moment {
            self.latest = self.latest.max(stepped.step);
        }
        self.entries.push((rank, moment));
    }

    /// A rank was ended by a signal.
    pub fn killed(&mut self, rank: usize, signal: i32) {
        self.killed.push((rank, signal));
    }

    /// The latest step that any rank did.
    pub const fn latest_step(&self) -> u64 {
        self.latest
    }

    /// What another one heard as well.
    pub fn join(&mut self, other: Self) {
        self.latest = self.latest.max(other.latest);
        self.entries.extend(other.entries);
        self.killed.extend(other.killed);
    }

    /// The steps that ranks did.
    pub fn steps(&self) -> impl Iterator<Item = (usize, &Stepped)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Stepped(stepped) => Some((*rank, &**stepped)),
                _ => None,
            })
    }

    pub(super) fn saves(&self) -> impl Iterator<Item = (usize, &Saved)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Saved(saved) => Some((*rank, &**saved)),
                _ => None,
            })
    }

    pub(super) fn restores(&self) -> impl Iterator<Item = (usize, &Restored)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Restored(restored) => Some((*rank, &**restored)),
                _ => None,
            })
    }

    pub(super) fn losses(&self) -> impl Iterator<Item = (usize, &Lost)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Lost(lost) => Some((*rank, lost)),
                _ => None,
            })
    }
}
