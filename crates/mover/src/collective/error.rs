//! Why a collective failed.

use std::fmt;
use std::time::Duration;

use crowfly_machine::nccl::NcclError;

use crate::fabric::rendezvous::RendezvousError;
use crate::fabric::{FabricError, NotMapped, SharedIo};

/// A rank that is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// Which one.
    pub rank: usize,
    /// Who noticed first, of those who did.
    pub noticed_by: usize,
    /// How.
    pub why: String,
}

/// What one rank called, in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Called {
    /// Which rank.
    pub rank: usize,
    /// What it called.
    pub what: String,
}

/// Why a collective failed. Of the group's calls, [`CollectiveError::RanksLost`], [`CollectiveError::Late`]
/// and [`CollectiveError::Mismatch`] are agreed upon: every rank that is left gets the same.
/// What is in the buffers afterwards is undefined.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Ranks are gone. Those that are left can go on in a group of their own.
    #[error("{}", lost_ranks(.0))]
    RanksLost(Vec<Lost>),
    /// Some ranks did not come, or the network did not move, in time.
    #[error("{}", late(*.number, *.after, .absent))]
    Late {
        /// Which call of the group it was, from 1.
        number: u64,
        /// The time it was given.
        after: Duration,
        /// The ranks that had not called it by then; none where all had.
        absent: Vec<usize>,
    },
    /// One rank did not send, or did not receive, what another waits for.
    #[error("rank {rank} did not {what} within {} s", crowfly_route::units::significant(.after.as_secs_f64()))]
    PeerLate {
        /// Which rank.
        rank: usize,
        /// What it did not do.
        what: &'static str,
        /// The time it was given.
        after: Duration,
    },
    /// Ranks called different things at the same time.
    #[error(
        "the ranks called different things in call {number}: rank {} {}, rank {} {}",
        .one.rank, .one.what, .other.rank, .other.what
    )]
    Mismatch {
        /// Which call of the group it was, from 1.
        number: u64,
        /// One of them.
        one: Called,
        /// One that differs.
        other: Called,
    },
    /// The group was given up, to be formed anew.
    #[error("the group was given up to form another")]
    Abandoned,
    /// The arguments of a call do not fit each other or the group.
    #[error("{collective}: {what}")]
    BadCall {
        /// Which collective.
        collective: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A group cannot be formed like that.
    #[error("cannot form the group: {0}")]
    Forming(String),
    /// Memory of a rank that is said to be on this host is none of this process's.
    #[error(
        "cannot form the group: the memory of rank {rank} on this host cannot be mapped: {source}{}",
        advice(.source)
    )]
    NotMapped {
        /// Whose.
        rank: usize,
        /// Why.
        source: NotMapped,
    },
    /// This process, or the whole system, may open too few descriptors for it.
    #[error(
        "cannot form a group of {ranks}: it takes {needed} more open files, and there is room for {room}: {source}"
    )]
    Descriptors {
        /// How many ranks the group was to have.
        ranks: usize,
        /// How many descriptors it takes at most.
        needed: usize,
        /// How many could be opened.
        room: usize,
        /// The kernel's answer to the next one.
        source: SharedIo,
    },
    /// The ranks did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// NCCL failed at this rank.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// NCCL failed at another rank, so that the group was not formed.
    #[error("rank {rank} did not join by NCCL")]
    NotJoined {
        /// Which one, the first of them.
        rank: usize,
    },
}

impl CollectiveError {
    /// A stable code for JSON output and exit status.
    pub fn code(&self) -> &'static str {
        match self {
            Self::RanksLost(_) => "ranks-lost",
            Self::Late { .. } => "collective-late",
            Self::PeerLate { .. } => "collective-late",
            Self::Mismatch { .. } => "collective-mismatch",
            Self::Abandoned => "group-abandoned",
            Self::BadCall { .. } => "bad-collective",
            Self::Forming(_) => "group-not-formed",
            Self::NotMapped { .. } => "memory-not-mapped",
            Self::Descriptors { .. } => "too-few-descriptors",
            Self::Rendezvous(error) => error.code(),
            Self::Fabric(error) => error.code(),
            Self::Nccl(error) => error.code(),
            Self::NotJoined { .. } => "nccl-not-joined",
        }
    }
}

/// What helps where ranks take each other for ranks of one host and share no memory.
const fn advice(why: &NotMapped) -> &'static str {
    match why {
        NotMapped::Apart => "; ranks with different host labels go by the network",
        _ => "",
    }
}

/// Numbers in a row.
struct Listed<I>(I);

impl<I: Iterator<Item = usize> + Clone> fmt::Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.clone().enumerate() {
            let before = if at == 0 { "" } else { ", " };
            write!(f, "{before}{number}")?;
        }
        Ok(())
    }
}

fn lost_ranks(lost: &[Lost]) -> String {
    let ranks = Listed(lost.iter().map(|lost| lost.rank));
    let Some(first) = lost.first() else {
        return "ranks were lost".into();
    };
    let many = if lost.len() == 1 { "rank" } else { "ranks" };
    let was = if lost.len() == 1 { "was" } else { "were" };
    format!(
        "{many} {ranks} {was} lost: {} (rank {})",
        first.why, first.noticed_by
    )
}

fn late(number: u64, after: Duration, absent: &[usize]) -> String {
    let seconds = crowfly_route::units::significant(after.as_secs_f64());
    let base = format!("call {number} of the group was not done within {seconds} s");
    match absent {
        [] => format!("{base}: all ranks called it, and the data did not come"),
        [one] => format!("{base}: rank {one} did not call it"),
        many => format!(
            "{base}: ranks {} did not call it",
            Listed(many.iter().copied())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_ranks_and_what_they_did() {
        let lost = |rank| Lost {
            rank,
            noticed_by: 0,
            why: "its connection closed".into(),
        };
        let one = CollectiveError::RanksLost(vec![lost(3)]);
        assert_eq!(
            one.to_string(),
            "rank 3 was lost: its connection closed (rank 0)"
        );
        let two = CollectiveError::RanksLost(vec![lost(1), lost(3)]);
        assert_eq!(
            two.to_string(),
            "ranks 1, 3 were lost: its connection closed (rank 0)"
        );
        let unmapped = |source| CollectiveError::NotMapped { rank: 1, source }.to_string();
        let full = std::io::Error::from(rustix::io::Errno::NOMEM);
        let full = unmapped(NotMapped::Failed(std::sync::Arc::new(full)));
        assert!(full.ends_with("mapped: Cannot allocate memory (os error 12)"));
        assert!(unmapped(NotMapped::Apart).contains("host labels"));
        let late = CollectiveError::Late {
            number: 7,
            after: Duration::from_secs(2),
            absent: vec![2],
        };
        assert_eq!(
            late.to_string(),
            "call 7 of the group was not done within 2.00 s: rank 2 did not call it"
        );
    }
}
