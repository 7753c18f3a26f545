//! What a race is run over: the user's file, or a checkpoint made for the race.

use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crowfly_mover::checkpoint::Checkpoint;
use crowfly_mover::checkpoint::seeded::SeededCheckpoint;
use crowfly_route::units::Bytes;

use super::cache::{Cache, Lent};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::shown;

const SEED: u64 = 1;
const SHARDS: u32 = 4;
/// How file systems say that there is a full folder of that name.
const TAKEN: [ErrorKind; 2] = [ErrorKind::DirectoryNotEmpty, ErrorKind::AlreadyExists];

/// What a race is run over. Dropping it removes what was made for the race.
#[derive(Debug)]
pub enum Track {
    /// Something that stays.
    Kept(PathBuf),
    /// Something that goes.
    Lent(Lent),
}

/// Gives a whole checkpoint the name under which it is kept, in one step. Should another race have
/// kept one meanwhile, that one is as good.
fn keep(lent: Lent, kept: PathBuf, out: &mut Output) -> Result<PathBuf, Failure> {
    match fs::rename(lent.path(), &kept) {
        Ok(()) => Ok(kept),
        Err(error) if TAKEN.contains(&error.kind()) && kept.is_dir() => {
            let kept_by_another = format!("Racing over {}, kept meanwhile.", shown(&kept));
            out.note(&kept_by_another);
            Ok(kept)
        }
        Err(error) => Err(Failure::creating(&kept, &error)),
    }
}

/// Refuses a kept checkpoint of which something is missing: a race over the rest would be one over
/// another size.
fn check(kept: &Path, plan: &SeededCheckpoint) -> Result<(), Failure> {
    let damaged = |what: String| {
        let what = format!("the checkpoint kept in {} is damaged: {what}", shown(kept));
        Failure::new("kept-damaged", Exit::BadData, what)
            .hint("delete the folder, and the next race makes it again")
    };
    for (name, bytes) in plan.files() {
        let there = match fs::metadata(kept.join(name)) {
            Ok(there) => there,
            Err(error) => return Err(damaged(format!("{name}: {error}"))),
        };
        if !there.is_file() || there.len() != bytes.0 {
            let (has, bytes) = (there.len(), bytes.0);
            return Err(damaged(format!("{name} has {has} bytes, not {bytes}")));
        }
    }
    let opened = Checkpoint::open(kept).map_err(|error| damaged(error.to_string()))?;
    let (has, planned) = (opened.files().len(), plan.files().len());
    if has != planned {
        return Err(damaged(format!(
            "its index names {has} files, not {planned}"
        )));
    }
    Ok(())
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
            check(&kept, &plan)?;
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
        self::keep(lent, kept, out).map(Self::Kept)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Lent(lent) => lent.path(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Global;

    type Damage = fn(&Path);

    const SIZE: Bytes = Bytes(1 << 20);

    fn written(folder: &Path) -> SeededCheckpoint {
        let plan = SeededCheckpoint::new(SEED, SIZE, SHARDS).expect("a plan");
        let written = plan.write(folder, |_| ControlFlow::Continue(()));
        written.expect("written");
        plan
    }

    #[test]
    fn given_two_races_that_keep_at_once_the_later_takes_what_the_earlier_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let mut out = Output::new(&Global::default());
        let (first, second) = (cache.lend(SIZE.0), cache.lend(SIZE.0));
        for lent in [first, second] {
            let lent = lent.expect("lent");
            let (path, plan) = (lent.path().to_owned(), written(lent.path()));
            let kept = keep(lent, cache.kept(SIZE.0), &mut out).expect("kept");
            check(&kept, &plan).expect("whole");
            assert!(!path.exists(), "nothing else is left");
        }
    }

    #[test]
    fn given_a_kept_checkpoint_of_which_something_is_missing_it_is_refused_and_said_what_helps() {
        let folder = tempfile::tempdir().expect("a folder");
        let damage: [(Damage, &str); 4] = [
            (
                |kept| cut(&kept.join("model-00002-of-00004.safetensors")),
                "has 0 bytes, not ",
            ),
            (
                |kept| gone(&kept.join("model-00003-of-00004.safetensors")),
                "(os error 2)",
            ),
            (|kept| cut(&kept.join("model.safetensors.index.json")), ""),
            (
                |kept| put(&kept.join("model-00001-of-00004.safetensors")),
                "is refused",
            ),
        ];
        for (number, (damage, said)) in damage.into_iter().enumerate() {
            let kept = folder.path().join(number.to_string());
            let plan = written(&kept);
            check(&kept, &plan).expect("whole");
            damage(&kept);
            let failure = check(&kept, &plan).expect_err("damaged");
            assert_eq!(
                (failure.code(), failure.exit()),
                ("kept-damaged", Exit::BadData)
            );
            assert!(failure.message().contains(said), "{failure:?}");
            assert!(
                failure
                    .hint_text()
                    .is_some_and(|hint| hint.contains("delete the folder"))
            );
        }
    }

    fn cut(file: &Path) {
        fs::write(file, "").expect("cut");
    }

    fn gone(file: &Path) {
        fs::remove_file(file).expect("removed");
    }

    /// As many bytes as there were, and none of them a header's.
    fn put(file: &Path) {
        let bytes = fs::metadata(file).expect("there").len();
        fs::write(file, vec![0xff; usize::try_from(bytes).expect("small")]).expect("written");
    }
}
