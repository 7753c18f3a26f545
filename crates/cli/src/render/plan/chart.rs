//! What of an answer is worth a bar, and a sheet as a document for a page that lays it out itself.

use crowfly_plan::assess::Assessment;
use crowfly_plan::checkpoint::Checkpoint;
use crowfly_plan::figure::Figure;
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use super::amounts::{figure, times};
use super::{Column, Sheet, SheetTable};

/// Amounts of one unit, to be drawn to one scale.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chart {
    /// What they are.
    pub title: String,
    /// The bars, in order.
    pub bars: Vec<Bar>,
}

/// One amount, or a range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What it is.
    pub label: String,
    /// For people.
    pub text: String,
    /// The number, or the end of the range.
    pub value: f64,
    /// Where the range starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// How straight the way is that it belongs to.
    pub way: Straightness,
}

/// How a bar is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Straightness {
    /// A direct way, or what there is.
    Direct,
    /// A detour through host RAM.
    Staged,
}

impl Bar {
    fn of(label: impl Into<String>, way: Straightness, amount: &Figure) -> Self {
        Self {
            label: label.into(),
            text: figure(amount).text,
            value: amount.value,
            from: None,
            way,
        }
    }

    /// From the one to the other; the end alone where both read the same.
    fn range(label: &str, way: Straightness, from: &Figure, to: &Figure) -> Self {
        Self {
            text: times(from.value, to.value),
            from: (from.value < to.value).then_some(from.value),
            ..Self::of(label, way, to)
        }
    }
}

use Straightness::{Direct, Staged};

/// The bars of an assessment: the exchange by both models, the step, and what host RAM allows.
pub fn assessment(answer: &Assessment) -> Vec<Chart> {
    let article = &answer.article;
    let mut by_article = vec![Bar::of("direct", Direct, &article.direct)];
    by_article.extend(
        article
            .staged
            .as_ref()
            .map(|s| Bar::of("staged", Staged, s)),
    );
    let calibrated = &answer.calibrated;
    let mut by_calibrated = vec![Bar::of("direct", Direct, &calibrated.direct)];
    let memory_known = answer.cluster.server.memory.is_some();
    by_calibrated.extend(calibrated.staged.as_ref().map(|staged| {
        if memory_known {
            Bar::range("staged", Staged, &staged.fast, &staged.slow)
        } else {
            Bar::of("staged, at best", Staged, &staged.fast)
        }
    }));
    let mut charts = vec![
        chart("Exchange of gradients per step, article", by_article),
        chart("Exchange of gradients per step, calibrated", by_calibrated),
    ];
    if let Some(peak) = &article.memory_peak {
        let bars = vec![
            Bar::of("memory peak", Direct, peak),
            Bar::of("asked of it, if staged", Staged, &article.memory_traffic),
        ];
        charts.push(chart("Host RAM, if the network is staged through it", bars));
    }
    charts
}

/// The bars of a checkpoint: a restore and a write on each storage.
pub fn checkpoint(answer: &Checkpoint) -> Vec<Chart> {
    let mut restore = Vec::new();
    let mut write = Vec::new();
    for on in &answer.on {
        let name = &on.storage.name;
        let label = |what: &str| format!("{name}, {what}");
        let direct = on.restore_direct.as_ref();
        restore.extend(direct.map(|d| Bar::of(label("direct"), Direct, d)));
        restore.push(Bar::of(label("staged"), Staged, &on.restore_staged));
        let direct = on.write_direct.as_ref();
        write.extend(direct.map(|d| Bar::of(label("direct"), Direct, d)));
        write.push(Bar::of(label("staged"), Staged, &on.write_staged));
    }
    vec![
        chart("Restoring a checkpoint", restore),
        chart("Writing a checkpoint, training waits", write),
    ]
}

fn chart(title: &str, bars: Vec<Bar>) -> Chart {
    Chart {
        title: title.into(),
        bars,
    }
}

impl Serialize for Sheet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sheet = serializer.serialize_struct("Sheet", 5)?;
        sheet.serialize_field("verdict", &self.verdict)?;
        sheet.serialize_field("tables", &self.tables)?;
        sheet.serialize_field("charts", &self.charts)?;
        sheet.serialize_field("notes", &self.notes)?;
        sheet.serialize_field("doubts", &self.doubts())?;
        sheet.end()
    }
}

#[derive(Serialize)]
struct Heading {
    title: &'static str,
    number: bool,
    /// Whether its cells are sentences.
    words: bool,
}

impl Serialize for SheetTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let heading = |column: &Column| Heading {
            title: column.title(),
            number: matches!(column, Column::Number(_)),
            words: matches!(column, Column::Flexible(_)),
        };
        let columns: Vec<Heading> = self.columns.iter().map(heading).collect();
        let rows: Vec<Vec<&str>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| cell.text.as_str()).collect())
            .collect();
        let mut table = serializer.serialize_struct("SheetTable", 3)?;
        table.serialize_field("title", &self.title)?;
        table.serialize_field("columns", &columns)?;
        table.serialize_field("rows", &rows)?;
        table.end()
    }
}

#[cfg(test)]
mod tests {
    use crowfly_plan::figure::Unit;

    use super::*;

    fn seconds(value: f64) -> Figure {
        Figure::computed(value, Unit::Seconds, "a test")
    }

    #[test]
    fn a_range_whose_ends_are_one_is_a_bar() {
        let range = Bar::range("staged", Staged, &seconds(1.3), &seconds(2.55));
        assert_eq!((range.from, range.value), (Some(1.3), 2.55));
        assert_eq!(range.text, "1.30 to 2.55 s");
        let one = Bar::range("staged", Staged, &seconds(1.3), &seconds(1.3));
        assert_eq!((one.from, one.text.as_str()), (None, "1.30 s"));
    }

    #[test]
    fn a_sheet_for_a_page_has_every_cell_as_people_read_it() {
        let mut table = SheetTable::new("T", [Column::Text("what"), Column::Number("time")]);
        table.row(cells!["a", super::super::amounts::time(0.6125)]);
        let sheet = Sheet {
            verdict: "So it is.".into(),
            tables: vec![table],
            ..Sheet::default()
        };
        let expected = serde_json::json!({
            "verdict": "So it is.",
            "tables": [{
                "title": "T",
                "columns": [
                    {"title": "what", "number": false, "words": false},
                    {"title": "time", "number": true, "words": false},
                ],
                "rows": [["a", "613 ms"]],
            }],
            "charts": [], "notes": [], "doubts": [],
        });
        assert_eq!(serde_json::to_value(&sheet).expect("a document"), expected);
    }
}
