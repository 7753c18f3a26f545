//! Where the parts of one file's copy come from.

use std::ops::Range;
use std::sync::Arc;

use crowfly_machine::usage;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::Terms;
use super::plan::From;
use super::stored::refused;
use crate::engine::since;
use crate::fabric::RegionDescriptor;
use crate::memory::Region;
use crate::objects::Object;
use crate::pass;
use crate::service::account::{Doing, Legs, over_http, unseen};
use crate::service::attributes::Attributes;
use crate::service::client::Opened;
use crate::service::error::ServiceError;
use crate::service::exports::tag;
use crate::service::message::Tag;
use crate::service::name::Name;
use crate::service::ring::Slot;
use crate::service::session::{hashed, of_storage, same};
use crate::source::Source;

/// Where parts come from.
pub(super) enum Origin {
    File(Box<Source>),
    Remote {
        file: u32,
        size: u64,
        tag: Tag,
        attributes: Option<Attributes>,
        shown: String,
    },
    Memory {
        descriptor: Box<RegionDescriptor>,
        name: Name,
    },
    Object(Arc<Object>),
    /// It lies where the peer reads it.
    Loaded(Region),
}

impl Origin {
    pub(super) fn open(from: &From, terms: &Terms) -> Result<Self, ServiceError> {
        let (name, path) = match from {
            From::File(path) => return Ok(Self::File(Box::new(Source::open(path)?))),
            From::Loaded(region) => return Ok(Self::Loaded(region.clone())),
            From::Object(url) => {
                let object = Object::find(terms.source_store()?, url, terms.request_until())?;
                if terms.policy == Policy::Require {
                    let from = Place::Object(url.to_string());
                    let obstacle = match terms.within {
                        true => unseen(url),
                        false => over_http(url),
                    };
                    return Err(refused(obstacle, from, terms.here.clone()));
                }
                return Ok(Self::Object(Arc::new(object)));
            }
            From::Served(name, path) => (name, path),
        };
        match terms
            .source()?
            .open(name, path, terms.policy, terms.until)?
        {
            Opened::File {
                file,
                size,
                tag,
                attributes,
            } => Ok(Self::Remote {
                file,
                size,
                tag,
                attributes,
                shown: format!("{name}/{path}"),
            }),
            Opened::Memory(descriptor) => Ok(Self::Memory {
                descriptor,
                name: name.clone(),
            }),
            Opened::Folder(_) => Err(ServiceError::WrongKind {
                path: format!("{name}/{path}"),
                found: "a folder",
                wanted: "a file",
            }),
        }
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::File(source) => source.size(),
            Self::Remote { size, .. } => *size,
            Self::Memory { descriptor, .. } => descriptor.len(),
            Self::Object(object) => object.size(),
            Self::Loaded(region) => region.len() as u64,
        }
    }

    /// Where a part is, or comes to: in a buffer, or where it was loaded.
    pub(super) fn slot<'r>(&self, range: &Range<u64>, buffer: &Slot<'r>) -> Slot<'r> {
        match self {
            Self::Loaded(_) => buffer.from(range.start),
            _ => *buffer,
        }
    }

    /// What identifies its state; `None` of memory, which has none.
    pub(super) fn tag(&self) -> Option<Tag> {
        match self {
            Self::File(source) => Some(tag(&source.stamp())),
            Self::Remote { tag, .. } => Some(*tag),
            Self::Memory { .. } | Self::Loaded(_) => None,
            Self::Object(object) => Some(object_tag(object)),
        }
    }

    /// What it has besides its bytes, if that is anything.
    pub(super) fn attributes(&self) -> Option<Attributes> {
        match self {
            Self::File(source) => Attributes::of_file(source.buffered()),
            Self::Remote { attributes, .. } => *attributes,
            Self::Memory { .. } | Self::Object(_) | Self::Loaded(_) => None,
        }
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::File(source) => source.path().display().to_string(),
            Self::Remote { shown, .. } => shown.clone(),
            Self::Memory { name, .. } => name.to_string(),
            Self::Object(object) => object.url().to_string(),
            Self::Loaded(region) => region.place().to_string(),
        }
    }

    /// Brings a part into a buffer; the checksums of its pieces, if any are made.
    pub(super) fn fetch(
        &self,
        range: &Range<u64>,
        slot: &Slot<'_>,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<Vec<u64>, ServiceError> {
        let len = (range.end - range.start) as usize;
        match self {
            Self::File(source) => {
                let policy = of_storage(terms.policy);
                let ledger = pass::read(source, range.clone(), &slot.spot()?, policy)?;
                legs.stored(Doing::Reading, ledger);
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Reading)?,
                    false => Vec::new(),
                })
            }
            Self::Remote { file, .. } => {
                let client = terms.source()?;
                let part = (range.start, len);
                let left = client.read(*file, part, slot, terms.verify, terms.until)?;
                // What NICs wrote into a GPU's memory is shown to it before anybody looks.
                slot.show().into_iter().for_each(|said| legs.shown(said));
                self.compared(range, &left, slot, terms, legs)
            }
            Self::Memory { descriptor, name } => {
                let client = terms.source()?;
                let options = client.options(terms.policy, terms.until)?;
                let there = descriptor.slice(range.clone())?;
                let here = slot.of(client.ring(), len)?;
                let delivery = client.peer().read(&here, &there, options).wait()?;
                slot.show().into_iter().for_each(|said| legs.shown(said));
                legs.crossed(Doing::Crossing, delivery);
                let left = match terms.verify {
                    true => client.sums_of(name, range.start, len, terms.until)?,
                    false => Vec::new(),
                };
                self.compared(range, &left, slot, terms, legs)
            }
            Self::Object(object) => {
                let cpu = usage::this_thread();
                let spot = slot.spot()?;
                let target = spot.memory.target(spot.at..spot.at + len);
                let put = |at: usize, bytes: &[u8]| target.put(at, bytes);
                let read = object.read(range, terms.request_until(), &put);
                // A request that ends at the time of all of the copy says so.
                let retries = read.or_else(|error| terms.in_time().and(Err(error.into())))?;
                legs.downloaded(object, len as u64, since(cpu), retries);
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Crossing)?,
                    false => Vec::new(),
                })
            }
            Self::Loaded(region) => {
                if let Some(staging) = slot.staging() {
                    let cpu = usage::this_thread();
                    staging.leave(region, range, slot)?;
                    legs.staged(Doing::Reading, staging, len as u64, since(cpu));
                } else if let Ok(spot) = slot.spot() {
                    // What goes on by HTTP is gathered in a buffer; what peers read lies where it was loaded.
                    let part = region.part(range.start as usize..range.end as usize);
                    let bytes = part.as_ref().and_then(Region::as_slice);
                    let bytes = bytes.ok_or_else(|| ServiceError::WrongKind {
                        path: region.place().to_string(),
                        found: "memory whose bytes can vanish",
                        wanted: "plain memory of this process",
                    })?;
                    spot.memory.target(spot.at..spot.at + len).put(0, bytes);
                }
                Ok(match terms.sums() {
                    true => hashed(slot, len, legs, Doing::Crossing)?,
                    false => Vec::new(),
                })
            }
        }
    }

    /// The checksums of what arrived, held against those of what left.
    fn compared(
        &self,
        range: &Range<u64>,
        left: &[u64],
        slot: &Slot<'_>,
        terms: &Terms,
        legs: &Legs,
    ) -> Result<Vec<u64>, ServiceError> {
        if !terms.sums() {
            return Ok(Vec::new());
        }
        let len = (range.end - range.start) as usize;
        let arrived = hashed(slot, len, legs, Doing::Crossing)?;
        if terms.verify {
            same(&self.shown(), range.start, left, &arrived)?;
        }
        Ok(arrived)
    }

    /// Looks whether it is still what it was when the copy began, and lets go of it.
    pub(super) fn end(&self, terms: &Terms, legs: &Legs) -> Result<(), ServiceError> {
        match self {
            Self::File(source) => Ok(source.unchanged()?),
            Self::Remote { file, .. } => {
                let (_, told) = terms.source()?.end(*file, false, terms.until)?;
                legs.told(&told, Doing::Crossing);
                Ok(())
            }
            // Each request named the version that it was of.
            Self::Memory { .. } | Self::Object(_) | Self::Loaded(_) => Ok(()),
        }
    }
}

/// What identifies a version of an object.
fn object_tag(object: &Object) -> Tag {
    let mut hash = blake3::Hasher::new_derive_key("crowfly object version 1");
    for part in [&object.url().to_string(), object.version()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(&object.size().to_le_bytes());
    let mut tag = [0; 16];
    hash.finalize_xof().fill(&mut tag);
    Tag(tag)
}
