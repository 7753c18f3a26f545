//! Rates into a GPU by each path, beside a plain copy of pinned memory and the link's limit:
//! `gpu_rate FILE [RESULTS]`. Without a GPU it says why, and writes no results.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crowfly_machine::{Options, Root, capture};
use crowfly_mover::gpu::{CopyRequest, Gpu, To, copy};
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path as EnginePath, Receipt};
use crowfly_route::search::candidates;
use crowfly_route::topology::Topology;

const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("gpu_rate FILE [RESULTS]")?;
    let gpu = match Gpu::nth(0) {
        Ok(gpu) => Arc::new(gpu),
        Err(obstacles) => {
            let reasons: Vec<String> = obstacles.into_iter().map(|o| o.summary).collect();
            return Err(format!("no GPU to measure: {}", reasons.join("; ")).into());
        }
    };
    let mut table = format!("{}\n", gpu.device().facts().name);
    if let Some(limit) = limit()? {
        writeln!(table, "limit of the link from host memory: {limit}")?;
    }
    let source = Arc::new(Source::open(Path::new(&file))?);
    let host = Region::zeroed(usize::try_from(source.size())?, None)?;
    let mut best = |name: &str, run: &dyn Fn() -> Result<Receipt, crowfly_mover::TransferError>| {
        let runs: Result<Vec<Receipt>, _> = (0..RUNS).map(|_| run()).collect();
        let runs = runs?;
        let fastest = runs
            .iter()
            .min_by(|a, b| a.wall_seconds.total_cmp(&b.wall_seconds));
        if let Some(receipt) = fastest {
            let rate = receipt
                .rate()
                .map_or("no time".into(), |rate| rate.to_string());
            let cpu = receipt.cpu_per_gb().unwrap_or_default();
            let _ = writeln!(
                table,
                "{name:<16}{rate:>14}  {cpu:.3} CPU s/GB  {}",
                receipt.route.name
            );
        }
        Ok::<(), crowfly_mover::TransferError>(())
    };
    best("pinned copy", &|| {
        copy(CopyRequest {
            from: host.clone(),
            to: To::Gpu(Arc::clone(&gpu)),
            policy: Policy::Prefer,
            candidates: Vec::new(),
        })
        .map(|copied| copied.receipt)
    })?;
    let own = gpu.storage().map(|_| gpu.storage_path());
    for path in own
        .into_iter()
        .chain([EnginePath::Staged, EnginePath::Cached])
    {
        best(path.as_str(), &|| {
            let cold = path != EnginePath::Cached;
            if cold {
                let _ = source.drop_cache();
            }
            let request = Request {
                destination: Destination::Gpu(Arc::clone(&gpu)),
                path: Some(path),
                ..Request::to_host(
                    Place::File(file.clone()),
                    vec![Piece::whole(Arc::clone(&source))],
                )
            };
            let loaded = Engine::default().load(request)?.wait()?;
            Ok(loaded.receipt)
        })?;
    }
    print!("{table}");
    if let Some(results) = arguments.next() {
        std::fs::write(results, table)?;
    }
    Ok(())
}

/// What the links between host memory and the first GPU allow.
fn limit() -> Result<Option<String>, Box<dyn std::error::Error>> {
    let snapshot = capture(&Root::live()?, &Options::default());
    let topology = Topology::from_snapshot(&snapshot);
    let (from, to) = (Place::Host(None), Place::Gpu(0));
    let routes = candidates(&topology, Some(&snapshot), &from, &to).unwrap_or_default();
    let ceiling = routes
        .first()
        .and_then(|candidate| candidate.route.ceiling());
    Ok(ceiling.map(|ceiling| ceiling.capacity.to_string()))
}
