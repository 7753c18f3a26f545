//! What is saved: borrowed tensors, or one rank's parts of them, and small values beside them.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::error::SaveError;
use super::extent::Extent;
use super::manifest::TensorEntry;
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::header::{MAX_DIMENSIONS, MAX_TENSORS};

/// The most bytes that the values beside the tensors of one rank may take as JSON.
pub const MAX_OBJECT_BYTES: usize = 64 << 20;

/// One tensor, or this rank's part of it, in host memory: row-major, contiguous, little-endian.
#[derive(Clone, Copy, Debug)]
pub struct TensorPart<'a> {
    /// The tensor's name, the same on every rank.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Elements of the whole tensor along each dimension; empty for a scalar.
    pub global_shape: &'a [u64],
    /// Where this part begins along each dimension.
    pub offset: &'a [u64],
    /// Elements of this part along each dimension.
    pub shape: &'a [u64],
    /// The bytes of this part.
    pub bytes: &'a [u8],
    /// Whether every rank holds this same part, so that it is enough that one of them writes it.
    /// The ranks then divide such tensors among themselves, for which all must name the same ones.
    pub replicated: bool,
}

const ZEROS: [u64; MAX_DIMENSIONS] = [0; MAX_DIMENSIONS];

impl<'a> TensorPart<'a> {
    /// A tensor of which this rank alone holds everything.
    pub fn whole(name: &'a str, dtype: Dtype, shape: &'a [u64], bytes: &'a [u8]) -> Self {
        Self {
            name,
            dtype,
            global_shape: shape,
            offset: ZEROS.get(..shape.len()).unwrap_or_default(),
            shape,
            bytes,
            replicated: false,
        }
    }

    /// A tensor of which every rank holds everything.
    pub fn replicated(name: &'a str, dtype: Dtype, shape: &'a [u64], bytes: &'a [u8]) -> Self {
        Self {
            replicated: true,
            ..Self::whole(name, dtype, shape, bytes)
        }
    }

    /// The box of the tensor that this part is.
    pub fn extent(&self) -> Extent {
        Extent {
            offset: self.offset.to_vec(),
            shape: self.shape.to_vec(),
        }
    }

    fn check(&self) -> Result<(), SaveError> {
        let refuse = |what: String| SaveError::BadTensor {
            tensor: self.name.into(),
            what,
        };
        if self.global_shape.len() > MAX_DIMENSIONS {
            let most = format!(
                "{} dimensions; at most {MAX_DIMENSIONS} are allowed",
                self.global_shape.len()
            );
            return Err(refuse(most));
        }
        let extent = self.extent();
        if !extent.fits(self.global_shape) {
            return Err(refuse(format!(
                "the part {extent} does not lie in a tensor of shape {:?}",
                self.global_shape
            )));
        }
        let size = |shape: &[u64]| {
            self.dtype.bytes_of(shape).map_err(|fault| {
                refuse(format!(
                    "{} of shape {shape:?} has no size in bytes: {fault:?}",
                    self.dtype
                ))
            })
        };
        size(self.global_shape)?;
        let needed = size(self.shape)?;
        if needed != self.bytes.len() as u64 {
            return Err(refuse(format!(
                "{} of shape {:?} takes {needed} bytes; {} were given",
                self.dtype,
                self.shape,
                self.bytes.len()
            )));
        }
        Ok(())
    }
}

/// What one rank saves.
#[derive(Clone, Debug, Default)]
pub struct State<'a> {
    /// The tensors, in any order. One tensor may come in several parts.
    pub tensors: Vec<TensorPart<'a>>,
    /// Small values beside the tensors: the step, hyper-parameters, the position of a data loader.
    pub objects: BTreeMap<String, Value>,
}

impl State<'_> {
    /// Checks every tensor by itself and all of them together.
    pub(super) fn check(&self) -> Result<(), SaveError> {
        if self.tensors.len() > MAX_TENSORS {
            return Err(SaveError::BadState {
                what: format!(
                    "{} tensors; at most {MAX_TENSORS} are allowed",
                    self.tensors.len()
                ),
            });
        }
        let mut seen = HashSet::new();
        let mut kinds = HashMap::new();
        for part in &self.tensors {
            part.check()?;
            let kind = (part.dtype, part.global_shape, part.replicated);
            if *kinds.entry(part.name).or_insert(kind) != kind {
                return Err(SaveError::BadTensor {
                    tensor: part.name.into(),
                    what: "its parts differ in type, in the shape of the whole or in being \
                           replicated"
                        .into(),
                });
            }
            if !seen.insert((part.name, part.offset)) {
                return Err(SaveError::BadTensor {
                    tensor: part.name.into(),
                    what: format!("the part {} was given twice", part.extent()),
                });
            }
        }
        let bytes = serde_json::to_vec(&self.objects).map_err(|e| SaveError::BadState {
            what: format!("the values beside the tensors are no JSON: {e}"),
        })?;
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(SaveError::BadState {
                what: format!(
                    "the values beside the tensors take {} bytes as JSON; at most \
                     {MAX_OBJECT_BYTES} are allowed: save large ones as tensors",
                    bytes.len()
                ),
            });
        }
        Ok(())
    }

    /// All tensors that this rank knows of, without their parts.
    pub(super) fn known(&self) -> BTreeMap<String, TensorEntry> {
        let entry = |part: &TensorPart<'_>| TensorEntry {
            dtype: part.dtype.name().to_owned(),
            shape: part.global_shape.to_vec(),
            parts: Vec::new(),
        };
        let named = self.tensors.iter();
        named
            .map(|part| (part.name.to_owned(), entry(part)))
            .collect()
    }

    /// The parts that this rank writes: its own, and its share of what every rank holds.
    ///
    /// The replicated ones are dealt out from the largest to the smallest, each to the rank with the
    /// fewest bytes of them so far, which every rank works out alike.
    pub(super) fn mine(&self, rank: u32, world: u32) -> Vec<&TensorPart<'_>> {
        let mut shared: Vec<&TensorPart<'_>> =
            self.tensors.iter().filter(|part| part.replicated).collect();
        shared.sort_by_key(|part| (std::cmp::Reverse(part.bytes.len()), part.name, part.offset));
        let mut loads: std::collections::BinaryHeap<std::cmp::Reverse<(usize, u32)>> = (0..world)
            .map(|rank| std::cmp::Reverse((0, rank)))
            .collect();
        let mut mine: Vec<&TensorPart<'_>> = self
            .tensors
            .iter()
            .filter(|part| !part.replicated)
            .collect();
        for part in shared {
            let Some(std::cmp::Reverse((load, owner))) = loads.pop() else {
                break;
            };
            if owner == rank {
                mine.push(part);
            }
            // An empty tensor still costs its place, so that many of them do not all fall to one rank.
            loads.push(std::cmp::Reverse((load + part.bytes.len().max(1), owner)));
        }
        mine
    }
}
