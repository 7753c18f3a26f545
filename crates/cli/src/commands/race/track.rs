//! What a race is run over: the user's file, or a checkpoint made for the race.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crowfly_mover::checkpoint::seeded::SeededCheckpoint;
use crowfly_route::units::Bytes;

use super::cache::{Cache, Lent};
use crate::failure::Failure;
use crate::output::Output;
use crate::path::shown;

const SEED: u64 = 1;
const SHARDS: u32 = 4;

/// What a race is run over. Dropping it removes what was made for the race.
#[derive(Debug)]
pub enum Track {
    /// Something that stays.
    Kept(PathBuf),
    /// Something that goes.
    Lent(Lent),
}

impl Track {
    /// A seeded checkpoint of `size` in the cache folder: one kept from an earlier race, or a new
    /// one that is removed afterwards unless it is to be kept.
    pub fn made(size: Bytes, keep: bool, out: &mut Output) -> Result<Self, Failure> {
        let plan = SeededCheckpoint::new(SEED, size, SHARDS)?;
        let cache = Cache::of_user()?;
        if cache.clean() > 0 {
            out.note("Removed what an earlier race left that was killed.");
        }
        let kept = cache.kept(size.0);
        if kept.is_dir() {
            out.note(&format!("Racing over {}, kept earlier.", shown(&kept)));
            return Ok(Self::Kept(kept));
        }
        let lent = cache.lend(size.0)?;
        let (path, fate) = if keep {
            (kept.as_path(), "which is kept")
        } else {
            let fate = "which is removed afterwards (--keep keeps it)";
            (lent.path(), fate)
        };
        out.note(&format!(
            "Making a checkpoint of {size} in {}, {fate}.",
            shown(path)
        ));
        let progress = out.progress();
        progress.start("making a checkpoint", size.0);
        plan.write(lent.path(), |now| {
            progress.at(now.written.0);
            ControlFlow::Continue(())
        })?;
        if !keep {
            return Ok(Self::Lent(lent));
        }
        // It gets its name when it is whole, in one step.
        std::fs::rename(lent.path(), &kept).map_err(|error| Failure::creating(&kept, &error))?;
        Ok(Self::Kept(kept))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Lent(lent) => lent.path(),
        }
    }
}
