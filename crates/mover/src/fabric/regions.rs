//! The regions that peers can reach, by the capability they must present.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use super::identity::Capability;
use super::memory::Span;
use super::provider::Flush;
use super::region::RegionCore;
use super::wire::{Access, Status};

/// The regions that peers can reach.
#[derive(Default)]
pub(crate) struct Regions {
    known: RwLock<HashMap<Capability, Arc<RegionCore>>>,
    /// What makes visible what NICs write into those that need it.
    flushes: RwLock<HashMap<Capability, Vec<Flush>>>,
}

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Read,
    Write,
}

impl Regions {
    /// Makes visible to GPUs what NICs wrote into regions that peers can write to, before this process
    /// is told of it.
    pub(crate) fn make_visible(&self) {
        let flushes = self.flushes.read().unwrap_or_else(PoisonError::into_inner);
        let written: Vec<Flush> = flushes.values().flatten().cloned().collect();
        drop(flushes);
        for flush in written {
            // What comes of it stands in the receipts of this process's own transfers.
            let _ = flush();
        }
    }

    pub(crate) fn insert(&self, region: &Arc<RegionCore>) {
        let capability = region.descriptor.capability();
        let done = region.registrations.done.iter();
        let flushes: Vec<Flush> = done
            .filter(|_| region.descriptor.access().allows_write())
            .filter_map(|known| known.registration.flush.clone())
            .collect();
        if !flushes.is_empty() {
            let mut known = self.flushes.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(capability, flushes);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(capability, Arc::clone(region));
    }

    pub(crate) fn remove(&self, region: &RegionCore) {
        let capability = region.descriptor.capability();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.remove(&capability);
        drop(known);
        let mut flushes = self.flushes.write().unwrap_or_else(PoisonError::into_inner);
        flushes.remove(&capability);
    }

    /// The region that a peer may reach in this way.
    pub(crate) fn find(
        &self,
        capability: &Capability,
        wish: Wish,
    ) -> Result<Arc<RegionCore>, Status> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let region = known.get(capability).ok_or(Status::NoSuchRegion)?;
        let access = region.descriptor.access();
        let allowed = match wish {
            Wish::Read => access.allows_read(),
            Wish::Write => access.allows_write(),
        };
        if region.gate.is_closed() {
            Err(Status::NoSuchRegion)
        } else if allowed {
            Ok(Arc::clone(region))
        } else {
            Err(Status::NotAllowed)
        }
    }

    /// The parts of a region that a peer's frame names, checked against the region.
    pub(crate) fn resolve(
        &self,
        wanted: &Access,
        wish: Wish,
    ) -> Result<(Arc<RegionCore>, VecDeque<Span>), Status> {
        let region = self.find(&wanted.capability, wish)?;
        let mut spans = VecDeque::with_capacity(wanted.runs.len());
        for (offset, len) in wanted.runs.iter().filter(|(_, len)| *len > 0) {
            let span = usize::try_from(*offset).ok().and_then(|start| {
                let end = start.checked_add(*len as usize)?;
                region.span(start..end)
            });
            spans.push_back(span.ok_or(Status::OutOfBounds)?);
        }
        Ok((region, spans))
    }
}
