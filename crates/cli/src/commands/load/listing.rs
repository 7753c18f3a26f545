//! `crowfly load --list`: what a checkpoint holds.

use std::path::Path;

use crowfly_mover::checkpoint::select::Selection;
use crowfly_mover::checkpoint::{Checkpoint, Kind, Note};
use crowfly_route::units::Bytes;
use serde::Serialize;

use crate::path::as_text;

/// The version of the JSON form of a listing.
pub const LISTING_SCHEMA: &str = "crowfly.tensors/1";

/// The selected tensors of a checkpoint, file by file.
#[derive(Debug, Serialize)]
pub struct Listing<'a> {
    schema: &'static str,
    /// What was asked for.
    #[serde(serialize_with = "as_text")]
    pub path: &'a Path,
    /// `raw`, `file`, `indexed` or `folder`.
    pub kind: &'static str,
    /// Bytes of the selected tensors; of a raw file, all of it.
    pub bytes: Bytes,
    /// The files with anything selected.
    pub files: Vec<FileEntry<'a>>,
    /// The selected tensors.
    pub tensors: Vec<TensorEntry<'a>>,
    /// What was odd, though no reason to refuse.
    pub notes: Vec<String>,
}

/// A file of the checkpoint.
#[derive(Debug, Serialize)]
pub struct FileEntry<'a> {
    /// Its path.
    #[serde(serialize_with = "as_text")]
    pub path: &'a Path,
    /// Its data, headers left out.
    pub bytes: Bytes,
}

/// A tensor.
#[derive(Debug, Serialize)]
pub struct TensorEntry<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements, as safetensors names it.
    pub dtype: &'static str,
    /// Elements along each dimension.
    pub shape: &'a [u64],
    /// Its size.
    pub bytes: Bytes,
    /// Its file, by position in `files`.
    pub file: usize,
    /// The offset of its first byte in the file.
    pub offset: u64,
}

impl<'a> Listing<'a> {
    /// Lists what is selected.
    pub fn new(checkpoint: &'a Checkpoint, selection: &Selection) -> Self {
        let mut files = Vec::new();
        let mut tensors = Vec::with_capacity(selection.tensor_count());
        for selected in &selection.files {
            let Some(opened) = checkpoint.file(selected.file) else {
                continue;
            };
            let header = opened.header();
            let placed = selected.tensors.iter();
            let picked = placed.filter_map(|p| header?.tensor(p.number as usize));
            tensors.extend(picked.map(|tensor| TensorEntry {
                name: tensor.name,
                dtype: tensor.dtype.name(),
                shape: tensor.shape,
                bytes: Bytes(tensor.bytes()),
                file: files.len(),
                offset: tensor.range.start,
            }));
            files.push(FileEntry {
                path: opened.path(),
                bytes: opened.bytes(),
            });
        }
        Self {
            schema: LISTING_SCHEMA,
            path: checkpoint.path(),
            kind: match checkpoint.kind() {
                Kind::Raw => "raw",
                Kind::SingleFile => "file",
                Kind::Indexed { .. } => "indexed",
                Kind::Folder => "folder",
            },
            bytes: match checkpoint.kind() {
                Kind::Raw => selection.bytes(),
                _ => selection.tensor_bytes,
            },
            files,
            tensors,
            notes: checkpoint.notes().iter().map(Note::to_string).collect(),
        }
    }
}
