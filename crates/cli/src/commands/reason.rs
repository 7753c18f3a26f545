//! Why a rank could not go on, as it tells whoever started it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure};

/// How long after a rank that could not go on for another's sake that one may tell why.
pub const HEARSAY: Duration = Duration::from_secs(2);
/// The codes of failures that are the doing of another rank, which has one of its own.
pub const OF_OTHERS: [&str; 9] = [
    "ranks-lost",
    "collective-late",
    "group-not-formed",
    "no-such-host",
    "group-abandoned",
    "peer-late",
    "peer-lost",
    "peer-missed",
    "peer-unreachable",
];

/// Why a rank could not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The code of the error.
    pub code: String,
    /// The error in words.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The exit status that it leads to.
    pub exit: u8,
}

impl Reason {
    /// A failure, to be told.
    pub fn of(failure: &Failure) -> Self {
        Self {
            code: failure.code().to_owned(),
            message: failure.message().to_owned(),
            hint: failure.hint_text().map(str::to_owned),
            exit: failure.exit().status(),
        }
    }

    /// Whether a rank fails so for another's sake.
    pub fn is_of_others(&self) -> bool {
        is_of_others(&self.code)
    }

    /// The failure of what the rank was started for, by a code of its own.
    pub fn failure(&self, rank: usize, code: &'static str) -> Failure {
        let Self {
            message, code: own, ..
        } = self;
        let what = format!("rank {rank} could not go on: {message} ({own})");
        Failure::new(code, known(self.exit), what).maybe_hint(self.hint.as_deref())
    }
}

/// Whether a rank that fails with a code does it for another's sake.
pub fn is_of_others(code: &str) -> bool {
    OF_OTHERS.contains(&code)
}

/// The exit status of a rank that failed, as this program has them.
pub fn known(status: u8) -> Exit {
    let failed = Exit::ALL.iter().filter(|exit| **exit != Exit::Ok);
    let known = failed.copied().find(|exit| exit.status() == status);
    known.unwrap_or(Exit::Io)
}
