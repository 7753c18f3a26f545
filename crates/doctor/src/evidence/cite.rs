//! Where a fact was read: every value keeps its source, its line and the line's own words.

use std::fmt;
use std::sync::Arc;

use crowfly_route::obstacle;
use serde::Serialize;

/// Longest quote kept of one line, in bytes; a longer line is quoted up to here with `…` after it.
pub const MAX_QUOTE_BYTES: usize = 320;

/// The name of a file or stream that evidence was read from, as a person would recognise it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SourceName(Arc<str>);

impl SourceName {
    /// A source by its name: a path as the user wrote it, or `stdin`.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SourceName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A line number, counted from 1 in the bytes as they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct LineNumber(pub u64);

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One line of one source, quoted without the decoration of whatever printed or pasted it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Cite {
    /// The file or stream.
    pub source: SourceName,
    /// The line in it.
    pub line: LineNumber,
    /// What the line says, at most [`MAX_QUOTE_BYTES`] of it.
    pub quote: Arc<str>,
}

impl Cite {
    /// Cites a line, shortening the quote to [`MAX_QUOTE_BYTES`].
    pub fn new(source: SourceName, line: LineNumber, text: &str) -> Self {
        let text = text.trim();
        let quote = match text
            .char_indices()
            .find(|(at, c)| at + c.len_utf8() > MAX_QUOTE_BYTES)
        {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()).into(),
            None => text.into(),
        };
        Self {
            source,
            line,
            quote,
        }
    }

    /// Attaches this place to a value read from it.
    pub fn of<T>(&self, value: T) -> Located<T> {
        Located {
            value,
            cite: self.clone(),
        }
    }
}

impl fmt::Display for Cite {
    /// `nccl.log:42: the line`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.source, self.line, self.quote)
    }
}

impl fmt::Debug for Cite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<&Cite> for obstacle::Evidence {
    fn from(cite: &Cite) -> Self {
        Self::new(format!("{}:{}", cite.source, cite.line), &*cite.quote)
    }
}

/// A value and the line that it was read from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Located<T> {
    /// What was read.
    pub value: T,
    /// Where.
    pub cite: Cite,
}

impl<T> Located<T> {
    /// The same place with a value derived from this one.
    pub fn map<U>(self, derive: impl FnOnce(T) -> U) -> Located<U> {
        Located {
            value: derive(self.value),
            cite: self.cite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cite_prints_as_file_line_quote_and_becomes_route_evidence() {
        let cite = Cite::new("a.log".into(), LineNumber(7), "  NVMe : Supported \r");
        assert_eq!(cite.to_string(), "a.log:7: NVMe : Supported");
        let evidence = obstacle::Evidence::from(&cite);
        assert_eq!(
            (evidence.at.as_str(), evidence.shows.as_str()),
            ("a.log:7", "NVMe : Supported")
        );
    }

    #[test]
    fn a_long_line_is_quoted_up_to_the_limit_on_a_character_boundary() {
        let cite = Cite::new("a".into(), LineNumber(1), &"é".repeat(400));
        assert_eq!(
            cite.quote.chars().filter(|c| *c == 'é').count(),
            MAX_QUOTE_BYTES / 2
        );
        assert!(cite.quote.ends_with('…'));
        assert_eq!(
            Cite::new("a".into(), LineNumber(1), &"x".repeat(320))
                .quote
                .len(),
            320
        );
    }
}
