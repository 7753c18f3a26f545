//! Why nothing could be selected.

use std::path::PathBuf;

use super::RankSlice;
use crate::checkpoint::quoted::Quoted;

/// Why a selection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SelectError {
    #[error("{pattern} is not a pattern for tensor names: {why}")]
    BadPattern { pattern: Quoted, why: String },
    #[error("no tensor's name matches {pattern}, of {tensors} tensors{}{}", suggest_wider(wider.as_ref()), suggest_names(nearest))]
    NothingMatches {
        pattern: Quoted,
        tensors: usize,
        wider: Option<(Quoted, usize)>,
        nearest: Vec<Quoted>,
    },
    #[error("no tensor falls to rank {slice}: there are only {tensors} selected")]
    EmptyShare { slice: RankSlice, tensors: usize },
    #[error("{path:?} is a file of raw bytes without tensors to choose from")]
    RawFile { path: PathBuf },
}

impl SelectError {
    /// The stable name of this failure.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::BadPattern { .. } => "bad-pattern",
            Self::NothingMatches { .. } => "nothing-matches",
            Self::EmptyShare { .. } => "empty-share",
            Self::RawFile { .. } => "raw-file",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::BadPattern { .. } => None,
            Self::NothingMatches { .. } => Some("list the tensors to see their names"),
            Self::EmptyShare { .. } => {
                Some("tensors are not split; use at most one rank per tensor")
            }
            Self::RawFile { .. } => {
                Some("only safetensors files, named .safetensors, have tensors")
            }
        }
    }
}

fn suggest_wider(wider: Option<&(Quoted, usize)>) -> String {
    wider
        .map(|(pattern, count)| format!("; {pattern} would match {count}"))
        .unwrap_or_default()
}

fn suggest_names(nearest: &[Quoted]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    let names: Vec<String> = nearest.iter().map(Quoted::to_string).collect();
    format!("; the nearest: {}", names.join(", "))
}
