//! Memory to memory between processes and servers, with proof of the path.
//!
//! A process takes part with a [`Fabric`]: it registers memory ([`Buffer`] → [`Region`]), gives away
//! descriptors ([`RegionDescriptor`]), connects to peers ([`Peer`]) and posts one-sided transfers.
//! Each [`Transfer`] is a future that needs no runtime, can be waited for and cancelled, ends within
//! its deadline, and yields a [`Delivery`] with a receipt of the way its bytes really went.
//!
//! Read in this order: [`memory`](self) types, [`provider`] (the seam between the engine and the ways
//! of moving bytes), `flight` and `scheduler` (the engine's heart, one for each peer), `session`
//! (everything shared with a peer), `node` (the process's part). `wire`, `handshake`, `hello` and
//! `conn` are the protocol of the paths that use sockets.

mod account;
mod cma;
mod conn;
mod copier;
mod counter;
mod descriptor;
mod error;
pub(crate) mod fields;
mod flight;
mod gate;
mod group;
mod handshake;
mod hello;
mod hops;
#[cfg(test)]
mod hostile;
mod identity;
mod interfaces;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod intruder;
pub(crate) mod lookup;
mod memory;
mod nics;
mod node;
mod peer;
mod plan;
mod port;
pub mod provider;
mod rail;
mod reactor;
mod region;
mod regions;
pub mod rendezvous;
mod scheduler;
mod session;
mod settings;
mod shm;
#[cfg(test)]
mod simulation;
mod socket;
mod stash;
mod stint;
mod tcp;
mod totals;
mod transfer;
mod turns;
pub mod verbs;
mod vigil;
mod wait;
mod waking;
mod whom;
mod wire;

pub(crate) use account::less_certain;
pub use counter::{ImmCounter, MAX_COUNTERS, Reaches};
pub use descriptor::{
    BadDescriptor, DESCRIPTOR_VERSION, Grant, MAX_DESCRIPTOR, MAX_GRANTS, MAX_NIC_KEY,
    MAX_NIC_NAME, RegionDescriptor, RemoteSlice,
};
pub use error::{CONNECTION, FabricError, NotMapped, SharedIo};
pub use fields::{Reader, Writer};
pub use gate::{Gate, Inside, Pass};
pub use group::{Group, Part};
pub use identity::{BadKey, Incarnation, SharedKey};
pub use interfaces::{LineRate, Reachable, reachable};
pub use memory::{Backing, Buffer, Keeper};
pub(crate) use memory::{Caches, Everywhere, ask_for, copy_slice, merge, zip_slices};
pub use nics::{BadFilter, MAX_FILTER, NicFilter};
pub use node::Fabric;
pub(crate) use node::{Awaited, Stream, Token};
pub use peer::{MAX_PAGES, Page, Peer};
pub use port::PortCount;
pub use provider::{DEFAULT_DEADLINE, Imm};
pub use rail::{RailReport, RailTotals};
pub use region::{Access, LocalSlice, Region, RegionCore};
pub use scheduler::{MAX_FLIGHTS, STRIPE};
pub(crate) use session::Mailbox;
pub use session::{MAX_CHECKED_RUNS, MAX_INBOX, MAX_SENDING};
pub use settings::{Options, Settings};
pub(crate) use socket::unpace;
pub use totals::{NicTotals, PathTotals, PeerTotals, Port, Totals};
pub use transfer::{Checked, Delivery, LeftOut, NicShare, Outcome, Transfer, Written};
pub use whom::Whom;
pub(crate) use wire::HEADER as STREAM_HEADER;
pub use wire::MAX_MESSAGE;
