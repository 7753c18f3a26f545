//! Published measurements beside what the planner says of them.
//!
//! A point may have set a constant (`calibrate`) or must be predicted (`check`). Errors are signed:
//! above zero the planner promises more rate, or more time, than was measured.

use serde::Serialize;

use crate::catalog::Catalog;
use crate::error::PlanError;

mod points;

/// What a point was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// It set a constant.
    Calibrate,
    /// It is predicted.
    Check,
}

/// What kind of point it is, for the medians.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// A collective on 512 MiB or more, or a rate of large transfers.
    Large,
    /// A collective on 1 to 64 MiB, or a latency.
    Small,
    /// A training step.
    Step,
    /// A size, a time or a count that follows by arithmetic.
    Arithmetic,
}

/// A published measurement and the planner's answer.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// What was measured, on what.
    pub setup: &'static str,
    /// What was measured.
    pub measured: f64,
    /// In which unit, for people.
    pub unit: &'static str,
    /// What the planner says.
    pub predicted: f64,
    /// Predicted over measured, less one.
    pub error: f64,
    /// What it was used for.
    #[serde(rename = "use")]
    pub usage: Use,
    /// What kind of point it is.
    pub group: Group,
    /// Key of its source.
    pub source: &'static str,
}

/// All points.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// The points.
    pub rows: Vec<Row>,
    /// Median of the errors without sign over the large points to be predicted.
    pub median_large: f64,
    /// The same over the small ones.
    pub median_small: f64,
    /// The same over the training steps.
    pub median_step: f64,
}

impl Validation {
    /// Predicts every point.
    ///
    /// # Errors
    /// The catalogue lacks an entry that a point is about.
    pub fn of(catalog: &Catalog) -> Result<Self, PlanError> {
        let rows = points::all(catalog)?;
        let median = |group| {
            let checked = rows
                .iter()
                .filter(|row| row.usage == Use::Check && row.group == group);
            median(checked.map(|row| row.error.abs()).collect())
        };
        Ok(Self {
            median_large: median(Group::Large),
            median_small: median(Group::Small),
            median_step: median(Group::Step),
            rows,
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (1, Some(value)) => *value,
        (0, Some(upper)) => values
            .get(middle - 1)
            .map_or(*upper, |lower| (lower + upper) / 2.0),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_as_near_to_the_published_runs_as_promised() {
        let validation = Validation::of(&Catalog::built_in()).expect("all entries are there");
        for row in &validation.rows {
            let most = match (row.usage, row.group) {
                (Use::Calibrate, _) => 0.05,
                (_, Group::Arithmetic) => 0.005,
                (_, Group::Large) => 0.20,
                (_, Group::Small | Group::Step) => 0.30,
            };
            assert!(row.error.abs() <= most, "{}: {:+.3}", row.id, row.error);
        }
        assert!(
            validation.median_large <= 0.10,
            "{}",
            validation.median_large
        );
        assert!(
            validation.median_small <= 0.30,
            "{}",
            validation.median_small
        );
    }

    #[test]
    fn a_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert_eq!(median(vec![5.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
