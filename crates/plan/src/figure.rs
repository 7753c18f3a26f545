//! A number as the planner hands it out: with its unit, where it comes from, and whether it lies
//! beyond what the models were calibrated on.

use crowfly_route::hop::Provenance;
use serde::Serialize;

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
    /// The number, in full precision.
    pub value: f64,
    /// What it counts.
    pub unit: Unit,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Whether the model was asked for something outside what it was calibrated on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub extrapolated: bool,
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
    fn halves_round_up_as_by_hand() {
        assert_eq!(half_up(612.5, 0), "613");
        assert_eq!(half_up(613.5, 0), "614");
        assert_eq!(half_up(1.005, 2), "1.01");
        assert_eq!(half_up(-0.5, 0), "-1");
        assert_eq!(half_up(0.0, 1), "0.0");
        assert_eq!(half_up(1.7400568, 1), "1.7");
    }
}
