//! The planner: whether the straight way matters for a cluster and a model, what it costs, what to
//! buy. Pure functions of values.
//!
//! Read in this order:
//!
//! 1. [`figure`]: a number with its unit and provenance; [`quantity`]: the numbers that questions
//!    give, with their ranges;
//! 2. [`catalog`]: what is known, with sources and confidence;
//! 3. [`cluster`], [`workload`]: what a question is about;
//! 4. [`article`]: the source article's arithmetic; [`calibrated`]: collectives as they are measured;
//! 5. [`step`], [`assess`]: a training step, and whether the straight way matters for it;
//! 6. [`checkpoint`], [`loading`], [`fabric`]: storage, data, and what to buy;
//! 7. [`observed`]: servers from snapshots, rates from receipts; [`layout`]: a machine from a server;
//! 8. [`sim`]: the flows of a whole fabric;
//! 9. [`validate`], [`claims`]: published measurements beside predictions, and claims that are wrong.
#![forbid(unsafe_code)]

pub mod article;
pub mod assess;
pub mod calibrated;
pub mod catalog;
pub mod checkpoint;
pub mod claims;
pub mod cluster;
mod error;
pub mod fabric;
pub mod figure;
pub mod layout;
pub mod loading;
pub mod observed;
pub mod quantity;
pub mod sim;
pub mod step;
pub mod validate;
pub mod workload;

pub use error::PlanError;
