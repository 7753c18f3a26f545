//! Text from outside on its way to a terminal. Names of files and devices may hold anything: control
//! characters move the cursor, and marks of direction reorder what stands around them.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};

/// Whether a terminal does something else with a character than to show it: control characters
/// (C0, DEL, C1), line separators, and the marks that reorder the text around them.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A value as indented JSON in which harmful characters are escaped, so that it says the same to a
/// reader of JSON and does nothing to a terminal.
///
/// # Errors
/// When the value has no JSON form, such as a map whose keys are no text.
pub fn to_json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut json = Vec::new();
    write_json(value, &mut json)?;
    Ok(json)
}

/// Writes what [`to_json`] returns, in many small pieces.
///
/// # Errors
/// When the value has no JSON form, or with the stream's own error.
pub fn write_json(value: &impl Serialize, to: &mut impl Write) -> Result<(), serde_json::Error> {
    let mut serializer = Serializer::with_formatter(to, Harmless::default());
    value.serialize(&mut serializer)
}

#[derive(Default)]
struct Harmless {
    pretty: PrettyFormatter<'static>,
}

/// Hands the layout on to [`PrettyFormatter`].
macro_rules! as_pretty {
    ($($name:ident $(($first:ident))?;)+) => {
        $(fn $name<W: ?Sized + Write>(&mut self, to: &mut W $(, $first: bool)?) -> io::Result<()> {
            self.pretty.$name(to $(, $first)?)
        })+
    };
}

impl Formatter for Harmless {
    as_pretty! {
        begin_array;
        end_array;
        begin_array_value(first);
        end_array_value;
        begin_object;
        end_object;
        begin_object_key(first);
        begin_object_value;
        end_object_value;
    }

    // What has to be escaped in all JSON (quotes, backslashes, C0) is never part of a fragment.
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        // Without a way out of the loop, many bytes are looked at in one step.
        let plain = |all, byte: u8| all & byte.is_ascii() & (byte != 0x7f);
        if text.bytes().fold(true, plain) {
            return to.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_harmful(*c)) {
            let (before, from) = rest.split_at(at);
            to.write_all(before.as_bytes())?;
            // All of them are in the first plane, so one unit of UTF-16 holds each.
            write!(to, "\\u{:04x}", u32::from(c))?;
            rest = from.get(c.len_utf8()..).unwrap_or_default();
        }
        to.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.pretty.write_char_escape(to, escape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn given_characters_that_fool_terminals_the_document_spells_them_out() {
        let name = "a\u{1b}[2J\u{7f}\u{9b}31m\u{202e}gpj.\u{2028}größe 大";
        let json = String::from_utf8(to_json(&[name]).expect("text")).expect("UTF-8");
        let spelt = r#""a\u001b[2J\u007f\u009b31m\u202egpj.\u2028größe 大""#;
        assert_eq!(json, format!("[\n  {spelt}\n]"));
    }

    proptest! {
        #[test]
        fn every_text_reads_back_as_it_was_and_harms_nobody(text: String, marks in "[\u{7f}-\u{a0}\u{2020}-\u{2070}]*") {
            let text = format!("{text}{marks}");
            let json = to_json(&text).expect("text");
            prop_assert_eq!(&serde_json::from_slice::<String>(&json).expect("JSON"), &text);
            let json = String::from_utf8(json).expect("UTF-8");
            prop_assert!(!json.chars().any(is_harmful));
        }

        #[test]
        fn the_layout_is_the_usual_one(numbers: Vec<u32>, words: std::collections::BTreeMap<String, bool>) {
            let value = (numbers, words.into_iter().filter(|(k, _)| k.is_ascii() && !k.contains('\u{7f}')).collect::<Vec<_>>());
            let usual = serde_json::to_vec_pretty(&value).expect("a value");
            prop_assert_eq!(to_json(&value).expect("a value"), usual);
        }
    }
}
