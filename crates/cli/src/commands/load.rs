//! `crowfly load PATH`.

use std::path::PathBuf;

use clap::Args;
use crowfly_mover::checkpoint::select::{RankSlice, Selection, Selector};
use crowfly_mover::checkpoint::{Checkpoint, Note};
use crowfly_mover::{Destination, Engine, Loaded, Piece, Request, Settings, Verify};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Receipt};
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::{gpu, transfer};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::{as_text, shown};
use crate::render;

pub mod listing;

/// The version of the JSON form of what `load` did.
pub const LOAD_SCHEMA: &str = "crowfly.load/1";

/// Arguments of `crowfly load`.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// A safetensors file, a model folder, its index, or any file of this machine
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// List the tensors instead of loading them
    #[arg(long, conflicts_with_all = ["to", "policy", "way", "transit", "verify", "budget"])]
    list: bool,
    /// Only tensors whose name matches; `*` stands for any characters; may be given several times
    #[arg(long, value_name = "GLOB")]
    tensors: Vec<String>,
    /// Only one rank's share, such as 0/4 to 3/4: whole tensors, balanced by bytes
    #[arg(long, value_name = "I/N")]
    shard: Option<RankSlice>,
    /// Where the bytes go: host, host:NODE, gpu:N or peer:ADDRESS
    #[arg(long, value_name = "PLACE", default_value = "host")]
    to: Place,
    /// How far they may stray: require (direct or fail), prefer, staged or socket
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: Policy,
    /// Force one engine path, to compare: peer, direct, threads, mapped or cached; into a GPU cufile,
    /// hipfile, staged or cached
    #[arg(long = "path", id = "way", value_name = "PATH")]
    way: Option<Path>,
    /// Let the bytes pass through a bounded ring of buffers instead of keeping them
    #[arg(long, conflicts_with = "to")]
    transit: bool,
    /// Compare the checksum of what arrived with a second, independent reading of the source
    #[arg(long)]
    verify: bool,
    /// The most memory that --transit may use
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256MB",
        requires = "transit"
    )]
    budget: Bytes,
}

/// What was loaded, and what loading it took.
#[derive(Debug, Serialize)]
pub struct Load {
    schema: &'static str,
    /// What was asked for.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// How many files were read.
    pub files: usize,
    /// How many tensors were loaded; 0 of a file of raw bytes.
    pub tensors: usize,
    /// Whether the bytes were kept.
    pub kept: bool,
    /// What was odd, though no reason to refuse.
    pub notes: Vec<String>,
    /// What the transfer did.
    pub receipt: Receipt,
}

/// Loads, or lists.
pub fn run(args: &LoadArgs, out: &mut Output) -> Result<Exit, Failure> {
    let path = transfer::local(&args.path)?;
    let checkpoint = Checkpoint::open(&path)?;
    let selection = select(args, &checkpoint)?;
    if args.list {
        let listing = listing::Listing::new(&checkpoint, &selection);
        out.show(&listing, |columns| {
            render::listing::render(&listing, columns)
        })?;
        return Ok(Exit::Ok);
    }
    let pieces = selection.pieces(&checkpoint)?;
    let loaded = load(args, &path, pieces, out)?;
    let load = Load {
        schema: LOAD_SCHEMA,
        path: args.path.clone(),
        files: selection.files.len(),
        tensors: selection.tensor_count(),
        kept: !args.transit,
        notes: checkpoint.notes().iter().map(Note::to_string).collect(),
        receipt: loaded.receipt,
    };
    let detailed = out.verbose();
    out.show(&load, |columns| {
        render::load::render(&load, columns, detailed)
    })?;
    Ok(Exit::Ok)
}

fn load(
    args: &LoadArgs,
    path: &std::path::Path,
    pieces: Vec<Piece>,
    out: &Output,
) -> Result<Loaded, Failure> {
    let destination = destination(args, &pieces)?;
    let (files, to) = (pieces.clone(), destination.place());
    let look = move || transfer::Machine::towards(&to)?.routes(&files, &to);
    let mut request = Request {
        destination,
        policy: args.policy,
        path: args.way,
        verify: if args.verify {
            Verify::Compare
        } else {
            Verify::No
        },
        ..Request::to_host(transfer::place(path), pieces)
    };
    let engine = Engine::new(Settings {
        budget: args.budget,
        ..Settings::default()
    });
    let what = format!("loading {}", shown(path));
    if args.policy == Policy::Require {
        // A refusal names what stands in the way, so that has to be known before the first byte.
        request.candidates = look()?;
        let transfer = engine.load(request)?;
        return transfer::follow(transfer, &what, &out.progress());
    }
    let mut transfer = engine.load(request)?;
    transfer.consider(look()?);
    transfer::follow(transfer, &what, &out.progress())
}

fn select(args: &LoadArgs, checkpoint: &Checkpoint) -> Result<Selection, Failure> {
    let mut selector = Selector::default();
    if !args.tensors.is_empty() {
        selector = selector.tensors(&args.tensors)?;
    }
    if let Some(slice) = args.shard {
        selector = selector.slice(slice);
    }
    Ok(selector.select(checkpoint)?)
}

fn destination(args: &LoadArgs, pieces: &[Piece]) -> Result<Destination, Failure> {
    match &args.to {
        _ if args.transit => Ok(Destination::Transit(None)),
        Place::Host(node) => Ok(Destination::Host(*node)),
        Place::Peer(address) => Ok(Destination::Peer(*address)),
        Place::Gpu(index) => {
            let machine = transfer::Machine::towards(&args.to)?;
            let file = pieces.first().map(|piece| piece.source.path());
            // Only a way past host memory makes it worth the while to look for one.
            let file = file.filter(|_| args.policy != Policy::Staged);
            let opened = gpu::open(*index, &machine.topology, file);
            opened
                .map(Destination::Gpu)
                .map_err(|obstacles| gpu::refused(*index, "loaded into", obstacles))
        }
        other => Err(Failure::new(
            "not-a-destination",
            Exit::Usage,
            format!("a load cannot end in {other}"),
        )
        .hint("choose host, host:NODE, gpu:N or peer:ADDRESS")),
    }
}
