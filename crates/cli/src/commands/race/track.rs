//! What a race is run over: the user's file, or a checkpoint made for the race.

use std::env;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crowfly_mover::checkpoint::seeded::SeededCheckpoint;
use crowfly_route::units::Bytes;

use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::path::shown;

const SEED: u64 = 1;
const SHARDS: u32 = 4;

/// What a race is run over. Dropping it removes what was made for the race.
#[derive(Debug)]
pub struct Track {
    path: PathBuf,
    remove: bool,
}

impl Track {
    /// The user's file or folder.
    pub fn given(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            remove: false,
        }
    }

    /// A seeded checkpoint of `size` in the cache folder: one kept from an earlier race, or a new
    /// one that is removed afterwards unless it is to be kept.
    pub fn made(
        size: Bytes,
        keep: bool,
        out: &mut Output,
        interrupted: &interrupt::Flag,
    ) -> Result<Self, Failure> {
        let plan = SeededCheckpoint::new(SEED, size, SHARDS)?;
        let cache = cache_folder();
        std::fs::create_dir_all(&cache).map_err(|error| Failure::writing(&cache, &error))?;
        let kept = cache.join(format!("race-{}", size.0));
        if kept.is_dir() {
            out.note(&format!("Racing over {}, kept earlier.", shown(&kept)));
            return Ok(Self::given(&kept));
        }
        let path = if keep {
            kept
        } else {
            cache.join(format!("race-{}.{}", size.0, std::process::id()))
        };
        let fate = if keep {
            "which is kept"
        } else {
            "which is removed afterwards (--keep keeps it)"
        };
        out.note(&format!(
            "Making a checkpoint of {size} in {}, {fate}.",
            shown(&path)
        ));
        let progress = out.progress();
        progress.start("making a checkpoint", size.0);
        plan.write(&path, |now| {
            progress.at(now.written.0);
            if interrupted.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok(Self {
            path,
            remove: !keep,
        })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        if self.remove {
            // The folder was made by this process; a failure leaves a file whose name says whose
            // it is, and the race's result is worth more than an error about that.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// `$XDG_CACHE_HOME/crowfly`, `~/.cache/crowfly`, or a folder for temporary files.
fn cache_folder() -> PathBuf {
    let absolute = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("crowfly")
}
