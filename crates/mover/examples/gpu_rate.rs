//! Rates into a GPU by each path, beside a plain copy of pinned and of pageable memory and the link's
//! limit: `gpu_rate FILE [RESULTS]`. The storage library of the GPU's maker is among them where it goes
//! straight for the file; else the reason is in the table. Without a GPU it says why, writes no results
//! and ends with a failure.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crowfly_machine::trial::{self, Trial};
use crowfly_machine::{Options, Root, capture};
use crowfly_mover::gpu::{CopyRequest, Gpu, To, copy};
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source, TransferError, Verify};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path as EnginePath, Receipt};
use crowfly_route::search::candidates;
use crowfly_route::topology::Topology;
use crowfly_route::units::BytesPerSecond;

const RUNS: usize = 5;
/// The first argument of the child in which the storage library is tried.
const CHILD: &str = "--answer-trial";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("gpu_rate FILE [RESULTS]")?;
    if file == CHILD {
        let question = arguments.next().unwrap_or_default();
        return Ok(trial::answer(&question, std::io::stdout())?);
    }
    let gpu = match Gpu::nth(0) {
        Ok(gpu) => gpu,
        Err(obstacles) => {
            let reasons: Vec<String> = obstacles.into_iter().map(|o| o.summary).collect();
            return Err(format!("no GPU to measure: {}", reasons.join("; ")).into());
        }
    };
    let trial = Trial::by(std::env::current_exe()?, &[CHILD]);
    let gpu = Arc::new(gpu.find_storage(&trial, Path::new(&file)));
    let mut table = format!("{}\n", gpu.device().facts().name);
    let limit = limit()?;
    match limit {
        Some(limit) => writeln!(table, "limit of the link from host memory: {limit}")?,
        None => writeln!(table, "limit of the link from host memory: unknown")?,
    }
    let source = Arc::new(Source::open(Path::new(&file))?);
    let host = Region::zeroed(usize::try_from(source.size())?, None)?;
    let mut best = |name: &str, run: &dyn Fn() -> Result<Receipt, TransferError>| {
        let runs: Result<Vec<Receipt>, _> = (0..RUNS).map(|_| run()).collect();
        let mut runs = runs?;
        runs.sort_by(|a, b| a.wall_seconds.total_cmp(&b.wall_seconds));
        let (Some(fastest), Some(middle)) = (runs.first(), runs.get(RUNS / 2)) else {
            return Ok(());
        };
        let rate = |receipt: &Receipt| receipt.rate().map_or(0.0, |rate| rate.0);
        let share = limit.map_or("-".into(), |limit| {
            format!("{:.2} of it", rate(middle) / limit.0)
        });
        let cpu = middle.cpu_per_gb().unwrap_or_default();
        let _ = writeln!(
            table,
            "{name:<16}{:>14} median {:>14} best {share:>11}  {cpu:.3} CPU s/GB  {}",
            BytesPerSecond(rate(middle)).to_string(),
            BytesPerSecond(rate(fastest)).to_string(),
            fastest.route.name
        );
        Ok::<(), TransferError>(())
    };
    let copied = || {
        copy(CopyRequest {
            from: host.clone(),
            to: To::Gpu(Arc::clone(&gpu)),
            policy: Policy::Prefer,
            candidates: Vec::new(),
        })
        .map(|copied| copied.receipt)
    };
    best("plain copy", &copied)?;
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
                destination: Destination::Gpu(Arc::clone(&gpu)),
                path: Some(path),
                verify,
                ..Request::to_host(
                    Place::File(file.clone()),
                    vec![Piece::whole(Arc::clone(&source))],
                )
            };
            let loaded = Engine::default().load(request)?.wait()?;
            Ok(loaded.receipt)
        };
        // Wrong bytes have no rate.
        load(Verify::Compare)?;
        best(path.as_str(), &|| load(Verify::No))?;
    }
    for obstacle in gpu.storage_obstacles() {
        writeln!(table, "{}: {}", gpu.storage_path(), obstacle.summary)?;
    }
    print!("{table}");
    if let Some(results) = arguments.next() {
        std::fs::write(results, table)?;
    }
    Ok(())
}

/// What the links between host memory and the first GPU allow.
fn limit() -> Result<Option<BytesPerSecond>, Box<dyn std::error::Error>> {
    let snapshot = capture(&Root::live()?, &Options::default());
    let topology = Topology::from_snapshot(&snapshot);
    let (from, to) = (Place::Host(None), Place::Gpu(0));
    let routes = candidates(&topology, Some(&snapshot), &from, &to).unwrap_or_default();
    let ceiling = routes
        .first()
        .and_then(|candidate| candidate.route.ceiling());
    Ok(ceiling.map(|ceiling| ceiling.capacity.rate))
}
