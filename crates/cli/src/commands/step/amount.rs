//! Amounts as they are typed: a fraction of a model, a time or an amount of arithmetic.

use std::fmt;
use std::str::FromStr;

use crowfly_mover::step::Work;

/// A part of something: above 0, at most all of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    value: f64,
    /// As it was typed.
    text: String,
}

/// The text is no part of anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no part of a model; write 1/1000 or 0.001, above 0 and at most 1")]
pub struct BadScale(String);

impl Scale {
    /// This part of `whole`, rounded to whole numbers; one at least.
    pub fn of(&self, whole: f64) -> u64 {
        (self.value * whole).round().max(1.0) as u64
    }

    /// As a number.
    pub const fn value(&self) -> f64 {
        self.value
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Scale {
    type Err = BadScale;

    fn from_str(text: &str) -> Result<Self, BadScale> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let value = match text.split_once('/') {
            Some((part, whole)) => number(part).zip(number(whole)).map(|(p, w)| p / w),
            None => number(text),
        };
        let sensible = value.filter(|value| *value > 0.0 && *value <= 1.0);
        let text = text.trim().to_owned();
        match sensible {
            Some(value) => Ok(Self { value, text }),
            None => Err(BadScale(text)),
        }
    }
}

/// `50ms`, `1.5s`, `2GFLOP`.
pub fn work(text: &str) -> Result<Work, String> {
    const TIMES: [(&str, f64); 3] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    const FLOPS: [(&str, f64); 4] = [
        ("MFLOP", 1e6),
        ("GFLOP", 1e9),
        ("TFLOP", 1e12),
        ("PFLOP", 1e15),
    ];
    let amount = |units: &[(&str, f64)]| {
        let found = units.iter().find_map(|(unit, factor)| {
            let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
            Some(number * factor)
        });
        found.filter(|amount| amount.is_finite())
    };
    let time = amount(&TIMES).map(Work::Seconds);
    time.or_else(|| amount(&FLOPS).map(Work::Flops))
        .ok_or_else(|| "write a time such as 50ms or 1.5s, or work such as 2GFLOP".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_model_is_a_fraction_or_a_decimal() {
        let of = |text: &str| text.parse::<Scale>().map(|scale| scale.of(8.0e9));
        assert_eq!(of("1/1000"), Ok(8_000_000));
        assert_eq!(of("0.5"), Ok(4_000_000_000));
        assert_eq!(of("1"), Ok(8_000_000_000));
        assert_eq!(of("1e-12"), Ok(1), "one parameter at least");
        for bad in ["0", "-1", "2", "1/0", "0/0", "1/x", "half", "", "NaN"] {
            assert_eq!(of(bad), Err(BadScale(bad.into())), "{bad}");
        }
    }

    #[test]
    fn work_is_a_time_or_arithmetic() {
        assert_eq!(work("50ms"), Ok(Work::Seconds(0.05)));
        assert_eq!(work("1.5 s"), Ok(Work::Seconds(1.5)));
        assert_eq!(work("2GFLOP"), Ok(Work::Flops(2e9)));
        for bad in ["5", "ms", "GFLOP", "1 parsec", "infs", "NaNms"] {
            assert!(work(bad).is_err(), "{bad}");
        }
    }
}
