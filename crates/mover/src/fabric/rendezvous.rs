//! How processes find each other: by an explicit address ([`Fabric::connect`]), or by name in a
//! [`Directory`] that all of them reach: a [shared folder](Folder) or [etcd](Etcd). Who they are
//! comes from the environment that torchrun, mpirun or srun sets up ([`World`]).
//!
//! An entry names the life of the process that wrote it ([`Incarnation`]), so one left behind by a
//! process that is gone is told from that of its successor when it is connected to.

mod etcd;
mod folder;
mod place;
mod world;

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub use etcd::Etcd;
pub use folder::Folder;
pub use place::{BadDirectory, directory};
pub use world::{BadWorld, Launcher, World};

use super::error::FabricError;
use super::identity::{Incarnation, unhex};
use super::node::Fabric;
use super::peer::Peer;
use super::settings::Options;

/// The longest entry of a directory, in bytes.
pub const MAX_ENTRY: usize = 512;
/// The longest name of an entry.
pub const MAX_NAME: usize = 128;
/// How often a directory is asked while an entry is missing.
const AGAIN: Duration = Duration::from_millis(50);
/// How long one try to connect to an entry's process may take: it may be one left behind.
const TRY: Duration = Duration::from_secs(2);

/// Where processes write down how to reach them.
pub trait Directory: Send + Sync {
    /// Writes an entry, over one of the same name.
    ///
    /// # Errors
    /// [`RendezvousError`].
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError>;

    /// Writes an entry that is there for as long as what is answered lives, and no longer than its
    /// process where the directory can tell.
    ///
    /// # Errors
    /// [`RendezvousError`].
    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError>;

    /// Reads an entry; `None` when there is none of this name.
    ///
    /// # Errors
    /// [`RendezvousError`].
    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError>;

    /// Why nobody of this name comes any more, where the directory knows that; who waits for one stops.
    fn missed(&self, _name: &str) -> Option<String> {
        None
    }
}

/// An entry that is there for as long as this lives.
#[must_use = "dropping it takes the entry away"]
pub struct Presence(Option<Box<dyn FnOnce() + Send>>);

impl Presence {
    /// An entry that this takes away.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presence")
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Why processes did not find each other.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The name has characters that not every directory can hold.
    #[error(
        "`{0}` is no name for a directory; use up to {MAX_NAME} letters, digits, `-`, `_` and `.`"
    )]
    BadName(String),
    /// The entry is too long, or not one of crowfly's.
    #[error("the entry `{name}` of {directory} is no entry of crowfly's: {why}")]
    BadEntry {
        /// Its name.
        name: String,
        /// Where it is.
        directory: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The directory could not be used.
    #[error("cannot use {directory}: {source}")]
    Directory {
        /// Which one.
        directory: String,
        /// What it or the kernel answered.
        source: super::error::SharedIo,
    },
    /// Someone did not come in time.
    #[error("`{name}` did not come to {directory} within {} s", after.as_secs_f64())]
    Late {
        /// Who.
        name: String,
        /// Where.
        directory: String,
        /// How long was waited.
        after: Duration,
    },
    /// Someone will not come.
    #[error("`{name}` does not come: {why}")]
    Missed {
        /// Who.
        name: String,
        /// Why.
        why: String,
    },
    /// Someone came and could not be connected to.
    #[error("`{name}` cannot be connected to: {source}")]
    Connect {
        /// Who.
        name: String,
        /// Why.
        source: Box<FabricError>,
    },
}

impl RendezvousError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadName(_) => "bad-entry-name",
            Self::BadEntry { .. } => "bad-entry",
            Self::Directory { .. } => "directory-failed",
            Self::Late { .. } => "peer-late",
            Self::Missed { .. } => "peer-missed",
            Self::Connect { .. } => "peer-unreachable",
        }
    }
}

/// One process's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which life of which process wrote it.
    pub incarnation: Incarnation,
    /// Where it listens, as `host:port`.
    pub address: String,
}

impl Entry {
    /// The text to write down.
    pub fn to_text(&self) -> String {
        format!("crowfly/1 {} {}", self.incarnation, self.address)
    }

    /// Reads a text; it may come from anyone.
    pub fn from_text(text: &str) -> Option<Self> {
        if text.len() > MAX_ENTRY {
            return None;
        }
        let mut words = text.split_whitespace();
        let (version, incarnation, address) = (words.next()?, words.next()?, words.next()?);
        if version != "crowfly/1" || words.next().is_some() {
            return None;
        }
        Some(Self {
            incarnation: Incarnation::from_bytes(unhex(incarnation)?),
            address: address.to_owned(),
        })
    }
}

/// Whether all directories can hold the name.
fn check_name(name: &str) -> Result<(), RendezvousError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let hidden = name.starts_with('.');
    if name.is_empty() || name.len() > MAX_NAME || hidden || !name.chars().all(fine) {
        return Err(RendezvousError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Writes down how to reach a fabric, for as long as the answer lives. With etcd the entry also
/// vanishes when the process dies.
///
/// # Errors
/// [`RendezvousError`].
pub fn attend(
    fabric: &Fabric,
    directory: &dyn Directory,
    name: &str,
) -> Result<Presence, RendezvousError> {
    directory.hold(name, &entry_of(fabric).to_text())
}

fn entry_of(fabric: &Fabric) -> Entry {
    Entry {
        incarnation: fabric.incarnation(),
        address: reachable(fabric.address()),
    }
}

/// An address for others: one that stands for all of this host's is told by the host's name.
pub(crate) fn reachable(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => {
            let host = rustix::system::uname();
            format!("{}:{}", host.nodename().to_string_lossy(), address.port())
        }
        false => address.to_string(),
    }
}

/// Looks an entry up; while there is none, it waits.
///
/// # Errors
/// [`RendezvousError::Late`] when none came in time, or what the directory answers.
pub fn lookup(
    directory: &dyn Directory,
    name: &str,
    time: Duration,
) -> Result<Entry, RendezvousError> {
    let until = Instant::now() + time;
    loop {
        if let Some(text) = directory.get(name)? {
            return Entry::from_text(&text).ok_or_else(|| bad_entry(name));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late(name, time));
        }
        std::thread::sleep(AGAIN.min(left));
    }
}

fn bad_entry(name: &str) -> RendezvousError {
    RendezvousError::BadEntry {
        name: name.to_owned(),
        directory: "the directory".into(),
        why: "it does not read `crowfly/1 INCARNATION HOST:PORT`",
    }
}

fn late(name: &str, after: Duration) -> RendezvousError {
    RendezvousError::Late {
        name: name.to_owned(),
        directory: "the directory".into(),
        after,
    }
}

/// Writes down how to reach a fabric, for good.
///
/// # Errors
/// [`RendezvousError`].
pub fn announce(
    fabric: &Fabric,
    directory: &dyn Directory,
    name: &str,
) -> Result<(), RendezvousError> {
    directory.put(name, &entry_of(fabric).to_text())
}

/// Whether someone of this name may still come.
///
/// # Errors
/// [`RendezvousError::Missed`].
pub(crate) fn still_expected(directory: &dyn Directory, name: &str) -> Result<(), RendezvousError> {
    match directory.missed(name) {
        None => Ok(()),
        Some(why) => Err(RendezvousError::Missed {
            name: name.to_owned(),
            why,
        }),
    }
}

/// Connects to whoever announced itself under this name. While nobody has, or the one who did is
/// gone, it waits for a successor.
///
/// # Errors
/// [`RendezvousError::Late`] or why connecting failed, the last reason or the one that says most; at once, where that lies with this
/// process or the directory knows that nobody comes.
pub fn meet(
    fabric: &Fabric,
    directory: &dyn Directory,
    name: &str,
    time: Duration,
) -> Result<Peer, RendezvousError> {
    let until = Instant::now() + time;
    let mut last: Option<FabricError> = None;
    let failed = |source: FabricError| RendezvousError::Connect {
        name: name.to_owned(),
        source: Box::new(source),
    };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(last.map_or_else(|| late(name, time), failed));
        }
        still_expected(directory, name)?;
        if let Some(text) = directory.get(name)? {
            let entry = Entry::from_text(&text).ok_or_else(|| bad_entry(name))?;
            match fabric.connect(&entry, Options::within(left.min(TRY))) {
                Ok(peer) => return Ok(peer),
                // Someone else has the address by now; its own entry will follow.
                Err(FabricError::Replaced { .. }) => {}
                Err(source) => {
                    let own = matches!(
                        source,
                        FabricError::Setup { .. } | FabricError::Memory(_) | FabricError::Closed
                    );
                    if own {
                        return Err(failed(source));
                    }
                    // Who came and was turned away says more than that nobody is there any more.
                    let gone = matches!(source, FabricError::Unreachable { .. });
                    if !gone || last.is_none() {
                        last = Some(source);
                    }
                }
            }
        }
        std::thread::sleep(AGAIN.min(left));
    }
}
