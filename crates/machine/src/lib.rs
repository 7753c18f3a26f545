//! The only door to the operating system and to vendors' libraries.
//!
//! [`capture()`] looks at a machine, live or a copy of one below a directory ([`Root`]), and returns a
//! [`Snapshot`](crowfly_route::snapshot::Snapshot). It decodes nothing: what the kernel said is
//! recorded as said, so that a snapshot someone mails shows what a live look would.

mod capture;
pub mod gpu;
pub mod gpu_storage;
pub mod huge_pages;
pub mod limits;
pub mod nccl;
pub mod numa;
pub mod residency;
mod root;
pub mod sockets;
pub mod streams;
pub mod trial;
pub mod usage;
pub mod verbs;

pub use capture::{MAX_CAPTURE_BYTES, Options, TRUNCATED, capture};
pub use root::{MAX_ENTRIES, Root, RootError};
