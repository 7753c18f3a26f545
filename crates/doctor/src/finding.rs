//! What a rule found: the evidence, what it costs, and the way out.

use std::sync::Arc;

use crowfly_route::obstacle::{Cost, Fix};
use serde::Serialize;

use crate::evidence::{Cite, LineNumber, SourceName};
use crate::rule::{Family, Rule};
use crate::verdict::{Pair, PairKind, Verdict};

/// Something that a rule found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule's stable id, `N1`.
    pub code: &'static str,
    /// The rule's stable name, `gpu-nic-too-far`.
    pub name: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// One sentence that names the objects involved.
    pub title: String,
    /// The lines and observations that prove it, at most [`Finding::MAX_EVIDENCE`].
    pub evidence: Vec<Quote>,
    /// What it costs, when both ceilings are known.
    pub cost: Option<Cost>,
    /// Where the figures of the cost are from; without a cost, why none can be told.
    pub cost_basis: String,
    /// How to remove it, step by step; empty when there is nothing to do.
    pub fix: Vec<Fix>,
    /// What could be wrong about it.
    pub doubts: Vec<String>,
    /// Where the rule comes from.
    pub reference: &'static str,
    /// The pairs it bears on, at most [`Finding::MAX_PAIRS`].
    pub pairs: Vec<Pair>,
    /// What it makes of a whole kind of pair, when it proves that by itself.
    pub implies: Option<Implied>,
}

/// What a finding says about every pair of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Implied {
    /// The kind.
    pub kind: PairKind,
    /// The verdict.
    pub verdict: Verdict,
}

/// How much a finding matters, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// How to read the evidence; nothing is wrong.
    Note,
    /// It may slow the data down or break it later.
    Warning,
    /// The straight way is lost or slowed down.
    Fault,
    /// Data does not arrive, or arrives wrong.
    Broken,
}

impl Severity {
    /// The word used in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
            Self::Broken => "broken",
        }
    }
}

impl Finding {
    /// The family of its rule.
    pub fn family(&self) -> Option<Family> {
        Rule::find(self.code).map(|rule| rule.family)
    }

    /// Most quotes of one finding.
    pub const MAX_EVIDENCE: usize = 6;
    /// Most pairs listed by one finding.
    pub const MAX_PAIRS: usize = 64;
}

/// A line of a document or an observation of a snapshot, quoted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Quote {
    /// The file, stream or machine.
    pub source: SourceName,
    /// Where in it.
    #[serde(flatten)]
    pub at: Spot,
    /// What is there, shortened like a [`Cite`].
    pub text: Arc<str>,
}

/// A place in a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spot {
    /// A line of a text, counted from 1.
    Line(LineNumber),
    /// A key of a snapshot.
    Key(String),
    /// Something that was worked out from the machine's topology, named as its map names it.
    Device(String),
}

impl Quote {
    /// An observation at a key of a snapshot, shortened like a line.
    pub fn key(source: SourceName, key: &str, shows: &str) -> Self {
        let text = Cite::new(source.clone(), LineNumber(0), shows).quote;
        Self {
            source,
            at: Spot::Key(key.to_owned()),
            text,
        }
    }

    /// A fact of a machine's topology about a device.
    pub fn device(source: SourceName, device: impl Into<String>, shows: &str) -> Self {
        let text = Cite::new(source.clone(), LineNumber(0), shows).quote;
        Self {
            source,
            at: Spot::Device(device.into()),
            text,
        }
    }
}

impl From<&Cite> for Quote {
    fn from(cite: &Cite) -> Self {
        Self {
            source: cite.source.clone(),
            at: Spot::Line(cite.line),
            text: cite.quote.clone(),
        }
    }
}

impl std::fmt::Display for Quote {
    /// `nccl.log:42: the line`, or `node.snapshot /proc/cmdline: iommu=pt`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.at {
            Spot::Line(line) => write!(f, "{}:{line}: {}", self.source, self.text),
            Spot::Key(place) | Spot::Device(place) => {
                write!(f, "{} {place}: {}", self.source, self.text)
            }
        }
    }
}
