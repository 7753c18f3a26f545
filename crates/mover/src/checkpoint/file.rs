//! One file of a checkpoint, and how it is opened without surprises.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crowfly_route::units::Bytes;

use super::error::CheckpointError;
use super::header::{Header, Tensor};
use crate::error::{NO_SIZE, TransferError};
use crate::source::Source;

/// A file whose bytes belong to a checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointFile {
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
    pub(super) header: Option<Header>,
}

/// What identified a file when it was looked at. If it differs later, what was learnt of the file
/// no longer describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file system's device number.
    pub device: u64,
    /// The number of the file in it.
    pub inode: u64,
    /// Length in bytes.
    pub len: u64,
    /// Last modification, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl Stamp {
    /// The stamp of an open file.
    ///
    /// # Errors
    /// What the operating system answers to `fstat`.
    pub fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        }
    }
}

impl CheckpointFile {
    /// The path the file was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What identified it then.
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Its header; `None` for a file of raw bytes.
    pub const fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Its tensors in file order; none in a file of raw bytes.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> + Clone {
        self.header.iter().flat_map(Header::tensors)
    }

    /// The bytes that a load moves, as offsets in the file: all tensors, or all of a raw file.
    pub fn data(&self) -> Range<u64> {
        match &self.header {
            Some(header) => header.data(),
            None => 0..self.stamp.len,
        }
    }

    /// Opens the file for loading.
    ///
    /// # Errors
    /// When it cannot be opened, or is no longer what its header was read from: the ranges of the
    /// tensors would then be those of another file.
    pub fn source(&self) -> Result<Source, TransferError> {
        let source = Source::open(&self.path)?;
        source.is_still(self.stamp)?;
        Ok(source)
    }

    /// How many bytes [`Self::data`] spans.
    pub fn bytes(&self) -> Bytes {
        let data = self.data();
        Bytes(data.end - data.start)
    }
}

/// What stands at a path where a regular file was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NotAFile {
    Directory,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
    WithoutSize,
    Other,
}

impl NotAFile {
    /// The words for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::WithoutSize => NO_SIZE,
            Self::Other => "not a file",
        }
    }
}

impl fmt::Display for NotAFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What stands there, by its metadata, where it is no regular file.
pub(crate) fn not_a_file(metadata: &Metadata) -> Option<NotAFile> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some(NotAFile::Directory)
    } else if kind.is_fifo() {
        Some(NotAFile::Fifo)
    } else if kind.is_socket() {
        Some(NotAFile::Socket)
    } else if kind.is_char_device() {
        Some(NotAFile::CharacterDevice)
    } else if kind.is_block_device() {
        Some(NotAFile::BlockDevice)
    } else {
        Some(NotAFile::Other)
    }
}

/// Looks at what a path leads to, symbolic links followed.
pub(super) fn look_at(path: &Path) -> Result<Metadata, CheckpointError> {
    path.metadata().map_err(|error| {
        let dangling = error.kind() == io::ErrorKind::NotFound && path.is_symlink();
        if dangling {
            CheckpointError::DanglingLink {
                path: path.to_owned(),
            }
        } else {
            CheckpointError::io(path, "look at", error)
        }
    })
}

/// Opens a regular file for reading and nothing else.
///
/// The kind is looked at first, because opening a device can have effects and opening a FIFO waits
/// for a writer; should the path be exchanged in between, `O_NONBLOCK` keeps the call from waiting
/// and the second look finds it out.
pub(super) fn open_regular(path: &Path) -> Result<(File, Stamp), CheckpointError> {
    let refuse = |kind| CheckpointError::NotAFile {
        path: path.to_owned(),
        kind,
    };
    if let Some(kind) = not_a_file(&look_at(path)?) {
        return Err(refuse(kind));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| CheckpointError::io(path, "open", error))?;
    let metadata = file
        .metadata()
        .map_err(|error| CheckpointError::io(path, "look at", error))?;
    if let Some(kind) = not_a_file(&metadata) {
        return Err(refuse(kind));
    }
    match crate::source::says_its_size(&file, metadata.len()) {
        true => Ok((file, Stamp::from(&metadata))),
        false => Err(refuse(NotAFile::WithoutSize)),
    }
}
