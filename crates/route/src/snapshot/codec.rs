//! The JSON form of a snapshot, with limits, because snapshots are mailed around.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Observation, SNAPSHOT_SCHEMA, Snapshot, Value};
use crate::terminal;

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
        // Strings, maps with string keys and booleans always serialise, into UTF-8.
        let json = terminal::to_json(self).unwrap_or_default();
        String::from_utf8(json).unwrap_or_default() + "\n"
    }
}

/// A value's form: text as a string, a list as an array, absent as null, the rest as one-key maps.
#[derive(serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Tagged<'a> {
    Link(&'a str),
    Bytes(String),
    Denied(bool),
    Error(&'a str),
}

impl Serialize for Observation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(Value::Text(text)) => serializer.serialize_str(text),
            Self::Value(Value::List(names)) => names.serialize(serializer),
            Self::Value(Value::Link(target)) => Tagged::Link(target).serialize(serializer),
            Self::Value(Value::Bytes(bytes)) => Tagged::Bytes(to_hex(bytes)).serialize(serializer),
            Self::Absent => serializer.serialize_unit(),
            Self::Denied => Tagged::Denied(true).serialize(serializer),
            Self::Error(error) => Tagged::Error(error).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Observation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Form)
    }
}

fn within<E: serde::de::Error>(length: usize) -> Result<(), E> {
    if length > MAX_VALUE_BYTES {
        return Err(E::custom(format!(
            "a value of {length} bytes; at most {MAX_VALUE_BYTES}"
        )));
    }
    Ok(())
}

/// Reads each form straight into its observation: a derived reader of such a union keeps a second
/// copy of everything, and snapshots are mostly long hexadecimal strings.
struct Form;

impl<'de> Visitor<'de> for Form {
    type Value = Observation;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a list, null, or a map of `link`, `bytes`, `denied` or `error`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Observation, E> {
        within(text.len())?;
        Ok(Observation::text(text))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Observation, E> {
        Ok(Observation::Absent)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut access: S) -> Result<Observation, S::Error> {
        let mut names: Vec<String> = Vec::new();
        let mut length = 0usize;
        while let Some(name) = access.next_element::<String>()? {
            // An empty name takes room too.
            length = length.saturating_add(name.len() + 1);
            within(length.saturating_sub(1))?;
            names.push(name);
        }
        Ok(Observation::Value(Value::List(names)))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut access: M) -> Result<Observation, M::Error> {
        let Some(tag) = access.next_key::<Tag>()? else {
            return Err(M::Error::custom("an empty map is no value"));
        };
        let observation = match tag {
            Tag::Link => {
                let target: String = access.next_value()?;
                within(target.len())?;
                Observation::Value(Value::Link(target))
            }
            Tag::Bytes => Observation::Value(Value::Bytes(access.next_value::<Hex>()?.0)),
            Tag::Denied => match access.next_value()? {
                true => Observation::Denied,
                false => return Err(M::Error::custom("`denied` is true or not there")),
            },
            Tag::Error => {
                let error: String = access.next_value()?;
                within(error.len())?;
                Observation::Error(error)
            }
        };
        match access.next_key::<Tag>()? {
            None => Ok(observation),
            Some(_) => Err(M::Error::custom("a value of two kinds")),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tag {
    Link,
    Bytes,
    Denied,
    Error,
}

/// Bytes written in hexadecimal.
struct Hex(Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Hex;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes in hexadecimal")
            }

            fn visit_str<E: serde::de::Error>(self, digits: &str) -> Result<Hex, E> {
                within(digits.len() / 2)?;
                let bytes = from_hex(digits.as_bytes());
                let wrong = || E::custom("bytes are not hexadecimal");
                bytes.map(Hex).ok_or_else(wrong)
            }
        }
        deserializer.deserialize_str(Digits)
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

/// The value of each hexadecimal digit, and what is none.
const DIGIT_VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < 16 {
        let character = b"0123456789abcdef"[digit];
        values[character as usize] = digit as u8;
        values[character.to_ascii_uppercase() as usize] = digit as u8;
        digit += 1;
    }
    values
};
const NO_DIGIT: u8 = 0xff;

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    let mut bytes = Vec::with_capacity(pairs.len());
    let mut seen = 0;
    for [high, low] in pairs {
        let high = DIGIT_VALUES[usize::from(*high)];
        let low = DIGIT_VALUES[usize::from(*low)];
        seen |= high | low;
        bytes.push(high << 4 | low);
    }
    // Values of digits have their upper half clear.
    (rest.is_empty() && seen <= 0xf).then_some(bytes)
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
                    match map.entry(key) {
                        Entry::Vacant(place) => place.insert(observation),
                        Entry::Occupied(place) => {
                            let key = place.key();
                            return Err(M::Error::custom(format!("key `{key}` twice")));
                        }
                    };
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
        let value = |value: &str| code(&with(SNAPSHOT_SCHEMA, &format!(r#"{{"a":{value}}}"#)));
        for good in [
            r#""""#,
            "null",
            "[]",
            r#"{"denied":true}"#,
            r#"{"bytes":"aBcD"}"#,
        ] {
            assert_eq!(value(good).map(|s| s.len()), Ok(1), "{good}");
        }
        let too_long = "0".repeat(2 * (MAX_VALUE_BYTES + 1));
        for bad in [
            "1",
            "true",
            "{}",
            "[[]]",
            r#"{"denied":false}"#,
            r#"{"unheard":"of"}"#,
            r#"{"link":"a","error":"b"}"#,
            &format!(r#"{{"link":"{too_long}"}}"#),
            &format!(r#"{{"error":"{too_long}"}}"#),
            &format!(r#"{{"bytes":"{too_long}"}}"#),
            &format!(r#"["{too_long}"]"#),
        ] {
            let shown: String = bad.chars().take(40).collect();
            assert_eq!(value(bad).err(), Some("snapshot-malformed"), "{shown}");
        }
        assert_eq!(
            code(&" ".repeat(MAX_SNAPSHOT_BYTES + 1)),
            Err("snapshot-too-large")
        );
    }
}
