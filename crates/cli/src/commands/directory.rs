//! Names in place of addresses: a directory in which servers write down where they are, and others look.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use crowfly_mover::fabric::Incarnation;
use crowfly_mover::fabric::rendezvous::{Directory, Entry, World, directory, lookup};
use crowfly_route::place::SERVED_SCHEME;

use crate::failure::{Exit, Failure};

/// The variable that may name the directory.
const VARIABLE: &str = "CROWFLY_DIRECTORY";
/// How long a name is waited for that is not there yet.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a rank of this job is called.
const RANK: &str = "rank";

/// In which directory names are.
#[derive(Args, Debug)]
pub struct DirectoryArgs {
    /// Where names stand for addresses, as in crowfly://@NAME/...: a folder that all of them see, or
    /// etcd://HOST:PORT[/PREFIX]. Without it, the variable CROWFLY_DIRECTORY may say
    #[arg(long, value_name = "DIR")]
    directory: Option<OsString>,
}

impl DirectoryArgs {
    /// Whether it was given on the command line.
    pub const fn is_given(&self) -> bool {
        self.directory.is_some()
    }

    /// The directory.
    pub fn open(&self) -> Result<Arc<dyn Directory>, Failure> {
        let said = self
            .directory
            .clone()
            .or_else(|| std::env::var_os(VARIABLE));
        let Some(said) = said else {
            return Err(
                Failure::usage("names need a directory, and none is given").hint(format!(
                    "--directory or {VARIABLE} names a folder that all see, or etcd://HOST:PORT"
                )),
            );
        };
        Ok(directory(&said)?)
    }

    /// A URL with the address in place of its `@NAME`, which is waited for, and which life of the server wrote
    /// that down; others as they are.
    pub fn located<'t>(
        &self,
        url: &'t OsStr,
    ) -> Result<(Cow<'t, OsStr>, Option<Incarnation>), Failure> {
        let begins = format!("{SERVED_SCHEME}@");
        let Some(rest) = url.as_bytes().strip_prefix(begins.as_bytes()) else {
            return Ok((Cow::Borrowed(url), None));
        };
        let end = rest
            .iter()
            .position(|byte| *byte == b'/')
            .unwrap_or(rest.len());
        let (name, path) = rest.split_at_checked(end).unwrap_or((rest, b""));
        let entry = self.find(&String::from_utf8_lossy(name))?;
        let url = [SERVED_SCHEME.as_bytes(), entry.address.as_bytes(), path].concat();
        Ok((Cow::Owned(OsString::from_vec(url)), Some(entry.incarnation)))
    }

    /// What stands under a name: of `rankN`, among processes of a launcher, that of the rank of this job.
    pub fn find(&self, name: &str) -> Result<Entry, Failure> {
        let directory = self.open()?;
        let rank = name.strip_prefix(RANK).and_then(|rank| rank.parse().ok());
        let name = match (rank, World::from_environment()?) {
            (Some(rank), Some(world)) => world.entry(rank),
            _ => name.to_owned(),
        };
        Ok(lookup(&*directory, &name, PATIENCE)?)
    }
}

/// The name that was given, or that of this process's rank.
pub fn own_name(given: &str) -> Result<String, Failure> {
    if !given.is_empty() {
        return Ok(given.to_owned());
    }
    match World::from_environment()? {
        Some(world) => Ok(world.entry(world.rank)),
        None => Err(Failure::new(
            "no-rank",
            Exit::Usage,
            "--announce without a name is for processes that torchrun, mpirun or srun started",
        )
        .hint("give it a name: --announce=NAME")),
    }
}
