//! Why a step cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use crate::ckpt::manifest::ManifestError;

/// Why a step of a folder of checkpoints cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum StepError {
    #[error("there is nothing at {path:?}")]
    NotFound { path: PathBuf },
    #[error("not permitted to {action} {path:?}")]
    Denied { action: &'static str, path: PathBuf },
    #[error("cannot {action} {path:?}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{folder:?} has no manifest, so its save never ended")]
    NoManifest { folder: PathBuf },
    #[error("the manifest {path:?} is refused: {source}")]
    Manifest {
        path: PathBuf,
        source: Box<ManifestError>,
    },
    #[error("the manifest {path:?} is that of step {found}, in the folder of step {expected}")]
    OtherStep {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    #[error("{path:?} is no file")]
    NotAFile { path: PathBuf },
    #[error("the file {path:?} is missing; it holds parts of {}", some(tensors))]
    MissingFile { path: PathBuf, tensors: Vec<String> },
    #[error(
        "{path:?} has {found} bytes, not the {expected} that were saved; it holds parts of {}",
        some(tensors)
    )]
    FileLength {
        path: PathBuf,
        found: u64,
        expected: u64,
        tensors: Vec<String>,
    },
    #[error("no complete checkpoint is in {folder:?}")]
    NoSteps { folder: PathBuf },
    #[error("step {step} is not in {folder:?}{}", nearest(steps))]
    NoSuchStep {
        step: u64,
        folder: PathBuf,
        steps: Vec<u64>,
    },
}

/// The first few names, for a message.
pub(crate) fn some(names: &[String]) -> String {
    use crate::checkpoint::Quoted;
    /// Names beyond this many are counted only.
    const MOST_SHOWN: usize = 3;
    if names.is_empty() {
        return "no tensor".into();
    }
    let shown: Vec<String> = names
        .iter()
        .take(MOST_SHOWN)
        .map(|name| Quoted::from(name.as_str()).to_string())
        .collect();
    match names.len().saturating_sub(MOST_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn nearest(steps: &[u64]) -> String {
    match steps.last() {
        None => String::new(),
        Some(last) => format!("; the last of its {} steps is {last}", steps.len()),
    }
}

impl StepError {
    /// An error of the operating system, with *absent* and *denied* kept apart from the rest.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::Denied { action, path },
            _ => Self::Io {
                action,
                path,
                source,
            },
        }
    }

    /// The stable name of this failure; that of the manifest's fault where it is one.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not-found",
            Self::Denied { .. } => "denied",
            Self::Io { .. } => "io-failed",
            Self::NoManifest { .. } => "no-manifest",
            Self::Manifest { source, .. } => source.code(),
            Self::OtherStep { .. } => "other-step",
            Self::NotAFile { .. } => "not-a-file",
            Self::MissingFile { .. } => "missing-file",
            Self::FileLength { .. } => "file-length",
            Self::NoSteps { .. } => "no-steps",
            Self::NoSuchStep { .. } => "no-such-step",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoManifest { .. } | Self::MissingFile { .. } | Self::FileLength { .. } => {
                Some("restore an earlier step: `crowfly ckpt ls` shows which are complete")
            }
            _ => None,
        }
    }
}
