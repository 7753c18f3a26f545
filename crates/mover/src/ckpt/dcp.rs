//! Distributed checkpoints of PyTorch: a `.metadata` that is a pickle, and `.distcp` files that are
//! archives of `torch.save` laid end to end.
//!
//! No pickle is executed. [`pickle`] reads the opcodes that PyTorch writes into plain values and
//! refuses every class that is not on a short list; the rest of this module looks for what it needs
//! among these values. The tensors themselves are stored as they are, so that they are read from
//! the drive like those of any other format.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

mod error;
mod metadata;
pub mod pickle;
mod tensor;
mod zip;

pub use error::DcpError;

use super::archive::{ArchivedPart, ArchivedTensor};
use super::extent::Extent;
use super::manifest::MAX_PARTS;
use super::store::read_bounded;
use metadata::{Chunk, Item};
use zip::Archive;

/// The name of the file that says what is where.
pub(super) const METADATA_NAME: &str = ".metadata";

/// The longest `.metadata` that is read, in bytes.
pub const MAX_METADATA_BYTES: u64 = 256 << 20;

/// The longest pickle of a single item that is read, in bytes: a tensor's takes some hundred.
const MAX_ITEM_PICKLE_BYTES: u64 = 1 << 20;

/// What a distributed checkpoint holds.
pub(super) struct Contents {
    pub files: Vec<(PathBuf, u64)>,
    pub tensors: BTreeMap<String, ArchivedTensor>,
    pub objects: BTreeMap<String, Json>,
    pub paths: BTreeMap<String, Vec<Json>>,
    pub notes: Vec<String>,
}

/// The open files of a checkpoint, by name.
struct Files<'a> {
    folder: &'a Path,
    numbers: HashMap<String, usize>,
    opened: Vec<(File, PathBuf, u64)>,
}

impl<'a> Files<'a> {
    fn new(folder: &'a Path) -> Self {
        Self {
            folder,
            numbers: HashMap::new(),
            opened: Vec::new(),
        }
    }

    /// The file with this name, opened once. Only plain names are followed.
    fn number(&mut self, name: &str, item: &str) -> Result<usize, DcpError> {
        use std::os::unix::fs::OpenOptionsExt;
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name == ".." || name == "." {
            return Err(DcpError::FileName {
                item: item.into(),
                name: name.into(),
            });
        }
        let path = self.folder.join(name);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => DcpError::MissingFile {
                path: path.clone(),
                item: item.into(),
            },
            _ => DcpError::Io {
                path: path.clone(),
                source,
            },
        };
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(&path)
            .map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a file",
            )));
        }
        let number = self.opened.len();
        self.opened.push((file, path.clone(), metadata.len()));
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Reads the directory of the archive that an item is.
    fn archive(&self, number: usize, item: &Item, name: &str) -> Result<Archive<'_>, DcpError> {
        let (file, path, length) = self.opened.get(number).ok_or_else(|| DcpError::Metadata {
            what: "it names a file that was not opened".into(),
        })?;
        let end = item.offset.checked_add(item.length);
        if end.is_none_or(|end| end > *length) {
            return Err(DcpError::PastEnd {
                path: path.clone(),
                item: name.into(),
                offset: item.offset,
                bytes: item.length,
                file_bytes: *length,
            });
        }
        Archive::read(file, item.offset, item.length).map_err(|what| DcpError::Item {
            path: path.clone(),
            item: name.into(),
            offset: item.offset,
            what,
        })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.opened
            .get(number)
            .map_or_else(PathBuf::new, |(_, path, _)| path.clone())
    }
}

/// Reads exactly so many bytes at an offset.
fn read_at(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset)?;
    Ok(buffer)
}

/// Opens the distributed checkpoint in a folder.
pub(super) fn open(folder: &Path) -> Result<Contents, DcpError> {
    let path = folder.join(METADATA_NAME);
    let bytes =
        read_bounded(&path, MAX_METADATA_BYTES).map_err(|source| DcpError::Io { path, source })?;
    let described = metadata::read(&bytes)?;
    let mut files = Files::new(folder);
    let mut tensors = BTreeMap::new();
    for tensor in described.tensors {
        if tensor.chunks.len() > MAX_PARTS {
            return Err(DcpError::Metadata {
                what: format!(
                    "tensor {:?} comes in more than {MAX_PARTS} parts",
                    tensor.name
                ),
            });
        }
        let mut parts = Vec::with_capacity(tensor.chunks.len());
        for Chunk { extent, item } in tensor.chunks {
            if !extent.fits(&tensor.shape) {
                return Err(DcpError::Metadata {
                    what: format!(
                        "the part {extent} of tensor {:?} does not lie in its shape {:?}",
                        tensor.name, tensor.shape
                    ),
                });
            }
            let number = files.number(&item.file, &tensor.name)?;
            let archive = files.archive(number, &item, &tensor.name)?;
            let stored = tensor::find(&archive, tensor.dtype, &extent.shape).map_err(|what| {
                DcpError::Item {
                    path: files.path(number),
                    item: tensor.name.as_str().into(),
                    offset: item.offset,
                    what,
                }
            })?;
            parts.push(ArchivedPart {
                file: number,
                key: tensor.name.clone(),
                extent,
                range: stored.range,
                sums: None,
                strides: stored.strides,
            });
        }
        let extents: Vec<Extent> = parts.iter().map(|part| part.extent.clone()).collect();
        super::manifest::covered(&tensor.name, &tensor.shape, &extents)
            .map_err(|error| DcpError::Cover(Box::new(error)))?;
        tensors.insert(
            tensor.name,
            ArchivedTensor {
                dtype: tensor.dtype,
                shape: tensor.shape,
                parts,
            },
        );
    }
    let mut objects = BTreeMap::new();
    let mut opaque = Vec::new();
    for (name, item) in described.objects {
        let number = files.number(&item.file, &name)?;
        let archive = files.archive(number, &item, &name)?;
        match value_of(&archive) {
            Some(value) => {
                objects.insert(name, value);
            }
            None => opaque.push(name),
        }
    }
    let mut notes = Vec::new();
    if !opaque.is_empty() {
        notes.push(format!(
            "values that are no plain ones are left alone, because reading them would be executing \
             them: {}",
            super::store::some(&opaque)
        ));
    }
    let files = files.opened.into_iter();
    Ok(Contents {
        files: files.map(|(_, path, length)| (path, length)).collect(),
        tensors,
        objects,
        paths: described.paths,
        notes,
    })
}

/// An item that holds nothing but numbers, text, lists and dictionaries.
fn value_of(archive: &Archive<'_>) -> Option<Json> {
    let entry = archive.find("data.pkl")?;
    let bytes = archive.contents(entry, MAX_ITEM_PICKLE_BYTES).ok()?;
    pickle::Pickle::parse(&bytes, &[]).ok()?.to_json()
}
