//! A diagnosis for people: the answer on one screen, the details after it when asked for.

use anstyle::Style;
use crowfly_doctor::{Diagnosis, Severity, Verdict};

use super::cell::Cell;
use super::style::{BAD, CODE, FAINT, GOOD, STRONG, WARN, paint};
use super::table::Table;
use super::text::{count, harmless, wrap};
use crate::commands::doctor::answer::Answer;

pub mod changes;
mod finding;
pub mod host;
mod pairs;
pub mod rules;
pub mod script;
mod sources;

pub use finding::{place, words as quoted};

/// Findings told with evidence and fix on the one screen.
const TOP_FINDINGS: usize = 3;
/// Findings told on a line each after those.
const FURTHER_FINDINGS: usize = 6;
/// Things to collect that are told on the one screen.
const FEW_MISSING: usize = 3;
/// A heading's text starts here.
const INDENT: usize = 2;

/// The answer in at most `columns` columns; `all` tells every pair and all of each finding.
pub fn render(answer: &Answer, columns: usize, all: bool) -> String {
    let diagnosis = &answer.diagnosis;
    let mut text = headline(diagnosis, columns);
    if answer.case.is_empty() {
        text.push_str(&sources::unknown(&answer.case, columns));
        return text;
    }
    text.push_str(&kinds(diagnosis, columns));
    text.push_str(&findings(diagnosis, columns, all));
    if all {
        text.push_str(&pairs::render(diagnosis, columns));
    }
    if let Some(host) = &answer.host {
        text.push_str(&host::render(host, columns, all));
    }
    text.push_str(&missing(diagnosis, columns, all));
    text.push('\n');
    text.push_str(&sources::render(&answer.case, columns, all));
    if !all {
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

/// One line for each kind of pair.
fn kinds(diagnosis: &Diagnosis, columns: usize) -> String {
    if diagnosis.kinds.is_empty() {
        return String::new();
    }
    let mut table = Table::new().text("").text("").flexible("");
    for kind in &diagnosis.kinds {
        table.row([
            Cell::styled(STRONG, kind.kind.title()),
            Cell::styled(style(kind.verdict), words(kind.verdict)),
            Cell::from(&kind.why),
        ]);
    }
    format!("\n{}", indented(&table.render(columns - INDENT)))
}

fn findings(diagnosis: &Diagnosis, columns: usize, all: bool) -> String {
    let findings = &diagnosis.findings;
    let mut text = String::new();
    if all {
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
    let top = TOP_FINDINGS.min(grave);
    for one in findings.iter().take(top) {
        text.push('\n');
        text.push_str(&finding::brief(one, columns));
    }
    let rest = findings.iter().skip(top);
    let mut lines = String::new();
    for one in rest.clone().take(FURTHER_FINDINGS) {
        lines.push_str(&finding::line(one, columns));
    }
    if !lines.is_empty() {
        text.push('\n');
        text.push_str(&lines);
    }
    let left = rest.count().saturating_sub(FURTHER_FINDINGS);
    if left > 0 {
        let left = format!("and {} more", count(left, "finding"));
        text.push_str(&format!("{}\n", paint(FAINT, left)));
    }
    text
}

/// What to collect, with the command.
fn missing(diagnosis: &Diagnosis, columns: usize, all: bool) -> String {
    let told = if all {
        diagnosis.missing.len()
    } else {
        FEW_MISSING
    };
    let mut text = String::new();
    for missing in diagnosis.missing.iter().take(told) {
        let about = missing
            .about
            .map_or(String::new(), |kind| format!(" ({})", kind.title()));
        let line = format!(
            "{}{about}: {}",
            harmless(&missing.what),
            harmless(&missing.why)
        );
        text.push_str(&wrap(&line, columns, "  ", "  "));
        text.push('\n');
        let command = paint(CODE, harmless(&missing.command));
        text.push_str(&format!("    $ {command}\n"));
    }
    let left = diagnosis.missing.len().saturating_sub(told);
    if left > 0 {
        text.push_str(&paint(FAINT, format!("  and {left} more\n")));
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "\n{}\n{text}",
            paint(STRONG, "To settle what is open, collect")
        ),
    }
}

/// What `--all` and the other forms would tell.
fn more(diagnosis: &Diagnosis, columns: usize) -> String {
    let pairs = diagnosis.pairs.len() as u64 + diagnosis.pairs_beyond_limit;
    let mut forms = Vec::new();
    if pairs > 0 || !diagnosis.findings.is_empty() {
        let pairs = usize::try_from(pairs).unwrap_or(usize::MAX);
        forms.push(format!(
            "--all tells {} and {} in full",
            count(pairs, "pair"),
            count(diagnosis.findings.len(), "finding")
        ));
    }
    if diagnosis.findings.iter().any(|f| !f.fix.is_empty()) {
        forms.push("--fix-script prints the fixes".to_owned());
    }
    if let Some(finding) = diagnosis.findings.first() {
        forms.push(format!(
            "`crowfly doctor --rule {}` explains the first finding",
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
