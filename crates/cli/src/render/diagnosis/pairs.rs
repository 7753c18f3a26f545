//! The verdict on each pair.

use crowfly_doctor::verdict::Basis;
use crowfly_doctor::{Diagnosis, PairVerdict, Verdict};

use super::{style, words};
use crate::render::cell::Cell;
use crate::render::style::{STRONG, WARN, paint};
use crate::render::table::Table;
use crate::render::text::count;

/// A table of all pairs; nothing where there are none.
pub fn render(diagnosis: &Diagnosis, columns: usize) -> String {
    if diagnosis.pairs.is_empty() {
        return String::new();
    }
    let mut table = Table::new()
        .flexible("pair")
        .text("verdict")
        .text("shown by")
        .flexible("why")
        .text("findings");
    for pair in &diagnosis.pairs {
        table.row([
            Cell::from(pair.pair.to_string()),
            Cell::styled(style(pair.verdict), words(pair.verdict)),
            basis(pair),
            Cell::from(&pair.why),
            Cell::styled(STRONG, pair.findings.join(" ")),
        ]);
    }
    let mut text = format!("\n{}", table.render(columns));
    if diagnosis.pairs_beyond_limit > 0 {
        let left = usize::try_from(diagnosis.pairs_beyond_limit).unwrap_or(usize::MAX);
        let left = format!("and {}, which are not listed\n", count(left, "pair"));
        text.push_str(&paint(WARN, left));
    }
    text
}

fn basis(pair: &PairVerdict) -> Cell {
    match (pair.verdict, pair.basis) {
        (Verdict::InsufficientEvidence, _) => Cell::nothing(),
        (_, Basis::Observed) => Cell::from("transfers"),
        (_, Basis::Measured) => Cell::from("the rate"),
        (_, Basis::Predicted) => Cell::from("the layout"),
    }
}
