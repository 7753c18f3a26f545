//! This machine, as far as transfers and questions about it need to know it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crowfly_doctor::{Case, diagnose};
use crowfly_machine::{Options, Root, capture};
use crowfly_mover::Piece;
use crowfly_route::hop::Candidate;
use crowfly_route::place::Place;
use crowfly_route::search::candidates;
use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::Topology;
use crowfly_route::units::PciAddress;
use pyo3::prelude::*;
use serde::Serialize;

use crate::fault::Fault;

/// How long a look at the machine is good for: devices do not come and go while tensors are loaded one after
/// another, but file systems are mounted now and then.
const FRESH: Duration = Duration::from_secs(60);
/// What this machine is called in evidence.
const HERE: &str = "this machine";

/// A machine and its graph.
pub struct Machine {
    snapshot: Snapshot,
    topology: Topology,
}

impl Machine {
    fn look(options: &Options) -> Result<Self, Fault> {
        let root = Root::live()?;
        let snapshot = capture(&root, options);
        root.not_starved()?;
        let topology = Topology::from_snapshot(&snapshot);
        Ok(Self { snapshot, topology })
    }

    /// Without vendors' libraries, which have no business in a process that moves data, and without devices'
    /// configuration space where nothing but host memory is concerned.
    pub fn towards(to: &Place) -> Result<Arc<Self>, Fault> {
        static SEEN: Mutex<Option<(Instant, bool, Arc<Machine>)>> = Mutex::new(None);
        let deep = !matches!(to, Place::Host(_));
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, looked_deep, machine)) = &*seen
            && when.elapsed() < FRESH
            && *looked_deep >= deep
        {
            return Ok(Arc::clone(machine));
        }
        let mut options = Options::default();
        (options.libraries, options.config_space) = (false, deep);
        let machine = Arc::new(Self::look(&options)?);
        *seen = Some((Instant::now(), deep, Arc::clone(&machine)));
        Ok(machine)
    }
}

impl Machine {
    /// The addresses of its GPUs, as crowfly counts them.
    pub fn gpus(&self) -> Vec<Option<PciAddress>> {
        self.topology.gpus.iter().map(|gpu| gpu.address).collect()
    }

    /// Whether it has a device; a container may show a GPU's runtime and hide the GPU.
    fn shows(&self, place: &Place) -> bool {
        match place {
            Place::Gpu(number) => (*number as usize) < self.topology.gpus.len(),
            _ => true,
        }
    }
}

/// The routes from the files of some pieces to a place, the best first.
pub fn routes(pieces: &[Piece], to: &Place) -> Result<Vec<Candidate>, Fault> {
    match pieces.first() {
        Some(piece) if Machine::towards(to)?.shows(to) => routes_from(piece.source.path(), to),
        _ => Ok(Vec::new()),
    }
}

/// The routes from a file to a place, the best first.
pub fn routes_from(path: &Path, to: &Place) -> Result<Vec<Candidate>, Fault> {
    // Links are followed: model caches are folders of links to files that lie elsewhere.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let from = Place::File(path.display().to_string());
    let machine = Machine::towards(to)?;
    Ok(candidates(
        &machine.topology,
        Some(&machine.snapshot),
        &from,
        to,
    )?)
}

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| Fault::usage(error.to_string()).into())
}

fn whole() -> Result<Machine, Fault> {
    Machine::look(&Options::default())
}

/// This machine's topology, as JSON.
#[pyfunction]
pub fn topology_json(py: Python<'_>) -> PyResult<String> {
    let machine = py.detach(whole)?;
    json(&machine.topology)
}

/// The diagnosis of this machine, as JSON (`crowfly.diagnosis/1`).
#[pyfunction]
pub fn doctor_json(py: Python<'_>) -> PyResult<String> {
    let diagnosis = py.detach(|| {
        let mut case = Case::new();
        case.add_snapshot(HERE, whole()?.snapshot);
        Ok::<_, Fault>(diagnose(&case))
    })?;
    json(&diagnosis)
}

/// A way between two places, with what follows from its hops.
#[derive(Serialize)]
struct Way {
    standing: crowfly_route::hop::Standing,
    class: Option<crowfly_route::hop::Class>,
    counters: Option<crowfly_route::hop::Counters>,
    ceiling_bytes_per_second: Option<f64>,
    #[serde(flatten)]
    candidate: Candidate,
}

/// Every way between two places of this machine, the best first, as JSON.
#[pyfunction]
pub fn route_json(py: Python<'_>, start: &str, end: &str) -> PyResult<String> {
    let place = |text: &str| match Path::new(text).canonicalize() {
        Ok(path) => Ok(Place::File(path.display().to_string())),
        Err(_) => text.parse::<Place>().map_err(Fault::from),
    };
    let (from, to) = (place(start)?, place(end)?);
    let found = py.detach(|| {
        let machine = whole()?;
        let found = candidates(&machine.topology, Some(&machine.snapshot), &from, &to)?;
        Ok::<_, Fault>(found)
    })?;
    let ways: Vec<Way> = found
        .into_iter()
        .map(|candidate| {
            let route = &candidate.route;
            let known = !route.hops.is_empty();
            Way {
                standing: candidate.standing(),
                class: known.then(|| route.class()),
                counters: known.then(|| route.counters()),
                ceiling_bytes_per_second: route.ceiling().map(|ceiling| ceiling.capacity.rate.0),
                candidate,
            }
        })
        .collect();
    json(&ways)
}
