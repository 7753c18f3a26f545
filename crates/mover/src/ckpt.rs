//! Checkpoints of training: saving them so that a kill at any instant leaves the last good one, and
//! restoring them, by any number of ranks, from whichever format they are in.
//!
//! # Saving
//! A [`Saver`] takes a [`State`]: borrowed tensors, or this rank's [parts](TensorPart) of them, and
//! small values. [`Saver::save`] waits until the checkpoint is published; [`Saver::save_async`] only
//! until the tensors are copied into staging, and gives a [`Pending`]. The [`SaveReceipt`] tells both
//! times apart. A folder of checkpoints holds one folder `step-N` for each, in it one safetensors
//! file for each rank and a [`Manifest`]. It is written under a hidden name and renamed when every
//! byte is durable; [`latest`] finds the newest complete one by looking. [`prune`] removes old ones.
//!
//! # Restoring
//! [`Archive::open`] reads what is where in a step, in a safetensors file, in a model folder with or
//! without an index, or in a distributed checkpoint of PyTorch, whose pickles are read by an
//! allow-list and never executed. [`Archive::restore`] reads whole tensors or [parts](Want) of them,
//! as many bytes as these need, and checks them against the checksums that were saved.

mod archive;
mod attempt;
pub mod dcp;
mod diff;
mod disk;
mod error;
mod extent;
mod image;
pub(crate) mod lock;
pub mod manifest;
mod receipt;
mod restore;
mod saver;
mod state;
mod store;

pub use archive::{Archive, ArchiveError, ArchiveFile, ArchivedPart, ArchivedTensor, Format};
pub use diff::{Change, Difference, Distance, comparable, diff};
pub use disk::{Act, Witness};
pub use error::SaveError;
pub use extent::Extent;
pub use manifest::{Manifest, ManifestError};
pub use receipt::{RestoreCost, SAVE_SCHEMA, SaveReceipt};
pub use restore::{Reading, Restoration, RestoreOptions, Restored, Verified, Want};
pub use saver::{Pending, SLAB, Saver, SaverSettings};
pub use state::{MAX_OBJECT_BYTES, State, TensorPart};
pub use store::{
    Contents, Found, Pruned, Retention, StepError, Unfinished, latest, list, prune, read_manifest,
    step_folder,
};

/// A name that nobody else chooses.
fn mark() -> String {
    let mut bytes = [0u8; 8];
    // Without random numbers the process and the time still tell attempts apart.
    if rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = now.map_or(0, |since| since.as_nanos()) as u64;
        bytes = (nanos ^ u64::from(std::process::id()).rotate_left(40)).to_le_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
