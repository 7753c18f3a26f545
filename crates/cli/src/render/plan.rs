//! The planner's answers: a sheet of a verdict, tables and notes, written as text for people, as
//! Markdown or as comma-separated values.

use std::fmt::Write;

use crowfly_plan::catalog::Used;
use crowfly_plan::figure::half_up;

use super::cell::Cell;
use super::style::{FAINT, STRONG, WARN, paint};
use super::table::Table;
use super::text::wrap;

/// Cells of a row, each a text or an amount.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => {
        [$($crate::render::plan::Amount::from($cell)),*]
    };
}

mod amounts;
mod facts;
mod needs;
mod picture;
mod verdict;

pub use amounts::Amount;
pub use facts::{catalog, claims, shapes, validation};
pub use needs::{checkpoint, collective, fabric, interval, loading, simulation, tier};
pub use picture::{bars, curve};
pub use verdict::{assessment, comparison, sweep};

/// A verdict with what it stands on.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// The answer in a sentence.
    pub verdict: String,
    /// The numbers.
    pub tables: Vec<SheetTable>,
    /// What a reader should know.
    pub notes: Vec<String>,
    doubtful: Vec<Used>,
}

/// A table of a sheet.
#[derive(Clone, Debug)]
pub struct SheetTable {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Amount>>,
}

#[derive(Clone, Copy, Debug)]
enum Column {
    Text(&'static str),
    Number(&'static str),
    Flexible(&'static str),
}

impl Column {
    const fn title(self) -> &'static str {
        match self {
            Self::Text(title) | Self::Number(title) | Self::Flexible(title) => title,
        }
    }
}

impl SheetTable {
    fn new(title: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            title: title.into(),
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = Amount>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self, columns: usize) -> String {
        let mut table = Table::new();
        for column in &self.columns {
            table = match column {
                Column::Text(title) => table.text(title),
                Column::Number(title) => table.number(title),
                Column::Flexible(title) => table.flexible(title),
            };
        }
        for row in &self.rows {
            table.row(row.iter().map(|cell| {
                if cell.text.is_empty() {
                    Cell::nothing()
                } else {
                    Cell::from(&cell.text)
                }
            }));
        }
        let title = paint(STRONG, super::text::harmless(&self.title));
        format!("\n{title}\n{}", table.render(columns))
    }
}

impl Sheet {
    /// Names the entries among those used that nobody checked or that the user added.
    pub fn rests_on(&mut self, used: Vec<Used>) {
        self.doubtful = used
            .into_iter()
            .filter(|u| !u.verified || u.added)
            .collect();
    }

    fn doubts(&self) -> Vec<String> {
        let doubt = |used: &Used| {
            let why = match (used.verified, used.added) {
                (true, _) => "your own entry",
                (false, true) => "your own entry, unverified",
                (false, false) => "unverified",
            };
            let note = used
                .note
                .as_ref()
                .map_or(String::new(), |note| format!(": {note}"));
            format!("{} {} is {why}{note}", used.kind, used.id)
        };
        self.doubtful.iter().map(doubt).collect()
    }

    /// For people, in at most `columns` columns.
    pub fn text(&self, columns: usize) -> String {
        let mut text = wrap(&super::text::harmless(&self.verdict), columns, "", "");
        text.push('\n');
        for table in &self.tables {
            text.push_str(&table.text(columns));
        }
        let doubts = self.doubts();
        if !self.notes.is_empty() || !doubts.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let note = paint(FAINT, super::text::harmless(note));
            text.push_str(&wrap(&note, columns, "", ""));
            text.push('\n');
        }
        for doubt in doubts {
            let line = format!(
                "{}  {}",
                paint(WARN, "unsure"),
                super::text::harmless(&doubt)
            );
            text.push_str(&wrap(&line, columns, "", "        "));
            text.push('\n');
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("{}\n", escaped(&self.verdict));
        for table in &self.tables {
            let _ = write!(text, "\n### {}\n\n", escaped(&table.title));
            let titles = table.columns.iter().map(|column| column.title());
            markdown_row(&mut text, titles);
            let rules = table.columns.iter().map(|column| match column {
                Column::Number(_) => "---:",
                _ => "---",
            });
            markdown_row(&mut text, rules);
            for row in &table.rows {
                markdown_row(&mut text, row.iter().map(|cell| cell.text.as_str()));
            }
        }
        let doubts = self.doubts();
        for note in self.notes.iter().chain(&doubts) {
            let _ = write!(text, "\n- {}", escaped(note));
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text
    }

    /// As comma-separated values: one block a table, its title in the first column. A number is
    /// written in full, in its base unit, with the unit in a column of its own.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let mut titles = vec!["table".to_owned()];
            for column in &table.columns {
                titles.push(column.title().to_owned());
                if matches!(column, Column::Number(_)) {
                    titles.push(format!("{} unit", column.title()).trim_start().to_owned());
                }
            }
            csv_row(&mut text, &titles);
            for row in &table.rows {
                let mut cells = vec![table.title.clone()];
                for (column, cell) in table.columns.iter().zip(row) {
                    match (column, cell.raw) {
                        (Column::Number(_), Some((value, unit))) => {
                            cells.extend([value.to_string(), unit.to_owned()]);
                        }
                        (Column::Number(_), None) => {
                            cells.extend([cell.text.clone(), String::new()]);
                        }
                        _ => cells.push(cell.text.clone()),
                    }
                }
                csv_row(&mut text, &cells);
            }
        }
        text
    }
}

fn markdown_row<'a>(text: &mut String, cells: impl Iterator<Item = &'a str>) {
    for cell in cells {
        let _ = write!(text, "| {} ", escaped(cell));
    }
    text.push_str("|\n");
}

/// Text from outside can neither end a cell nor begin markup.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in super::text::harmless(text).chars() {
        if matches!(c, '|' | '<' | '*' | '`' | '[' | '\\') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

fn csv_row(text: &mut String, cells: &[String]) {
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        let cell = super::text::harmless(cell);
        // A spreadsheet takes a cell that begins like this for a formula.
        let formula = cell.starts_with(['=', '@', '+']);
        if formula || cell.contains([',', '"', '\n']) {
            let prefix = if formula { "'" } else { "" };
            let _ = write!(text, "\"{prefix}{}\"", cell.replace('"', "\"\""));
        } else {
            text.push_str(&cell);
        }
    }
    text.push('\n');
}

/// Three significant figures, halves up: `613`, `30.6`, `1.74`.
fn three(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    half_up(value, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let mut table = SheetTable::new("A table", [Column::Text("what"), Column::Number("GB/s")]);
        table.row(cells!["a|b", amounts::rate(1e9)]);
        table.row(cells!["=1+1", ""]);
        Sheet {
            verdict: "It is so.".into(),
            tables: vec![table],
            notes: vec!["A note.".into()],
            doubtful: Vec::new(),
        }
    }

    #[test]
    fn a_sheet_reads_the_same_in_every_form() {
        let text = crate::render::plain(&sheet().text(60));
        assert_eq!(
            text,
            "It is so.\n\nA table\nwhat       GB/s\na|b   1.00 GB/s\n=1+1          –\n\nA note.\n"
        );
        let markdown = "It is so.\n\n### A table\n\n| what | GB/s |\n| --- | ---: |\n| a\\|b | 1.00 GB/s |\n| =1+1 |  |\n\n- A note.";
        assert_eq!(sheet().markdown().trim_end(), markdown);
    }

    #[test]
    fn a_cell_is_never_a_spreadsheet_s_formula() {
        let csv = "table,what,GB/s,GB/s unit\nA table,a|b,1000000000,B/s\nA table,\"'=1+1\",,\n";
        assert_eq!(sheet().csv(), csv);
    }

    #[test]
    fn three_figures_round_halves_up() {
        assert_eq!(three(612.5), "613");
        assert_eq!(three(30.625), "30.6");
        assert_eq!(three(1.740_056), "1.74");
        assert_eq!(three(0.0), "0.000");
    }
}
