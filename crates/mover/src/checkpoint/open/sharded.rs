//! The files that an index names, checked against it in both directions.

use std::collections::HashSet;
use std::path::Path;

use crowfly_route::units::Bytes;

use super::{folder, open_safetensors};
use crate::checkpoint::error::{CheckpointError, NamedBy, Note};
use crate::checkpoint::file::CheckpointFile;
use crate::checkpoint::header::Header;
use crate::checkpoint::index::{Index, TotalSize};
use crate::checkpoint::quoted::Quoted;

pub(super) fn open(
    index: &Index,
    index_path: &Path,
) -> Result<(Vec<CheckpointFile>, Vec<Note>), CheckpointError> {
    let folder = match index_path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let opened = Opened::all(index, index_path, folder)?;
    opened.hold_what_the_index_says(index_path)?;
    opened.hold_nothing_else(index_path)?;

    let mut notes = Vec::new();
    notes.extend(total_size_note(index, &opened.files));
    notes.extend(strays_note(index, folder));
    Ok((opened.in_name_order(), notes))
}

/// The files in the order the index names them.
struct Opened<'i> {
    index: &'i Index,
    names: Vec<&'i str>,
    files: Vec<CheckpointFile>,
}

impl<'i> Opened<'i> {
    fn all(index: &'i Index, index_path: &Path, folder: &Path) -> Result<Self, CheckpointError> {
        let names: Vec<&str> = index.shards().collect();
        let files = names
            .iter()
            .enumerate()
            .map(|(number, name)| {
                open_safetensors(&folder.join(name)).map_err(|error| match error {
                    CheckpointError::NotFound { .. } => {
                        missing(index, index_path, folder, number, name)
                    }
                    other => other,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            index,
            names,
            files,
        })
    }

    fn hold_what_the_index_says(&self, index_path: &Path) -> Result<(), CheckpointError> {
        for (tensor, shard) in self.index.tensors() {
            if self.holds(shard, tensor) {
                continue;
            }
            let holder = (0..self.files.len()).find(|&other| self.holds(other, tensor));
            return Err(CheckpointError::TensorNotInShard {
                index: index_path.to_owned(),
                tensor: tensor.into(),
                shard: self.name(shard),
                found_in: holder.map(|other| self.name(other)),
            });
        }
        Ok(())
    }

    /// Comes after [`Self::hold_what_the_index_says`]: a file then holds every tensor listed for it,
    /// and where it holds as many as are listed it holds no other.
    fn hold_nothing_else(&self, index_path: &Path) -> Result<(), CheckpointError> {
        let mut counts = vec![0; self.files.len()];
        for (_, shard) in self.index.tensors() {
            if let Some(slot) = counts.get_mut(shard) {
                *slot += 1;
            }
        }
        for (number, (file, count)) in self.files.iter().zip(counts).enumerate() {
            if file.header().map(Header::len) == Some(count) {
                continue;
            }
            for tensor in file.tensors() {
                let listed = self.index.shard_of(tensor.name);
                if listed != Some(number) {
                    return Err(CheckpointError::TensorNotInIndex {
                        index: index_path.to_owned(),
                        tensor: tensor.name.into(),
                        shard: file.path.clone(),
                        listed_in: listed.map(|other| self.name(other)),
                    });
                }
            }
        }
        Ok(())
    }

    fn holds(&self, shard: usize, tensor: &str) -> bool {
        self.files
            .get(shard)
            .and_then(CheckpointFile::header)
            .is_some_and(|header| header.find(tensor).is_some())
    }

    fn name(&self, shard: usize) -> Quoted {
        self.names.get(shard).copied().unwrap_or_default().into()
    }

    /// Sorted, so that a checkpoint lists its files alike with and without an index.
    fn in_name_order(mut self) -> Vec<CheckpointFile> {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.files
    }
}

fn missing(
    index: &Index,
    index_path: &Path,
    folder: &Path,
    number: usize,
    name: &str,
) -> CheckpointError {
    let tensor = index
        .tensors()
        .find_map(|(tensor, shard)| (shard == number).then_some(tensor))
        .unwrap_or_default();
    CheckpointError::MissingShard {
        folder: folder.to_owned(),
        shard: name.into(),
        named_by: NamedBy::Index {
            index: index_path.to_owned(),
            tensor: tensor.into(),
        },
    }
}

fn total_size_note(index: &Index, files: &[CheckpointFile]) -> Option<Note> {
    let found: Bytes = files.iter().map(CheckpointFile::bytes).sum();
    let said = index.total_size()?;
    (*said != TotalSize::Bytes(found.0)).then(|| Note::TotalSizeDiffers {
        said: said.clone(),
        found,
    })
}

fn strays_note(index: &Index, folder: &Path) -> Option<Note> {
    let listing = match folder::list(folder) {
        Ok(listing) => listing,
        Err(error) => {
            let why = error.to_string().as_str().into();
            return Some(Note::NotListed { why });
        }
    };
    let named: HashSet<&str> = index.shards().collect();
    let files: Vec<Quoted> = listing
        .shards
        .iter()
        .map(|name| name.to_string_lossy())
        .filter(|name| !named.contains(name.as_ref()))
        .map(|name| name.as_ref().into())
        .collect();
    (!files.is_empty()).then_some(Note::NotInIndex { files })
}
