//! Tensors that were saved in another order than row by row, such as a transposed one.

use crate::checkpoint::dtype::Dtype;
use crate::ckpt::archive::ArchiveError;
use crate::ckpt::extent::Extent;
use crate::error::TransferError;
use crate::memory::Region;

/// A part whose bytes were read as they lie and still have to be put in order.
pub(super) struct Reorder {
    /// Its bytes.
    pub raw: Region,
    /// The box of the tensor that it is.
    pub part: Extent,
    /// Distances between neighbours along each dimension, in elements.
    pub strides: Vec<u64>,
    pub dtype: Dtype,
    /// The number of the want it is for.
    pub into: usize,
}

impl Reorder {
    /// Copies the elements that are wanted to their places, one by one.
    pub(super) fn run(&self, wanted: &Extent, into: &Region) -> Result<(), ArchiveError> {
        let Some(both) = self.part.intersect(wanted) else {
            return Ok(());
        };
        let gone = || TransferError::MemoryGone {
            path: "a restored tensor".into(),
            offset: 0,
        };
        let size = (self.dtype.bits() / 8) as usize;
        let raw = self.raw.as_slice().ok_or_else(gone)?;
        let target = into
            .memory()
            .target(into.start()..into.start() + into.len());
        let dims = both.shape.len();
        let mut to_strides = vec![1u64; dims];
        for dim in (1..dims).rev() {
            to_strides[dim - 1] = to_strides[dim] * wanted.shape[dim];
        }
        let mut index = vec![0u64; dims];
        loop {
            let (mut from, mut to) = (0u64, 0u64);
            for dim in 0..dims {
                let at = both.offset[dim] + index[dim];
                from += (at - self.part.offset[dim]) * self.strides[dim];
                to += (at - wanted.offset[dim]) * to_strides[dim];
            }
            let from = from as usize * size;
            let bytes = raw.get(from..from + size).ok_or_else(gone)?;
            target.put(to as usize * size, bytes);
            // Counts up like an odometer, the last dimension first.
            let mut dim = dims;
            loop {
                let Some(previous) = dim.checked_sub(1) else {
                    return Ok(());
                };
                dim = previous;
                index[dim] += 1;
                if index[dim] < both.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }
}
