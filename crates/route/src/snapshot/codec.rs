//! The JSON form of a snapshot, with limits, because snapshots are mailed around.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Observation, SNAPSHOT_SCHEMA, Snapshot, Value};

/// The largest snapshot file that is read.
pub const MAX_SNAPSHOT_BYTES: usize = 64 << 20;
/// The most observations one snapshot may hold.
pub const MAX_OBSERVATIONS: usize = 500_000;
/// The largest single value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Larger than [`MAX_SNAPSHOT_BYTES`].
    #[error("the snapshot has {bytes} bytes; at most {MAX_SNAPSHOT_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not the JSON of a snapshot.
    #[error("not a snapshot: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A version this build does not know.
    #[error("the snapshot has schema `{found}`; this build reads `{SNAPSHOT_SCHEMA}`")]
    Schema {
        /// The schema found.
        found: String,
    },
}

impl SnapshotError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "snapshot-too-large",
            Self::Malformed(_) => "snapshot-malformed",
            Self::Schema { .. } => "snapshot-schema",
        }
    }
}

impl Snapshot {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// When the text is too large, not a snapshot, or of another version.
    pub fn from_json(text: &[u8]) -> Result<Self, SnapshotError> {
        if text.len() > MAX_SNAPSHOT_BYTES {
            return Err(SnapshotError::TooLarge { bytes: text.len() });
        }
        let snapshot: Self = serde_json::from_slice(text).map_err(|error| {
            // A newer version may have fields this build rejects: name the version, not the field.
            #[derive(serde::Deserialize)]
            struct Head {
                schema: String,
            }
            match serde_json::from_slice::<Head>(text) {
                Ok(head) if head.schema != SNAPSHOT_SCHEMA => SnapshotError::Schema {
                    found: head.schema.chars().take(64).collect(),
                },
                _ => SnapshotError::Malformed(error),
            }
        })?;
        if snapshot.schema != SNAPSHOT_SCHEMA {
            return Err(SnapshotError::Schema {
                found: snapshot.schema.chars().take(64).collect(),
            });
        }
        Ok(snapshot)
    }

    /// Writes the JSON form, one observation a line so that two snapshots can be compared by `diff`.
    pub fn to_json(&self) -> String {
        // Strings, maps with string keys and booleans always serialise.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// A value's form: text as a string, a list as an array, absent as null, the rest as one-key maps.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tagged {
    Link(String),
    Bytes(String),
    Denied(bool),
    Error(String),
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    List(Vec<String>),
    Tagged(Tagged),
    Absent(()),
}

impl Serialize for Observation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(Value::Text(text)) => serializer.serialize_str(text),
            Self::Value(Value::List(names)) => names.serialize(serializer),
            Self::Value(Value::Link(target)) => Tagged::Link(target.clone()).serialize(serializer),
            Self::Value(Value::Bytes(bytes)) => Tagged::Bytes(to_hex(bytes)).serialize(serializer),
            Self::Absent => serializer.serialize_unit(),
            Self::Denied => Tagged::Denied(true).serialize(serializer),
            Self::Error(error) => Tagged::Error(error.clone()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Observation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let within = |length: usize| {
            (length <= MAX_VALUE_BYTES).then_some(()).ok_or_else(|| {
                D::Error::custom(format!(
                    "a value of {length} bytes; at most {MAX_VALUE_BYTES}"
                ))
            })
        };
        Ok(match Form::deserialize(deserializer)? {
            Form::Text(text) => {
                within(text.len())?;
                Self::Value(Value::Text(text))
            }
            Form::List(names) => {
                within(names.iter().map(String::len).sum())?;
                Self::Value(Value::List(names))
            }
            Form::Tagged(Tagged::Link(target)) => Self::Value(Value::Link(target)),
            Form::Tagged(Tagged::Bytes(hex)) => {
                within(hex.len() / 2)?;
                let bytes =
                    from_hex(&hex).ok_or_else(|| D::Error::custom("bytes are not hexadecimal"))?;
                Self::Value(Value::Bytes(bytes))
            }
            Form::Tagged(Tagged::Denied(_)) => Self::Denied,
            Form::Tagged(Tagged::Error(error)) => Self::Error(error),
            Form::Absent(()) => Self::Absent,
        })
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes
        .iter()
        .flat_map(|b| [digit(b >> 4), digit(*b)])
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.remainder().is_empty().then_some(())?;
    pairs
        .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
        .collect()
}

pub(super) mod observations {
    use super::*;

    pub fn serialize<S: Serializer>(
        map: &BTreeMap<String, Observation>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(Some(map.len()))?;
        for (key, observation) in map {
            out.serialize_entry(key, observation)?;
        }
        out.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Observation>, D::Error> {
        struct Bounded;
        impl<'de> Visitor<'de> for Bounded {
            type Value = BTreeMap<String, Observation>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from key to observation")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut access: M) -> Result<Self::Value, M::Error> {
                let mut map = BTreeMap::new();
                while let Some((key, observation)) = access.next_entry::<String, Observation>()? {
                    if map.len() >= MAX_OBSERVATIONS {
                        return Err(M::Error::custom(format!(
                            "more than {MAX_OBSERVATIONS} observations"
                        )));
                    }
                    if map.insert(key.clone(), observation).is_some() {
                        return Err(M::Error::custom(format!("key `{key}` twice")));
                    }
                }
                Ok(map)
            }
        }
        deserializer.deserialize_map(Bounded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn observation() -> impl Strategy<Value = Observation> {
        prop_oneof![
            any::<String>().prop_map(Observation::text),
            any::<String>().prop_map(|t| Observation::Value(Value::Link(t))),
            any::<Vec<String>>().prop_map(|t| Observation::Value(Value::List(t))),
            any::<Vec<u8>>().prop_map(|t| Observation::Value(Value::Bytes(t))),
            any::<String>().prop_map(Observation::Error),
            Just(Observation::Absent),
            Just(Observation::Denied),
        ]
    }

    proptest! {
        #[test]
        fn every_snapshot_reads_back_as_it_was_written(
            seen in prop::collection::btree_map(any::<String>(), observation(), 0..20)
        ) {
            let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
            for (key, observation) in seen {
                snapshot.record(key, observation);
            }
            let read = Snapshot::from_json(snapshot.to_json().as_bytes()).expect("our own text");
            prop_assert_eq!(read, snapshot);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<Vec<u8>>()) {
            let _ = Snapshot::from_json(&bytes);
        }
    }

    #[test]
    fn refusals_have_their_codes() {
        let code = |text: &str| Snapshot::from_json(text.as_bytes()).map_err(|e| e.code());
        let with = |schema: &str, observations: &str| {
            format!(
                r#"{{"schema":"{schema}","tool":"t","taken":"","redacted":false,"observations":{observations}}}"#
            )
        };
        assert_eq!(code("[]"), Err("snapshot-malformed"));
        assert_eq!(
            code(&with("crowfly.snapshot/9", "{}")),
            Err("snapshot-schema")
        );
        assert_eq!(
            code(r#"{"schema":"crowfly.snapshot/9","new":1}"#),
            Err("snapshot-schema")
        );
        assert_eq!(
            code(&with(SNAPSHOT_SCHEMA, r#"{"a":null,"a":null}"#)),
            Err("snapshot-malformed")
        );
        assert_eq!(
            code(&with(SNAPSHOT_SCHEMA, r#"{"a":{"bytes":"abc"}}"#)),
            Err("snapshot-malformed")
        );
        assert_eq!(
            code(&with(SNAPSHOT_SCHEMA, r#"{"a":{"bytes":"é"}}"#)),
            Err("snapshot-malformed")
        );
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_VALUE_BYTES + 1));
        assert_eq!(
            code(&with(SNAPSHOT_SCHEMA, &long)),
            Err("snapshot-malformed")
        );
        assert_eq!(
            code(&" ".repeat(MAX_SNAPSHOT_BYTES + 1)),
            Err("snapshot-too-large")
        );
    }
}
