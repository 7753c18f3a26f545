//! Files, folders and memory of one machine for others: the server behind `crowfly serve` and the
//! copies of `crowfly cp`.
//!
//! A [`Server`] exposes what it was told to under names. A [`struct@Copy`] asks for things over a control
//! channel; the bytes themselves go one-sided over the fabric between registered memory of both ends.
//! The client asks for a part of a file, the server reads it from storage and writes it into the
//! client's memory; or the client says where a part lies, and the server fetches it and writes it to
//! storage. Exposed memory is reached without the server doing anything.
//!
//! Who may connect is settled by a shared key or by certificates of both ends (mutual TLS). In both
//! cases the requests are authenticated and numbered; the bulk bytes are **not encrypted**, like those
//! of RDMA.
//!
//! Read in this order: `limits`, `name` (what things are called), `message` (what is said), `channel`
//! and `tls` (how it is said), `exports` and `partial` (what is behind the names), `session` and `server`
//! (one end), `client` and `copy` (the other). `account` and `metrics` say what happened.

mod account;
mod attributes;
mod channel;
mod client;
mod copy;
mod error;
mod exports;
mod journal;
mod limits;
mod message;
mod metrics;
mod name;
mod partial;
mod ring;
mod server;
mod session;
mod tls;
mod welcome;

pub use account::{Doing, End, Leg};
pub use attributes::{Attributes, Wanted};
pub use client::Dialing;
pub use copy::{Asked, Copied, Copy, Side, Watch};
pub use error::ServiceError;
pub use exports::Export;
pub use limits::{GRACE, Limits, MAX_LISTED};
pub use message::{Answer, BadMessage, Entry, Kind, Part, Request, Tag};
pub use name::{BadLocation, BadName, Location, Name, RelativePath, amiss};
pub use server::{Auth, Server, ServerSettings, Totals};
pub use tls::{Identity, TlsError};
