//! What `doctor` and `explain` answer with, and in which forms.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::Args;
use crowfly_doctor::case::Refused;
use crowfly_doctor::evidence::{Cite, Document, Format, LineNumber};
use crowfly_doctor::{Case, Diagnosis, Verdict, diagnose};
use serde::Serialize;

use super::fixes::FixScript;
use super::host::Host;
use super::probes::Probes;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::shown;
use crate::{file, render};

/// Options that choose the form of the answer. Flatten them into a command's arguments.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Show every pair and finding with all that proves it, not one screen; --verbose does the same
    #[arg(long)]
    pub all: bool,
    /// Also write a report that needs nothing but itself, with a drawing of the machine
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep host names, user names, serial numbers and addresses of machines in the report as they
    /// are. Lines quoted from files stay as they were given in any case
    #[arg(long, requires = "html")]
    pub unredacted: bool,
    /// Print the fixes as a shell script to read and to run yourself; what could do harm is
    /// commented out, with the reason. Nothing is run, and the exit status is 0 whatever the verdict
    #[arg(long, conflicts_with = "html")]
    pub fix_script: bool,
}

/// All that was given, and what it comes to.
#[derive(Debug)]
pub struct Answer {
    /// What was given.
    pub case: Case,
    /// What it comes to.
    pub diagnosis: Diagnosis,
    /// What a machine without GPU has to offer, where one was looked at.
    pub host: Option<Host>,
    /// What was tried out on it, if asked.
    pub probes: Option<Probes>,
}

/// The answer as JSON: the diagnosis, and what it was drawn from.
#[derive(Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    /// What was read, in the order given.
    sources: Vec<Source<'a>>,
    /// What looked like a machine and could not be decoded.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    refused: Vec<Undecoded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a Host>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<&'a Probes>,
}

#[derive(Serialize)]
struct Source<'a> {
    name: &'a str,
    lines: u64,
    sections: Vec<Section>,
    unread: Unread<'a>,
}

#[derive(Serialize)]
struct Section {
    format: Format,
    first: LineNumber,
    last: LineNumber,
}

#[derive(Serialize)]
struct Unread<'a> {
    lines: u64,
    first: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    line: LineNumber,
    text: &'a str,
}

#[derive(Serialize)]
struct Undecoded<'a> {
    at: String,
    code: &'static str,
    why: &'a str,
}

impl Answer {
    /// Judges a case.
    pub fn new(case: Case, host: Option<Host>) -> Self {
        let diagnosis = diagnose(&case);
        Self {
            case,
            diagnosis,
            host,
            probes: None,
        }
    }

    /// The same, with what was tried out. A report for others' eyes leaves it out.
    pub fn with_probes(mut self, probes: Option<Probes>) -> Self {
        self.probes = probes;
        self
    }

    /// The same answer for others' eyes: drawn from the machines with stand-ins for what identifies
    /// them, so that no finding, name or picture shows more than a redacted snapshot does.
    fn redacted(&self, salt: u64) -> Self {
        let mut case = Case {
            documents: self.case.documents.clone(),
            refused: self.case.refused.clone(),
            ..Case::new()
        };
        for machine in &self.case.machines {
            match &machine.snapshot {
                Some(seen) => case.add_snapshot(machine.source.clone(), seen.redacted(salt)),
                None => case.machines.push(machine.clone()),
            }
        }
        let host = match self.host {
            Some(_) => case.machines.first().and_then(Host::of),
            None => None,
        };
        Self::new(case, host)
    }

    /// The exit status that tells the verdict.
    pub const fn exit(&self) -> Exit {
        match self.diagnosis.verdict {
            Verdict::Direct => Exit::Ok,
            Verdict::DirectButSlow | Verdict::Staged | Verdict::Socket => Exit::Detour,
            Verdict::Broken => Exit::Broken,
            Verdict::InsufficientEvidence => Exit::Unsure,
        }
    }

    /// The document.
    pub fn report(&self) -> Report<'_> {
        Report {
            diagnosis: &self.diagnosis,
            sources: self.case.documents.iter().map(Source::of).collect(),
            refused: self.case.refused.iter().map(Undecoded::of).collect(),
            host: self.host.as_ref(),
            probes: self.probes.as_ref(),
        }
    }
}

impl<'a> Source<'a> {
    fn of(document: &'a Document) -> Self {
        let section = |section: &crowfly_doctor::evidence::Section| Section {
            format: section.format,
            first: section.first,
            last: section.last,
        };
        let line = |cite: &'a Cite| Line {
            line: cite.line,
            text: &cite.quote,
        };
        Self {
            name: document.source.as_str(),
            lines: document.lines,
            sections: document.sections.iter().map(section).collect(),
            unread: Unread {
                lines: document.unread.lines,
                first: document.unread.first.iter().map(line).collect(),
            },
        }
    }
}

impl<'a> Undecoded<'a> {
    fn of(refused: &'a Refused) -> Self {
        let at = match &refused.quote.at {
            crowfly_doctor::finding::Spot::Line(line) => {
                format!("{}:{line}", refused.quote.source)
            }
            crowfly_doctor::finding::Spot::Key(place)
            | crowfly_doctor::finding::Spot::Device(place) => {
                format!("{} {place}", refused.quote.source)
            }
        };
        Self {
            at,
            code: refused.code,
            why: &refused.why,
        }
    }
}

impl AnswerArgs {
    /// Prints the answer of a command of this name in the form asked for, and returns the exit status
    /// that tells the verdict. A script is no answer: printing it is all that was asked for.
    pub fn give(&self, command: &str, answer: &Answer, out: &mut Output) -> Result<Exit, Failure> {
        if self.fix_script {
            let script = FixScript::new(command, &answer.diagnosis);
            out.show(&script, |_| script.script.clone())?;
            return Ok(Exit::Ok);
        }
        if let Some(path) = &self.html {
            let report = match self.unredacted {
                true => render::report::render(answer),
                // The standard library's hash keys are the system's random numbers.
                false => render::report::render(&answer.redacted(RandomState::new().hash_one(0))),
            };
            file::replace(path, report.as_bytes())?;
            out.note(&format!("report written to {}", shown(path)));
        }
        let all = self.all || out.verbose();
        out.show(&answer.report(), |columns| {
            render::diagnosis::render(answer, columns, all)
        })?;
        Ok(answer.exit())
    }
}
