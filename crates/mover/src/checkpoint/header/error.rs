//! Everything a safetensors header is refused for.

use super::{MAX_DIMENSIONS, MAX_HEADER_BYTES, MAX_METADATA_PAIRS, MAX_TENSORS};
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::quoted::Quoted;

/// Why a safetensors header was refused. Offsets are bytes from the start of the data, as the
/// header counts them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HeaderError {
    #[error("the file is {file_len} bytes long, too short for the 8 bytes of the header's length")]
    TooShort { file_len: u64 },
    #[error("the header is 0 bytes long; the shortest, `{{}}`, is 2")]
    EmptyHeader,
    #[error("the header claims {header_len} bytes; the limit is {MAX_HEADER_BYTES}")]
    HeaderTooLong { header_len: u64 },
    #[error(
        "the header claims {header_len} bytes after the first 8, but the file is only {file_len} bytes long"
    )]
    HeaderPastEnd { header_len: u64, file_len: u64 },

    #[error("the header is not UTF-8 from its byte {at} on")]
    NotUtf8 { at: usize },
    #[error("the header begins with a byte order mark")]
    ByteOrderMark,
    #[error("the header begins with white space; its first byte must be {{")]
    LeadingWhiteSpace,
    #[error("the header is not a JSON object: it begins with {found:?}")]
    NotAnObject { found: char },
    #[error("the header is not valid JSON at line {line}, column {column}: {what}")]
    InvalidJson {
        line: usize,
        column: usize,
        what: Quoted,
    },
    #[error("{place}: the wrong type of value at line {line}, column {column}: {what}")]
    WrongType {
        place: Place,
        line: usize,
        column: usize,
        what: Quoted,
    },

    #[error("__metadata__ stands twice in the header")]
    DuplicateMetadata,
    #[error("__metadata__ is null; it must be an object of strings or be left out")]
    NullMetadata,
    #[error("__metadata__ must be an object whose values are strings: {what}")]
    MetadataNotStrings { what: Quoted },
    #[error("__metadata__ has the key {key} twice")]
    DuplicateMetadataKey { key: Quoted },
    #[error("__metadata__ holds more than {MAX_METADATA_PAIRS} pairs")]
    TooManyMetadataPairs,

    #[error("a tensor's name is empty")]
    EmptyName,
    #[error("the name {tensor} contains a NUL character")]
    NulInName { tensor: Quoted },
    #[error("the name {tensor} is written like a path that leaves its folder")]
    PathLikeName { tensor: Quoted },
    #[error("two tensors are named {tensor}")]
    DuplicateTensor { tensor: Quoted },
    #[error("the header lists more than {MAX_TENSORS} tensors")]
    TooManyTensors,

    #[error("tensor {tensor}: unknown field {field}")]
    UnknownField { tensor: Quoted, field: Quoted },
    #[error("tensor {tensor}: the field `{field}` is missing")]
    MissingField { tensor: Quoted, field: &'static str },
    #[error("tensor {tensor}: the field `{field}` stands twice")]
    DuplicateField { tensor: Quoted, field: &'static str },
    #[error("tensor {tensor}: unknown dtype {dtype}{}", nearest.map(|n| format!(" (the nearest is {n})")).unwrap_or_default())]
    UnknownDtype {
        tensor: Quoted,
        dtype: Quoted,
        nearest: Option<Dtype>,
    },
    #[error("tensor {tensor}: `{field}` holds the negative number {value}")]
    NegativeNumber {
        tensor: Quoted,
        field: &'static str,
        value: i64,
    },
    #[error("tensor {tensor}: `{field}` holds {value:?}, which is not an unsigned 64-bit integer")]
    NotAnInteger {
        tensor: Quoted,
        field: &'static str,
        value: f64,
    },
    #[error("tensor {tensor}: the shape has more than {MAX_DIMENSIONS} dimensions")]
    TooManyDimensions { tensor: Quoted },
    #[error("tensor {tensor}: `data_offsets` must hold two numbers, begin and end, not {count}")]
    OffsetCount { tensor: Quoted, count: Count },

    #[error("tensor {tensor}: the data begins at {begin}, after its end at {end}")]
    ReversedOffsets {
        tensor: Quoted,
        begin: u64,
        end: u64,
    },
    #[error(
        "tensor {tensor}: the data ends at {end}, but the file holds only {data_len} bytes of data"
    )]
    DataPastEnd {
        tensor: Quoted,
        end: u64,
        data_len: u64,
    },
    #[error("tensor {tensor}: the size of {dtype} {shape:?} overflows 64 bits")]
    ShapeOverflow {
        tensor: Quoted,
        dtype: Dtype,
        shape: Box<[u64]>,
    },
    #[error(
        "tensor {tensor}: {dtype} {shape:?} is {bits} bits, which is not a whole number of bytes"
    )]
    SubByteMisaligned {
        tensor: Quoted,
        dtype: Dtype,
        shape: Box<[u64]>,
        bits: u64,
    },
    #[error(
        "tensor {tensor}: {dtype} {shape:?} needs {needed} bytes, but its data_offsets span {spanned}"
    )]
    SizeMismatch {
        tensor: Quoted,
        dtype: Dtype,
        shape: Box<[u64]>,
        needed: u64,
        spanned: u64,
    },

    #[error("tensors {tensor} and {other} share the same data, bytes {begin} to {end}")]
    Alias {
        tensor: Quoted,
        other: Quoted,
        begin: u64,
        end: u64,
    },
    #[error("tensor {tensor} begins at {begin}, inside tensor {other}, which ends at {other_end}")]
    Overlap {
        tensor: Quoted,
        begin: u64,
        other: Quoted,
        other_end: u64,
    },
    #[error("tensor {tensor} begins at {begin}, leaving a hole of {} bytes from {expected} on", begin - expected)]
    Hole {
        tensor: Quoted,
        begin: u64,
        expected: u64,
    },
    #[error("the tensors end at byte {data_end} of the data, but the file goes on for {} more", data_len - data_end)]
    TrailingBytes { data_end: u64, data_len: u64 },
}

/// Where in the header a value stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Outside any tensor's entry.
    Header,
    /// The entry of this tensor.
    Tensor(Quoted),
    /// One field of this tensor's entry.
    Field(Quoted, &'static str),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => f.write_str("the header"),
            Self::Tensor(tensor) => write!(f, "tensor {tensor}"),
            Self::Field(tensor, field) => write!(f, "tensor {tensor}, `{field}`"),
        }
    }
}

/// How many offsets stood where two belong; counting stops at the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly this many.
    Exactly(u8),
    /// Three or more.
    MoreThanTwo,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::MoreThanTwo => f.write_str("more"),
        }
    }
}

impl HeaderError {
    /// The stable name of this refusal.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooShort { .. } => "too-short",
            Self::EmptyHeader => "empty-header",
            Self::HeaderTooLong { .. } => "header-too-long",
            Self::HeaderPastEnd { .. } => "header-past-end",
            Self::NotUtf8 { .. } => "not-utf8",
            Self::ByteOrderMark => "byte-order-mark",
            Self::LeadingWhiteSpace => "leading-white-space",
            Self::NotAnObject { .. } => "not-an-object",
            Self::InvalidJson { .. } => "invalid-json",
            Self::WrongType { .. } => "wrong-type",
            Self::DuplicateMetadata => "duplicate-metadata",
            Self::NullMetadata => "null-metadata",
            Self::MetadataNotStrings { .. } => "metadata-not-strings",
            Self::DuplicateMetadataKey { .. } => "duplicate-metadata-key",
            Self::TooManyMetadataPairs => "too-many-metadata-pairs",
            Self::EmptyName => "empty-name",
            Self::NulInName { .. } => "nul-in-name",
            Self::PathLikeName { .. } => "path-like-name",
            Self::DuplicateTensor { .. } => "duplicate-tensor",
            Self::TooManyTensors => "too-many-tensors",
            Self::UnknownField { .. } => "unknown-field",
            Self::MissingField { .. } => "missing-field",
            Self::DuplicateField { .. } => "duplicate-field",
            Self::UnknownDtype { .. } => "unknown-dtype",
            Self::NegativeNumber { .. } => "negative-number",
            Self::NotAnInteger { .. } => "not-an-integer",
            Self::TooManyDimensions { .. } => "too-many-dimensions",
            Self::OffsetCount { .. } => "offset-count",
            Self::ReversedOffsets { .. } => "reversed-offsets",
            Self::DataPastEnd { .. } => "data-past-end",
            Self::ShapeOverflow { .. } => "shape-overflow",
            Self::SubByteMisaligned { .. } => "sub-byte-misaligned",
            Self::SizeMismatch { .. } => "size-mismatch",
            Self::Alias { .. } => "alias",
            Self::Overlap { .. } => "overlap",
            Self::Hole { .. } => "hole",
            Self::TrailingBytes { .. } => "trailing-bytes",
        }
    }

    /// What to do about it, where there is more to say than "write the file again".
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooShort { .. } | Self::HeaderPastEnd { .. } | Self::DataPastEnd { .. } => Some(
                "the file was probably cut off; compare its size with the source's and fetch it again",
            ),
            Self::HeaderTooLong { .. } | Self::NotAnObject { .. } => Some(
                "this is probably not a safetensors file; a Git LFS pointer or a web page may have been saved in its place",
            ),
            Self::TrailingBytes { .. } => Some(
                "bytes after the last tensor belong to nobody; the file may be two files joined, or written over a longer one",
            ),
            Self::Alias { .. } => Some(
                "save shared tensors once and tie them after loading; the format allows one name per byte",
            ),
            Self::UnknownDtype { .. } => {
                Some("a newer writer may know more types than this reader")
            }
            _ => None,
        }
    }
}
