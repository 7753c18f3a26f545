//! Opening a checkpoint: a file, an index, or a folder of either.

mod folder;
mod numbering;
mod sharded;

use std::io::Read;
use std::path::{Path, PathBuf};

use crowfly_route::units::Bytes;

use super::error::{CheckpointError, Note};
use super::file::{CheckpointFile, look_at, open_regular};
use super::header::{Header, Tensor};
use super::index::{INDEX_SUFFIX, Index, IndexError, MAX_INDEX_BYTES, SHARD_SUFFIX};

/// A checkpoint whose headers have been read and agree with each other.
///
/// Only headers and indexes were read and no file is kept open; [`CheckpointFile::stamp`] tells
/// whether a file is still the one that was looked at.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    kind: Kind,
    files: Vec<CheckpointFile>,
    notes: Vec<Note>,
}

/// What kind of checkpoint a path led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One file that is not named `.safetensors`: bytes without tensors.
    Raw,
    /// One safetensors file.
    SingleFile,
    /// Safetensors files that an index names.
    Indexed {
        /// The index's path.
        index: PathBuf,
    },
    /// All safetensors files of a folder that has no index.
    Folder,
}

/// The place of a file among [`Checkpoint::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

/// The place of a tensor: its file, and its place in the file's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId {
    /// The file.
    pub file: FileNumber,
    /// The place among the file's tensors, from 0.
    pub number: u32,
}

impl Checkpoint {
    /// Opens what `path` names:
    ///
    /// - a file whose name ends with `.safetensors`: that file;
    /// - one that ends with `.safetensors.index.json`: the files it names, beside it;
    /// - any other regular file: raw bytes;
    /// - a folder: by `model.safetensors.index.json`, or by its only index, or else all its
    ///   `.safetensors` files (hidden ones left out) if no two hold a tensor of the same name.
    ///
    /// Symbolic links are followed, since model caches are made of them, but the index itself may
    /// only name files beside it.
    ///
    /// # Errors
    /// See [`CheckpointError`]. Nothing that could block, such as a FIFO, is opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        if look_at(path)?.is_dir() {
            return folder::open(path);
        }
        if name_ends_with(path, INDEX_SUFFIX) {
            return Self::open_index(path, path);
        }
        let (kind, file) = if name_ends_with(path, SHARD_SUFFIX) {
            (Kind::SingleFile, open_safetensors(path)?)
        } else {
            (Kind::Raw, open_raw(path)?)
        };
        Ok(Self {
            path: path.to_owned(),
            kind,
            files: vec![file],
            notes: Vec::new(),
        })
    }

    /// Opens a file as safetensors, whatever its name.
    ///
    /// # Errors
    /// See [`CheckpointError`].
    pub fn open_safetensors(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        Ok(Self {
            path: path.to_owned(),
            kind: Kind::SingleFile,
            files: vec![open_safetensors(path)?],
            notes: Vec::new(),
        })
    }

    fn open_index(path: &Path, index_path: &Path) -> Result<Self, CheckpointError> {
        let index = read_index(index_path)?;
        let (files, notes) = sharded::open(&index, index_path)?;
        Ok(Self {
            path: path.to_owned(),
            kind: Kind::Indexed {
                index: index_path.to_owned(),
            },
            files,
            notes,
        })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What kind of checkpoint it is.
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    /// The file with this number.
    pub fn file(&self, number: FileNumber) -> Option<&CheckpointFile> {
        self.files.get(number.0 as usize)
    }

    /// What was odd, though no reason to refuse.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The bytes that loading everything moves: all tensors, or all of a raw file.
    pub fn bytes(&self) -> Bytes {
        self.files.iter().map(CheckpointFile::bytes).sum()
    }

    /// How many tensors all files hold.
    pub fn tensor_count(&self) -> usize {
        self.files
            .iter()
            .filter_map(CheckpointFile::header)
            .map(Header::len)
            .sum()
    }

    /// All tensors, file by file, each in its file's order.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, Tensor<'_>)> + Clone {
        (0..).zip(&self.files).flat_map(|(file, opened)| {
            (0..).zip(opened.tensors()).map(move |(number, tensor)| {
                let file = FileNumber(file);
                (TensorId { file, number }, tensor)
            })
        })
    }

    /// The tensor with this name, and where it is.
    pub fn get(&self, name: &str) -> Option<(TensorId, Tensor<'_>)> {
        (0..).zip(&self.files).find_map(|(file, opened)| {
            let header = opened.header()?;
            let number = header.find(name)?;
            let id = TensorId {
                file: FileNumber(file),
                number: u32::try_from(number).ok()?,
            };
            Some((id, header.tensor(number)?))
        })
    }
}

fn name_ends_with(path: &Path, suffix: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().ends_with(suffix.as_bytes()))
}

fn open_raw(path: &Path) -> Result<CheckpointFile, CheckpointError> {
    let (_, stamp) = open_regular(path)?;
    Ok(CheckpointFile {
        path: path.to_owned(),
        stamp,
        header: None,
    })
}

fn open_safetensors(path: &Path) -> Result<CheckpointFile, CheckpointError> {
    let (mut file, stamp) = open_regular(path)?;
    let header = Header::read_from(&mut file).map_err(|source| CheckpointError::Header {
        file: path.to_owned(),
        source,
    })?;
    Ok(CheckpointFile {
        path: path.to_owned(),
        stamp,
        header: Some(header),
    })
}

fn read_index(path: &Path) -> Result<Index, CheckpointError> {
    let refuse = |source| CheckpointError::Index {
        index: path.to_owned(),
        source,
    };
    let (file, stamp) = open_regular(path)?;
    if stamp.len > MAX_INDEX_BYTES {
        return Err(refuse(IndexError::TooLong { len: stamp.len }));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, so that an index that grew meanwhile is refused, not cut.
    file.take(MAX_INDEX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CheckpointError::io(path, "read", error))?;
    Index::parse(&bytes).map_err(refuse)
}
