//! RDMA verbs through libibverbs, opened at run time.
//!
//! [`Verbs`] finds and opens devices; a [`Context`] makes a [`ProtectionDomain`], in it memory is
//! registered ([`MemoryRegion`]) and reliable queue pairs are made ([`QueuePair`]), which report to
//! a [`CompletionQueue`]. Each holds what it was made of, so everything is destroyed in the right
//! order, and requests in flight hold the memory they use.
//!
//! Everything goes through a table of functions ([`Functions`]) and the operations of the open
//! context, as in C, so that a stand-in for the library can be put in place.

mod abi;
mod completion;
mod device;
mod error;
#[cfg(any(test, feature = "fakes"))]
pub mod fake;
mod functions;
mod gid;
mod memory;
mod mlx5;
mod pair;
mod probe;
mod registration;

pub use completion::{Completion, CompletionQueue, Done, Failed, Kind, Status};
pub use device::{Context, Limits, LinkLayer, Mtu, Port, Verbs};
pub use error::VerbsError;
pub use functions::Functions;
pub use gid::{GidFilter, GidKind, PortGid, meeting, ranked};
pub use memory::{Access, DmaBufSupport, Keys, MemoryRegion, Pinned, ProtectionDomain, Slice};
pub use mlx5::{DataDirect, Mlx5, NoDataDirect};
pub use pair::{
    Batch, Init, PSN_MASK, Patience, QueuePair, Ready, Receives, Remote, Reset, Route, Rung, Sizes,
};
pub use probe::{Answer, Probe, probe};
pub use registration::{
    ExportError, Exporter, Flush, GpuFacts, Mapping, Registered, Way, register_device,
    register_host, register_host_ordered,
};
