//! The transfer engine: executes a route and returns a receipt.
//!
//! [`Engine::load`] takes pieces of open files and a destination, and gives back a [`Transfer`]
//! whose [`Transfer::wait`] returns the memory and the [`Receipt`](crowfly_route::receipt::Receipt).
//! While a transfer runs, its memory belongs to the engine: cancelling or dropping the handle, or a
//! failure, never frees memory that a device may still write into.

pub mod bench;
pub mod checkpoint;
pub mod ckpt;
pub mod collective;
pub mod digest;
mod engine;
mod entrance;
mod error;
pub mod fabric;
mod fresh;
pub mod gpu;
mod io;
mod job;
mod memory;
pub mod objects;
mod pass;
mod receipt;
mod request;
mod save;
pub mod service;
mod source;
pub mod step;
mod strangers;
mod transfer;
mod tune;
mod work;
mod worker;

pub use engine::{Engine, MIN_BUDGET};
pub use error::TransferError;
pub use job::Sink;
pub use memory::{BLOCK, HUGE_PAGE, MemoryError, MemoryKind, Region};
pub use request::{Destination, Piece, Request, Settings, Verify};
pub use save::{BUFFER as SAVE_BUFFER, Parts, PartsRequest, SaveRequest, Saving};
pub use source::Source;
pub use transfer::{Loaded, Transfer};
