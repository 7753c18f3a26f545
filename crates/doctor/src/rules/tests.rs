//! Measured results: T1 to T4.

mod bandwidth;
mod shape;

use crate::rule::Rule;

pub(crate) const RULES: &[Rule] = &[
    bandwidth::LINE_RATE,
    shape::LATENCY,
    shape::SLOW_SIZE,
    shape::WRONG_RESULTS,
];
