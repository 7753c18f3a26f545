//! Why a transfer failed.

use std::io;

use crowfly_machine::gpu::GpuError;
use crowfly_machine::gpu_storage::StorageError;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

use crate::engine::MIN_BUDGET;
use crate::memory::MemoryError;

/// What a file is whose length is no promise, such as those of /proc.
pub(crate) const NO_SIZE: &str = "a file whose size is not that of what it says";

/// Why a transfer failed. Nothing it had written into memory is passed off as loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The policy does not allow any route that is open.
    #[error("no route from {from} to {to} satisfies the policy `{policy}`")]
    Refused {
        /// Where the bytes are.
        from: Box<Place>,
        /// Where they should go.
        to: Box<Place>,
        /// The policy asked for.
        policy: Policy,
        /// What stands in the way of each direct route.
        obstacles: Vec<Obstacle>,
    },
    /// The engine path asked for cannot serve the destination.
    #[error("path `{path}` cannot move a file into {to}")]
    PathCannotReach {
        /// The path asked for.
        path: Path,
        /// Where the bytes should go.
        to: String,
        /// The paths that can serve it.
        able: Vec<Path>,
    },
    /// Policy and engine path contradict each other.
    #[error("policy `{policy}` rules out path `{path}`")]
    PathForbidden {
        /// The policy asked for.
        policy: Policy,
        /// The path asked for.
        path: Path,
        /// The paths that policy and destination allow.
        able: Vec<Path>,
    },
    /// A transfer that keeps nothing cannot do with so little memory.
    #[error("a transfer in transit needs {} bytes of memory at least, not {} bytes", MIN_BUDGET.0, budget.0)]
    BudgetTooSmall {
        /// What it was to do with.
        budget: Bytes,
    },
    /// The source is neither a regular file nor a block device.
    #[error("{path} is {found}, not a file or block device")]
    NotAFile {
        /// Its path.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// The source could not be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Its path.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A read failed.
    #[error("cannot read {path} at {offset} ({bytes} bytes): {source}")]
    Read {
        /// The file's path.
        path: String,
        /// Offset of the request.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The device's or file system's answer.
        source: io::Error,
    },
    /// A request was answered short or interrupted too often.
    #[error("{path} at {offset} made no progress after {attempts} attempts")]
    Stuck {
        /// The file's path.
        path: String,
        /// Offset of the request.
        offset: u64,
        /// How often it was submitted.
        attempts: u32,
    },
    /// The range asked for lies outside of the file.
    #[error("{path} has {size} bytes; {start}..{end} was asked for")]
    OutOfRange {
        /// The file's path.
        path: String,
        /// Its size.
        size: u64,
        /// First byte asked for.
        start: u64,
        /// End of what was asked for.
        end: u64,
    },
    /// The file became shorter while it was read.
    #[error("{path} became shorter while it was read: it ended before {offset}")]
    Shrank {
        /// The file's path.
        path: String,
        /// The offset that no longer exists.
        offset: u64,
    },
    /// The file was changed while it was read: the bytes may be torn.
    #[error("{path} was changed while it was read ({what})")]
    Changed {
        /// The file's path.
        path: String,
        /// What changed: `size 10 -> 20`, `modification time`.
        what: String,
    },
    /// Memory that the transfer moves bytes to or from vanished: the file whose pages it was made
    /// of was cut, or the device that published it is gone.
    #[error(
        "the memory behind {path} at {offset} is gone: the file it follows was cut, or its device was removed"
    )]
    MemoryGone {
        /// The path of the file on the other side of the transfer.
        path: String,
        /// Offset in that file of the bytes that could not be moved.
        offset: u64,
    },
    /// The destination file could not be written.
    #[error("cannot write {path} at {offset}: {source}")]
    Write {
        /// The file's path.
        path: String,
        /// Offset of the request.
        offset: u64,
        /// The file system's answer.
        source: io::Error,
    },
    /// The file system is full or the quota used up; nothing was left behind.
    #[error("no space for {bytes} bytes at {path}: {source}")]
    NoSpace {
        /// The file's path.
        path: String,
        /// How many bytes were to be written.
        bytes: u64,
        /// The file system's answer.
        source: io::Error,
    },
    /// This process may not write files of that size; nothing was written.
    #[error(
        "{path} would have {bytes} bytes; this process may write files of {most} at most (`ulimit -f`)"
    )]
    FileTooLarge {
        /// The file's path.
        path: String,
        /// How many bytes were to be written.
        bytes: u64,
        /// The limit, in bytes.
        most: u64,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The ring or a thread could not be set up.
    #[error("cannot set up the transfer: {what}: {source}")]
    Setup {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A GPU failed.
    #[error("cannot move {path} at {offset} to or from the GPU: {source}")]
    Gpu {
        /// The path of the file on the other side, or the place of the other memory.
        path: String,
        /// Offset of the bytes that could not be moved.
        offset: u64,
        /// The runtime's answer.
        source: GpuError,
    },
    /// The storage library of a GPU's maker refused, and no other way was allowed.
    #[error("cannot move {path} at {offset} by the GPU's storage library: {source}")]
    Storage {
        /// The file's path.
        path: String,
        /// Offset of the bytes that could not be moved.
        offset: u64,
        /// The library's answer.
        source: StorageError,
    },
    /// A worker thread died; its memory was kept until the devices were done with it.
    #[error("a worker thread of the transfer died")]
    WorkerDied,
    /// The bytes at the destination are not those of the source.
    #[error(
        "{path}: the bytes at the destination differ from the source (expected {expected}, found {found})"
    )]
    Differs {
        /// The file's path.
        path: String,
        /// Checksum of the source.
        expected: String,
        /// Checksum of the destination.
        found: String,
    },
    /// The caller cancelled.
    #[error("the transfer was cancelled")]
    Cancelled,
}

impl TransferError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "route-refused",
            Self::PathCannotReach { .. } => "path-cannot-reach",
            Self::PathForbidden { .. } => "path-forbidden",
            Self::BudgetTooSmall { .. } => "budget-too-small",
            Self::NotAFile { .. } => "not-a-file",
            Self::Open { .. } => "open-failed",
            Self::Read { .. } => "read-failed",
            Self::Stuck { .. } => "no-progress",
            Self::OutOfRange { .. } => "out-of-range",
            Self::Shrank { .. } => "file-shrank",
            Self::Changed { .. } => "file-changed",
            Self::MemoryGone { .. } => "memory-gone",
            Self::Write { .. } => "write-failed",
            Self::NoSpace { .. } => "no-space",
            Self::FileTooLarge { .. } => "file-too-large",
            Self::Memory(error) => error.code(),
            Self::Setup { .. } => "setup-failed",
            Self::Gpu { source, .. } => source.code(),
            Self::Storage { source, .. } => source.code(),
            Self::WorkerDied => "worker-died",
            Self::Differs { .. } => "data-differs",
            Self::Cancelled => "cancelled",
        }
    }

    /// What the caller can do about it.
    pub fn hint(&self) -> Option<String> {
        let paths = |able: &[Path]| {
            let names: Vec<&str> = able.iter().map(|path| path.as_str()).collect();
            names.join(", ")
        };
        match self {
            Self::Refused {
                policy: Policy::Require,
                ..
            } => Some("`--policy prefer` takes the best way there is and names the detour".into()),
            Self::Refused {
                policy: Policy::Socket,
                ..
            } => Some(
                "a file of this machine is read without a socket; choose require, prefer or staged"
                    .into(),
            ),
            Self::PathCannotReach { able, .. } => Some(format!("paths that can: {}", paths(able))),
            Self::PathForbidden { able, .. } if !able.is_empty() => {
                Some(format!("paths that it allows here: {}", paths(able)))
            }
            Self::Memory(MemoryError::NoRoom { .. }) => Some(
                "take a part (`--tensors`, `--shard`), let the bytes pass through (`--transit`), or \
                 map the file (`--path mapped`)"
                    .into(),
            ),
            Self::NotAFile { found: NO_SIZE, .. } => {
                Some("copy what it says into a file first, with `cat`".into())
            }
            _ => None,
        }
    }
}
