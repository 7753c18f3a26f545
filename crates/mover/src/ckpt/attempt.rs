//! One attempt at a checkpoint: the folder that no reader takes for one, the ranks that meet in it,
//! and the instant at which it becomes one.
//!
//! Rank 0 makes the folder `.step-N.tmp-MARK` and holds a lock in it; the others find it by step,
//! session and the lock. Each writes its file and then a note of what it wrote. When rank 0 has all
//! notes, it writes the manifest and renames the folder to `step-N`. The shared folder is all that
//! the ranks have in common. Everything durable is durable before the rename; whoever dies before it
//! leaves a folder whose lock nobody holds, which the next save removes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::error::SaveError;
use super::lock::{FIRST_LOOK, LAST_LOOK, Lock, Share};
use super::manifest::{MANIFEST_NAME, MAX_MANIFEST_BYTES, RankPart, file_name};
use super::store::{
    STEP_LOCK, attempt_folder, discard, discard_dead, hold, is_live, read_bounded, read_manifest,
    step_folder, sweep,
};

mod merge;

/// How long ranks wait for others at most once some are known to be lost.
const HURRIED: Duration = Duration::from_secs(1);
/// Where rank 0 says what it is about to save.
const NOTICE: &str = "attempt.json";
const NOTICE_SCHEMA: &str = "crowfly.checkpoint-attempt/1";
/// The longest notice or report of a failure that is read.
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// Which save this is.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub root: PathBuf,
    pub step: u64,
    pub rank: u32,
    pub world: u32,
    pub session: String,
    pub replace: bool,
    pub patience: Duration,
    pub hurry: Hurry,
}

/// Whether ranks are known to be lost, and since when: the others do not wait for each other much longer.
#[derive(Clone, Debug, Default)]
pub(super) struct Hurry(Arc<OnceLock<Instant>>);

impl Hurry {
    pub(super) fn begin(&self) {
        let _ = self.0.set(Instant::now());
    }

    fn is_over(&self) -> bool {
        let since = self.0.get();
        since.is_some_and(|since| since.elapsed() >= HURRIED)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notice {
    schema: String,
    step: u64,
    world: u32,
    session: String,
    mark: String,
}

/// What a rank that failed leaves for rank 0.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    code: String,
    what: String,
}

/// An attempt that this rank takes part in.
#[derive(Debug)]
pub(super) struct Attempt {
    terms: Terms,
    disk: Disk,
    folder: PathBuf,
    mark: String,
    /// Device and inode of the folder, whatever it is called.
    identity: (u64, u64),
    /// Held by rank 0 as long as the attempt goes on.
    lock: Option<Lock>,
    over: bool,
}

/// Looks again and again, ever less often, until the deadline.
struct Patience {
    began: Instant,
    most: Duration,
    hurry: Hurry,
    pause: Duration,
}

impl Patience {
    fn of(terms: &Terms) -> Self {
        Self {
            began: Instant::now(),
            most: terms.patience,
            hurry: terms.hurry.clone(),
            pause: FIRST_LOOK,
        }
    }

    /// How long it lasted.
    fn waited(&self) -> Duration {
        self.began.elapsed().min(self.most)
    }

    /// Whether it is worth looking again; sleeps before it says so.
    fn lasts(&mut self) -> bool {
        if self.began.elapsed() >= self.most || self.hurry.is_over() {
            return false;
        }
        sleep(self.pause);
        self.pause = (self.pause * 2).min(LAST_LOOK);
        true
    }
}

fn part_name(rank: u32) -> String {
    format!("rank-{rank:05}.part.json")
}

fn report_name(rank: u32) -> String {
    format!("rank-{rank:05}.failed.json")
}

fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(folder)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Attempt {
    /// Begins an attempt as rank 0, or finds the one that rank 0 began.
    ///
    /// # Errors
    /// When the step is there already, the folder cannot be made or locked, or rank 0 does not begin
    /// in time.
    pub(super) fn begin(terms: Terms, disk: Disk) -> Result<Self, SaveError> {
        match terms.rank {
            0 => Self::lead(terms, disk),
            _ => Self::join(terms, disk),
        }
    }

    /// Where this rank's file goes.
    pub(super) fn file(&self) -> PathBuf {
        self.folder
            .join(file_name(self.terms.rank, self.terms.world))
    }

    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    fn lead(terms: Terms, disk: Disk) -> Result<Self, SaveError> {
        let root = &terms.root;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SaveError::io(action, &path, source)
        };
        if !root.is_dir() {
            fs::create_dir_all(root).map_err(failed("make", root))?;
            let parent = root.parent().filter(|p| !p.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            disk.sync_folder(parent).map_err(failed("sync", parent))?;
        }
        let held = hold(root, terms.patience)?;
        may_be_published(&terms)?;
        discard_dead(&disk, root).map_err(failed("discard what was left in", root))?;
        let mark = super::mark();
        let folder = attempt_folder(root, terms.step, &mark);
        disk.make_folder(&folder).map_err(failed("make", &folder))?;
        let mut attempt = Self {
            identity: identity(&folder).map_err(failed("look at", &folder))?,
            terms,
            disk,
            folder,
            mark,
            lock: None,
            over: false,
        };
        let lock = attempt.folder.join(STEP_LOCK);
        let taken = attempt
            .disk
            .before(super::disk::Act::MakeFile, &lock)
            .and_then(|()| Lock::within(&lock, Share::Exclusive, attempt.terms.patience));
        attempt.lock =
            Some(taken.map_err(|source| SaveError::lock(&lock, attempt.terms.patience, source))?);
        let notice = Notice {
            schema: NOTICE_SCHEMA.into(),
            step: attempt.terms.step,
            world: attempt.terms.world,
            session: attempt.terms.session.clone(),
            mark: attempt.mark.clone(),
        };
        attempt.note(NOTICE, &notice)?;
        drop(held);
        sweep(&attempt.disk, &attempt.terms.root)
            .map_err(failed("remove what was discarded in", &attempt.terms.root))?;
        Ok(attempt)
    }

    fn join(terms: Terms, disk: Disk) -> Result<Self, SaveError> {
        let mut patience = Patience::of(&terms);
        loop {
            if let Some(attempt) = Self::find(&terms, &disk)? {
                return Ok(attempt);
            }
            may_be_published(&terms)?;
            if !patience.lasts() {
                return Err(SaveError::NoLeader {
                    step: terms.step,
                    session: terms.session.as_str().into(),
                    folder: terms.root,
                    waited: patience.waited(),
                });
            }
        }
    }

    /// The living attempt at this step of this session.
    fn find(terms: &Terms, disk: &Disk) -> Result<Option<Self>, SaveError> {
        let list = |source| SaveError::io("list", &terms.root, source);
        let entries = match fs::read_dir(&terms.root) {
            // Rank 0 makes the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(list)?,
        };
        for entry in entries {
            let folder = entry.map_err(list)?.path();
            let Ok(bytes) = read_bounded(&folder.join(NOTICE), MAX_NOTE_BYTES) else {
                continue;
            };
            let Ok(notice) = serde_json::from_slice::<Notice>(&bytes) else {
                continue;
            };
            let same = notice.schema == NOTICE_SCHEMA
                && notice.step == terms.step
                && notice.session == terms.session
                && folder == attempt_folder(&terms.root, terms.step, &notice.mark);
            if !same || !is_live(&folder) {
                continue;
            }
            if notice.world != terms.world {
                return Err(SaveError::WorldDiffers {
                    step: terms.step,
                    rank: terms.rank,
                    world: terms.world,
                    found: notice.world,
                });
            }
            let Ok(identity) = identity(&folder) else {
                continue;
            };
            return Ok(Some(Self {
                terms: terms.clone(),
                disk: disk.clone(),
                folder,
                mark: notice.mark,
                identity,
                lock: None,
                over: false,
            }));
        }
        Ok(None)
    }

    fn note<T: Serialize>(&self, name: &str, note: &T) -> Result<(), SaveError> {
        let path = self.folder.join(name);
        let bytes = serde_json::to_vec(note).map_err(io::Error::from);
        bytes
            .and_then(|bytes| self.disk.make_file(&path, &bytes))
            .map_err(|source| self.lost(SaveError::io("write", &path, source)))
    }

    /// What an error means once the folder is gone: rank 0 has given up.
    pub(super) fn lost(&self, error: SaveError) -> SaveError {
        if self.terms.rank != 0 && !self.is_published() && !is_live(&self.folder) {
            return SaveError::LeaderGone {
                step: self.terms.step,
                rank: self.terms.rank,
            };
        }
        error
    }

    /// Adds what this rank wrote, and waits until the checkpoint is published; as rank 0, waits for
    /// the others and publishes it.
    ///
    /// # Errors
    /// When ranks are missing at the deadline, failed, or wrote what does not fit together.
    pub(super) fn finish(&mut self, part: RankPart) -> Result<PathBuf, SaveError> {
        if self.terms.rank == 0 {
            let parts = self.gather(part)?;
            self.publish(parts)?;
        } else {
            let name = part_name(self.terms.rank);
            self.note(&name, &part)?;
            self.sync()?;
            self.await_publication()?;
        }
        self.over = true;
        Ok(step_folder(&self.terms.root, self.terms.step))
    }

    /// Leaves word that this rank could not do its part, so that the others need not wait.
    pub(super) fn fail(&mut self, error: &SaveError) {
        if self.terms.rank != 0 {
            let report = Report {
                code: error.code().to_owned(),
                what: error.to_string(),
            };
            // If this cannot be written either, rank 0 waits until its deadline.
            let _ = self.note(&report_name(self.terms.rank), &report);
        }
    }

    fn sync(&self) -> Result<(), SaveError> {
        self.disk
            .sync_folder(&self.folder)
            .map_err(|source| self.lost(SaveError::io("sync", &self.folder, source)))
    }

    fn is_published(&self) -> bool {
        let published = step_folder(&self.terms.root, self.terms.step);
        identity(&published).is_ok_and(|found| found == self.identity)
    }

    fn await_publication(&self) -> Result<(), SaveError> {
        let mut patience = Patience::of(&self.terms);
        loop {
            let live = is_live(&self.folder);
            // In this order: between the two looks it may have been published.
            if self.is_published() {
                return Ok(());
            }
            if !live {
                return Err(SaveError::LeaderGone {
                    step: self.terms.step,
                    rank: self.terms.rank,
                });
            }
            if !patience.lasts() {
                return Err(SaveError::NotPublished {
                    step: self.terms.step,
                    waited: patience.waited(),
                });
            }
        }
    }

    /// The notes of all ranks, as they come.
    fn gather(&self, mine: RankPart) -> Result<Vec<RankPart>, SaveError> {
        let Terms { step, world, .. } = self.terms;
        let mut parts = BTreeMap::from([(0, mine)]);
        let mut patience = Patience::of(&self.terms);
        loop {
            let entries = fs::read_dir(&self.folder)
                .and_then(Iterator::collect::<io::Result<Vec<_>>>)
                .map_err(|source| SaveError::io("list", &self.folder, source))?;
            let names: std::collections::HashSet<_> =
                entries.iter().map(fs::DirEntry::file_name).collect();
            for rank in 1..world {
                if parts.contains_key(&rank) {
                    continue;
                }
                if names.contains(report_name(rank).as_str().as_ref() as &std::ffi::OsStr) {
                    return Err(self.reported(rank));
                }
                if names.contains(part_name(rank).as_str().as_ref() as &std::ffi::OsStr) {
                    parts.insert(rank, self.read_part(rank)?);
                }
            }
            if parts.len() == world as usize {
                return Ok(parts.into_values().collect());
            }
            if !patience.lasts() {
                return Err(SaveError::RanksMissing {
                    step,
                    world,
                    missing: (1..world).filter(|r| !parts.contains_key(r)).collect(),
                    waited: patience.waited(),
                });
            }
        }
    }

    fn reported(&self, rank: u32) -> SaveError {
        let path = self.folder.join(report_name(rank));
        let report = read_bounded(&path, MAX_NOTE_BYTES)
            .and_then(|bytes| Ok(serde_json::from_slice::<Report>(&bytes)?));
        let (code, what) = match report {
            Ok(report) => (report.code, report.what),
            Err(error) => ("io-failed".into(), error.to_string()),
        };
        SaveError::RankFailed {
            step: self.terms.step,
            rank,
            code,
            what: what.as_str().into(),
        }
    }

    fn read_part(&self, rank: u32) -> Result<RankPart, SaveError> {
        let bad = |what: String| SaveError::BadPart {
            step: self.terms.step,
            rank,
            what,
        };
        let path = self.folder.join(part_name(rank));
        let bytes = read_bounded(&path, MAX_MANIFEST_BYTES)
            .map_err(|source| SaveError::io("read", &path, source))?;
        let part: RankPart = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        merge::belongs(&part, &self.terms, &self.mark, rank).map_err(bad)?;
        let file = self.folder.join(&part.file.name);
        let found = fs::symlink_metadata(&file)
            .map_err(|source| SaveError::io("look at", &file, source))?
            .len();
        if found != part.file.bytes {
            let (name, expected) = (&part.file.name, part.file.bytes);
            return Err(bad(format!(
                "{name} has {found} bytes; the rank wrote {expected}"
            )));
        }
        Ok(part)
    }

    /// Writes the manifest and gives the folder the name of its step.
    fn publish(&mut self, parts: Vec<RankPart>) -> Result<(), SaveError> {
        let manifest = merge::manifest(parts, &self.terms, &self.mark)?;
        let bytes = manifest.encode()?;
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| SaveError::io(action, &path, source)
        };
        let path = self.folder.join(MANIFEST_NAME);
        self.disk
            .make_file(&path, &bytes)
            .map_err(failed("write", &path))?;
        let notes = (1..self.terms.world).map(part_name);
        for name in notes.chain([NOTICE.to_owned()]) {
            let path = self.folder.join(name);
            self.disk
                .remove_file(&path)
                .map_err(failed("remove", &path))?;
        }
        self.sync()?;
        let root = self.terms.root.clone();
        let held = hold(&root, self.terms.patience)?;
        may_be_published(&self.terms)?;
        let target = step_folder(&root, self.terms.step);
        let replaces = fs::symlink_metadata(&target).is_ok();
        if replaces {
            self.disk.exchange(&self.folder, &target)
        } else {
            self.disk.rename(&self.folder, &target)
        }
        .map_err(failed("publish", &target))?;
        // From here on the folder's old name is none of this attempt's, or that of what it replaced.
        self.over = true;
        self.lock = None;
        self.disk
            .sync_folder(&root)
            .map_err(failed("sync", &root))?;
        if replaces {
            discard_dead(&self.disk, &root)
                .map_err(failed("discard what was replaced in", &root))?;
        }
        drop(held);
        sweep(&self.disk, &root).map_err(failed("remove what was discarded in", &root))
    }
}

/// Whether the step may take its name: nothing is there, or it is a checkpoint that may be replaced.
fn may_be_published(terms: &Terms) -> Result<(), SaveError> {
    let target = step_folder(&terms.root, terms.step);
    if fs::symlink_metadata(&target).is_err() {
        return Ok(());
    }
    if read_manifest(&target).is_err() && !target.join(MANIFEST_NAME).exists() {
        return Err(SaveError::Occupied { path: target });
    }
    if terms.replace {
        return Ok(());
    }
    Err(SaveError::StepExists {
        step: terms.step,
        folder: terms.root.clone(),
    })
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.over || self.terms.rank != 0 {
            return;
        }
        // Best effort: what stays has no lock any more and is removed by the next save.
        let _ = discard(&self.disk, &self.terms.root, &self.folder);
        self.lock = None;
        let _ = sweep(&self.disk, &self.terms.root);
    }
}
