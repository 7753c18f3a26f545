//! The quantities with a fraction that questions give, and from where to where the planner knows
//! what they mean. Within these ranges every answer is a finite number; outside of them stand typing
//! errors and values beside which an answer would only look like one.

use std::fmt;

use crate::error::PlanError;

/// A quantity that questions give: its name with its unit, its option, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity {
    /// What it is, with its unit.
    pub name: &'static str,
    /// The option that gives it.
    pub option: &'static str,
    /// The least, included.
    pub least: f64,
    /// The most, included.
    pub most: f64,
}

const fn quantity(name: &'static str, option: &'static str, least: f64, most: f64) -> Quantity {
    Quantity {
        name,
        option,
        least,
        most,
    }
}

/// Line rate of an adapter: from a megabit to a petabit a second.
pub const NIC_RATE: Quantity = quantity("NIC rate in Gb/s", "--nic-gbps", 1e-3, 1e6);
/// Peak of a server's host memory: from a megabyte to a petabyte a second.
pub const MEMORY_RATE: Quantity =
    quantity("host memory bandwidth in GB/s", "--memory-gbs", 1e-3, 1e6);
/// What one GPU has of a scale-up fabric, which only a snapshot or the catalogue gives.
pub const SCALE_UP_RATE: Quantity =
    quantity("scale-up rate of a GPU in GB/s", "--server", 1e-3, 1e6);
/// What the link to host memory carries, which only a snapshot or the catalogue gives.
pub const UPLINK_RATE: Quantity = quantity("uplink rate in GB/s", "--server", 1e-3, 1e6);
/// What storage serves: from a kilobyte to an exabyte a second.
pub const STORAGE_RATE: Quantity = quantity("storage rate in GB/s", "--storage-gbs", 1e-6, 1e9);
/// What storage on the simulated fabric takes.
pub const CHECKPOINT_RATE: Quantity =
    quantity("rate of the storage in GB/s", "--checkpoint-gbs", 1e-6, 1e9);
/// What storage holds: from a gibibyte to a zebibyte.
pub const STORAGE_CAPACITY: Quantity =
    quantity("storage capacity in TiB", "--storage-tib", 1e-3, 1e9);
/// How long training may stand still: from a millisecond to thirty years.
pub const ALLOWED_STALL: Quantity = quantity("allowed stall in seconds", "--stall", 1e-3, 1e9);
/// How long a checkpoint stalls training. The least is what a model of a few bytes takes.
pub const STALL: Quantity = quantity("stall in seconds", "--stall", 1e-12, 1e9);
/// How long a restore takes.
pub const RESTORE: Quantity = quantity("restore in seconds", "--restore", 1e-12, 1e9);
/// Samples of training data.
pub const SAMPLES: Quantity = quantity(
    "samples per GPU and second",
    "--samples-per-gpu",
    1e-6,
    1e12,
);
/// A sample of training data: up to a petabyte.
pub const SAMPLE_BYTES: Quantity = quantity("bytes of a sample", "--sample-bytes", 1e-3, 1e15);
/// All that a counter of 64 bits can hold.
const MOST_BYTES: f64 = 18_446_744_073_709_551_616.0;
/// The buffer of one GPU that is reduced.
pub const REDUCED_BYTES: Quantity =
    quantity("size of the all-reduce in bytes", "--size", 1.0, MOST_BYTES);
/// What one GPU sends to all others.
pub const EXCHANGED_BYTES: Quantity = quantity(
    "size of the all-to-all in bytes",
    "--all-to-all",
    1.0,
    MOST_BYTES,
);
/// A checkpoint that is written while other things happen.
pub const CHECKPOINT_BYTES: Quantity = quantity(
    "size of the checkpoint in bytes",
    "--params",
    1.0,
    MOST_BYTES,
);
/// Parameters of a model: up to a thousand times the largest of 2025.
pub const PARAMETERS: Quantity = quantity("parameters", "--params", 1.0, 1e15);
/// Ports down per port up at the leaf.
pub const OVERSUBSCRIPTION: Quantity =
    quantity("oversubscription", "--oversubscription", 1.0, 64.0);
/// Ports of a switch: from the fewest that make a fabric.
pub const SWITCH_PORTS: Quantity = quantity("switch ports", "--radix", 4.0, 4096.0);
/// Links that failed.
pub const FAILED_LINKS: Quantity = quantity("share of failed links", "--failed-links", 0.0, 1.0);
/// Servers that are slow.
pub const STRAGGLERS: Quantity = quantity("share of slow servers", "--stragglers", 0.0, 1.0);
/// What is left of the rate of those.
pub const STRAGGLER_RATE: Quantity =
    quantity("rate left to slow servers", "--straggler-rate", 1e-3, 1.0);

/// Those that an option of the command line gives and whose range says more than its type does. Where
/// two have one option, the first is that of the question about storage.
pub const GIVEN: [Quantity; 16] = [
    NIC_RATE,
    MEMORY_RATE,
    STORAGE_RATE,
    CHECKPOINT_RATE,
    STORAGE_CAPACITY,
    ALLOWED_STALL,
    STALL,
    RESTORE,
    SAMPLES,
    SAMPLE_BYTES,
    PARAMETERS,
    OVERSUBSCRIPTION,
    SWITCH_PORTS,
    FAILED_LINKS,
    STRAGGLERS,
    STRAGGLER_RATE,
];

/// From where to where a number of the catalogue can go, whatever it counts: from a millionth to
/// beyond the parameters of any model in any unit that the catalogue has.
pub const FACT: std::ops::RangeInclusive<f64> = 1e-6..=1e18;

impl Quantity {
    /// The value, where it is in the range.
    ///
    /// # Errors
    /// [`PlanError::NotBetween`]; no number is outside of every range.
    pub fn between(self, value: f64) -> Result<f64, PlanError> {
        if (self.least..=self.most).contains(&value) {
            Ok(value)
        } else {
            Err(PlanError::NotBetween {
                quantity: self,
                value,
            })
        }
    }

    /// From where to where, in few digits: `0.001 to 1e9`.
    pub fn range(self) -> String {
        let brief = |value: f64| {
            if value >= BRIEF {
                format!("{value:e}")
            } else {
                Short(value).to_string()
            }
        };
        format!("{} to {}", brief(self.least), brief(self.most))
    }

    /// As [`Quantity::between`], with an error of its own for what is not above zero.
    ///
    /// # Errors
    /// [`PlanError::NotPositive`] or [`PlanError::NotBetween`].
    pub fn positive(self, value: f64) -> Result<f64, PlanError> {
        if value > 0.0 {
            self.between(value)
        } else {
            Err(PlanError::NotPositive {
                quantity: self,
                value,
            })
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.option)
    }
}

/// From here on, zeros are counted and not written.
const BRIEF: f64 = 1e5;
/// Magnitudes between these are written out.
const WRITTEN_OUT: std::ops::Range<f64> = 1e-6..1e15;

/// A number that somebody gave, in full precision and few digits: `0.001`, `64`, `1e-300`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if value == 0.0 || !value.is_finite() || WRITTEN_OUT.contains(&value.abs()) {
            write!(f, "{value}")
        } else {
            write!(f, "{value:e}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_value_outside_its_range_the_refusal_names_option_value_and_range_in_few_digits() {
        let said = |value| {
            STORAGE_RATE
                .between(value)
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(
            said(1e-300),
            "storage rate in GB/s (--storage-gbs) = 1e-300: must be from 0.000001 to 1000000000"
        );
        assert!(said(f64::MAX).contains("= 1.7976931348623157e308:"));
        assert!(said(f64::NAN).contains("= NaN:"));
        assert_eq!(
            ALLOWED_STALL
                .positive(-1.0)
                .expect_err("refused")
                .to_string(),
            "allowed stall in seconds (--stall) = -1: must be above zero, from 0.001 to 1000000000"
        );
    }

    #[test]
    fn a_range_reads_in_few_digits() {
        assert_eq!(NIC_RATE.range(), "0.001 to 1e6");
        assert_eq!(OVERSUBSCRIPTION.range(), "1 to 64");
        assert_eq!(STALL.range(), "1e-12 to 1e9");
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it() {
        for end in [STORAGE_RATE.least, STORAGE_RATE.most] {
            assert_eq!(STORAGE_RATE.between(end), Ok(end));
            assert_eq!(STORAGE_RATE.positive(end), Ok(end));
        }
        let code = |value| STORAGE_RATE.positive(value).expect_err("refused").code();
        assert_eq!(code(f64::NAN), "plan-not-positive");
        assert_eq!(code(0.0), "plan-not-positive");
        assert_eq!(code(f64::INFINITY), "plan-not-between");
        assert_eq!(code(f64::MIN_POSITIVE), "plan-not-between");
    }
}
