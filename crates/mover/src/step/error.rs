//! Why a run ended before its time.

use std::io;
use std::path::PathBuf;

use super::order::BadOrder;
use crate::ckpt::{ArchiveError, SaveError, StepError};
use crate::collective::CollectiveError;
use crate::error::TransferError;
use crate::fabric::FabricError;
use crate::memory::MemoryError;

/// Why a run ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Order(#[from] BadOrder),
    #[error(transparent)]
    Collective(Box<CollectiveError>),
    #[error(transparent)]
    Transfer(Box<TransferError>),
    #[error(transparent)]
    Save(Box<SaveError>),
    #[error(transparent)]
    Archive(Box<ArchiveError>),
    #[error(transparent)]
    Step(Box<StepError>),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("could not {action} {path:?}: {source}")]
    Data {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the batch that arrived cannot be read back from {place}: {source}")]
    Unreadable { place: String, source: io::Error },
    #[error("the checkpoint {path:?} is not one of this run: {what}")]
    NotOurs { path: PathBuf, what: String },
    #[error(
        "ranks were lost {losses} times; a run goes on after {} at most",
        super::rank::MAX_LOSSES
    )]
    TooManyLosses { losses: u32 },
    #[error("whoever started this rank is gone")]
    Abandoned,
    #[error("{0}; the launcher starts all ranks again")]
    LeftToLauncher(Box<CollectiveError>),
}

impl RunError {
    /// A stable code for JSON output and exit status; that of what lies beneath where it is one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Order(error) => error.code(),
            Self::Collective(error) => error.code(),
            Self::Transfer(error) => error.code(),
            Self::Save(error) => error.code(),
            Self::Archive(error) => error.code(),
            Self::Step(error) => error.code(),
            Self::Memory(error) => error.code(),
            Self::Data { .. } => "step-data-failed",
            Self::Unreadable { .. } => "step-batch-unreadable",
            Self::NotOurs { .. } => "step-other-checkpoint",
            Self::TooManyLosses { .. } => "step-too-many-losses",
            Self::Abandoned => "step-abandoned",
            Self::LeftToLauncher(_) => "step-left-to-launcher",
        }
    }
}

/// The errors beneath are large, and a run's result is handed from hand to hand.
macro_rules! boxed {
    ($($variant:ident $error:ident,)*) => {
        $(impl From<$error> for RunError {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(error))
            }
        })*
    };
}

boxed! {
    Collective CollectiveError,
    Transfer TransferError,
    Save SaveError,
    Archive ArchiveError,
    Step StepError,
}

impl From<FabricError> for RunError {
    fn from(error: FabricError) -> Self {
        CollectiveError::from(error).into()
    }
}
