//! `doctor --watch`: looks again and again, and tells what changed.

use std::time::{Duration, Instant};

use crowfly_doctor::{Diagnosis, Finding, PairVerdict, Verdict};

use super::answer::Answer;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;

/// What is different between two looks.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// The verdict on the whole, before and after.
    pub verdict: Option<(Verdict, Verdict)>,
    /// Pairs whose verdict changed: before, and after; `None` where the pair was or is not seen.
    pub pairs: Vec<PairChange>,
    /// Findings that came up.
    pub appeared: Vec<Finding>,
    /// Findings that are gone.
    pub gone: Vec<Finding>,
}

/// A pair whose verdict changed.
#[derive(Debug, PartialEq)]
pub struct PairChange {
    /// The pair, as it is named.
    pub pair: String,
    /// Before.
    pub before: Option<Verdict>,
    /// After.
    pub after: Option<Verdict>,
    /// Why it is so now.
    pub why: String,
}

impl Changes {
    /// What is different in the second.
    pub fn between(before: &Diagnosis, after: &Diagnosis) -> Self {
        let absent = |findings: &[Finding], one: &Finding| {
            let same = |other: &Finding| (other.code, &other.title) == (one.code, &one.title);
            !findings.iter().any(same)
        };
        let only_in = |one: &Diagnosis, other: &Diagnosis| {
            let missing = one.findings.iter().filter(|f| absent(&other.findings, f));
            missing.cloned().collect::<Vec<Finding>>()
        };
        let changed = (before.verdict != after.verdict).then_some((before.verdict, after.verdict));
        Self {
            verdict: changed,
            pairs: pairs(&before.pairs, &after.pairs),
            appeared: only_in(after, before),
            gone: only_in(before, after),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn pairs(before: &[PairVerdict], after: &[PairVerdict]) -> Vec<PairChange> {
    use std::collections::BTreeMap;
    let by_pair = |pairs: &[PairVerdict]| -> BTreeMap<_, (Verdict, String)> {
        let one = |p: &PairVerdict| (p.pair.clone(), (p.verdict, p.why.clone()));
        pairs.iter().map(one).collect()
    };
    let (before, after) = (by_pair(before), by_pair(after));
    let mut changes = Vec::new();
    for (pair, (verdict, why)) in &after {
        let was = before.get(pair).map(|(verdict, _)| *verdict);
        if was != Some(*verdict) {
            changes.push(PairChange {
                pair: pair.to_string(),
                before: was,
                after: Some(*verdict),
                why: why.clone(),
            });
        }
    }
    for (pair, (verdict, _)) in &before {
        if !after.contains_key(pair) {
            changes.push(PairChange {
                pair: pair.to_string(),
                before: Some(*verdict),
                after: None,
                why: "it is not seen any more".into(),
            });
        }
    }
    changes
}

/// Looks every `period` until a signal ends the process. The first answer is printed whole, later ones where they
/// differ from the one before.
pub fn run(
    period: Duration,
    all: bool,
    out: &mut Output,
    mut look: impl FnMut(&mut Output) -> Result<Answer, Failure>,
) -> Result<Exit, Failure> {
    let columns = out.columns();
    let mut last = look(out)?;
    out.text(&render::diagnosis::render(&last, columns, all))?;
    out.note(&format!(
        "\nlooking again every {} s; Ctrl-C ends it",
        period.as_secs()
    ));
    let started = Instant::now();
    while !out.is_hung_up() {
        std::thread::sleep(period);
        let now = look(out)?;
        let changes = Changes::between(&last.diagnosis, &now.diagnosis);
        if !changes.is_empty() {
            let text = render::diagnosis::changes::render(
                &changes,
                &now.diagnosis,
                started.elapsed(),
                columns,
            );
            out.text(&text)?;
        }
        last = now;
    }
    Ok(last.exit())
}
