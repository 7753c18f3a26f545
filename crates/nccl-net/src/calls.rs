//! What NCCL tells of its own calls by its profiler interface: which there were in a communicator, how
//! many, on how many bytes, and by which algorithm and protocol NCCL did them.
//!
//! NCCL tells it when the host has made a call ready for the GPU. How long the GPU took is in no event
//! that is asked for: those would have NCCL stop for them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crowfly_route::units::Bytes;
use serde::Serialize;

use crate::account::{SCHEMA, append};
use crate::comm::locked;
use crate::error::NetError;
use crate::logger;
use crate::plugin;
use crate::settings::Settings;
use crate::table::Table;

/// The most kinds of calls of one communicator that are told apart.
const MAX_KINDS: usize = 256;

/// Communicators by the number that NCCL knows them by.
pub(crate) static COMMUNICATORS: Table<Communicator> = Table::of("communicator");

/// Whose calls these are.
#[derive(Clone, Debug, Serialize)]
pub struct Whose {
    /// NCCL's number of the communicator, the same at all its ranks, in hexadecimal.
    pub communicator: String,
    /// The name that the program gave it.
    pub name: Option<String>,
    /// This process's rank in it.
    pub rank: i32,
    /// Ranks.
    pub ranks: i32,
    /// Servers that they are on.
    pub nodes: i32,
}

/// What makes two calls alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// What NCCL calls it, such as `AllReduce` or `Send`.
    pub what: String,
    /// The kind of numbers, such as `ncclFloat32`.
    pub numbers: String,
    /// The algorithm that NCCL chose; none for a send or a receive.
    pub algorithm: Option<String>,
    /// The protocol that NCCL chose; none for a send or a receive.
    pub protocol: Option<String>,
}

/// Calls that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// What they have in common.
    #[serde(flatten)]
    pub kind: Kind,
    /// How many there were.
    pub calls: u64,
    /// The bytes of what NCCL counts: of one rank's part for all-gather and reduce-scatter, of the whole
    /// buffer otherwise. Unknown where the kind of numbers is.
    pub bytes: Option<Bytes>,
    /// The most channels of one of them.
    pub channels: u8,
}

/// What NCCL told of a communicator's calls.
#[derive(Clone, Debug, Serialize)]
pub struct CallsReceipt {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// `calls`.
    pub event: &'static str,
    /// This process.
    pub process: u32,
    /// Counts communicators in the order in which they began.
    pub number: u64,
    /// The communicator.
    #[serde(flatten)]
    pub whose: Whose,
    /// Whether NCCL ended it; otherwise the process ended first.
    pub closed: bool,
    /// Seconds from its beginning to its end.
    pub seconds: f64,
    /// Its calls.
    pub calls: Vec<Calls>,
    /// Calls of more kinds than are told apart.
    pub others: u64,
}

/// One call, as NCCL tells it.
pub(crate) struct Told {
    pub kind: Kind,
    pub count: u64,
    pub channels: u8,
}

#[derive(Default)]
struct Tally {
    kinds: Vec<Calls>,
    others: u64,
}

/// A communicator of NCCL's.
pub(crate) struct Communicator {
    number: u64,
    whose: Whose,
    began: Instant,
    receipts: Option<PathBuf>,
    tally: Mutex<Tally>,
}

/// Bytes of a number, by the name that NCCL has for its kind.
fn size(kind: &str) -> Option<u64> {
    Some(match kind.strip_prefix("nccl")? {
        "Int8" | "Char" | "Uint8" | "Float8e4m3" | "Float8e5m2" => 1,
        "Float16" | "Half" | "Bfloat16" => 2,
        "Int32" | "Int" | "Uint32" | "Float32" | "Float" => 4,
        "Int64" | "Uint64" | "Float64" | "Double" => 8,
        _ => return None,
    })
}

impl Tally {
    fn add(&mut self, told: Told) {
        let bytes = size(&told.kind.numbers).and_then(|size| size.checked_mul(told.count));
        let bytes = bytes.map(Bytes);
        let full = self.kinds.len() >= MAX_KINDS;
        match self.kinds.iter_mut().find(|known| known.kind == told.kind) {
            Some(known) => {
                known.calls += 1;
                known.bytes = known.bytes.zip(bytes).map(|(one, other)| one + other);
                known.channels = known.channels.max(told.channels);
            }
            None if full => self.others += 1,
            None => self.kinds.push(Calls {
                kind: told.kind,
                calls: 1,
                bytes,
                channels: told.channels,
            }),
        }
    }
}

impl Communicator {
    /// One that begins; its number.
    pub(crate) fn begin(whose: Whose) -> Result<usize, NetError> {
        let settings = Settings::from_environment()?;
        plugin::settle_at_exit();
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Ok(COMMUNICATORS.keep(Arc::new(Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            whose,
            began: Instant::now(),
            receipts: settings.receipts,
            tally: Mutex::default(),
        })))
    }

    pub(crate) fn note(&self, told: Told) {
        locked(&self.tally).add(told);
    }

    /// What was told so far.
    fn receipt(&self, closed: bool) -> CallsReceipt {
        let tally = locked(&self.tally);
        CallsReceipt {
            schema: SCHEMA,
            event: "calls",
            process: std::process::id(),
            number: self.number,
            whose: self.whose.clone(),
            closed,
            seconds: self.began.elapsed().as_secs_f64(),
            calls: tally.kinds.clone(),
            others: tally.others,
        }
    }

    /// Writes what was told so far.
    pub(crate) fn write(&self, closed: bool) {
        let receipt = self.receipt(closed);
        for alike in &receipt.calls {
            let kind = &alike.kind;
            let way = |way: &Option<String>| way.clone().unwrap_or_default();
            logger::info(&format!(
                "communicator {}: {} {} of {} by {} {}",
                self.whose.communicator,
                alike.calls,
                kind.what,
                kind.numbers,
                way(&kind.algorithm),
                way(&kind.protocol)
            ));
        }
        if let Some(path) = &self.receipts
            && let Err(error) = append(path, &receipt)
        {
            logger::unwritten(path, &error);
        }
    }
}

/// What was told so far of the communicators of a rank among so many, a JSON array.
pub(crate) fn told(rank: i32, ranks: i32) -> Vec<u8> {
    let all = COMMUNICATORS.all();
    let asked = all
        .iter()
        .filter(|one| (one.whose.rank, one.whose.ranks) == (rank, ranks));
    let receipts: Vec<CallsReceipt> = asked.map(|one| one.receipt(false)).collect();
    serde_json::to_vec(&receipts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(what: &str, numbers: &str, protocol: &str, count: u64, channels: u8) -> Told {
        Told {
            kind: Kind {
                what: what.into(),
                numbers: numbers.into(),
                algorithm: Some("RING".into()),
                protocol: Some(protocol.into()),
            },
            count,
            channels,
        }
    }

    #[test]
    fn calls_that_are_alike_are_counted_together_and_bytes_of_an_unknown_kind_are_unknown() {
        let mut tally = Tally::default();
        tally.add(told("AllReduce", "ncclBfloat16", "LL", 10, 2));
        tally.add(told("AllReduce", "ncclBfloat16", "LL", 5, 4));
        tally.add(told("AllReduce", "ncclBfloat16", "SIMPLE", 1, 1));
        tally.add(told("AllReduce", "ncclFloat4", "LL", 8, 1));
        tally.add(told("AllReduce", "ncclInt64", "LL", u64::MAX, 1));
        let found = tally.kinds.iter();
        let found: Vec<_> = found
            .map(|calls| (calls.calls, calls.bytes, calls.channels))
            .collect();
        assert_eq!(
            found,
            [
                (2, Some(Bytes(30)), 4),
                (1, Some(Bytes(2)), 1),
                (1, None, 1),
                (1, None, 1)
            ]
        );
    }

    #[test]
    fn kinds_beyond_the_most_are_counted_as_others() {
        let mut tally = Tally::default();
        for number in 0..MAX_KINDS + 3 {
            tally.add(told(&format!("{number}"), "ncclInt8", "LL", 1, 1));
        }
        tally.add(told("0", "ncclInt8", "LL", 1, 1));
        assert_eq!((tally.kinds.len(), tally.others), (MAX_KINDS, 3));
        assert_eq!(tally.kinds[0].calls, 2);
    }
}
