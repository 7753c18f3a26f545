//! What has to be read for a restore or a verification, gathered and then started as one transfer.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::delivery::{Delivery, Landing, Placement};
use crate::checkpoint::select::NEAR;
use crate::ckpt::archive::{Archive, ArchiveError, ArchivedPart};
use crate::ckpt::extent::Runs;
use crate::digest;
use crate::engine::Engine;
use crate::gpu::Gpu;
use crate::job::Sink;
use crate::memory::Memory;
use crate::request::{Destination, Piece, Request};
use crate::transfer::Transfer;

/// What has to be read, and what is to become of it.
pub(super) struct Plan<'a> {
    archive: &'a Archive,
    check: bool,
    /// What is needed of each file.
    ranges: BTreeMap<usize, Vec<Range<u64>>>,
    /// By file and first byte of the part.
    placements: BTreeMap<(usize, u64), Placement>,
    landings: Vec<Landing>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(archive: &'a Archive, check: bool) -> Self {
        Self {
            archive,
            check,
            ranges: BTreeMap::new(),
            placements: BTreeMap::new(),
            landings: Vec::new(),
        }
    }

    pub(super) fn land(&mut self, memory: &Arc<Memory>, range: Range<usize>) -> usize {
        self.landings.push(Landing::new(memory.target(range)));
        self.landings.len() - 1
    }

    pub(super) fn placement(&mut self, tensor: &str, part: &ArchivedPart) -> &mut Placement {
        let sums = part.sums.as_ref().filter(|_| self.check);
        self.placements
            .entry((part.file, part.range.start))
            .or_insert_with(|| Placement {
                tensor: tensor.to_owned(),
                extent: part.extent.clone(),
                file: part.file,
                range: part.range.clone(),
                sums: sums.cloned(),
                copies: Vec::new(),
            })
    }

    /// Has these runs of a part read, and copied to a landing, if any.
    pub(super) fn need(
        &mut self,
        tensor: &str,
        part: &ArchivedPart,
        landing: Option<usize>,
        runs: Runs,
    ) {
        if part.range.is_empty() || runs.is_empty() {
            return;
        }
        let begin = part.range.start;
        let whole_blocks = self.check && part.sums.is_some();
        let spans = runs.spans(if whole_blocks { digest::GRID } else { NEAR.0 });
        let ranges = self.ranges.entry(part.file).or_default();
        for span in spans {
            let mut range = begin + span.start..begin + span.end;
            if whole_blocks {
                range.start = (range.start / digest::GRID * digest::GRID).max(begin);
                range.end = range.end.next_multiple_of(digest::GRID).min(part.range.end);
            }
            ranges.push(range);
        }
        let copies = landing.map(|landing| (landing, runs));
        self.placement(tensor, part).copies.extend(copies);
    }

    /// Has all of a part read and checked.
    pub(super) fn look(&mut self, tensor: &str, part: &ArchivedPart) {
        let ranges = self.ranges.entry(part.file).or_default();
        ranges.push(part.range.clone());
        self.placement(tensor, part);
    }

    /// Starts the reading, into a GPU's memory or past a sink; answers also what of which files is read.
    pub(super) fn start(
        self,
        engine: &Engine,
        policy: Policy,
        gpu: Option<&Arc<Gpu>>,
    ) -> Result<Started, ArchiveError> {
        let mut pieces = Vec::new();
        let mut stretches = Vec::new();
        for (file, ranges) in self.ranges {
            let Some(opened) = self.archive.files.get(file) else {
                continue;
            };
            let source = opened.source()?;
            for range in merged(ranges) {
                stretches.push((file, range.clone()));
                pieces.push(Piece {
                    source: Arc::clone(&source),
                    range,
                });
            }
        }
        let paths = self.archive.files.iter().map(|file| file.path.clone());
        let checks = self.placements.values().any(|p| p.sums.is_some());
        let delivery = Arc::new(Delivery::new(
            paths.collect(),
            stretches.iter().map(|(file, _)| *file).collect(),
            self.placements.into_values().collect(),
            self.landings,
        ));
        if pieces.is_empty() {
            return Ok((None, delivery, stretches));
        }
        let from = Place::File(self.archive.path().display().to_string());
        let sink: Arc<dyn Sink> = Arc::clone(&delivery) as _;
        let (destination, watch) = match gpu {
            None => (Destination::Transit(Some(sink)), None),
            Some(gpu) => {
                if !checks {
                    delivery.skip_all();
                }
                let destination = Destination::Gpu(Arc::clone(gpu));
                (destination, checks.then_some(sink))
            }
        };
        let transfer = engine.load(Request {
            destination,
            policy,
            watch,
            ..Request::to_host(from, pieces)
        })?;
        Ok((Some(transfer), delivery, stretches))
    }
}

/// A transfer that was started, if there is anything to read; who looks at the bytes; and what of which files
/// is read.
pub(super) type Started = (Option<Transfer>, Arc<Delivery>, Vec<(usize, Range<u64>)>);

/// Ascending ranges that lie further apart than a drive's block.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(NEAR.0) => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}
