//! Collectives: what the ranks of a group do together with their numbers, as in the exchange of
//! gradients.
//!
//! A [`Group`] is formed on a [`Fabric`](crate::fabric::Fabric) by ranks that find each other in a
//! directory. Ranks of one host share memory; between hosts the numbers go by whatever rails the
//! fabric has. Every call yields a [`CollectiveReceipt`]: which way its bytes went, by which
//! algorithm and why, and how long the rank waited for others. When something goes wrong, every rank
//! that is left gets the same [`CollectiveError`] within the deadline, and can go on in a group
//! without those that are lost ([`Group::shrink`]). Memory of GPUs goes by NCCL, in a [`DeviceGroup`]
//! that is formed on a group.
//!
//! Read in this order: [`group`](self) (`call` is what a program sees), `schedule` (algorithms as
//! lists), `execute` and `lane` (carrying them out), `flat` (ranks of one host), `choose` (which one),
//! `patience`, `neighbours` and `bell` (waiting), `council` and `verdict` (agreement on failures), `mesh`
//! and `arena` (what all stands on).

mod arena;
mod bell;
mod call;
mod choose;
mod council;
mod courier;
mod descriptors;
mod device;
mod element;
mod error;
mod execute;
mod flat;
mod group;
mod hosts;
mod lane;
mod mesh;
mod neighbours;
mod patience;
mod receipt;
mod reduce;
mod schedule;
mod shared;
mod verdict;

pub use call::Call;
pub use choose::{Algorithm, Basis, Costs, LinkCost, UnknownAlgorithm};
pub use courier::{Courier, PARCEL_SCHEMA, ParcelReceipt};
pub use device::{DeviceGroup, Evidence, NcclAccount, NcclCall, NcclCalls, NcclLink, Queued};
pub use element::{Element, UnknownElement};
pub use error::{Called, CollectiveError, Lost};
pub use group::{CallOptions, Group, GroupSettings};
pub use hosts::Hosts;
pub use receipt::{COLLECTIVE_SCHEMA, CollectiveReceipt, PathBytes};
pub(crate) use reduce::narrow;
pub use reduce::{Reduction, UnknownReduction};
pub use shared::{SHARED_ALIGNMENT, SharedBuffer};

/// The most ranks of a group: each has a connection to each other one.
pub const MAX_RANKS: usize = 256;
/// Values from this one on belong to collectives, where a program uses a fabric for both.
pub const FIRST_IMM: u32 = 0x8000_0000;
