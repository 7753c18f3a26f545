//! `crowfly.Tensor`: memory with a shape, for whoever wants to look at it.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::dlpack::{self, abi};
use crate::dtype;
use crate::index;
use crate::view::{View, compact};
use crowfly_mover::checkpoint::dtype::Dtype;

/// The class below [`TensorBase`] that has the buffer protocol; the only one with instances.
static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// What a new tensor is made from. Python code has none to give, so tensors come from this library only.
#[pyclass(frozen, module = "crowfly._crowfly", name = "_Seed")]
pub struct Seed(Mutex<Option<View>>);

/// Everything of a tensor but the buffer protocol.
#[pyclass(frozen, subclass, module = "crowfly._crowfly", name = "_TensorBase")]
pub struct TensorBase {
    /// What and where it is.
    pub view: View,
}

/// Makes the class for tensors, once.
pub fn class<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyType>> {
    let made = TENSOR.get_or_try_init(py, || {
        let base = py.get_type::<TensorBase>();
        let doc = c"Elements of one type in memory that other libraries take without a copy.\n\n\
            Through DLPack (`torch.from_dlpack`, `jax.dlpack.from_dlpack`, `cupy.from_dlpack`), the buffer\n\
            protocol (`memoryview`) and NumPy's array interface (`numpy.asarray`). Tensors come from\n\
            `crowfly.load_file` and `crowfly.safe_open`; the memory lives as long as anything made of it.";
        crate::buffer::with_buffer(&base, c"crowfly._crowfly.Tensor", doc).map(Bound::unbind)
    })?;
    Ok(made.bind(py).clone())
}

/// A tensor for Python.
pub fn wrap(py: Python<'_>, view: View) -> PyResult<Bound<'_, PyAny>> {
    let seed = Bound::new(py, Seed(Mutex::new(Some(view))))?;
    class(py)?.call1((seed,))
}

impl TensorBase {
    fn copied(&self, py: Python<'_>) -> PyResult<View> {
        Ok(self.view.copied(py)?)
    }
}

#[pymethods]
impl TensorBase {
    #[new]
    fn new(seed: &Bound<'_, Seed>) -> PyResult<Self> {
        let mut seed = seed.get().0.lock().unwrap_or_else(PoisonError::into_inner);
        let view = seed.take();
        let view = view.ok_or_else(|| PyTypeError::new_err("tensors are made by loading"))?;
        Ok(Self { view })
    }

    /// The element type, as safetensors writes it: `"F32"`, `"BF16"`, `"F8_E4M3"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.view.dtype.name()
    }

    /// Elements along each dimension; empty for a scalar.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.view.shape)
    }

    /// Elements (not bytes) from one to the next along each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.view.strides)
    }

    /// How many dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.view.shape.len()
    }

    /// How many elements.
    #[getter]
    fn size(&self) -> i64 {
        self.view.shape.iter().product()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.view.bytes()
    }

    /// Where the memory is: `"host"`, `"host:1"`, `"gpu:0"`, `"peer:0000:3b:00.0"`.
    #[getter]
    fn place(&self) -> String {
        self.view.place().to_string()
    }

    /// The address of the first element.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> usize {
        self.view.pointer(py).addr()
    }

    /// Whether nobody may write into it.
    #[getter]
    fn readonly(&self) -> bool {
        self.view.readonly
    }

    /// Whether it is made of pages of the file it comes from: nothing was copied, and if the file is cut or
    /// overwritten in place, the tensor changes with it. What is written into the tensor does not reach the file.
    #[getter]
    fn follows_file(&self) -> bool {
        self.view.follows_file()
    }

    /// Whether the elements follow each other without gaps, the last dimension fastest.
    #[getter]
    fn is_contiguous(&self) -> bool {
        self.view.is_compact()
    }

    /// This tensor, or a copy of it without gaps.
    fn contiguous<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        match slf.get().view.is_compact() {
            true => Ok(slf.clone().into_any()),
            false => wrap(py, slf.get().copied(py)?),
        }
    }

    /// A copy in memory of its own.
    fn copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        wrap(py, self.copied(py)?)
    }

    /// The same memory as plain bytes: a tensor of type `U8` and one dimension.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let view = match self.view.is_compact() {
            true => self.view.another(py),
            false => {
                return Err(PyBufferError::new_err(
                    "this tensor has gaps between its elements",
                ));
            }
        };
        let shape: Box<[i64]> = Box::new([view.bytes() as i64]);
        let plain = View {
            dtype: Dtype::U8,
            strides: compact(&shape),
            shape,
            ..view
        };
        wrap(py, plain)
    }

    /// This tensor where it is in host memory, or a copy that is.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, view) = (slf.py(), &slf.get().view);
        match view.on_gpu() {
            true => wrap(py, view.in_host_memory(py)?),
            false => Ok(slf.clone().into_any()),
        }
    }

    /// A copy as `bytes`, the last dimension fastest.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let view = self.view.in_host_memory(py)?;
        let view = match view.is_compact() {
            true => view,
            false => view.copied(py)?,
        };
        PyBytes::new_with(py, view.bytes(), |out| Ok(view.read(py, out)?))
    }

    /// As `numpy.ndarray`, without a copy where NumPy has the element type.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let frameworks = slf.py().import("crowfly._frameworks")?;
        frameworks.call_method1("to_numpy", (slf,))
    }

    /// As `torch.Tensor`, without a copy.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let frameworks = slf.py().import("crowfly._frameworks")?;
        frameworks.call_method1("to_torch", (slf,))
    }

    /// The same memory seen through an index of integers, slices of any step, `...` and `None`.
    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        wrap(key.py(), index::pick(&self.view, key, false)?)
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.view.shape.first() {
            Some(first) => Ok(*first as usize),
            None => Err(PyTypeError::new_err("a scalar has no length")),
        }
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.view.shape.iter().map(i64::to_string).collect();
        let (dtype, place) = (self.view.dtype, self.view.place());
        format!("crowfly.Tensor({dtype}, [{}], {place})", shape.join(", "))
    }

    /// A DLPack capsule. The bytes are in place before a tensor is given out, so a consumer's `stream` has nothing
    /// to wait for; one that makes no sense is refused. `dl_device=(1, 0)` gives host memory, `copy=True` memory of
    /// its own.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.view.device();
        if let Some(stream) = stream {
            dlpack::check_stream(here, &stream)?;
        }
        let to_host = here.device_type != abi::CPU && dl_device == Some((abi::CPU, 0));
        let elsewhere = |(kind, id)| (kind, id) != (here.device_type, here.device_id);
        if dl_device.is_some_and(elsewhere) && !to_host {
            let place = match self.view.on_gpu() {
                true => format!("the memory of {}", self.view.place()),
                false => "host memory".to_owned(),
            };
            return Err(PyBufferError::new_err(format!(
                "this tensor is in {place}; the consumer has to move it to its device"
            )));
        }
        let copied = copy == Some(true) || to_host;
        if to_host && copy == Some(false) {
            return Err(PyBufferError::new_err(
                "this tensor is in a device's memory, and comes into host memory by a copy only",
            ));
        }
        let view = match (to_host, copied) {
            (true, _) => self.view.in_host_memory(py)?,
            (false, true) => self.copied(py)?,
            (false, false) => self.view.another(py),
        };
        dlpack::export(py, view, max_version, copied)
    }

    /// DLPack's device type and number: `(1, 0)` is host memory, `(2, 1)` is `cuda:1` (of ROCm, `(10, 1)`).
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.view.device();
        (device.device_type, device.device_id)
    }

    /// NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = &self.view;
        let (Some(typestr), Some(item)) = (dtype::to_typestr(view.dtype), view.item()) else {
            return Err(PyAttributeError::new_err(format!(
                "NumPy has no element type {}; tensor.numpy() takes it from ml_dtypes",
                view.dtype
            )));
        };
        if view.device().device_type != abi::CPU {
            return Err(PyAttributeError::new_err(
                "this tensor is not in host memory",
            ));
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("shape", PyTuple::new(py, &view.shape)?)?;
        interface.set_item("data", (view.pointer(py).addr(), view.readonly))?;
        let strides: Vec<i64> = view
            .strides
            .iter()
            .map(|stride| stride.saturating_mul(item as i64))
            .collect();
        match view.is_compact() {
            true => interface.set_item("strides", py.None())?,
            false => interface.set_item("strides", PyTuple::new(py, strides)?)?,
        }
        Ok(interface)
    }
}
