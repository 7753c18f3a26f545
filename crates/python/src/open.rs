//! One tensor or slice at a time, when it is asked for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crowfly_mover::checkpoint::header::Tensor;
use crowfly_mover::checkpoint::{Checkpoint, FileNumber};
use crowfly_mover::gpu::To;
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source};
use crowfly_route::policy::Policy;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::device::{self, Device};
use crate::engine::{open, parsed, place};
use crate::fault::{Class, Fault};
use crate::transfer::Transfer;
use crate::view::{Owner, View};
use crate::{index, layout, machine, tensor};

/// Starting threads and asking the drive costs more than letting so few bytes come when they are touched.
const WORTH_A_TRANSFER: u64 = 1 << 20;

/// An open checkpoint. Nothing but headers was read.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Opened {
    checkpoint: Checkpoint,
    files: Vec<OpenFile>,
    destination: Destination,
    policy: Policy,
    engine: Engine,
    receipts: Mutex<Vec<String>>,
}

/// A file, from the first time that one of its tensors is asked for.
#[derive(Default)]
struct OpenFile {
    source: OnceLock<Arc<Source>>,
    /// All of its data, mapped.
    pages: OnceLock<Region>,
}

#[pymethods]
impl Opened {
    #[new]
    fn new(py: Python<'_>, filename: PathBuf, device: &str, policy: &str) -> PyResult<Self> {
        Ok(py.detach(|| Self::open(&filename, device, policy))?)
    }

    /// The names of all tensors, sorted.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        PyList::new(py, names)
    }

    /// The names of all tensors, in the order of files and of the bytes in them.
    fn offset_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.names().collect::<Vec<_>>())
    }

    /// The pairs of `__metadata__` of all files, or `None` where there are none.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let found = PyDict::new(py);
        for header in self
            .checkpoint
            .files()
            .iter()
            .filter_map(|file| file.header())
        {
            for (key, value) in header.metadata() {
                found.set_item(key, value)?;
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }

    /// The element type, shape and size in bytes of a tensor.
    fn info(&self, name: &str) -> PyResult<(&'static str, Vec<u64>, u64)> {
        let (_, tensor) = self.find(name)?;
        Ok((tensor.dtype.name(), tensor.shape.to_vec(), tensor.bytes()))
    }

    /// How many tensors.
    fn __len__(&self) -> usize {
        self.checkpoint.tensor_count()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.checkpoint.get(name).is_some()
    }

    /// One tensor.
    fn tensor<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (file, tensor) = self.find(name)?;
        let view = self.view(py, file, &tensor)?;
        tensor::wrap(py, self.brought(py, file, &tensor, view)?)
    }

    /// What an index picks from one tensor, without gaps.
    fn slice<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (file, tensor) = self.find(name)?;
        let whole = self.view(py, file, &tensor)?;
        let picked = index::pick(&whole, key, true)?;
        let view = match picked.is_compact() {
            true => self.brought(py, file, &tensor, picked)?,
            false => self.gathered(py, &picked)?,
        };
        tensor::wrap(py, view)
    }

    /// The receipts of the transfers so far, as JSON. Tensors made of pages of the file need none.
    fn receipts(&self) -> Vec<String> {
        self.receipts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Opened {
    fn open(filename: &Path, device: &str, policy: &str) -> Result<Self, Fault> {
        let (device, policy): (Device, Policy) = (device.parse()?, parsed(policy)?);
        let checkpoint = open(filename)?;
        let files = checkpoint.files().iter().map(|_| OpenFile::default());
        Ok(Self {
            files: files.collect(),
            destination: device.destination(filename, policy)?,
            policy,
            engine: Engine::default(),
            receipts: Mutex::default(),
            checkpoint,
        })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.checkpoint.tensors().map(|(_, tensor)| tensor.name)
    }

    fn find(&self, name: &str) -> Result<(FileNumber, Tensor<'_>), Fault> {
        let found = self.checkpoint.get(name);
        let (id, tensor) = found.ok_or_else(|| {
            let what = format!(
                "File {:?} does not contain tensor {name}",
                self.checkpoint.path()
            );
            Fault::new(Class::TensorNotFound, "no-such-tensor", what)
        })?;
        Ok((id.file, tensor))
    }

    fn source(&self, file: FileNumber) -> Result<&Arc<Source>, Fault> {
        let lost = || Fault::usage(format!("no file number {}", file.0));
        let open = self.files.get(file.0 as usize).ok_or_else(lost)?;
        if let Some(source) = open.source.get() {
            return Ok(source);
        }
        let named = self.checkpoint.file(file).ok_or_else(lost)?;
        let source = Arc::new(named.source()?);
        Ok(open.source.get_or_init(|| source))
    }

    /// A tensor made of pages of its file.
    fn view(&self, py: Python<'_>, file: FileNumber, tensor: &Tensor<'_>) -> Result<View, Fault> {
        let lost = || Fault::usage(format!("no file number {}", file.0));
        let data = self.checkpoint.file(file).ok_or_else(lost)?.data();
        let open = self.files.get(file.0 as usize).ok_or_else(lost)?;
        let pages = match open.pages.get() {
            Some(pages) => pages,
            None => {
                let source = self.source(file)?;
                let pages = py.detach(|| source.map(data.clone()))?;
                open.pages.get_or_init(|| pages)
            }
        };
        let owner = Owner::Region(pages.clone());
        let at = (tensor.range.start - data.start) as usize;
        View::new(owner, at, tensor.dtype, tensor.shape, pages.len())
    }

    /// A view made of pages of the file, or the same in memory of its own where the drive can bring it there
    /// faster than page by page.
    fn brought(
        &self,
        py: Python<'_>,
        file: FileNumber,
        tensor: &Tensor<'_>,
        view: View,
    ) -> PyResult<View> {
        let data = self
            .checkpoint
            .file(file)
            .map(|file| file.data())
            .unwrap_or_default();
        let start = data.start + view.offset as u64;
        let range = start..start + view.bytes() as u64;
        let source = self.source(file)?;
        let len = range.end - range.start;
        let pages_do = matches!(self.destination, Destination::Host(_))
            && self.policy == Policy::Prefer
            && (len < WORTH_A_TRANSFER || source.cached(&range).is_some_and(|bytes| bytes >= len));
        if pages_do {
            let mut views = [view];
            layout::align(py, &mut views)?;
            let [view] = views;
            return Ok(view);
        }
        let source = Arc::clone(source);
        let running = py.detach(|| self.start(Piece { source, range }))?;
        let loaded = Transfer::of_bytes(running).follow(py, None)?;
        let receipt = serde_json::to_string(&loaded.receipt).unwrap_or_default();
        self.receipts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(receipt);
        let region = loaded.regions.into_iter().next();
        let region = match region {
            Some(region) => region,
            None => device::nothing(&self.destination)?,
        };
        let shape: Vec<u64> = view.shape.iter().map(|dim| dim.unsigned_abs()).collect();
        Ok(layout::whole(py, region, tensor.dtype, &shape)?)
    }

    /// What an index picked with gaps, without them, where it is wanted. A core picks it from the file's pages.
    fn gathered(&self, py: Python<'_>, picked: &View) -> Result<View, Fault> {
        let gathered = picked.copied(py)?;
        match &self.destination {
            Destination::Gpu(gpu) => gathered.moved(py, To::Gpu(Arc::clone(gpu))),
            _ => Ok(gathered),
        }
    }

    fn start(&self, piece: Piece) -> Result<crowfly_mover::Transfer, Fault> {
        let to = self.destination.place();
        let pieces = vec![piece];
        let mut request = Request {
            destination: self.destination.clone(),
            policy: self.policy,
            ..Request::to_host(place(self.checkpoint.path()), pieces.clone())
        };
        request.candidates = machine::routes(&pieces, &to)?;
        Ok(self.engine.load(request)?)
    }
}
