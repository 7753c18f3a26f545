//! Where tensors go, by the names that Python's libraries have for devices.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crowfly_machine::trial::Trial;
use crowfly_mover::gpu::{DeviceMemory, Gpu, To};
use crowfly_mover::{Destination, MemoryError, Region};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::units::PciAddress;
use pyo3::prelude::*;

use crate::fault::Fault;
use crate::machine::{self, Machine};

/// What a child of this interpreter runs: it gets the folder that this package is in, and the question.
const CHILD: &str = "import sys; sys.path.insert(0, sys.argv[1]); \
    from crowfly._crowfly import answer_trial; answer_trial(sys.argv[2])";

/// The words that a device can be called by.
const WORDS: &str =
    "choose cpu, cpu:NODE, cuda:N (as PyTorch counts), gpu:N (by PCI address) or peer:ADDRESS";

/// What a caller wants tensors to be in.
pub enum Device {
    /// A place in crowfly's words: a GPU by its number in the order of PCI addresses, hidden ones included.
    Place(Place),
    /// A GPU by the number that its runtime gives it in this process, which is what other libraries go by.
    Cuda(i32),
}

impl std::str::FromStr for Device {
    type Err = Fault;

    fn from_str(device: &str) -> Result<Self, Fault> {
        let place = match device.split_once(':') {
            None if device == "cpu" => "host".to_owned(),
            None if device == "cuda" => return Ok(Self::Cuda(0)),
            Some(("cpu", node)) => format!("host:{node}"),
            Some(("cuda", number)) => {
                let found = number.parse().ok().filter(|number| *number >= 0);
                return found.map(Self::Cuda).ok_or_else(|| {
                    Fault::usage(format!("{device:?} names no GPU")).hint("write cuda:0")
                });
            }
            _ => device.to_owned(),
        };
        let place = place.parse::<Place>().map_err(|_| {
            let what = format!("{device:?} is not a device");
            Fault::usage(what).hint(WORDS)
        })?;
        Ok(Self::Place(place))
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Place(place) => place.fmt(f),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Device {
    /// The engine's destination there, for files like `file`.
    ///
    /// # Errors
    /// With all that stands in the way, where there is none.
    pub fn destination(&self, file: &Path, policy: Policy) -> Result<Destination, Fault> {
        match self {
            Self::Place(Place::Host(node)) => Ok(Destination::Host(*node)),
            Self::Place(Place::Peer(address)) => Ok(Destination::Peer(*address)),
            Self::Place(Place::Gpu(_)) | Self::Cuda(_) => {
                let gpu = self.gpu(file, policy != Policy::Staged)?;
                Ok(Destination::Gpu(gpu))
            }
            Self::Place(other) => {
                let what = format!("a load cannot end in {other}");
                Err(Fault::usage(what).hint(WORDS))
            }
        }
    }

    /// Where there tensors are put that do not come by one load, of files like `file`.
    ///
    /// # Errors
    /// With all that stands in the way; and of places that only a load can end in.
    pub fn of_tensors(&self, file: &Path, policy: Policy) -> Result<To, Fault> {
        match self.destination(file, policy)? {
            Destination::Host(node) => Ok(To::Host(node)),
            Destination::Gpu(gpu) => Ok(To::Gpu(gpu)),
            _ => {
                let what = format!("a restore cannot end in {self}");
                Err(Fault::usage(what).hint("choose cpu, cuda:N, gpu:N or host:NODE"))
            }
        }
    }

    /// The GPU, with its maker's storage library where that brings files of this file system straight into its
    /// memory. What was found out is kept: asking takes a process of its own.
    fn gpu(&self, file: &Path, straight: bool) -> Result<Arc<Gpu>, Fault> {
        type Known = HashMap<(PciAddress, Option<u64>), Arc<Gpu>>;
        static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
        let opened = self.opened().map_err(|mut all| {
            // What the routes say of the machine comes beside what the runtimes said.
            let place = Place::Gpu(match self {
                Self::Place(Place::Gpu(number)) => *number,
                Self::Cuda(number) => number.unsigned_abs(),
                Self::Place(_) => 0,
            });
            let found = machine::routes_from(file, &place).unwrap_or_default();
            for obstacle in found.into_iter().flat_map(|candidate| candidate.obstacles) {
                if !all.contains(&obstacle) {
                    all.push(obstacle);
                }
            }
            Fault::no_gpu(self, all)
        })?;
        let file_system = straight.then(|| file.metadata().map_or(0, |found| found.dev()));
        let key = (opened.device().facts().address, file_system);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(gpu) = known.get(&key) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Arc::new(match trial().filter(|_| straight) {
            Some(trial) => opened.find_storage(&trial, file),
            None => opened,
        });
        known.insert(key, Arc::clone(&gpu));
        Ok(gpu)
    }

    fn opened(&self) -> Result<Gpu, Vec<Obstacle>> {
        let addresses = Machine::towards(&Place::Gpu(0)).map(|machine| machine.gpus());
        let addresses = addresses.unwrap_or_default();
        match self {
            Self::Cuda(ordinal) => Gpu::by_ordinal(*ordinal, |address| {
                let mut known = (0..).zip(&addresses);
                known
                    .find(|(_, known)| **known == Some(address))
                    .map(|(number, _)| number)
            }),
            Self::Place(Place::Gpu(number)) => match addresses.get(*number as usize) {
                Some(Some(address)) => Gpu::open(*number, *address),
                _ => Gpu::nth(*number),
            },
            Self::Place(_) => Err(Vec::new()),
        }
    }
}

/// Memory without bytes at a destination: where a tensor without elements lies.
///
/// # Errors
/// When there is no memory even for that.
pub fn nothing(destination: &Destination) -> Result<Region, Fault> {
    match destination {
        Destination::Gpu(gpu) => {
            let made = DeviceMemory::allocate(gpu.device(), 0);
            let made = made.map_err(|source| MemoryError::Gpu {
                gpu: gpu.index(),
                bytes: 0,
                source,
            })?;
            Ok(Region::of_gpu(gpu.index(), made)?)
        }
        _ => Ok(Region::zeroed(0, None)?),
    }
}

/// How a child of this interpreter is started; `None` where Python does not say what program runs it.
fn trial() -> Option<Trial> {
    Python::attach(|py| {
        let sys = py.import("sys").ok()?;
        let program: String = sys.getattr("executable").ok()?.extract().ok()?;
        let package: String = py
            .import("crowfly")
            .ok()?
            .getattr("__file__")
            .ok()?
            .extract()
            .ok()?;
        let folder = Path::new(&package).parent()?.parent()?.to_str()?;
        (!program.is_empty()).then(|| Trial::by(program, &["-c", CHILD, folder]))
    })
}

/// Answers a question in a child of another interpreter, which reads the answer.
#[pyfunction]
pub fn answer_trial(py: Python<'_>, question: &str) -> PyResult<()> {
    let answered = py.detach(|| crowfly_machine::trial::answer(question, std::io::stdout()));
    Ok(answered.map_err(Fault::usage)?)
}
