//! The folder for what a race makes: the user's own, and nobody else's.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crowfly_mover::checkpoint::index::{INDEX_SUFFIX, SHARD_SUFFIX};
use tempfile::Builder;

use crate::failure::{Exit, Failure};
use crate::interrupt::Leftover;
use crate::path::shown;

/// How a checkpoint's folder begins, kept or not.
const RACE: &str = "race-";
/// How the names of a checkpoint's files begin, and how they end while they are not whole.
const MODEL: &str = "model";
const PARTIAL: &str = ".partial";
/// Whoever cleans up may take a new folder for an abandoned one, once in a long while.
const ATTEMPTS: u32 = 8;
/// Permissions of a folder that only its owner may enter.
const PRIVATE: u32 = 0o700;

/// Where a user's caches are.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// A folder that goes when this is dropped. While a process has it, no other takes it for abandoned.
#[derive(Debug)]
pub struct Lent {
    path: PathBuf,
    _leftover: Leftover,
    _lock: File,
}

impl Cache {
    /// `$XDG_CACHE_HOME/crowfly` or `~/.cache/crowfly`; without either a folder beside other users'
    /// temporary files, if it can be had for this user alone.
    pub fn of_user() -> Result<Self, Failure> {
        let absolute = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let home = || absolute("HOME").map(|home| home.join(".cache"));
        match absolute("XDG_CACHE_HOME").or_else(home) {
            Some(caches) => {
                let folder = caches.join("crowfly");
                fs::create_dir_all(&folder).map_err(|e| Failure::creating(&folder, &e))?;
                Ok(Self { folder })
            }
            None => Self::beside_others(&std::env::temp_dir()),
        }
    }

    /// A folder among other users' own, who could have made it first to see or to exchange what is
    /// put there.
    fn beside_others(folder: &Path) -> Result<Self, Failure> {
        let user = rustix::process::geteuid().as_raw();
        let folder = folder.join(format!("crowfly-{user}"));
        let hint = "set HOME or XDG_CACHE_HOME to a folder of yours";
        let failed = |error| Failure::creating(&folder, &error).hint(hint);
        match DirBuilder::new().mode(PRIVATE).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error))?,
            _ => {}
        }
        let there = fs::symlink_metadata(&folder).map_err(failed)?;
        let wrong = if there.is_symlink() {
            "it is a symbolic link".to_owned()
        } else if !there.is_dir() {
            "it is not a folder".to_owned()
        } else if there.uid() != user {
            format!("it belongs to user {}, not to {user}", there.uid())
        } else if there.mode() & 0o077 != 0 {
            format!("others may enter it (mode {:o})", there.mode() & 0o777)
        } else {
            return Ok(Self { folder });
        };
        let what = format!("could not use {} as cache folder: {wrong}", shown(&folder));
        Err(Failure::new("cache-not-private", Exit::CannotCreate, what).hint(hint))
    }

    /// The caches in a folder that is there.
    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self { folder }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a checkpoint of so many bytes is kept between races.
    pub fn kept(&self, bytes: u64) -> PathBuf {
        self.folder.join(format!("{RACE}{bytes}"))
    }

    /// A new folder for a checkpoint of so many bytes that no race needs afterwards.
    pub fn lend(&self, bytes: u64) -> Result<Lent, Failure> {
        let creating = |error| Failure::creating(&self.folder, &error);
        let prefix = format!("{RACE}{bytes}.");
        for _ in 0..ATTEMPTS {
            let make = || Builder::new().prefix(&prefix).tempdir_in(&self.folder);
            let made = Leftover::make(make, tempfile::TempDir::path);
            let (made, leftover) = made.map_err(|e| creating(crate::file::without_path(e)))?;
            let lock = match File::open(made.path()) {
                // Taken for abandoned before it could be locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(creating)?,
            };
            // A file system without locks keeps everybody from cleaning up, and nobody from racing.
            let abandoned = matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock));
            if !abandoned && made.path().exists() {
                return Ok(Lent {
                    path: made.keep(),
                    _leftover: leftover,
                    _lock: lock,
                });
            }
        }
        Err(creating(io::ErrorKind::ResourceBusy.into()))
    }

    /// Removes what races left that were killed before they could tidy up; returns how many.
    pub fn clean(&self) -> usize {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let abandoned = entries.filter(|entry| {
            entry.file_name().to_str().is_some_and(is_lent)
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        let removed = abandoned.filter(|entry| {
            let path = entry.path();
            // Its race holds the lock for as long as it runs, wherever it runs.
            File::open(&path).is_ok_and(|folder| {
                let free = folder.try_lock().is_ok();
                free && remove(&path).is_ok_and(|removed| removed)
            })
        });
        removed.count()
    }
}

/// Whether a race gives a folder of this name away: `race-1000000.Zk3aQw`.
fn is_lent(name: &str) -> bool {
    let parts = name
        .strip_prefix(RACE)
        .and_then(|rest| rest.split_once('.'));
    parts.is_some_and(|(bytes, chance)| {
        is_number(bytes) && !chance.is_empty() && chance.bytes().all(|b| b.is_ascii_alphanumeric())
    })
}

/// Whether a race writes files of this name: `model-00001-of-00004.safetensors`, the index, and
/// either of them before it is whole.
fn is_written(name: &str) -> bool {
    let draft = || name.strip_prefix('.')?.strip_suffix(PARTIAL);
    let name = draft().unwrap_or(name);
    let Some(rest) = name.strip_prefix(MODEL) else {
        return false;
    };
    let shard = || {
        let numbers = rest.strip_prefix('-')?.strip_suffix(SHARD_SUFFIX)?;
        numbers.split_once("-of-")
    };
    rest == INDEX_SUFFIX || shard().is_some_and(|(n, of)| is_number(n) && is_number(of))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Removes a folder and the files that a race writes. A folder in which anything else lies is
/// somebody's, and stays as it is; returns whether it is gone.
fn remove(folder: &Path) -> io::Result<bool> {
    let mut written = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(is_written);
        if !ours || !entry.file_type()?.is_file() {
            return Ok(false);
        }
        written.push(entry.path());
    }
    for file in written {
        fs::remove_file(file)?;
    }
    fs::remove_dir(folder).map(|()| true)
}

impl Lent {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // A failure leaves a folder that the next race removes, and this race's result is worth
        // more than an error about that.
        let _ = remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const SHARD: &str = "model-00001-of-00004.safetensors";

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        (folder, cache)
    }

    #[test]
    fn given_no_home_the_folder_is_private_and_used_again() {
        let shared = tempfile::tempdir().expect("a folder");
        let first = Cache::beside_others(shared.path()).expect("made");
        let mode = fs::metadata(&first.folder).expect("there").mode();
        assert_eq!(mode & 0o777, PRIVATE);
        let again = Cache::beside_others(shared.path()).expect("the same");
        assert_eq!(again.folder, first.folder);
    }

    #[test]
    fn given_a_folder_that_others_may_have_prepared_it_is_refused() {
        let shared = tempfile::tempdir().expect("a folder");
        let made = Cache::beside_others(shared.path()).expect("made").folder;
        let refusal = || {
            let failure = Cache::beside_others(shared.path()).expect_err("refused");
            assert_eq!(
                (failure.code(), failure.exit().status()),
                ("cache-not-private", 73)
            );
            assert!(
                failure
                    .hint_text()
                    .is_some_and(|hint| hint.contains("HOME"))
            );
            failure.message().to_owned()
        };
        fs::set_permissions(&made, fs::Permissions::from_mode(0o770)).expect("opened");
        assert!(refusal().ends_with("others may enter it (mode 770)"));
        fs::remove_dir(&made).expect("removed");
        symlink(shared.path(), &made).expect("linked");
        assert!(refusal().ends_with("it is a symbolic link"));
        fs::remove_file(&made).expect("removed");
        fs::write(&made, "").expect("written");
        assert!(refusal().ends_with("it is not a folder"));
    }

    #[test]
    fn given_a_race_that_was_killed_the_next_one_removes_its_folder_and_no_other() {
        let (folder, cache) = cache();
        let killed = folder.path().join("race-1000.Zk3a");
        for name in ["race-1000.Zk3a", "race-1000", "models.v2"] {
            fs::create_dir(folder.path().join(name)).expect("created");
        }
        for name in [SHARD, ".model.safetensors.index.json.partial"] {
            fs::write(killed.join(name), "half").expect("written");
        }
        let running = cache.lend(1000).expect("lent");
        assert_eq!(cache.clean(), 1);
        assert!(!killed.exists() && running.path().exists());
        assert!(cache.kept(1000).exists() && folder.path().join("models.v2").exists());
        let path = running.path().to_owned();
        drop(running);
        assert!(!path.exists());
    }

    #[test]
    fn given_anything_in_the_folder_that_no_race_writes_all_of_it_stays() {
        let (folder, cache) = cache();
        let killed = folder.path().join("race-1000.Zk3a");
        let others = [
            "notes.txt",
            "model-00001.safetensors",
            "model-a-of-b.safetensors",
        ];
        for foreign in others {
            fs::create_dir(&killed).expect("created");
            fs::write(killed.join(SHARD), "half").expect("written");
            fs::write(killed.join(foreign), "mine").expect("written");
            assert_eq!(cache.clean(), 0, "{foreign}");
            assert!(killed.join(SHARD).exists() && killed.join(foreign).exists());
            fs::remove_dir_all(&killed).expect("removed");
        }
        fs::create_dir_all(killed.join(SHARD)).expect("a folder with the name of a shard");
        assert_eq!(cache.clean(), 0);
        assert!(killed.join(SHARD).exists());
    }

    #[test]
    fn given_a_folder_that_no_race_names_so_it_stays_even_when_empty() {
        let (folder, cache) = cache();
        for name in [
            "race-results.old",
            "race-1000.",
            "race-1000.a-b",
            "race-.abc",
            "race.1.a",
        ] {
            fs::create_dir(folder.path().join(name)).expect("created");
            assert_eq!(cache.clean(), 0, "{name}");
            assert!(folder.path().join(name).exists());
        }
    }
}
