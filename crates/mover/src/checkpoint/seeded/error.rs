//! Why a seeded checkpoint could not be planned or written.

use std::io;
use std::path::PathBuf;

use crowfly_route::units::Bytes;

use super::{MAX_SEEDED, MIN_SEEDED};
use crate::checkpoint::header::HeaderError;

/// Why there is no such seeded checkpoint.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SeededError {
    #[error("a seeded checkpoint takes {} to {} bytes, not {}", MIN_SEEDED.0, MAX_SEEDED.0, bytes.0)]
    Size { bytes: Bytes },
    #[error("a checkpoint of this size is cut into 1 to {most} files, not {shards}")]
    Shards { shards: u32, most: u32 },
    #[error("the header of a file would be refused")]
    Header(#[source] HeaderError),
}

impl SeededError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Size { .. } => "seeded-size",
            Self::Shards { .. } => "seeded-shards",
            Self::Header(error) => error.code(),
        }
    }
}

/// Why a seeded checkpoint was not written. Whatever was there of it has been removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WriteError {
    #[error("{folder:?} is not empty")]
    NotEmpty { folder: PathBuf },
    #[error("no space for {} bytes in {folder:?}, which has {} free", needed.0, available.0)]
    NoSpace {
        folder: PathBuf,
        /// Bytes of the whole checkpoint.
        needed: Bytes,
        /// Bytes free when it was noticed.
        available: Bytes,
    },
    #[error("the quota of {folder:?} does not allow {} bytes", needed.0)]
    OverQuota { folder: PathBuf, needed: Bytes },
    #[error("{path:?} would have {} bytes; this process may write files of {most} at most (`ulimit -f`)", bytes.0, most = most.0)]
    FileTooLarge {
        path: PathBuf,
        /// Bytes of the file.
        bytes: Bytes,
        /// The limit.
        most: Bytes,
    },
    #[error("stopped after {} of {} bytes", written.0, total.0)]
    Stopped { written: Bytes, total: Bytes },
    #[error("cannot {action} {path:?}")]
    Io {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },
}

impl WriteError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotEmpty { .. } => "folder-not-empty",
            Self::NoSpace { .. } => "no-space",
            Self::OverQuota { .. } => "over-quota",
            Self::FileTooLarge { .. } => "file-too-large",
            Self::Stopped { .. } => "stopped",
            Self::Io { .. } => "write-failed",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotEmpty { .. } => Some("name a new folder; nothing is ever overwritten"),
            Self::NoSpace { .. } | Self::OverQuota { .. } => {
                Some("choose a smaller size or a folder on another file system")
            }
            Self::FileTooLarge { .. } => {
                Some("raise the limit (ulimit -f unlimited), or cut it into more files")
            }
            Self::Stopped { .. } | Self::Io { .. } => None,
        }
    }
}
