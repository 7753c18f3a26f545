//! Files that an interrupted copy of a folder had finished: their journals stay beside them until the
//! whole folder is there, and say what they are copies of and the checksum of every piece.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::{JOURNAL, Plan, is_unfinished, names, verified};
use crate::digest::GRID;
use crate::service::journal::Pieces;

/// The file that is to be made, where it is there under its name and every byte of it is what the journal
/// says: all of it is read again, as nothing else would show that nobody changed it.
pub(super) fn found(plan: &Plan<'_>, pieces: &Pieces) -> Option<File> {
    let all = plan.length.div_ceil(GRID);
    if plan.length == 0 || pieces.len() as u64 != all {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(&plan.folder, plan.name, flags, Mode::empty()).ok()?;
    let file = File::from(file);
    let there = file.metadata().ok()?;
    let same_length = there.is_file() && there.len() == plan.length;
    let holds = same_length && verified(&file, plan.length, pieces.clone()).len() == pieces.len();
    holds.then_some(file)
}

/// Takes the journals of finished files away from a folder: those beside which nothing unfinished lies.
///
/// # Errors
/// When the folder cannot be read or changed.
pub(crate) fn forget(folder: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let journal = OsStr::from_bytes(entry.file_name().to_bytes());
        let of = journal.as_bytes().strip_prefix(b".");
        let of = of.and_then(|of| of.strip_suffix(JOURNAL.as_bytes()));
        let Some(of) = of.filter(|of| !of.is_empty() && is_unfinished(journal)) else {
            continue;
        };
        let (partial, _) = names(OsStr::from_bytes(of));
        let unfinished = rustix::fs::statat(folder, &partial, AtFlags::SYMLINK_NOFOLLOW);
        if unfinished.err() == Some(Errno::NOENT) {
            match rustix::fs::unlinkat(folder, journal, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
