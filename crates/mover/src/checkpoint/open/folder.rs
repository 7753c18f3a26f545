//! A folder: by its index if it has one, else all its safetensors files.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

use super::{Checkpoint, Kind, numbering, open_safetensors};
use crate::checkpoint::error::{CheckpointError, NamedBy, OtherFormat};
use crate::checkpoint::file::CheckpointFile;
use crate::checkpoint::index::{INDEX_SUFFIX, MAX_SHARDS, SHARD_SUFFIX};
use crate::checkpoint::quoted::Quoted;

/// The index that counts where a folder holds several.
const USUAL_INDEX: &str = "model.safetensors.index.json";

/// What matters among a folder's entries.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) shards: Vec<OsString>,
    indexes: Vec<OsString>,
    other_format: Option<OtherFormat>,
}

pub(super) fn open(folder: &Path) -> Result<Checkpoint, CheckpointError> {
    let listing = list(folder)?;
    if let Some(index) = choose_index(folder, &listing.indexes)? {
        return Checkpoint::open_index(folder, &folder.join(index));
    }
    if listing.shards.is_empty() {
        return Err(CheckpointError::NoSafetensors {
            folder: folder.to_owned(),
            other_format: listing.other_format,
        });
    }
    let names: Vec<&str> = listing.shards.iter().filter_map(|n| n.to_str()).collect();
    if let Some(missing) = numbering::first_missing(&names) {
        return Err(CheckpointError::MissingShard {
            folder: folder.to_owned(),
            shard: missing.as_str().into(),
            named_by: NamedBy::Siblings,
        });
    }
    let files = listing
        .shards
        .iter()
        .map(|name| open_safetensors(&folder.join(name)))
        .collect::<Result<Vec<_>, _>>()?;
    refuse_collisions(&files)?;
    Ok(Checkpoint {
        path: folder.to_owned(),
        kind: Kind::Folder,
        files,
        notes: Vec::new(),
    })
}

/// Looks through a folder once; names come back sorted, whatever order the file system has.
pub(super) fn list(folder: &Path) -> Result<Listing, CheckpointError> {
    let failed = |error| CheckpointError::io(folder, "list", error);
    let mut listing = Listing::default();
    for entry in folder.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let bytes = name.as_encoded_bytes();
        // macOS leaves `._model.safetensors` beside the real file, and downloads begin with a dot.
        if bytes.starts_with(b".") {
            continue;
        }
        if bytes.ends_with(SHARD_SUFFIX.as_bytes()) {
            listing.shards.push(name);
        } else if bytes.ends_with(INDEX_SUFFIX.as_bytes()) {
            listing.indexes.push(name);
        } else if listing.other_format.is_none() {
            listing.other_format = other_format(bytes);
        }
        if listing.shards.len().max(listing.indexes.len()) > MAX_SHARDS {
            return Err(CheckpointError::TooManyFiles {
                folder: folder.to_owned(),
            });
        }
    }
    listing.shards.sort_unstable();
    listing.indexes.sort_unstable();
    Ok(listing)
}

fn other_format(name: &[u8]) -> Option<OtherFormat> {
    let ends = |suffix: &[u8]| name.ends_with(suffix);
    if ends(b".bin") || ends(b".pt") || ends(b".pth") {
        Some(OtherFormat::PyTorch)
    } else if ends(b".gguf") {
        Some(OtherFormat::Gguf)
    } else if ends(b".distcp") {
        Some(OtherFormat::DistributedCheckpoint)
    } else {
        None
    }
}

fn choose_index<'a>(
    folder: &Path,
    indexes: &'a [OsString],
) -> Result<Option<&'a OsString>, CheckpointError> {
    match indexes {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        several => match several.iter().find(|name| *name == USUAL_INDEX) {
            Some(usual) => Ok(Some(usual)),
            None => Err(CheckpointError::SeveralIndexes {
                folder: folder.to_owned(),
                indexes: several
                    .iter()
                    .map(|name| Quoted::from(name.to_string_lossy().as_ref()))
                    .collect(),
            }),
        },
    }
}

fn refuse_collisions(files: &[CheckpointFile]) -> Result<(), CheckpointError> {
    let mut holder = HashMap::new();
    for file in files {
        for tensor in file.tensors() {
            if let Some(first) = holder.insert(tensor.name, file) {
                return Err(CheckpointError::TensorInTwoFiles {
                    tensor: tensor.name.into(),
                    first: first.path.clone(),
                    second: file.path.clone(),
                });
            }
        }
    }
    Ok(())
}
