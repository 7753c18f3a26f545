//! The sentence that a person reads first.

use crate::case::Case;
use crate::finding::{Finding, Severity};
use crate::verdict::{KindVerdict, Verdict};

pub(super) fn headline(
    case: &Case,
    verdict: Verdict,
    kinds: &[KindVerdict],
    findings: &[Finding],
) -> String {
    if case.is_empty() && verdict == Verdict::InsufficientEvidence {
        return "Nothing that was given could be read as evidence.".into();
    }
    if verdict == Verdict::InsufficientEvidence && kinds.is_empty() && case.is_about_no_gpu() {
        return match case.machines.as_slice() {
            [_] => "This machine has no GPU: there is no way into one to judge.".into(),
            _ => "These machines have no GPU: there is no way into one to judge.".into(),
        };
    }
    // What keeps the question open may still be worth a warning; a verdict needs a fault for its cause.
    let least = match verdict {
        Verdict::InsufficientEvidence => Severity::Warning,
        _ => Severity::Fault,
    };
    let gravest = findings.first().filter(|f| f.severity >= least);
    let shown = findings.iter().find(|f| f.severity == Severity::Note);
    let opening = match (verdict, gravest) {
        (Verdict::InsufficientEvidence, None) => match shown {
            Some(note) => format!(
                "What was given does not show which way the data goes; what it shows: {}",
                trimmed(&note.title)
            ),
            None => "What was given does not show which way the data goes".to_owned(),
        },
        (Verdict::InsufficientEvidence, Some(finding)) => {
            format!(
                "Which way the data goes is not shown, but: {}",
                trimmed(&finding.title)
            )
        }
        (Verdict::Direct, _) => "The data goes straight, as far as shown".to_owned(),
        (_, Some(finding)) => trimmed(&finding.title).to_owned(),
        (Verdict::DirectButSlow, None) => with_warning(
            "The data goes straight, below what the devices could do",
            findings,
        ),
        (Verdict::Staged, None) => with_warning("Data is bounced through host memory", findings),
        (Verdict::Socket, None) => "Data goes through the kernel's network stack".to_owned(),
        (Verdict::Broken, None) => "Data does not arrive".to_owned(),
    };
    format!("{opening}.")
}

/// What nothing graver accounts for, a warning may.
fn with_warning(opening: &str, findings: &[Finding]) -> String {
    match findings.iter().find(|f| f.severity == Severity::Warning) {
        Some(finding) => format!("{opening}: {}", trimmed(&finding.title)),
        None => opening.to_owned(),
    }
}

fn trimmed(title: &str) -> &str {
    title.trim_end_matches('.')
}
