//! A number as the planner hands it out: with its unit, where it comes from, and whether it lies
//! beyond what the models were calibrated on.

use crowfly_route::hop::Provenance;
use serde::{Serialize, Serializer};

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Bytes per second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// A fraction: 1 is all of it.
    #[serde(rename = "fraction")]
    Fraction,
    /// How many times.
    #[serde(rename = "ratio")]
    Ratio,
    /// Pieces.
    #[serde(rename = "count")]
    Count,
    /// Watts.
    #[serde(rename = "W")]
    Watts,
    /// US dollars.
    #[serde(rename = "USD")]
    Dollars,
    /// US dollars per hour.
    #[serde(rename = "USD/h")]
    DollarsPerHour,
}

/// A number with its unit and provenance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The number, in full precision. One that is not finite has no JSON form and is refused there.
    #[serde(serialize_with = "finite")]
    pub value: f64,
    /// What it counts.
    pub unit: Unit,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Whether the model was asked for something outside what it was calibrated on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub extrapolated: bool,
}

/// JSON would write `null` for what is not finite, which means that nobody knows.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over references"
)]
fn finite<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else {
        Err(serde::ser::Error::custom(format!("{value} is no figure")))
    }
}

impl Figure {
    /// A number worked out by a model or formula.
    pub fn computed(value: f64, unit: Unit, by: impl Into<String>) -> Self {
        Self::new(value, unit, Provenance::Computed(by.into()))
    }

    /// A number with its provenance.
    pub const fn new(value: f64, unit: Unit, provenance: Provenance) -> Self {
        Self {
            value,
            unit,
            provenance,
            extrapolated: false,
        }
    }

    /// Says that the number lies outside the calibrated range.
    #[must_use]
    pub const fn beyond(mut self, extrapolated: bool) -> Self {
        self.extrapolated = extrapolated;
        self
    }
}

/// `value` with `digits` digits after the point, halves away from zero, as people round by hand:
/// 612.5 becomes `613`, where `{:.0}` prints `612`.
pub fn half_up(value: f64, digits: u8) -> String {
    let scale = 10f64.powi(i32::from(digits));
    let scaled = value * scale;
    // Decimal halves such as 1.005 lie just below themselves in binary.
    let nudged = scaled + scaled.signum() * scaled.abs() * f64::EPSILON * 2.0;
    let digits = usize::from(digits);
    format!("{:.digits$}", nudged.round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_no_number_is_never_written_as_one_that_nobody_knows() {
        let written = |value| serde_json::to_string(&Figure::computed(value, Unit::Ratio, "x"));
        assert!(written(1.5).expect("a number").contains("\"value\":1.5"));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(written(value).is_err(), "{value}");
        }
    }

    #[test]
    fn halves_round_up_as_by_hand() {
        assert_eq!(half_up(612.5, 0), "613");
        assert_eq!(half_up(613.5, 0), "614");
        assert_eq!(half_up(1.005, 2), "1.01");
        assert_eq!(half_up(-0.5, 0), "-1");
        assert_eq!(half_up(0.0, 1), "0.0");
        assert_eq!(half_up(1.7400568, 1), "1.7");
    }
}
