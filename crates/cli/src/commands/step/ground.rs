//! The folder that a run has for its data and checkpoints.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use crate::commands::race::cache::Cache;
use crate::failure::{Exit, Failure};
use crate::interrupt::Leftover;
use crate::path::shown;

/// How a folder that is lent begins.
const STEP: &str = "step.";
/// The file in each by which it is known for one, and whose lock says that its run goes on.
const MARK: &str = ".crowfly-step";

/// The folder of a run.
#[derive(Debug)]
pub enum Ground {
    /// One of the user's, which stays.
    Given(PathBuf),
    /// One in the cache folder, which goes unless it is to be kept.
    Lent(Lent),
}

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub struct Lent {
    folder: Option<TempDir>,
    path: PathBuf,
    kept: bool,
    _leftover: Option<Leftover>,
    _lock: File,
}

impl Ground {
    /// A folder of the user's, made if it is not there; refused when anything is in it.
    pub fn given(folder: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::creating(folder, &error);
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        if fs::read_dir(folder).map_err(failed)?.next().is_some() {
            let what = format!("{} is not empty", shown(folder));
            return Err(
                Failure::new("step-folder-not-empty", Exit::CannotCreate, what)
                    .hint("name a new folder: what is in one is never overwritten"),
            );
        }
        let absolute = std::path::absolute(folder).map_err(failed)?;
        Ok(Self::Given(absolute))
    }

    /// A new folder in the cache folder. What runs left that were killed is removed first.
    pub fn lent(kept: bool) -> Result<Self, Failure> {
        let cache = Cache::of_user()?;
        clean(cache.folder(), STEP, MARK);
        Self::lent_in(cache.folder(), kept).map(Self::Lent)
    }

    fn lent_in(cache: &Path, kept: bool) -> Result<Lent, Failure> {
        let failed = |error: io::Error| Failure::creating(cache, &crate::file::without_path(error));
        let make = || Builder::new().prefix(STEP).tempdir_in(cache);
        let (folder, leftover) = Leftover::make(make, TempDir::path).map_err(failed)?;
        let lock = File::create_new(folder.path().join(MARK)).map_err(failed)?;
        // A file system without locks keeps everybody from cleaning up, and nobody from running.
        let _ = lock.try_lock();
        Ok(Lent {
            path: folder.path().to_owned(),
            folder: Some(folder),
            kept,
            _leftover: (!kept).then_some(leftover),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Lent(lent) => &lent.path,
        }
    }

    /// Where what is kept can be found.
    pub fn kept(&self) -> Option<&Path> {
        match self {
            Self::Given(path) => Some(path),
            Self::Lent(lent) => lent.kept.then_some(lent.path.as_path()),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take().filter(|_| self.kept) {
            let _ = fs::remove_file(folder.path().join(MARK));
            let _ = folder.keep();
        }
    }
}

/// Removes the folders of runs that were killed before they could tidy up, of those whose names begin
/// so and that have a `mark` in them; returns how many.
pub fn clean(folder: &Path, begins: &str, mark: &str) -> usize {
    let user = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let lent = entries.filter(|entry| {
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(begins));
        // Among other users' files, only this one's.
        let ours = |there: &fs::Metadata| there.is_dir() && there.uid() == user;
        named && entry.metadata().is_ok_and(|there| ours(&there))
    });
    let removed = lent.filter(|entry| {
        // Its run holds the lock for as long as it goes on; a folder without the mark is somebody's.
        File::open(entry.path().join(mark))
            .is_ok_and(|mark| mark.try_lock().is_ok() && fs::remove_dir_all(entry.path()).is_ok())
    });
    removed.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_run_that_was_killed_the_next_one_removes_its_folder_and_no_other() {
        let cache = tempfile::tempdir().expect("a folder");
        let mut killed = Ground::lent_in(cache.path(), false).expect("lent");
        let left = killed.path.clone();
        let running = Ground::lent_in(cache.path(), false).expect("lent");
        let kept = cache.path().join("step.kept");
        fs::create_dir(&kept).expect("made");
        assert_eq!(clean(cache.path(), STEP, MARK), 0, "both are running");
        fs::write(left.join("shard"), "data").expect("written");
        // A killed process lets go of the lock and tidies nothing up.
        std::mem::forget(killed.folder.take());
        drop(killed);
        assert_eq!(clean(cache.path(), STEP, MARK), 1);
        assert!(!left.exists() && kept.exists() && running.path.exists());
        let path = running.path.clone();
        drop(running);
        assert!(!path.exists(), "it goes with its run");
    }

    #[test]
    fn given_a_run_that_is_kept_its_folder_stays_and_is_nobody_s_to_clean() {
        let cache = tempfile::tempdir().expect("a folder");
        let run = Ground::lent_in(cache.path(), true).expect("lent");
        let path = run.path.clone();
        drop(run);
        assert!(path.exists());
        assert_eq!(clean(cache.path(), STEP, MARK), 0);
        assert!(path.exists());
    }

    #[test]
    fn given_a_folder_with_anything_in_it_it_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Ground::given(folder.path()).is_ok());
        fs::write(folder.path().join("notes"), "mine").expect("written");
        let failure = Ground::given(folder.path()).expect_err("refused");
        assert_eq!(failure.code(), "step-folder-not-empty");
        assert!(Ground::given(&folder.path().join("new")).is_ok());
        let failure = Ground::given(&folder.path().join("no/such")).expect_err("refused");
        assert_eq!(failure.code(), "output-not-created");
    }
}
