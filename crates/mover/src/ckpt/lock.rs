//! Locks that tell the living from the dead: the kernel lets go of them when their process ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A lock on a file, given back when it is dropped, and by the kernel when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

/// How often somebody else's lock is looked at again, at first and at most.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(1);
pub(super) const LAST_LOOK: Duration = Duration::from_millis(50);

/// Whose lock it may be besides ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Nobody's.
    Exclusive,
    /// Others that share it.
    Shared,
}

impl Lock {
    /// Takes the lock on an existing file; `None` when somebody else holds it.
    ///
    /// # Errors
    /// When the file cannot be opened or its file system has no locks.
    pub(crate) fn try_on(path: &Path, share: Share) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            // NFS makes record locks of these, and an exclusive one needs a file open for writing.
            .write(share == Share::Exclusive)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        Self::take(file, share)
    }

    /// Makes the file where it is missing and takes the lock; waits until the deadline for others.
    ///
    /// # Errors
    /// As above; [`io::ErrorKind::TimedOut`] when others held it all the time.
    pub(crate) fn within(path: &Path, share: Share, patience: Duration) -> io::Result<Self> {
        // More patience than a clock can count is no deadline at all.
        let deadline = Instant::now().checked_add(patience);
        let mut pause = FIRST_LOOK;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .open(path)?;
            if let Some(lock) = Self::take(file, share)? {
                return Ok(lock);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            sleep(pause);
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    /// Whether the locked file is the one that a path leads to.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        match (self.file.metadata(), std::fs::symlink_metadata(path)) {
            (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }

    fn take(file: File, share: Share) -> io::Result<Option<Self>> {
        let operation = match share {
            Share::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Share::Shared => FlockOperation::NonBlockingLockShared,
        };
        match rustix::io::retry_on_intr(|| flock(&file, operation)) {
            Ok(()) => Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the file too: closing ours alone would not do.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
