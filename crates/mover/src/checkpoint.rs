//! Checkpoints on disk: which bytes of which files are which tensors.
//!
//! Everything here parses and decides; nothing maps memory or reads tensor data. [`Checkpoint::open`]
//! reads the headers of a file or a folder, a [`select::Selector`] picks tensors, and the mover moves
//! the byte ranges of the [`select::Selection`].

pub mod dtype;
mod error;
mod file;
pub mod header;
pub mod index;
mod json;
mod names;
mod open;
mod quoted;
pub mod seeded;
pub mod select;

pub use error::{CheckpointError, NamedBy, Note, OtherFormat};
pub(crate) use file::not_a_file;
pub use file::{CheckpointFile, NotAFile, Stamp};
pub use open::{Checkpoint, FileNumber, Kind, TensorId};
pub use quoted::{MAX_QUOTED_CHARS, Quoted};
