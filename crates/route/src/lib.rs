//! The vocabulary and the pure core of crowfly.
//!
//! Everything here is a value or a function of values: nothing reads the operating system, so
//! every bug report becomes a fixture (a snapshot in, an expected answer out).
//!
//! Read in this order:
//!
//! 1. [`units`]: the newtypes, so that a bandwidth never meets a byte count by accident;
//! 2. [`snapshot`]: what was looked up on one machine, with *absent*, *denied* and *error* kept apart;
//! 3. [`topology`]: the graph decoded from a snapshot;
//! 4. [`place`], [`hop`]: where bytes live, and one movement of them; a [`hop::Route`] is hops in a row;
//! 5. [`obstacle`]: why a better route was not taken, with evidence, cost and fix;
//! 6. [`search`]: every route between two places, with what stands in its way;
//! 7. [`policy`], [`receipt`]: what was asked, and what a transfer really did;
//! 8. [`collective`]: what the members of a group do together, and what each way of it costs;
//! 9. [`cause`]: what is behind an error, said once.
#![forbid(unsafe_code)]

pub mod cause;
pub mod collective;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
pub mod hop;
pub mod obstacle;
pub mod place;
pub mod policy;
pub mod receipt;
pub mod search;
pub mod snapshot;
pub mod terminal;
pub mod topology;
pub mod units;
