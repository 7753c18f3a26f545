//! Why a distributed checkpoint is refused.

use std::io;
use std::path::PathBuf;

use super::pickle::PickleError;
use crate::checkpoint::Quoted;
use crate::ckpt::manifest::ManifestError;

/// Why a distributed checkpoint of PyTorch is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DcpError {
    #[error("cannot read {path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("its .metadata is refused: {0}")]
    Pickle(#[from] PickleError),
    #[error("its .metadata makes no sense: {what}")]
    Metadata { what: String },
    #[error("tensor {tensor} has the type {dtype}, which has no counterpart in safetensors")]
    Dtype { tensor: Quoted, dtype: Quoted },
    #[error("{item} is said to be in {name}, which is no plain file name")]
    FileName { item: Quoted, name: Quoted },
    #[error("the file {path:?} is missing; it holds {item}")]
    MissingFile { path: PathBuf, item: Quoted },
    #[error(
        "{item} is said to be the {bytes} bytes at {offset} of {path:?}, which has {file_bytes}"
    )]
    PastEnd {
        path: PathBuf,
        item: Quoted,
        offset: u64,
        bytes: u64,
        file_bytes: u64,
    },
    #[error("{item}, at {offset} of {path:?}, is not what .metadata says: {what}")]
    Item {
        path: PathBuf,
        item: Quoted,
        offset: u64,
        what: String,
    },
    #[error("{0}")]
    Cover(Box<ManifestError>),
}

impl DcpError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io-failed",
            Self::Pickle(error) => error.code(),
            Self::Metadata { .. } => "dcp-metadata",
            Self::Dtype { .. } => "dcp-dtype",
            Self::FileName { .. } => "dcp-file-name",
            Self::MissingFile { .. } => "missing-file",
            Self::PastEnd { .. } => "dcp-past-end",
            Self::Item { .. } => "dcp-item",
            Self::Cover(error) => error.code(),
        }
    }
}
