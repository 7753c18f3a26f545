//! Text of a stranger's file, made fit for a message.

use std::fmt;

/// Characters of untrusted text that a message repeats.
pub const MAX_QUOTED_CHARS: usize = 120;

/// A piece of untrusted text inside an error: cut to [`MAX_QUOTED_CHARS`] when it is taken, and
/// shown in double quotes with control characters escaped, so that a hostile name can neither
/// fill a log nor steer a terminal.
#[derive(Clone, PartialEq, Eq)]
pub struct Quoted {
    text: Box<str>,
    cut: bool,
}

impl From<&str> for Quoted {
    fn from(text: &str) -> Self {
        match text.char_indices().nth(MAX_QUOTED_CHARS) {
            Some((end, _)) => Self {
                text: text.get(..end).unwrap_or_default().into(),
                cut: true,
            },
            None => Self {
                text: text.into(),
                cut: false,
            },
        }
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = if self.cut { "…" } else { "" };
        write!(f, "\"{}{tail}\"", self.text.escape_debug())
    }
}

impl fmt::Debug for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(
            Quoted::from("a\u{1b}[2J\n\"b\0").to_string(),
            r#""a\u{1b}[2J\n\"b\0""#
        );
        let long = "é".repeat(MAX_QUOTED_CHARS + 1);
        let shown = Quoted::from(long.as_str()).to_string();
        assert_eq!(shown, format!("\"{}…\"", "é".repeat(MAX_QUOTED_CHARS)));
    }
}
