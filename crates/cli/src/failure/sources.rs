//! How each typed error of the libraries ends: its code, its exit status and a hint.

use crowfly_machine::RootError;
use crowfly_route::place::BadPlace;
use crowfly_route::snapshot::SnapshotError;

use super::{Exit, Failure};

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Self {
        Self::new(error.code(), Exit::BadData, error.to_string())
            .hint("a snapshot is a file that `crowfly capture` wrote")
    }
}

impl From<BadPlace> for Failure {
    fn from(error: BadPlace) -> Self {
        Self::new("not-a-place", Exit::Usage, error.to_string())
    }
}

impl From<RootError> for Failure {
    fn from(error: RootError) -> Self {
        Self::new(error.code(), Exit::NoInput, error.to_string())
            .hint("give the directory that holds sys, proc and etc")
    }
}
