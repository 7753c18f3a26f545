//! What a rank tells of a run while it goes on, so that nothing is lost with a rank that is killed.

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::{CpuSeconds, Path, Receipt, Share};
use crowfly_route::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::ckpt::{RestoreCost, SaveReceipt};
use crate::collective::CollectiveReceipt;

/// Bytes between storage and memory, as their receipt tells them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes asked for.
    pub asked: Bytes,
    /// Bytes by the way they went.
    pub shares: Vec<Share>,
    /// Bytes that passed an intermediate buffer in host RAM.
    pub bounced: Bytes,
    /// Wall time of the transfer in seconds.
    pub seconds: f64,
    /// CPU time of the threads that did the work.
    pub cpu: CpuSeconds,
    /// What stood in the way of a straighter one.
    pub obstacles: Vec<Obstacle>,
}

impl From<Receipt> for Moved {
    fn from(receipt: Receipt) -> Self {
        Self {
            asked: receipt.requested,
            shares: receipt.shares,
            bounced: receipt.bounced,
            seconds: receipt.wall_seconds,
            cpu: receipt.cpu,
            obstacles: receipt.obstacles,
        }
    }
}

/// Gradients that were exchanged, as one rank's receipt tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchanged {
    /// The gradients of one rank.
    pub size: Bytes,
    /// Ranks that took part.
    pub ranks: usize,
    /// Hosts they were on.
    pub hosts: usize,
    /// Bytes that this rank sent, or took out of others' memory, by the way they went.
    pub shares: Vec<Share>,
    /// How it was done.
    pub algorithm: String,
    /// Why so.
    pub because: String,
    /// All of it, in seconds.
    pub seconds: f64,
    /// The part of that in which this rank waited for others.
    pub waited: f64,
}

/// What a path amounts to for numbers that are exchanged between host memories.
const fn class(path: Path) -> Class {
    match path {
        Path::Verbs | Path::Shm | Path::Cma => Class::Direct,
        Path::Tcp => Class::Socket,
        _ => Class::Staged,
    }
}

impl From<CollectiveReceipt> for Exchanged {
    fn from(receipt: CollectiveReceipt) -> Self {
        let shares = receipt.moved.iter().map(|moved| Share {
            path: moved.path,
            class: class(moved.path),
            bytes: moved.bytes,
            because: None,
        });
        Self {
            size: receipt.size,
            ranks: receipt.ranks,
            hosts: receipt.hosts,
            shares: shares.collect(),
            algorithm: receipt.algorithm.as_str().to_owned(),
            because: receipt.because.to_string(),
            seconds: receipt.seconds,
            waited: receipt.waited,
        }
    }
}

/// Where the time of one rank's step went, in seconds. They sum to all of it but for what lies
/// between two readings of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The batch, from storage into memory.
    pub read: f64,
    /// The batch once more, from a GPU's memory to where the stand-in computes.
    pub fetch: f64,
    /// The stand-in.
    pub compute: f64,
    /// The exchange of gradients, with waiting for others.
    pub exchange: f64,
    /// The optimizer, part of the stand-in.
    pub update: f64,
    /// Standing still for a checkpoint.
    pub stall: f64,
    /// All of the step.
    pub total: f64,
}

/// A step that one rank did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stepped {
    /// Which, counted from 1.
    pub step: u64,
    /// Seconds from the beginning of the rank's run to the end of the step.
    pub ended: f64,
    /// Where its time went.
    pub times: Times,
    /// The batch.
    pub read: Moved,
    /// The gradients.
    pub exchanged: Exchanged,
    /// How often the stand-in was computed.
    pub passes: u64,
    /// Floating point operations of that.
    pub flops: f64,
}

/// A checkpoint that one rank took part in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// After which step.
    pub step: u64,
    /// How long training stood still for it: the copy into staging, and an earlier save that was not
    /// over.
    pub stall: f64,
    /// From the call until it was published.
    pub background: f64,
    /// Of these, while bytes were written.
    pub write: f64,
    /// What reading it back would take at best, in seconds, and at what rate in bytes per second.
    pub restore: Option<(f64, f64)>,
    /// This rank's file.
    pub written: Moved,
}

impl Saved {
    pub(super) fn of(receipt: SaveReceipt, stall: f64) -> Self {
        let restore = |cost: RestoreCost| (cost.seconds, cost.ceiling.rate.0);
        Self {
            step: receipt.step,
            stall,
            background: receipt.background_seconds,
            write: receipt.write_seconds,
            restore: receipt.restore.map(restore),
            written: receipt.receipt.into(),
        }
    }
}

/// How a rank learnt that others are lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// In which step.
    pub step: u64,
    /// The code of the error.
    pub code: String,
    /// The error in words.
    pub what: String,
    /// The ranks, by the numbers that they had in their group.
    pub ranks: Vec<usize>,
    /// Seconds from the call that failed to its error.
    pub heard_after: f64,
}

/// A state that one rank has restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    /// The step that it is the state after; 0 is the state that a run begins with, which no
    /// checkpoint holds.
    pub step: u64,
    /// Ranks of the group that goes on.
    pub ranks: usize,
    /// From the loss to the state: forming the group, waiting for what was being saved, reading.
    pub seconds: f64,
    /// Of these, reading the checkpoint.
    pub read_seconds: f64,
    /// The bytes; none for the state that a run begins with.
    pub read: Option<Moved>,
}

/// What a rank tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Its group was formed, of so many ranks on so many hosts.
    Formed {
        /// Ranks.
        ranks: usize,
        /// Hosts.
        hosts: usize,
        /// Seconds that it took.
        seconds: f64,
    },
    /// It did a step.
    Stepped(Box<Stepped>),
    /// A checkpoint was published.
    Saved(Box<Saved>),
    /// A checkpoint was not.
    NotSaved {
        /// After which step.
        step: u64,
        /// The code of the error.
        code: String,
        /// The error in words.
        what: String,
    },
    /// Others are lost.
    Lost(Lost),
    /// It has a state from which it goes on.
    Restored(Box<Restored>),
    /// It is through.
    Ended {
        /// Seconds of its run.
        seconds: f64,
        /// A checksum of its state, in hexadecimal.
        digest: String,
    },
}
