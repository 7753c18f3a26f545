//! What every command that moves bytes does around the engine: open the files, look up the routes,
//! show progress.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crowfly_machine::{Options, Root};
use crowfly_mover::{Loaded, Piece, Transfer};
use crowfly_route::hop::Candidate;
use crowfly_route::place::Place;
use crowfly_route::search::candidates;
use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::Topology;

use crate::failure::Failure;
use crate::machine::seen;
use crate::path::shown;
use crate::render::progress::Progress;

/// A running transfer is looked at each time this part of its time so far has passed again, so that
/// noticing its end late costs no more than that.
const LOOKS: u32 = 50;
/// A look costs a system call or two.
const SHORTEST: Duration = Duration::from_micros(20);
/// A progress bar is drawn less often than this.
const LONGEST: Duration = Duration::from_millis(2);

/// This machine, as far as a transfer needs to know it.
#[derive(Debug)]
pub struct Machine {
    snapshot: Snapshot,
    /// Its graph.
    pub topology: Topology,
}

impl Machine {
    /// Looks at this machine, without loading vendors' libraries into a process that moves data.
    pub fn here() -> Result<Self, Failure> {
        Self::look(&Options::default())
    }

    /// Looks at this machine as far as routes from files to a place depend on it.
    pub fn towards(to: &Place) -> Result<Self, Failure> {
        let mut options = Options::default();
        options.config_space = !matches!(to, Place::Host(_));
        Self::look(&options)
    }

    fn look(options: &Options) -> Result<Self, Failure> {
        let mut options = options.clone();
        options.libraries = false;
        let snapshot = seen(&Root::live()?, &options)?;
        let topology = Topology::from_snapshot(&snapshot);
        Ok(Self { snapshot, topology })
    }

    /// The routes from the files of some pieces to a place, the best first.
    pub fn routes(&self, pieces: &[Piece], to: &Place) -> Result<Vec<Candidate>, Failure> {
        let Some(piece) = pieces.first() else {
            return Ok(Vec::new());
        };
        // Links are followed: model caches are folders of links to files that lie elsewhere.
        let path = piece.source.path();
        let file = path
            .canonicalize()
            .map_err(|e| Failure::reading(path, &e))?;
        let from = Place::File(file.display().to_string());
        let found = candidates(&self.topology, Some(&self.snapshot), &from, to);
        Ok(found?)
    }
}

/// The path of a file of this machine, as a path or as the place `file:PATH`. Other places are no
/// files that could be opened; what is there is taken, whatever else its name could mean.
pub fn local(path: &Path) -> Result<PathBuf, Failure> {
    let text = path
        .to_str()
        .filter(|_| fs::symlink_metadata(path).is_err());
    let elsewhere = |text: &str| text.contains("://") && !text.starts_with("file:");
    let place = match text {
        None => return Ok(path.to_owned()),
        Some(text) if elsewhere(text) => text,
        Some(text) => match text.parse() {
            Ok(Place::File(file)) => return Ok(file.into()),
            Ok(_) => text,
            Err(_) => return Ok(path.to_owned()),
        },
    };
    let place = shown(Path::new(place));
    let what = format!("{place} is no file or folder of this machine, and only such are read");
    Err(Failure::usage(what).hint(match text.is_some_and(|text| text.starts_with("s3://")) {
        true => format!(
            "`crowfly cp {place} FILE` brings it to a drive of this machine, and `crowfly cp {place} gpu:N` into a \
GPU's memory"
        ),
        false => format!(
            "copy it to a drive of this machine first; `./{place}` would be a file of that name"
        ),
    }))
}

/// How a path that the user gave stands in a receipt: so that it still means something elsewhere.
pub fn place(path: &Path) -> Place {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    Place::File(path.display().to_string())
}

/// Waits for a transfer, with its progress on the screen.
pub fn follow(transfer: Transfer, what: &str, progress: &Progress) -> Result<Loaded, Failure> {
    progress.start(what, transfer.total().0);
    let started = Instant::now();
    while !transfer.is_finished() {
        progress.at(transfer.moved().0);
        sleep((started.elapsed() / LOOKS).clamp(SHORTEST, LONGEST));
    }
    progress.at(transfer.moved().0);
    Ok(transfer.wait()?)
}
