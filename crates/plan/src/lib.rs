//! The planner: whether the straight way matters for a cluster and a model, what it costs, what to
//! buy. Pure functions of values.
//!
//! Read in this order:
//!
//! 1. [`figure`]: a number with its unit and provenance;
//! 2. [`catalog`]: what is known, with sources and confidence;
//! 3. [`cluster`], [`workload`]: what a question is about;
//! 4. [`article`]: the source article's arithmetic; [`calibrated`]: collectives as they are measured;
//! 5. [`fabric`]: switches, cables, power and cost.
#![forbid(unsafe_code)]

pub mod article;
pub mod calibrated;
pub mod catalog;
pub mod cluster;
mod error;
pub mod fabric;
pub mod figure;
pub mod workload;

pub use error::PlanError;
