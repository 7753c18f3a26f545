//! Collectives: what the ranks of a group do together with their numbers.

mod call;
mod element;
mod hosts;
mod reduce;
mod schedule;

pub use call::Call;
pub use element::{Element, UnknownElement};
pub use hosts::Hosts;
pub use reduce::{Reduction, UnknownReduction};
