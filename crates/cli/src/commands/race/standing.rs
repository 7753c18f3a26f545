//! What a race came to: pure functions from receipts to a standing.

use crowfly_route::hop::{Candidate, Capacity, Class, Counters, Provenance};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::receipt::Receipt;
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::Serialize;

/// The version of the race's JSON form.
pub const RACE_SCHEMA: &str = "crowfly.race/1";

/// The same bytes by every way that the machine offers.
#[derive(Clone, Debug, Serialize)]
pub struct Race {
    /// [`RACE_SCHEMA`].
    pub schema: &'static str,
    /// Where the bytes lie.
    pub from: Place,
    /// How many bytes each run moved.
    pub bytes: Bytes,
    /// How often each way was run.
    pub runs: usize,
    /// The most bytes that the page cache would not forget before a run; zero on a cold start.
    pub warm: Bytes,
    /// What the shares are measured against.
    pub ceiling: Option<Capacity>,
    /// The ways, the fastest first.
    pub lanes: Vec<Lane>,
    /// Why ways that crowfly knows were not run.
    pub missing: Vec<Obstacle>,
    /// The routes from the same bytes to a GPU, and what stands in their way.
    pub to_gpu: Vec<Candidate>,
}

/// One way and its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    /// The way's name.
    pub name: String,
    /// How straight it is.
    pub class: Class,
    /// The four counters of its route.
    pub counters: Counters,
    /// Wall time in seconds.
    pub seconds: Spread,
    /// The rate of the median run.
    pub rate: Option<BytesPerSecond>,
    /// That rate as a fraction of the race's ceiling.
    pub share: Option<f64>,
    /// CPU seconds per decimal gigabyte.
    pub cpu_per_gb: Option<Spread>,
    /// The receipt of each run, in the order they were run.
    pub receipts: Vec<Receipt>,
}

/// The middle and the ends of some numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The middle one; of an even number, the mean of the middle two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.get(sorted.len() / 2)?;
        let lower = sorted.get((sorted.len() - 1) / 2)?;
        Some(Self {
            min,
            median: f64::midpoint(*lower, *upper),
            max,
        })
    }
}

impl Lane {
    /// The runs of one way; `None` when it never ran.
    pub fn new(name: impl Into<String>, receipts: Vec<Receipt>) -> Option<Self> {
        let seconds = Spread::of(receipts.iter().map(|r| r.wall_seconds))?;
        let first = receipts.first()?;
        Some(Self {
            name: name.into(),
            class: first.route.class(),
            counters: first.route.counters(),
            seconds,
            rate: first.requested.per(seconds.median),
            share: None,
            cpu_per_gb: Spread::of(receipts.iter().filter_map(Receipt::cpu_per_gb)),
            receipts,
        })
    }

    fn best_rate(&self) -> Option<BytesPerSecond> {
        self.receipts.first()?.requested.per(self.seconds.min)
    }
}

impl Race {
    /// Puts the lanes in order and measures each against `known`, the ceiling of the machine, or
    /// where none is known, or a run exceeds what is assumed, against the fastest single run.
    pub fn settle(mut self, known: Option<Capacity>) -> Self {
        self.lanes
            .sort_by(|a, b| a.seconds.median.total_cmp(&b.seconds.median));
        let best = self.lanes.iter().filter_map(Lane::best_rate);
        let best = best.max_by(|a, b| a.0.total_cmp(&b.0));
        // What was only assumed gives way to a run that was faster.
        let refuted = |known: &Capacity| {
            matches!(known.provenance, Provenance::Assumed(_))
                && best.is_some_and(|best| best.0 > known.rate.0)
        };
        self.ceiling = known.filter(|known| !refuted(known)).or_else(|| {
            best.map(|rate| Capacity {
                rate,
                provenance: Provenance::Measured("the fastest run of this race".into()),
            })
        });
        let ceiling = self.ceiling.as_ref().map_or(0.0, |c| c.rate.0);
        for lane in &mut self.lanes {
            let rate = lane.rate.filter(|_| ceiling > 0.0);
            lane.share = rate.map(|rate| rate.0 / ceiling);
        }
        self
    }
}

#[cfg(test)]
pub mod tests {
    use crowfly_route::hop::Route;
    use crowfly_route::policy::Policy;
    use crowfly_route::receipt::{
        CpuSeconds, Path, RECEIPT_SCHEMA, Share, Verification, Visibility,
    };

    use super::*;

    pub fn receipt(name: &str, path: Path, seconds: f64, cpu: f64) -> Receipt {
        let from = Place::File("/data/m".into());
        Receipt {
            schema: RECEIPT_SCHEMA.into(),
            from: from.clone(),
            to: Place::Host(None),
            policy: Policy::Prefer,
            route: Route {
                name: name.into(),
                from,
                to: Place::Host(None),
                hops: vec![],
            },
            requested: Bytes(1_000_000_000),
            shares: vec![Share {
                path,
                class: Class::Direct,
                bytes: Bytes(1_000_000_000),
                because: None,
            }],
            bounced: Bytes(0),
            overread: Bytes(0),
            retries: 0,
            wall_seconds: seconds,
            cpu: CpuSeconds {
                user: 0.0,
                system: cpu,
            },
            ceiling: None,
            obstacles: vec![],
            visibility: Visibility::NotNeeded("host memory".into()),
            verification: Verification::NotAsked,
        }
    }

    pub fn race() -> Race {
        let lane = |name: &str, path, runs: &[(f64, f64)]| {
            let receipts = runs.iter().map(|(s, cpu)| receipt(name, path, *s, *cpu));
            Lane::new(name, receipts.collect()).expect("it ran")
        };
        Race {
            schema: RACE_SCHEMA,
            from: Place::File("/data/m".into()),
            bytes: Bytes(1_000_000_000),
            runs: 3,
            warm: Bytes(0),
            ceiling: None,
            lanes: vec![
                lane(
                    "cached",
                    Path::Cached,
                    &[(1.5, 0.9), (1.0, 0.8), (2.0, 1.0)],
                ),
                lane(
                    "direct",
                    Path::Direct,
                    &[(0.8, 0.1), (1.0, 0.2), (0.9, 0.1)],
                ),
            ],
            missing: vec![],
            to_gpu: vec![],
        }
    }

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        assert_eq!(Spread::of([]), None);
        let spread = |min, median, max| Some(Spread { min, median, max });
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), spread(1.0, 2.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0]), spread(1.0, 2.5, 4.0));
    }

    #[test]
    fn given_no_known_ceiling_shares_are_of_the_fastest_run_and_say_so() {
        let race = race().settle(None);
        let names: Vec<&str> = race.lanes.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["direct", "cached"]);
        let ceiling = race.ceiling.expect("measured");
        assert_eq!(ceiling.rate, BytesPerSecond::gb(1.25));
        assert_eq!(ceiling.provenance.word(), "measured");
        let shares: Vec<f64> = race.lanes.iter().filter_map(|l| l.share).collect();
        assert!((shares[0] - 0.8 / 0.9).abs() < 1e-9);
        assert!((shares[1] - 0.8 / 1.5).abs() < 1e-9);
    }

    #[test]
    fn given_an_assumed_ceiling_that_a_run_exceeds_the_run_counts() {
        let assumed = |gb| Capacity {
            rate: BytesPerSecond::gb(gb),
            provenance: Provenance::Assumed("one core copies".into()),
        };
        let ceiling = |known| race().settle(Some(known)).ceiling.expect("one");
        assert_eq!(ceiling(assumed(1.0)).rate, BytesPerSecond::gb(1.25));
        assert_eq!(ceiling(assumed(1.0)).provenance.word(), "measured");
        assert_eq!(ceiling(assumed(2.0)), assumed(2.0));
    }

    #[test]
    fn given_a_known_ceiling_shares_are_of_it() {
        let known = Capacity {
            rate: BytesPerSecond::gb(2.0),
            provenance: Provenance::LinkRate("nvme0".into()),
        };
        let race = race().settle(Some(known.clone()));
        assert_eq!(race.ceiling, Some(known));
        assert!(
            race.lanes[1]
                .share
                .is_some_and(|s| (s - 1.0 / 3.0).abs() < 1e-9)
        );
    }
}
