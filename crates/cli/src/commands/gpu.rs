//! GPUs as commands use them, and the child process in which what can hang is tried first.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crowfly_machine::trial::{self, Trial};
use crowfly_mover::gpu::Gpu;
use crowfly_mover::{Destination, Engine, Loaded, Piece, Request, Source, Verify};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::topology::{GpuVendor, Topology};

use super::transfer;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::shown;

/// The first argument of a child of this program, before the question it is to answer.
pub const CHILD: &str = "--answer-trial";

/// Answers a question in a child process, for the parent to read.
pub fn child(question: &OsStr) -> ExitCode {
    match trial::answer(&question.to_string_lossy(), std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// How a child of this program is started; `None` where the system does not say what program this is.
pub fn trial() -> Option<Trial> {
    let program = std::env::current_exe().ok()?;
    Some(Trial::by(program, &[CHILD]))
}

/// Opens a GPU of this machine, with its maker's storage library where that brings `file` straight
/// into its memory.
pub fn open(
    index: u32,
    topology: &Topology,
    file: Option<&Path>,
) -> Result<Arc<Gpu>, Vec<Obstacle>> {
    let gpu = known(index, topology)?;
    Ok(Arc::new(match (trial(), file) {
        (Some(trial), Some(file)) => gpu.find_storage(&trial, file),
        _ => gpu,
    }))
}

/// Opens a GPU of this machine, for something that is `done` with it.
pub fn at(index: u32, done: &str) -> Result<Arc<Gpu>, Failure> {
    let machine = transfer::Machine::towards(&Place::Gpu(index))?;
    open(index, &machine.topology, None).map_err(|obstacles| refused(index, done, obstacles))
}

/// Why something cannot be done with a GPU of this machine.
pub fn refused(index: u32, done: &str, obstacles: Vec<Obstacle>) -> Failure {
    let what = format!("{} cannot be {done} on this machine", Place::Gpu(index));
    Failure::new("no-gpu", Exit::Unavailable, what).with_obstacles(obstacles)
}

/// How a file is brought into a GPU's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// How far the bytes may stray.
    pub policy: Policy,
    /// Whether they are compared with a second reading of the file.
    pub verify: bool,
}

/// Loads a file of this machine into a GPU's memory, with its progress on the screen.
pub fn load(file: &Path, index: u32, way: &Way, out: &Output) -> Result<Loaded, Failure> {
    let machine = transfer::Machine::towards(&Place::Gpu(index))?;
    let source = Arc::new(Source::open(file)?);
    // Only a way past host memory makes it worth the while to look for one.
    let straight = Some(file).filter(|_| way.policy != Policy::Staged);
    let gpu = open(index, &machine.topology, straight)
        .map_err(|obstacles| refused(index, "loaded into", obstacles))?;
    let pieces = vec![Piece::whole(source)];
    let candidates = machine.routes(&pieces, &Place::Gpu(index))?;
    let request = Request {
        destination: Destination::Gpu(gpu),
        policy: way.policy,
        verify: match way.verify {
            true => Verify::Compare,
            false => Verify::No,
        },
        candidates,
        ..Request::to_host(transfer::place(file), pieces)
    };
    let what = format!("loading {}", shown(file));
    transfer::follow(Engine::default().load(request)?, &what, &out.progress())
}

fn known(index: u32, topology: &Topology) -> Result<Gpu, Vec<Obstacle>> {
    let place = format!("gpu:{index}");
    let Some(gpu) = topology.gpus.get(index as usize) else {
        let count = topology.gpus.len();
        let none = Obstacle::blocks(Code::NoGpu, format!("this machine has no {place}"))
            .seen("/sys/bus/pci/devices", format!("{count} GPUs"))
            .fixed_by(
                Fix::by_hand("Name one that it has, or pass one through to it.")
                    .checked_by("crowfly map"),
            );
        return Err(vec![none]);
    };
    match (gpu.vendor, gpu.address) {
        (GpuVendor::Nvidia | GpuVendor::Amd, Some(address)) => Gpu::open(index, address),
        _ => Err(vec![
            Obstacle::blocks(
                Code::NoGpuRuntime,
                format!("no runtime that crowfly knows drives {place}"),
            )
            .seen(&place, gpu.name.as_str()),
        ]),
    }
}
