//! Tables: columns as wide as they need to be, numbers to the right, one column that gives way.

use std::borrow::Cow;

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::cell::Cell;
use super::style::{FAINT, paint};

const GAP: &str = "  ";
/// The column that gives way keeps at least this much.
const MIN_FLEXIBLE: usize = 12;

/// To which side a column's cells are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

#[derive(Clone, Debug)]
struct Column {
    title: String,
    side: Side,
    flexible: bool,
}

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without columns.
    pub fn new() -> Self {
        Self::default()
    }

    fn column(mut self, title: &str, side: Side, flexible: bool) -> Self {
        self.columns.push(Column {
            title: title.to_owned(),
            side,
            flexible,
        });
        self
    }

    /// Adds a column of text.
    pub fn text(self, title: &str) -> Self {
        self.column(title, Side::Left, false)
    }

    /// Adds a column of numbers, pushed to the right.
    pub fn number(self, title: &str) -> Self {
        self.column(title, Side::Right, false)
    }

    /// Adds a column of text that wraps when the table would be too wide.
    pub fn flexible(self, title: &str) -> Self {
        self.column(title, Side::Left, true)
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table in at most `columns` columns, as far as its flexible columns allow; every line
    /// ends with a newline. Titles are left out when all are empty.
    pub fn render(&self, columns: usize) -> String {
        let widths = self.widths(columns);
        let mut text = String::new();
        if self.columns.iter().any(|c| !c.title.is_empty()) {
            let titles = self.columns.iter();
            let titles: Vec<Cell> = titles.map(|c| Cell::styled(FAINT, &c.title)).collect();
            self.lines(&titles, &widths, &mut text);
        }
        for row in &self.rows {
            self.lines(row, &widths, &mut text);
        }
        text
    }

    fn widths(&self, columns: usize) -> Vec<usize> {
        let natural = |(index, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            cells
                .map(|cell| cell.width)
                .chain([column.title.width()])
                .max()
                .unwrap_or(0)
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(natural).collect();
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        loop {
            let excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
            let widest = self
                .columns
                .iter()
                .zip(&mut widths)
                .filter(|(column, width)| column.flexible && **width > MIN_FLEXIBLE)
                .map(|(_, width)| width)
                .max();
            match widest {
                Some(width) if excess > 0 => *width -= 1,
                _ => return widths,
            }
        }
    }

    fn lines(&self, row: &[Cell], widths: &[usize], text: &mut String) {
        let fits = |(cell, width): (&Cell, &usize)| cell.width <= *width;
        if row.iter().zip(widths).all(fits) {
            let parts = row
                .iter()
                .map(|cell| Some((cell.text.as_str(), cell.width)));
            return self.line(row, parts, widths, text);
        }
        let columns = self.columns.iter().zip(widths);
        let wrapped: Vec<Vec<Cow<'_, str>>> = columns
            .zip(row)
            .map(|((column, width), cell)| {
                if column.flexible {
                    textwrap::wrap(&cell.text, *width)
                } else {
                    vec![Cow::Borrowed(cell.text.as_str())]
                }
            })
            .collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let parts = wrapped.iter().map(|lines| Some(lines.get(line)?.as_ref()));
            let parts = parts.map(|part| part.map(|part: &str| (part, part.width())));
            self.line(row, parts, widths, text);
        }
    }

    /// One line of a row, from each cell's part and its columns; no trailing space.
    fn line<'a>(
        &self,
        row: &[Cell],
        parts: impl Iterator<Item = Option<(&'a str, usize)>>,
        widths: &[usize],
        text: &mut String,
    ) {
        let mut pending = 0;
        for (((column, width), cell), part) in self.columns.iter().zip(widths).zip(row).zip(parts) {
            let (part, columns) = part.unwrap_or_default();
            let padding = width.saturating_sub(columns);
            if column.side == Side::Right {
                pending += padding;
            }
            if !part.is_empty() {
                text.extend(std::iter::repeat_n(' ', pending));
                pending = 0;
                if cell.style == Style::new() {
                    text.push_str(part);
                } else {
                    text.push_str(&paint(cell.style, part));
                }
            }
            if column.side == Side::Left {
                pending += padding;
            }
            pending += GAP.len();
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::plain;

    #[test]
    fn numbers_go_right_and_lines_have_no_trailing_space() {
        let mut table = Table::new().text("path").number("GB/s").text("note");
        table.row(["direct".into(), "1.21".into(), Cell::from("")]);
        table.row(["cached".into(), "12.0".into(), "warm".into()]);
        let expected = "path    GB/s  note\ndirect  1.21\ncached  12.0  warm\n";
        assert_eq!(plain(&table.render(80)), expected);
    }

    #[test]
    fn given_too_little_room_the_flexible_column_wraps_and_the_others_do_not() {
        let mut table = Table::new().text("").flexible("").number("");
        table.row(["a".into(), "one two three four five".into(), "9".into()]);
        let expected = "a  one two three   9\n   four five\n";
        assert_eq!(plain(&table.render(20)), expected);
    }

    #[test]
    fn given_wide_characters_columns_still_line_up() {
        let mut table = Table::new().text("").text("");
        table.row(["大".into(), "x".into()]);
        table.row(["abc".into(), "y\u{1b}".into()]);
        assert_eq!(plain(&table.render(80)), "大   x\nabc  y\\u{1b}\n");
    }
}
