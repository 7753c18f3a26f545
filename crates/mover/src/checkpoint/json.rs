//! What the readers of headers and indexes share of serde.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, Visitor};

use super::quoted::Quoted;

/// A string, borrowed from the text unless it holds escapes.
pub(super) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// The message of an error without the position that serde_json appends to it, which the typed
/// errors hold as values.
pub(super) fn message_of(error: &serde_json::Error) -> Quoted {
    let message = error.to_string();
    let what = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(what, _)| what);
    what.into()
}
