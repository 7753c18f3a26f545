//! Which part of which region each tensor is.

use std::io::Cursor;
use std::sync::Arc;

use crowfly_mover::checkpoint::Checkpoint;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::header::Header;
use crowfly_mover::checkpoint::select::Selection;
use crowfly_mover::{Destination, Region};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::device;
use crate::fault::{Class, Fault};
use crate::tensor;
use crate::view::{ALIGNMENT, Owner, View};

/// Which tensors the bytes of a load are.
pub struct Landed {
    /// The checkpoint.
    pub checkpoint: Arc<Checkpoint>,
    /// What of it was loaded.
    pub selection: Selection,
    /// Where to.
    pub destination: Destination,
}

impl Landed {
    /// Puts the tensors into a dictionary. The regions are those of the selection's ranges, in order.
    pub fn fill(
        &self,
        py: Python<'_>,
        regions: &[Region],
        into: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let (names, mut views) = self.views(regions)?;
        align(py, &mut views)?;
        put(py, names, views, into)
    }

    /// The same of tensors whose bytes may not be there yet: nothing is copied.
    pub fn fill_in_place(
        &self,
        py: Python<'_>,
        regions: &[Region],
        into: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let (names, views) = self.views(regions)?;
        put(py, names, views, into)
    }

    /// Whether every tensor begins where its type wants it.
    pub fn is_in_place(&self, py: Python<'_>, regions: &[Region]) -> Result<bool, Fault> {
        let (_, views) = self.views(regions)?;
        Ok(views.iter().all(|view| view.is_aligned(py)))
    }

    fn views(&self, regions: &[Region]) -> Result<(Vec<&str>, Vec<View>), Fault> {
        let mut names = Vec::with_capacity(self.selection.tensor_count());
        let mut views = Vec::with_capacity(self.selection.tensor_count());
        let mut regions = regions.iter();
        for selected in &self.selection.files {
            let header = self
                .checkpoint
                .file(selected.file)
                .and_then(|file| file.header());
            let mut placed = selected.tensors.iter().peekable();
            let mut start = 0;
            // A file of which only empty tensors were selected has no range.
            let ranges = selected.ranges.len().max(1);
            for nth in 0..ranges {
                let region = match selected.ranges.is_empty() {
                    true => None,
                    false => Some(regions.next().ok_or_else(lost)?),
                };
                let len = region.map_or(0, Region::len);
                let last = nth + 1 == ranges;
                while let Some(place) = placed.next_if(|p| last || p.at < start + len as u64) {
                    let tensor = header.and_then(|header| header.tensor(place.number as usize));
                    let tensor = tensor.ok_or_else(lost)?;
                    let owner = match region {
                        Some(region) => Owner::Region(region.clone()),
                        None => Owner::Region(device::nothing(&self.destination)?),
                    };
                    let at = (place.at - start) as usize;
                    views.push(View::new(owner, at, tensor.dtype, tensor.shape, len)?);
                    names.push(tensor.name);
                }
                start += len as u64;
            }
        }
        Ok((names, views))
    }
}

fn put(
    py: Python<'_>,
    names: Vec<&str>,
    views: Vec<View>,
    into: &Bound<'_, PyDict>,
) -> PyResult<()> {
    for (name, view) in names.into_iter().zip(views) {
        into.set_item(name, tensor::wrap(py, view)?)?;
    }
    Ok(())
}

fn lost() -> Fault {
    Fault::new(
        Class::Format,
        "tensor-not-loaded",
        "the selection is not one of this checkpoint",
    )
}

/// Moves tensors that do not begin where their type wants it into memory where they do. A file whose writer
/// did not pad its header has such tensors, and not every library reads them right.
pub fn align(py: Python<'_>, views: &mut [View]) -> Result<(), Fault> {
    let mut needed = 0;
    let mut moves = Vec::new();
    for (number, view) in views.iter_mut().enumerate() {
        if view.is_aligned(py) {
            continue;
        }
        if view.on_gpu() {
            *view = view.copied(py)?;
            continue;
        }
        moves.push((number, needed));
        needed += view.bytes().next_multiple_of(ALIGNMENT);
    }
    if moves.is_empty() {
        return Ok(());
    }
    let mut memory = Region::zeroed(needed, None)?;
    let out = memory.as_mut_slice().unwrap_or_default();
    for (number, at) in &moves {
        let view = views.get(*number).ok_or_else(lost)?;
        let out = out.get_mut(*at..at + view.bytes()).ok_or_else(lost)?;
        view.read(py, out)?;
    }
    for (number, at) in moves {
        if let Some(view) = views.get_mut(number) {
            view.owner = Owner::Region(memory.clone());
            view.offset = at;
        }
    }
    Ok(())
}

/// The tensors in the bytes of a safetensors file, in the order of their data. Those bytes are their memory.
#[pyfunction]
pub fn deserialize<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let bytes = data.as_bytes();
    let header = Header::read_from(&mut Cursor::new(bytes)).map_err(Fault::from)?;
    let mut views = Vec::with_capacity(header.len());
    for tensor in header.tensors() {
        let owner = Owner::Bytes(data.clone().unbind());
        let at = tensor.range.start as usize;
        views.push(View::new(
            owner,
            at,
            tensor.dtype,
            tensor.shape,
            bytes.len(),
        )?);
    }
    align(py, &mut views)?;
    let names = header.tensors().map(|tensor| tensor.name.to_owned());
    names
        .zip(views)
        .map(|(name, view)| Ok((name, tensor::wrap(py, view)?)))
        .collect()
}

/// A tensor at the beginning of a region that holds nothing else.
pub fn whole(py: Python<'_>, region: Region, dtype: Dtype, shape: &[u64]) -> Result<View, Fault> {
    let len = region.len();
    let mut views = [View::new(Owner::Region(region), 0, dtype, shape, len)?];
    align(py, &mut views)?;
    let [view] = views;
    Ok(view)
}
