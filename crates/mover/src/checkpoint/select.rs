//! Which tensors to load, and which byte ranges of which files that is.

mod balance;
mod error;
mod pattern;
mod ranges;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crowfly_route::units::Bytes;

pub use balance::{BadRankSlice, MAX_RANKS, RankSlice};
pub use error::SelectError;

use super::header::Tensor;
use super::open::{Checkpoint, FileNumber, Kind, TensorId};
use crate::error::TransferError;
use crate::request::Piece;
use pattern::Patterns;

/// Gaps up to this many bytes between two selected tensors are read rather than skipped: a drive
/// delivers whole blocks of 4096 bytes, so leaving them out would save nothing.
pub const NEAR: Bytes = Bytes(4096);

/// What to pick from a checkpoint: everything, unless told otherwise.
#[derive(Clone, Debug)]
pub struct Selector {
    patterns: Option<Patterns>,
    slice: Option<RankSlice>,
    near: Bytes,
}

impl Default for Selector {
    fn default() -> Self {
        Self {
            patterns: None,
            slice: None,
            near: NEAR,
        }
    }
}

/// What to move: byte ranges, and where in them each tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The files with anything selected, by number.
    pub files: Vec<FileSelection>,
    /// Bytes of the selected tensors.
    pub tensor_bytes: Bytes,
}

impl Selection {
    /// The ranges as pieces of open files.
    ///
    /// # Errors
    /// When a file cannot be opened, or is no longer what its header was read from.
    pub fn pieces(&self, checkpoint: &Checkpoint) -> Result<Vec<Piece>, TransferError> {
        let mut pieces = Vec::new();
        for selected in &self.files {
            let Some(file) = checkpoint.file(selected.file) else {
                continue;
            };
            let source = Arc::new(file.source()?);
            pieces.extend(selected.ranges.iter().map(|range| Piece {
                source: Arc::clone(&source),
                range: range.clone(),
            }));
        }
        Ok(pieces)
    }
}

/// What to move from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSelection {
    /// The file.
    pub file: FileNumber,
    /// Byte ranges as offsets in the file: not empty, ascending, apart, aligned to nothing.
    pub ranges: Vec<Range<u64>>,
    /// The selected tensors in file order; none for a raw file.
    pub tensors: Vec<Placed>,
}

/// Where a selected tensor ends up when the ranges of its file are laid end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The tensor's place in its file's order.
    pub number: u32,
    /// The offset of its first byte in the ranges laid end to end.
    pub at: u64,
}

impl FileSelection {
    /// Bytes of all ranges.
    pub fn bytes(&self) -> Bytes {
        Bytes(
            self.ranges
                .iter()
                .map(|range| range.end - range.start)
                .sum(),
        )
    }
}

impl Selection {
    /// Bytes of all ranges: those of the tensors and of the small gaps between them.
    pub fn bytes(&self) -> Bytes {
        self.files.iter().map(FileSelection::bytes).sum()
    }

    /// How many tensors are selected.
    pub fn tensor_count(&self) -> usize {
        self.files.iter().map(|file| file.tensors.len()).sum()
    }
}

impl Selector {
    /// Picks only tensors whose name matches one of these globs: `*` stands for any characters, dots
    /// and slashes too, `?` for one, `[abc]` and `{a,b}` for a choice. No patterns pick everything.
    ///
    /// # Errors
    /// [`SelectError::BadPattern`].
    pub fn tensors<P: AsRef<str>>(mut self, patterns: &[P]) -> Result<Self, SelectError> {
        self.patterns = match patterns {
            [] => None,
            some => Some(Patterns::new(some)?),
        };
        Ok(self)
    }

    /// Picks only one rank's share of what the patterns leave.
    pub fn slice(mut self, slice: RankSlice) -> Self {
        self.slice = Some(slice);
        self
    }

    /// Reads gaps of up to this many bytes; [`NEAR`] unless set. With zero, only tensors that touch
    /// share a range and nothing unasked for is moved.
    pub fn near(mut self, near: Bytes) -> Self {
        self.near = near;
        self
    }

    /// Picks from a checkpoint.
    ///
    /// # Errors
    /// A pattern that matches nothing, or a rank without a share: see [`SelectError`].
    pub fn select(&self, checkpoint: &Checkpoint) -> Result<Selection, SelectError> {
        if *checkpoint.kind() == Kind::Raw {
            return self.whole_raw_file(checkpoint);
        }
        let mut picked: Vec<(TensorId, Tensor<'_>)> = match &self.patterns {
            Some(patterns) => patterns.pick(checkpoint)?,
            None => checkpoint.tensors().collect(),
        };
        if let Some(slice) = self.slice {
            picked = slice.share(picked)?;
        }
        Ok(self.lay_out(&picked))
    }

    fn whole_raw_file(&self, checkpoint: &Checkpoint) -> Result<Selection, SelectError> {
        if self.patterns.is_some() || self.slice.is_some() {
            return Err(SelectError::RawFile {
                path: checkpoint.path().to_owned(),
            });
        }
        let files = (0..)
            .zip(checkpoint.files())
            .map(|(number, file)| FileSelection {
                file: FileNumber(number),
                ranges: Some(file.data())
                    .filter(|r| !r.is_empty())
                    .into_iter()
                    .collect(),
                tensors: Vec::new(),
            })
            .collect();
        Ok(Selection {
            files,
            tensor_bytes: Bytes(0),
        })
    }

    /// `picked` is in the order of files and of each file's data.
    fn lay_out(&self, picked: &[(TensorId, Tensor<'_>)]) -> Selection {
        let mut files: BTreeMap<FileNumber, ranges::Layout> = BTreeMap::new();
        for (id, tensor) in picked {
            files
                .entry(id.file)
                .or_default()
                .add(id.number, &tensor.range, self.near);
        }
        Selection {
            files: files
                .into_iter()
                .map(|(file, layout)| layout.finish(file))
                .collect(),
            tensor_bytes: picked.iter().map(|(_, t)| Bytes(t.bytes())).sum(),
        }
    }
}
