//! Files that have no name until they are whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// A file being written. Dropped before [`Draft::publish`], it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    /// Its interim name, on file systems that have no files without one.
    interim: Option<PathBuf>,
}

impl Draft {
    /// A draft in this folder, without a name (`O_TMPFILE`) where the file system can: then nothing
    /// remains of it even if the process is killed.
    pub(super) fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => Ok(Self {
                file: file.into(),
                interim: None,
            }),
            // ISDIR comes from kernels, and INVAL from file systems, that do not know the flag.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(folder, name),
            Err(error) => Err(error.into()),
        }
    }

    /// A draft under a hidden name that no reader of checkpoints takes for a shard.
    fn named(folder: &Path, name: &str) -> io::Result<Self> {
        let interim = folder.join(format!(".{name}.partial"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&interim)?;
        Ok(Self {
            file,
            interim: Some(interim),
        })
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, in one step.
    pub(super) fn publish(mut self, to: &Path) -> io::Result<()> {
        match &self.interim {
            None => self.link(to)?,
            Some(interim) => fs::rename(interim, to)?,
        }
        self.interim = None;
        Ok(())
    }

    fn link(&self, to: &Path) -> io::Result<()> {
        let through_proc = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match rustix::fs::linkat(CWD, through_proc, CWD, to, AtFlags::SYMLINK_FOLLOW) {
            // Without /proc: allowed to root, and from Linux 6.10 on to whoever opened the file.
            Err(Errno::NOENT) => rustix::fs::linkat(&self.file, "", CWD, to, AtFlags::EMPTY_PATH),
            other => other,
        }
        .map_err(io::Error::from)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(interim) = &self.interim {
            // Nothing can be done about a failure here, and the name says what the file is.
            let _ = fs::remove_file(interim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = folder
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_unnamed_draft_is_invisible_until_it_is_published() {
        let folder = tempfile::tempdir().unwrap();
        let draft = Draft::create(folder.path(), "a").unwrap();
        if draft.interim.is_some() {
            crowfly_waive::waived!("this file system has no O_TMPFILE");
        }
        draft.file().write_all(b"whole").unwrap();
        assert_eq!(entries(folder.path()), [""; 0]);
        draft.publish(&folder.path().join("a")).unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"whole");

        drop(Draft::create(folder.path(), "b").unwrap());
        assert_eq!(entries(folder.path()), ["a"]);
    }

    #[test]
    fn an_unnamed_draft_does_not_replace_what_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"mine").unwrap();
        let draft = Draft::create(folder.path(), "a").unwrap();
        if draft.interim.is_some() {
            crowfly_waive::waived!("this file system has no O_TMPFILE");
        }
        let error = draft.publish(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_named_draft_is_hidden_until_published_and_removed_when_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let draft = Draft::named(folder.path(), "a").unwrap();
        draft.file().write_all(b"whole").unwrap();
        assert_eq!(entries(folder.path()), [".a.partial"]);
        draft.publish(&folder.path().join("a")).unwrap();
        assert_eq!(entries(folder.path()), ["a"]);
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"whole");

        drop(Draft::named(folder.path(), "b").unwrap());
        assert_eq!(entries(folder.path()), ["a"]);
    }
}
