//! Numbers in the units that people read.

use std::fmt;

use crowfly_plan::figure::{Figure, Unit, half_up};

use super::{LEAST_WRITTEN_OUT, MOST_WRITTEN_OUT, three};
use crate::render::text::in_seconds;

/// A cell of a sheet: what people read, and the number in full behind it where there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amount {
    /// For people.
    pub text: String,
    /// The number in its base unit.
    pub raw: Option<(f64, &'static str)>,
}

impl Amount {
    fn of(text: String, value: f64, unit: &'static str) -> Self {
        Self {
            text,
            raw: Some((value, unit)),
        }
    }

    /// The same number with `mark` before it.
    pub fn marked(mut self, mark: &str) -> Self {
        self.text.insert_str(0, mark);
        self
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Amount {
    fn from(text: String) -> Self {
        Self { text, raw: None }
    }
}

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
/// Times longer than this many of a unit read better in the next.
const MOST_SECONDS: f64 = 300.0;
const MOST_MINUTES: f64 = 120.0;

/// `9.89 ps`, `613 ms`, `1.74 s`, `18.7 min`, `3.09 h`.
pub fn time(seconds: f64) -> Amount {
    let text = match seconds {
        s if s <= 0.0 => "0 s".into(),
        s if s < MOST_SECONDS => {
            let (number, unit) = in_seconds(s);
            format!("{} {unit}", three(number))
        }
        s if s < MOST_MINUTES * MINUTE => format!("{} min", three(s / MINUTE)),
        s => format!("{} h", three(s / HOUR)),
    };
    Amount::of(text, seconds, "s")
}

/// `1.27 to 2.49 s`; one time where both ends read the same.
pub fn times(from: f64, to: f64) -> String {
    let (low, high) = (time(from).text, time(to).text);
    if low == high {
        return low;
    }
    let unit = |text: &str| text.rsplit(' ').next().unwrap_or_default().to_owned();
    match low.strip_suffix(&unit(&low)) {
        Some(number) if unit(&low) == unit(&high) => format!("{}to {high}", number),
        _ => format!("{low} to {high}"),
    }
}

/// `140 GB`, `5.67 TB`.
pub fn size(bytes: f64) -> Amount {
    Amount::of(format!("{}B", scaled(bytes)), bytes, "B")
}

/// `17.6 GB/s`, `1.60 TB/s`.
pub fn rate(bytes_per_second: f64) -> Amount {
    let text = format!("{}B/s", scaled(bytes_per_second));
    Amount::of(text, bytes_per_second, "B/s")
}

fn scaled(value: f64) -> String {
    for (limit, unit) in [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= limit * 0.9995 {
            return format!("{} {unit}", three(value / limit));
        }
    }
    format!("{} ", three(value))
}

/// `35 %`, `2.3 %`, `0.04 %`.
pub fn share(fraction: f64) -> Amount {
    let percent = fraction * 100.0;
    if percent != 0.0 && !(LEAST_WRITTEN_OUT..MOST_WRITTEN_OUT).contains(&percent.abs()) {
        return Amount::of(format!("{} %", three(percent)), fraction, "fraction");
    }
    let digits = match percent.abs() {
        p if p >= 9.95 => 0,
        p if p >= 0.095 => 1,
        p if p > 0.0 => 3,
        _ => 0,
    };
    Amount::of(
        format!("{} %", half_up(percent, digits)),
        fraction,
        "fraction",
    )
}

/// From here on nobody counts.
const MOST_COUNTED: f64 = 1e15;

/// `31,500`.
pub fn count(n: f64) -> Amount {
    if n.abs() >= MOST_COUNTED {
        return Amount::of(three(n), n, "");
    }
    let digits = half_up(n, 0);
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    Amount::of(format!("{sign}{grouped}"), n, "")
}

/// Three figures and no unit.
pub fn ratio(value: f64) -> Amount {
    Amount::of(three(value), value, "")
}

/// A figure in its unit; what lies beyond the calibrated range is marked with `~`.
pub fn figure(figure: &Figure) -> Amount {
    let value = figure.value;
    let text = match figure.unit {
        Unit::Seconds => time(value),
        Unit::Bytes => size(value),
        Unit::BytesPerSecond => rate(value),
        Unit::Fraction => share(value),
        Unit::Ratio => ratio(value),
        Unit::Count => count(value),
        Unit::Watts => Amount::of(format!("{} kW", three(value / 1e3)), value, "W"),
        Unit::Dollars => Amount::of(format!("${}", count(value)), value, "USD"),
        Unit::DollarsPerHour => Amount::of(format!("${}", half_up(value, 3)), value, "USD/h"),
    };
    if figure.extrapolated {
        text.marked("~")
    } else {
        text
    }
}

/// As [`figure`]; nothing where there is none.
pub fn maybe(known: Option<&Figure>) -> Amount {
    known.map(figure).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_in_the_units_of_people() {
        assert_eq!(time(0.6125).text, "613 ms");
        assert_eq!(time(9.89e-12).text, "9.89 ps");
        assert_eq!(time(4.2e-8).text, "42.0 ns");
        assert_eq!(times(3e-10, 3e-9), "300 ps to 3.00 ns");
        assert_eq!(time(251.3).text, "251 s");
        assert_eq!(time(1123.7).text, "18.7 min");
        assert_eq!(time(11_135.0).text, "3.09 h");
        assert_eq!(times(1.27, 2.49), "1.27 to 2.49 s");
        assert_eq!(times(0.9, 2.49), "900 ms to 2.49 s");
        assert_eq!(times(2.0, 2.0), "2.00 s");
        assert_eq!(size(140e9).text, "140 GB");
        assert_eq!(rate(1.6e12).text, "1.60 TB/s");
        assert_eq!(share(0.352).text, "35 %");
        assert_eq!(share(0.0226).text, "2.3 %");
        assert_eq!(count(131_072.0).text, "131,072");
        assert_eq!(count(12.0).text, "12");
        let far = Figure::computed(1.74, Unit::Seconds, "x").beyond(true);
        assert_eq!(figure(&far).text, "~1.74 s");
    }
}
