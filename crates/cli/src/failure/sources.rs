//! How each typed error of the libraries ends: its code, its exit status and a hint.

use std::error::Error;

use crowfly_machine::RootError;
use crowfly_mover::TransferError;
use crowfly_mover::bench::BenchError;
use crowfly_mover::checkpoint::CheckpointError;
use crowfly_mover::checkpoint::header::HeaderReadError;
use crowfly_mover::checkpoint::seeded::{SeededError, WriteError};
use crowfly_mover::checkpoint::select::SelectError;
use crowfly_mover::ckpt::dcp::DcpError;
use crowfly_mover::ckpt::{ArchiveError, SaveError, StepError};
use crowfly_mover::collective::CollectiveError;
use crowfly_mover::fabric::rendezvous::RendezvousError;
use crowfly_mover::fabric::{CONNECTION, FabricError, SharedIo};
use crowfly_mover::step::{BadOrder, RunError};
use crowfly_plan::PlanError;
use crowfly_plan::catalog::CatalogError;
use crowfly_route::cause::sentence;
use crowfly_route::place::BadPlace;
use crowfly_route::search::SearchError;
use crowfly_route::snapshot::SnapshotError;
use crowfly_route::topology::TopologyError;

use super::{Exit, Failure, errno};

/// What helps against the answer of the system at the bottom of an error.
pub(super) fn system_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        let shared = error.downcast_ref::<SharedIo>().map(|shared| &**shared);
        if let Some(hint) = error.downcast_ref().or(shared).and_then(errno::hint) {
            return Some(hint);
        }
        next = error.source();
    }
    None
}

impl From<SnapshotError> for Failure {
    fn from(error: SnapshotError) -> Self {
        Self::new(error.code(), Exit::BadData, error.to_string())
            .hint("a snapshot is a file that `crowfly capture` wrote")
    }
}

impl From<TopologyError> for Failure {
    fn from(error: TopologyError) -> Self {
        match error {
            TopologyError::Snapshot(error) => error.into(),
            error => Self::new(error.code(), Exit::BadData, error.to_string()),
        }
    }
}

impl From<BadPlace> for Failure {
    fn from(error: BadPlace) -> Self {
        Self::new("not-a-place", Exit::Usage, error.to_string())
    }
}

impl From<SearchError> for Failure {
    fn from(error: SearchError) -> Self {
        let exit = match &error {
            SearchError::NoSuchDevice { .. } => Exit::NoInput,
            _ => Exit::Usage,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(error.hint().as_deref())
    }
}

impl From<RootError> for Failure {
    fn from(error: RootError) -> Self {
        let exit = errno::reading(&error.source);
        let wrong =
            (exit == Exit::NoInput).then_some("give the directory that holds sys, proc and etc");
        let hint = errno::hint(&error.source).or(wrong);
        Self::new(error.code(), exit, error.to_string()).maybe_hint(hint)
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        use CheckpointError as E;
        let exit = match &error {
            E::NotFound { .. } | E::DanglingLink { .. } | E::Denied { .. } | E::NotAFile { .. } => {
                Exit::NoInput
            }
            E::Io { source, .. } => errno::reading(source),
            E::Header { source, .. } => match source {
                HeaderReadError::Io(error) => errno::reading(error),
                HeaderReadError::Shrank { .. } => Exit::Io,
                HeaderReadError::NoMemory { .. } => Exit::Unavailable,
                _ => Exit::BadData,
            },
            _ => Exit::BadData,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(error.hint().or_else(|| system_hint(&error)))
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        use StepError as E;
        let exit = match &error {
            E::NotFound { .. }
            | E::Denied { .. }
            | E::NoSteps { .. }
            | E::NoSuchStep { .. }
            | E::NoManifest { .. } => Exit::NoInput,
            E::Io { source, .. } => errno::reading(source),
            _ => Exit::BadData,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(error.hint().or_else(|| system_hint(&error)))
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        use ArchiveError as E;
        let exit = match error {
            E::Step(error) => return error.into(),
            E::Checkpoint(error) => return error.into(),
            E::Transfer(error) => return error.into(),
            E::Distributed(DcpError::Io { ref source, .. }) => errno::reading(source),
            E::Corrupt { .. } | E::HeaderDiffers { .. } => Exit::Broken,
            E::Memory(_) => Exit::Unavailable,
            E::NoSuchTensor { .. } | E::OutsideTensor { .. } | E::InsideByte { .. } => Exit::Usage,
            _ => Exit::BadData,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        let hint = error.hint();
        failure.maybe_hint(hint.as_deref().or_else(|| system_hint(&error)))
    }
}

impl From<SaveError> for Failure {
    fn from(error: SaveError) -> Self {
        use SaveError as E;
        let exit = match &error {
            E::Io { source, .. }
            | E::NoSpace { source, .. }
            | E::Denied { source, .. }
            | E::NoLocks { source, .. } => errno::creating(source),
            E::Busy { .. } => Exit::Unavailable,
            _ => Exit::CannotCreate,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        let hint = error.hint();
        failure.maybe_hint(hint.as_deref().or_else(|| system_hint(&error)))
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let failure = Self::new(error.code(), Exit::Usage, error.to_string());
        failure.maybe_hint(error.hint().as_deref())
    }
}

impl From<CatalogError> for Failure {
    fn from(error: CatalogError) -> Self {
        let failure = Self::new(error.code(), Exit::BadData, error.to_string());
        failure.maybe_hint(error.hint().as_deref())
    }
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Self {
        let failure = Self::new(error.code(), Exit::Usage, sentence(&error));
        failure.maybe_hint(error.hint())
    }
}

impl From<SeededError> for Failure {
    fn from(error: SeededError) -> Self {
        Self::new(error.code(), Exit::Usage, sentence(&error))
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        let exit = match &error {
            WriteError::Stopped { .. } => Exit::Interrupted,
            WriteError::Io { source, .. } => errno::creating(source),
            _ => Exit::CannotCreate,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(error.hint().or_else(|| system_hint(&error)))
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        use TransferError as E;
        let exit = match &error {
            E::Refused { .. }
            | E::Memory(_)
            | E::Setup { .. }
            | E::Gpu { .. }
            | E::Storage { .. } => Exit::Unavailable,
            E::NotAFile { .. } => Exit::NoInput,
            E::PathCannotReach { .. } | E::PathForbidden { .. } | E::BudgetTooSmall { .. } => {
                Exit::Usage
            }
            E::Open { source, .. } => errno::reading(source),
            E::Write { source, .. } => errno::creating(source),
            E::OutOfRange { .. } => Exit::BadData,
            E::NoSpace { .. } | E::FileTooLarge { .. } => Exit::CannotCreate,
            E::Differs { .. } => Exit::Broken,
            E::Cancelled => Exit::Interrupted,
            _ => Exit::Io,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        let hint = error.hint();
        let known = match &error {
            E::Setup { source, .. } => errno::no_thread(source),
            _ => system_hint(&error),
        };
        let failure = failure.maybe_hint(hint.as_deref().or(known));
        match error {
            E::Refused { obstacles, .. } => failure.with_obstacles(obstacles),
            _ => failure,
        }
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        use FabricError as E;
        let exit = match &error {
            // It was this machine that had too little of something.
            E::Unreachable { source, .. } if errno::moving(source) == Exit::Unavailable => {
                Exit::Unavailable
            }
            E::Refused { .. } | E::Registration { .. } | E::Memory(_) => Exit::Unavailable,
            E::Setup { .. } | E::Listen { .. } | E::CannotAccept { .. } | E::Replaced { .. } => {
                Exit::Unavailable
            }
            E::NoSuchNic { .. } => Exit::Usage,
            E::Unreachable { .. } | E::NoSuchHost { .. } | E::NotAuthenticated { .. } => {
                Exit::NoInput
            }
            E::WrongVersion { .. } | E::Protocol { .. } | E::Descriptor(_) => Exit::BadData,
            E::Cancelled => Exit::Interrupted,
            _ => Exit::Io,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        let failure = failure.maybe_hint(fabric_hint(&error).as_deref());
        failure.with_obstacles(error.obstacles().to_vec())
    }
}

/// What helps against an error of the fabric's.
pub(super) fn fabric_hint(error: &FabricError) -> Option<String> {
    use FabricError as E;
    let known = match error {
        E::NoSuchNic { suggestion, .. } => {
            return Some(format!("did you mean `{}`?", suggestion.as_ref()?));
        }
        E::NotAuthenticated { .. } => Some("both ends take the same key file"),
        E::Unreachable { .. } => {
            let listening = "is the other end listening, and at this address?";
            system_hint(error).or(Some(listening))
        }
        E::NoSuchHost { .. } => Some(
            "is the name right, and known to this machine? `getent hosts NAME` asks as crowfly does",
        ),
        E::Deadline { what, .. } if *what == CONNECTION => {
            Some("is the other end at work? one that is stopped is connected to and says nothing")
        }
        E::Replaced { .. } => {
            Some("whoever is to be found under a name is started with --announce=NAME")
        }
        E::Setup { source, .. } => errno::no_thread(source),
        _ => system_hint(error),
    };
    known.map(str::to_owned)
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        use CollectiveError as E;
        let exit = match error {
            E::Fabric(error) => return error.into(),
            E::BadCall { .. } => Exit::Usage,
            E::Forming(_) | E::NotMapped { .. } | E::Descriptors { .. } => Exit::Unavailable,
            E::Rendezvous(RendezvousError::Directory { ref source, .. }) => {
                match errno::reading(source) {
                    Exit::Io => errno::creating(source),
                    exit => exit,
                }
            }
            E::Rendezvous(RendezvousError::BadEntry { .. }) => Exit::BadData,
            E::Rendezvous(_) => Exit::Unavailable,
            _ => Exit::Io,
        };
        let hint = match &error {
            E::Rendezvous(RendezvousError::Connect { source, .. }) => fabric_hint(source),
            error => system_hint(error).map(str::to_owned),
        };
        Self::new(error.code(), exit, sentence(&error)).maybe_hint(hint.as_deref())
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        use BenchError as E;
        let exit = match error {
            E::Fabric(error) => return error.into(),
            E::TooLarge { .. } => Exit::Usage,
            E::Protocol { .. } => Exit::BadData,
            E::Detour { .. } => Exit::Broken,
            E::There { .. } | E::Ceiling { .. } => Exit::Unavailable,
            _ => Exit::Io,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(system_hint(&error))
    }
}

impl From<BadOrder> for Failure {
    fn from(error: BadOrder) -> Self {
        let exit = match &error {
            BadOrder::DataTooSmall { .. } => Exit::BadData,
            BadOrder::DiskTooSmall { .. } => Exit::CannotCreate,
            BadOrder::MemoryTooSmall { .. } => Exit::Unavailable,
            _ => Exit::Usage,
        };
        Self::new(error.code(), exit, error.to_string()).maybe_hint(error.hint())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        use RunError as E;
        let exit = match error {
            E::Order(error) => return error.into(),
            E::Collective(error) => return (*error).into(),
            E::Transfer(error) => return (*error).into(),
            E::Save(error) => return (*error).into(),
            E::Archive(error) => return (*error).into(),
            E::Step(error) => return (*error).into(),
            E::Data {
                action: "list",
                path,
                source,
            } => return Self::reading(&path, &source),
            E::Data { ref source, .. } => errno::creating(source),
            E::Memory(_) => Exit::Unavailable,
            E::NotOurs { .. } => Exit::BadData,
            E::Abandoned => Exit::Interrupted,
            _ => Exit::Io,
        };
        let failure = Self::new(error.code(), exit, sentence(&error));
        failure.maybe_hint(system_hint(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("could not open m")]
    struct Silent(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("could not open m: {0}")]
    struct Quoting(#[source] io::Error);

    #[test]
    fn given_a_limit_at_the_bottom_of_an_error_its_hint_is_found() {
        let limit = || io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        let failure = Failure::from(TransferError::Open {
            path: "/data/m".into(),
            source: limit(),
        });
        assert_eq!(failure.exit(), Exit::Unavailable);
        assert_eq!(failure.hint_text(), errno::hint(&limit()));
        assert!(failure.hint_text().is_some());
    }

    #[test]
    fn a_peer_that_cannot_be_reached_for_want_of_descriptors_is_not_the_peers_fault() {
        let unreachable = |number: rustix::io::Errno| {
            let failure = Failure::from(FabricError::Unreachable {
                address: "there:1".into(),
                source: io::Error::from(number).into(),
            });
            let hint = failure.hint_text().unwrap_or_default().to_owned();
            (failure.exit(), hint)
        };
        let (exit, hint) = unreachable(rustix::io::Errno::MFILE);
        assert_eq!(exit, Exit::Unavailable);
        assert!(hint.contains("`ulimit -n`"), "{hint}");
        let (exit, hint) = unreachable(rustix::io::Errno::CONNREFUSED);
        assert_eq!(exit, Exit::NoInput);
        assert!(hint.contains("listening"), "{hint}");
    }

    #[test]
    fn each_source_of_an_error_is_told_once() {
        let source = || io::Error::other("no such device");
        let expected = "could not open m: no such device";
        assert_eq!(sentence(&Silent(source())), expected);
        assert_eq!(sentence(&Quoting(source())), expected);
    }
}
