//! From evidence and findings to verdicts.
//!
//! Each submodule judges pairs from one kind of evidence. What transfers themselves showed outweighs
//! what a machine's layout predicts, and what is proven outweighs what is open.

mod collect;
mod complete;
mod flows;
mod headline;
mod measured;
mod places;
mod price;
mod storage;

use crate::case::Case;
use crate::diagnosis::{DIAGNOSIS_SCHEMA, Diagnosis};
use crate::finding::{Finding, Quote, Severity};
use crate::verdict::{Basis, KindVerdict, Pair, PairKind, PairVerdict, Verdict};

pub(crate) fn judge(case: &Case, mut findings: Vec<Finding>) -> Diagnosis {
    let mut pairs = flows::pairs(case);
    pairs.extend(places::pairs(case));
    pairs.extend(storage::pairs(case));
    pairs.extend(measured::pairs(case));
    for pair in &mut pairs {
        pair.findings = bearing_on(&findings, &pair.pair);
    }
    let kinds: Vec<KindVerdict> = PairKind::ALL
        .into_iter()
        .filter_map(|kind| of_kind(kind, &pairs, &findings))
        .collect();
    let broken = findings.iter().any(|f| f.severity == Severity::Broken);
    let start = if broken {
        Verdict::Broken
    } else {
        Verdict::InsufficientEvidence
    };
    let verdict = kinds
        .iter()
        .fold(start, |worst, kind| worst.worse(kind.verdict));
    complete::complete(&mut findings);
    price::price(case, &mut findings);
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), is_symptom(finding)));
    let missing = collect::missing(case, verdict, &kinds);
    let headline = headline::headline(case, verdict, &kinds, &findings);
    let pairs_beyond_limit = pairs.len().saturating_sub(Diagnosis::MAX_PAIRS) as u64;
    pairs.truncate(Diagnosis::MAX_PAIRS);
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        verdict,
        headline,
        kinds,
        pairs,
        pairs_beyond_limit,
        findings,
        missing,
    }
}

/// Whether a finding says that data goes the wrong way and not why: among equals, causes come first,
/// because they are what a person can act on.
fn is_symptom(finding: &Finding) -> bool {
    const SYMPTOMS: [&str; 2] = ["N8", "T1"];
    SYMPTOMS.contains(&finding.code)
}

/// The codes of findings that name a pair or prove something about its whole kind.
fn bearing_on(findings: &[Finding], pair: &Pair) -> Vec<&'static str> {
    let mut codes: Vec<&'static str> = findings
        .iter()
        .filter(|finding| {
            finding.pairs.contains(pair) || finding.implies.is_some_and(|i| i.kind == pair.kind)
        })
        .map(|finding| finding.code)
        .collect();
    codes.dedup();
    codes
}

/// What all that is known of a kind comes to; `None` when nothing bears on it.
fn of_kind(kind: PairKind, pairs: &[PairVerdict], findings: &[Finding]) -> Option<KindVerdict> {
    let of_kind = || pairs.iter().filter(|p| p.pair.kind == kind);
    let implied = || {
        findings
            .iter()
            .filter(|f| f.implies.is_some_and(|i| i.kind == kind))
    };
    if of_kind().next().is_none() && implied().next().is_none() {
        return None;
    }
    let judged = || of_kind().filter(|p| p.verdict != Verdict::InsufficientEvidence);
    let basis = judged().map(|p| p.basis).max();
    let counted: Vec<&PairVerdict> = judged().filter(|p| Some(p.basis) == basis).collect();
    let worst = counted
        .iter()
        .fold(Verdict::InsufficientEvidence, |worst, pair| {
            worst.worse(pair.verdict)
        });
    let verdict = implied()
        .filter_map(|f| f.implies)
        .fold(worst, |worst, implied| worst.worse(implied.verdict));
    let because = implied().find(|f| f.implies.is_some_and(|i| i.verdict == verdict));
    let why = match because {
        Some(finding) if verdict != worst => finding.title.clone(),
        _ => counted_why(verdict, &counted)
            .or_else(|| of_kind().next().map(|p| p.why.clone()))
            .unwrap_or_default(),
    };
    Some(KindVerdict {
        kind,
        verdict,
        basis: basis.or((verdict != Verdict::InsufficientEvidence).then_some(Basis::Observed)),
        why,
    })
}

fn counted_why(verdict: Verdict, counted: &[&PairVerdict]) -> Option<String> {
    let worst: Vec<_> = counted.iter().filter(|p| p.verdict == verdict).collect();
    let first = worst.first()?;
    let (bad, all) = (worst.len(), counted.len());
    Some(if all == 1 {
        first.why.clone()
    } else if bad == all {
        format!("all {all} pairs, for example {}: {}", first.pair, first.why)
    } else {
        format!(
            "{bad} of {all} pairs, for example {}: {}",
            first.pair, first.why
        )
    })
}

/// A verdict on a pair.
fn pair(
    kind: PairKind,
    on: Option<String>,
    ends: (String, String),
    verdict: Verdict,
    basis: Basis,
    why: impl Into<String>,
    evidence: impl IntoIterator<Item = Quote>,
) -> PairVerdict {
    PairVerdict {
        pair: Pair {
            kind,
            on,
            gpu: ends.0,
            other: ends.1,
        },
        verdict,
        basis,
        why: why.into(),
        evidence: evidence.into_iter().collect(),
        findings: Vec::new(),
    }
}
