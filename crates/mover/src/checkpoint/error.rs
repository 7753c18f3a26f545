//! Why a checkpoint could not be opened, and what was noticed about one that could.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crowfly_route::units::Bytes;

use super::file::NotAFile;
use super::header::HeaderReadError;
use super::index::{IndexError, MAX_SHARDS, TotalSize};
use super::quoted::Quoted;

/// Why a checkpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CheckpointError {
    #[error("there is nothing at {path:?}")]
    NotFound { path: PathBuf },
    #[error("{path:?} is a symbolic link to something that is not there")]
    DanglingLink { path: PathBuf },
    #[error("not permitted to {action} {path:?}")]
    Denied { path: PathBuf, action: &'static str },
    #[error("{path:?} is {kind}; a checkpoint is a regular file or a folder of them")]
    NotAFile { path: PathBuf, kind: NotAFile },
    #[error("cannot {action} {path:?}")]
    Io {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },
    #[error("the folder {folder:?} holds no safetensors file{}", other_format.map(|o| format!(", but {o}")).unwrap_or_default())]
    NoSafetensors {
        folder: PathBuf,
        other_format: Option<OtherFormat>,
    },
    #[error("the folder {folder:?} holds several indexes: {}", list(indexes))]
    SeveralIndexes {
        folder: PathBuf,
        indexes: Vec<Quoted>,
    },
    #[error("the folder {folder:?} holds more than {MAX_SHARDS} safetensors files")]
    TooManyFiles { folder: PathBuf },
    #[error("the header of {file:?} is refused")]
    Header {
        file: PathBuf,
        source: HeaderReadError,
    },
    #[error("the index {index:?} is refused")]
    Index { index: PathBuf, source: IndexError },
    #[error("the file {shard} is missing from {folder:?}: {named_by}")]
    MissingShard {
        folder: PathBuf,
        shard: Quoted,
        named_by: NamedBy,
    },
    #[error("the index {index:?} places tensor {tensor} in {shard}, which does not hold it{}", found_in.as_ref().map(|f| format!(" ({f} does)")).unwrap_or_default())]
    TensorNotInShard {
        index: PathBuf,
        tensor: Quoted,
        shard: Quoted,
        found_in: Option<Quoted>,
    },
    #[error("{shard:?} holds tensor {tensor}, which the index {index:?} {}", match listed_in { Some(other) => format!("places in {other}"), None => "does not list".to_owned() })]
    TensorNotInIndex {
        index: PathBuf,
        tensor: Quoted,
        shard: PathBuf,
        listed_in: Option<Quoted>,
    },
    #[error("{first:?} and {second:?} both hold a tensor named {tensor}")]
    TensorInTwoFiles {
        tensor: Quoted,
        first: PathBuf,
        second: PathBuf,
    },
}

/// Who names a file that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The index, for this tensor.
    Index {
        /// The index's path.
        index: PathBuf,
        /// One tensor it places in the file.
        tensor: Quoted,
    },
    /// The numbering of the other files, `…-00001-of-00004.safetensors`.
    Siblings,
}

impl fmt::Display for NamedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index { index, tensor } => {
                write!(f, "the index {index:?} places tensor {tensor} there")
            }
            Self::Siblings => f.write_str("the other files are numbered as parts with it"),
        }
    }
}

/// A known format that is not safetensors, found in a folder without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum OtherFormat {
    PyTorch,
    Gguf,
    DistributedCheckpoint,
}

impl fmt::Display for OtherFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PyTorch => "PyTorch files (.bin, .pt, .pth)",
            Self::Gguf => "GGUF files",
            Self::DistributedCheckpoint => "a PyTorch distributed checkpoint (.distcp)",
        })
    }
}

impl CheckpointError {
    /// An error of the operating system, with *absent* and *denied* kept apart from the rest.
    pub(super) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path, action },
            _ => Self::Io {
                path,
                action,
                source,
            },
        }
    }

    /// The stable name of this failure; that of the header's or the index's fault where it is one.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not-found",
            Self::DanglingLink { .. } => "dangling-link",
            Self::Denied { .. } => "denied",
            Self::NotAFile { .. } => "not-a-file",
            Self::Io { .. } => "io-failed",
            Self::NoSafetensors { .. } => "no-safetensors",
            Self::SeveralIndexes { .. } => "several-indexes",
            Self::TooManyFiles { .. } => "too-many-files",
            Self::Header { source, .. } => source.code(),
            Self::Index { source, .. } => source.code(),
            Self::MissingShard { .. } => "missing-shard",
            Self::TensorNotInShard { .. } => "tensor-not-in-shard",
            Self::TensorNotInIndex { .. } => "tensor-not-in-index",
            Self::TensorInTwoFiles { .. } => "tensor-in-two-files",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::DanglingLink { .. } => {
                Some("a Hugging Face cache links to blobs; the download was probably interrupted")
            }
            Self::Denied { .. } => Some("check the owner and mode of the file and its folders"),
            Self::NotAFile {
                kind: NotAFile::Directory,
                ..
            } => None,
            Self::NotAFile {
                kind: NotAFile::BlockDevice,
                ..
            } => Some("copy the bytes to a file first: a device says nothing of tensors"),
            Self::NotAFile { .. } => Some(
                "copy the bytes to a file first; where they come from cannot be read at random",
            ),
            Self::NoSafetensors { other_format, .. } => match other_format {
                Some(OtherFormat::PyTorch) => {
                    Some("convert them to safetensors, or name one file to load its raw bytes")
                }
                _ => Some("name the folder that holds the files themselves, or one file"),
            },
            Self::SeveralIndexes { .. } => Some("name the index to load in place of the folder"),
            Self::Header { source, .. } => source.hint(),
            Self::Index { source, .. } => source.hint(),
            Self::MissingShard { .. } => Some("fetch the missing file again"),
            Self::TensorNotInShard { .. } | Self::TensorNotInIndex { .. } => {
                Some("the index and the files are of different versions; fetch them again")
            }
            Self::TensorInTwoFiles { .. } => Some(
                "the folder holds two models or two versions of one; name one file or an index",
            ),
            Self::NotFound { .. } | Self::Io { .. } | Self::TooManyFiles { .. } => None,
        }
    }
}

/// Something odd about a checkpoint that can be loaded all the same.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The index's `total_size` is not the sum of the tensors. Many published models have it wrong
    /// (some writers counted shared tensors twice, or files instead of tensors), and nothing is read
    /// by it, so it is no error.
    TotalSizeDiffers {
        /// What the index says.
        said: TotalSize,
        /// The sum of all tensors.
        found: Bytes,
    },
    /// Safetensors files beside the index that it does not name; they are not loaded.
    NotInIndex {
        /// Their names.
        files: Vec<Quoted>,
    },
    /// The index's folder could not be listed, so nobody looked for files it does not name.
    NotListed {
        /// Why, in the operating system's words.
        why: Quoted,
    },
}

impl Note {
    /// The stable name of this note.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TotalSizeDiffers { .. } => "total-size-differs",
            Self::NotInIndex { .. } => "files-not-in-index",
            Self::NotListed { .. } => "folder-not-listed",
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TotalSizeDiffers { said, found } => {
                let said = match said {
                    TotalSize::Bytes(bytes) => format!("{bytes} bytes"),
                    TotalSize::Unusable(text) => text.to_string(),
                };
                write!(
                    f,
                    "the index says the tensors take {said}; they take {} bytes",
                    found.0
                )
            }
            Self::NotInIndex { files } => write!(
                f,
                "not loaded, because the index does not name them: {}",
                list(files)
            ),
            Self::NotListed { why } => {
                write!(
                    f,
                    "did not look for files that the index does not name: {why}"
                )
            }
        }
    }
}

fn list(names: &[Quoted]) -> String {
    /// Names beyond this many are counted only.
    const MOST_SHOWN: usize = 5;
    let shown: Vec<String> = names
        .iter()
        .take(MOST_SHOWN)
        .map(Quoted::to_string)
        .collect();
    match names.len().saturating_sub(MOST_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
