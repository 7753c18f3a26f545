//! Why a manifest is refused.

use super::{MAX_FILES, MAX_MANIFEST_BYTES, MAX_PARTS};
use crate::checkpoint::Quoted;
use crate::ckpt::extent::Extent;

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ManifestError {
    #[error("it is {len} bytes long; at most {MAX_MANIFEST_BYTES} are read")]
    TooLong { len: u64 },
    #[error("it is no manifest: {what}")]
    Json { what: Quoted },
    #[error("its schema is {found}, which this version cannot read")]
    Schema { found: Quoted },
    #[error("its checksums are {found}, which this version cannot compute")]
    Algorithm { found: Quoted },
    #[error(
        "it names {files} files for {world} ranks; each rank has one, and at most {MAX_FILES} are read"
    )]
    Files { files: usize, world: u32 },
    #[error("file number {number} is called {found}; that of this rank is called {expected}")]
    FileName {
        number: usize,
        found: Quoted,
        expected: String,
    },
    #[error("tensor {tensor} has the type {found}, which is none of safetensors'")]
    Dtype { tensor: Quoted, found: Quoted },
    #[error("tensor {tensor}: {what}")]
    Shape { tensor: Quoted, what: String },
    #[error("tensor {tensor} comes in more than {MAX_PARTS} parts")]
    TooManyParts { tensor: Quoted },
    #[error(
        "the part {part} of tensor {tensor} lies at {begin}..{end} of file number {file}, which holds nothing there"
    )]
    OutsideFile {
        tensor: Quoted,
        part: Extent,
        file: u32,
        begin: u64,
        end: u64,
    },
    #[error("the part {part} of tensor {tensor} takes {needed} bytes and is given {spanned}")]
    PartSize {
        tensor: Quoted,
        part: Extent,
        needed: u64,
        spanned: u64,
    },
    #[error("the part {part} of tensor {tensor} has {found} checksums; its bytes need {needed}")]
    Sums {
        tensor: Quoted,
        part: Extent,
        found: usize,
        needed: usize,
    },
    #[error("the checksums of the part {part} of tensor {tensor} are no base64 of 64-bit numbers")]
    BadSums { tensor: Quoted, part: Extent },
    #[error("the parts {first} and {second} of tensor {tensor} overlap")]
    Overlap {
        tensor: Quoted,
        first: Extent,
        second: Extent,
    },
    #[error("the parts of tensor {tensor} hold {found} of its {needed} elements")]
    Hole {
        tensor: Quoted,
        found: u64,
        needed: u64,
    },
}

impl ManifestError {
    pub(super) fn json(error: serde_json::Error) -> Self {
        Self::Json {
            what: error.to_string().as_str().into(),
        }
    }

    /// The stable name of this fault.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "manifest-too-long",
            Self::Json { .. } => "manifest-not-json",
            Self::Schema { .. } => "manifest-schema",
            Self::Algorithm { .. } => "manifest-algorithm",
            Self::Files { .. } | Self::FileName { .. } => "manifest-files",
            Self::Dtype { .. } => "manifest-dtype",
            Self::Shape { .. } => "manifest-shape",
            Self::TooManyParts { .. } => "manifest-too-many-parts",
            Self::OutsideFile { .. } => "manifest-outside-file",
            Self::PartSize { .. } => "manifest-part-size",
            Self::Sums { .. } | Self::BadSums { .. } => "manifest-sums",
            Self::Overlap { .. } => "parts-overlap",
            Self::Hole { .. } => "parts-incomplete",
        }
    }
}
