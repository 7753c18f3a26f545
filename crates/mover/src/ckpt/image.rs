//! The file that one rank writes, as an image that is never in memory as a whole.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::error::SaveError;
use super::manifest::{PartEntry, Sums, TensorEntry};
use super::state::TensorPart;
use crate::checkpoint::header;
use crate::digest;
use crate::save::gather;

/// A safetensors file: its header, and the borrowed tensors that follow it.
pub(super) struct Image<'a> {
    header: Vec<u8>,
    parts: Vec<Placed<'a>>,
    length: u64,
}

struct Placed<'a> {
    part: &'a TensorPart<'a>,
    key: String,
    range: Range<u64>,
}

/// What of an image is still needed once its bytes are copied.
pub(super) struct Contents {
    /// The file's length.
    pub(super) length: u64,
    parts: Vec<Outline>,
}

struct Outline {
    name: String,
    key: String,
    dtype: &'static str,
    global_shape: Vec<u64>,
    offset: Vec<u64>,
    shape: Vec<u64>,
    range: Range<u64>,
}

impl<'a> Image<'a> {
    /// Lays the parts out: the widest elements first, so that every tensor is aligned to its own.
    ///
    /// # Errors
    /// Names that no safetensors file may hold.
    pub(super) fn new(mut parts: Vec<&'a TensorPart<'a>>, step: u64) -> Result<Self, SaveError> {
        parts.sort_by_key(|part| (std::cmp::Reverse(part.dtype.bits()), part.name, part.offset));
        let names: HashSet<&str> = parts.iter().map(|part| part.name).collect();
        let mut keys: Vec<String> = Vec::with_capacity(parts.len());
        let mut taken: HashSet<String> = HashSet::new();
        for part in &parts {
            let mut key = part.name.to_owned();
            let mut number = 1u32;
            // A tensor's second part needs a key of its own, which must not be another tensor's name.
            while taken.contains(&key) || (number > 1 && names.contains(key.as_str())) {
                number += 1;
                key = format!("{}#{number}", part.name);
            }
            taken.insert(key.clone());
            keys.push(key);
        }
        let step = step.to_string();
        let metadata = [("format", "pt"), ("crowfly.step", step.as_str())];
        let tensors = parts
            .iter()
            .zip(&keys)
            .map(|(part, key)| (key.as_str(), part.dtype, part.shape));
        let (header, parsed) = header::encode(&metadata, tensors)?;
        let mut at = parsed.data().start;
        let length = parsed.data().end;
        let parts = parts
            .into_iter()
            .zip(keys)
            .map(|(part, key)| {
                let begin = at;
                at += part.bytes.len() as u64;
                Placed {
                    part,
                    key,
                    range: begin..at,
                }
            })
            .collect();
        Ok(Self {
            header,
            parts,
            length,
        })
    }

    /// The file's length.
    pub(super) const fn len(&self) -> u64 {
        self.length
    }

    /// Bytes of its tensors.
    pub(super) fn tensor_bytes(&self) -> u64 {
        self.parts
            .iter()
            .map(|placed| placed.part.bytes.len() as u64)
            .sum()
    }

    /// Copies the image's bytes from `at` on into `out`, as many as both have; how many.
    pub(super) fn copy(&self, at: u64, out: &mut [u8]) -> usize {
        let header = std::iter::once((0..self.header.len() as u64, self.header.as_slice()));
        let first = self.parts.partition_point(|placed| placed.range.end <= at);
        let parts = self.parts.iter().skip(first);
        let parts = parts.map(|placed| (placed.range.clone(), placed.part.bytes));
        gather(header.chain(parts), at, out)
    }

    /// What stays when the borrowed bytes are gone.
    pub(super) fn contents(&self) -> Contents {
        let outline = |placed: &Placed<'_>| Outline {
            name: placed.part.name.to_owned(),
            key: placed.key.clone(),
            dtype: placed.part.dtype.name(),
            global_shape: placed.part.global_shape.to_vec(),
            offset: placed.part.offset.to_vec(),
            shape: placed.part.shape.to_vec(),
            range: placed.range.clone(),
        };
        Contents {
            length: self.length,
            parts: self.parts.iter().map(outline).collect(),
        }
    }
}

/// Hashes an image as it passes, in order.
pub(super) struct Summing {
    sums: Vec<Sums>,
    /// The first part that may not be finished.
    next: usize,
}

impl Summing {
    pub(super) fn new(contents: &Contents) -> Self {
        Self {
            sums: vec![Sums::default(); contents.parts.len()],
            next: 0,
        }
    }

    /// Takes the image's bytes from `at` on. Calls follow each other without gaps, and all but the
    /// last end on the grid.
    pub(super) fn take(&mut self, contents: &Contents, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        while let Some(outline) = contents.parts.get(self.next) {
            let range = outline.range.start.max(at)..outline.range.end.min(end);
            if outline.range.start >= end {
                break;
            }
            for stretch in digest::grid(range) {
                let part = (stretch.start - at) as usize..(stretch.end - at) as usize;
                if let (Some(sums), Some(bytes)) = (self.sums.get_mut(self.next), bytes.get(part)) {
                    sums.push(digest::piece(bytes));
                }
            }
            if outline.range.end > end {
                break;
            }
            self.next += 1;
        }
    }

    /// The tensors of the file for its manifest.
    pub(super) fn finish(self, contents: Contents, file: u32) -> BTreeMap<String, TensorEntry> {
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (outline, sums) in contents.parts.into_iter().zip(self.sums) {
            let entry = tensors.entry(outline.name).or_insert_with(|| TensorEntry {
                dtype: outline.dtype.to_owned(),
                shape: outline.global_shape,
                parts: Vec::new(),
            });
            entry.parts.push(PartEntry {
                file,
                key: outline.key,
                offset: outline.offset,
                shape: outline.shape,
                begin: outline.range.start,
                end: outline.range.end,
                sums: sums.encode(),
            });
        }
        tensors
    }
}
