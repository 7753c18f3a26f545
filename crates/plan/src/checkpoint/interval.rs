//! How often training is interrupted, and how often to write a checkpoint for it.

use serde::Serialize;

use crate::catalog::{Catalog, Used};
use crate::error::PlanError;
use crate::figure::{Figure, Unit};
use crate::quantity::{RESTORE, STALL};

/// GPUs of a server in the reports on interruptions.
const GPUS_PER_REPORTED_SERVER: f64 = 8.0;

/// How often servers of a kind interrupt training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failures {
    /// Interruptions per GPU and hour.
    pub per_gpu_hour: f64,
    /// Which entry that is from.
    pub used: Used,
}

/// The interruptions that an entry of the catalogue reports.
///
/// # Errors
/// The name is unknown, or the entry has no rate.
pub fn failures(catalog: &Catalog, id: &str) -> Result<Failures, PlanError> {
    let entry = catalog.reliability.get(id)?;
    let facts = &entry.facts;
    let counted = facts.unexpected.zip(facts.days).zip(facts.gpus);
    let counted = counted.map(|((n, days), gpus)| f64::from(n) / (days * 24.0 * f64::from(gpus)));
    let per_node = facts
        .per_1000_node_days
        .map(|n| n / (1000.0 * 24.0 * GPUS_PER_REPORTED_SERVER));
    let per_gpu = facts.accelerator_mttf_h.map(|hours| 1.0 / hours);
    let per_job = facts
        .mtti_h
        .zip(facts.gpus)
        .map(|(hours, gpus)| 1.0 / (hours * f64::from(gpus)));
    let rate = counted.or(per_node).or(per_gpu).or(per_job);
    Ok(Failures {
        per_gpu_hour: rate.ok_or(PlanError::Unknown {
            of: entry.id.clone(),
            what: "a rate of interruptions",
            give: "choose another with --reliability",
        })?,
        used: entry.used(),
    })
}

impl Failures {
    /// Mean time between interruptions of a job on this many GPUs, in hours.
    pub fn mtbf_hours(&self, gpus: u64) -> f64 {
        1.0 / (self.per_gpu_hour * gpus as f64)
    }
}

/// How often to write checkpoints, and what failures cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Mean time between interruptions.
    pub mtbf: Figure,
    /// Training stands still for this long at each checkpoint.
    pub stall: Figure,
    /// Young's optimum: √(2 δ M).
    pub young: Figure,
    /// Daly's, which does not assume that the stall is short.
    pub daly: Figure,
    /// Share of the time spent on stalls and on work done again, at Young's optimum.
    pub overhead: Figure,
    /// Share of the time spent on restores.
    pub restore_share: Figure,
    /// Hours of each day that are lost to all of it.
    pub lost_hours_per_day: Figure,
    /// Entries of the catalogue that this rests on.
    pub used: Vec<Used>,
}

impl Interval {
    /// For `gpus` that fail as `failures` says, a stall of `stall` and a restore of `restore`
    /// seconds (Young 1974; Daly 2006, equation 37).
    ///
    /// # Errors
    /// There are no GPUs, or a time is outside the range of [`STALL`] or [`RESTORE`].
    pub fn of(failures: &Failures, gpus: u64, stall: f64, restore: f64) -> Result<Self, PlanError> {
        PlanError::count("GPUs", gpus, u64::from(u32::MAX))?;
        STALL.positive(stall)?;
        RESTORE.positive(restore)?;
        let mtbf = failures.mtbf_hours(gpus) * 3600.0;
        let young = (2.0 * stall * mtbf).sqrt();
        let half = stall / (2.0 * mtbf);
        // Beyond this a checkpoint takes longer than failures leave time for.
        let daly = if half < 1.0 {
            young * (1.0 + half.sqrt() / 3.0 + half / 9.0) - stall
        } else {
            mtbf
        };
        let overhead = stall / young + young / (2.0 * mtbf);
        let restores = restore / mtbf;
        let figure = Figure::computed;
        Ok(Self {
            mtbf: figure(
                mtbf,
                Unit::Seconds,
                "1 / (interruptions per GPU and time × GPUs)",
            ),
            stall: figure(stall, Unit::Seconds, "checkpoint / write rate"),
            young: figure(young, Unit::Seconds, "√(2 × stall × MTBF), Young"),
            daly: figure(daly, Unit::Seconds, "Daly, higher order"),
            overhead: figure(
                overhead,
                Unit::Fraction,
                "stall / interval + interval / (2 × MTBF)",
            ),
            restore_share: figure(restores, Unit::Fraction, "restore / MTBF"),
            lost_hours_per_day: figure(
                24.0 * (overhead + restores).min(1.0),
                Unit::Ratio,
                "24 h × (overhead + restores)",
            ),
            used: vec![failures.used.clone()],
        })
    }
}
