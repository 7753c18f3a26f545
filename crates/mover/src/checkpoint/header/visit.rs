//! One pass over the header's JSON, straight into the tables of a [`Header`](super::Header).
//!
//! serde knows only its own error type, so a refusal travels beside it: the visitor leaves the
//! typed [`HeaderError`] in [`Draft::fault`] and stops serde with an empty message.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::{Count, HeaderError, Place};
use super::{MAX_DIMENSIONS, MAX_METADATA_PAIRS, MAX_TENSORS, Record, name};
use crate::checkpoint::dtype::{Dtype, SizeFault};
use crate::checkpoint::json::{Text, message_of};
use crate::checkpoint::names::NameTable;
use crate::checkpoint::quoted::Quoted;

const METADATA: &str = "__metadata__";
const DTYPE: &str = "dtype";
const SHAPE: &str = "shape";
const OFFSETS: &str = "data_offsets";

/// The tables while they grow, in the header's own order.
pub(super) struct Draft {
    pub(super) names: NameTable,
    pub(super) dims: Vec<u64>,
    pub(super) records: Vec<Record>,
    pub(super) metadata: Option<Vec<(Box<str>, Box<str>)>>,
    data_len: u64,
    spot: Spot,
    fault: Option<HeaderError>,
}

/// What is being read, for an error of serde's own making; the tensor is the last one named.
enum Spot {
    Header,
    Metadata,
    Tensor,
    Field(&'static str),
}

/// Reads the header's text; `data_len` is what the file holds after the header.
pub(super) fn read(text: &str, data_len: u64) -> Result<Draft, HeaderError> {
    let mut draft = Draft {
        names: NameTable::default(),
        dims: Vec::new(),
        records: Vec::new(),
        metadata: None,
        data_len,
        spot: Spot::Header,
        fault: None,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let outcome = json
        .deserialize_map(Entries(&mut draft))
        .and_then(|()| json.end());
    match outcome {
        Ok(()) => Ok(draft),
        Err(error) => Err(draft.explain(&error)),
    }
}

impl Draft {
    /// Leaves the typed refusal behind and gives serde something to stop with.
    fn refuse<E: de::Error>(&mut self, fault: HeaderError) -> E {
        self.fault = Some(fault);
        E::custom("")
    }

    fn tensor(&self) -> Quoted {
        self.names.get(self.names.len().saturating_sub(1)).into()
    }

    fn explain(mut self, error: &serde_json::Error) -> HeaderError {
        if let Some(fault) = self.fault.take() {
            return fault;
        }
        let (line, column) = (error.line(), error.column());
        let what = message_of(error);
        if !error.is_data() {
            return HeaderError::InvalidJson { line, column, what };
        }
        let place = match self.spot {
            Spot::Metadata => return HeaderError::MetadataNotStrings { what },
            Spot::Header => Place::Header,
            Spot::Tensor => Place::Tensor(self.tensor()),
            Spot::Field(field) => Place::Field(self.tensor(), field),
        };
        HeaderError::WrongType {
            place,
            line,
            column,
            what,
        }
    }

    /// Adds the finished entry after checking everything that concerns this tensor alone.
    fn finish(
        &mut self,
        dtype: Dtype,
        dims_start: usize,
        offsets: Offsets,
    ) -> Result<(), HeaderError> {
        let Offsets { begin, end } = offsets;
        if begin > end {
            return Err(HeaderError::ReversedOffsets {
                tensor: self.tensor(),
                begin,
                end,
            });
        }
        if end > self.data_len {
            return Err(HeaderError::DataPastEnd {
                tensor: self.tensor(),
                end,
                data_len: self.data_len,
            });
        }
        let shape = self.dims.get(dims_start..).unwrap_or_default();
        let spanned = end - begin;
        match dtype.bytes_of(shape) {
            Ok(needed) if needed == spanned => {}
            Ok(needed) => {
                return Err(HeaderError::SizeMismatch {
                    tensor: self.tensor(),
                    dtype,
                    shape: shape.into(),
                    needed,
                    spanned,
                });
            }
            Err(SizeFault::Overflow) => {
                return Err(HeaderError::ShapeOverflow {
                    tensor: self.tensor(),
                    dtype,
                    shape: shape.into(),
                });
            }
            Err(SizeFault::Misaligned { bits }) => {
                return Err(HeaderError::SubByteMisaligned {
                    tensor: self.tensor(),
                    dtype,
                    shape: shape.into(),
                    bits,
                });
            }
        }
        self.records.push(Record {
            dtype,
            dims: dims_start..self.dims.len(),
            begin,
            end,
        });
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Offsets {
    begin: u64,
    end: u64,
}

/// The whole header: names to entries, and perhaps the metadata.
struct Entries<'d>(&'d mut Draft);

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let draft = self.0;
        while let Some(key) = map.next_key_seed(Text)? {
            if key == METADATA {
                if draft.metadata.is_some() {
                    return Err(draft.refuse(HeaderError::DuplicateMetadata));
                }
                draft.spot = Spot::Metadata;
                map.next_value_seed(Metadata(draft))?;
                draft.spot = Spot::Header;
                continue;
            }
            if draft.names.len() == MAX_TENSORS {
                return Err(draft.refuse(HeaderError::TooManyTensors));
            }
            if let Err(fault) = name::check(&key) {
                return Err(draft.refuse(fault));
            }
            if draft.names.add(&key).is_none() {
                return Err(draft.refuse(HeaderError::DuplicateTensor {
                    tensor: key.as_ref().into(),
                }));
            }
            draft.spot = Spot::Tensor;
            map.next_value_seed(Entry(draft))?;
            draft.spot = Spot::Header;
        }
        Ok(())
    }
}

/// `__metadata__`: an object of strings.
struct Metadata<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        Err(self.0.refuse(HeaderError::NullMetadata))
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut pairs: Vec<(Box<str>, Box<str>)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key_seed(Text)? {
            if !seen.insert(key.clone()) {
                return Err(self.0.refuse(HeaderError::DuplicateMetadataKey {
                    key: key.as_ref().into(),
                }));
            }
            if pairs.len() == MAX_METADATA_PAIRS {
                return Err(self.0.refuse(HeaderError::TooManyMetadataPairs));
            }
            let value = map.next_value_seed(Text)?;
            pairs.push((key.into(), value.into()));
        }
        self.0.metadata = Some(pairs);
        Ok(())
    }
}

/// One tensor's entry: exactly `dtype`, `shape` and `data_offsets`, in any order.
struct Entry<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let draft = self.0;
        let dims_start = draft.dims.len();
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key_seed(Text)? {
            let (field, seen) = match key.as_ref() {
                DTYPE => (DTYPE, dtype.is_some()),
                SHAPE => (SHAPE, shape.is_some()),
                OFFSETS => (OFFSETS, offsets.is_some()),
                other => {
                    let (tensor, field) = (draft.tensor(), other.into());
                    return Err(draft.refuse(HeaderError::UnknownField { tensor, field }));
                }
            };
            if seen {
                let tensor = draft.tensor();
                return Err(draft.refuse(HeaderError::DuplicateField { tensor, field }));
            }
            draft.spot = Spot::Field(field);
            match field {
                DTYPE => dtype = Some(map.next_value_seed(DtypeField(draft))?),
                SHAPE => shape = Some(map.next_value_seed(ShapeField(draft))?),
                _ => offsets = Some(map.next_value_seed(OffsetsField(draft))?),
            }
            draft.spot = Spot::Tensor;
        }
        match (dtype, shape, offsets) {
            (Some(dtype), Some(()), Some(offsets)) => draft
                .finish(dtype, dims_start, offsets)
                .map_err(|fault| draft.refuse(fault)),
            (dtype, shape, _) => {
                let field = match (dtype, shape) {
                    (None, _) => DTYPE,
                    (_, None) => SHAPE,
                    _ => OFFSETS,
                };
                let tensor = draft.tensor();
                Err(draft.refuse(HeaderError::MissingField { tensor, field }))
            }
        }
    }
}

struct DtypeField<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for DtypeField<'_> {
    type Value = Dtype;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Dtype, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for DtypeField<'_> {
    type Value = Dtype;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a dtype")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Dtype, E> {
        Dtype::from_name(text).ok_or_else(|| {
            let tensor = self.0.tensor();
            self.0.refuse(HeaderError::UnknownDtype {
                tensor,
                dtype: text.into(),
                nearest: Dtype::nearest(text),
            })
        })
    }
}

struct ShapeField<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for ShapeField<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeField<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of non-negative integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let draft = self.0;
        let start = draft.dims.len();
        while let Some(dim) = seq.next_element_seed(Integer(draft, SHAPE))? {
            if draft.dims.len() - start == MAX_DIMENSIONS {
                let tensor = draft.tensor();
                return Err(draft.refuse(HeaderError::TooManyDimensions { tensor }));
            }
            draft.dims.push(dim);
        }
        Ok(())
    }
}

struct OffsetsField<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for OffsetsField<'_> {
    type Value = Offsets;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Offsets, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OffsetsField<'_> {
    type Value = Offsets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of two non-negative integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Offsets, A::Error> {
        let draft = self.0;
        let begin = seq.next_element_seed(Integer(draft, OFFSETS))?;
        let end = match begin {
            Some(_) => seq.next_element_seed(Integer(draft, OFFSETS))?,
            None => None,
        };
        let count = match (begin, end) {
            (Some(begin), Some(end)) if seq.next_element::<IgnoredAny>()?.is_none() => {
                return Ok(Offsets { begin, end });
            }
            (Some(_), Some(_)) => Count::MoreThanTwo,
            (begin, _) => Count::Exactly(begin.is_some().into()),
        };
        let tensor = draft.tensor();
        Err(draft.refuse(HeaderError::OffsetCount { tensor, count }))
    }
}

/// An unsigned 64-bit integer of the named field.
struct Integer<'d>(&'d mut Draft, &'static str);

impl<'de> DeserializeSeed<'de> for Integer<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<u64, D::Error> {
        json.deserialize_u64(self)
    }
}

impl Visitor<'_> for Integer<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a non-negative integer")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        let Self(draft, field) = self;
        let tensor = draft.tensor();
        Err(draft.refuse(HeaderError::NegativeNumber {
            tensor,
            field,
            value,
        }))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
        let Self(draft, field) = self;
        let tensor = draft.tensor();
        Err(draft.refuse(HeaderError::NotAnInteger {
            tensor,
            field,
            value,
        }))
    }
}
