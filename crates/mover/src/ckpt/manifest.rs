//! The manifest of a checkpoint: which bytes of which files are which part of which tensor.
//!
//! It is the last file written before a checkpoint appears under its name, so a folder that has one
//! is complete. [`Manifest::parse`] trusts nothing: see [`ManifestError`].

mod check;
mod error;
mod sums;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use check::covered;
pub use error::ManifestError;
pub(crate) use sums::Sums;

use super::extent::Extent;

/// The version of the manifest's JSON form.
pub const MANIFEST_SCHEMA: &str = "crowfly.checkpoint/1";

/// The name of the manifest in the folder of its checkpoint.
pub const MANIFEST_NAME: &str = "manifest.json";

/// The longest manifest that is read, in bytes: checksums take some 6 bytes per MiB of tensors, so
/// this is enough for some ten terabytes of them.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// The most parts that one tensor may be cut into.
pub const MAX_PARTS: usize = 65_536;

/// The most files, and so ranks, that one checkpoint may have.
pub const MAX_FILES: usize = 100_000;

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`MANIFEST_SCHEMA`].
    pub schema: String,
    /// The training step.
    pub step: u64,
    /// How many ranks wrote it.
    pub world: u32,
    /// Names the attempt that wrote it, so that each rank knows its own.
    pub attempt: String,
    /// When it was published, in seconds since 1970.
    pub created: u64,
    /// How the checksums were computed: [`crate::digest::ALGORITHM`].
    pub algorithm: String,
    /// The files, one for each rank.
    pub files: Vec<FileEntry>,
    /// The tensors by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The values beside the tensors as rank 0 gave them.
    pub objects: BTreeMap<String, Value>,
    /// Those of other ranks that differ from rank 0's, by rank.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objects_of_ranks: BTreeMap<u32, BTreeMap<String, Value>>,
}

/// A file of a checkpoint, itself a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// A tensor, put together from parts that cover it exactly once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The type of its elements, as safetensors names it.
    pub dtype: String,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
    /// Its parts.
    pub parts: Vec<PartEntry>,
}

/// A part of a tensor: bytes of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartEntry {
    /// The file, by its place among the files.
    pub file: u32,
    /// Its name in that file's own header.
    pub key: String,
    /// Where it begins in the tensor along each dimension.
    pub offset: Vec<u64>,
    /// Its elements along each dimension.
    pub shape: Vec<u64>,
    /// Its first byte in the file.
    pub begin: u64,
    /// The end of its bytes in the file.
    pub end: u64,
    /// Its checksums: one for each stretch between multiples of [`crate::digest::GRID`] in the file,
    /// as base64 of 64-bit little-endian numbers.
    pub sums: String,
}

impl PartEntry {
    /// The box of the tensor that it is.
    pub fn extent(&self) -> Extent {
        Extent {
            offset: self.offset.clone(),
            shape: self.shape.clone(),
        }
    }
}

/// What one rank has written, for the rank that puts the manifest together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankPart {
    pub schema: String,
    pub step: u64,
    pub rank: u32,
    pub world: u32,
    pub attempt: String,
    pub file: FileEntry,
    pub tensors: BTreeMap<String, TensorEntry>,
    pub objects: BTreeMap<String, Value>,
}

/// The version of the JSON form of [`RankPart`].
pub(crate) const RANK_PART_SCHEMA: &str = "crowfly.checkpoint-part/1";

impl Manifest {
    /// Parses the text of a manifest and checks that it contradicts itself nowhere.
    ///
    /// # Errors
    /// The first fault found; see [`ManifestError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let len = bytes.len() as u64;
        if len > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLong { len });
        }
        let schema = schema_of(bytes)?;
        if schema != MANIFEST_SCHEMA {
            return Err(ManifestError::Schema {
                found: schema.as_str().into(),
            });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::json)?;
        check::manifest(&manifest)?;
        Ok(manifest)
    }

    /// The manifest as text.
    ///
    /// # Errors
    /// Whatever a reader would refuse.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        check::manifest(self)?;
        let bytes = serde_json::to_vec(self).map_err(ManifestError::json)?;
        match bytes.len() as u64 {
            len if len > MAX_MANIFEST_BYTES => Err(ManifestError::TooLong { len }),
            _ => Ok(bytes),
        }
    }

    /// The values beside the tensors as one rank gave them; of a rank that did not write, rank 0's.
    pub fn objects_of(&self, rank: u32) -> BTreeMap<String, Value> {
        match self.objects_of_ranks.get(&rank) {
            Some(own) => own.clone(),
            None => self.objects.clone(),
        }
    }
}

/// The name of one rank's file.
pub(crate) fn file_name(rank: u32, world: u32) -> String {
    format!("rank-{rank:05}-of-{world:05}.safetensors")
}

/// The schema is read first, so that a later version is refused by name and not by its first new field.
fn schema_of(bytes: &[u8]) -> Result<String, ManifestError> {
    #[derive(Deserialize)]
    struct Versioned {
        schema: String,
    }
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(ManifestError::json)?;
    Ok(versioned.schema)
}
