//! Boxes of elements inside a tensor, and the runs of bytes that two of them share.

use std::fmt;
use std::ops::Range;

use crate::checkpoint::dtype::Dtype;

/// A box of elements of a tensor: where it begins along each dimension, and how far it reaches.
///
/// A scalar has no dimensions; its only box is the empty one, which holds one element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first element along each dimension.
    pub offset: Vec<u64>,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
}

impl Extent {
    /// All of a tensor.
    pub fn whole(shape: &[u64]) -> Self {
        Self {
            offset: vec![0; shape.len()],
            shape: shape.to_vec(),
        }
    }

    /// One rank's part of a tensor that is cut along `dim` as `torch.chunk` and DTensor's `Shard`
    /// cut it: every rank gets `⌈n / ranks⌉` elements, the last ones fewer or none. `None` when
    /// there is no such dimension or no such rank.
    pub fn chunk(shape: &[u64], dim: usize, rank: u64, ranks: u64) -> Option<Self> {
        let length = *shape.get(dim)?;
        if rank >= ranks {
            return None;
        }
        let step = length.div_ceil(ranks);
        let begin = step.saturating_mul(rank).min(length);
        let end = begin.saturating_add(step).min(length);
        let mut part = Self::whole(shape);
        *part.offset.get_mut(dim)? = begin;
        *part.shape.get_mut(dim)? = end - begin;
        Some(part)
    }

    /// How many elements; `None` when they are more than 64 bits can count.
    pub fn elements(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape
            .iter()
            .try_fold(1u64, |all, &dim| all.checked_mul(dim))
    }

    /// Whether it is a box of a tensor of this shape: as many dimensions, and inside of each.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let inside = |((&offset, &length), &dim): ((&u64, &u64), &u64)| {
            offset.checked_add(length).is_some_and(|end| end <= dim)
        };
        self.offset.len() == shape.len()
            && self.shape.len() == shape.len()
            && self.offset.iter().zip(&self.shape).zip(shape).all(inside)
    }

    /// The elements along one dimension.
    pub(crate) fn along(&self, dim: usize) -> Range<u64> {
        let offset = self.offset.get(dim).copied().unwrap_or(0);
        let length = self.shape.get(dim).copied().unwrap_or(0);
        offset..offset.saturating_add(length)
    }

    /// The box that two boxes of one tensor have in common; `None` when they have no element in common.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.shape.len() != other.shape.len() || self.is_empty() || other.is_empty() {
            return None;
        }
        let mut both = Self::default();
        for dim in 0..self.shape.len() {
            let (a, b) = (self.along(dim), other.along(dim));
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if start >= end {
                return None;
            }
            both.offset.push(start);
            both.shape.push(end - start);
        }
        Some(both)
    }

    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

impl fmt::Display for Extent {
    /// As an index into an array: `[0:4, 2:3]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = (0..self.shape.len())
            .map(|dim| {
                let along = self.along(dim);
                format!("{}:{}", along.start, along.end)
            })
            .collect();
        write!(f, "[{}]", parts.join(", "))
    }
}

/// The bytes that two row-major boxes of one tensor have in common, as runs that are contiguous in
/// both. The runs ascend in the source as well as in the destination.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    /// How many runs.
    count: u64,
    /// Bytes of each.
    pub(crate) bytes: u64,
    /// Of each outer dimension: how many, and the strides in source and destination in bytes.
    outer: Vec<(u64, u64, u64)>,
    from: u64,
    to: u64,
}

/// One run: offsets of its first byte in the two boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Runs {
    /// The runs that `source` and `wanted` share; `None` when a run would begin or end inside of a
    /// byte, or a stride needs more than 64 bits. No runs when the boxes share no element.
    pub(crate) fn between(source: &Extent, wanted: &Extent, dtype: Dtype) -> Option<Self> {
        let Some(both) = source.intersect(wanted) else {
            return Some(Self {
                count: 0,
                bytes: 0,
                outer: Vec::new(),
                from: 0,
                to: 0,
            });
        };
        let dims = both.shape.len();
        // Strides in elements; from the last dimension to the first.
        let strides = |shape: &[u64]| {
            let mut stride = 1u64;
            let mut all = vec![0; dims];
            for (slot, &dim) in all.iter_mut().zip(shape).rev() {
                *slot = stride;
                stride = stride.checked_mul(dim)?;
            }
            Some(all)
        };
        let (from_strides, to_strides) = (strides(&source.shape)?, strides(&wanted.shape)?);
        let mut run = 1u64;
        let mut outer = Vec::new();
        let mut contiguous = true;
        let (mut from, mut to) = (0u64, 0u64);
        for dim in (0..dims).rev() {
            let length = *both.shape.get(dim)?;
            let (from_stride, to_stride) = (*from_strides.get(dim)?, *to_strides.get(dim)?);
            let begin = *both.offset.get(dim)?;
            let past = |extent: &Extent, stride: u64| {
                (begin - extent.offset.get(dim)?).checked_mul(stride)
            };
            from = from.checked_add(past(source, from_stride)?)?;
            to = to.checked_add(past(wanted, to_stride)?)?;
            if contiguous {
                run = run.checked_mul(length)?;
                contiguous =
                    length == *source.shape.get(dim)? && length == *wanted.shape.get(dim)?;
            } else if length > 1 {
                outer.push((length, from_stride, to_stride));
            }
        }
        outer.reverse();
        let bits = dtype.bits();
        let in_bytes = |elements: u64| {
            let bits = elements.checked_mul(bits)?;
            bits.is_multiple_of(8).then_some(bits / 8)
        };
        let outer: Vec<(u64, u64, u64)> = outer
            .into_iter()
            .map(|(n, a, b)| Some((n, in_bytes(a)?, in_bytes(b)?)))
            .collect::<Option<_>>()?;
        let count = outer
            .iter()
            .try_fold(1u64, |all, (n, _, _)| all.checked_mul(*n))?;
        Some(Self {
            count,
            bytes: in_bytes(run)?,
            outer,
            from: in_bytes(from)?,
            to: in_bytes(to)?,
        })
    }

    /// One run of this many bytes that is the same in both.
    pub(crate) const fn flat(bytes: u64) -> Self {
        Self {
            count: 1,
            bytes,
            outer: Vec::new(),
            from: 0,
            to: 0,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0 || self.bytes == 0
    }

    /// How many runs.
    pub(crate) const fn len(&self) -> u64 {
        self.count
    }

    /// The run with this number, counted from 0.
    pub(crate) fn get(&self, number: u64) -> Run {
        let (mut rest, mut from, mut to) = (number, self.from, self.to);
        for &(n, from_stride, to_stride) in self.outer.iter().rev() {
            let index = rest % n;
            rest /= n;
            from += index * from_stride;
            to += index * to_stride;
        }
        Run { from, to }
    }

    /// The parts of runs that lie in a range of the source's bytes, as `(source, destination,
    /// length)`, in ascending order.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).from + self.bytes <= range.start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..self.count)
            .map(|number| self.get(number))
            .take_while(move |run| run.from < range.end)
            .map(move |run| {
                let start = run.from.max(range.start);
                let end = (run.from + self.bytes).min(range.end);
                (start, run.to + (start - run.from), end - start)
            })
            .filter(|(_, _, length)| *length > 0)
    }

    /// All of the source's bytes that are needed, as ranges that lie further apart than `near`.
    pub(crate) fn spans(&self, near: u64) -> Vec<Range<u64>> {
        // Runs of the innermost dimension that lie close together are one span without a look at each.
        let step = match self.outer.last() {
            Some((n, stride, _)) if stride.saturating_sub(self.bytes) <= near => *n,
            _ => 1,
        };
        let mut spans: Vec<Range<u64>> = Vec::new();
        let mut number = 0;
        while number < self.count {
            let start = self.get(number).from;
            let end = self.get(number + step - 1).from + self.bytes;
            match spans.last_mut() {
                Some(last) if start <= last.end.saturating_add(near) => last.end = end,
                _ => spans.push(start..end),
            }
            number += step;
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(offset: &[u64], shape: &[u64]) -> Extent {
        Extent {
            offset: offset.to_vec(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn chunks_are_those_of_torch_the_last_ones_smaller_or_empty() {
        let shapes: Vec<_> = (0..4)
            .map(|rank| Extent::chunk(&[2, 5], 1, rank, 4).expect("a rank"))
            .map(|part| (part.offset[1], part.shape[1]))
            .collect();
        assert_eq!(shapes, [(0, 2), (2, 2), (4, 1), (5, 0)]);
        assert_eq!(Extent::chunk(&[2, 5], 2, 0, 4), None);
        assert_eq!(Extent::chunk(&[2, 5], 0, 4, 4), None);
    }

    #[test]
    fn whole_rows_are_one_run_and_columns_one_run_a_row() {
        let all = Extent::whole(&[4, 6]);
        let rows = Runs::between(&all, &extent(&[1, 0], &[2, 6]), Dtype::F32).expect("bytes");
        assert_eq!((rows.len(), rows.bytes), (1, 48));
        assert_eq!(rows.get(0), Run { from: 24, to: 0 });
        let columns = Runs::between(&all, &extent(&[0, 4], &[4, 2]), Dtype::F32).expect("bytes");
        assert_eq!((columns.len(), columns.bytes), (4, 8));
        assert_eq!(columns.get(3), Run { from: 88, to: 24 });
        assert_eq!(columns.spans(0).len(), 4);
        assert_eq!(columns.spans(16).first(), Some(&(16..96)));
        let part: Vec<_> = columns.within(20..44).collect();
        assert_eq!(part, [(20, 4, 4), (40, 8, 4)]);
    }

    #[test]
    fn a_scalar_is_one_run_and_packed_elements_are_not_cut_inside_of_a_byte() {
        let scalar = Extent::whole(&[]);
        let runs = Runs::between(&scalar, &scalar, Dtype::F64).expect("bytes");
        assert_eq!((runs.len(), runs.bytes), (1, 8));
        let all = Extent::whole(&[4]);
        assert!(Runs::between(&all, &extent(&[1], &[2]), Dtype::F4).is_none());
        assert!(Runs::between(&all, &extent(&[2], &[2]), Dtype::F4).is_some());
    }

    /// A tensor's shape with two boxes inside.
    fn boxes() -> impl Strategy<Value = (Vec<u64>, Extent, Extent)> {
        let dim = (1u64..6).prop_flat_map(|length| {
            let part = || (0..length).prop_flat_map(move |o| (Just(o), 1..=length - o));
            (Just(length), part(), part())
        });
        proptest::collection::vec(dim, 0..4).prop_map(|dims| {
            let (mut a, mut b) = (Extent::default(), Extent::default());
            let mut shape = Vec::new();
            for (length, (ao, al), (bo, bl)) in dims {
                shape.push(length);
                a.offset.push(ao);
                a.shape.push(al);
                b.offset.push(bo);
                b.shape.push(bl);
            }
            (shape, a, b)
        })
    }

    /// The elements of a box in its own order, as their indexes in the tensor.
    fn indexes(shape: &[u64], part: &Extent) -> Vec<u64> {
        let mut all = vec![0u64];
        for (dim, &length) in shape.iter().enumerate() {
            all = all
                .iter()
                .flat_map(|at| part.along(dim).map(move |i| at * length + i))
                .collect();
        }
        all
    }

    proptest! {
        #[test]
        fn runs_copy_exactly_the_elements_in_common((shape, source, wanted) in boxes()) {
            let (from, to) = (indexes(&shape, &source), indexes(&shape, &wanted));
            let runs = Runs::between(&source, &wanted, Dtype::U8).expect("bytes");
            let mut got = vec![u64::MAX; to.len()];
            for (a, b, length) in runs.within(0..from.len() as u64) {
                for i in 0..length {
                    got[(b + i) as usize] = from[(a + i) as usize];
                }
            }
            for (got, wanted) in got.iter().zip(&to) {
                let expected = if from.contains(wanted) { *wanted } else { u64::MAX };
                prop_assert_eq!(*got, expected);
            }
            for cut in 0..from.len() as u64 {
                let whole: u64 = runs.within(0..from.len() as u64).map(|r| r.2).sum();
                let halves: u64 = runs.within(0..cut).chain(runs.within(cut..from.len() as u64)).map(|r| r.2).sum();
                prop_assert_eq!(whole, halves);
            }
        }
    }
}
