//! NCCL, and AMD's RCCL with the same interface: collectives of GPUs, opened at run time.
//!
//! A [`Communicator`] is one rank's part of a group of GPUs. Its calls are queued on a stream and
//! never block: communicators are made in the library's non-blocking mode, so that a rank that does
//! not come costs a time limit and no more ([`Communicator::abort`]). What the library wrote into its
//! log is the only account that it gives of the way bytes went; [`log`] says where that is. What it did
//! it tells a profiler; [`calls`] are what it told crowfly's.

mod abi;
pub mod calls;
mod communicator;
mod error;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
mod functions;
pub mod log;

pub use abi::{Kind, Operation, UniqueId};
pub use communicator::{Communicator, Member, Part};
pub use error::NcclError;
pub use functions::Functions;
