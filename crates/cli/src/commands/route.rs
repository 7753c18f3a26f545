//! `crowfly route FROM TO`: every way between two places, and what stands in it.

use std::path::Path;
use std::{fs, io};

use clap::Args;
use crowfly_mover::checkpoint::index::SHARD_SUFFIX;
use crowfly_mover::{Source, TransferError};
use crowfly_route::hop::{Candidate, Ceiling, Class, Counters, Route, Standing};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::search;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine::DescribedMachineArgs;
use crate::output::Output;
use crate::render;

/// The version of the JSON form of a plan.
pub const ROUTE_SCHEMA: &str = "crowfly.route/1";

/// Arguments of `crowfly route`.
#[derive(Args, Debug)]
#[command(after_long_help = PLACES)]
pub struct RouteArgs {
    /// Where the data starts
    #[arg(id = "start", value_name = "FROM")]
    start: String,
    /// Where the data ends
    #[arg(id = "end", value_name = "TO")]
    end: String,
    /// Show every way hop by hop, not the best alone
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    machine: DescribedMachineArgs,
}

const PLACES: &str = "\
Places:
  PATH, file:PATH         a file
  drive:nvme0             the blocks of a drive or block device
  gpu:0                   memory of a GPU, numbered in PCI address order
  host, host:1            host memory, anywhere or on a NUMA node
  peer:0000:3b:00.0       memory that a device publishes for peer-to-peer DMA
  nic:mlx5_0              the wire behind an adapter
  s3://…, gs://…, az://…, https://…  an object in a store
  remote:gpu:0, remote:host  memory of a peer server of the same shape";

/// Every way between two places.
#[derive(Debug, Serialize)]
pub struct Plan {
    schema: &'static str,
    /// Where the data starts.
    pub from: Place,
    /// Where the data ends.
    pub to: Place,
    /// The ways, those one would take first in front.
    pub ways: Vec<Way>,
}

/// One way, with what follows from its hops.
#[derive(Debug, Serialize)]
pub struct Way {
    /// Whether it can be taken.
    pub standing: Standing,
    /// The hops. There are none where a device that the way needs does not exist; nothing follows
    /// from them then.
    #[serde(flatten)]
    pub route: Route,
    /// How straight it is.
    pub class: Option<Class>,
    /// The four counters.
    pub counters: Option<Counters>,
    /// What its slowest hop carries.
    pub ceiling: Option<Ceiling>,
    /// The links that it goes up and down.
    pub shared_links: Vec<String>,
    /// What stands in it.
    pub obstacles: Vec<Obstacle>,
}

impl Plan {
    /// A plan with the ways that a search found.
    pub fn new(from: Place, to: Place, candidates: Vec<Candidate>) -> Self {
        Self {
            schema: ROUTE_SCHEMA,
            from,
            to,
            ways: candidates.into_iter().map(Way::new).collect(),
        }
    }
}

impl Way {
    fn new(candidate: Candidate) -> Self {
        let standing = candidate.standing();
        let route = candidate.route;
        let known = !route.hops.is_empty();
        let shared = route.shared_links().into_iter();
        Self {
            standing,
            class: known.then(|| route.class()),
            counters: known.then(|| route.counters()),
            ceiling: route.ceiling(),
            shared_links: shared.map(|crossing| crossing.link.clone()).collect(),
            obstacles: candidate.obstacles,
            route,
        }
    }
}

/// Plans, and prints.
pub fn run(args: &RouteArgs, out: &mut Output) -> Result<Exit, Failure> {
    let elsewhere = args.machine.is_elsewhere();
    let from = place(&args.start, elsewhere, End::Start)?;
    let to = place(&args.end, elsewhere, End::Goal)?;
    let (topology, snapshot) = args.machine.look()?;
    for assumption in args.machine.assumptions(&topology) {
        out.note(&assumption);
    }
    let found = search::candidates(&topology, snapshot.as_ref(), &from, &to)?;
    let plan = Plan::new(from, to, found);
    let all = args.all;
    out.show(&plan, |columns| render::route::render(&plan, columns, all))?;
    Ok(Exit::Ok)
}

/// Which end of a route a place is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The bytes have to be there.
    Start,
    /// The bytes can still have to be put there.
    Goal,
}

/// Reads a place; a bare name that is a file of this machine is a place too.
fn place(text: &str, elsewhere: bool, end: End) -> Result<Place, Failure> {
    match text.parse() {
        Ok(Place::File(path)) => file(&path, elsewhere, end),
        Ok(place) => Ok(place),
        Err(_) if !elsewhere && Path::new(text).exists() => file(text, elsewhere, end),
        Err(error) => Err(error.into()),
    }
}

/// A path as the mount table knows it: absolute, without links. Of a file that is yet to be made, as
/// much of it as is there.
fn file(path: &str, elsewhere: bool, end: End) -> Result<Place, Failure> {
    if elsewhere {
        return if path.starts_with('/') {
            Ok(Place::File(path.to_owned()))
        } else {
            Err(Failure::usage(format!(
                "{path} has to be an absolute path, as it is a file of another machine"
            )))
        };
    }
    let given = Path::new(path);
    let mut rest = Vec::new();
    let whole = std::path::absolute(path).map_err(|e| Failure::reading(given, &e))?;
    let mut there = whole.as_path();
    loop {
        match there.canonicalize() {
            Ok(mut real) => {
                if rest.is_empty() {
                    can_hold_data(&real)?;
                }
                real.extend(rest.iter().rev());
                return Ok(Place::File(real.to_string_lossy().into_owned()));
            }
            Err(error) => match (there.parent(), there.file_name()) {
                (Some(parent), Some(name)) if end == End::Goal => {
                    rest.push(name);
                    there = parent;
                }
                _ => return Err(Failure::reading(given, &error)),
            },
        }
    }
}

/// Refuses what is there and is no place for bytes: folders that are no model's, pipes, sockets, and
/// files that are made up when they are read.
fn can_hold_data(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return is_a_model(path);
    }
    match Source::open(path) {
        Err(error @ TransferError::NotAFile { .. }) => Err(error.into()),
        // What may not be read can still be planned for.
        Err(_) | Ok(_) => Ok(()),
    }
}

/// A model's folder stands for the files in it, as it does to whoever loads it.
fn is_a_model(folder: &Path) -> Result<(), Failure> {
    let entries = fs::read_dir(folder).map_err(|error| Failure::reading(folder, &error))?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    if names.any(|name| name.to_string_lossy().ends_with(SHARD_SUFFIX)) {
        return Ok(());
    }
    let is_folder = io::ErrorKind::IsADirectory.into();
    let hint = "no safetensors file lies in it; name a file, or the folder of a model";
    Err(Failure::reading(folder, &is_folder).hint(hint))
}

#[cfg(test)]
pub mod tests {
    use crowfly_route::fixture::Fixture;

    use super::*;

    pub fn plan(machine: &Fixture, from: &str, to: &str) -> Plan {
        let (topology, snapshot) = (machine.topology(), machine.snapshot());
        let place = |text: &str| text.parse::<Place>().expect(text);
        let (from, to) = (place(from), place(to));
        let found = search::candidates(&topology, Some(&snapshot), &from, &to);
        Plan::new(from.clone(), to.clone(), found.expect("both exist"))
    }

    #[test]
    fn given_a_file_of_this_machine_links_and_relative_paths_are_resolved() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().canonicalize().expect("it exists");
        std::fs::write(real.join("m"), "x").expect("written");
        std::os::unix::fs::symlink("m", real.join("link")).expect("linked");
        let resolved = |name: &str| {
            let path = real.join(name).to_string_lossy().into_owned();
            place(&path, false, End::Goal).map(|place| place.to_string())
        };
        let expected = |name: &str| format!("file:{}", real.join(name).display());
        assert_eq!(resolved("link").expect("a place"), expected("m"));
        assert_eq!(resolved("new/m").expect("a place"), expected("new/m"));
    }

    #[test]
    fn given_a_start_that_is_not_there_or_no_models_folder_it_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (absent, model) = (folder.path().join("absent"), folder.path().join("model"));
        std::fs::create_dir(&model).expect("made");
        let start = |path: &Path| {
            let read = place(&path.to_string_lossy(), false, End::Start);
            read.map_err(|failure| (failure.code(), failure.exit()))
        };
        assert_eq!(start(&absent), Err(("input-not-found", Exit::NoInput)));
        let is_folder = Err(("input-is-directory", Exit::NoInput));
        assert_eq!(start(folder.path()), is_folder);
        assert_eq!(start(&model), is_folder);
        std::fs::write(model.join("notes.txt"), "x").expect("written");
        assert_eq!(start(&model), is_folder);
        std::fs::write(model.join("m.safetensors"), "x").expect("written");
        assert!(start(&model).is_ok());
    }

    #[test]
    fn given_another_machine_paths_are_taken_as_they_are_and_have_to_be_absolute() {
        let read = |text| place(text, true, End::Start);
        assert_eq!(
            read("/no/such").expect("a place"),
            Place::File("/no/such".into())
        );
        assert_eq!(read("./m").expect_err("relative").code(), "usage");
        assert_eq!(
            read("Cargo.toml").expect_err("no place").code(),
            "not-a-place"
        );
    }
}
