//! `crowfly race [PATH]`.

use std::path::{Path, PathBuf};

use clap::Args;
use crowfly_mover::checkpoint::Checkpoint;
use crowfly_mover::checkpoint::select::Selector;
use crowfly_route::hop::{Candidate, Capacity};
use crowfly_route::place::Place;
use crowfly_route::units::Bytes;

use super::transfer;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render;
use contest::Way;
use standing::{RACE_SCHEMA, Race};
use track::Track;

pub mod cache;
mod contest;
pub mod standing;
mod track;

/// Arguments of `crowfly race`.
#[derive(Args, Debug)]
pub struct RaceArgs {
    /// What to race over: a safetensors file, a model folder, or any file; without it, a checkpoint
    /// made for the race in the cache folder and removed afterwards
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// How often each way is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// How large the checkpoint made for the race is
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        conflicts_with = "path"
    )]
    size: Bytes,
    /// Keep the checkpoint made for the race, and use it again next time
    #[arg(long, conflicts_with = "path")]
    keep: bool,
    /// Write a bar picture of the race
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Races.
pub fn run(args: &RaceArgs, out: &mut Output) -> Result<Exit, Failure> {
    if let Some(file) = &args.svg {
        crate::file::check_folder(file)?;
    }
    let track = match &args.path {
        Some(path) => Track::Kept(transfer::local(path)?),
        None => Track::made(args.size, args.keep, out)?,
    };
    let race = race(track.path(), usize::from(args.runs), out)?;
    if let Some(file) = &args.svg {
        let picture = render::race_picture::render(&race);
        crate::file::replace(file, picture.as_bytes())?;
    }
    out.show(&race, |columns| render::race::render(&race, columns))?;
    Ok(Exit::Ok)
}

fn race(path: &Path, runs: usize, out: &Output) -> Result<Race, Failure> {
    let checkpoint = Checkpoint::open(path)?;
    let selection = Selector::default().select(&checkpoint)?;
    let pieces = selection.pieces(&checkpoint)?;
    let from = transfer::place(path);
    let machine = transfer::Machine::here()?;
    let routes = |to: &Place| machine.routes(&pieces, to);
    let to_host = routes(&Place::Host(None))?;
    let mut ways = Way::to_host(&to_host);
    if let Some(peer) = contest::roomiest_peer(&machine.topology) {
        ways.push(Way::to_peer(peer, routes(&Place::Peer(peer))?));
    }
    let to_gpu = routes(&Place::Gpu(0))?;
    let mut closed = Vec::new();
    match contest::first_gpu(&machine.topology, &pieces) {
        Ok(Some(gpu)) => {
            closed.extend_from_slice(gpu.storage_obstacles());
            ways.extend(Way::to_gpu(&gpu, &to_gpu));
        }
        Ok(None) => {}
        Err(obstacles) => closed = obstacles,
    }
    let mut outcome = contest::run(&from, &pieces, &ways, runs, out)?;
    outcome.missing.extend(closed);
    let race = Race {
        schema: RACE_SCHEMA,
        from,
        bytes: selection.bytes(),
        runs,
        warm: outcome.warm,
        ceiling: None,
        lanes: outcome.lanes,
        missing: outcome.missing,
        to_gpu,
    };
    Ok(race.settle(ceiling(&to_host)))
}

/// What the machine's links allow into host memory; `None` where no link's rate is known.
fn ceiling(to_host: &[Candidate]) -> Option<Capacity> {
    let ceilings = to_host.iter().filter_map(|c| c.route.ceiling());
    let highest = ceilings.max_by(|a, b| a.capacity.rate.0.total_cmp(&b.capacity.rate.0))?;
    (highest.unknown_hops == 0).then_some(highest.capacity)
}
