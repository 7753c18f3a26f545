//! Why a checkpoint could not be saved.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::manifest::ManifestError;
use crate::checkpoint::Quoted;
use crate::checkpoint::header::HeaderError;
use crate::error::TransferError;
use crate::memory::MemoryError;

/// Why a checkpoint could not be saved. Whatever it is, the checkpoints that were there before are
/// untouched, and what was written in vain is removed now or by the next save.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SaveError {
    #[error("tensor {tensor} cannot be saved: {what}")]
    BadTensor { tensor: Quoted, what: String },
    #[error("the state cannot be saved: {what}")]
    BadState { what: String },
    #[error("the tensors make no safetensors file: {0}")]
    Header(#[from] HeaderError),
    #[error("the budget of {budget} bytes for staging has no room for one buffer of {least} bytes")]
    BudgetTooSmall { budget: u64, least: u64 },
    #[error("step {step} is in {folder:?} already")]
    StepExists { step: u64, folder: PathBuf },
    #[error("{path:?} is in the way: it is no checkpoint of this program")]
    Occupied { path: PathBuf },
    #[error("another process is saving step {step} in {folder:?} at this moment")]
    InProgress { step: u64, folder: PathBuf },
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("no space to {action} {path:?}: {source}")]
    NoSpace {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("not permitted to {action} {path:?}: {source}")]
    Denied {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the file system of {path:?} has no locks, which tell a save that goes on from one that died: {source}"
    )]
    NoLocks { path: PathBuf, source: io::Error },
    #[error("{folder:?} was locked by another process for {} s", waited.as_secs_f64())]
    Busy { folder: PathBuf, waited: Duration },
    #[error("rank 0 began no save of step {step} of session {session} in {folder:?} within {} s", waited.as_secs_f64())]
    NoLeader {
        step: u64,
        session: Quoted,
        folder: PathBuf,
        waited: Duration,
    },
    #[error("rank 0 saves step {step} with {found} ranks; rank {rank} was told of {world}")]
    WorldDiffers {
        step: u64,
        rank: u32,
        world: u32,
        found: u32,
    },
    #[error("of {world} ranks, these wrote nothing of step {step} within {} s: {}", waited.as_secs_f64(), list(missing))]
    RanksMissing {
        step: u64,
        world: u32,
        missing: Vec<u32>,
        waited: Duration,
    },
    #[error("rank {rank} could not save step {step}: {what}")]
    RankFailed {
        step: u64,
        rank: u32,
        code: String,
        what: Quoted,
    },
    #[error("rank 0 gave up saving step {step} while rank {rank} waited for it")]
    LeaderGone { step: u64, rank: u32 },
    #[error("rank 0 did not publish step {step} within {} s", waited.as_secs_f64())]
    NotPublished { step: u64, waited: Duration },
    #[error("what rank {rank} wrote of step {step} is no part of it: {what}")]
    BadPart { step: u64, rank: u32, what: String },
    #[error("ranks {first} and {second} disagree about tensor {tensor}: {what}")]
    RanksDisagree {
        tensor: Quoted,
        first: u32,
        second: u32,
        what: String,
    },
    #[error("the parts of all ranks make no checkpoint: {0}")]
    Manifest(#[from] ManifestError),
    #[error("the tensors could not be written: {0}")]
    Transfer(#[from] TransferError),
    #[error("no memory for staging: {0}")]
    Memory(#[from] MemoryError),
    #[error("the thread that saved step {step} died")]
    ThreadDied { step: u64 },
    #[error("step {step}, which was saved in the background, failed: {source}")]
    Earlier { step: u64, source: Box<SaveError> },
}

fn list(ranks: &[u32]) -> String {
    /// Ranks beyond this many are counted only.
    const MOST_SHOWN: usize = 8;
    let shown: Vec<String> = ranks.iter().take(MOST_SHOWN).map(u32::to_string).collect();
    match ranks.len().saturating_sub(MOST_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl SaveError {
    /// An answer of the file system, with full, denied and unlockable kept apart from the rest.
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        use rustix::io::Errno;
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::NoSpace {
                action,
                path,
                source,
            },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::Denied {
                action,
                path,
                source,
            },
            _ => Self::Io {
                action,
                path,
                source,
            },
        }
    }

    /// An answer to taking a lock.
    pub(super) fn lock(path: &Path, waited: Duration, source: io::Error) -> Self {
        use rustix::io::Errno;
        match Errno::from_io_error(&source) {
            Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Self::NoLocks {
                path: path.to_owned(),
                source,
            },
            _ if source.kind() == io::ErrorKind::TimedOut => Self::Busy {
                folder: path.parent().unwrap_or(path).to_owned(),
                waited,
            },
            _ => Self::io("lock", path, source),
        }
    }

    /// The stable name of this failure; that of what lies beneath where it is one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadTensor { .. } => "bad-tensor",
            Self::BadState { .. } => "bad-state",
            Self::Header(error) => error.code(),
            Self::BudgetTooSmall { .. } => "budget-too-small",
            Self::StepExists { .. } => "step-exists",
            Self::Occupied { .. } => "step-occupied",
            Self::InProgress { .. } => "save-in-progress",
            Self::Io { .. } => "io-failed",
            Self::NoSpace { .. } => "no-space",
            Self::Denied { .. } => "denied",
            Self::NoLocks { .. } => "no-locks",
            Self::Busy { .. } => "checkpoint-busy",
            Self::NoLeader { .. } => "no-leader",
            Self::WorldDiffers { .. } => "world-differs",
            Self::RanksMissing { .. } => "ranks-missing",
            Self::RankFailed { .. } => "rank-failed",
            Self::LeaderGone { .. } => "leader-gone",
            Self::NotPublished { .. } => "not-published",
            Self::BadPart { .. } => "bad-part",
            Self::RanksDisagree { .. } => "ranks-disagree",
            Self::Manifest(error) => error.code(),
            Self::Transfer(error) => error.code(),
            Self::Memory(error) => error.code(),
            Self::ThreadDied { .. } => "worker-died",
            Self::Earlier { source, .. } => source.code(),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::StepExists { .. } => {
                Some("save another step, or allow the save to replace it".into())
            }
            Self::Occupied { .. } => Some("move it elsewhere, or save in another folder".into()),
            Self::NoLocks { .. } => Some(
                "mount the file system with locks (Lustre: `flock`), or save on another one".into(),
            ),
            Self::NoSpace { .. } => {
                Some("keep fewer checkpoints: `crowfly ckpt prune` removes old ones".into())
            }
            Self::NoLeader { .. } => Some(
                "see why rank 0 did not begin; all ranks must name the same folder and session"
                    .into(),
            ),
            Self::RanksMissing { .. } => {
                Some("see why these ranks did not save; nothing was published".into())
            }
            Self::Header(error) => error.hint().map(Into::into),
            Self::Transfer(error) => error.hint(),
            Self::Earlier { source, .. } => source.hint(),
            _ => None,
        }
    }
}
