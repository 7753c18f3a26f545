//! The few styles that output uses, by meaning.

use anstyle::{AnsiColor, Style};

/// A heading or the one number that matters.
pub const STRONG: Style = Style::new().bold();
/// What most readers skip.
pub const FAINT: Style = Style::new().dimmed();
/// As it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Works, but not as well as it could.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Does not work.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Something to type.
pub const CODE: Style = AnsiColor::Cyan.on_default();

/// The text in a style.
pub fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}
