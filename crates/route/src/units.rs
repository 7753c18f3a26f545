//! Identifiers and units as types: bytes, rates, PCI addresses, NUMA nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A count of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Binary mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Binary gibibytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The rate at which this many bytes pass in `seconds`; `None` when no time passed.
    pub fn per(self, seconds: f64) -> Option<BytesPerSecond> {
        (seconds > 0.0).then(|| BytesPerSecond(self.0 as f64 / seconds))
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(0), |a, b| a + b)
    }
}

impl fmt::Display for Bytes {
    /// Decimal units with three significant figures: `980 GB`, `1.07 GB`, `512 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = scale(self.0 as f64);
        if unit.is_empty() {
            f.pad(&format!("{} B", self.0))
        } else {
            f.pad(&format!("{} {unit}B", significant(value)))
        }
    }
}

/// The text was not a size such as `1GiB`, `512MB` or `4096`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size; write a number with B, kB, MB, GB, TB or KiB, MiB, GiB, TiB")]
pub struct BadSize(pub String);

impl FromStr for Bytes {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(bad);
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * factor as f64;
        // A part of a byte is a unit that was forgotten.
        if factor == 1 && bytes.fract() != 0.0 {
            return Err(bad());
        }
        if bytes.is_finite() && bytes < 9.0e18 {
            Ok(Self(bytes.round() as u64))
        } else {
            Err(bad())
        }
    }
}

/// A rate in bytes per second; shown in decimal GB/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

impl BytesPerSecond {
    /// From decimal gigabytes per second.
    pub const fn gb(gigabytes: f64) -> Self {
        Self(gigabytes * 1e9)
    }

    /// From a line rate in gigabits per second.
    pub const fn from_gbps(gigabits: f64) -> Self {
        Self(gigabits * 1e9 / 8.0)
    }

    /// In decimal gigabytes per second.
    pub const fn as_gb(self) -> f64 {
        self.0 / 1e9
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = self.as_gb();
        if gb >= 0.01 {
            f.pad(&format!("{} GB/s", significant(gb)))
        } else {
            let (value, unit) = scale(self.0);
            f.pad(&format!("{} {unit}B/s", significant(value)))
        }
    }
}

fn scale(value: f64) -> (f64, &'static str) {
    for (limit, unit) in [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        // 999_999 B reads `1.00 MB`, not `1000 kB`: round before choosing the unit.
        if value >= limit * 0.9995 {
            return (value / limit, unit);
        }
    }
    (value, "")
}

/// Three significant figures without an exponent: `0.123`, `1.07`, `26.4`, `980`.
pub fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A NUMA node number as Linux counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NumaNode(pub u32);

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "numa{}", self.0)
    }
}

/// The address of a PCI function: `domain:bus:device.function`, as in `0000:3b:00.0`.
///
/// Domains are 32 bits wide because Intel VMD numbers its own from `10000` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        ))
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text was not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address; write it as 0000:3b:00.0 or 3b:00.0")]
pub struct BadPciAddress(pub String);

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// Accepts `0000:3b:00.0`, `3b:00.0`, and the longer domains that NVML prints (`00000000:3B:00.0`).
    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        let parse = || -> Option<Self> {
            let (slot, function) = text.rsplit_once('.')?;
            let mut parts = slot.rsplit(':');
            let (device, bus) = (parts.next()?, parts.next()?);
            let domain = parts.next().unwrap_or("0");
            let hex = |t: &str, max: u32| {
                let digits = !t.is_empty() && t.bytes().all(|b| b.is_ascii_hexdigit());
                u32::from_str_radix(t, 16)
                    .ok()
                    .filter(|v| digits && *v <= max)
            };
            parts.next().is_none().then_some(())?;
            Some(Self {
                domain: hex(domain, u32::MAX)?,
                bus: hex(bus, 0xff)? as u8,
                device: hex(device, 0x1f)? as u8,
                function: hex(function, 7)? as u8,
            })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print_in_the_units_people_use() {
        assert_eq!("1GiB".parse(), Ok(Bytes(1 << 30)));
        assert_eq!("1.5 GB".parse(), Ok(Bytes(1_500_000_000)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        for bad in [
            "",
            "GB",
            "-1",
            "1e3",
            "5 XB",
            "99999999999TB",
            "1.2.3",
            "1.5",
            "0.5 B",
        ] {
            assert_eq!(bad.parse::<Bytes>(), Err(BadSize(bad.into())), "{bad}");
        }
        assert_eq!(Bytes(999_999).to_string(), "1.00 MB");
        assert_eq!(Bytes(1 << 30).to_string(), "1.07 GB");
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(BytesPerSecond::from_gbps(400.0).to_string(), "50.0 GB/s");
        assert_eq!(BytesPerSecond(2.5e6).to_string(), "2.50 MB/s");
    }

    #[test]
    fn pci_addresses_read_in_every_form_that_tools_print() {
        let address = |t: &str| t.parse::<PciAddress>().map(|a| a.to_string());
        assert_eq!(address("3b:00.0").as_deref(), Ok("0000:3b:00.0"));
        assert_eq!(address("00000000:3B:00.0").as_deref(), Ok("0000:3b:00.0"));
        assert_eq!(address("10000:e1:1f.7").as_deref(), Ok("10000:e1:1f.7"));
        assert_eq!(address("ffff:ff:1f.7").as_deref(), Ok("ffff:ff:1f.7"));
        for bad in [
            "",
            "3b",
            "3b:00",
            "0:0:0:0.0",
            "00:20.0",
            "00:00.8",
            "+1:00.0",
            "zz:00.0",
        ] {
            assert_eq!(address(bad), Err(BadPciAddress(bad.into())), "{bad}");
        }
    }
}
