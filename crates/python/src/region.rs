//! Memory of the engine, without a shape.

use crowfly_mover::Region as Inner;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_route::units::NumaNode;
use pyo3::prelude::*;

use crate::fault::Fault;
use crate::tensor;
use crate::view::{Owner, View};

/// Memory that devices can reach.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Region(pub Inner);

#[pymethods]
impl Region {
    /// Host memory of `nbytes` zero bytes, on a NUMA node where one is given.
    #[staticmethod]
    #[pyo3(signature = (nbytes, numa=None))]
    fn zeroed(nbytes: usize, numa: Option<u32>) -> PyResult<Self> {
        let made = Inner::zeroed(nbytes, numa.map(NumaNode)).map_err(Fault::from)?;
        Ok(Self(made))
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len()
    }

    /// Where the memory is: `"host"`, `"host:1"`, `"gpu:0"`, `"peer:0000:3b:00.0"`.
    #[getter]
    fn place(&self) -> String {
        self.0.place().to_string()
    }

    /// Whether parts are pages of the file they come from; see `Tensor.follows_file`.
    #[getter]
    fn follows_file(&self) -> bool {
        self.0.follows_file()
    }

    /// The bytes as a tensor of type `U8` and one dimension. It shares the memory.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let len = self.0.len();
        let owner = Owner::Region(self.0.clone());
        tensor::wrap(py, View::new(owner, 0, Dtype::U8, &[len as u64], len)?)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("crowfly.Region({} bytes, {})", self.0.len(), self.0.place())
    }
}
