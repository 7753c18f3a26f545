//! How looking for others by name ends when they are not found.

use crowfly_mover::fabric::rendezvous::{BadDirectory, BadWorld, RendezvousError};
use crowfly_route::cause::sentence;

use super::sources::{fabric_hint, system_hint};
use super::{Exit, Failure};

impl From<BadDirectory> for Failure {
    fn from(error: BadDirectory) -> Self {
        Self::new("bad-directory", Exit::Usage, error.to_string())
            .hint("a folder that all processes see, or etcd://HOST:PORT[/PREFIX]")
    }
}

impl From<BadWorld> for Failure {
    fn from(error: BadWorld) -> Self {
        Self::new("bad-launcher", Exit::Usage, error.to_string())
            .hint("torchrun, mpirun or srun set these variables; unset what is left of another run")
    }
}

impl From<RendezvousError> for Failure {
    fn from(error: RendezvousError) -> Self {
        use RendezvousError as E;
        let exit = match &error {
            E::BadName(_) => Exit::Usage,
            E::BadEntry { .. } => Exit::BadData,
            E::Directory { .. } => Exit::NoInput,
            _ => Exit::Unavailable,
        };
        let announce = "`crowfly serve --announce=NAME` writes it down, with the same --directory";
        let hint = match &error {
            E::Late { .. } => Some(announce.to_owned()),
            E::Connect { source, .. } => fabric_hint(source),
            error => system_hint(error).map(str::to_owned),
        };
        Self::new(error.code(), exit, sentence(&error)).maybe_hint(hint.as_deref())
    }
}
