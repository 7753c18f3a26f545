//! `tensor[...]`: which elements an index of Python picks.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyList, PySlice, PyTuple};

use crate::fault::{Class, Fault};
use crate::view::View;

/// The same memory, seen through an index: integers, slices of any step, `...` and `None`. No bytes move.
///
/// # Errors
/// `strict` refuses slices that reach beyond a dimension, as the safetensors package does; otherwise they
/// are cut, as Python does.
pub fn pick(view: &View, key: &Bound<'_, PyAny>, strict: bool) -> PyResult<View> {
    let py = key.py();
    let items: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let used = |item: &&Bound<'_, PyAny>| !item.is_none() && !item.is_instance_of::<PyEllipsis>();
    let named = items.iter().filter(used).count();
    let dots = items
        .iter()
        .filter(|i| i.is_instance_of::<PyEllipsis>())
        .count();
    let dims = view.shape.len();
    if named > dims || dots > 1 {
        let shape = &view.shape;
        let what = format!("{named} indices and {dots} ellipses for a tensor of shape {shape:?}");
        return Err(Fault::new(Class::Index, "too-many-indices", what).into());
    }
    let mut picked = Picked::of(view);
    for item in &items {
        if item.is_instance_of::<PyEllipsis>() {
            picked.keep(dims - named);
        } else if item.is_none() {
            picked.shape.push(1);
            picked.strides.push(0);
        } else {
            picked.take(item, strict)?;
        }
    }
    picked.keep(dims - picked.dimension);
    picked.finish(py).map_err(Into::into)
}

/// A view while the dimensions of another are taken over one by one.
struct Picked<'v> {
    view: &'v View,
    dimension: usize,
    /// In elements.
    offset: i64,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl<'v> Picked<'v> {
    const fn of(view: &'v View) -> Self {
        Self {
            view,
            dimension: 0,
            offset: 0,
            shape: Vec::new(),
            strides: Vec::new(),
        }
    }

    /// The next dimension's size and stride.
    fn next(&mut self) -> (i64, i64) {
        let at = self.dimension;
        self.dimension += 1;
        let of = |list: &[i64]| list.get(at).copied().unwrap_or_default();
        (of(&self.view.shape), of(&self.view.strides))
    }

    fn keep(&mut self, count: usize) {
        for _ in 0..count {
            let (size, stride) = self.next();
            self.shape.push(size);
            self.strides.push(stride);
        }
    }

    fn take(&mut self, item: &Bound<'_, PyAny>, strict: bool) -> PyResult<()> {
        let dimension = self.dimension;
        let (size, stride) = self.next();
        if let Ok(slice) = item.cast::<PySlice>() {
            if strict {
                within(slice, dimension, size)?;
            }
            let found = slice.indices(size as isize)?;
            if found.slicelength > 0 {
                self.move_by(found.start as i64, stride);
            }
            self.shape.push(found.slicelength as i64);
            // Of a single element the step does not matter, however large.
            self.strides.push(stride.saturating_mul(found.step as i64));
            return Ok(());
        }
        let empty_list = item.cast::<PyList>().is_ok_and(|list| list.is_empty());
        if empty_list {
            self.shape.push(0);
            self.strides.push(stride);
            return Ok(());
        }
        let number: Option<i64> = match item.is_instance_of::<PyBool>() {
            true => None,
            false => item.extract().ok(),
        };
        let Some(number) = number else {
            let what = format!("a tensor cannot be indexed by {}", item.get_type().name()?);
            let fault = Fault::new(Class::Index, "not-an-index", what)
                .hint("take integers, slices, ... and None; pick the rest from the result");
            return Err(fault.into());
        };
        let from_start = if number < 0 { number + size } else { number };
        if !(0..size).contains(&from_start) {
            return Err(outside(&number.to_string(), dimension, size).into());
        }
        self.move_by(from_start, stride);
        Ok(())
    }

    /// Saturates only where there are no elements.
    const fn move_by(&mut self, count: i64, stride: i64) {
        self.offset = self.offset.saturating_add(count.saturating_mul(stride));
    }

    fn finish(self, py: Python<'_>) -> Result<View, Fault> {
        let view = self.view;
        let same = *self.shape == *view.shape && *self.strides == *view.strides;
        if same && self.offset == 0 {
            return Ok(view.another(py));
        }
        let item = view.item().ok_or_else(|| view.not_bytewise())?;
        let moved = self.offset.saturating_mul(item as i64);
        Ok(View {
            // Elements lie inside, and what was picked are some of them.
            offset: view.offset.saturating_add_signed(moved as isize),
            shape: self.shape.into(),
            strides: self.strides.into(),
            ..view.another(py)
        })
    }
}

/// Refuses a slice whose ends lie outside of a dimension.
fn within(slice: &Bound<'_, PySlice>, dimension: usize, size: i64) -> PyResult<()> {
    for end in ["start", "stop"] {
        let end: Option<i64> = slice.getattr(end)?.extract()?;
        if let Some(end) = end.filter(|end| !(-size..=size).contains(end)) {
            return Err(outside(&end.to_string(), dimension, size).into());
        }
    }
    Ok(())
}

fn outside(index: &str, dimension: usize, size: i64) -> Fault {
    let what = format!("index {index} lies outside of dimension {dimension} of size {size}");
    Fault::new(Class::Index, "index-out-of-range", what)
}
