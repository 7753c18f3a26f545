//! What was read, and what it looked like where nothing of it was known.

use crowfly_doctor::Case;
use crowfly_doctor::evidence::{Document, Format, Section};

use super::finding::place;
use crate::render::command;
use crate::render::style::{FAINT, STRONG, WARN, paint};
use crate::render::text::{count, harmless, wrap};

/// Artefacts of one source that are named.
const FEW_SECTIONS: usize = 6;
/// Sources that are named on the one screen.
const FEW_SOURCES: usize = 6;
/// A quoted line is cut here; the width is not counted, as it is for orientation only.
const MARGIN: usize = 12;

/// A line for each source.
pub fn render(case: &Case, columns: usize, all: bool) -> String {
    let mut text = String::new();
    let told = if all { usize::MAX } else { FEW_SOURCES };
    for document in case.documents.iter().take(told) {
        let line = format!("read {}", told_of(document, all));
        text.push_str(&paint(FAINT, wrap(&harmless(&line), columns, "", "     ")));
        text.push('\n');
        if all {
            text.push_str(&unread(document, columns));
        }
    }
    let left = case.documents.len().saturating_sub(told);
    if left > 0 {
        text.push_str(&paint(
            FAINT,
            format!("and {} more\n", count(left, "source")),
        ));
    }
    let documents = || case.documents.iter().map(|d| &d.source);
    for machine in &case.machines {
        if !documents().any(|source| *source == machine.source) {
            let line = format!("looked at {}", machine.source);
            text.push_str(&paint(FAINT, wrap(&harmless(&line), columns, "", "     ")));
            text.push('\n');
        }
    }
    for refused in &case.refused {
        let line = format!(
            "{} looks like a machine and could not be read as one: {}",
            place(&refused.quote),
            refused.why
        );
        text.push_str(&paint(WARN, wrap(&harmless(&line), columns, "", "  ")));
        text.push('\n');
    }
    text
}

/// `nccl.log: NCCL or RCCL log (lines 1–40); 3 lines were not known`.
fn told_of(document: &Document, all: bool) -> String {
    let few = if all { usize::MAX } else { FEW_SECTIONS };
    let section = |s: &Section| match s.first == s.last {
        true => format!("{} (line {})", s.format, s.first),
        false => format!("{} (lines {}–{})", s.format, s.first, s.last),
    };
    let sections: Vec<String> = document.sections.iter().take(few).map(section).collect();
    let mut text = match sections.as_slice() {
        [] => format!("{}: nothing known", document.source),
        sections => format!("{}: {}", document.source, sections.join(", ")),
    };
    let left = document.sections.len().saturating_sub(few);
    if left > 0 {
        text.push_str(&format!(" and {left} more"));
    }
    match document.unread.lines {
        0 => {}
        1 => text.push_str("; 1 line was not known"),
        n => text.push_str(&format!("; {n} lines were not known")),
    }
    text
}

/// The first lines that no reader took.
fn unread(document: &Document, columns: usize) -> String {
    let line = |cite: &crowfly_doctor::evidence::Cite| {
        let number = format!("{:>7}: ", cite.line);
        let room = columns.saturating_sub(MARGIN);
        let whole = cite.quote.replace('\t', "  ");
        let whole = harmless(&whole);
        let quote: String = whole.chars().take(room).collect();
        let shortened = quote.len() < whole.len();
        let mark = if shortened { "…" } else { "" };
        format!("{}{quote}{mark}\n", paint(FAINT, number))
    };
    document.unread.first.iter().map(line).collect()
}

/// What the sources looked like, and what would have been known; `all` tells how to get each of that.
pub fn unknown(case: &Case, columns: usize, all: bool) -> String {
    let mut text = String::new();
    for document in &case.documents {
        let name = harmless(document.source.as_str()).into_owned();
        let lines = count(
            usize::try_from(document.lines).unwrap_or(usize::MAX),
            "line",
        );
        let line = match (document.lines, document.unread.first.is_empty()) {
            (0, _) => format!("{name} is empty."),
            (_, true) => format!("{name} has {lines} and no words in them."),
            (_, false) => format!("{name} ({lines}) looks like this:"),
        };
        text.push('\n');
        text.push_str(&wrap(&line, columns, "", "  "));
        text.push('\n');
        text.push_str(&unread(document, columns));
    }
    if !all {
        text.push_str(&names(columns));
        return text;
    }
    let heading = "These are known, by what is in them, pasted or saved whole or in parts:";
    text.push_str(&format!("\n{}\n", paint(STRONG, heading)));
    for format in Format::ALL {
        text.push_str(&format!("  {}\n", format.title()));
        text.push_str(&command::render(
            format.collect(),
            columns,
            "    $ ",
            "        ",
        ));
    }
    text
}

/// What is known, by name, and where to begin.
fn names(columns: usize) -> String {
    let titles: Vec<&str> = Format::ALL.iter().map(|format| format.title()).collect();
    let known = format!(
        "Known by what is in it, pasted or saved whole or in parts: {}.",
        titles.join(", ")
    );
    let mut text = format!("\n{}\n\n", wrap(&known, columns, "", ""));
    text.push_str(&format!("{}\n", paint(STRONG, "Good to begin with")));
    for format in [Format::NcclLog, Format::TopoMatrix, Format::Snapshot] {
        text.push_str(&command::render(
            format.collect(),
            columns,
            "  $ ",
            "      ",
        ));
    }
    text.push_str(&paint(FAINT, "--all tells how to get each of them.\n"));
    text
}
