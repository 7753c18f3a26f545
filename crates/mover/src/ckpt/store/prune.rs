//! Removing old checkpoints, never the last good one and never one that is being read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{STEP_LOCK, discard, hold, read_manifest, step_folder, steps, sweep};
use crate::ckpt::disk::Disk;
use crate::ckpt::error::SaveError;
use crate::ckpt::lock::{Lock, Share};

/// Which checkpoints stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// This many of the latest complete ones; one at least stays whatever is asked.
    pub keep: usize,
    /// Also those whose step is a multiple of this.
    pub keep_every: Option<u64>,
}

/// What a pruning did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The steps that are gone.
    pub removed: Vec<u64>,
    /// Those that stay because the retention says so.
    pub kept: Vec<u64>,
    /// Those that would be gone if nobody were reading them.
    pub in_use: Vec<u64>,
    /// Those that are damaged and stay, because whether to give them up is not for this to decide.
    pub damaged: Vec<u64>,
}

impl Retention {
    fn keeps(&self, complete: &[u64], step: u64) -> bool {
        let latest = complete.iter().rev().take(self.keep.max(1));
        let every = self.keep_every.filter(|every| *every > 0);
        latest.into_iter().any(|kept| *kept == step)
            || every.is_some_and(|every| step.is_multiple_of(every))
    }
}

/// Removes the checkpoints of a folder that a retention does not keep; with `dry_run`, only says
/// which these are.
///
/// A checkpoint that somebody reads holds a lock on it and stays. One that goes is first renamed, so
/// that nobody ever finds half of it.
///
/// # Errors
/// When the folder cannot be listed, locked or changed. What was removed before stays removed.
pub fn prune(
    root: &Path,
    retention: Retention,
    dry_run: bool,
    patience: Duration,
) -> Result<Pruned, SaveError> {
    pruned(&Disk::default(), root, retention, dry_run, patience)
}

pub(in crate::ckpt) fn pruned(
    disk: &Disk,
    root: &Path,
    retention: Retention,
    dry_run: bool,
    patience: Duration,
) -> Result<Pruned, SaveError> {
    let list = |source| SaveError::io("list", root, source);
    // What would be done can be said of a folder that may not be changed.
    let held = if dry_run {
        None
    } else {
        // Of a folder that is not there, no lock is to be made.
        std::fs::read_dir(root).map_err(list)?;
        Some(hold(root, patience)?)
    };
    let mut result = Pruned::default();
    let mut complete = Vec::new();
    for step in steps(root).map_err(list)? {
        match read_manifest(&step_folder(root, step)) {
            Ok(_) => complete.push(step),
            Err(_) => result.damaged.push(step),
        }
    }
    for &step in &complete {
        if retention.keeps(&complete, step) {
            result.kept.push(step);
            continue;
        }
        let folder = step_folder(root, step);
        let Some(_mine) = unread(&folder)? else {
            result.in_use.push(step);
            continue;
        };
        if !dry_run {
            discard(disk, root, &folder)
                .map_err(|source| SaveError::io("discard", &folder, source))?;
        }
        result.removed.push(step);
    }
    if dry_run {
        return Ok(result);
    }
    if !result.removed.is_empty() {
        disk.sync_folder(root)
            .map_err(|source| SaveError::io("sync", root, source))?;
    }
    drop(held);
    sweep(disk, root)
        .map_err(|source| SaveError::io("remove what was discarded in", root, source))?;
    Ok(result)
}

/// A lock that nobody else can have while it is held; `None` when somebody reads the checkpoint. One
/// that was copied here has no file to lock and no readers that would say so.
fn unread(folder: &Path) -> Result<Option<Option<Lock>>, SaveError> {
    let path: PathBuf = folder.join(STEP_LOCK);
    match Lock::try_on(&path, Share::Exclusive) {
        Ok(Some(lock)) => Ok(Some(Some(lock))),
        Ok(None) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Some(None)),
        Err(source) => Err(SaveError::lock(&path, Duration::ZERO, source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_and_every_so_many_stay_and_one_at_least() {
        let steps = [10, 20, 30, 40, 50];
        let kept = |keep, keep_every| {
            let retention = Retention { keep, keep_every };
            let kept = steps.iter().filter(|s| retention.keeps(&steps, **s));
            kept.copied().collect::<Vec<u64>>()
        };
        assert_eq!(kept(2, None), [40, 50]);
        assert_eq!(kept(1, Some(20)), [20, 40, 50]);
        assert_eq!(kept(0, None), [50], "the last good one is never removed");
        assert_eq!(kept(0, Some(0)), [50]);
        assert_eq!(kept(9, None), steps);
    }
}
