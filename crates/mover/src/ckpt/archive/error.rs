//! Why a checkpoint could not be opened or restored.

use std::path::PathBuf;

use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::{CheckpointError, Quoted};
use crate::ckpt::dcp::DcpError;
use crate::ckpt::extent::Extent;
use crate::ckpt::store::StepError;
use crate::error::TransferError;
use crate::memory::MemoryError;

/// Why a checkpoint could not be opened or restored. No tensor is given out then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ArchiveError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the distributed checkpoint is refused: {0}")]
    Distributed(#[from] DcpError),
    #[error("{path:?} is no checkpoint: neither a safetensors file nor a folder of one")]
    NotACheckpoint { path: PathBuf },
    #[error("in {file:?}, tensors {first} and {second} share bytes")]
    SharedBytes {
        file: PathBuf,
        first: Quoted,
        second: Quoted,
    },
    #[error("{path:?} holds no tensor {tensor}{}", nearest.as_ref().map(|n| format!("; the nearest is {n}")).unwrap_or_default())]
    NoSuchTensor {
        path: PathBuf,
        tensor: Quoted,
        nearest: Option<Quoted>,
    },
    #[error("tensor {tensor} of {path:?} has the shape {shape:?}; {wanted} was asked for")]
    OutsideTensor {
        path: PathBuf,
        tensor: Quoted,
        shape: Vec<u64>,
        wanted: Extent,
    },
    #[error("tensor {tensor} of {path:?} is {dtype} {shape:?}; {expected} was expected")]
    Mismatch {
        path: PathBuf,
        tensor: Quoted,
        dtype: Dtype,
        shape: Vec<u64>,
        expected: String,
    },
    #[error("{wanted} of tensor {tensor} of {path:?} begins or ends inside of a byte: its elements have {} bits", dtype.bits())]
    InsideByte {
        path: PathBuf,
        tensor: Quoted,
        dtype: Dtype,
        wanted: Extent,
    },
    #[error("tensor {tensor} is damaged: the bytes {}..{} of {file:?} (part {part}) differ from what was saved", range.start, range.end)]
    Corrupt {
        tensor: Quoted,
        part: Extent,
        file: PathBuf,
        range: std::ops::Range<u64>,
    },
    #[error("the header of {file:?} places tensor {tensor} elsewhere than the manifest does")]
    HeaderDiffers { tensor: Quoted, file: PathBuf },
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl ArchiveError {
    /// The stable name of this failure; that of what lies beneath where it is one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Step(error) => error.code(),
            Self::Checkpoint(error) => error.code(),
            Self::Distributed(error) => error.code(),
            Self::NotACheckpoint { .. } => "not-a-checkpoint",
            Self::SharedBytes { .. } => "shared-bytes",
            Self::NoSuchTensor { .. } => "no-such-tensor",
            Self::OutsideTensor { .. } => "outside-tensor",
            Self::Mismatch { .. } => "tensor-mismatch",
            Self::InsideByte { .. } => "inside-byte",
            Self::Corrupt { .. } => "data-differs",
            Self::HeaderDiffers { .. } => "header-differs",
            Self::Transfer(error) => error.code(),
            Self::Memory(error) => error.code(),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Step(error) => error.hint().map(Into::into),
            Self::Checkpoint(error) => error.hint().map(Into::into),
            Self::NotACheckpoint { .. } => {
                Some("name a step, a folder of steps, a safetensors file or a model folder".into())
            }
            Self::Corrupt { .. } | Self::HeaderDiffers { .. } => Some(
                "restore an earlier step; `crowfly ckpt verify` names everything that is damaged"
                    .into(),
            ),
            Self::Transfer(error) => error.hint(),
            _ => None,
        }
    }
}
