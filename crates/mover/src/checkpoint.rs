//! Checkpoints on disk: which bytes of which files are which tensors.
//!
//! Everything here parses and decides; nothing maps memory or reads tensor data. The mover takes
//! the byte ranges of a selection and moves them.

pub mod dtype;
pub mod header;
mod names;
pub mod quoted;
