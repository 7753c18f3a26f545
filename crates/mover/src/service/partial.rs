//! A file that is being copied: invisible under its name until it is whole, and resumable where that
//! was asked for.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crowfly_machine::limits;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{Wanted, permissions};
use super::error::ServiceError;
use super::journal::{Journal, Known, Pieces};
use super::message::Tag;
use crate::digest::{self, GRID};
use crate::job::Ledger;
use crate::memory::BLOCK;
use crate::pass::{self, Spot, Written};
use crate::source::{Access, open_direct};

mod finished;

pub(crate) use finished::forget;

/// What the names of unfinished files and of their journals end with.
const PARTIAL: &str = ".crowfly-partial";
const JOURNAL: &str = ".crowfly-journal";
/// The longest name of a file, in bytes.
const MAX_NAME: usize = 255;
/// How often a file is opened again that someone else removed meanwhile.
const ATTEMPTS: usize = 8;

/// Whether a name is that of an unfinished file or of a journal.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let ends = |end: &str| name.ends_with(end.as_bytes());
    name.starts_with(b".") && (ends(PARTIAL) || ends(JOURNAL))
}

/// The names of the unfinished file and of its journal. Where one as long as a file's may be leaves no room for
/// more, they have its beginning and what tells it from others that begin so.
pub(crate) fn names(name: &OsStr) -> (OsString, OsString) {
    let hidden = |end: &str| {
        let mut hidden = OsString::from(".");
        let room = MAX_NAME - 1 - end.len();
        match name.as_bytes() {
            whole if (room + 1..=MAX_NAME).contains(&whole.len()) => {
                let told = format!("~{:016x}", digest::piece(whole));
                let begins = whole.get(..room - told.len()).unwrap_or_default();
                hidden.push(OsStr::from_bytes(begins));
                hidden.push(told);
            }
            _ => hidden.push(name),
        }
        hidden.push(end);
        hidden
    };
    (hidden(PARTIAL), hidden(JOURNAL))
}

struct Progress {
    /// Pieces that are written.
    pieces: Pieces,
    /// Where they are remembered, if they are.
    journal: Option<Journal>,
}

/// A file that is being written.
pub(crate) struct Partial {
    folder: OwnedFd,
    name: OsString,
    shown: String,
    file: Written,
    length: u64,
    policy: Policy,
    resumable: bool,
    /// Whether the journal stays when it is whole.
    remembered: bool,
    /// The file under its name, where an earlier copy had finished it.
    finished: Option<File>,
    wanted: Wanted,
    published: AtomicBool,
    progress: Mutex<Progress>,
}

/// What is to be written.
pub(crate) struct Plan<'a> {
    /// The folder it lies in.
    pub folder: OwnedFd,
    /// Its name there.
    pub name: &'a OsStr,
    /// How it is called in errors.
    pub shown: String,
    /// How long it will be.
    pub length: u64,
    /// What it is a copy of.
    pub tag: Tag,
    /// Whether to go on with what is there, and to leave it there on failure.
    pub resume: bool,
    /// Whether the journal stays beside the file when it is whole, until the folder that it is copied with
    /// is whole too: a later copy then finds it finished. [`forget`] takes such journals away.
    pub remember: bool,
    /// How far its bytes may stray.
    pub policy: Policy,
    /// What it is to have besides its bytes.
    pub wanted: Wanted,
}

impl Partial {
    /// Begins, or goes on.
    ///
    /// # Errors
    /// When someone else writes the same file, what is there is no file or a copy of another source, or
    /// the file system refuses.
    pub(crate) fn begin(plan: Plan<'_>) -> Result<Self, ServiceError> {
        let shown = plan.shown.clone();
        if let Some(most) = limits::largest_file().filter(|most| *most < plan.length) {
            let (path, bytes) = (shown, plan.length);
            return Err(crate::error::TransferError::FileTooLarge { path, bytes, most }.into());
        }
        replaced(&plan.folder, plan.name, &shown)?;
        let (partial, journal) = names(plan.name);
        let file = locked_file(&plan.folder, &partial, &shown)?;
        let failed = |source: io::Error| ServiceError::file("begin", shown.clone(), source);
        let mut remembered: File = open(&plan.folder, &journal)
            .map_err(|error| unopened(error, &journal, &shown))?
            .into();
        let known = match plan.resume {
            true => Journal::read(&mut remembered, &plan.tag, plan.length).map_err(failed)?,
            false => Known::Nothing,
        };
        // A journal beside which nothing unfinished lies is that of a finished file.
        let begun = file.metadata().map_err(failed)?.len() > 0;
        let finished = match &known {
            Known::Pieces(pieces) if !begun => finished::found(&plan, pieces),
            _ => None,
        };
        let pieces = match known {
            Known::Pieces(pieces) if finished.is_some() => pieces,
            Known::Pieces(pieces) => verified(&file, plan.length, pieces),
            Known::Another if begun => {
                return Err(ServiceError::SourceChanged {
                    path: shown,
                    why: "its journal names another source or length",
                });
            }
            Known::Nothing | Known::Another => {
                file.set_len(0).map_err(failed)?;
                Pieces::new()
            }
        };
        let journal = match plan.resume && finished.is_none() {
            true => {
                Some(Journal::begin(remembered, &plan.tag, plan.length, &pieces).map_err(failed)?)
            }
            false => None,
        };
        let partial = Self {
            folder: plan.folder,
            name: plan.name.to_owned(),
            file: Written {
                name: shown.clone(),
                direct: open_direct(&file, &shown, Access::Write).map_err(Box::new),
                may_be_padded: limits::largest_file()
                    .is_none_or(|most| plan.length.next_multiple_of(BLOCK as u64) <= most),
                buffered: Arc::new(file),
            },
            shown,
            length: plan.length,
            policy: plan.policy,
            resumable: plan.resume,
            remembered: plan.resume && plan.remember,
            finished,
            wanted: plan.wanted,
            published: AtomicBool::new(false),
            progress: Mutex::new(Progress { pieces, journal }),
        };
        partial.suits()?;
        partial.reserve()?;
        Ok(partial)
    }

    /// Refuses before the first byte where the policy allows only what the file cannot do.
    fn suits(&self) -> Result<(), ServiceError> {
        match &self.file.direct {
            Err(obstacle) if self.policy == Policy::Require => {
                let refused = crate::error::TransferError::Refused {
                    from: Box::new(Place::Host(None)),
                    to: Box::new(Place::File(self.shown.clone())),
                    policy: self.policy,
                    obstacles: vec![obstacle.as_ref().clone()],
                };
                Err(refused.into())
            }
            _ => Ok(()),
        }
    }

    /// Reserves the space first: a full disk is found before the first byte is written.
    fn reserve(&self) -> Result<(), ServiceError> {
        if self.length == 0 || self.finished.is_some() {
            return Ok(());
        }
        match rustix::fs::fallocate(
            &*self.file.buffered,
            FallocateFlags::empty(),
            0,
            self.length,
        ) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(self.failed("reserve space for", error)),
        }
    }

    /// How long it will be.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// How it is called in errors.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    fn failed(&self, what: &'static str, error: impl Into<io::Error>) -> ServiceError {
        ServiceError::file(what, self.shown.clone(), error)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes that are there already, joined.
    pub(crate) fn have(&self) -> Vec<Range<u64>> {
        let mut have: Vec<Range<u64>> = Vec::new();
        for number in self.progress().pieces.keys() {
            let range = number * GRID..((number + 1) * GRID).min(self.length);
            match have.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => have.push(range),
            }
        }
        have
    }

    /// The pieces that are there, with their checksums as far as they are known.
    pub(crate) fn pieces(&self) -> Pieces {
        self.progress().pieces.clone()
    }

    /// Writes a part that lies in memory; `sums` are the checksums of its pieces, if known.
    ///
    /// # Errors
    /// What the engine meets, or the journal.
    pub(crate) fn write(
        &self,
        range: Range<u64>,
        spot: &Spot,
        sums: &[u64],
    ) -> Result<Ledger, ServiceError> {
        if range.start > range.end || range.end > self.length {
            return Err(crate::error::TransferError::OutOfRange {
                path: self.shown.clone(),
                size: self.length,
                start: range.start,
                end: range.end,
            }
            .into());
        }
        let ledger = pass::write(&self.file, range.clone(), spot, self.policy)?;
        let mut progress = self.progress();
        for (number, sum) in (range.start / GRID..).zip(sums) {
            if let Some(journal) = &mut progress.journal {
                let added = journal.add(number, *sum);
                added.map_err(|error| self.failed("keep the journal of", error))?;
            }
            progress.pieces.insert(number, *sum);
        }
        Ok(ledger)
    }

    /// The checksum of all of it, when that of every piece is known.
    pub(crate) fn digest(&self) -> Option<u64> {
        let progress = self.progress();
        let all = progress.pieces.len() as u64 == self.length.div_ceil(GRID);
        all.then(|| digest::whole(progress.pieces.values().copied()))
    }

    /// Makes the bytes durable and gives the file its name.
    ///
    /// # Errors
    /// When the file system refuses; the file is then as unfinished as before.
    pub(crate) fn publish(&self) -> Result<(), ServiceError> {
        let (partial, journal) = names(&self.name);
        // Something else may have been put there meanwhile.
        let before = replaced(&self.folder, &self.name, &self.shown)?;
        let done = (|| {
            if let Some(finished) = &self.finished {
                // It was given the rest when it was finished; what is preserved is given exactly.
                if self.wanted.preserved {
                    self.wanted.give(finished, None)?;
                }
                rustix::fs::unlinkat(&self.folder, &partial, AtFlags::empty())?;
                return io::Result::Ok(());
            }
            self.file.buffered.set_len(self.length)?;
            self.wanted.give(&*self.file.buffered, before)?;
            self.file.buffered.sync_all()?;
            rustix::fs::renameat(&self.folder, &partial, &self.folder, &self.name)?;
            io::Result::Ok(())
        })();
        done.map_err(|error| self.failed("publish", error))?;
        self.published.store(true, Ordering::Release);
        if !self.remembered {
            let _ = rustix::fs::unlinkat(&self.folder, &journal, AtFlags::empty());
        }
        rustix::fs::fsync(&self.folder).map_err(|error| self.failed("publish", error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.published.load(Ordering::Acquire) {
            return;
        }
        let (partial, journal) = names(&self.name);
        let remove = |name| {
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        };
        if self.finished.is_some() || !self.resumable {
            remove(&partial);
        }
        if !self.resumable {
            remove(&journal);
        }
    }
}

/// The permissions of the file that a copy replaces, where there is one.
///
/// # Errors
/// When what is there is no file.
fn replaced(folder: &OwnedFd, name: &OsStr, shown: &str) -> Result<Option<u16>, ServiceError> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        // One that leads somewhere was followed before; the kernel alone can do so beneath a folder.
        Ok(there) if FileType::from_raw_mode(there.st_mode) == FileType::Symlink => {
            Err(ServiceError::Link { path: shown.into() })
        }
        Ok(there) if is_special(there.st_mode) => Err(ServiceError::Occupied {
            path: shown.into(),
            found: "a folder, device or socket",
            wanted: "a file",
        }),
        Ok(there) => Ok(Some(permissions(there.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(ServiceError::file("look at", shown, error)),
    }
}

fn is_special(mode: rustix::fs::RawMode) -> bool {
    FileType::from_raw_mode(mode) != FileType::RegularFile
}

fn open(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // Nobody else's until it is whole and has its permissions.
    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)
}

/// What lies where the unfinished copy, or its journal, would lie.
fn in_the_way(name: &OsStr, shown: &str, why: &'static str) -> ServiceError {
    ServiceError::InTheWay {
        path: Path::new(shown).with_file_name(name).display().to_string(),
        of: shown.to_owned(),
        why,
    }
}

/// Why the unfinished copy, or its journal, could not be opened.
fn unopened(error: Errno, name: &OsStr, shown: &str) -> ServiceError {
    match error {
        Errno::LOOP => in_the_way(name, shown, "it is a link"),
        Errno::ISDIR => in_the_way(name, shown, "it is a folder"),
        Errno::NXIO | Errno::NODEV => in_the_way(name, shown, "it is no file"),
        error => ServiceError::file("begin", shown, error),
    }
}

/// Opens the unfinished file for this process alone.
fn locked_file(folder: &OwnedFd, name: &OsStr, shown: &str) -> Result<File, ServiceError> {
    let failed = |error: Errno| unopened(error, name, shown);
    for _ in 0..ATTEMPTS {
        let file = open(folder, name).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => break,
            Err(error) => return Err(failed(error)),
        }
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        if is_special(stat.st_mode) {
            return Err(in_the_way(name, shown, "it is no file"));
        }
        // Whoever had the lock before may have published or removed what was opened here.
        let there = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Ok(file.into());
        }
    }
    Err(ServiceError::Busy {
        path: shown.to_owned(),
    })
}

/// The pieces that are in the file as the journal says.
fn verified(file: &File, length: u64, pieces: Pieces) -> Pieces {
    let mut bytes = vec![0; GRID as usize];
    let holds = |number: &u64, hash: &mut u64| {
        let start = number * GRID;
        let len = GRID.min(length.saturating_sub(start)) as usize;
        let read = file.read_exact_at(&mut bytes[..len], start);
        read.is_ok() && digest::piece(&bytes[..len]) == *hash
    };
    let mut pieces = pieces;
    pieces.retain(holds);
    pieces
}

#[cfg(test)]
mod tests;
