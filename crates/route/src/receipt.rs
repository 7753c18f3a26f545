//! What a transfer really did. Bytes are counted where they move, never inferred.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

use crate::hop::{Capacity, Class, Route};
use crate::obstacle::Obstacle;
use crate::place::Place;
use crate::policy::Policy;
use crate::units::{Bytes, BytesPerSecond};

/// The version of the receipt's JSON form.
pub const RECEIPT_SCHEMA: &str = "crowfly.receipt/1";

/// An engine path of the mover: one way of moving bytes, with one code path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Path {
    /// The drive's DMA straight into peer memory of another PCIe device.
    Peer,
    /// O_DIRECT by io_uring into the caller's or the engine's aligned memory.
    Direct,
    /// Copied out of (or into) the page cache by the kernel.
    Cached,
    /// The page cache's own pages, mapped: nothing is copied.
    Mapped,
    /// Portable positioned reads by threads, where io_uring is forbidden; O_DIRECT when possible.
    Threads,
    /// Between a drive and a GPU's memory by the maker's storage library, cuFile.
    #[serde(rename = "cufile")]
    CuFile,
    /// The same by AMD's, hipFile.
    #[serde(rename = "hipfile")]
    HipFile,
    /// Through pinned buffers in host RAM: O_DIRECT on one side, a GPU's copy engine on the other.
    Staged,
    /// By a GPU's copy engine, between its memory and another GPU's or pinned host memory.
    GpuCopy,
    /// RDMA by a NIC that was told to through libibverbs.
    Verbs,
    /// One copy by a CPU core into (or out of) memory that the peer on the same host shares.
    Shm,
    /// One copy by the kernel between the memories of two processes on the same host
    /// (cross-memory attach), where the peer's cannot be mapped.
    Cma,
    /// TCP sockets.
    Tcp,
    /// By an object store within itself: none of the bytes passed this process.
    Store,
}

impl Path {
    /// The paths between storage and memory, straightest first.
    pub const STORAGE: [Self; 5] = [
        Self::Peer,
        Self::Direct,
        Self::Threads,
        Self::Mapped,
        Self::Cached,
    ];

    /// The paths between storage and a GPU's memory, straightest first.
    pub const GPU: [Self; 4] = [Self::CuFile, Self::HipFile, Self::Staged, Self::Cached];

    /// The paths between memories of two processes, straightest first.
    pub const FABRIC: [Self; 4] = [Self::Verbs, Self::Shm, Self::Cma, Self::Tcp];

    /// The word used in flags, tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Direct => "direct",
            Self::Cached => "cached",
            Self::Mapped => "mapped",
            Self::Threads => "threads",
            Self::CuFile => "cufile",
            Self::HipFile => "hipfile",
            Self::Staged => "staged",
            Self::GpuCopy => "gpu-copy",
            Self::Verbs => "verbs",
            Self::Shm => "shm",
            Self::Cma => "cma",
            Self::Tcp => "tcp",
            Self::Store => "store",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a path; choose peer, direct, threads, mapped or cached for storage, cufile, hipfile, staged or cached for a GPU, \
     verbs, shm, cma or tcp for the fabric"
)]
pub struct UnknownPath(pub String);

impl std::str::FromStr for Path {
    type Err = UnknownPath;

    fn from_str(text: &str) -> Result<Self, UnknownPath> {
        let storage = Self::STORAGE.into_iter().chain(Self::GPU);
        let mut all = storage.chain(Self::FABRIC);
        let named = all.find(|path| path.as_str() == text);
        named.ok_or_else(|| UnknownPath(text.to_owned()))
    }
}

/// The bytes that went one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// The engine path that moved them.
    pub path: Path,
    /// What that path amounts to for the data.
    pub class: Class,
    /// Bytes of the request that it delivered.
    pub bytes: Bytes,
    /// Why these bytes went this way and not a better one; `None` on the best path.
    pub because: Option<String>,
}

/// What [`Share::because`] says of bytes that a drive read into the page cache's own pages, which became the
/// destination.
pub const FILLED_BY_DRIVE: &str =
    "pages of the page cache need not be zeroed before the drive fills them";

impl Share {
    /// Whether the bytes may have lain in host memory before, so that they tell nothing of a drive.
    pub fn may_have_been_cached(&self) -> bool {
        matches!(self.path, Path::Cached | Path::Mapped)
            && self.because.as_deref() != Some(FILLED_BY_DRIVE)
    }
}

/// CPU time of the threads that did the work, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// In user space.
    pub user: f64,
    /// In the kernel on the threads' behalf.
    pub system: f64,
}

impl CpuSeconds {
    /// User plus system.
    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

impl AddAssign for CpuSeconds {
    fn add_assign(&mut self, more: Self) {
        self.user += more.user;
        self.system += more.system;
    }
}

impl Add for CpuSeconds {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        self += more;
        self
    }
}

/// Whether a device that uses the destination sees the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "why")]
pub enum Visibility {
    /// Nothing more to do; why.
    NotNeeded(String),
    /// A flush was done; how.
    Flushed(String),
    /// Nobody can say; why.
    Unknown(String),
}

/// What verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Verification {
    /// Nobody asked.
    NotAsked,
    /// The bytes at the destination have this checksum; there was nothing to compare it with.
    Computed {
        /// The algorithm, `xxh3-64`.
        algorithm: String,
        /// In hexadecimal.
        checksum: String,
    },
    /// The bytes at the destination equal a second, independent reading of the source.
    Matched {
        /// The algorithm.
        algorithm: String,
        /// In hexadecimal.
        checksum: String,
    },
    /// The bytes have, where they arrived, the checksum that was computed where they left.
    Agreed {
        /// The algorithm.
        algorithm: String,
        /// In hexadecimal.
        checksum: String,
    },
    /// They differ: the data must not be used.
    Differs {
        /// The algorithm.
        algorithm: String,
        /// Checksum expected, in hexadecimal.
        expected: String,
        /// Checksum found, in hexadecimal.
        found: String,
    },
}

/// What a transfer did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// [`RECEIPT_SCHEMA`].
    pub schema: String,
    /// Where the bytes came from.
    pub from: Place,
    /// Where they went.
    pub to: Place,
    /// What was asked.
    pub policy: Policy,
    /// The route that carried the largest share.
    pub route: Route,
    /// Bytes asked for.
    pub requested: Bytes,
    /// Bytes by path; they sum to `requested` (see [`Receipt::is_whole`]).
    pub shares: Vec<Share>,
    /// Bytes that passed an intermediate buffer in host RAM, counted where they moved.
    pub bounced: Bytes,
    /// Bytes that devices moved beyond those asked for (alignment at the edges).
    pub overread: Bytes,
    /// Requests submitted again after a short or interrupted answer.
    pub retries: u64,
    /// Wall time in seconds, from the first submission to the last completion.
    pub wall_seconds: f64,
    /// CPU time of the threads that did the work.
    pub cpu: CpuSeconds,
    /// The ceiling the share below is measured against, when one is known.
    pub ceiling: Option<Capacity>,
    /// Obstacles of each better route that was not taken.
    pub obstacles: Vec<Obstacle>,
    /// Whether the data is visible to the device that will use it.
    pub visibility: Visibility,
    /// What verification found.
    pub verification: Verification,
}

impl Receipt {
    /// Whether the bytes by path sum to exactly the bytes asked for.
    pub fn is_whole(&self) -> bool {
        self.shares.iter().map(|s| s.bytes).sum::<Bytes>() == self.requested
    }

    /// The rate reached; `None` when no time passed.
    pub fn rate(&self) -> Option<BytesPerSecond> {
        self.requested.per(self.wall_seconds)
    }

    /// The rate reached as a fraction of the ceiling.
    pub fn share_of_ceiling(&self) -> Option<f64> {
        let ceiling = self.ceiling.as_ref()?.rate.0;
        (ceiling > 0.0).then_some(self.rate()?.0 / ceiling)
    }

    /// CPU seconds per decimal gigabyte; `None` for an empty transfer.
    pub fn cpu_per_gb(&self) -> Option<f64> {
        (self.requested.0 > 0).then(|| self.cpu.total() / (self.requested.0 as f64 / 1e9))
    }
}
