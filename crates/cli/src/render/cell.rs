//! A piece of text with a style. Text from outside is made harmless on the way in.

use std::fmt;

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::style::{FAINT, paint};
use super::text::harmless;

/// A piece of text with a style: a table's cell, or a part of a line.
#[derive(Clone, Debug)]
pub struct Cell {
    pub(super) text: String,
    /// Columns of the text.
    pub(super) width: usize,
    pub(super) style: Style,
}

impl Cell {
    /// Text in a style.
    pub fn styled(style: Style, text: impl AsRef<str>) -> Self {
        let text = harmless(text.as_ref()).into_owned();
        // The listing of a large model is made of tens of thousands of plain cells.
        let width = if text.is_ascii() {
            text.len()
        } else {
            text.width()
        };
        Self { text, width, style }
    }

    /// The text without its style.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text in its style, filled up with spaces to `columns` columns.
    pub fn padded(&self, columns: usize) -> String {
        let padding = columns.saturating_sub(self.width);
        format!("{self}{}", " ".repeat(padding))
    }

    /// What stands where there is nothing to say.
    pub fn nothing() -> Self {
        Self::styled(FAINT, "–")
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(Style::new(), text)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&paint(self.style, &self.text))
    }
}
