//! The file that a save writes, and how it appears all at once.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crowfly_machine::limits;
use crowfly_route::obstacle::Obstacle;

use crate::checkpoint::{NotAFile, not_a_file};
use crate::ckpt::lock::{Lock, Share};
use crate::error::TransferError;
use crate::memory::BLOCK;
use crate::source::{Access, Direct, open_direct};

/// The file being written, invisible until published and removed unless it is. A block device has
/// no second name to hide behind and is written in place.
pub(crate) struct Publication {
    /// Where the bytes are until they are published; `None` where they are written in place.
    temporary: Option<PathBuf>,
    target: PathBuf,
    pub(super) file: Arc<File>,
    pub(super) length: u64,
    /// Held while the file is being written, so that nobody takes it for a dead process's.
    _writing: Option<Lock>,
}

/// How often another file is made when somebody who sweeps took the last one for a dead process's.
const ATTEMPTS: u32 = 8;

impl Publication {
    pub(super) fn create(target: &FsPath, length: u64) -> Result<Self, TransferError> {
        let name = target.display().to_string();
        if let Some(most) = limits::largest_file().filter(|most| *most < length) {
            let (path, bytes) = (name, length);
            return Err(TransferError::FileTooLarge { path, bytes, most });
        }
        match target.metadata().ok().as_ref().and_then(not_a_file) {
            None => {}
            Some(NotAFile::BlockDevice) => return Self::on_device(target, length),
            Some(found) => {
                let (path, found) = (name, found.as_str());
                return Err(TransferError::NotAFile { path, found });
            }
        }
        let failed = |source| TransferError::Open {
            path: name.clone(),
            source,
        };
        let base = target
            .file_name()
            .ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let hidden = Hidden::of(base);
        hidden.sweep(target);
        let mut attempts = 0;
        let (temporary, file, writing) = loop {
            let temporary = target.with_file_name(hidden.name());
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .custom_flags(libc::O_CLOEXEC)
                .open(&temporary)
                .map_err(failed)?;
            attempts += 1;
            match Lock::try_on(&temporary, Share::Exclusive) {
                Ok(Some(lock)) if lock.is_at(&temporary) => break (temporary, file, Some(lock)),
                Ok(_) if attempts < ATTEMPTS => {}
                // A file system without locks, on which nobody sweeps either.
                _ => break (temporary, file, None),
            }
        };
        let publication = Self {
            temporary: Some(temporary),
            target: target.to_owned(),
            file: Arc::new(file),
            length,
            _writing: writing,
        };
        publication.reserve()?;
        Ok(publication)
    }

    /// Opens a block device that nothing else uses: the kernel refuses one that is mounted or claimed.
    fn on_device(target: &FsPath, length: u64) -> Result<Self, TransferError> {
        let path = target.display().to_string();
        let failed = |source| TransferError::Open {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_EXCL)
            .open(target)
            .map_err(failed)?;
        let room = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if room < length {
            return Err(TransferError::NoSpace {
                path,
                bytes: length,
                source: io::Error::from_raw_os_error(libc::ENOSPC),
            });
        }
        Ok(Self {
            temporary: None,
            target: target.to_owned(),
            file: Arc::new(file),
            length,
            _writing: None,
        })
    }

    /// Whether the bytes are written where they stay, so that what was there is gone at once.
    pub(super) const fn in_place(&self) -> bool {
        self.temporary.is_none()
    }

    /// Whether the file may grow to whole blocks for a while, as direct writes need.
    pub(super) fn may_be_padded(&self) -> bool {
        if self.in_place() {
            return self.length.is_multiple_of(BLOCK as u64);
        }
        let padded = self.length.next_multiple_of(BLOCK as u64);
        limits::largest_file().is_none_or(|most| padded <= most)
    }

    /// Reserves the space first: a full disk is found before the first byte is written.
    fn reserve(&self) -> Result<(), TransferError> {
        let bytes = if self.may_be_padded() {
            self.length.next_multiple_of(BLOCK as u64)
        } else {
            self.length
        };
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&*self.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(
                error @ (rustix::io::Errno::NOSPC
                | rustix::io::Errno::DQUOT
                | rustix::io::Errno::FBIG),
            ) => Err(TransferError::NoSpace {
                path: self.target.display().to_string(),
                bytes: self.length,
                source: error.into(),
            }),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn failed(&self, source: io::Error) -> TransferError {
        TransferError::Write {
            path: self.target.display().to_string(),
            offset: self.length,
            source,
        }
    }

    /// Cuts the padding off, makes the bytes durable and gives the file its name.
    pub(crate) fn publish(mut self) -> Result<(), TransferError> {
        let Some(temporary) = self.temporary.take() else {
            return self.file.sync_all().map_err(|error| self.failed(error));
        };
        let done = (|| {
            self.file.set_len(self.length)?;
            self.file.sync_all()?;
            std::fs::rename(&temporary, &self.target)
        })();
        if let Err(error) = done {
            self.temporary = Some(temporary);
            return Err(self.failed(error));
        }
        let parent = self.target.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or_else(|| FsPath::new(".")));
        folder
            .and_then(|folder| folder.sync_all())
            .map_err(|error| self.failed(error))
    }

    pub(super) fn direct(&self) -> Result<Direct, Obstacle> {
        open_direct(
            &self.file,
            &self.target.display().to_string(),
            Access::Write,
        )
    }
}

/// The names under which a file is written.
struct Hidden {
    begin: OsString,
}

impl Hidden {
    const END: &str = ".crowfly";

    fn of(base: &OsStr) -> Self {
        let mut begin = OsString::from(".");
        begin.push(base);
        begin.push(".");
        Self { begin }
    }

    /// Another one each time, in this process and beside it.
    fn name(&self) -> OsString {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let serial = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = self.begin.clone();
        name.push(format!("{}-{serial}{}", std::process::id(), Self::END));
        name
    }

    fn is_one(&self, name: &OsStr) -> bool {
        let name = name.as_bytes().strip_prefix(self.begin.as_bytes());
        let middle = name.and_then(|name| name.strip_suffix(Self::END.as_bytes()));
        middle.is_some_and(|middle| {
            let mut numbers = middle.split(|byte| *byte == b'-');
            let number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            numbers.clone().count() == 2 && numbers.all(number)
        })
    }

    /// Removes what processes that were killed left beside the target: their locks went with them. What cannot be
    /// looked at, locked or removed stays.
    fn sweep(&self, target: &FsPath) {
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
        let entries = std::fs::read_dir(parent.unwrap_or_else(|| FsPath::new(".")));
        for entry in entries.into_iter().flatten().flatten() {
            if !self.is_one(&entry.file_name()) {
                continue;
            }
            let path = entry.path();
            if let Ok(Some(lock)) = Lock::try_on(&path, Share::Exclusive)
                && lock.is_at(&path)
            {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}
