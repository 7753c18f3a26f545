//! Pure diagnosis: evidence in, findings out.
//!
//! Read in this order:
//!
//! 1. [`evidence`]: what people paste, read into typed facts that keep their lines;
//! 2. [`case`](mod@case): everything that is given for one diagnosis;
//! 3. [`finding`], [`verdict`], [`diagnosis`]: the answer;
//! 4. [`rule`]: what is looked for, and the page that explains it.
#![forbid(unsafe_code)]

pub mod case;
pub mod diagnosis;
pub mod evidence;
mod facts;
pub mod finding;
mod judge;
pub mod rule;
mod rules;
pub mod verdict;

pub use case::{Case, Machine};
pub use diagnosis::{DIAGNOSIS_SCHEMA, Diagnosis, diagnose};
pub use finding::{Finding, Quote, Severity};
pub use rule::{Family, Rule};
pub use verdict::{Missing, Pair, PairKind, PairVerdict, Verdict};
