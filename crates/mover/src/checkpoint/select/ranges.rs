//! Tensors of one file joined into ranges.

use std::ops::Range;

use crowfly_route::units::Bytes;

use super::{FileSelection, Placed};
use crate::checkpoint::open::FileNumber;

/// The ranges of one file while its tensors arrive in the order of their data.
#[derive(Debug, Default)]
pub(super) struct Layout {
    ranges: Vec<Range<u64>>,
    tensors: Vec<Placed>,
    laid: u64,
}

impl Layout {
    pub(super) fn add(&mut self, number: u32, bytes: &Range<u64>, near: Bytes) {
        if bytes.is_empty() {
            let at = self.laid;
            self.tensors.push(Placed { number, at });
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if bytes.start.saturating_sub(last.end) <= near.0 => {
                self.laid += bytes.end - last.end;
                last.end = bytes.end;
            }
            _ => {
                self.laid += bytes.end - bytes.start;
                self.ranges.push(bytes.clone());
            }
        }
        let at = self.laid - (bytes.end - bytes.start);
        self.tensors.push(Placed { number, at });
    }

    pub(super) fn finish(self, file: FileNumber) -> FileSelection {
        FileSelection {
            file,
            ranges: self.ranges,
            tensors: self.tensors,
        }
    }
}
