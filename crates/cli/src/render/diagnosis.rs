//! A diagnosis for people: the answer on one screen, the details after it when asked for.

use anstyle::Style;
use crowfly_doctor::verdict::{Basis, KindVerdict};
use crowfly_doctor::{Diagnosis, Finding, Missing, Severity, Verdict};
use unicode_width::UnicodeWidthStr;

use super::cell::Cell;
use super::style::{BAD, FAINT, GOOD, STRONG, WARN, paint};
use super::text::{count, harmless, wrap};
use crate::commands::doctor::answer::Answer;

pub mod changes;
mod finding;
pub mod host;
mod pairs;
mod probes;
pub mod rules;
pub mod script;
mod sources;

pub use finding::{place, words as quoted};

/// What fits a terminal of the usual size, above the prompt.
const SCREEN_LINES: usize = 23;
/// A heading's text starts here.
const INDENT: usize = 2;

/// How much is told.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Findings told with evidence and fix.
    top: usize,
    /// Lines quoted, and steps told, of each of those.
    quotes: usize,
    steps: usize,
    /// Findings told on a line each after those.
    further: usize,
    /// Lines that the reason of a kind's verdict may take.
    why: usize,
    /// Things to collect.
    missing: usize,
    /// Groups of things that could not be looked at, slots, and obstacles of the slots.
    unseen: usize,
    slots: usize,
    obstacles: usize,
    /// Whether all of it is told, and what would be left out is not counted.
    all: bool,
}

impl Extent {
    const ALL: Self = Self {
        top: usize::MAX,
        quotes: usize::MAX,
        steps: usize::MAX,
        further: usize::MAX,
        why: usize::MAX,
        missing: usize::MAX,
        unseen: usize::MAX,
        slots: usize::MAX,
        obstacles: usize::MAX,
        all: true,
    };
    const MOST: Self = Self {
        top: 2,
        quotes: 2,
        steps: 2,
        further: 6,
        why: 2,
        missing: 2,
        unseen: 3,
        slots: 8,
        obstacles: 1,
        all: false,
    };

    /// What is told on one screen, the most first.
    fn shrinking() -> impl Iterator<Item = Self> {
        let steps: [fn(&mut Self); 11] = [
            |_| {},
            |e| e.top = 1,
            |e| e.further = 3,
            |e| e.missing = 1,
            |e| (e.quotes, e.unseen) = (1, 1),
            |e| (e.obstacles, e.slots) = (0, 5),
            |e| e.steps = 1,
            |e| (e.missing, e.further) = (0, 2),
            |e| e.slots = 3,
            |e| (e.top, e.further) = (0, 3),
            |e| e.why = 1,
        ];
        let mut extent = Self::MOST;
        steps.into_iter().map(move |step| {
            step(&mut extent);
            extent
        })
    }
}

/// The answer in at most `columns` columns: on one screen, or with every pair and all of each finding.
pub fn render(answer: &Answer, columns: usize, all: bool) -> String {
    if all {
        return compose(answer, columns, Extent::ALL);
    }
    let mut text = String::new();
    for extent in Extent::shrinking() {
        text = compose(answer, columns, extent);
        if text.lines().count() <= SCREEN_LINES {
            break;
        }
    }
    text
}

fn compose(answer: &Answer, columns: usize, extent: Extent) -> String {
    let diagnosis = &answer.diagnosis;
    let mut text = headline(diagnosis, columns);
    if answer.case.is_empty() {
        text.push_str(&sources::unknown(&answer.case, columns, extent.all));
        return text;
    }
    text.push_str(&kinds(diagnosis, columns, extent.why));
    text.push_str(&findings(diagnosis, columns, extent));
    if extent.all {
        text.push_str(&pairs::render(diagnosis, columns));
    }
    if let Some(host) = &answer.host {
        text.push_str(&host::render(host, columns, extent));
    }
    if let Some(probes) = &answer.probes {
        text.push_str(&probes::render(probes, columns));
    }
    text.push_str(&missing(diagnosis, columns, extent));
    text.push('\n');
    text.push_str(&sources::render(&answer.case, columns, extent.all));
    if !extent.all {
        text.push_str(&more(diagnosis, columns));
    }
    text
}

/// A verdict in words: `direct but slow`.
pub fn words(verdict: Verdict) -> String {
    verdict.as_str().replace('-', " ")
}

/// The style that tells how good a verdict is.
pub const fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Direct => GOOD,
        Verdict::DirectButSlow | Verdict::Staged | Verdict::InsufficientEvidence => WARN,
        Verdict::Socket | Verdict::Broken => BAD,
    }
}

/// The style that tells how much a finding matters.
const fn severity_style(severity: Severity) -> Style {
    match severity {
        Severity::Broken | Severity::Fault => BAD,
        Severity::Warning => WARN,
        Severity::Note => FAINT,
    }
}

fn headline(diagnosis: &Diagnosis, columns: usize) -> String {
    let verdict = format!("{}: ", words(diagnosis.verdict));
    let line = format!("{verdict}{}", harmless(&diagnosis.headline));
    let line = wrap(&line, columns, "", "");
    let styled = paint(style(diagnosis.verdict).bold(), verdict.trim_end());
    format!("{}\n", line.replacen(verdict.trim_end(), &styled, 1))
}

/// A row for each kind of pair, its reason on at most so many lines.
fn kinds(diagnosis: &Diagnosis, columns: usize, lines: usize) -> String {
    if diagnosis.kinds.is_empty() {
        return String::new();
    }
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
    let titles = width(&mut diagnosis.kinds.iter().map(|k| k.kind.title().width()));
    let verdicts = width(&mut diagnosis.kinds.iter().map(|k| judged(k).width()));
    let mut text = String::from("\n");
    for kind in &diagnosis.kinds {
        let title = Cell::styled(STRONG, kind.kind.title()).padded(titles);
        let verdict = Cell::styled(style(kind.verdict), judged(kind)).padded(verdicts);
        let first = format!("{:INDENT$}{title}  {verdict}  ", "");
        let rest = " ".repeat(INDENT + titles + 2 + verdicts + 2);
        text.push_str(&at_most(&kind.why, lines, columns, &first, &rest));
    }
    text
}

/// The verdict on a kind, with what it rests on where no transfer was seen.
fn judged(kind: &KindVerdict) -> String {
    match (kind.verdict, kind.basis) {
        (Verdict::InsufficientEvidence, _) => "not shown".to_owned(),
        (verdict, Some(Basis::Predicted)) => format!("{} by layout", words(verdict)),
        (verdict, Some(Basis::Measured)) => format!("{} by rate", words(verdict)),
        (verdict, _) => words(verdict),
    }
}

/// Text on at most so many lines; what is left out is marked.
fn at_most(text: &str, lines: usize, columns: usize, first: &str, rest: &str) -> String {
    let whole = wrap(&harmless(text), columns.saturating_sub(1), first, rest);
    let mut told: Vec<&str> = whole.lines().take(lines).collect();
    let cut;
    if whole.lines().count() > lines
        && let Some(last) = told.pop()
    {
        cut = format!("{}…", last.trim_end_matches([',', ';', ':', ' ']));
        told.push(&cut);
    }
    told.iter().map(|line| format!("{line}\n")).collect()
}

fn findings(diagnosis: &Diagnosis, columns: usize, extent: Extent) -> String {
    let findings = &diagnosis.findings;
    let mut text = String::new();
    if extent.all {
        for one in findings {
            text.push('\n');
            text.push_str(&finding::whole(one, columns));
        }
        return text;
    }
    // Notes help to read the evidence; where something is wrong, that comes first.
    let grave = findings
        .iter()
        .filter(|f| f.severity > Severity::Note)
        .count();
    let top = extent.top.min(grave);
    for one in findings.iter().take(top) {
        text.push('\n');
        let told = opens_with(diagnosis, one);
        text.push_str(&finding::brief(
            one,
            extent.quotes,
            extent.steps,
            told,
            columns,
        ));
    }
    let told = if grave > 0 { grave } else { findings.len() };
    let rest = findings.iter().take(told).skip(top);
    let mut lines = String::new();
    for one in rest.clone().take(extent.further) {
        let told = opens_with(diagnosis, one);
        lines.push_str(&finding::line(one, told, columns));
    }
    if !lines.is_empty() {
        text.push('\n');
        text.push_str(&lines);
    }
    let left = rest.count().saturating_sub(extent.further);
    if left > 0 {
        let left = format!("and {} more", count(left, "finding"));
        text.push_str(&format!("{}\n", paint(FAINT, left)));
    }
    text
}

/// Whether the headline says what a finding's title says.
fn opens_with(diagnosis: &Diagnosis, finding: &Finding) -> bool {
    diagnosis
        .headline
        .contains(finding.title.trim_end_matches('.'))
}

/// What to collect, with the command; questions that one command settles stand together.
fn missing(diagnosis: &Diagnosis, columns: usize, extent: Extent) -> String {
    let mut groups: Vec<(&str, Vec<&Missing>)> = Vec::new();
    for missing in &diagnosis.missing {
        match groups.iter_mut().find(|(c, _)| *c == missing.command) {
            Some((_, group)) => group.push(missing),
            None => groups.push((&missing.command, vec![missing])),
        }
    }
    let mut text = String::new();
    for (command, group) in groups.iter().take(extent.missing) {
        for missing in group {
            let about = missing
                .about
                .map_or(String::new(), |kind| format!("{}: ", kind.title()));
            let line = format!("{about}{}; {}", missing.what, missing.why);
            text.push_str(&wrap(&harmless(&line), columns, "  ", "    "));
            text.push('\n');
        }
        text.push_str(&super::command::render(command, columns, "  $ ", "      "));
    }
    let left = groups.len().saturating_sub(extent.missing);
    if text.is_empty() {
        return text;
    }
    if left > 0 {
        text.push_str(&paint(FAINT, format!("  and {left} more\n")));
    }
    let heading = match diagnosis.verdict {
        Verdict::InsufficientEvidence => "To settle it, collect",
        _ => "To be sure, collect",
    };
    format!("\n{}\n{text}", paint(STRONG, heading))
}

/// What `--all` and the other forms would tell.
fn more(diagnosis: &Diagnosis, columns: usize) -> String {
    let pairs = diagnosis.pairs.len() as u64 + diagnosis.pairs_beyond_limit;
    let pairs = usize::try_from(pairs).unwrap_or(usize::MAX);
    let told: Vec<String> = [(pairs, "pair"), (diagnosis.findings.len(), "finding")]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| count(n, what))
        .collect();
    let mut forms = Vec::new();
    if !told.is_empty() {
        forms.push(format!("--all tells {} in full", told.join(" and ")));
    }
    if diagnosis.findings.iter().any(|f| !f.fix.is_empty()) {
        forms.push("--fix-script prints the fixes".to_owned());
    }
    if let Some(finding) = diagnosis.findings.first() {
        forms.push(format!(
            "`crowfly doctor --rule {0}` explains {0}",
            finding.code
        ));
    }
    match forms.as_slice() {
        [] => String::new(),
        forms => format!(
            "{}\n",
            paint(
                FAINT,
                wrap(&format!("{}.", forms.join("; ")), columns, "", "")
            )
        ),
    }
}

/// Every line moved to the right.
fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("{}{line}\n", " ".repeat(INDENT)))
        .collect()
}
