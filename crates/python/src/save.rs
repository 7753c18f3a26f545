//! Tensors become a safetensors file, whole or not at all.

use std::path::PathBuf;
use std::sync::Arc;

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::header::encode;
use crowfly_mover::{Parts, PartsRequest};
use crowfly_route::policy::Policy;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::borrow::Borrowed;
use crate::engine::{Engine, parsed};
use crate::fault::{Class, Fault};
use crate::transfer::Transfer;

/// A tensor to be written: its name, its memory, and what its elements are where the memory does not say.
type Entry<'py> = (String, Bound<'py, PyAny>, Option<(String, Vec<u64>)>);

/// Tensors in the order in which they are written, and all that comes before them.
struct Draft {
    header: Vec<u8>,
    tensors: Vec<Borrowed>,
    len: usize,
}

impl Parts for Draft {
    fn count(&self) -> usize {
        1 + self.tensors.len()
    }

    fn part(&self, number: usize) -> &[u8] {
        match number.checked_sub(1) {
            None => &self.header,
            Some(number) => self.tensors.get(number).map_or(&[], Borrowed::bytes),
        }
    }
}

impl Draft {
    fn new(entries: Vec<Entry<'_>>, metadata: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let pairs: Vec<(String, String)> = match metadata {
            Some(metadata) => metadata
                .iter()
                .map(|(key, value)| Ok((key.extract()?, value.extract()?)))
                .collect::<PyResult<_>>()?,
            None => Vec::new(),
        };
        let mut tensors = Vec::with_capacity(entries.len());
        for (name, array, meant) in entries {
            let mut borrowed = Borrowed::of(&name, &array)?;
            if let Some((dtype, shape)) = meant {
                borrowed.mean(&name, &dtype, shape)?;
            }
            tensors.push((name, borrowed));
        }
        // The order of the safetensors package, so that the same tensors make the same file: the largest
        // elements first, which keeps all of them aligned, then by name.
        let place = |dtype: Dtype| Dtype::ALL.iter().position(|one| *one == dtype);
        tensors
            .sort_by(|(a, x), (b, y)| place(y.dtype).cmp(&place(x.dtype)).then_with(|| a.cmp(b)));
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        let listed = tensors
            .iter()
            .map(|(name, t)| (name.as_str(), t.dtype, t.shape.as_slice()));
        let (header, _) = encode(&pairs, listed).map_err(Fault::from)?;
        let data: usize = tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
        Ok(Self {
            len: header.len() + data,
            header,
            tensors: tensors.into_iter().map(|(_, tensor)| tensor).collect(),
        })
    }

    /// Lays everything end to end.
    fn write(&self, mut out: &mut [u8]) {
        for part in (0..self.count()).map(|number| self.part(number)) {
            let Some((here, rest)) = std::mem::take(&mut out).split_at_mut_checked(part.len())
            else {
                return;
            };
            here.copy_from_slice(part);
            out = rest;
        }
    }
}

impl Borrowed {
    /// Takes the bytes for elements of another type: what a library calls its types is not always what
    /// DLPack can say.
    pub fn mean(&mut self, name: &str, dtype: &str, shape: Vec<u64>) -> Result<(), Fault> {
        let wrong = |what: String| Fault::new(Class::Layout, "unknown-dtype", what);
        let meant = Dtype::from_name(dtype)
            .ok_or_else(|| wrong(format!("tensor `{name}`: no element type {dtype}")))?;
        if meant.bytes_of(&shape).ok() != Some(self.bytes().len() as u64) {
            let bytes = self.bytes().len();
            return Err(wrong(format!(
                "tensor `{name}`: {dtype} {shape:?} does not have {bytes} bytes"
            )));
        }
        (self.dtype, self.shape) = (meant, shape);
        Ok(())
    }
}

/// The bytes of a safetensors file.
#[pyfunction]
#[pyo3(signature = (entries, metadata=None))]
pub fn serialize<'py>(
    py: Python<'py>,
    entries: Vec<Entry<'py>>,
    metadata: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let draft = Draft::new(entries, metadata)?;
    PyBytes::new_with(py, draft.len, |out| {
        draft.write(out);
        Ok(())
    })
}

/// Starts writing a safetensors file, through a few buffers however large it is. The tensors may not change until
/// it has ended; the path holds the old file until every byte of the new one is durable.
#[pyfunction]
#[pyo3(signature = (engine, entries, filename, metadata=None, *, policy="prefer", path=None))]
pub fn start_save(
    py: Python<'_>,
    engine: &Engine,
    entries: Vec<Entry<'_>>,
    filename: PathBuf,
    metadata: Option<&Bound<'_, PyDict>>,
    policy: &str,
    path: Option<&str>,
) -> PyResult<Transfer> {
    let policy: Policy = parsed(policy)?;
    let path_asked = path.map(parsed).transpose()?;
    let request = PartsRequest {
        parts: Arc::new(Draft::new(entries, metadata)?),
        path: filename,
        policy,
        path_asked,
    };
    let running = py.detach(|| engine.0.save_parts(request));
    Ok(Transfer::of_save(running.map_err(Fault::from)?))
}
