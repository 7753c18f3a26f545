//! Why something on the fabric failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;

use super::descriptor::BadDescriptor;
use super::identity::Incarnation;
use crate::memory::MemoryError;

/// Why something on the fabric failed. Memory stays valid whatever happens; after a failed or
/// cancelled write the remote range holds any mixture of old and new bytes.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The policy allows no rail that both ends have.
    #[error("no rail to {peer} satisfies the policy `{policy}`")]
    Refused {
        /// The peer, as it was addressed.
        peer: String,
        /// The policy asked for.
        policy: Policy,
        /// What stands in the way of each better rail.
        obstacles: Vec<Obstacle>,
    },
    /// A NIC was named that does not exist.
    #[error("there is no NIC `{name}` (there are: {})", known.join(", "))]
    NoSuchNic {
        /// The name given.
        name: String,
        /// The NICs there are.
        known: Vec<String>,
        /// The nearest of them.
        suggestion: Option<String>,
    },
    /// A NIC was asked for that nothing can go by.
    #[error("the NIC `{name}` cannot be used: {why}")]
    NicNotUsable {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The peer could not be reached.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// The kernel's answer.
        source: SharedIo,
    },
    /// The system knows no address of the peer's host.
    #[error("cannot reach {address}: {source}")]
    NoSuchHost {
        /// What was looked up.
        address: String,
        /// The system's answer.
        source: SharedIo,
    },
    /// The other end does not know the shared key.
    #[error("{address} does not know this fabric's key")]
    NotAuthenticated {
        /// The other end.
        address: String,
    },
    /// The other end speaks another version.
    #[error("{address} speaks version {theirs} of the wire protocol; this end speaks {ours}")]
    WrongVersion {
        /// The other end.
        address: String,
        /// Its version.
        theirs: u16,
        /// This end's version.
        ours: u16,
    },
    /// The other end broke the protocol.
    #[error("{address} broke the wire protocol: {what}")]
    Protocol {
        /// The other end.
        address: String,
        /// What was wrong with its message.
        what: &'static str,
    },
    /// The peer went away: its process ended, its connection broke or it fell silent.
    #[error("peer {peer} was lost: {why}")]
    PeerLost {
        /// Which peer.
        peer: Incarnation,
        /// How it was noticed.
        why: String,
    },
    /// The operation was not done in time.
    #[error("{what} was not done within {}", humane(*after))]
    Deadline {
        /// Which operation.
        what: &'static str,
        /// The time it was given.
        after: Duration,
    },
    /// The caller cancelled.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// More was started than the queue holds.
    #[error("the queue of {what} is full ({limit})")]
    QueueFull {
        /// Which queue.
        what: &'static str,
        /// How many it holds.
        limit: usize,
    },
    /// The range lies outside of the region.
    #[error("{start}..{end} lies outside of the region of {len} bytes")]
    OutOfBounds {
        /// First byte asked for.
        start: u64,
        /// End of what was asked for.
        end: u64,
        /// The region's length.
        len: u64,
    },
    /// The peer has no region with the key that was sent.
    #[error("peer {peer} has no region with this key: it was never registered or is gone")]
    NoSuchRegion {
        /// The peer.
        peer: Incarnation,
    },
    /// The region does not allow what was asked.
    #[error("the region does not allow {what}")]
    NotAllowed {
        /// `remote reads` or `remote writes`.
        what: &'static str,
    },
    /// The region was deregistered while it was in use here.
    #[error("the local region was deregistered")]
    Deregistered,
    /// The descriptor belongs to another process than the one that is connected: the peer was
    /// started anew since.
    #[error("the descriptor is of {described}, but the peer is {connected}: it was started anew")]
    StaleDescriptor {
        /// Who wrote the descriptor.
        described: Incarnation,
        /// Who is connected.
        connected: Incarnation,
    },
    /// The process that is meant is gone, and another one has its address.
    #[error(
        "{address} is not the process any more that wrote its name down: it was {announced}, and now it is {found}"
    )]
    Replaced {
        /// Where it was to be.
        address: String,
        /// Who wrote it down.
        announced: Incarnation,
        /// Who answers.
        found: Incarnation,
    },
    /// The descriptor could not be read.
    #[error(transparent)]
    Descriptor(#[from] BadDescriptor),
    /// The bytes at the destination are not those of the source: they must not be used.
    #[error("the data has the {algorithm} checksum {found} where {expected} was sent")]
    Differs {
        /// The checksum's name.
        algorithm: String,
        /// That of the source, in hexadecimal.
        expected: String,
        /// That of the destination, in hexadecimal.
        found: String,
    },
    /// The two sides of a transfer differ in length.
    #[error("{from} bytes do not fit a range of {to} bytes")]
    LengthMismatch {
        /// Bytes of the source.
        from: u64,
        /// Bytes of the destination.
        to: u64,
    },
    /// A message is longer than a message may be.
    #[error("a message of {bytes} bytes is too long ({limit} at most); write it into a region")]
    MessageTooLong {
        /// Its length.
        bytes: usize,
        /// The most there can be.
        limit: usize,
    },
    /// No NIC that moves bytes directly could register the memory, and the policy asks for one.
    #[error("no NIC that moves bytes directly could register the memory")]
    Registration {
        /// What the probe met.
        obstacles: Vec<Obstacle>,
    },
    /// Someone still uses the region.
    #[error("the region is still {by}")]
    StillInUse {
        /// By what.
        by: &'static str,
    },
    /// A peer that mapped the region did not let go of it.
    #[error("peer {peer} still has the region mapped; its memory cannot be handed back")]
    StillMapped {
        /// The peer.
        peer: Incarnation,
    },
    /// A GPU failed while bytes of its memory were copied.
    #[error("{gpu} failed while its memory was copied: {why}")]
    GpuFailed {
        /// Which one.
        gpu: String,
        /// What it answered.
        why: String,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(std::sync::Arc<MemoryError>),
    /// Something of the operating system could not be set up.
    #[error("cannot set up the fabric: {what}: {source}")]
    Setup {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        source: SharedIo,
    },
    /// The address to listen on could not be taken.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: SharedIo,
    },
    /// Peers may be waiting to connect, and this process has nothing left to let them in with.
    #[error("cannot take connections: {source}")]
    CannotAccept {
        /// The kernel's answer.
        source: SharedIo,
    },
    /// The fabric was shut down.
    #[error("the fabric was shut down")]
    Closed,
}

/// What was not done in time ([`FabricError::Deadline`]) where nobody answered.
pub const CONNECTION: &str = "the connection";

/// An I/O error that several transfers can report.
pub type SharedIo = std::sync::Arc<io::Error>;

/// Why a peer's memory cannot be had as memory of this process.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotMapped {
    /// Nothing between the two processes shares memory.
    #[error("it shares no memory with this process")]
    Apart,
    /// One of the two could not set up what both would share; what it says of that.
    #[error("it shares none with this process: {0}")]
    Barred(String),
    /// It was asked for, and the peer does not give it.
    #[error("it was not given")]
    Refused,
    /// The system does not map it.
    #[error("{0}")]
    Failed(#[source] SharedIo),
    /// The connection ended meanwhile.
    #[error("its connection ended")]
    Parted,
    /// It did not come in time.
    #[error("it did not come in time")]
    Late,
}

fn humane(duration: Duration) -> String {
    format!(
        "{} s",
        crowfly_route::units::significant(duration.as_secs_f64())
    )
}

impl From<MemoryError> for FabricError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(std::sync::Arc::new(error))
    }
}

impl FabricError {
    pub(crate) fn setup(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Setup {
            what,
            source: std::sync::Arc::new(source.into()),
        }
    }

    /// The system's answer, where it is why something could not be set up or reached.
    pub(crate) fn answer(&self) -> Option<&SharedIo> {
        match self {
            Self::Setup { source, .. } | Self::Unreachable { source, .. } => {
                source.raw_os_error().map(|_| source)
            }
            _ => None,
        }
    }

    /// A stable code for JSON output and exit status.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "route-refused",
            Self::NoSuchNic { .. } => "no-such-nic",
            Self::NicNotUsable { .. } => "nic-not-usable",
            Self::Unreachable { .. } => "peer-unreachable",
            Self::NoSuchHost { .. } => "no-such-host",
            Self::NotAuthenticated { .. } => "not-authenticated",
            Self::WrongVersion { .. } => "wrong-version",
            Self::Protocol { .. } => "protocol-violation",
            Self::PeerLost { .. } => "peer-lost",
            Self::Deadline { .. } => "deadline-exceeded",
            Self::Cancelled => "cancelled",
            Self::QueueFull { .. } => "queue-full",
            Self::OutOfBounds { .. } => "out-of-bounds",
            Self::NoSuchRegion { .. } => "no-such-region",
            Self::NotAllowed { .. } => "access-denied",
            Self::Deregistered => "region-deregistered",
            Self::StaleDescriptor { .. } => "stale-descriptor",
            Self::Replaced { .. } => "peer-replaced",
            Self::Descriptor(error) => error.code(),
            Self::Differs { .. } => "data-differs",
            Self::LengthMismatch { .. } => "length-mismatch",
            Self::MessageTooLong { .. } => "message-too-long",
            Self::Registration { .. } => "registration-refused",
            Self::StillInUse { .. } => "region-in-use",
            Self::StillMapped { .. } => "region-still-mapped",
            Self::GpuFailed { .. } => "gpu-call-failed",
            Self::Memory(error) => error.code(),
            Self::Setup { .. } => "setup-failed",
            Self::Listen { .. } => "listen-failed",
            Self::CannotAccept { .. } => "cannot-accept",
            Self::Closed => "fabric-closed",
        }
    }

    /// What stood in the way of better rails, where the error knows.
    pub fn obstacles(&self) -> &[Obstacle] {
        match self {
            Self::Refused { obstacles, .. } | Self::Registration { obstacles, .. } => obstacles,
            _ => &[],
        }
    }
}
