//! A checkpoint made up from a seed: for tests, and for races on machines without a model.
//!
//! Every byte follows from the seed and its position, so any range read back by any route can be
//! checked without keeping a copy.

mod content;
mod draft;
mod error;
mod model;
mod write;

use std::ops::Range;

use crowfly_route::units::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

pub use content::fill;
pub use error::{SeededError, WriteError};
pub use write::Progress;

use super::header::{Header, encode};
use super::index::SHARD_SUFFIX;
use super::open::FileNumber;
use model::Part;

/// The smallest seeded checkpoint: below this a transformer has no sensible shape.
pub const MIN_SEEDED: Bytes = Bytes(64 << 10);

/// The largest seeded checkpoint, which keeps the number of tensors within bounds.
pub const MAX_SEEDED: Bytes = Bytes(64 << 40);

/// The most files a seeded checkpoint is cut into; all are open at once while they are written.
pub const MAX_SEEDED_SHARDS: u32 = 256;

/// Bytes made and written at a time.
const BLOCK: usize = 1 << 20;

/// The plan of a seeded checkpoint: a transformer's tensor names and shapes in `BF16`, cut into
/// files with an index. Nothing is on disk before [`Self::write`].
#[derive(Clone, Debug)]
pub struct SeededCheckpoint {
    seed: u64,
    bytes: Bytes,
    shards: Vec<Shard>,
}

/// One file of the plan.
#[derive(Clone, Debug)]
struct Shard {
    name: String,
    /// Everything before the data.
    prefix: Vec<u8>,
    header: Header,
    seed: u64,
}

impl Shard {
    const fn len(&self) -> u64 {
        self.header.data().end
    }
}

impl SeededCheckpoint {
    /// Plans a checkpoint whose tensors take `bytes` (rounded down to an even number, since every
    /// element takes two) in `shards` files of about the same size.
    ///
    /// # Errors
    /// When there is no such checkpoint; see [`SeededError`].
    pub fn new(seed: u64, bytes: Bytes, shards: u32) -> Result<Self, SeededError> {
        if bytes < MIN_SEEDED || bytes > MAX_SEEDED {
            return Err(SeededError::Size { bytes });
        }
        let bytes = Bytes(bytes.0 & !1);
        let parts = model::parts(bytes);
        let most =
            u32::try_from(parts.len()).map_or(MAX_SEEDED_SHARDS, |n| n.min(MAX_SEEDED_SHARDS));
        if shards == 0 || shards > most {
            return Err(SeededError::Shards { shards, most });
        }
        let shards = model::cut(&parts, shards)
            .into_iter()
            .zip(1_u32..)
            .map(|(parts, number)| Shard::plan(seed, number, shards, parts))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            seed,
            bytes,
            shards,
        })
    }

    /// The seed all bytes follow from.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Bytes of all tensors.
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Bytes of all safetensors files, headers included; the index comes on top.
    pub fn file_bytes(&self) -> Bytes {
        self.shards.iter().map(|shard| Bytes(shard.len())).sum()
    }

    /// Every file's name and length in bytes, in the order of [`FileNumber`], which is the order in
    /// which [`Checkpoint::files`](super::Checkpoint::files) lists them.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&str, Bytes)> {
        self.shards
            .iter()
            .map(|shard| (shard.name.as_str(), Bytes(shard.len())))
    }

    /// Fills `out` with what the file holds from `offset` on, and returns how many bytes that were:
    /// fewer than asked for at the file's end, none past it or without such a file.
    pub fn fill(&self, file: FileNumber, offset: u64, out: &mut [u8]) -> usize {
        let Some(shard) = self.shards.get(file.0 as usize) else {
            return 0;
        };
        let left = shard.len().saturating_sub(offset);
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let out = out.get_mut(..len).unwrap_or_default();
        let prefix = usize::try_from(offset)
            .ok()
            .and_then(|offset| shard.prefix.get(offset..))
            .unwrap_or_default();
        let from_prefix = prefix.len().min(out.len());
        let (head, data) = out.split_at_mut(from_prefix);
        head.copy_from_slice(prefix.get(..from_prefix).unwrap_or_default());
        let at = (offset + from_prefix as u64).saturating_sub(shard.prefix.len() as u64);
        fill(shard.seed, at, data);
        len
    }

    /// The XXH3-64 checksum of a range of a file; `None` when the file does not hold all of it.
    pub fn expected_checksum(&self, file: FileNumber, range: Range<u64>) -> Option<u64> {
        let shard = self.shards.get(file.0 as usize)?;
        if range.start > range.end || range.end > shard.len() {
            return None;
        }
        let mut hash = Xxh3Default::new();
        let mut block = vec![0; BLOCK];
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at).map_or(BLOCK, |left| left.min(BLOCK));
            let filled = self.fill(file, at, block.get_mut(..len).unwrap_or_default());
            hash.update(block.get(..filled).unwrap_or_default());
            at += filled as u64;
        }
        Some(hash.digest())
    }

    /// The index that stands beside the files.
    fn index(&self) -> String {
        let map: serde_json::Map<String, serde_json::Value> = self
            .shards
            .iter()
            .flat_map(|shard| {
                shard
                    .header
                    .tensors()
                    .map(|tensor| (tensor.name.to_owned(), shard.name.as_str().into()))
            })
            .collect();
        let index = serde_json::json!({
            "metadata": { "total_size": self.bytes.0 },
            "weight_map": map,
        });
        format!("{index:#}\n")
    }
}

impl Shard {
    fn plan(seed: u64, number: u32, of: u32, parts: &[Part]) -> Result<Self, SeededError> {
        let seed_text = seed.to_string();
        let metadata = [("format", "pt"), ("crowfly_seed", seed_text.as_str())];
        let entries = parts
            .iter()
            .map(|part| (part.name.as_str(), model::DTYPE, part.shape.as_slice()));
        let (prefix, header) = encode(&metadata, entries).map_err(SeededError::Header)?;
        Ok(Self {
            name: format!("model-{number:05}-of-{of:05}{SHARD_SUFFIX}"),
            prefix,
            header,
            seed: content::nth_seed(seed, u64::from(number)),
        })
    }
}
