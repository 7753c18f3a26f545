//! What a peer asks for that moves bytes between storage and its memory.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::Duration;

use crowfly_machine::usage;
use crowfly_route::policy::Policy;

use super::{Open, RECEIVED, SENT, Session, of_storage};
use crate::engine::since;
use crate::fabric::Options;
use crate::pass;
use crate::service::account::{Doing, Legs};
use crate::service::error::ServiceError;
use crate::service::exports::Exposed;
use crate::service::limits::{MAX_WORK, PART};
use crate::service::message::{Answer, Part};
use crate::service::name::Name;
use crate::service::ring::{Slot, sums_of};

impl Session {
    /// The bytes of a part, inside of a file of `size` bytes and of the peer's memory.
    pub(super) fn range(&self, part: &Part, size: u64) -> Result<Range<u64>, ServiceError> {
        let end = part.offset.checked_add(u64::from(part.len));
        let there = part.at.checked_add(u64::from(part.len));
        let fits =
            end.is_some_and(|end| end <= size) && there.is_some_and(|end| end <= self.memory.len());
        let whole = part.offset.is_multiple_of(PART) && u64::from(part.len) <= PART;
        match end {
            Some(end) if fits && whole => Ok(part.offset..end),
            _ => Err(self.violation("a part lies outside of its file, its memory or the grid")),
        }
    }

    pub(super) fn options(part: &Part, policy: Policy) -> Options {
        let within = Duration::from_millis(u64::from(part.within_ms)).min(MAX_WORK);
        Options::within(within).by(policy)
    }

    pub(super) fn read(
        &self,
        part: &Part,
        sums: bool,
        slot: Slot<'_>,
    ) -> Result<Answer, ServiceError> {
        let open = self.file(part.file)?;
        let Open::Reading {
            source,
            policy,
            legs,
        } = &*open
        else {
            return Err(self.violation("the file is open for writing"));
        };
        let range = self.range(part, source.size())?;
        let there = self.memory.slice(part.at..part.at + u64::from(part.len))?;
        let len = part.len as usize;
        let ledger = pass::read(source, range, &slot.spot()?, of_storage(*policy))?;
        source.unchanged()?;
        legs.stored(Doing::Reading, ledger);
        let sums = match sums {
            true => hashed(&slot, len, legs, Doing::Reading)?,
            false => Vec::new(),
        };
        let options = Self::options(part, *policy);
        let delivery = self.peer.write(&slot.local(len)?, &there, options).wait()?;
        self.shared
            .metrics
            .moved(&self.label, &delivery.receipt.shares, SENT);
        legs.crossed(Doing::Crossing, delivery);
        Ok(Answer::Sums(sums))
    }

    pub(super) fn write(
        &self,
        part: &Part,
        sums: Vec<u64>,
        slot: Slot<'_>,
    ) -> Result<Answer, ServiceError> {
        let open = self.file(part.file)?;
        let Open::Writing {
            partial,
            resume,
            policy,
            legs,
        } = &*open
        else {
            return Err(self.violation("the file is open for reading"));
        };
        let partial = partial.read().unwrap_or_else(PoisonError::into_inner);
        let partial = partial
            .as_ref()
            .ok_or_else(|| self.violation("the file is finished"))?;
        let range = self.range(part, partial.length())?;
        let there = self.memory.slice(part.at..part.at + u64::from(part.len))?;
        let len = part.len as usize;
        let options = Self::options(part, *policy);
        let delivery = self.peer.read(&slot.local(len)?, &there, options).wait()?;
        self.shared
            .metrics
            .moved(&self.label, &delivery.receipt.shares, RECEIVED);
        legs.crossed(Doing::Crossing, delivery);
        let found = match *resume || !sums.is_empty() {
            true => hashed(&slot, len, legs, Doing::Writing)?,
            false => Vec::new(),
        };
        if !sums.is_empty() {
            same(partial.shown(), range.start, &sums, &found)?;
        }
        let ledger = partial.write(range, &slot.spot()?, &found)?;
        legs.stored(Doing::Writing, ledger);
        Ok(Answer::Sums(found))
    }

    pub(super) fn commit(&self, number: u32) -> Result<Answer, ServiceError> {
        let open = self.file(number)?;
        let Open::Writing { partial, .. } = &*open else {
            return Err(self.violation("the file is open for reading"));
        };
        // Behind whatever is still being written to it.
        let mut partial = partial.write().unwrap_or_else(PoisonError::into_inner);
        let finished = partial
            .take()
            .ok_or_else(|| self.violation("the file is finished"))?;
        let digest = finished.digest();
        let published = finished.publish();
        let open = self.let_go(number, if published.is_ok() { "whole" } else { "failed" })?;
        published?;
        Ok(Answer::Account {
            digest,
            legs: open.legs().to_json(),
        })
    }

    pub(super) fn sums(&self, name: &Name, offset: u64, len: u32) -> Result<Answer, ServiceError> {
        let Exposed::Memory(region) = self.shared.exports.get(name)? else {
            return Err(ServiceError::WrongKind {
                path: name.to_string(),
                found: "a file or folder",
                wanted: "memory",
            });
        };
        let inside = offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= region.len() as u64);
        if !inside || u64::from(len) > PART || !offset.is_multiple_of(PART) {
            return Err(self.violation("a part lies outside of the memory or the grid"));
        }
        Ok(Answer::Sums(sums_of(region, offset, len)?))
    }
}

/// The checksums of what lies in a buffer, whose making is part of a leg.
///
/// # Errors
/// When the GPU whose memory the buffer is fails.
pub(crate) fn hashed(
    slot: &Slot<'_>,
    len: usize,
    legs: &Legs,
    doing: Doing,
) -> Result<Vec<u64>, ServiceError> {
    let cpu = usage::this_thread();
    let sums = slot.sums(len)?;
    legs.worked(doing, since(cpu));
    Ok(sums)
}

/// Compares checksums of the pieces of a part that starts at `offset`.
pub(crate) fn same(
    path: &str,
    offset: u64,
    left: &[u64],
    arrived: &[u64],
) -> Result<(), ServiceError> {
    if left == arrived {
        return Ok(());
    }
    let mut pairs = left.iter().zip(arrived).enumerate();
    let differs = pairs.find(|(_, (left, arrived))| left != arrived);
    let (index, expected, found) = match differs {
        Some((index, (left, arrived))) => (index, *left, *arrived),
        None => (left.len().min(arrived.len()), 0, 0),
    };
    Err(ServiceError::Differs {
        path: path.to_owned(),
        offset: offset + index as u64 * crate::digest::GRID,
        expected,
        found,
    })
}
