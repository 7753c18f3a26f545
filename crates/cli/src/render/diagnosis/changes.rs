//! What changed between two looks.

use std::time::Duration;

use crowfly_doctor::Diagnosis;

use super::{finding, style, words};
use crate::commands::doctor::watch::Changes;
use crate::render::style::{FAINT, GOOD, STRONG, paint};
use crate::render::text::{harmless, wrap};

/// Lines quoted and steps told of a finding that came up.
const FEW: usize = 2;
/// Pairs told one by one.
const FEW_PAIRS: usize = 12;

/// The changes, seen so long after the first look.
pub fn render(changes: &Changes, now: &Diagnosis, after: Duration, columns: usize) -> String {
    let heading = format!("after {} s", after.as_secs());
    let mut text = format!("\n{}\n", paint(STRONG, heading));
    if let Some((before, after)) = changes.verdict {
        let verdict = paint(style(after), words(after));
        text.push_str(&format!("verdict   {} → {verdict}\n", words(before)));
        text.push_str(&wrap(
            &harmless(&now.headline),
            columns,
            "          ",
            "          ",
        ));
        text.push('\n');
    }
    for change in changes.pairs.iter().take(FEW_PAIRS) {
        let told = |verdict: Option<_>| verdict.map_or_else(|| "not seen".to_owned(), words);
        let line = format!(
            "{}: {} → {}: {}",
            change.pair,
            told(change.before),
            told(change.after),
            change.why
        );
        text.push_str(&wrap(&harmless(&line), columns, "pair      ", "          "));
        text.push('\n');
    }
    let left = changes.pairs.len().saturating_sub(FEW_PAIRS);
    if left > 0 {
        text.push_str(&paint(FAINT, format!("          and {left} more pairs\n")));
    }
    for gone in &changes.gone {
        let line = format!("{} {}  {}", gone.code, gone.name, gone.title);
        let label = format!("{}      ", paint(GOOD, "gone"));
        text.push_str(&wrap(&harmless(&line), columns, &label, "          "));
        text.push('\n');
    }
    for new in &changes.appeared {
        text.push_str(&finding::brief(new, FEW, FEW, false, columns));
    }
    text
}
