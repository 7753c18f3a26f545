//! Tables: columns as wide as they need to be, numbers to the right, one column that gives way.

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
                .map(|cell| cell.text.width())
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
        let columns = self.columns.iter().zip(widths);
        let wrapped: Vec<Vec<String>> = columns
            .zip(row)
            .map(|((column, width), cell)| {
                if column.flexible {
                    let lines = textwrap::wrap(&cell.text, *width);
                    lines.into_iter().map(|line| line.into_owned()).collect()
                } else {
                    vec![cell.text.clone()]
                }
            })
            .collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut pending = String::new();
            for (index, (column, width)) in self.columns.iter().zip(widths).enumerate() {
                let part = wrapped.get(index).and_then(|lines| lines.get(line));
                let (Some(part), Some(cell)) = (part, row.get(index)) else {
                    pending.push_str(&" ".repeat(width + GAP.len()));
                    continue;
                };
                let padding = " ".repeat(width.saturating_sub(part.width()));
                if column.side == Side::Right {
                    pending.push_str(&padding);
                }
                if !part.is_empty() {
                    text.push_str(&pending);
                    pending.clear();
                    text.push_str(&paint(cell.style, part));
                }
                if column.side == Side::Left {
                    pending.push_str(&padding);
                }
                pending.push_str(GAP);
            }
            text.push('\n');
        }
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
