//! Plain text: wrapping, and making strangers' text harmless.

use std::borrow::Cow;
use std::fmt::Write;

use crowfly_route::terminal::is_harmful;
use crowfly_route::units::significant;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Text from outside (names, evidence, labels) with control characters spelled out, so that it can
/// neither move the cursor nor forge a line.
pub fn harmless(text: &str) -> Cow<'_, str> {
    // A model's listing is tens of thousands of plain names. Without a way out of the loop, many
    // bytes are looked at in one step.
    let plain = |all, byte: u8| all & matches!(byte, b' '..=b'~');
    if text.bytes().fold(true, plain) || !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_harmful(c) {
            let _ = write!(clean, "{}", c.escape_default());
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// The text wrapped into lines of at most `columns`, the first starting with `first`, the others
/// with `rest`. Styles in the text are not counted.
pub fn wrap(text: &str, columns: usize, first: &str, rest: &str) -> String {
    let options = textwrap::Options::new(columns)
        .initial_indent(first)
        .subsequent_indent(rest);
    textwrap::fill(text, options)
}

/// A name in at most `room` columns, which is one at least: names that belong together begin alike and
/// end differently, so that what is left out is the middle.
pub fn middle_out(name: &str, room: usize) -> Cow<'_, str> {
    if name.width() <= room {
        return Cow::Borrowed(name);
    }
    let left = room.saturating_sub(1);
    let head = taken(name.chars(), left.div_ceil(2));
    let tail = taken(name.chars().rev(), left / 2);
    let tail: String = tail.chars().rev().collect();
    Cow::Owned(format!("{head}…{tail}"))
}

/// As many characters as fit into so many columns.
fn taken(characters: impl Iterator<Item = char>, columns: usize) -> String {
    let mut width = 0;
    let fit = characters.take_while(|c| {
        width += c.width().unwrap_or(0);
        width <= columns
    });
    fit.collect()
}

/// A time with three significant figures: `4.12 s`, `81.3 ms`, `213 µs`, `9.89 ps`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".into(),
        s => {
            let (number, unit) = in_seconds(s);
            format!("{} {unit}", significant(number))
        }
    }
}

/// A time in the largest of the units up to the second that leaves a figure before the point.
pub fn in_seconds(seconds: f64) -> (f64, &'static str) {
    // 0.9996 ms reads `1.00 ms`, not `1000 µs`: round before choosing the unit.
    const WHOLE: f64 = 0.999_5;
    let units = [(1.0, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns")];
    let suits = units.iter().find(|(each, _)| seconds * each >= WHOLE);
    let (each, unit) = suits.unwrap_or(&(1e12, "ps"));
    (seconds * each, unit)
}

/// `1 file`, `2 files`.
pub fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_text_with_escapes_the_terminal_sees_none_of_them() {
        assert_eq!(harmless("layer.0"), "layer.0");
        assert_eq!(harmless("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(harmless("x\u{202e}gpj"), "x\\u{202e}gpj");
        assert_eq!(harmless("größe 大"), "größe 大");
    }

    #[test]
    fn given_a_long_name_its_beginning_and_its_end_stay() {
        assert_eq!(middle_out("mlx5_0", 6), "mlx5_0");
        assert_eq!(middle_out("mlx5_bond_17", 7), "mlx…_17");
        assert_eq!(middle_out("mlx5_bond_17", 8), "mlx5…_17");
        assert_eq!(middle_out("大大大大大", 6), "大…大");
        assert_eq!(middle_out("mlx5_0", 1), "…");
    }

    #[test]
    fn times_read_in_the_unit_that_suits_them() {
        let all = [0.0, 2.13e-4, 9.999e-4, 0.0813, 4.118, 0.9999];
        let read = ["0 s", "213 µs", "1.00 ms", "81.3 ms", "4.12 s", "1.00 s"];
        assert_eq!(all.map(seconds), read);
        let small = [9.89e-12, 4.2e-9, 0.9996e-9, 3.2e-7, 0.9996e-6, 1.5e-13];
        let read = [
            "9.89 ps", "4.20 ns", "1.00 ns", "320 ns", "1.00 µs", "0.150 ps",
        ];
        assert_eq!(small.map(seconds), read);
    }

    #[test]
    fn given_a_long_sentence_the_following_lines_are_indented() {
        let text = wrap("one two three four", 12, "- ", "  ");
        assert_eq!(text, "- one two\n  three four");
    }
}
