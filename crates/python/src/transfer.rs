//! A running transfer, and waiting for it in a way that Python can interrupt.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crowfly_mover::checkpoint::Note;
use crowfly_mover::{Loaded, Saving, Transfer as Loading, TransferError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::fault::Fault;
use crate::layout::Landed;
use crate::region::Region;

/// A running transfer is looked at each time this part of its time so far has passed again, so that
/// noticing its end late costs no more than that.
const LOOKS: u32 = 50;
/// A look costs a system call or two.
const SHORTEST: Duration = Duration::from_micros(20);
/// A key press should not wait longer than this.
const LONGEST: Duration = Duration::from_millis(2);
/// Signals and progress are looked after this often.
const TURN: Duration = Duration::from_millis(50);

/// The tensors by name, the regions they lie in, the receipt as JSON, and notes.
type Arrived<'py> = (Bound<'py, PyDict>, Bound<'py, PyList>, String, Vec<String>);

/// What goes on without Python.
enum Running {
    Load(Box<Loading>),
    Save(Saving),
}

impl Running {
    fn moved(&self) -> u64 {
        match self {
            Self::Load(running) => running.moved().0,
            Self::Save(running) => running.moved().0,
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Load(running) => running.is_finished(),
            Self::Save(running) => running.is_finished(),
        }
    }

    fn cancel(&self) {
        match self {
            Self::Load(running) => running.cancel(),
            Self::Save(running) => running.cancel(),
        }
    }

    fn wait(self) -> Result<Loaded, TransferError> {
        match self {
            Self::Load(running) => running.wait(),
            Self::Save(running) => Ok(Loaded {
                regions: Vec::new(),
                receipt: running.wait()?,
            }),
        }
    }
}

/// Bytes on their way. Waiting returns what arrived; dropping it, or interrupting the wait, cancels.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Transfer {
    running: Mutex<Option<Running>>,
    /// Which tensors the bytes are, of a load.
    tensors: Option<Landed>,
    total: u64,
}

impl Transfer {
    /// Of a load: the regions are those of the selection.
    pub fn of_load(running: Loading, tensors: Landed) -> Self {
        Self {
            tensors: Some(tensors),
            ..Self::of_bytes(running)
        }
    }

    /// Of a load of bytes that are no tensors by themselves.
    pub fn of_bytes(running: Loading) -> Self {
        Self {
            total: running.total().0,
            running: Mutex::new(Some(Running::Load(Box::new(running)))),
            tensors: None,
        }
    }

    /// Of a save.
    pub fn of_save(running: Saving) -> Self {
        Self {
            total: running.total().0,
            running: Mutex::new(Some(Running::Save(running))),
            tensors: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the end. Python's lock is let go; signals are answered and progress is told meanwhile.
    pub fn follow(&self, py: Python<'_>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Loaded> {
        let followed = self.until_finished(py, progress);
        let running = py.detach(|| self.lock().take());
        let Some(running) = running else {
            followed?;
            return Err(Fault::usage("this transfer was waited for already").into());
        };
        if let Err(error) = followed {
            // Its memory may be given back only when no device writes into it any more.
            py.detach(|| drop(running));
            return Err(error);
        }
        Ok(py.detach(|| running.wait()).map_err(Fault::from)?)
    }

    fn until_finished(&self, py: Python<'_>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let finished = || self.lock().as_ref().is_none_or(Running::is_finished);
        attend(py, finished, || match progress {
            Some(progress) => progress.call1((self.moved(), self.total)).map(drop),
            None => Ok(()),
        })
    }
}

/// Waits until something is finished. Python's lock is let go; meanwhile, now and then, signals are answered and
/// `tell` is called.
///
/// # Errors
/// That of a signal, such as `KeyboardInterrupt`, and that of `tell`.
pub fn attend(
    py: Python<'_>,
    finished: impl Fn() -> bool + Send + Sync,
    tell: impl Fn() -> PyResult<()>,
) -> PyResult<()> {
    let started = Instant::now();
    loop {
        let ended = py.detach(|| {
            let turn = Instant::now();
            while turn.elapsed() < TURN {
                if finished() {
                    return true;
                }
                sleep((started.elapsed() / LOOKS).clamp(SHORTEST, LONGEST));
            }
            finished()
        });
        py.check_signals()?;
        tell()?;
        if ended {
            return Ok(());
        }
    }
}

#[pymethods]
impl Transfer {
    /// Bytes asked for.
    #[getter]
    const fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that have arrived so far.
    #[getter]
    fn moved(&self) -> u64 {
        self.lock().as_ref().map_or(self.total, Running::moved)
    }

    /// Whether waiting would return at once.
    #[getter]
    fn done(&self) -> bool {
        self.lock().as_ref().is_none_or(Running::is_finished)
    }

    /// Asks it to stop; `wait` then raises `CancelledError`.
    fn cancel(&self) {
        if let Some(running) = &*self.lock() {
            running.cancel();
        }
    }

    /// Waits for the end: the tensors by name, the regions they lie in, the receipt as JSON, and notes.
    /// `progress(moved, total)` is called with bytes, some twenty times a second.
    #[pyo3(signature = (progress=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        progress: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Arrived<'py>> {
        let loaded = self.follow(py, progress)?;
        let receipt = serde_json::to_string(&loaded.receipt)
            .map_err(|error| Fault::usage(error.to_string()))?;
        let tensors = PyDict::new(py);
        let regions = PyList::empty(py);
        let mut notes = Vec::new();
        if let Some(landed) = &self.tensors {
            landed.fill(py, &loaded.regions, &tensors)?;
            for region in loaded.regions {
                regions.append(Region(region))?;
            }
            notes = landed
                .checkpoint
                .notes()
                .iter()
                .map(Note::to_string)
                .collect();
        }
        Ok((tensors, regions, receipt, notes))
    }
}
