//! Labelled lines: a faint label on the left, text that wraps on the right.

use crowfly_route::obstacle::{Cost, Fix};
use crowfly_route::units::significant;
use unicode_width::UnicodeWidthStr;

use super::cell::Cell;
use super::command;
use super::style::{FAINT, paint};
use super::text::wrap;

/// Labelled lines under construction.
#[derive(Clone, Debug)]
pub struct Block {
    indent: usize,
    lines: Vec<(&'static str, Content)>,
}

/// What stands to the right of a label.
#[derive(Clone, Debug)]
enum Content {
    /// Text that wraps.
    Parts(Vec<Cell>),
    /// What to type, behind a word and a prompt.
    Command(&'static str, String),
}

impl Block {
    /// A block without lines, moved to the right by `indent` columns.
    pub fn indented(indent: usize) -> Self {
        Self {
            indent,
            lines: Vec::new(),
        }
    }

    /// Adds a line. An empty label continues the line above it.
    pub fn line(&mut self, label: &'static str, parts: impl IntoIterator<Item = Cell>) {
        let parts = parts.into_iter().collect();
        self.lines.push((label, Content::Parts(parts)));
    }

    /// Adds a command below the line above; `before` stands in front of it (`$ `).
    pub fn command(&mut self, before: &'static str, command: &str) {
        self.lines
            .push(("", Content::Command(before, command.to_owned())));
    }

    /// Adds what something costs.
    pub fn cost(&mut self, cost: &Cost) {
        let mut text = format!("{} now, {} without it", cost.now, cost.without);
        if cost.now.0 > 0.0 {
            let factor = significant(cost.without.0 / cost.now.0);
            text.push_str(&format!(" (×{factor})"));
        }
        self.line("cost", [text.into()]);
    }

    /// Adds the steps of a fix, each with its command and its check.
    pub fn steps<'a>(&mut self, fixes: impl IntoIterator<Item = &'a Fix>) {
        for (index, fix) in fixes.into_iter().enumerate() {
            let label = if index == 0 { "fix" } else { "" };
            self.line(label, [Cell::from(&fix.what)]);
            if let Some(command) = &fix.command {
                self.command("$ ", command);
            }
            if let Some(check) = &fix.check {
                self.command("check: $ ", check);
            }
        }
    }

    /// The block in at most `columns` columns; every line ends with a newline.
    pub fn render(&self, columns: usize) -> String {
        let labels = self.lines.iter().map(|(label, _)| label.width());
        let label_width = labels.max().unwrap_or(0);
        let indent = " ".repeat(self.indent);
        let rest = " ".repeat(self.indent + label_width + 2);
        let mut text = String::new();
        for (label, content) in &self.lines {
            let padding = " ".repeat(label_width - label.width());
            let first = format!("{indent}{}{padding}  ", paint(FAINT, label));
            let parts = match content {
                Content::Parts(parts) => parts,
                Content::Command(before, words) => {
                    let (first, rest) = (format!("{rest}{before}"), format!("{rest}    "));
                    text.push_str(&command::render(words, columns, &first, &rest));
                    continue;
                }
            };
            let line: String = parts.iter().map(Cell::to_string).collect();
            text.push_str(wrap(&line, columns, &first, &rest).trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_labels_of_different_lengths_texts_start_in_one_column_and_wrap_there() {
        let mut block = Block::indented(2);
        block.line("took", ["one two three".into()]);
        block.line("", ["four".into(), Cell::from(" five")]);
        block.line("verified", [Cell::nothing()]);
        let text = crate::render::plain(&block.render(20));
        let expected = "  took      one two\n            three\n            four\n            five\n  verified  –\n";
        assert_eq!(text, expected);
    }
}
