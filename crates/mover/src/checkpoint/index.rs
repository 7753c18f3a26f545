//! The index of a sharded model: which file holds which tensor.
//!
//! `{"metadata": {"total_size": …}, "weight_map": {tensor: file, …}}`, as Hugging Face writes it.
//! Other fields are allowed, since tools add their own; the names of files are not trusted.

mod error;
mod visit;

pub use error::IndexError;

use crate::checkpoint::names::NameTable;
use crate::checkpoint::quoted::Quoted;

/// The longest index that is read, in bytes; as long as the longest header.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;

/// The most files one model may be cut into.
pub const MAX_SHARDS: usize = 10_000;

/// The longest file name a shard may have, in bytes; what Linux file systems allow.
pub const MAX_SHARD_NAME_BYTES: usize = 255;

/// What every index's file name ends with.
pub const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// What every shard's file name ends with.
pub const SHARD_SUFFIX: &str = ".safetensors";

/// A parsed index. Whether the files agree with it is seen when they are opened.
#[derive(Clone, Debug)]
pub struct Index {
    tensors: NameTable,
    shard_of: Vec<u32>,
    shards: NameTable,
    total_size: Option<TotalSize>,
}

/// What `metadata.total_size` says.
#[derive(Clone, Debug, PartialEq)]
pub enum TotalSize {
    /// A count of bytes.
    Bytes(u64),
    /// Something that is no count of bytes, as it was written.
    Unusable(Quoted),
}

impl Index {
    /// Parses the text of an index.
    ///
    /// # Errors
    /// The first fault found; see [`IndexError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IndexError> {
        let len = bytes.len() as u64;
        if len > MAX_INDEX_BYTES {
            return Err(IndexError::TooLong { len });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| IndexError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        if text.starts_with('\u{feff}') {
            return Err(IndexError::ByteOrderMark);
        }
        visit::read(text)
    }

    /// The names of the files, in the order the index first names them.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.shards.len()).map(|number| self.shards.get(number))
    }

    /// Every tensor with the place of its file among [`Self::shards`], in the index's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, usize)> {
        self.shard_of
            .iter()
            .enumerate()
            .map(|(number, &shard)| (self.tensors.get(number), shard as usize))
    }

    /// The place among [`Self::shards`] of the file that holds this tensor.
    pub fn shard_of(&self, tensor: &str) -> Option<usize> {
        let number = self.tensors.find(tensor)?;
        self.shard_of.get(number).map(|&shard| shard as usize)
    }

    /// The sum of all tensors' bytes that the index claims, if it claims one.
    pub const fn total_size(&self) -> Option<&TotalSize> {
        self.total_size.as_ref()
    }
}
