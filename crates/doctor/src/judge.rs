//! From evidence and findings to verdicts.

use crate::case::Case;
use crate::diagnosis::{DIAGNOSIS_SCHEMA, Diagnosis};
use crate::finding::Finding;
use crate::verdict::Verdict;

pub(crate) fn judge(_case: &Case, findings: Vec<Finding>) -> Diagnosis {
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        verdict: Verdict::InsufficientEvidence,
        headline: String::new(),
        kinds: Vec::new(),
        pairs: Vec::new(),
        pairs_beyond_limit: 0,
        findings,
        missing: Vec::new(),
    }
}
