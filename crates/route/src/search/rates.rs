//! What a hop can carry, and how we know.
//!
//! * A DMA carries what the slowest link it crosses does, after line encoding: packet headers take
//!   some more, so a transfer never quite reaches it.
//! * A NIC carries what its port does.
//! * A drive is taken to carry what its own PCIe link does unless someone measured it: drives are
//!   sold to fill their link, and no observation says better.
//! * A CPU core carries what someone measured, or an assumed rate. More cores carry more; the
//!   ceiling of a route with a CPU touch is therefore that of one core.

use std::collections::BTreeMap;

use crate::hop::{Capacity, CpuWork, Crossing, Provenance};
use crate::units::BytesPerSecond;

/// Copying between two buffers larger than the caches, one core of a server of the 2020s; memory
/// bandwidth and not the instruction binds.
const ASSUMED_COPY: BytesPerSecond = BytesPerSecond::gb(10.0);
/// AES-GCM with the processor's AES instructions, one core of a server of the 2020s.
const ASSUMED_CRYPTO: BytesPerSecond = BytesPerSecond::gb(4.0);

/// A rate that was measured on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Bytes per second.
    pub rate: BytesPerSecond,
    /// How it was measured, for a person: `probe of 64 MiB, 8 × 2 MiB requests`.
    pub how: String,
}

impl Calibration {
    fn capacity(&self) -> Capacity {
        Capacity {
            rate: self.rate,
            provenance: Provenance::Measured(self.how.clone()),
        }
    }
}

/// What was measured of a drive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveRates {
    /// Reading it with O_DIRECT.
    pub read: Option<Calibration>,
    /// Writing it with O_DIRECT.
    pub write: Option<Calibration>,
}

/// Rates that were measured on the machine; each replaces an assumption or a link rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// One core copying from buffer to buffer.
    pub copy: Option<Calibration>,
    /// One core encrypting or decrypting TLS.
    pub crypto: Option<Calibration>,
    /// All reads and writes of host RAM together.
    pub memory: Option<Calibration>,
    /// Drives by name, as in [`crate::topology::Drive::name`].
    pub drives: BTreeMap<String, DriveRates>,
}

impl Measured {
    pub(super) fn cpu(&self, work: CpuWork) -> Capacity {
        let (measured, rate, what) = match work {
            CpuWork::KernelCopy | CpuWork::UserCopy => {
                (&self.copy, ASSUMED_COPY, "one core copies about 10 GB/s")
            }
            CpuWork::Crypto => (
                &self.crypto,
                ASSUMED_CRYPTO,
                "one core does about 4 GB/s of AES-GCM",
            ),
        };
        measured.as_ref().map_or_else(
            || Capacity {
                rate,
                provenance: Provenance::Assumed(what.into()),
            },
            Calibration::capacity,
        )
    }

    pub(super) fn drive(&self, name: &str, write: bool) -> Option<Capacity> {
        let rates = self.drives.get(name)?;
        let rate = if write { &rates.write } else { &rates.read };
        rate.as_ref().map(Calibration::capacity)
    }

    pub(super) fn memory(&self) -> Option<Capacity> {
        self.memory.as_ref().map(Calibration::capacity)
    }
}

/// What the slowest of some links carries; `None` where no rate is known.
pub(super) fn slowest(crossings: &[Crossing]) -> Option<Capacity> {
    let known = crossings.iter().filter_map(|c| Some((c.rate?, c)));
    let (rate, crossing) = known.min_by(|a, b| a.0.0.total_cmp(&b.0.0))?;
    Some(Capacity {
        rate,
        provenance: Provenance::LinkRate(crossing.link.clone()),
    })
}

/// The lower of two limits, as far as known.
pub(super) fn lower(a: Option<Capacity>, b: Option<Capacity>) -> Option<Capacity> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.rate.0 < a.rate.0 { b } else { a }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::LinkKind;

    #[test]
    fn links_of_unknown_rate_do_not_hide_a_known_one() {
        let crossing = |link: &str, gb: Option<f64>| Crossing {
            link: link.into(),
            kind: LinkKind::Pcie,
            rate: gb.map(BytesPerSecond::gb),
            degraded: false,
        };
        let links = [
            crossing("a", None),
            crossing("b", Some(63.0)),
            crossing("c", Some(7.9)),
        ];
        let found = slowest(&links).expect("two are known");
        assert_eq!(found.rate, BytesPerSecond::gb(7.9));
        assert_eq!(found.provenance, Provenance::LinkRate("c".into()));
        assert_eq!(slowest(&links[..1]), None);
    }

    #[test]
    fn a_measurement_replaces_an_assumption() {
        let assumed = Measured::default().cpu(CpuWork::KernelCopy);
        assert_eq!(assumed.provenance.word(), "assumed");
        let measured = Measured {
            copy: Some(Calibration {
                rate: BytesPerSecond::gb(9.2),
                how: "memcpy of 256 MiB".into(),
            }),
            ..Measured::default()
        };
        let measured = measured.cpu(CpuWork::KernelCopy);
        assert_eq!(measured.rate, BytesPerSecond::gb(9.2));
        assert_eq!(measured.provenance.word(), "measured");
    }
}
