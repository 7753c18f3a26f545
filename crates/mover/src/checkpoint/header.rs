//! The header of a safetensors file: which tensor is where.
//!
//! A safetensors file is a 64-bit little-endian length, that many bytes of JSON, and the tensors'
//! bytes without gaps. The reader takes the JSON in one pass and accepts exactly the format; what
//! the common reader lets through (two tensors of one name, unknown fields, names like `../x`) is
//! refused too, each fault under a code of its own: see [`HeaderError`].

mod encode;
mod error;
mod layout;
mod name;
mod read;
mod visit;

use std::ops::Range;

pub use encode::encode;
pub use error::{Count, HeaderError, Place};
pub use read::HeaderReadError;

use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::names::NameTable;

/// The longest header that is read, in bytes; the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The most tensors one file may hold. Today's largest models have some hundred thousand in all
/// their files together.
pub const MAX_TENSORS: usize = 1_000_000;

/// The most dimensions one tensor may have, as in PyTorch and NumPy.
pub const MAX_DIMENSIONS: usize = 64;

/// The most pairs `__metadata__` may hold; real files have fewer than ten.
pub const MAX_METADATA_PAIRS: usize = 65_536;

/// Bytes before the JSON: its length as a little-endian `u64`.
pub const LENGTH_BYTES: u64 = 8;

/// A checked header.
///
/// Every byte of the file's data belongs to exactly one tensor, and every tensor's size is the one
/// its dtype and shape ask for.
#[derive(Clone, Debug)]
pub struct Header {
    names: NameTable,
    records: Vec<Record>,
    dims: Vec<u64>,
    metadata: Vec<(Box<str>, Box<str>)>,
    data_start: u64,
    file_len: u64,
}

/// What the tables keep of one tensor; offsets count from the start of the data.
#[derive(Clone, Debug)]
struct Record {
    dtype: Dtype,
    dims: Range<usize>,
    begin: u64,
    end: u64,
}

/// One tensor of a checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// The name, unique in its file.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements along each dimension; empty for a scalar.
    pub shape: &'a [u64],
    /// Its bytes, as offsets from the start of the file.
    pub range: Range<u64>,
}

impl Tensor<'_> {
    /// Bytes of data.
    pub const fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Header {
    /// Parses the JSON of a header, without the eight bytes of its length, that stands at the
    /// beginning of a file `file_len` bytes long.
    ///
    /// # Errors
    /// The first fault found; see [`HeaderError`].
    pub fn parse(header_bytes: &[u8], file_len: u64) -> Result<Self, HeaderError> {
        let header_len = header_bytes.len() as u64;
        let data_len = data_len(header_len, file_len)?;
        let text = object_text(header_bytes)?;
        let visit::Draft {
            mut names,
            mut records,
            dims,
            metadata,
            ..
        } = visit::read(text, data_len)?;
        if let Some(order) = layout::file_order(&records) {
            names.reorder(&order);
            records = order
                .iter()
                .filter_map(|&number| records.get(number as usize).cloned())
                .collect();
        }
        layout::check(&records, &names, data_len)?;
        Ok(Self {
            names,
            records,
            dims,
            metadata: metadata.unwrap_or_default(),
            data_start: file_len - data_len,
            file_len,
        })
    }

    /// How many tensors the file holds.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the file holds no tensor.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All tensors in the order of their data in the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> + Clone {
        self.records
            .iter()
            .enumerate()
            .map(|(number, record)| self.view(number, record))
    }

    /// The tensor at this place in the file's order, from 0.
    pub fn tensor(&self, number: usize) -> Option<Tensor<'_>> {
        self.records
            .get(number)
            .map(|record| self.view(number, record))
    }

    /// The place in the file's order of the tensor with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(name)
    }

    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensor(self.find(name)?)
    }

    /// The pairs of `__metadata__`, in the header's order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.metadata
            .iter()
            .map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// All tensors' bytes, as offsets from the start of the file.
    pub const fn data(&self) -> Range<u64> {
        self.data_start..self.file_len
    }

    fn view<'a>(&'a self, number: usize, record: &Record) -> Tensor<'a> {
        Tensor {
            name: self.names.get(number),
            dtype: record.dtype,
            shape: self.dims.get(record.dims.clone()).unwrap_or_default(),
            range: self.data_start + record.begin..self.data_start + record.end,
        }
    }
}

/// Bytes after the header, once the header's length is known to be one.
fn data_len(header_len: u64, file_len: u64) -> Result<u64, HeaderError> {
    let after_length = file_len
        .checked_sub(LENGTH_BYTES)
        .ok_or(HeaderError::TooShort { file_len })?;
    if header_len > MAX_HEADER_BYTES {
        return Err(HeaderError::HeaderTooLong { header_len });
    }
    if header_len == 0 {
        return Err(HeaderError::EmptyHeader);
    }
    after_length
        .checked_sub(header_len)
        .ok_or(HeaderError::HeaderPastEnd {
            header_len,
            file_len,
        })
}

/// The header as text that begins with a brace, as the format demands.
fn object_text(bytes: &[u8]) -> Result<&str, HeaderError> {
    let text = std::str::from_utf8(bytes).map_err(|error| HeaderError::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    match text.chars().next() {
        Some('{') => Ok(text),
        Some('\u{feff}') => Err(HeaderError::ByteOrderMark),
        Some(' ' | '\t' | '\r' | '\n') => Err(HeaderError::LeadingWhiteSpace),
        Some(found) => Err(HeaderError::NotAnObject { found }),
        None => Err(HeaderError::EmptyHeader),
    }
}
