//! One pass over the index's JSON. Refusals travel beside serde's errors, as in the header's.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Index, IndexError, MAX_SHARD_NAME_BYTES, MAX_SHARDS, SHARD_SUFFIX, TotalSize};
use crate::checkpoint::header::MAX_TENSORS;
use crate::checkpoint::json::{Text, message_of};
use crate::checkpoint::names::NameTable;

const WEIGHT_MAP: &str = "weight_map";
const METADATA: &str = "metadata";
const TOTAL_SIZE: &str = "total_size";

#[derive(Default)]
struct Draft {
    tensors: NameTable,
    shard_of: Vec<u32>,
    shards: NameTable,
    total_size: Option<TotalSize>,
    fault: Option<IndexError>,
}

pub(super) fn read(text: &str) -> Result<Index, IndexError> {
    let mut draft = Draft::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let outcome = json
        .deserialize_map(Fields(&mut draft))
        .and_then(|()| json.end());
    if let Some(fault) = draft.fault {
        return Err(fault);
    }
    outcome.map_err(|error| {
        let (line, column, what) = (error.line(), error.column(), message_of(&error));
        if error.is_data() {
            IndexError::WrongType { line, column, what }
        } else {
            IndexError::InvalidJson { line, column, what }
        }
    })?;
    Ok(Index {
        tensors: draft.tensors,
        shard_of: draft.shard_of,
        shards: draft.shards,
        total_size: draft.total_size,
    })
}

impl Draft {
    /// Leaves the typed refusal behind and gives serde something to stop with.
    fn refuse<E: de::Error>(&mut self, fault: IndexError) -> E {
        self.fault = Some(fault);
        E::custom("")
    }

    fn add(&mut self, tensor: &str, shard: &str) -> Result<(), IndexError> {
        if self.tensors.len() == MAX_TENSORS {
            return Err(IndexError::TooManyTensors);
        }
        if self.tensors.add(tensor).is_none() {
            return Err(IndexError::DuplicateTensor {
                tensor: tensor.into(),
            });
        }
        let number = match self.shards.find(shard) {
            Some(number) => number,
            None => self.add_shard(tensor, shard)?,
        };
        let number = u32::try_from(number).map_err(|_| IndexError::TooManyShards)?;
        self.shard_of.push(number);
        Ok(())
    }

    fn add_shard(&mut self, tensor: &str, shard: &str) -> Result<usize, IndexError> {
        if shard.contains(['/', '\\']) || matches!(shard, "." | "..") {
            return Err(IndexError::ShardIsPath {
                tensor: tensor.into(),
                shard: shard.into(),
            });
        }
        if shard.contains('\0')
            || shard.len() > MAX_SHARD_NAME_BYTES
            || !shard.ends_with(SHARD_SUFFIX)
        {
            return Err(IndexError::BadShardName {
                tensor: tensor.into(),
                shard: shard.into(),
            });
        }
        if self.shards.len() == MAX_SHARDS {
            return Err(IndexError::TooManyShards);
        }
        self.shards.add(shard).ok_or(IndexError::TooManyShards)
    }
}

/// The whole index.
struct Fields<'d>(&'d mut Draft);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with metadata and weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let draft = self.0;
        let (mut weight_map, mut metadata) = (false, false);
        while let Some(key) = map.next_key_seed(Text)? {
            let (field, seen) = match key.as_ref() {
                WEIGHT_MAP => (WEIGHT_MAP, &mut weight_map),
                METADATA => (METADATA, &mut metadata),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if std::mem::replace(seen, true) {
                return Err(draft.refuse(IndexError::DuplicateField { field }));
            }
            if field == WEIGHT_MAP {
                map.next_value_seed(WeightMap(draft))?;
            } else {
                map.next_value_seed(Metadata(draft))?;
            }
        }
        if !weight_map {
            return Err(draft.refuse(IndexError::NoWeightMap));
        }
        if draft.shard_of.is_empty() {
            return Err(draft.refuse(IndexError::EmptyWeightMap));
        }
        Ok(())
    }
}

struct WeightMap<'d>(&'d mut Draft);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor names and file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(tensor) = map.next_key_seed(Text)? {
            let shard: Cow<'_, str> = map.next_value_seed(Text)?;
            if let Err(fault) = self.0.add(&tensor, &shard) {
                return Err(self.0.refuse(fault));
            }
        }
        Ok(())
    }
}

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
        f.write_str("an object")
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Text)? {
            if key != TOTAL_SIZE {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if self.0.total_size.is_some() {
                let field = TOTAL_SIZE;
                return Err(self.0.refuse(IndexError::DuplicateField { field }));
            }
            self.0.total_size = Some(map.next_value_seed(TotalSizeValue)?);
        }
        Ok(())
    }
}

/// `total_size`, whatever it is: a wrong one is worth a note, never a refusal.
struct TotalSizeValue;

impl<'de> DeserializeSeed<'de> for TotalSizeValue {
    type Value = TotalSize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<TotalSize, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TotalSizeValue {
    type Value = TotalSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<TotalSize, E> {
        Ok(TotalSize::Bytes(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<TotalSize, E> {
        Ok(unusable(&value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<TotalSize, E> {
        /// Up to here every whole number has a floating-point number of its own.
        const EXACT: f64 = (1_u64 << 53) as f64;
        // Some writers divide and save the count as `4.0`.
        if value.fract() == 0.0 && (0.0..=EXACT).contains(&value) {
            return Ok(TotalSize::Bytes(value as u64));
        }
        Ok(unusable(&format!("{value:?}")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<TotalSize, E> {
        Ok(unusable(text))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<TotalSize, E> {
        Ok(unusable(&value.to_string()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<TotalSize, E> {
        Ok(unusable("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TotalSize, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(unusable("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TotalSize, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(unusable("an object"))
    }
}

fn unusable(written: &str) -> TotalSize {
    TotalSize::Unusable(written.into())
}
