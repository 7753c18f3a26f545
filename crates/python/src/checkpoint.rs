//! Checkpoints of training, over `crowfly_mover::ckpt`: what Python's half makes of a state's structure comes
//! here as named parts of tensors and one JSON document.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crowfly_mover::Engine;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{
    self, Extent, Pending, Reading, RestoreOptions, Retention, SaverSettings, State, TensorPart,
    Want,
};
use crowfly_route::hop::{Capacity, Provenance, Standing};
use crowfly_route::place::Place;
use crowfly_route::units::{Bytes, BytesPerSecond};
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde::Serialize;
use serde_json::Value;

use crate::borrow::Borrowed;
use crate::device::Device;
use crate::engine::parsed;
use crate::fault::Fault;
use crate::layout;
use crate::machine;
use crate::tensor;
use crate::transfer::attend;

/// A part of a tensor: its name, its memory, what its elements are where the memory does not say, the shape of
/// the whole and where in it the part begins (of a part), and whether every rank holds it.
type Entry<'py> = (
    String,
    Bound<'py, PyAny>,
    Option<(String, Vec<u64>)>,
    Option<(Vec<u64>, Vec<u64>)>,
    bool,
);

/// A tensor that is wanted; of one that is cut, the dimension, the rank and the number of ranks; of a part, where it
/// begins and its shape.
type Wanted = (
    String,
    Option<(usize, u64, u64)>,
    Option<(Vec<u64>, Vec<u64>)>,
);

/// Saves one rank's part of checkpoints into a folder.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Saver(Mutex<ckpt::Saver>);

#[pymethods]
impl Saver {
    #[new]
    #[pyo3(signature = (folder, rank, world, *, staging, patience, session, replace, keep, keep_every, policy, read_ceiling=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        rank: u32,
        world: u32,
        staging: u64,
        patience: f64,
        session: String,
        replace: bool,
        keep: Option<usize>,
        keep_every: Option<u64>,
        policy: &str,
        read_ceiling: Option<f64>,
    ) -> PyResult<Self> {
        let read_ceiling = match read_ceiling {
            Some(rate) => Some(told(rate)?),
            None => py.detach(|| looked_up(&folder)),
        };
        let settings = SaverSettings {
            read_ceiling,
            staging: Bytes(staging),
            patience: seconds(patience)?,
            session,
            replace,
            retention: keep.map(|keep| Retention { keep, keep_every }),
            policy: parsed(policy)?,
            ..SaverSettings::default()
        };
        let rank = RankSlice::new(rank, world).map_err(Fault::from)?;
        let saver = ckpt::Saver::new(folder, rank, settings).map_err(Fault::from)?;
        Ok(Self(Mutex::new(saver)))
    }

    /// Copies the tensors into staging and returns; the rest happens in the background.
    fn save(
        &self,
        py: Python<'_>,
        step: u64,
        entries: Vec<Entry<'_>>,
        objects: &str,
    ) -> PyResult<Saving> {
        let objects: BTreeMap<String, Value> =
            serde_json::from_str(objects).map_err(|error| Fault::usage(error.to_string()))?;
        let held = held(entries)?;
        let tensors = held.iter().map(Held::part).collect();
        let state = State { tensors, objects };
        let pending = py.detach(|| lock(&self.0).save_async(step, &state));
        let pending = pending.map_err(Fault::from)?;
        Ok(Saving {
            step,
            stall_seconds: pending.stall_seconds(),
            pending: Mutex::new(Some(pending)),
        })
    }

    /// Begins to make memory ready for copies of such tensors, in the background.
    fn prepare(&self, py: Python<'_>, entries: Vec<Entry<'_>>) -> PyResult<()> {
        let held = held(entries)?;
        let tensors = held.iter().map(Held::part).collect();
        let objects = BTreeMap::new();
        let state = State { tensors, objects };
        let prepared = py.detach(|| lock(&self.0).prepare(&state));
        Ok(prepared.map_err(Fault::from)?)
    }

    /// Bytes of memory for copies that is there, without what a save in the background holds.
    #[getter]
    fn ready(&self, py: Python<'_>) -> u64 {
        py.detach(|| lock(&self.0).ready().0)
    }

    /// Waits for a save in the background, and raises its error unless somebody has heard of it.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| lock(&self.0).settle()).map_err(Fault::from)?)
    }
}

/// A part of a tensor, as long as its memory is borrowed.
struct Held {
    name: String,
    borrowed: Borrowed,
    place: Option<(Vec<u64>, Vec<u64>)>,
    replicated: bool,
}

impl Held {
    fn part(&self) -> TensorPart<'_> {
        let borrowed = &self.borrowed;
        let mut part = TensorPart::whole(
            &self.name,
            borrowed.dtype,
            &borrowed.shape,
            borrowed.bytes(),
        );
        part.replicated = self.replicated;
        if let Some((global_shape, offset)) = &self.place {
            (part.global_shape, part.offset) = (global_shape, offset);
        }
        part
    }
}

fn held(entries: Vec<Entry<'_>>) -> PyResult<Vec<Held>> {
    let held = entries
        .into_iter()
        .map(|(name, array, meant, place, replicated)| {
            let mut borrowed = Borrowed::of(&name, &array)?;
            if let Some((dtype, shape)) = meant {
                borrowed.mean(&name, &dtype, shape)?;
            }
            Ok(Held {
                name,
                borrowed,
                place,
                replicated,
            })
        });
    held.collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(seconds: f64) -> Result<Duration, Fault> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| Fault::usage(format!("{seconds} is no number of seconds")))
}

/// A rate that the caller knows.
fn told(rate: f64) -> Result<Capacity, Fault> {
    if !(rate.is_finite() && rate > 0.0) {
        let what = format!("{rate} bytes per second is no rate at which a drive can be read");
        return Err(Fault::usage(what));
    }
    Ok(Capacity {
        rate: BytesPerSecond(rate),
        provenance: Provenance::Measured("by the caller".into()),
    })
}

/// What this machine's links let the drive of a folder be read at, where they say. The folder may not be there yet.
fn looked_up(folder: &Path) -> Option<Capacity> {
    let absolute = std::path::absolute(folder).ok()?;
    let there = absolute.ancestors().find(|above| above.exists())?;
    let routes = machine::routes_from(there, &Place::Host(None)).ok()?;
    let mut open = routes.iter().filter(|way| way.standing() == Standing::Open);
    Some(open.next()?.route.ceiling()?.capacity)
}

fn json(value: &impl Serialize) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| Fault::usage(error.to_string()))
}

/// A save that goes on in the background.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Saving {
    #[pyo3(get)]
    step: u64,
    /// How long the caller waited for the copy, in seconds.
    #[pyo3(get)]
    stall_seconds: f64,
    pending: Mutex<Option<Pending>>,
}

#[pymethods]
impl Saving {
    /// Whether waiting would return at once.
    #[getter]
    fn done(&self) -> bool {
        lock(&self.pending)
            .as_ref()
            .is_none_or(Pending::is_finished)
    }

    /// Waits until the checkpoint is published, and gives the receipt as JSON. An interrupt ends the waiting, not
    /// the save.
    fn wait(&self, py: Python<'_>) -> PyResult<String> {
        attend(py, || self.done(), || Ok(()))?;
        let pending = lock(&self.pending).take();
        let pending = pending.ok_or_else(|| Fault::usage("this save was waited for already"))?;
        let receipt = py.detach(|| pending.wait()).map_err(Fault::from)?;
        Ok(json(&receipt)?)
    }
}

/// A checkpoint whose description was read. While it lives, nothing prunes it away.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Archive(ckpt::Archive);

#[pymethods]
impl Archive {
    #[new]
    #[pyo3(signature = (path, step=None))]
    fn new(py: Python<'_>, path: PathBuf, step: Option<u64>) -> PyResult<Self> {
        let opened = py.detach(|| match step {
            Some(step) => ckpt::Archive::open_step(&path, step),
            None => ckpt::Archive::open(&path),
        });
        Ok(Self(opened.map_err(Fault::from)?))
    }

    /// The folder or file; of a folder of steps, the step's own.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// The step, of a checkpoint that crowfly saved.
    #[getter]
    fn step(&self) -> Option<u64> {
        match self.0.format() {
            ckpt::Format::Step { step, .. } => Some(*step),
            _ => None,
        }
    }

    /// How many ranks saved it, of a checkpoint that crowfly saved.
    #[getter]
    fn world(&self) -> Option<u32> {
        match self.0.format() {
            ckpt::Format::Step { world, .. } => Some(*world),
            _ => None,
        }
    }

    /// Where each of the parts begins that a tensor was saved in, and its shape.
    fn parts(&self, name: &str) -> Vec<(Vec<u64>, Vec<u64>)> {
        let parts = self.0.get(name).map(|tensor| &tensor.parts);
        let extents = parts.into_iter().flatten().map(|part| &part.extent);
        extents
            .map(|extent| (extent.offset.clone(), extent.shape.clone()))
            .collect()
    }

    /// One word for the format.
    #[getter]
    fn format(&self) -> &'static str {
        self.0.format().word()
    }

    /// What was odd, though no reason to refuse.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes().to_vec()
    }

    /// The names of all tensors, sorted.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.tensors().map(|(name, _)| name))
    }

    /// The element type and shape of a tensor.
    fn info(&self, name: &str) -> Option<(&'static str, Vec<u64>)> {
        let tensor = self.0.get(name)?;
        Some((tensor.dtype.name(), tensor.shape.clone()))
    }

    /// The values beside the tensors, as the rank saved them, as JSON.
    fn objects_json(&self, rank: u32) -> PyResult<String> {
        Ok(json(self.0.objects_of(rank))?)
    }

    /// Where in the nested state of a distributed checkpoint of PyTorch each name stood, as JSON.
    fn paths_json(&self) -> PyResult<String> {
        Ok(json(self.0.paths())?)
    }

    /// Starts reading tensors, or of each the part that a rank has of it when it is cut along a dimension, into
    /// the memory of a device.
    fn restore(
        &self,
        py: Python<'_>,
        wants: Vec<Wanted>,
        check: bool,
        policy: &str,
        device: &str,
    ) -> PyResult<Restoring> {
        let policy = parsed(policy)?;
        let device: Device = device.parse()?;
        let to = py.detach(|| {
            let file = self.0.files().first().map_or(self.0.path(), |f| &f.path);
            device.of_tensors(file, policy)
        })?;
        let reading = py.detach(|| {
            let wants: Vec<Want> = wants
                .into_iter()
                .map(|(name, cut, part)| match (cut, part) {
                    (_, Some((offset, shape))) => Ok(Want::part(name, Extent { offset, shape })),
                    (Some((dim, rank, ranks)), None) => self.0.chunk(&name, dim, rank, ranks),
                    (None, None) => Ok(Want::whole(name)),
                })
                .collect::<Result<_, _>>()?;
            let options = RestoreOptions { check, policy, to };
            self.0.restore(&Engine::default(), &wants, options)
        });
        Ok(Restoring::of(reading.map_err(Fault::from)?))
    }

    /// Starts reading everything, to hold it against the checksums that were saved.
    fn verify(&self, py: Python<'_>) -> PyResult<Restoring> {
        let engine = Engine::default();
        let reading = py.detach(|| {
            self.0
                .verify(&engine, crowfly_route::policy::Policy::Prefer)
        });
        Ok(Restoring::of(reading.map_err(Fault::from)?))
    }
}

/// A restore that is under way. Interrupting the wait gives it up.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Restoring {
    reading: Mutex<Option<Reading>>,
    #[pyo3(get)]
    total: u64,
}

/// A restored part: name, tensor, shape of the whole, where in it the part begins.
type Part<'py> = (String, Bound<'py, PyAny>, Vec<u64>, Vec<u64>);

impl Restoring {
    fn of(reading: Reading) -> Self {
        Self {
            total: reading.total().0,
            reading: Mutex::new(Some(reading)),
        }
    }

    fn finished(&self, py: Python<'_>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Reading> {
        let done = || {
            lock(&self.reading)
                .as_ref()
                .is_none_or(Reading::is_finished)
        };
        let moved = || {
            lock(&self.reading)
                .as_ref()
                .map_or(self.total, |r| r.moved().0)
        };
        let attended = attend(py, done, || match progress {
            Some(progress) => progress.call1((moved(), self.total)).map(drop),
            None => Ok(()),
        });
        let reading = lock(&self.reading).take();
        let reading = reading.ok_or_else(|| Fault::usage("this was waited for already"))?;
        match attended {
            Ok(()) => Ok(reading),
            Err(error) => {
                // Its memory may be given back only when no device writes into it any more.
                py.detach(|| drop(reading));
                Err(error)
            }
        }
    }
}

#[pymethods]
impl Restoring {
    /// Waits for the tensors: they, the receipt as JSON (none where nothing was read), the bytes that match their
    /// checksums, and those that have none or were not to be checked.
    #[pyo3(signature = (progress=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Vec<Part<'py>>, Option<String>, u64, u64)> {
        let reading = self.finished(py, progress)?;
        let found = py.detach(|| reading.wait()).map_err(Fault::from)?;
        let receipt = found.receipt.as_ref().map(json).transpose()?;
        let mut parts = Vec::with_capacity(found.tensors.len());
        for restored in found.tensors {
            let Extent { offset, shape } = restored.extent;
            let view = layout::whole(py, restored.bytes, restored.dtype, &shape)?;
            let tensor = tensor::wrap(py, view)?;
            parts.push((restored.name, tensor, restored.global_shape, offset));
        }
        Ok((parts, receipt, found.checked.0, found.unchecked.0))
    }

    /// Waits for the verdict: what is damaged, the bytes that match, and those without a checksum.
    #[pyo3(signature = (progress=None))]
    fn verdict(
        &self,
        py: Python<'_>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Vec<String>, u64, u64)> {
        let reading = self.finished(py, progress)?;
        let found = py.detach(|| reading.verdict()).map_err(Fault::from)?;
        let faults = found.faults.iter().map(ToString::to_string).collect();
        Ok((faults, found.checked.0, found.unchecked.0))
    }
}

/// The latest complete step of a folder; `None` where there is none.
#[pyfunction]
pub fn latest_step(py: Python<'_>, folder: PathBuf) -> PyResult<Option<u64>> {
    Ok(py.detach(|| ckpt::latest(&folder)).map_err(Fault::from)?)
}

/// A step as Python lists it.
#[derive(Serialize)]
struct Listed {
    step: u64,
    path: PathBuf,
    world: Option<u32>,
    created: Option<u64>,
    bytes: Option<u64>,
    damage: Option<String>,
}

/// The steps of a folder, ascending, the damaged ones included, as JSON.
#[pyfunction]
pub fn steps_json(py: Python<'_>, folder: PathBuf) -> PyResult<String> {
    let contents = py.detach(|| ckpt::list(&folder)).map_err(Fault::from)?;
    let listed: Vec<Listed> = contents
        .steps
        .into_iter()
        .map(|found| {
            let good = found.manifest.as_ref().ok();
            Listed {
                step: found.step,
                path: found.path.clone(),
                world: good.map(|manifest| manifest.world),
                created: good.map(|manifest| manifest.created),
                bytes: good.map(|manifest| manifest.files.iter().map(|file| file.bytes).sum()),
                damage: found.manifest.err().map(|error| error.to_string()),
            }
        })
        .collect();
    Ok(json(&listed)?)
}

/// Removes the steps that are not kept: those removed, kept, in use and damaged.
#[pyfunction]
#[pyo3(signature = (folder, keep, keep_every, dry_run, patience))]
#[expect(clippy::type_complexity, reason = "four lists")]
pub fn prune_steps(
    py: Python<'_>,
    folder: PathBuf,
    keep: usize,
    keep_every: Option<u64>,
    dry_run: bool,
    patience: f64,
) -> PyResult<(Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>)> {
    let (retention, patience) = (Retention { keep, keep_every }, seconds(patience)?);
    let pruned = py.detach(|| ckpt::prune(&folder, retention, dry_run, patience));
    let pruned = pruned.map_err(Fault::from)?;
    Ok((pruned.removed, pruned.kept, pruned.in_use, pruned.damaged))
}
