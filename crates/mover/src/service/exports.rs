//! What is behind the names of a server. Nothing that a peer says leads out of an exposed folder: the
//! kernel resolves each path beneath the folder that was opened at the start (`openat2(2)`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crowfly_machine::limits;
use crowfly_route::units::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::attributes::{Attributes, Wanted};
use super::error::{LIST, ServiceError};
use super::limits::{MAX_COMPONENT, MAX_EXPORTS};
use super::message::{Entry, Kind, Tag};
use super::name::{Name, RelativePath};
use super::partial::{self, is_unfinished};
use crate::checkpoint::Stamp;
use crate::digest;
use crate::fabric::{Access, Buffer, Fabric, Region};
use crate::memory::MemoryError;
use crate::source::Source;

/// The most entries of a folder that is listed to a peer: they are kept while it asks for more of them.
const MAX_FOLDER: usize = 100_000;
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Something to expose.
#[derive(Clone, Debug)]
pub enum Export {
    /// A file, to be read.
    File {
        /// Its name for others.
        name: Name,
        /// Where it is.
        path: PathBuf,
    },
    /// A folder with all that is beneath it.
    Folder {
        /// Its name for others.
        name: Name,
        /// Where it is.
        path: PathBuf,
        /// Whether files may be written into it.
        writable: bool,
    },
    /// What was loaded into a GPU's memory, for others to read there.
    Loaded {
        /// Its name for others.
        name: Name,
        /// The bytes.
        region: crate::Region,
    },
    /// Memory, zeroed at the start, that others read and write.
    Memory {
        /// Its name for others.
        name: Name,
        /// How much.
        bytes: Bytes,
    },
}

/// What is behind one name.
pub(crate) enum Exposed {
    File(PathBuf),
    Folder(Folder),
    Memory(Region),
}

/// All names.
pub(crate) struct Exports(BTreeMap<Name, Exposed>);

impl Exports {
    /// Opens what is to be exposed.
    ///
    /// # Errors
    /// When something is not there, or two have one name.
    pub(crate) fn open(exports: &[Export], fabric: &Fabric) -> Result<Self, ServiceError> {
        if exports.len() > MAX_EXPORTS {
            return Err(ServiceError::TooMany {
                what: "names",
                limit: MAX_EXPORTS,
            });
        }
        let mut opened = BTreeMap::new();
        for export in exports {
            let (name, exposed) = match export {
                Export::File { name, path } => {
                    Source::open(path)?;
                    (name, Exposed::File(path.clone()))
                }
                Export::Folder {
                    name,
                    path,
                    writable,
                } => (name, Exposed::Folder(Folder::open(path, *writable)?)),
                Export::Loaded { name, region } => {
                    let buffer = Buffer::of_loaded(region)?;
                    let region = fabric.register(buffer, Access::READ)?;
                    (name, Exposed::Memory(region))
                }
                Export::Memory { name, bytes } => {
                    // It is given out before it is touched, and who touches too much is ended without a word.
                    if let Some(room) = limits::memory_room().filter(|room| *room < bytes.0) {
                        let bytes = bytes.0;
                        return Err(MemoryError::NoRoom { bytes, room }.into());
                    }
                    let len = usize::try_from(bytes.0).unwrap_or(usize::MAX);
                    let buffer = Buffer::zeroed(len, None)?;
                    let region = fabric.register(buffer, Access::READ_WRITE)?;
                    (name, Exposed::Memory(region))
                }
            };
            if opened.insert(name.clone(), exposed).is_some() {
                return Err(ServiceError::NameTaken {
                    name: name.to_string(),
                });
            }
        }
        Ok(Self(opened))
    }

    /// What is behind a name.
    ///
    /// # Errors
    /// [`ServiceError::NoSuchName`].
    pub(crate) fn get(&self, name: &Name) -> Result<&Exposed, ServiceError> {
        self.0.get(name).ok_or_else(|| ServiceError::NoSuchName {
            name: name.to_string(),
        })
    }
}

/// The files and folders in a folder by name, and how many others there are.
pub(crate) type Entries = (Vec<Entry>, u32);

/// An exposed folder.
pub(crate) struct Folder {
    root: OwnedFd,
    writable: bool,
}

/// What a path beneath a folder leads to.
pub(crate) enum Found {
    File(Box<Source>),
    Folder(Attributes),
}

impl Folder {
    pub(crate) fn open(path: &Path, writable: bool) -> Result<Self, ServiceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| ServiceError::file("open", path.display().to_string(), error))?;
        Ok(Self { root, writable })
    }

    /// Opens what a path leads to.
    ///
    /// # Errors
    /// When it leads nowhere, or out of the folder, or to what is neither file nor folder.
    pub(crate) fn find(&self, path: &RelativePath) -> Result<Found, ServiceError> {
        let failed = |error| refused(path, error);
        // Looking before opening: opening a device node or a FIFO can have effects of its own.
        let looked = beneath(self.root.as_fd(), at(path), OFlags::PATH).map_err(failed)?;
        let stat = rustix::fs::fstat(&looked).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Ok(Found::Folder(Attributes::from(&stat))),
            FileType::RegularFile => {}
            _ => return Err(no_file(path)),
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file: File = beneath(self.root.as_fd(), at(path), flags)
            .map_err(failed)?
            .into();
        let shown = Path::new(path.as_os_str());
        Ok(Found::File(Box::new(Source::opened(shown, file)?)))
    }

    /// The files and folders in a folder by name, and how many others there are.
    ///
    /// # Errors
    /// When it cannot be read, or has more than a listing may have.
    pub(crate) fn list(&self, path: &RelativePath, follow: bool) -> Result<Entries, ServiceError> {
        let failed = |error| refused(path, error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = beneath(self.root.as_fd(), at(path), flags).map_err(failed)?;
        let through = |name: &OsStr| {
            let target = path.join(name).ok()?;
            let there = beneath(self.root.as_fd(), at(&target), OFlags::PATH).ok()?;
            rustix::fs::fstat(there).ok()
        };
        let through: Option<&Through<'_>> = if follow { Some(&through) } else { None };
        list(&folder, &path.to_string(), through)
    }

    /// Makes a folder, and those on the way to it; whether it was not there before.
    ///
    /// # Errors
    /// When nothing may be written here, something else is there, or the way there leads elsewhere.
    pub(crate) fn make(&self, path: &RelativePath, wanted: &Wanted) -> Result<bool, ServiceError> {
        let failed = |error| refused(path, error);
        if path.is_empty() {
            return self.may_write(path).map(|()| false);
        }
        let (folder, name) = self.folder_for(path)?;
        match rustix::fs::mkdirat(&folder, name, wanted.of_new_folder()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => match self.open_folder(path) {
                Ok(_) => Ok(false),
                Err(ServiceError::WrongKind {
                    path,
                    found,
                    wanted,
                }) => Err(ServiceError::Occupied {
                    path,
                    found,
                    wanted,
                }),
                Err(error) => Err(error),
            },
            Err(error) => Err(failed(error)),
        }
    }

    /// Gives a folder beneath this one what it is to have.
    ///
    /// # Errors
    /// When nothing may be written here, or no such folder is there.
    pub(crate) fn finish(&self, path: &RelativePath, wanted: &Wanted) -> Result<(), ServiceError> {
        self.may_write(path)?;
        if path.is_empty() {
            return Err(ServiceError::Denied {
                path: path.to_string(),
                why: "the exposed folder itself stays as it is",
            });
        }
        let given = wanted.give(self.open_folder(path)?, None);
        given.map_err(|error| ServiceError::file("finish", path.to_string(), error))
    }

    /// Remembers the whole files in a folder no longer.
    ///
    /// # Errors
    /// When nothing may be written here, or it is no folder.
    pub(crate) fn forget(&self, path: &RelativePath) -> Result<(), ServiceError> {
        self.may_write(path)?;
        let forgotten = partial::forget(&self.open_folder(path)?);
        forgotten.map_err(|error| ServiceError::file("finish", path.to_string(), error))
    }

    fn open_folder(&self, path: &RelativePath) -> Result<OwnedFd, ServiceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        beneath(self.root.as_fd(), at(path), flags).map_err(|error| match error {
            Errno::NOTDIR => ServiceError::WrongKind {
                path: path.to_string(),
                found: "a file or device",
                wanted: "a folder",
            },
            error => refused(path, error),
        })
    }

    fn may_write(&self, path: &RelativePath) -> Result<(), ServiceError> {
        match self.writable {
            true => Ok(()),
            false => Err(ServiceError::ReadOnly {
                path: path.to_string(),
            }),
        }
    }

    /// Opens the folder that a new file is to lie in, making those that are missing.
    ///
    /// # Errors
    /// When nothing may be written here, or the way there leads elsewhere.
    pub(crate) fn folder_for<'p>(
        &self,
        path: &'p RelativePath,
    ) -> Result<(OwnedFd, &'p OsStr), ServiceError> {
        self.may_write(path)?;
        let (folder, name) = path.parted().ok_or_else(|| no_file(path))?;
        if is_unfinished(name) {
            return Err(ServiceError::Denied {
                path: path.to_string(),
                why: "files of this name are unfinished copies",
            });
        }
        let failed = |error| refused(path, error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut done = RelativePath::default();
        let mut here = beneath(self.root.as_fd(), at(&done), flags).map_err(failed)?;
        for component in folder.components() {
            done = done.join(component)?;
            let open = || beneath(self.root.as_fd(), at(&done), flags);
            here = match open() {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&here, component, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => open().map_err(failed)?,
                        Err(error) => return Err(failed(error)),
                    }
                }
                other => other.map_err(failed)?,
            };
        }
        Ok((here, name))
    }
}

/// What a link of this name leads to, if it may be followed there.
pub(crate) type Through<'f> = dyn Fn(&OsStr) -> Option<Stat> + 'f;

/// The files and folders in an open folder by name, and how many others there are. A link is neither,
/// unless it is to be looked `through`.
///
/// # Errors
/// When it cannot be read, or has more than a listing may have.
pub(crate) fn list(
    folder: &OwnedFd,
    shown: &str,
    through: Option<&Through<'_>>,
) -> Result<Entries, ServiceError> {
    let failed = |error: Errno| ServiceError::file(LIST, shown, error);
    let mut entries = Vec::new();
    let mut skipped = 0;
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." || is_unfinished(name) {
            continue;
        }
        // What vanished meanwhile is none of both.
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let of = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
        let stat = match (stat, through) {
            (Some(link), Some(through)) if of(&link) == FileType::Symlink => through(name),
            (stat, _) => stat,
        };
        let Some((stat, kind)) = stat.and_then(|stat| match of(&stat) {
            FileType::RegularFile => Some((stat, Kind::File)),
            FileType::Directory => Some((stat, Kind::Folder)),
            _ => None,
        }) else {
            skipped += 1;
            continue;
        };
        if name.len() > MAX_COMPONENT {
            skipped += 1;
            continue;
        }
        if entries.len() >= MAX_FOLDER {
            return Err(ServiceError::TooMany {
                what: "entries in one folder",
                limit: MAX_FOLDER,
            });
        }
        entries.push(Entry {
            name: name.to_owned(),
            kind,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            attributes: Attributes::from(&stat),
            id: identity(&stat),
        });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((entries, skipped))
}

/// What tells a file or folder from others.
fn identity(stat: &Stat) -> u64 {
    let parts = [stat.st_dev.to_le_bytes(), stat.st_ino.to_le_bytes()];
    digest::piece(&parts.concat())
}

/// A path for the kernel, which does not take an empty one.
fn at(path: &RelativePath) -> &OsStr {
    match path.is_empty() {
        true => OsStr::new("."),
        false => path.as_os_str(),
    }
}

fn beneath(root: BorrowedFd<'_>, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), BENEATH)
    })
}

fn no_file(path: &RelativePath) -> ServiceError {
    ServiceError::WrongKind {
        path: path.to_string(),
        found: "a folder, device or socket",
        wanted: "a file",
    }
}

fn refused(path: &RelativePath, error: Errno) -> ServiceError {
    let path = path.to_string();
    let denied = |why| ServiceError::Denied {
        path: path.clone(),
        why,
    };
    match error {
        Errno::NOENT | Errno::NOTDIR => ServiceError::NotFound { path },
        Errno::XDEV => denied("it leads out of what is exposed"),
        Errno::LOOP => denied("links on the way to it lead around in a circle"),
        Errno::ACCESS | Errno::PERM => denied("the server has no permission"),
        other => ServiceError::file("open", path, io::Error::from(other)),
    }
}

/// What identifies a state of a file for copies that are resumed.
pub(crate) fn tag(stamp: &Stamp) -> Tag {
    let mut hash = blake3::Hasher::new_derive_key("crowfly service file version 1");
    hash.update(&stamp.device.to_le_bytes());
    hash.update(&stamp.inode.to_le_bytes());
    hash.update(&stamp.len.to_le_bytes());
    hash.update(&stamp.modified_ns.to_le_bytes());
    let mut tag = [0; 16];
    tag.copy_from_slice(&hash.finalize().as_bytes()[..16]);
    Tag(tag)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> RelativePath {
        text.parse().expect("a path")
    }

    /// A folder with a file beside it that nobody may see.
    fn exposed(writable: bool) -> (tempfile::TempDir, Folder) {
        let around = tempfile::tempdir().expect("a folder");
        let root = around.path().join("root");
        std::fs::create_dir_all(root.join("inside/deep")).expect("made");
        std::fs::write(root.join("inside/file"), "seen").expect("written");
        std::fs::write(around.path().join("secret"), "hidden").expect("written");
        let folder = Folder::open(&root, writable).expect("opened");
        (around, folder)
    }

    fn code(found: Result<Found, ServiceError>) -> &'static str {
        found.map(drop).expect_err("refused").code()
    }

    #[test]
    fn given_links_out_of_the_folder_none_is_followed() {
        let (around, folder) = exposed(false);
        let root = around.path().join("root");
        symlink("../secret", root.join("up")).expect("linked");
        symlink(around.path().join("secret"), root.join("absolute")).expect("linked");
        symlink("..", root.join("parent")).expect("linked");
        symlink("/proc/self/root", root.join("magic")).expect("linked");
        symlink("inside/file", root.join("fine")).expect("linked");
        for bad in ["up", "absolute", "parent/secret", "magic/etc/hostname"] {
            assert_eq!(code(folder.find(&path(bad))), "access-denied", "{bad}");
        }
        assert!(matches!(folder.find(&path("fine")), Ok(Found::File(_))));
        let list = |follow| folder.list(&RelativePath::default(), follow);
        let (entries, skipped) = list(false).expect("listed");
        assert_eq!((entries.len(), skipped), (1, 5));
        let (entries, skipped) = list(true).expect("listed");
        let names: Vec<_> = entries.iter().map(|entry| entry.name.as_os_str()).collect();
        assert_eq!(
            (names, skipped),
            (vec![OsStr::new("fine"), OsStr::new("inside")], 4),
            "only what stays inside"
        );
    }

    #[test]
    fn given_what_is_no_file_it_is_not_opened() {
        let (around, folder) = exposed(false);
        let fifo = around.path().join("root/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).expect("made");
        assert_eq!(code(folder.find(&path("fifo"))), "not-a-file");
        assert_eq!(code(folder.find(&path("nothing"))), "not-found");
        assert_eq!(code(folder.find(&path("inside/file/below"))), "not-found");
        assert!(matches!(folder.find(&path("inside")), Ok(Found::Folder(_))));
    }

    #[test]
    fn given_a_new_file_the_folders_on_the_way_are_made_and_lead_nowhere_else() {
        let (around, folder) = exposed(true);
        folder.folder_for(&path("new/below/file")).expect("made");
        assert!(around.path().join("root/new/below").is_dir());
        symlink("..", around.path().join("root/out")).expect("linked");
        let error = folder.folder_for(&path("out/file")).map(drop);
        assert_eq!(error.expect_err("outside").code(), "access-denied");
        let error = folder.folder_for(&path(".x.crowfly-partial")).map(drop);
        assert_eq!(error.expect_err("unfinished").code(), "access-denied");
        let (_kept, read_only) = exposed(false);
        let error = read_only.folder_for(&path("file")).map(drop);
        assert_eq!(error.expect_err("read only").code(), "read-only");
    }
}
