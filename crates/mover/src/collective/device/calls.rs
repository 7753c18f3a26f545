//! What NCCL tells a profiler of its calls, where that is crowfly's own plugin.

use crowfly_machine::nccl::calls;
use crowfly_route::units::Bytes;
use serde::{Deserialize, Serialize};

/// What NCCL told of the calls of a communicator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NcclCalls {
    /// These there were.
    Told(Vec<NcclCall>),
    /// It told nothing.
    Unknown {
        /// Why.
        why: String,
    },
}

/// Calls that NCCL did alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclCall {
    /// What it calls them, such as `AllReduce`.
    pub what: String,
    /// The kind of numbers, such as `ncclFloat32`.
    pub numbers: String,
    /// The algorithm that it chose; none for a send or a receive.
    pub algorithm: Option<String>,
    /// The protocol that it chose; none for a send or a receive.
    pub protocol: Option<String>,
    /// How many there were.
    pub calls: u64,
    /// The bytes of what NCCL counts; unknown where the kind of numbers is.
    pub bytes: Option<Bytes>,
    /// The most channels of one of them.
    pub channels: u8,
}

/// A communicator, as the plugin has it.
#[derive(Deserialize)]
struct Told {
    number: u64,
    calls: Vec<NcclCall>,
}

/// The communicators of a rank among so many that the plugin was told of.
fn told(rank: usize, ranks: usize) -> Result<Vec<Told>, String> {
    let bytes = calls::told(rank, ranks).map_err(|why| why.to_string())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| format!("what the plugin was told makes no sense: {error}"))
}

/// What NCCL tells of the calls of a communicator that begins now.
#[derive(Debug)]
pub(super) struct Calls {
    place: (usize, usize),
    /// The latest communicator before it.
    before: u64,
}

impl Calls {
    /// Notes which communicators there were before.
    pub(super) fn begin(rank: usize, ranks: usize) -> Self {
        let known = told(rank, ranks).unwrap_or_default();
        Self {
            place: (rank, ranks),
            before: known.iter().map(|told| told.number).max().unwrap_or(0),
        }
    }

    /// What was told of it by now.
    pub(super) fn account(&self) -> NcclCalls {
        let known = match told(self.place.0, self.place.1) {
            Ok(known) => known,
            Err(why) => return NcclCalls::Unknown { why },
        };
        let later = known.into_iter().filter(|told| told.number > self.before);
        match later.min_by_key(|told| told.number) {
            Some(own) => NcclCalls::Told(own.calls),
            None => NcclCalls::Unknown {
                why: "NCCL told its profiler nothing of this communicator".into(),
            },
        }
    }
}
