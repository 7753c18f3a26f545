//! Bytes that pass by: each is checked and put where it belongs.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crowfly_route::units::Bytes;

use super::locked;
use crate::ckpt::archive::ArchiveError;
use crate::ckpt::extent::{Extent, Runs};
use crate::ckpt::manifest::Sums;
use crate::digest;
use crate::job::Sink;
use crate::memory::Target;

/// A part of a tensor of which bytes pass by.
pub(super) struct Placement {
    pub tensor: String,
    pub extent: Extent,
    pub file: usize,
    /// Its bytes in the file.
    pub range: std::ops::Range<u64>,
    /// What to hold them against.
    pub sums: Option<Sums>,
    /// Which of them go to which landing.
    pub copies: Vec<(usize, Runs)>,
}

/// Memory that bytes of several blocks are put into at the same time.
pub(super) struct Landing(Target);

impl Landing {
    pub(super) fn new(target: Target) -> Self {
        Self(target)
    }
}

/// What becomes of the bytes that pass by.
pub(super) struct Delivery {
    paths: Vec<PathBuf>,
    file_of_piece: Vec<usize>,
    /// By file and place in it; parts of one file do not overlap.
    placements: Vec<Placement>,
    landings: Vec<Landing>,
    faults: Mutex<Vec<(usize, u64, ArchiveError)>>,
    checked: AtomicU64,
    unchecked: AtomicU64,
}

impl Delivery {
    pub(super) fn new(
        paths: Vec<PathBuf>,
        file_of_piece: Vec<usize>,
        placements: Vec<Placement>,
        landings: Vec<Landing>,
    ) -> Self {
        Self {
            paths,
            file_of_piece,
            placements,
            landings,
            faults: Mutex::default(),
            checked: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
        }
    }

    /// What was found to be damaged, in the order of files.
    pub(super) fn faults(&self) -> Vec<ArchiveError> {
        let mut faults = std::mem::take(&mut *locked(&self.faults));
        faults.sort_by_key(|(file, offset, _)| (*file, *offset));
        faults.into_iter().map(|(_, _, fault)| fault).collect()
    }

    pub(super) fn checked(&self) -> Bytes {
        Bytes(self.checked.load(Ordering::Relaxed))
    }

    pub(super) fn unchecked(&self) -> Bytes {
        Bytes(self.unchecked.load(Ordering::Relaxed))
    }

    /// Counts all bytes as unchecked: nobody is shown them.
    pub(super) fn skip_all(&self) {
        let lengths = self.placements.iter().map(|p| p.range.end - p.range.start);
        self.unchecked.fetch_add(lengths.sum(), Ordering::Relaxed);
    }

    /// Whether a stretch of a part is what was saved; `None` when nothing tells.
    fn matches(placement: &Placement, start: u64, bytes: &[u8]) -> Option<bool> {
        let sums = placement.sums.as_ref()?;
        let end = start + bytes.len() as u64;
        let begins = start == placement.range.start || start.is_multiple_of(digest::GRID);
        let ends = end == placement.range.end || end.is_multiple_of(digest::GRID);
        // Bytes that only lie between others that were asked for may be cut anywhere.
        if !begins || !ends {
            return None;
        }
        let expected = sums.at(placement.range.start, start)?;
        Some(digest::piece(bytes) == expected)
    }

    fn deliver(&self, placement: &Placement, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        match Self::matches(placement, start, bytes) {
            Some(true) => self
                .checked
                .fetch_add(bytes.len() as u64, Ordering::Relaxed),
            None => self
                .unchecked
                .fetch_add(bytes.len() as u64, Ordering::Relaxed),
            Some(false) => {
                let fault = ArchiveError::Corrupt {
                    tensor: placement.tensor.as_str().into(),
                    part: placement.extent.clone(),
                    file: self.paths.get(placement.file).cloned().unwrap_or_default(),
                    range: start..end,
                };
                locked(&self.faults).push((placement.file, start, fault));
                return;
            }
        };
        let begin = placement.range.start;
        for (landing, runs) in &placement.copies {
            let Some(Landing(target)) = self.landings.get(*landing) else {
                continue;
            };
            for (from, to, length) in runs.within(start - begin..end - begin) {
                let at = (from - (start - begin)) as usize;
                if let Some(bytes) = bytes.get(at..at + length as usize) {
                    target.put(to as usize, bytes);
                }
            }
        }
    }
}

impl Sink for Delivery {
    fn take(&self, piece: usize, offset: u64, bytes: &[u8]) {
        let Some(&file) = self.file_of_piece.get(piece) else {
            return;
        };
        let end = offset + bytes.len() as u64;
        let first = self
            .placements
            .partition_point(|p| (p.file, p.range.end) <= (file, offset));
        for placement in self.placements.iter().skip(first) {
            if placement.file != file || placement.range.start >= end {
                break;
            }
            let start = placement.range.start.max(offset);
            let stop = placement.range.end.min(end);
            if let Some(bytes) = bytes.get((start - offset) as usize..(stop - offset) as usize) {
                self.deliver(placement, start, bytes);
            }
        }
    }
}
