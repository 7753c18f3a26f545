//! Why the service could not do what was asked.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crowfly_route::obstacle::Obstacle;
use crowfly_route::units::significant;

use super::message::BadMessage;
use super::name::BadLocation;
use super::tls::TlsError;
use crate::error::TransferError;
use crate::fabric::FabricError;
use crate::memory::MemoryError;
use crate::objects::ObjectError;

/// Why the service could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Storage on this machine failed.
    #[error(transparent)]
    Storage(#[from] TransferError),
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The location cannot be read.
    #[error(transparent)]
    Location(#[from] BadLocation),
    /// Certificates, or the connection that they protect.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An object in a store could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The server answered that it could not, or would not.
    #[error("{server} refused: {message}")]
    Remote {
        /// The server.
        server: String,
        /// Its code, one of those in [`ServiceError::code`]'s list.
        code: &'static str,
        /// What it said.
        message: String,
    },
    /// The server is gone.
    #[error("{server} was lost: {why}")]
    Lost {
        /// The server.
        server: String,
        /// How it was noticed.
        why: String,
    },
    /// A message could not be read.
    #[error("{peer} broke the protocol of the service: {source}")]
    Message {
        /// Who sent it.
        peer: String,
        /// What was wrong.
        source: BadMessage,
    },
    /// A message came that was not to come now.
    #[error("{peer} broke the protocol of the service: {what}")]
    Protocol {
        /// Who sent it.
        peer: String,
        /// What was wrong.
        what: &'static str,
    },
    /// The server exposes nothing under the name.
    #[error("nothing is exposed under the name `{name}`")]
    NoSuchName {
        /// The name.
        name: String,
    },
    /// Nothing is there.
    #[error("there is no `{path}`")]
    NotFound {
        /// The path.
        path: String,
    },
    /// It may not be opened, or lies outside of what is exposed.
    #[error("`{path}` may not be opened: {why}")]
    Denied {
        /// The path.
        path: String,
        /// Why.
        why: &'static str,
    },
    /// Nothing may be written there.
    #[error("`{path}` may only be read")]
    ReadOnly {
        /// The path.
        path: String,
    },
    /// It is not what it would have to be.
    #[error("`{path}` is {found}, not {wanted}")]
    WrongKind {
        /// The path.
        path: String,
        /// What it is.
        found: &'static str,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Something else than what is to be made is there already.
    #[error("`{path}` is {found}, not {wanted}")]
    Occupied {
        /// The path.
        path: String,
        /// What it is.
        found: &'static str,
        /// What was to be made.
        wanted: &'static str,
    },
    /// Something else lies where the unfinished copy of a file would lie, or its journal.
    #[error("`{path}`, where `{of}` would lie while it is copied, is in the way: {why}")]
    InTheWay {
        /// What is in the way.
        path: String,
        /// The file that was to be made.
        of: String,
        /// What it is.
        why: &'static str,
    },
    /// A link is where the file would be, and is neither replaced nor written through.
    #[error("`{path}` is a link: it is neither replaced nor written through")]
    Link {
        /// The path.
        path: String,
    },
    /// A folder lies in itself, by a link that was followed.
    #[error("`{path}` leads back to a folder that it lies in")]
    Cycle {
        /// The path.
        path: String,
    },
    /// Someone else is writing the same file.
    #[error("`{path}` is being written by someone else")]
    Busy {
        /// The path.
        path: String,
    },
    /// A file operation failed.
    #[error("cannot {what} `{path}`: {source}")]
    File {
        /// What was done.
        what: &'static str,
        /// To what.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What was begun is a copy of something else than what is there now.
    #[error("`{path}` was begun from another version of its source: {why}")]
    SourceChanged {
        /// The file that was begun.
        path: String,
        /// How it shows.
        why: &'static str,
    },
    /// The bytes that arrived are not those that left.
    #[error(
        "`{path}`: the bytes at {offset} differ from those that left (expected {expected:016x}, found {found:016x})"
    )]
    Differs {
        /// What was copied.
        path: String,
        /// Where in it, in bytes.
        offset: u64,
        /// Checksum of what left.
        expected: u64,
        /// Checksum of what arrived.
        found: u64,
    },
    /// More than a limit allows.
    #[error("too many {what}: {limit} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// What is copied does not fit what it is copied into.
    #[error("{bytes} bytes do not fit into `{name}`, which has {room}")]
    DoesNotFit {
        /// What was to be copied, in bytes.
        bytes: u64,
        /// The region.
        name: String,
        /// Its length.
        room: u64,
    },
    /// It takes longer than it may.
    #[error("{what} was not done within {} s", significant(after.as_secs_f64()))]
    Deadline {
        /// What.
        what: &'static str,
        /// The time it had.
        after: Duration,
    },
    /// Whoever could connect from elsewhere would not be asked who they are.
    #[error(
        "{address} can be reached from other machines, and nothing would be asked of those who connect"
    )]
    Unauthenticated {
        /// Where was to be listened.
        address: SocketAddr,
    },
    /// An address could not be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The server was told to stop.
    #[error("the server is stopping")]
    Stopping,
    /// The same name twice.
    #[error("two things would be exposed under the name `{name}`")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A copy between these two is not made.
    #[error("cannot copy {from} to {to}: {why}")]
    NotCopied {
        /// From.
        from: String,
        /// To.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// A thread could not be had, or died.
    #[error("cannot set up the service: {what}: {source}")]
    Setup {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What is done to a folder of a source, and to nothing else.
pub(crate) const LIST: &str = "list";

/// The codes that a server may answer with; another one reads `server-error`.
const CODES: &[&str] = &[
    "no-such-name",
    "not-found",
    "access-denied",
    "read-only",
    "not-a-file",
    "destination-is-link",
    "destination-occupied",
    "in-the-way",
    "file-busy",
    "file-failed",
    "source-changed",
    "data-differs",
    "too-many",
    "does-not-fit",
    "deadline-exceeded",
    "server-stopping",
    "protocol-violation",
    "bad-location",
    "route-refused",
    "read-failed",
    "write-failed",
    "open-failed",
    "file-shrank",
    "file-changed",
    "no-space",
    "file-too-large",
    "no-progress",
    "no-host-memory",
    "no-gpu-memory",
    "gpu-call-failed",
    "peer-lost",
    "out-of-bounds",
    "no-such-region",
    "region-deregistered",
    "stale-descriptor",
    "queue-full",
    "cancelled",
    "setup-failed",
];

impl ServiceError {
    /// A stable code for JSON output and exit status.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Fabric(error) => error.code(),
            Self::Storage(error) => error.code(),
            Self::Memory(error) => error.code(),
            Self::Location(_) => "bad-location",
            Self::Tls(error) => error.code(),
            Self::Object(error) => error.code(),
            Self::Remote { code, .. } => code,
            Self::Lost { .. } => "peer-lost",
            Self::Message { .. } | Self::Protocol { .. } => "protocol-violation",
            Self::NoSuchName { .. } => "no-such-name",
            Self::NotFound { .. } => "not-found",
            Self::Denied { .. } => "access-denied",
            Self::ReadOnly { .. } => "read-only",
            Self::WrongKind { .. } => "not-a-file",
            Self::Occupied { .. } => "destination-occupied",
            Self::InTheWay { .. } => "in-the-way",
            Self::Link { .. } => "destination-is-link",
            Self::Cycle { .. } => "link-cycle",
            Self::Busy { .. } => "file-busy",
            Self::File { source, .. } => match source.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => "no-space",
                Some(libc::EFBIG) => "file-too-large",
                _ => "file-failed",
            },
            Self::SourceChanged { .. } => "source-changed",
            Self::Differs { .. } => "data-differs",
            Self::TooMany { .. } => "too-many",
            Self::DoesNotFit { .. } => "does-not-fit",
            Self::Deadline { .. } => "deadline-exceeded",
            Self::Unauthenticated { .. } => "not-authenticated-bind",
            Self::Listen { .. } => "listen-failed",
            Self::Stopping => "server-stopping",
            Self::NameTaken { .. } => "name-taken",
            Self::NotCopied { .. } => "not-copied",
            Self::Setup { .. } => "setup-failed",
        }
    }

    /// The known code that a server's answer stands for.
    pub(crate) fn known(code: &str) -> &'static str {
        let mut codes = CODES.iter();
        codes
            .find(|known| **known == code)
            .copied()
            .unwrap_or("server-error")
    }

    /// Whether it was met where the bytes come from, and not where they go.
    pub fn is_of_the_source(&self) -> bool {
        matches!(self, Self::File { what, .. } if *what == LIST)
    }

    /// What stood in the way of better routes, where the error knows.
    pub fn obstacles(&self) -> &[Obstacle] {
        match self {
            Self::Fabric(error) => error.obstacles(),
            Self::Storage(TransferError::Refused { obstacles, .. }) => obstacles,
            _ => &[],
        }
    }

    pub(crate) fn file(
        what: &'static str,
        path: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::File {
            what,
            path: path.into(),
            source: source.into(),
        }
    }
}
