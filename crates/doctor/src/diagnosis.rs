//! The whole answer.

use serde::Serialize;

use crate::case::Case;
use crate::finding::Finding;
use crate::rule::Rule;
use crate::verdict::{KindVerdict, Missing, PairVerdict, Verdict};

/// The version of the diagnosis' JSON form.
pub const DIAGNOSIS_SCHEMA: &str = "crowfly.diagnosis/1";

/// What a case comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// [`DIAGNOSIS_SCHEMA`].
    pub schema: &'static str,
    /// The worst that is proven.
    pub verdict: Verdict,
    /// One sentence that a person reads first.
    pub headline: String,
    /// The same for each kind of pair that the evidence bears on.
    pub kinds: Vec<KindVerdict>,
    /// Each pair, at most [`Diagnosis::MAX_PAIRS`].
    pub pairs: Vec<PairVerdict>,
    /// Pairs after the limit.
    pub pairs_beyond_limit: u64,
    /// What was found, gravest first.
    pub findings: Vec<Finding>,
    /// What to collect for what is still open.
    pub missing: Vec<Missing>,
}

impl Diagnosis {
    /// Most pairs listed.
    pub const MAX_PAIRS: usize = 4_096;
}

/// Judges everything that is given.
pub fn diagnose(case: &Case) -> Diagnosis {
    let findings: Vec<Finding> = Rule::all()
        .flat_map(|rule| (rule.check)(rule, case))
        .collect();
    crate::judge::judge(case, findings)
}
