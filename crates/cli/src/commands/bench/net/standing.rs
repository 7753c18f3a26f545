//! What a survey came to: pure functions from samples to one point for each path, task and size.

use std::collections::BTreeMap;

use crowfly_mover::bench::{Sample, Task};
use crowfly_mover::fabric::RailReport;
use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::Path;
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::Serialize;

use crate::commands::race::standing::Spread;

/// The version of the JSON form of a survey.
pub const BENCH_NET_SCHEMA: &str = "crowfly.bench-net/1";

/// How a survey was done.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// The other end.
    pub peer: String,
    /// Processors of this end.
    pub processors: usize,
    /// Programs that wanted to run at the end, over a minute; unknown where the system does not say.
    pub load: Option<f64>,
    /// How often everything was measured.
    pub rounds: usize,
    /// How long each sample was to last.
    pub seconds: f64,
}

/// A survey.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// [`BENCH_NET_SCHEMA`].
    pub schema: &'static str,
    /// How it was done.
    #[serde(flatten)]
    pub about: About,
    /// What was found, by path, size and task.
    pub points: Vec<Point>,
    /// The paths that the two ends do not have.
    pub missing: Vec<Missing>,
    /// The paths whose ceiling nobody knows, and why.
    pub without_ceiling: Vec<Unknown>,
    /// The running totals of each NIC, warming up included.
    pub rails: Vec<RailReport>,
}

/// A path that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    /// The path.
    pub path: Path,
    /// What stands in its way.
    pub obstacles: Vec<Obstacle>,
}

/// A path whose ceiling nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// The path.
    pub path: Path,
    /// Why.
    pub because: String,
}

/// One path, size and task, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The path.
    pub path: Path,
    /// What was measured.
    pub task: Task,
    /// Bytes of each transfer.
    pub size: Bytes,
    /// Bytes per second.
    pub rate: Option<Spread>,
    /// CPU seconds of both processes for each decimal gigabyte.
    pub cpu_per_gb: Option<Spread>,
    /// Seconds of half a round trip: the medians of the rounds.
    pub latency: Option<Spread>,
    /// The same: what 99 of 100 stayed below, in the median round.
    pub latency_p99: Option<f64>,
    /// What the machine could do at most.
    pub ceiling: Option<Capacity>,
    /// The median rate as a fraction of the ceiling.
    pub share: Option<f64>,
    /// Every sample, with its receipt.
    pub samples: Vec<Sample>,
}

/// What the machine could do at most, by path, and by size where that matters.
#[derive(Debug, Default)]
pub struct Ceilings {
    known: BTreeMap<(Path, Option<u64>), Capacity>,
    unknown: Vec<Unknown>,
}

impl Ceilings {
    /// A rate that was measured; the highest counts.
    pub fn offer(
        &mut self,
        path: Path,
        size: Option<u64>,
        rate: Option<BytesPerSecond>,
        how: &str,
    ) {
        let Some(rate) = rate else {
            return;
        };
        let known = self.known.get(&(path, size));
        if known.is_none_or(|known| known.rate.0 < rate.0) {
            let provenance = Provenance::Measured(how.to_owned());
            self.known
                .insert((path, size), Capacity { rate, provenance });
        }
    }

    /// A rate that NICs negotiated.
    pub fn link(&mut self, path: Path, capacity: Capacity) {
        self.known.insert((path, None), capacity);
    }

    /// Says why a path has no ceiling.
    pub fn unknown(&mut self, path: Path, because: String) {
        self.unknown.push(Unknown { path, because });
    }

    fn of(&self, path: Path, size: u64) -> Option<&Capacity> {
        let known = self.known.get(&(path, Some(size)));
        known.or_else(|| self.known.get(&(path, None)))
    }
}

impl Point {
    fn new(samples: Vec<Sample>, ceilings: &Ceilings) -> Option<Self> {
        let first = samples.first()?;
        let (path, task, size) = (first.path, first.task, first.size);
        let rates = || samples.iter().filter_map(|s| s.rate()).map(|rate| rate.0);
        let rate = Spread::of(rates()).filter(|_| task != Task::PingPong);
        let known = ceilings.of(path, size.0).cloned().map(|mut known| {
            // A NIC sends and receives at once; CPU cores do one thing after another.
            if task == Task::Both && matches!(known.provenance, Provenance::LinkRate(_)) {
                known.rate.0 *= 2.0;
            }
            known
        });
        let ceiling = rate.and(known).map(|known| match rate {
            // What was measured beside the engine gives way to an engine that was faster.
            Some(rate) if rate.max > known.rate.0 => Capacity {
                rate: BytesPerSecond(rate.max),
                provenance: Provenance::Measured("the fastest of these samples".into()),
            },
            _ => known,
        });
        let share = ceiling.as_ref().filter(|ceiling| ceiling.rate.0 > 0.0);
        let share = share
            .zip(rate)
            .map(|(ceiling, rate)| rate.median / ceiling.rate.0);
        let latencies = || samples.iter().filter_map(|sample| sample.latency);
        Some(Self {
            path,
            task,
            size,
            rate,
            cpu_per_gb: Spread::of(samples.iter().filter_map(Sample::cpu_per_gb))
                .filter(|_| task != Task::PingPong),
            latency: Spread::of(latencies().map(|latency| latency.median)),
            latency_p99: Spread::of(latencies().map(|latency| latency.p99)).map(|p99| p99.median),
            ceiling,
            share,
            samples,
        })
    }
}

impl Standing {
    /// Makes points of samples in whatever order.
    pub fn new(
        about: About,
        samples: Vec<Sample>,
        ceilings: &Ceilings,
        missing: Vec<Missing>,
        rails: Vec<RailReport>,
    ) -> Self {
        let mut by: BTreeMap<(usize, Bytes, Task), Vec<Sample>> = BTreeMap::new();
        let rank = |path| Path::FABRIC.iter().position(|known| *known == path);
        for sample in samples {
            let key = (
                rank(sample.path).unwrap_or(usize::MAX),
                sample.size,
                sample.task,
            );
            by.entry(key).or_default().push(sample);
        }
        let points = by.into_values();
        Self {
            schema: BENCH_NET_SCHEMA,
            about,
            points: points
                .filter_map(|samples| Point::new(samples, ceilings))
                .collect(),
            missing,
            without_ceiling: ceilings.unknown.clone(),
            rails,
        }
    }

    /// The paths that were measured, straightest first.
    pub fn paths(&self) -> Vec<Path> {
        let mut paths: Vec<Path> = self.points.iter().map(|point| point.path).collect();
        paths.dedup();
        paths
    }

    /// One of the points.
    pub fn point(&self, path: Path, size: Bytes, task: Task) -> Option<&Point> {
        let mut points = self.points.iter();
        points.find(|point| (point.path, point.size, point.task) == (path, size, task))
    }

    /// The sizes that were measured, in order.
    pub fn sizes(&self) -> Vec<Bytes> {
        let mut sizes: Vec<Bytes> = self.points.iter().map(|point| point.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

#[cfg(test)]
pub mod tests {
    use crowfly_mover::bench::Latency;
    use crowfly_route::obstacle::Code;
    use crowfly_route::receipt::CpuSeconds;

    use super::*;
    use crate::commands::race::standing::tests::receipt;

    const CPU: CpuSeconds = CpuSeconds {
        user: 0.2,
        system: 0.1,
    };

    fn sample(path: Path, task: Task, size: u64, gb: f64) -> Sample {
        let moved = Bytes(size * 10);
        let seconds = moved.0 as f64 / (gb * 1e9);
        let latency = (task == Task::PingPong).then_some(Latency {
            least: 1e-6,
            median: seconds / 20.0,
            p99: 9e-6,
        });
        Sample {
            path,
            task,
            size: Bytes(size),
            transfers: 10,
            moved,
            seconds,
            cpu_here: CPU,
            cpu_there: CPU,
            latency,
            receipt: receipt("shared-memory", path, seconds, 0.1),
        }
    }

    pub fn standing() -> Standing {
        let (small, large) = (4096, 1 << 30);
        let mut samples = Vec::new();
        for (path, gb) in [(Path::Tcp, 2.0), (Path::Shm, 8.0)] {
            for round in [1.0, 0.5, 1.25] {
                samples.push(sample(path, Task::Read, large, 0.5 * gb * round));
                samples.push(sample(path, Task::Write, large, gb * round));
                samples.push(sample(path, Task::Write, small, gb * round / 4.0));
                samples.push(sample(path, Task::PingPong, small, gb * round / 8.0));
            }
        }
        let mut ceilings = Ceilings::default();
        let rate = |gb| Some(BytesPerSecond::gb(gb));
        ceilings.offer(
            Path::Shm,
            Some(large),
            rate(16.0),
            "copies in memory by 2 threads",
        );
        ceilings.offer(
            Path::Shm,
            Some(large),
            rate(12.0),
            "copies in memory by 1 thread",
        );
        ceilings.offer(
            Path::Tcp,
            None,
            rate(1.0),
            "1 plain connection over loopback",
        );
        let obstacle = Obstacle::blocks(Code::NoRdmaDevice, "the machine has no RDMA device");
        let missing = Missing {
            path: Path::Verbs,
            obstacles: vec![obstacle],
        };
        let about = About {
            peer: "a second process of this machine".into(),
            processors: 2,
            load: Some(0.25),
            rounds: 3,
            seconds: 0.1,
        };
        Standing::new(about, samples, &ceilings, vec![missing], Vec::new())
    }

    #[test]
    fn samples_of_one_path_size_and_task_become_one_point_with_its_middle_and_ends() {
        let standing = standing();
        assert_eq!(standing.paths(), [Path::Shm, Path::Tcp]);
        assert_eq!(standing.sizes(), [Bytes(4096), Bytes(1 << 30)]);
        assert_eq!(standing.points.len(), 8);
        let large = standing
            .point(Path::Shm, Bytes(1 << 30), Task::Write)
            .expect("measured");
        let rate = large.rate.expect("a rate");
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 1e-9;
        assert!(near(rate.min, 4e9) && near(rate.median, 8e9) && near(rate.max, 1e10));
        assert_eq!(large.samples.len(), 3);
        assert_eq!(
            large.ceiling.as_ref().map(|c| c.rate),
            Some(BytesPerSecond::gb(16.0))
        );
        assert!(large.share.is_some_and(|share| near(share, 0.5)));
        let cpu = large.cpu_per_gb.expect("CPU time").median;
        assert!(near(cpu, 0.6 / (10.0 * 1.073_741_824)), "{cpu}");
    }

    #[test]
    fn a_point_of_round_trips_has_a_latency_and_no_rate() {
        let standing = standing();
        let point = standing
            .point(Path::Tcp, Bytes(4096), Task::PingPong)
            .expect("measured");
        assert!(point.rate.is_none() && point.share.is_none() && point.cpu_per_gb.is_none());
        assert_eq!(point.latency_p99, Some(9e-6));
        let latency = point.latency.expect("a latency");
        assert!(latency.min < latency.median && latency.median < latency.max);
    }

    #[test]
    fn given_an_engine_faster_than_what_was_measured_beside_it_its_fastest_sample_is_the_ceiling() {
        let standing = standing();
        let point = standing.point(Path::Tcp, Bytes(1 << 30), Task::Write);
        let point = point.expect("measured");
        let ceiling = point.ceiling.as_ref().expect("a ceiling");
        assert_eq!(ceiling.rate.0, point.rate.expect("a rate").max);
        assert!(point.share.is_some_and(|share| share < 1.0));
        assert_eq!(ceiling.provenance.detail(), "the fastest of these samples");
    }

    #[test]
    fn given_a_cable_both_directions_together_may_fill_it_twice() {
        let mut ceilings = Ceilings::default();
        let capacity = Capacity {
            rate: BytesPerSecond::gb(10.0),
            provenance: Provenance::LinkRate("mlx5_0:1".into()),
        };
        ceilings.link(Path::Verbs, capacity);
        let ceiling = |task| {
            let point = Point::new(vec![sample(Path::Verbs, task, 1 << 20, 5.0)], &ceilings);
            point
                .and_then(|point| point.ceiling)
                .expect("a ceiling")
                .rate
        };
        assert_eq!(ceiling(Task::Write), BytesPerSecond::gb(10.0));
        assert_eq!(ceiling(Task::Both), BytesPerSecond::gb(20.0));
    }

    #[test]
    fn the_json_form_has_every_sample_with_its_receipt() {
        let json = serde_json::to_value(standing()).expect("JSON");
        assert_eq!(json["schema"], "crowfly.bench-net/1");
        assert_eq!(json["rounds"], 3);
        let point = &json["points"][0];
        assert_eq!(
            (&point["path"], &point["task"]),
            (&"shm".into(), &"write".into())
        );
        assert_eq!(point["samples"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            point["samples"][0]["receipt"]["schema"],
            "crowfly.receipt/1"
        );
        assert_eq!(json["missing"][0]["obstacles"][0]["code"], "no-rdma-device");
    }
}
