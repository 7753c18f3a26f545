//! A folder of checkpoints: which steps it holds, which is the latest, what was left behind.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::disk::Disk;
use super::error::SaveError;
use super::lock::{Lock, Share};
use super::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest};

mod error;
mod prune;

pub use error::StepError;
pub(super) use error::some;
pub(super) use prune::pruned;
pub use prune::{Pruned, Retention, prune};

/// What every checkpoint's folder is called, before its step.
const STEP_PREFIX: &str = "step-";
/// The file in each checkpoint's folder whose lock says that it is being written or read.
pub(super) const STEP_LOCK: &str = ".lock";
/// The file in a folder of checkpoints whose lock orders what is done to the folder.
pub(super) const ROOT_LOCK: &str = ".crowfly-lock";
/// What the folder of an attempt at step N is called: this, N, [`ATTEMPT_INFIX`] and a random mark.
const ATTEMPT_PREFIX: &str = ".step-";
const ATTEMPT_INFIX: &str = ".tmp-";
/// What a folder is renamed to before it is removed.
const TRASH_PREFIX: &str = ".trash-";

/// The folder of a step.
pub fn step_folder(root: &Path, step: u64) -> PathBuf {
    root.join(format!("{STEP_PREFIX}{step}"))
}

pub(super) fn attempt_folder(root: &Path, step: u64, mark: &str) -> PathBuf {
    root.join(format!("{ATTEMPT_PREFIX}{step}{ATTEMPT_INFIX}{mark}"))
}

fn number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    // One spelling for each step: `step-007` is no checkpoint of this program.
    (number.to_string() == text).then_some(number)
}

/// What one entry of a folder of checkpoints is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Step(u64),
    Attempt(u64),
    Trash,
}

fn entry(name: &str) -> Option<Entry> {
    if let Some(step) = name.strip_prefix(STEP_PREFIX) {
        return number(step).map(Entry::Step);
    }
    if let Some(attempt) = name.strip_prefix(ATTEMPT_PREFIX) {
        let (step, _) = attempt.split_once(ATTEMPT_INFIX)?;
        return number(step).map(Entry::Attempt);
    }
    name.starts_with(TRASH_PREFIX).then_some(Entry::Trash)
}

fn entries(root: &Path) -> io::Result<Vec<(Entry, PathBuf)>> {
    let mut found = Vec::new();
    for item in fs::read_dir(root)? {
        let item = item?;
        let name = item.file_name();
        if let Some(entry) = name.to_str().and_then(entry)
            && item.file_type().is_ok_and(|kind| kind.is_dir())
        {
            found.push((entry, item.path()));
        }
    }
    Ok(found)
}

/// A step found in a folder of checkpoints.
#[derive(Debug)]
pub struct Found {
    /// The step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Its manifest, or why it is not complete.
    pub manifest: Result<Manifest, StepError>,
}

/// A save that did not end, or has not ended yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// Whether a process is still at it. What the dead left is removed by the next save.
    pub live: bool,
}

/// What a folder of checkpoints holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// The steps, ascending, the damaged ones included.
    pub steps: Vec<Found>,
    /// Attempts that are under way or were left behind.
    pub unfinished: Vec<Unfinished>,
}

/// Looks at everything in a folder of checkpoints.
///
/// # Errors
/// When the folder cannot be listed. What is wrong with a single step stands beside the step.
pub fn list(root: &Path) -> Result<Contents, StepError> {
    let mut contents = Contents::default();
    let found = entries(root).map_err(|source| StepError::io("list", root, source))?;
    for (entry, path) in found {
        match entry {
            Entry::Step(step) => contents.steps.push(Found {
                step,
                manifest: read_manifest(&path),
                path,
            }),
            Entry::Attempt(step) => contents.unfinished.push(Unfinished {
                step,
                live: is_live(&path),
                path,
            }),
            Entry::Trash => {}
        }
    }
    contents.steps.sort_by_key(|found| found.step);
    contents
        .unfinished
        .sort_by_key(|u| (u.step, u.path.clone()));
    Ok(contents)
}

/// The steps of a folder by their names alone, ascending. Whether they are complete is not looked at.
pub(super) fn steps(root: &Path) -> io::Result<Vec<u64>> {
    let mut steps: Vec<u64> = entries(root)?
        .into_iter()
        .filter_map(|(entry, _)| match entry {
            Entry::Step(step) => Some(step),
            _ => None,
        })
        .collect();
    steps.sort_unstable();
    Ok(steps)
}

/// The latest step of a folder that is complete, by looking: there is no pointer that could lie.
/// `None` when there is none. Damaged steps are passed over.
///
/// # Errors
/// When the folder cannot be listed.
pub fn latest(root: &Path) -> Result<Option<u64>, StepError> {
    let steps = steps(root).map_err(|source| StepError::io("list", root, source))?;
    let complete = |step: &u64| read_manifest(&step_folder(root, *step)).is_ok();
    Ok(steps.into_iter().rev().find(complete))
}

/// Reads the manifest of a step's folder and checks that it is of that step, and that its files are there
/// and as long as they were.
///
/// # Errors
/// See [`StepError`].
pub fn read_manifest(folder: &Path) -> Result<Manifest, StepError> {
    let path = folder.join(MANIFEST_NAME);
    let bytes = read_bounded(&path, MAX_MANIFEST_BYTES).map_err(|source| {
        if source.kind() == io::ErrorKind::NotFound && folder.is_dir() {
            return StepError::NoManifest {
                folder: folder.to_owned(),
            };
        }
        StepError::io("read", &path, source)
    })?;
    let manifest = Manifest::parse(&bytes).map_err(|source| StepError::Manifest {
        path: path.clone(),
        source: Box::new(source),
    })?;
    let named = folder.file_name().and_then(|name| entry(name.to_str()?));
    if let Some(Entry::Step(expected)) = named
        && manifest.step != expected
    {
        let found = manifest.step;
        return Err(StepError::OtherStep {
            path,
            found,
            expected,
        });
    }
    for file in &manifest.files {
        let path = folder.join(&file.name);
        let found = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Err(StepError::NotAFile { path }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StepError::MissingFile {
                    tensors: tensors_in(&manifest, &file.name),
                    path,
                });
            }
            Err(source) => return Err(StepError::io("look at", &path, source)),
        };
        if found != file.bytes {
            return Err(StepError::FileLength {
                tensors: tensors_in(&manifest, &file.name),
                path,
                found,
                expected: file.bytes,
            });
        }
    }
    Ok(manifest)
}

/// The tensors with a part in a file.
fn tensors_in(manifest: &Manifest, name: &str) -> Vec<String> {
    let number = manifest.files.iter().position(|file| file.name == name);
    let here = |entry: &super::manifest::TensorEntry| {
        let parts = entry.parts.iter();
        parts
            .map(|part| part.file as usize)
            .any(|file| Some(file) == number)
    };
    let tensors = manifest.tensors.iter();
    tensors
        .filter(|(_, entry)| here(entry))
        .map(|(name, _)| name.clone())
        .collect()
}

/// All of a regular file that is no longer than allowed.
pub(super) fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, so that what is too long is refused, not cut.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("longer than {most} bytes"),
        ));
    }
    Ok(bytes)
}

/// Whether the process that made an attempt is still at it.
pub(super) fn is_live(attempt: &Path) -> bool {
    matches!(
        Lock::try_on(&attempt.join(STEP_LOCK), Share::Shared),
        Ok(None)
    )
}

/// Holds the folder while its entries are changed.
pub(super) fn hold(root: &Path, patience: Duration) -> Result<Lock, SaveError> {
    let path = root.join(ROOT_LOCK);
    Lock::within(&path, Share::Exclusive, patience)
        .map_err(|source| SaveError::lock(&path, patience, source))
}

/// Renames a folder so that nobody takes it for a checkpoint any more; it is removed by [`sweep`].
pub(super) fn discard(disk: &Disk, root: &Path, folder: &Path) -> io::Result<()> {
    let trash = root.join(format!("{TRASH_PREFIX}{}", super::mark()));
    disk.rename(folder, &trash)
}

/// Discards what dead processes left. The folder is held.
pub(super) fn discard_dead(disk: &Disk, root: &Path) -> io::Result<()> {
    for (entry, path) in entries(root)? {
        if !matches!(entry, Entry::Attempt(_)) {
            continue;
        }
        match Lock::try_on(&path.join(STEP_LOCK), Share::Exclusive) {
            // Somebody still writes it, or still reads what a save replaced.
            Ok(None) => {}
            Ok(Some(_dead)) => discard(disk, root, &path)?,
            // It died before it had a lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => discard(disk, root, &path)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes what was discarded, by whomever. Not held: it may take long, and nobody needs it.
pub(super) fn sweep(disk: &Disk, root: &Path) -> io::Result<()> {
    for (entry, path) in entries(root)? {
        if entry == Entry::Trash {
            disk.remove_folder(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_step_only_in_its_one_spelling() {
        assert_eq!(entry("step-0"), Some(Entry::Step(0)));
        assert_eq!(
            entry("step-18446744073709551615"),
            Some(Entry::Step(u64::MAX))
        );
        for other in ["step-007", "step-+1", "step-", "step-1x", "steps", "7"] {
            assert_eq!(entry(other), None, "{other}");
        }
        assert_eq!(entry(".step-12.tmp-ab"), Some(Entry::Attempt(12)));
        assert_eq!(entry(".step-12"), None);
        assert_eq!(entry(".trash-ab"), Some(Entry::Trash));
    }
}
