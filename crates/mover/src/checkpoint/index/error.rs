//! Everything an index is refused for.

use super::{MAX_INDEX_BYTES, MAX_SHARD_NAME_BYTES, MAX_SHARDS, SHARD_SUFFIX};
use crate::checkpoint::header::MAX_TENSORS;
use crate::checkpoint::quoted::Quoted;

/// Why the index of a sharded model was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum IndexError {
    #[error("the index is {len} bytes long; the limit is {MAX_INDEX_BYTES}")]
    TooLong { len: u64 },
    #[error("the index is not UTF-8 from its byte {at} on")]
    NotUtf8 { at: usize },
    #[error("the index begins with a byte order mark")]
    ByteOrderMark,
    #[error("the index is not valid JSON at line {line}, column {column}: {what}")]
    InvalidJson {
        line: usize,
        column: usize,
        what: Quoted,
    },
    #[error("the index has the wrong type of value at line {line}, column {column}: {what}")]
    WrongType {
        line: usize,
        column: usize,
        what: Quoted,
    },
    #[error("the index has the field `{field}` twice")]
    DuplicateField { field: &'static str },
    #[error("the index has no weight_map")]
    NoWeightMap,
    #[error("the index's weight_map is empty")]
    EmptyWeightMap,
    #[error("the index's weight_map lists tensor {tensor} twice")]
    DuplicateTensor { tensor: Quoted },
    #[error("the index lists more than {MAX_TENSORS} tensors")]
    TooManyTensors,
    #[error("the index names more than {MAX_SHARDS} files")]
    TooManyShards,
    #[error("the index places tensor {tensor} in {shard}, which is a path and not a file name")]
    ShardIsPath { tensor: Quoted, shard: Quoted },
    #[error(
        "the index places tensor {tensor} in {shard}, which is not the name of a {SHARD_SUFFIX} file of at most {MAX_SHARD_NAME_BYTES} bytes"
    )]
    BadShardName { tensor: Quoted, shard: Quoted },
}

impl IndexError {
    /// The stable name of this refusal.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "index-too-long",
            Self::NotUtf8 { .. } => "index-not-utf8",
            Self::ByteOrderMark => "index-byte-order-mark",
            Self::InvalidJson { .. } => "index-invalid-json",
            Self::WrongType { .. } => "index-wrong-type",
            Self::DuplicateField { .. } => "index-duplicate-field",
            Self::NoWeightMap => "index-no-weight-map",
            Self::EmptyWeightMap => "index-empty-weight-map",
            Self::DuplicateTensor { .. } => "index-duplicate-tensor",
            Self::TooManyTensors => "index-too-many-tensors",
            Self::TooManyShards => "index-too-many-shards",
            Self::ShardIsPath { .. } => "index-shard-is-path",
            Self::BadShardName { .. } => "index-bad-shard-name",
        }
    }

    /// What to do about it.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ShardIsPath { .. } => Some(
                "all files of a model lie beside its index; an index that points elsewhere may be an attack",
            ),
            Self::DuplicateTensor { .. } => {
                Some("readers disagree on which entry counts; write the index again")
            }
            _ => None,
        }
    }
}
