//! The table of rates.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::{Options, Root, capture};
use crowfly_mover::gpu::{CopyRequest, Gpu, PlainCopy, To, copy};
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source, TransferError, Verify};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path as EnginePath, Receipt};
use crowfly_route::search::candidates;
use crowfly_route::topology::Topology;
use crowfly_route::units::{Bytes, BytesPerSecond};

use super::gpus::Outcome;

const RUNS: usize = 5;

/// What is measured.
pub struct Subject {
    pub gpu: Arc<Gpu>,
    /// Whether it exists only in this process, so that no time is a GPU's.
    pub stand_in: bool,
}

impl Subject {
    /// What each line ends with.
    const fn mark(&self) -> &'static str {
        match self.stand_in {
            true => "  [stand-in, no GPU's rate]",
            false => "",
        }
    }
}

/// One run of one way.
struct Run {
    wall: Duration,
    cpu_per_gb: Option<f64>,
    route: String,
}

impl Run {
    fn of(receipt: &Receipt) -> Self {
        Self {
            wall: Duration::from_secs_f64(receipt.wall_seconds),
            cpu_per_gb: receipt.cpu_per_gb(),
            route: receipt.route.name.clone(),
        }
    }
}

/// What rates are held against.
#[derive(Clone, Copy)]
struct Limits {
    /// The link between host memory and the GPU.
    link: Option<BytesPerSecond>,
    /// The drive, as it was measured a moment ago: the median.
    drive: Option<BytesPerSecond>,
}

impl Limits {
    /// The lower of the two, and its name.
    fn least(self) -> Option<(BytesPerSecond, &'static str)> {
        match (self.link, self.drive) {
            (Some(link), Some(drive)) if drive.0 < link.0 => Some((drive, "of the drive")),
            (Some(link), _) => Some((link, "of the link")),
            (None, drive) => drive.map(|drive| (drive, "of the drive")),
        }
    }
}

/// The rates by each way into the GPU's memory, of a file's bytes.
pub fn table(subject: &Subject, file: &Path) -> Outcome<String> {
    let gpu = &subject.gpu;
    let source = Arc::new(Source::open(file)?);
    let bytes = Bytes(source.size());
    let link = match subject.stand_in {
        true => None,
        false => limit()?,
    };
    let limited = link.map_or("unknown".into(), |limit| limit.to_string());
    let mut table = format!(
        "{}{}\nlimit of the link from host memory: {limited}\n",
        gpu.device().facts().name,
        subject.mark()
    );
    let mut row = |name: &str, limits: Limits, run: &dyn Fn() -> Result<Run, TransferError>| {
        let runs: Result<Vec<Run>, _> = (0..RUNS).map(|_| run()).collect();
        let mut runs = runs?;
        let text = line(name, &mut runs, bytes, limits);
        let _ = writeln!(table, "{text}{}", subject.mark());
        Ok::<Option<BytesPerSecond>, TransferError>(median(&runs, bytes))
    };
    let by_link = Limits { link, drive: None };
    let len = usize::try_from(bytes.0)?;
    for (name, pinned) in [("plain, pinned", true), ("plain, pageable", false)] {
        let plain = PlainCopy::new(gpu, len, pinned)?;
        row(name, by_link, &|| {
            Ok(Run {
                wall: plain.run()?,
                cpu_per_gb: None,
                route: "the runtime's own copy".into(),
            })
        })?;
    }
    let host = Region::zeroed(len, None)?;
    row("pinned", by_link, &|| {
        let copied = copy(CopyRequest {
            from: host.clone(),
            to: To::Gpu(Arc::clone(gpu)),
            policy: Policy::Prefer,
            candidates: Vec::new(),
        })?;
        Ok(Run::of(&copied.receipt))
    })?;
    let from = || Place::File(file.display().to_string());
    let nothing = Limits {
        link: None,
        drive: None,
    };
    let drive = row("drive alone", nothing, &|| {
        let _ = source.drop_cache();
        let request = Request {
            destination: Destination::Transit(None),
            ..Request::to_host(from(), vec![Piece::whole(Arc::clone(&source))])
        };
        Ok(Run::of(&Engine::default().load(request)?.wait()?.receipt))
    })?;
    let own = gpu.storage().map(|_| gpu.storage_path());
    let paths = own
        .into_iter()
        .chain([EnginePath::Staged, EnginePath::Cached]);
    for path in paths {
        let load = |verify| {
            if path != EnginePath::Cached {
                let _ = source.drop_cache();
            }
            let request = Request {
                destination: Destination::Gpu(Arc::clone(gpu)),
                path: Some(path),
                verify,
                ..Request::to_host(from(), vec![Piece::whole(Arc::clone(&source))])
            };
            Engine::default().load(request)?.wait()
        };
        // Wrong bytes have no rate.
        load(Verify::Compare)?;
        let limits = Limits {
            link,
            // The page cache is no drive.
            drive: drive.filter(|_| path != EnginePath::Cached),
        };
        row(path.as_str(), limits, &|| {
            Ok(Run::of(&load(Verify::No)?.receipt))
        })?;
    }
    for obstacle in gpu.storage_obstacles() {
        writeln!(table, "{}: {}", gpu.storage_path(), obstacle.summary)?;
    }
    Ok(table)
}

fn rate(run: &Run, bytes: Bytes) -> BytesPerSecond {
    BytesPerSecond(bytes.0 as f64 / run.wall.as_secs_f64().max(1e-9))
}

/// The rate of the middle one of some runs, which are in order.
fn median(runs: &[Run], bytes: Bytes) -> Option<BytesPerSecond> {
    runs.get(runs.len() / 2).map(|run| rate(run, bytes))
}

/// The median and the best of some runs, and what share of the limit the median is.
fn line(name: &str, runs: &mut [Run], bytes: Bytes, limits: Limits) -> String {
    runs.sort_by_key(|run| run.wall);
    let (Some(fastest), Some(middle)) = (runs.first(), runs.get(runs.len() / 2)) else {
        return format!("{name:<16} not measured");
    };
    let rate = |run: &Run| rate(run, bytes);
    let share = limits.least().map_or("-".into(), |(limit, whose)| {
        format!("{:.2} {whose}", rate(middle).0 / limit.0)
    });
    let cpu = middle.cpu_per_gb;
    let cpu = cpu.map_or("-".into(), |cpu| format!("{cpu:.3} CPU s/GB"));
    format!(
        "{name:<16}{:>14} median {:>14} best {share:>17}  {cpu:>14}  {}",
        rate(middle).to_string(),
        rate(fastest).to_string(),
        middle.route
    )
}

/// What the links between host memory and the first GPU allow.
fn limit() -> Outcome<Option<BytesPerSecond>> {
    let snapshot = capture(&Root::live()?, &Options::default());
    let topology = Topology::from_snapshot(&snapshot);
    let (from, to) = (Place::Host(None), Place::Gpu(0));
    let routes = candidates(&topology, Some(&snapshot), &from, &to).unwrap_or_default();
    let ceiling = routes
        .first()
        .and_then(|candidate| candidate.route.ceiling());
    Ok(ceiling.map(|ceiling| ceiling.capacity.rate))
}
