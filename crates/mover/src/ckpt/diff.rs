//! What differs between two checkpoints, tensor by tensor, in bounded memory.

use crowfly_route::units::Bytes;

use super::archive::{Archive, ArchiveError, ArchivedTensor};
use super::extent::Extent;
use super::restore::{RestoreOptions, Restored, Want};
use crate::checkpoint::dtype::Dtype;
use crate::engine::Engine;

mod number;

use number::Reader;

/// How many bytes of each checkpoint are compared at a time, unless one row of a tensor takes more.
const BATCH: u64 = 64 << 20;

/// What is different about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Only the second checkpoint has it.
    Added,
    /// Only the first has it.
    Removed,
    /// Its type or its shape differs, so that its elements are not compared.
    Reshaped {
        /// In the first.
        before: (Dtype, Vec<u64>),
        /// In the second.
        after: (Dtype, Vec<u64>),
    },
    /// Some of its elements differ.
    Changed(Distance),
}

/// How far two tensors of one type and shape are apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distance {
    /// Elements that differ.
    pub differing: u64,
    /// All elements.
    pub elements: u64,
    /// The largest difference of two elements; `None` of types that are no numbers here (packed and
    /// complex ones) and when every differing element is no number.
    pub max_abs: Option<f64>,
    /// The square root of the sum of all squared differences, under the same conditions.
    pub l2: Option<f64>,
    /// Differing elements of which one is no number (NaN) or infinite; they are in neither of the two
    /// above.
    pub not_finite: u64,
}

/// What differs between two checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tensors that differ, by name.
    pub tensors: Vec<(String, Change)>,
    /// How many tensors are the same, bit by bit.
    pub same: usize,
    /// Bytes compared, of each checkpoint.
    pub compared: Bytes,
}

/// Bytes that two checkpoints have to be compared in.
pub fn comparable(before: &Archive, after: &Archive) -> Bytes {
    let common = before.tensors().filter(|(name, tensor)| {
        let other = after.get(name);
        other.is_some_and(|other| alike(tensor, other))
    });
    common.map(|(_, tensor)| tensor.bytes()).sum()
}

fn alike(one: &ArchivedTensor, other: &ArchivedTensor) -> bool {
    (one.dtype, &one.shape) == (other.dtype, &other.shape)
}

/// Compares two checkpoints in whichever formats they are. `progress` is told how many bytes of each
/// have been compared.
///
/// # Errors
/// When either is damaged or cannot be read.
pub fn diff(
    before: &Archive,
    after: &Archive,
    engine: &Engine,
    mut progress: impl FnMut(Bytes),
) -> Result<Difference, ArchiveError> {
    let mut changes: Vec<(String, Change)> = Vec::new();
    let mut slices: Vec<(Want, u64)> = Vec::new();
    for (name, tensor) in before.tensors() {
        match after.get(name) {
            None => changes.push((name.to_owned(), Change::Removed)),
            Some(other) if !alike(tensor, other) => changes.push((
                name.to_owned(),
                Change::Reshaped {
                    before: (tensor.dtype, tensor.shape.clone()),
                    after: (other.dtype, other.shape.clone()),
                },
            )),
            Some(_) => slices.extend(cut(name, tensor)),
        }
    }
    let added = after
        .tensors()
        .filter(|(name, _)| before.get(name).is_none());
    changes.extend(added.map(|(name, _)| (name.to_owned(), Change::Added)));

    let mut distances: Vec<(String, Sum)> = Vec::new();
    let mut compared = 0;
    let mut rest = slices.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, size): &&(Want, u64)| {
            let first = bytes == 0;
            bytes += size;
            first || bytes <= BATCH
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (batch, later) = rest.split_at(count.min(rest.len()));
        rest = later;
        let wants: Vec<Want> = batch.iter().map(|(want, _)| want.clone()).collect();
        let read = |archive: &Archive| {
            let reading = archive.restore(engine, &wants, RestoreOptions::default())?;
            reading.wait().map(|restored| restored.tensors)
        };
        for (one, other) in read(before)?.iter().zip(&read(after)?) {
            if distances.last().is_none_or(|(name, _)| *name != one.name) {
                distances.push((one.name.clone(), Sum::default()));
            }
            if let Some((_, sum)) = distances.last_mut() {
                sum.add(one, other);
            }
            compared += one.bytes.len() as u64;
        }
        progress(Bytes(compared));
    }
    let mut same = 0;
    for (name, sum) in distances {
        match sum.distance() {
            Some(distance) => changes.push((name, Change::Changed(distance))),
            None => same += 1,
        }
    }
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Difference {
        tensors: changes,
        same,
        compared: Bytes(compared),
    })
}

/// A tensor in slices along its first dimension, each with its bytes.
fn cut(name: &str, tensor: &ArchivedTensor) -> Vec<(Want, u64)> {
    let whole = Extent::whole(&tensor.shape);
    let bytes = tensor.bytes().0;
    let Some(&rows) = tensor.shape.first().filter(|_| bytes > BATCH) else {
        return vec![(Want::whole(name), bytes)];
    };
    let row = (bytes / rows.max(1)).max(1);
    let step = (BATCH / row).max(1);
    let mut slices = Vec::new();
    let mut at = 0;
    // Packed elements are only cut where a byte ends; a tensor of them is compared as a whole.
    if !tensor.dtype.bits().is_multiple_of(8) {
        return vec![(Want::whole(name), bytes)];
    }
    while at < rows {
        let mut part = whole.clone();
        let length = step.min(rows - at);
        if let (Some(offset), Some(shape)) = (part.offset.first_mut(), part.shape.first_mut()) {
            *offset = at;
            *shape = length;
        }
        slices.push((Want::part(name, part), row.saturating_mul(length)));
        at += length;
    }
    slices
}

/// A distance while it is summed up.
#[derive(Default)]
struct Sum {
    distance: Distance,
    squares: f64,
    max: f64,
    compared: u64,
    differs: bool,
}

impl Sum {
    fn add(&mut self, before: &Restored, after: &Restored) {
        let bytes = |tensor: &Restored| tensor.bytes.as_slice().map(<[u8]>::to_vec);
        let (Some(before_bytes), Some(after_bytes)) = (bytes(before), bytes(after)) else {
            self.differs = true;
            return;
        };
        let elements = before.extent.elements().unwrap_or(0);
        self.distance.elements += elements;
        if before_bytes == after_bytes {
            return;
        }
        self.differs = true;
        let Some(reader) = Reader::of(before.dtype) else {
            return self.unread(before.dtype, &before_bytes, &after_bytes);
        };
        let size = reader.size();
        let pairs = before_bytes
            .chunks_exact(size)
            .zip(after_bytes.chunks_exact(size));
        for (one, other) in pairs.filter(|(one, other)| one != other) {
            self.distance.differing += 1;
            let distance = reader.distance(one, other);
            if distance.is_finite() {
                self.compared += 1;
                self.max = self.max.max(distance);
                self.squares += distance * distance;
            } else {
                self.distance.not_finite += 1;
            }
        }
    }

    /// Counts differing elements of a type whose values are not read; of packed ones, bytes.
    fn unread(&mut self, dtype: Dtype, before: &[u8], after: &[u8]) {
        let size = (dtype.bits() / 8).max(1) as usize;
        let pairs = before.chunks(size).zip(after.chunks(size));
        self.distance.differing += pairs.filter(|(one, other)| one != other).count() as u64;
    }

    fn distance(self) -> Option<Distance> {
        let found = self.compared > 0;
        self.differs.then_some(Distance {
            max_abs: found.then_some(self.max),
            l2: found.then_some(self.squares.sqrt()),
            ..self.distance
        })
    }
}
