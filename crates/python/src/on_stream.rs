//! Loads in the order of another library's stream, so that its kernels follow without anybody waiting.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crowfly_mover::gpu::Stream;
use crowfly_mover::gpu::queued::{self, QueuedLoad};
use crowfly_mover::{Destination, Region as Memory};
use crowfly_route::policy::Policy;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::device::Device;
use crate::engine::{Asked, open, place, select};
use crate::fault::{Class, Fault};
use crate::layout::Landed;
use crate::region::Region;
use crate::transfer::attend;

/// Bytes on their way into a GPU's memory, in the order of a stream. Dropping it waits for them.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct StreamLoad {
    queued: Mutex<Option<QueuedLoad>>,
    regions: Vec<Memory>,
    tensors: Landed,
}

impl Drop for StreamLoad {
    fn drop(&mut self) {
        if let Some(queued) = self.lock().take() {
            Python::attach(|py| py.detach(|| drop(queued)));
        }
    }
}

impl StreamLoad {
    fn lock(&self) -> MutexGuard<'_, Option<QueuedLoad>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_done(&self) -> bool {
        self.lock().as_ref().is_none_or(QueuedLoad::is_done)
    }
}

#[pymethods]
impl StreamLoad {
    /// Whether waiting would return at once.
    #[getter]
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.is_done())
    }

    /// The tensors by name. Until `wait` has returned they are for what is queued on the same stream alone.
    fn ahead<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensors = PyDict::new(py);
        self.tensors.fill_in_place(py, &self.regions, &tensors)?;
        Ok(tensors)
    }

    /// The regions that the tensors lie in.
    fn regions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.regions.iter().cloned().map(Region))
    }

    /// Waits until the bytes are there: the receipt as JSON.
    fn wait(&self, py: Python<'_>) -> PyResult<String> {
        attend(py, || self.is_done(), || Ok(()))?;
        let queued = py.detach(|| self.lock().take());
        let queued = queued.ok_or_else(|| Fault::usage("this load was waited for already"))?;
        let receipt = py.detach(|| queued.wait()).map_err(Fault::from)?;
        let json = serde_json::to_string(&receipt);
        Ok(json.map_err(|error| Fault::usage(error.to_string()))?)
    }
}

/// Queues the loading of a file, an index or a folder on a stream; see `crowfly.load_on_stream`. `handle` is the
/// stream's in its runtime (`CUstream`, `hipStream_t`), and `keeper` keeps it alive.
#[pyfunction]
#[pyo3(signature = (filename, handle, keeper, *, tensors=None, shard=None, device="cuda:0"))]
pub fn load_on_stream(
    py: Python<'_>,
    filename: PathBuf,
    handle: usize,
    keeper: Py<PyAny>,
    tensors: Option<Vec<String>>,
    shard: Option<(u32, u32)>,
    device: &str,
) -> PyResult<StreamLoad> {
    let target: Device = device.parse()?;
    let asked = Asked {
        tensors: tensors.unwrap_or_default(),
        shard,
        device: "",
        policy: "require",
        path: None,
        verify: false,
    };
    let load = py.detach(|| -> Result<StreamLoad, Fault> {
        let checkpoint = open(&filename)?;
        let selection = select(&asked, &checkpoint)?;
        let pieces = selection.pieces(&checkpoint)?;
        let destination = target.destination(&filename, Policy::Require)?;
        let Destination::Gpu(gpu) = &destination else {
            let what = format!("{device} has no streams");
            return Err(Fault::usage(what).hint("load into cuda:N or gpu:N"));
        };
        let raw = handle as *mut std::ffi::c_void;
        // SAFETY: the caller says that it is a stream of this GPU, as every library that takes one by its
        // handle has to be told; `keeper` keeps it.
        let stream = unsafe { Stream::lent(gpu.device(), raw, Arc::new(keeper)) };
        let queued = queued::load(gpu, &stream, place(&filename), pieces)?;
        Ok(StreamLoad {
            regions: queued.regions().to_vec(),
            queued: Mutex::new(Some(queued)),
            tensors: Landed {
                checkpoint: Arc::new(checkpoint),
                selection,
                destination,
            },
        })
    })?;
    // Where a tensor does not begin as its type wants it there is nothing to be had before the bytes are.
    match load.tensors.is_in_place(py, &load.regions)? {
        true => Ok(load),
        false => Err(Fault::new(
            Class::Layout,
            "not-aligned",
            format!(
                "{} has tensors that do not begin where their types want it, and a copy would not be in the \
                 stream's order",
                filename.display()
            ),
        )
        .hint("write it again with crowfly.save_file, or load it without a stream")
        .into()),
    }
}
