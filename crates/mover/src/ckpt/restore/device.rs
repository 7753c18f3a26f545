//! Restoring into a GPU's memory: the stretches of files that are needed come by the engine's ways to
//! it, and tensors are parts of them, or are put together from them by the GPU.

use std::ops::Range;
use std::sync::Arc;

use crowfly_machine::gpu::{InFlight, Stream};
use crowfly_machine::verbs::Pinned;
use crowfly_route::units::Bytes;

use super::gather::Reorder;
use super::{Restored, Runs};
use crate::ckpt::archive::{ArchiveError, ArchivedPart};
use crate::error::TransferError;
use crate::gpu::{DeviceMemory, Gpu};
use crate::memory::{Memory, MemoryError, Region};

/// Runs of bytes that the GPU copies one by one for a part of a tensor. Where there are more, they are put
/// in order in host memory, and the tensor is copied as one.
const MOST_RUNS: u64 = 4096;

/// Copies that are under way at a time.
const MOST_IN_FLIGHT: usize = 256;

/// What a tensor is made of.
pub(super) struct Composed {
    /// How many bytes.
    pub bytes: usize,
    /// The parts that hold them.
    pub sources: Vec<Needed>,
}

/// What is needed of a part.
pub(super) struct Needed {
    pub part: ArchivedPart,
    /// Its runs; `None` where its elements lie in another order than row by row.
    pub runs: Option<Runs>,
}

/// How the tensors come to be from the stretches that were loaded.
pub(super) struct Assembly {
    pub gpu: Arc<Gpu>,
    /// One for each wanted tensor.
    pub composed: Vec<Composed>,
    /// What was loaded: file and range, ascending.
    pub stretches: Vec<(usize, Range<u64>)>,
}

/// What is loaded, in a GPU's memory.
struct Stretches<'a> {
    known: &'a [(usize, Range<u64>)],
    regions: &'a [Region],
}

impl Stretches<'_> {
    /// The part of a region that holds these bytes of a file.
    fn find(&self, file: usize, range: &Range<u64>) -> Option<(usize, Region)> {
        let after = |(f, r): &(usize, Range<u64>)| (*f, r.start) <= (file, range.start);
        let number = self.known.partition_point(after).checked_sub(1)?;
        let (found, stretch) = self.known.get(number)?;
        let inside = *found == file && range.end <= stretch.end;
        let part = (range.start - stretch.start) as usize..(range.end - stretch.start) as usize;
        let region = self.regions.get(number).filter(|_| inside)?;
        Some((number, region.part(part)?))
    }

    /// All that was loaded of a part: where in the part it begins, and the bytes.
    fn of(&self, part: &ArchivedPart) -> impl Iterator<Item = (u64, Region)> {
        let both = self.known.iter().zip(self.regions);
        both.filter_map(|((file, stretch), region)| {
            let start = stretch.start.max(part.range.start);
            let end = stretch.end.min(part.range.end);
            let inside = *file == part.file && start < end;
            let within = (start.max(stretch.start) - stretch.start) as usize
                ..(end.max(stretch.start) - stretch.start) as usize;
            let region = inside.then(|| region.part(within)).flatten()?;
            Some((start - part.range.start, region))
        })
    }
}

impl Composed {
    /// The bytes of a file that the tensor is, if it is one stretch of one.
    fn straight(&self) -> Option<(usize, Range<u64>)> {
        let [Needed { part, runs }] = self.sources.as_slice() else {
            return None;
        };
        let runs = runs.as_ref().filter(|runs| runs.len() == 1)?;
        let begin = part.range.start + runs.get(0).from;
        let whole = runs.bytes == self.bytes as u64;
        whole.then_some((part.file, begin..begin + runs.bytes))
    }
}

impl Assembly {
    /// Gives the tensors their memory; answers how many bytes went through host memory for it.
    ///
    /// # Errors
    /// When the GPU has no memory left, or fails.
    pub(super) fn run(
        &self,
        regions: &[Region],
        tensors: &mut [Restored],
    ) -> Result<Bytes, ArchiveError> {
        let stretches = Stretches {
            known: &self.stretches,
            regions,
        };
        let straight: Vec<Option<(usize, Region)>> = self
            .composed
            .iter()
            .map(|composed| {
                let (file, range) = composed.straight()?;
                stretches.find(file, &range)
            })
            .collect();
        let mut used = vec![0usize; regions.len()];
        for (number, region) in straight.iter().flatten() {
            if let Some(used) = used.get_mut(*number) {
                *used += region.len();
            }
        }
        // A tensor keeps all of the stretch that it is a part of.
        let stays = |number: usize| {
            let used = used.get(number).copied().unwrap_or(0);
            regions.get(number).is_some_and(|r| used * 2 >= r.len())
        };
        let mut staged = Bytes(0);
        let all = self.composed.iter().zip(straight).zip(tensors);
        for ((composed, straight), tensor) in all {
            tensor.bytes = match straight {
                Some((number, region)) if stays(number) => region,
                _ => self.put_together(composed, &stretches, tensor, &mut staged)?,
            };
        }
        Ok(staged)
    }

    fn put_together(
        &self,
        composed: &Composed,
        stretches: &Stretches<'_>,
        tensor: &Restored,
        staged: &mut Bytes,
    ) -> Result<Region, ArchiveError> {
        let memory = DeviceMemory::allocate(self.gpu.device(), composed.bytes);
        let memory = memory.map_err(|source| MemoryError::Gpu {
            gpu: self.gpu.index(),
            bytes: composed.bytes,
            source,
        })?;
        let by_gpu = composed.sources.iter().all(|needed| {
            let few = |runs: &Runs| runs.len() <= MOST_RUNS;
            needed.runs.as_ref().is_some_and(few)
        });
        if by_gpu {
            self.copy_runs(composed, stretches, &memory)?;
        } else {
            self.through_host(composed, stretches, tensor, &memory)?;
            *staged += Bytes(composed.bytes as u64);
        }
        Ok(Region::of_gpu(self.gpu.index(), memory)?)
    }

    fn failed(&self, source: crowfly_machine::gpu::GpuError) -> ArchiveError {
        ArchiveError::Transfer(TransferError::Gpu {
            path: self.gpu.place().to_string(),
            offset: 0,
            source,
        })
    }

    /// Has the GPU copy every run to its place.
    fn copy_runs(
        &self,
        composed: &Composed,
        stretches: &Stretches<'_>,
        memory: &Arc<DeviceMemory>,
    ) -> Result<(), ArchiveError> {
        let failed = |source| self.failed(source);
        let stream = Stream::new(self.gpu.device()).map_err(failed)?;
        let mut flights: Vec<InFlight> = Vec::new();
        for Needed { part, runs } in &composed.sources {
            let Some(runs) = runs else { continue };
            for number in 0..runs.len() {
                let run = runs.get(number);
                let begin = part.range.start + run.from;
                let found = stretches.find(part.file, &(begin..begin + runs.bytes));
                let (_, region) = found.ok_or_else(lost)?;
                let (from, range) = region.device().ok_or_else(lost)?;
                let copy = stream.copy_across(memory, run.to as usize, from, range);
                flights.push(copy.map_err(failed)?);
                if flights.len() >= MOST_IN_FLIGHT {
                    flights
                        .drain(..)
                        .try_for_each(InFlight::wait)
                        .map_err(failed)?;
                }
            }
        }
        flights
            .into_iter()
            .try_for_each(InFlight::wait)
            .map_err(failed)
    }

    /// Puts the tensor together in host memory, and copies it as one.
    fn through_host(
        &self,
        composed: &Composed,
        stretches: &Stretches<'_>,
        tensor: &Restored,
        memory: &Arc<DeviceMemory>,
    ) -> Result<(), ArchiveError> {
        let host = Memory::host(composed.bytes, self.gpu.device().facts().numa)?;
        let whole = Region::new(Arc::clone(&host), 0..composed.bytes);
        for Needed { part, runs } in &composed.sources {
            for (begin, region) in stretches.of(part) {
                let raw = Memory::host(region.len(), None)?;
                let raw = fetched(&region, Region::new(raw, 0..region.len()))?;
                match runs {
                    Some(runs) => {
                        let target = host.target(0..composed.bytes);
                        let bytes = raw.as_slice().ok_or_else(lost)?;
                        for (from, to, length) in runs.within(begin..begin + bytes.len() as u64) {
                            let at = (from - begin) as usize;
                            let run = bytes.get(at..at + length as usize).ok_or_else(lost)?;
                            target.put(to as usize, run);
                        }
                    }
                    None => Reorder {
                        raw,
                        part: part.extent.clone(),
                        strides: part.strides.clone().unwrap_or_default(),
                        dtype: tensor.dtype,
                        into: 0,
                    }
                    .run(&tensor.extent, &whole)?,
                }
            }
        }
        let stream = Stream::new(self.gpu.device()).map_err(|source| self.failed(source))?;
        let host: Arc<dyn Pinned> = host as _;
        let copy = stream.copy_in(memory, 0, &host, 0..composed.bytes);
        copy.and_then(InFlight::wait)
            .map_err(|source| self.failed(source))
    }
}

/// Bytes of a GPU's memory, in host memory.
fn fetched(from: &Region, mut into: Region) -> Result<Region, ArchiveError> {
    let out = into.as_mut_slice().ok_or_else(lost)?;
    let read = from.read_at(0, out).map_err(|_| lost())?;
    if read < from.len() {
        return Err(lost());
    }
    Ok(into)
}

fn lost() -> ArchiveError {
    ArchiveError::Transfer(TransferError::MemoryGone {
        path: "a restored tensor".into(),
        offset: 0,
    })
}
