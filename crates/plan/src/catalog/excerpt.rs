//! What a refusal shows of a text that may be anybody's.

use std::fmt::Write;

use crowfly_route::terminal::is_harmful;

/// The longest excerpt of a text that an error shows, the ellipsis included.
pub const MAX_EXCERPT_CHARS: usize = 80;
/// The longest sentence of a parser that an error shows; it may quote the text.
const MAX_REASON_CHARS: usize = 240;

/// So much of a line is shown before the place of an error.
const CHARS_BEFORE: usize = 24;

/// The first line of `text`, at most `most` characters, without what moves a terminal's cursor.
fn cut(text: &str, most: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut shown = String::new();
    let mut chars = 0;
    for c in line.trim().chars() {
        let mut spelled = String::new();
        if is_harmful(c) {
            let _ = write!(spelled, "{}", c.escape_default());
        } else {
            spelled.push(c);
        }
        chars += spelled.chars().count();
        if chars > most {
            // Room for the ellipsis.
            while shown.chars().count() >= most {
                shown.pop();
            }
            shown.push('…');
            return shown;
        }
        shown.push_str(&spelled);
    }
    shown
}

/// A piece of a text from outside, short and harmless.
pub(super) fn excerpt(text: &str) -> String {
    cut(text, MAX_EXCERPT_CHARS)
}

/// What a parser says is wrong, short and harmless.
pub(super) fn reason(error: &toml::de::Error) -> String {
    cut(error.message(), MAX_REASON_CHARS)
}

/// What a parser says is wrong with `text`, with the line, the column and an excerpt around there.
pub(super) fn located(error: &toml::de::Error, text: &str) -> String {
    let reason = reason(error);
    let split = error
        .span()
        .and_then(|span| text.split_at_checked(span.start));
    let Some((before, after)) = split else {
        return reason;
    };
    let row = before.matches('\n').count() + 1;
    let left = before.rsplit('\n').next().unwrap_or_default();
    let column = left.chars().count() + 1;
    let place = format!("line {row}, column {column}: {reason}");
    let skipped = (column - 1).saturating_sub(CHARS_BEFORE);
    let right = after.split('\n').next().unwrap_or_default();
    let around: String = left.chars().skip(skipped).chain(right.chars()).collect();
    match excerpt(&around) {
        shown if shown.is_empty() => place,
        shown => format!("{place}, in `{shown}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_long_line_the_excerpt_ends_with_an_ellipsis_within_its_limit() {
        assert_eq!(excerpt("short\nand more"), "short");
        let shown = excerpt(&"x".repeat(1000));
        assert_eq!(shown.chars().count(), MAX_EXCERPT_CHARS);
        assert!(shown.ends_with("x…"), "{shown}");
        assert_eq!(
            excerpt(&"x".repeat(MAX_EXCERPT_CHARS)).len(),
            MAX_EXCERPT_CHARS
        );
        let escaped = excerpt(&"\u{1b}".repeat(1000));
        assert!(escaped.chars().count() <= MAX_EXCERPT_CHARS, "{escaped}");
        assert!(!escaped.contains('\u{1b}'));
    }
}
