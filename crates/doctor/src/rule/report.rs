//! How rules write their findings.

use crowfly_route::obstacle::{Cost, Fix};

use super::Rule;
use crate::finding::{Finding, Implied, Quote, Severity};
use crate::verdict::{Pair, PairKind, Verdict};

impl Rule {
    /// A finding of this rule.
    pub(crate) fn finding(&self, severity: Severity, title: impl Into<String>) -> Finding {
        Finding {
            code: self.id,
            name: self.name,
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cost: None,
            cost_basis: String::new(),
            fix: Vec::new(),
            doubts: Vec::new(),
            reference: self.page.source,
            pairs: Vec::new(),
            implies: None,
        }
    }

    /// How to read the evidence; nothing is wrong.
    pub(crate) fn note(&self, title: impl Into<String>) -> Finding {
        self.finding(Severity::Note, title)
    }

    /// Something that may slow the data down or break it later.
    pub(crate) fn warning(&self, title: impl Into<String>) -> Finding {
        self.finding(Severity::Warning, title)
    }

    /// The straight way is lost or slowed down.
    pub(crate) fn fault(&self, title: impl Into<String>) -> Finding {
        self.finding(Severity::Fault, title)
    }

    /// Data does not arrive, or arrives wrong.
    pub(crate) fn broken(&self, title: impl Into<String>) -> Finding {
        self.finding(Severity::Broken, title)
    }
}

impl Finding {
    /// The same finding with another quote, unless it has enough or has this one.
    pub(crate) fn quoting(mut self, quote: impl Into<Quote>) -> Self {
        let quote = quote.into();
        if self.evidence.len() < Self::MAX_EVIDENCE && !self.evidence.contains(&quote) {
            self.evidence.push(quote);
        }
        self
    }

    /// The same finding with more quotes.
    pub(crate) fn quoting_all<Q: Into<Quote>>(self, quotes: impl IntoIterator<Item = Q>) -> Self {
        quotes.into_iter().fold(self, |f, quote| f.quoting(quote))
    }

    /// The same finding with another step of its fix.
    pub(crate) fn fixed_by(mut self, fix: Fix) -> Self {
        self.fix.push(fix);
        self
    }

    /// The same finding with another thing that could be wrong about it.
    pub(crate) fn doubting(mut self, doubt: impl Into<String>) -> Self {
        self.doubts.push(doubt.into());
        self
    }

    /// The same finding with the pairs it bears on.
    pub(crate) fn about(mut self, pairs: impl IntoIterator<Item = Pair>) -> Self {
        let room = Self::MAX_PAIRS.saturating_sub(self.pairs.len());
        self.pairs.extend(pairs.into_iter().take(room));
        self
    }

    /// The same finding, which proves a verdict on every pair of a kind.
    pub(crate) fn implying(mut self, kind: PairKind, verdict: Verdict) -> Self {
        self.implies = Some(Implied { kind, verdict });
        self
    }

    /// The same finding with what it costs, and where the figures are from.
    pub(crate) fn costing(mut self, cost: Cost, basis: impl Into<String>) -> Self {
        self.cost = Some(cost);
        self.cost_basis = basis.into();
        self
    }
}
