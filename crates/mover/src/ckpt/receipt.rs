//! What a save did: how long the caller stood still, how long the rest took, and what getting it all
//! back would take.

use std::path::PathBuf;

use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::receipt::Receipt;
use crowfly_route::units::Bytes;
use serde::Serialize;

/// The version of the JSON form of a [`SaveReceipt`].
pub const SAVE_SCHEMA: &str = "crowfly.save/1";

/// What one rank's save did. All times are seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaveReceipt {
    /// [`SAVE_SCHEMA`].
    pub schema: String,
    /// The step.
    pub step: u64,
    /// The rank whose save it was.
    pub rank: u32,
    /// How many ranks saved.
    pub world: u32,
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// Bytes of the tensors that this rank wrote.
    pub tensor_bytes: Bytes,
    /// Bytes of its file.
    pub file_bytes: Bytes,
    /// How long the caller was held up: by the copy into staging, by an earlier save, or, when the
    /// save was not asynchronous, by everything.
    pub stall_seconds: f64,
    /// Memory for the copy that was not there yet when the save began, so that the caller waited for it too;
    /// none after [`Saver::prepare`](super::Saver::prepare) has had its time, or after a save as large.
    pub fresh_bytes: Bytes,
    /// How long the caller waited later on, in [`Pending::wait`](super::Pending::wait).
    pub waited_seconds: f64,
    /// From the call until the checkpoint was published.
    pub background_seconds: f64,
    /// Of these, while bytes were written: from the first request to the last completion, with the
    /// copy into staging that goes on at the same time.
    pub write_seconds: f64,
    /// Of these, until the file was durable.
    pub sync_seconds: f64,
    /// Of these, until all ranks were done and the folder had its name.
    pub publish_seconds: f64,
    /// Older steps that were removed afterwards.
    pub pruned: Vec<u64>,
    /// What restoring this rank's file would take at best.
    pub restore: Option<RestoreCost>,
    /// Which way the bytes went to the drive.
    pub receipt: Receipt,
}

/// What reading a checkpoint would take at the drive's ceiling.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestoreCost {
    /// How much would be read.
    pub bytes: Bytes,
    /// How long it would take at the ceiling.
    pub seconds: f64,
    /// The ceiling, and how it is known.
    pub ceiling: Capacity,
}

/// What restoring costs at the ceiling that is known, or at the rate that writing reached.
pub(super) fn restore_cost(
    bytes: Bytes,
    ceiling: Option<Capacity>,
    write_seconds: f64,
) -> Option<RestoreCost> {
    let ceiling = match ceiling {
        Some(ceiling) => ceiling,
        None => Capacity {
            rate: bytes.per(write_seconds)?,
            provenance: Provenance::Assumed(
                "reading is taken to be as fast as this save wrote, which drives rarely fall below"
                    .into(),
            ),
        },
    };
    let rate = ceiling.rate.0;
    (rate > 0.0).then(|| RestoreCost {
        bytes,
        seconds: bytes.0 as f64 / rate,
        ceiling,
    })
}
