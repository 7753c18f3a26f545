//! Writing a seeded checkpoint: all of it or nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crowfly_machine::limits;
use crowfly_route::units::Bytes;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::draft::Draft;
use super::{BLOCK, SeededCheckpoint, WriteError};
use crate::checkpoint::open::FileNumber;

const INDEX_NAME: &str = "model.safetensors.index.json";

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written so far.
    pub written: Bytes,
    /// Bytes of all files but the index.
    pub total: Bytes,
}

impl SeededCheckpoint {
    /// Writes the files and the index into `folder`, which is created if it is not there and must
    /// be empty if it is.
    ///
    /// The files get their names only when all of them are whole and on the drive, the index last;
    /// on any failure everything is removed, the folder too if it was made here. `progress` is told
    /// about every block and can stop the writing.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write(
        &self,
        folder: &Path,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), WriteError> {
        let index = self.index();
        let files = self.files();
        for (name, bytes) in files.chain([(INDEX_NAME, Bytes(index.len() as u64))]) {
            let too_small = |most: &u64| *most < bytes.0;
            if let Some(most) = limits::largest_file().filter(too_small).map(Bytes) {
                let path = folder.join(name);
                return Err(WriteError::FileTooLarge { path, bytes, most });
            }
        }
        let mut target = Target::prepare(folder)?;
        let needed = self.file_bytes() + Bytes(index.len() as u64);
        let place = Place { folder, needed };
        place.check_space()?;

        let mut report = Report {
            progress: &mut progress,
            now: Progress {
                written: Bytes(0),
                total: self.file_bytes(),
            },
        };
        let mut drafts = Vec::new();
        for (number, (name, len)) in (0..).map(FileNumber).zip(self.files()) {
            let draft = place.draft(name)?;
            place.reserve(draft.file(), name, len)?;
            self.write_file(number, len, draft.file(), &place, name, &mut report)?;
            drafts.push((name, draft));
        }
        let draft = place.draft(INDEX_NAME)?;
        place.write(draft.file(), INDEX_NAME, index.as_bytes())?;
        place.sync(draft.file(), INDEX_NAME)?;
        drafts.push((INDEX_NAME, draft));

        for (name, draft) in drafts {
            let path = folder.join(name);
            draft
                .publish(&path)
                .map_err(|error| place.failed(name, "name", error))?;
            target.files.push(path);
        }
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| place.failed("", "sync", error))?;
        target.keep();
        Ok(())
    }

    fn write_file(
        &self,
        number: FileNumber,
        len: Bytes,
        file: &File,
        place: &Place<'_>,
        name: &str,
        report: &mut Report<'_>,
    ) -> Result<(), WriteError> {
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < len.0 {
            let filled = self.fill(number, at, &mut block);
            place.write(file, name, block.get(..filled).unwrap_or_default())?;
            at += filled as u64;
            report.wrote(Bytes(filled as u64))?;
        }
        place.sync(file, name)
    }
}

/// Tells the caller, who may say stop.
struct Report<'p> {
    progress: &'p mut dyn FnMut(Progress) -> ControlFlow<()>,
    now: Progress,
}

impl Report<'_> {
    fn wrote(&mut self, bytes: Bytes) -> Result<(), WriteError> {
        self.now.written += bytes;
        let Progress { written, total } = self.now;
        match (self.progress)(self.now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(WriteError::Stopped { written, total }),
        }
    }
}

/// Where the bytes go, for errors that name it.
struct Place<'f> {
    folder: &'f Path,
    needed: Bytes,
}

impl Place<'_> {
    fn available(&self) -> io::Result<Bytes> {
        let stat = rustix::fs::statvfs(self.folder)?;
        Ok(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    /// Refuses before the first byte what cannot fit; others may still use up the space meanwhile.
    fn check_space(&self) -> Result<(), WriteError> {
        let available = self
            .available()
            .map_err(|error| self.failed("", "look at", error))?;
        if available < self.needed {
            return Err(WriteError::NoSpace {
                folder: self.folder.to_owned(),
                needed: self.needed,
                available,
            });
        }
        Ok(())
    }

    fn draft(&self, name: &str) -> Result<Draft, WriteError> {
        Draft::create(self.folder, name).map_err(|error| self.failed(name, "create", error))
    }

    /// Takes the space of a whole file, where the file system can, so that it fails early and lies
    /// in few pieces.
    fn reserve(&self, file: &File, name: &str, len: Bytes) -> Result<(), WriteError> {
        match rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len.0)
        }) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(error) => Err(self.failed(name, "reserve space for", error.into())),
        }
    }

    fn write(&self, mut file: &File, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        file.write_all(bytes)
            .map_err(|error| self.failed(name, "write", error))
    }

    fn sync(&self, file: &File, name: &str) -> Result<(), WriteError> {
        file.sync_all()
            .map_err(|error| self.failed(name, "sync", error))
    }

    fn failed(&self, name: &str, action: &'static str, source: io::Error) -> WriteError {
        let (folder, needed) = (self.folder.to_owned(), self.needed);
        match source.kind() {
            io::ErrorKind::StorageFull => WriteError::NoSpace {
                folder,
                needed,
                available: self.available().unwrap_or_default(),
            },
            io::ErrorKind::QuotaExceeded => WriteError::OverQuota { folder, needed },
            _ => WriteError::Io {
                path: self.folder.join(name),
                action,
                source,
            },
        }
    }
}

/// The folder, which is left as it was found unless the writing succeeds.
struct Target<'f> {
    folder: &'f Path,
    created: bool,
    files: Vec<PathBuf>,
    kept: bool,
}

impl<'f> Target<'f> {
    fn prepare(folder: &'f Path) -> Result<Self, WriteError> {
        let failed = |action| {
            move |source| WriteError::Io {
                path: folder.to_owned(),
                action,
                source,
            }
        };
        let created = match fs::create_dir(folder) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(failed("create")(error)),
        };
        if !created && folder.read_dir().map_err(failed("list"))?.next().is_some() {
            return Err(WriteError::NotEmpty {
                folder: folder.to_owned(),
            });
        }
        Ok(Self {
            folder,
            created,
            files: Vec::new(),
            kept: false,
        })
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // The writing has failed already; that is the error to report.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if self.created {
            let _ = fs::remove_dir(self.folder);
        }
    }
}
