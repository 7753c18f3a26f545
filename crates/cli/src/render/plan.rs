//! The planner's answers: a sheet of a verdict, tables and notes, written as text for people, as
//! Markdown or as comma-separated values.

use std::fmt::Write;

use crowfly_plan::catalog::Used;
use crowfly_plan::figure::half_up;

use super::cell::Cell;
use super::style::{FAINT, STRONG, WARN, paint};
use super::table::Table;
use super::text::wrap;
use textwrap::core::display_width;

/// Cells of a row, each a text or an amount.
macro_rules! cells {
    ($($cell:expr),* $(,)?) => {
        [$($crate::render::plan::Amount::from($cell)),*]
    };
}

pub mod amounts;
pub mod chart;
mod facts;
mod needs;
pub mod picture;
mod verdict;

pub use amounts::Amount;
pub use chart::Chart;
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
    /// What of them a page draws as bars.
    pub charts: Vec<Chart>,
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

/// How much room a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Titles and names stand on one line.
    Enough,
    /// Titles are stacked and names wrap.
    Little,
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
        let title = paint(STRONG, super::text::harmless(&self.title));
        let fits = |text: &String| text.lines().all(|line| display_width(line) <= columns);
        // Names may be anybody's. Where the table is too wide titles and names give way, and where
        // even that is not enough each row becomes a list.
        let table = [Room::Enough, Room::Little]
            .into_iter()
            .map(|room| self.table(room).render(columns))
            .find(fits);
        let table = table.unwrap_or_else(|| self.list(columns));
        format!("\n{title}\n{table}")
    }

    fn table(&self, room: Room) -> Table {
        let mut table = Table::new();
        for column in &self.columns {
            table = match (column, room) {
                (Column::Text(title), Room::Enough) => table.text(title),
                (Column::Number(title), Room::Enough) => table.number(title),
                (Column::Flexible(title), Room::Enough) => table.flexible(title),
                (Column::Number(_), Room::Little) => table.number(""),
                (Column::Text(_) | Column::Flexible(_), Room::Little) => table.flexible(""),
            };
        }
        if room == Room::Little {
            self.stacked_titles(&mut table);
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
        table
    }

    /// The titles with each word on a line of its own, the last words on the last line.
    fn stacked_titles(&self, table: &mut Table) {
        let words = |column: &Column| column.title().split(' ').rev().collect::<Vec<_>>();
        let upwards: Vec<Vec<&str>> = self.columns.iter().map(words).collect();
        let height = upwards.iter().map(Vec::len).max().unwrap_or(0);
        for line in (0..height).rev() {
            let words = upwards.iter().map(|words| words.get(line).copied());
            table.row(words.map(|word| Cell::styled(FAINT, word.unwrap_or_default())));
        }
    }

    /// Each row as lines of title and cell.
    fn list(&self, columns: usize) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let cells = self.columns.iter().zip(row);
            for (index, (column, cell)) in cells.enumerate() {
                if cell.text.is_empty() {
                    continue;
                }
                let title = column.title();
                let gap = if title.is_empty() { "" } else { ": " };
                let line = format!("{title}{gap}{}", super::text::harmless(&cell.text));
                let first = if index == 0 { "" } else { "  " };
                text.push_str(&wrap(&line, columns, first, "    "));
                text.push('\n');
            }
        }
        text
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

    /// As comma-separated values: one block a table, its title in the first column, and every line as
    /// wide as the widest, as programs that read such files want. A number is written in full, in its
    /// base unit, with the unit in a column of its own.
    pub fn csv(&self) -> String {
        let mut lines = Vec::new();
        for table in &self.tables {
            let mut titles = vec!["table".to_owned()];
            for column in &table.columns {
                titles.push(column.title().to_owned());
                if matches!(column, Column::Number(_)) {
                    titles.push(format!("{} unit", column.title()).trim_start().to_owned());
                }
            }
            lines.push(titles);
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
                lines.push(cells);
            }
        }
        let widest = lines.iter().map(Vec::len).max().unwrap_or(0);
        let mut text = String::new();
        for mut line in lines {
            line.resize(widest, String::new());
            csv_row(&mut text, &line);
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

/// From here on a number is shorter with an exponent.
const MOST_WRITTEN_OUT: f64 = 1e6;
/// Below this, three digits after the point show nothing of a number.
const LEAST_WRITTEN_OUT: f64 = 0.000_5;

/// Three significant figures, halves up: `613`, `30.6`, `1.74`; `2.00e9` where they would stand
/// among many zeros.
fn three(value: f64) -> String {
    if value != 0.0 && !(LEAST_WRITTEN_OUT..MOST_WRITTEN_OUT).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
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
            ..Sheet::default()
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
    fn a_table_that_is_too_wide_gives_way_step_by_step() {
        let columns = [
            Column::Text("who"),
            Column::Number("staged at best"),
            Column::Number("at worst"),
        ];
        let mut table = SheetTable::new("T", columns);
        table.row(cells!["a-name", amounts::time(1.0), amounts::time(2.0)]);
        let read = |columns| crate::render::plain(&table.text(columns));
        let whole = "\nT\nwho     staged at best  at worst\na-name          1.00 s    2.00 s\n";
        assert_eq!(read(40), whole);
        let stacked = "\nT\n        staged\n            at      at\nwho       best   worst\n\
                       a-name  1.00 s  2.00 s\n";
        assert_eq!(read(25), stacked);
        let list = "\nT\nwho: a-name\n  staged at best:\n    1.00 s\n  at worst: 2.00 s\n";
        assert_eq!(read(20), list);
    }

    #[test]
    fn a_cell_is_never_a_spreadsheet_s_formula() {
        let csv = "table,what,GB/s,GB/s unit\nA table,a|b,1000000000,B/s\nA table,\"'=1+1\",,\n";
        assert_eq!(sheet().csv(), csv);
    }

    #[test]
    fn every_line_of_a_file_with_several_tables_is_as_wide() {
        let mut two = sheet();
        let mut narrow = SheetTable::new("B", [Column::Text("who")]);
        narrow.row(cells!["one"]);
        two.tables.push(narrow);
        let csv = two.csv();
        assert_eq!(
            csv.lines().skip(3).collect::<Vec<_>>(),
            ["table,who,,", "B,one,,"]
        );
    }

    #[test]
    fn three_figures_round_halves_up() {
        assert_eq!(three(612.5), "613");
        assert_eq!(three(30.625), "30.6");
        assert_eq!(three(1.740_056), "1.74");
        assert_eq!(three(0.0), "0.000");
        assert_eq!(three(0.000_6), "0.001");
    }

    #[test]
    fn very_large_and_very_small_numbers_have_an_exponent() {
        assert_eq!(three(999_999.0), "999999");
        assert_eq!(three(3_888_888_889.0), "3.89e9");
        assert_eq!(three(1.4e-17), "1.40e-17");
        assert_eq!(amounts::time(1.4e13).text, "3.89e9 h");
        assert_eq!(amounts::time(1e-17).text, "1.00e-5 ps");
        assert_eq!(amounts::size(1e24).text, "1.00e9 PB");
        assert_eq!(amounts::share(1e12).text, "1.00e14 %");
        assert_eq!(amounts::share(1e-9).text, "1.00e-7 %");
        assert_eq!(amounts::count(1e18).text, "1.00e18");
    }
}
