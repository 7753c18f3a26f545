//! The regions that peers can reach, by the capability they must present.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use super::identity::Capability;
use super::memory::Span;
use super::region::RegionCore;
use super::wire::{Access, Status};

/// The regions that peers can reach.
#[derive(Default)]
pub(crate) struct Regions(RwLock<HashMap<Capability, Arc<RegionCore>>>);

/// What a peer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Read,
    Write,
}

impl Regions {
    pub(crate) fn insert(&self, region: &Arc<RegionCore>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(region.descriptor.capability(), Arc::clone(region));
    }

    pub(crate) fn remove(&self, region: &RegionCore) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.remove(&region.descriptor.capability());
    }

    /// The region that a peer may reach in this way.
    pub(crate) fn find(
        &self,
        capability: &Capability,
        wish: Wish,
    ) -> Result<Arc<RegionCore>, Status> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
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
