//! Cases in a few words.

use crowfly_doctor::evidence::read;
use crowfly_doctor::{Case, Severity};
use crowfly_route::fixture::Fixture;

/// What makes a rule fire, and what must not.
#[derive(Clone, Copy)]
pub struct Example {
    pub rule: &'static str,
    pub severity: Severity,
    pub fires: fn() -> Case,
    pub quiet: fn() -> Case,
}

pub fn example(
    rule: &'static str,
    severity: Severity,
    fires: fn() -> Case,
    quiet: fn() -> Case,
) -> Example {
    Example {
        rule,
        severity,
        fires,
        quiet,
    }
}

/// One paste.
pub fn paste(text: &str) -> Case {
    Case::new().with_document(read("paste.txt", text.as_bytes()))
}

/// Several pastes.
pub fn pastes(texts: &[&str]) -> Case {
    texts
        .iter()
        .enumerate()
        .fold(Case::new(), |case, (at, text)| {
            case.with_document(read(format!("paste{at}.txt").as_str(), text.as_bytes()))
        })
}

/// One machine.
pub fn machine(fixture: &Fixture) -> Case {
    Case::new().with_snapshot("node.json", fixture.snapshot())
}

/// NCCL lines of one rank: what follows `NCCL INFO`.
pub fn info(lines: &[&str]) -> Case {
    paste(&log(lines))
}

/// The same as text. A line that begins with `WARN ` is one of those.
pub fn log(lines: &[&str]) -> String {
    lines
        .iter()
        .map(|line| match line.strip_prefix("WARN ") {
            Some(words) => format!("n1:100:101 [0] net.cc:7 NCCL WARN {words}\n"),
            None => format!("n1:100:101 [0] NCCL INFO {line}\n"),
        })
        .collect()
}
