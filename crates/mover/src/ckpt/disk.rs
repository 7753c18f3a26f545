//! What a save does to the file system besides moving bytes, one act at a time.
//!
//! Every act is announced to a [`Witness`] before it is done, so that a test can end the process, or
//! have the file system fail, at each of them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

/// One act of a save, a publication or a pruning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Act {
    MakeFolder,
    MakeFile,
    WriteTensors,
    FinishTensors,
    SyncFolder,
    Rename,
    Remove,
}

/// Is told of every act before it is done.
pub trait Witness: Send + Sync {
    /// The act that comes next.
    ///
    /// # Errors
    /// An error takes the place of the act's own answer, and the act is not done.
    fn before(&self, act: Act, path: &Path) -> io::Result<()>;
}

/// The file system, with whoever watches.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    witness: Option<Arc<dyn Witness>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

impl Disk {
    pub(crate) fn new(witness: Option<Arc<dyn Witness>>) -> Self {
        Self { witness }
    }

    pub(crate) fn before(&self, act: Act, path: &Path) -> io::Result<()> {
        match &self.witness {
            Some(witness) => witness.before(act, path),
            None => Ok(()),
        }
    }

    pub(crate) fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Act::MakeFolder, path)?;
        fs::create_dir(path)
    }

    /// Makes a file with these bytes, durable, that appears whole or not at all.
    pub(crate) fn make_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(path.file_name().unwrap_or_default());
        hidden.push(".part");
        let hidden = path.with_file_name(hidden);
        self.before(Act::MakeFile, &hidden)?;
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
                .open(&hidden)?;
            file.write_all(bytes)?;
            file.sync_all()
        })();
        written.and_then(|()| self.rename(&hidden, path))
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Act::SyncFolder, path)?;
        File::open(path)?.sync_all()
    }

    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Act::Rename, to)?;
        fs::rename(from, to)
    }

    /// Lets two names change places at one instant.
    pub(crate) fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        self.before(Act::Rename, other)?;
        Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    pub(crate) fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.before(Act::Remove, path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes a folder and all in it; that another process does so at the same time is no error.
    pub(crate) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Act::Remove, path)?;
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}
