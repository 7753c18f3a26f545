//! How fast the fabric is between this process and another: rates, latencies, CPU time, receipts,
//! and what the machine itself could do at most.
//!
//! One end is a [`Host`]: it lends memory to whoever knows the key, and answers pings. The other
//! makes one [`Line`] for each path and takes [`Sample`]s by it. Only measuring happens here: in
//! which order samples are taken, what is made of them and how that looks is the caller's.

mod ceiling;
mod collective;
mod host;
mod line;
mod protocol;

use std::time::Duration;

use crowfly_route::receipt::{CpuSeconds, Path, Receipt};
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::Serialize;

pub use ceiling::{copies, passes, streams};
pub use collective::{CollectiveCase, CollectiveSample, MAX_COLLECTIVE, collective};
pub use host::{Held, Host};
pub use line::Line;

use crate::fabric::FabricError;

/// The largest transfer that is measured; the other end lends twice as much memory.
pub const MAX_SIZE: u64 = 1 << 30;
/// The most round trips of one latency sample.
pub const MAX_ROUND_TRIPS: u32 = 100_000;
/// How long the other end may take for one step of a measurement.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Writes into the peer's memory, some of them under way at a time.
    Write,
    /// Reads of the peer's memory, some of them under way at a time.
    Read,
    /// Writes and reads at once; the rate is the sum of both directions.
    Both,
    /// A write with a value that the peer answers with another, one at a time.
    PingPong,
}

impl Task {
    /// The word used in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Both => "both",
            Self::PingPong => "ping-pong",
        }
    }
}

/// Half of the time of a round trip, in seconds, over one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The fastest.
    pub least: f64,
    /// The middle one.
    pub median: f64,
    /// That which 99 of 100 stay below.
    pub p99: f64,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The path that every byte went, as the receipts say.
    pub path: Path,
    /// What was measured.
    pub task: Task,
    /// Bytes of each transfer.
    pub size: Bytes,
    /// How many transfers there were, in both directions together.
    pub transfers: u64,
    /// Bytes that arrived, in both directions together.
    pub moved: Bytes,
    /// Wall time in seconds, from the first transfer's start to the last one's end.
    pub seconds: f64,
    /// CPU time of this process meanwhile.
    pub cpu_here: CpuSeconds,
    /// CPU time of the other process meanwhile.
    pub cpu_there: CpuSeconds,
    /// Half a round trip, where one at a time was measured.
    pub latency: Option<Latency>,
    /// The receipt of the last transfer.
    pub receipt: Receipt,
}

impl Sample {
    /// The rate, both directions together.
    pub fn rate(&self) -> Option<BytesPerSecond> {
        self.moved.per(self.seconds)
    }

    /// CPU seconds of both processes for each decimal gigabyte.
    pub fn cpu_per_gb(&self) -> Option<f64> {
        let gigabytes = self.moved.0 as f64 / 1e9;
        (gigabytes > 0.0).then(|| (self.cpu_here.total() + self.cpu_there.total()) / gigabytes)
    }
}

/// Why something could not be measured.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A transfer went another way than the one that is measured.
    #[error("{bytes} of a transfer by {wanted} went by {taken}")]
    Detour {
        /// The path asked for.
        wanted: Path,
        /// The path taken.
        taken: Path,
        /// How much.
        bytes: Bytes,
    },
    /// A transfer is larger than can be measured.
    #[error(
        "transfers of {asked} cannot be measured; {} is the most",
        Bytes(MAX_SIZE)
    )]
    TooLarge {
        /// Bytes asked for.
        asked: Bytes,
    },
    /// The other end says something else than it should.
    #[error("the other end is no `crowfly bench net --listen` of this version: {what}")]
    Protocol {
        /// What was wrong.
        what: String,
    },
    /// The other end could not do its part.
    #[error("the other end could not {what}: {why}")]
    There {
        /// What it was asked for.
        what: &'static str,
        /// Its answer.
        why: String,
    },
    /// What the machine itself can do could not be measured.
    #[error("could not measure {what}: {source}")]
    Ceiling {
        /// What.
        what: &'static str,
        /// The system's answer.
        source: crate::fabric::SharedIo,
    },
}

impl BenchError {
    /// A stable code for JSON output and exit status.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Fabric(error) => error.code(),
            Self::Detour { .. } => "bench-detour",
            Self::TooLarge { .. } => "bench-too-large",
            Self::Protocol { .. } => "bench-protocol",
            Self::There { .. } => "bench-peer-failed",
            Self::Ceiling { .. } => "bench-ceiling",
        }
    }
}
