//! The fields of messages: how they are written, and how they are read where nobody is trusted.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use crowfly_route::policy::Policy;

use super::{Answer, Entry, Kind, MAX_ENTRIES, MAX_SUMS, Part};
use crate::fabric::fields::{Reader, Writer};
use crate::fabric::{MAX_DESCRIPTOR, RegionDescriptor};
use crate::service::attributes::{Attributes, Wanted};
use crate::service::limits::{MAX_COMPONENT, MAX_NAME, MAX_PATH, MAX_RANGES};
use crate::service::name::{Name, RelativePath};

pub(super) const fn policy_number(policy: Policy) -> u8 {
    match policy {
        Policy::Require => 0,
        Policy::Prefer => 1,
        Policy::Staged => 2,
        Policy::Socket => 3,
    }
}

pub(super) const fn policy_of(number: u8) -> Option<Policy> {
    match number {
        0 => Some(Policy::Require),
        1 => Some(Policy::Prefer),
        2 => Some(Policy::Staged),
        3 => Some(Policy::Socket),
        _ => None,
    }
}

pub(super) trait Fields {
    fn part(&mut self, part: &Part) -> &mut Self;
    fn sums(&mut self, sums: &[u64]) -> &mut Self;
    fn text(&mut self, text: &str) -> &mut Self;
    fn region(&mut self, region: &RegionDescriptor) -> &mut Self;
    fn attributes(&mut self, of: Option<&Attributes>) -> &mut Self;
    fn wanted(&mut self, wanted: &Wanted) -> &mut Self;
}

impl Fields for Writer {
    fn part(&mut self, part: &Part) -> &mut Self {
        self.u32(part.file)
            .u64(part.offset)
            .u32(part.len)
            .u64(part.at)
            .u32(part.within_ms)
    }

    fn sums(&mut self, sums: &[u64]) -> &mut Self {
        self.u8(u8::try_from(sums.len()).unwrap_or(u8::MAX));
        for sum in sums {
            self.u64(*sum);
        }
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn region(&mut self, region: &RegionDescriptor) -> &mut Self {
        // One that is too long reads as none at the other end.
        self.bytes(&region.to_bytes().unwrap_or_default())
    }

    fn attributes(&mut self, of: Option<&Attributes>) -> &mut Self {
        let Some(of) = of else {
            return self.u8(0);
        };
        let (seconds, nanoseconds) = of.changed();
        let seconds = u64::from_le_bytes(seconds.to_le_bytes());
        self.u8(1).u16(of.mode()).u64(seconds).u32(nanoseconds)
    }

    fn wanted(&mut self, wanted: &Wanted) -> &mut Self {
        self.attributes(wanted.of.as_ref())
            .u8(u8::from(wanted.preserved))
    }
}

pub(super) fn flag(fields: &mut Reader<'_>) -> Option<bool> {
    match fields.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

pub(super) fn name(fields: &mut Reader<'_>) -> Option<Name> {
    fields.text(MAX_NAME)?.parse().ok()
}

pub(super) fn path(fields: &mut Reader<'_>) -> Option<RelativePath> {
    RelativePath::of(fields.bytes(MAX_PATH)?).ok()
}

/// The name of an entry, which may be empty.
pub(super) fn component(fields: &mut Reader<'_>) -> Option<OsString> {
    let name = fields.bytes(MAX_COMPONENT)?;
    Some(OsStr::from_bytes(name).to_owned())
}

/// Permissions and last change, if there are any; the outer `None` is an error.
pub(super) fn attributes(fields: &mut Reader<'_>) -> Option<Option<Attributes>> {
    if !flag(fields)? {
        return Some(None);
    }
    let mode = fields.u16()?;
    let seconds = i64::from_le_bytes(fields.u64()?.to_le_bytes());
    Attributes::new(mode, seconds, fields.u32()?).map(Some)
}

pub(super) fn wanted(fields: &mut Reader<'_>) -> Option<Wanted> {
    Some(Wanted {
        of: attributes(fields)?,
        preserved: flag(fields)?,
    })
}

pub(super) fn region(fields: &mut Reader<'_>) -> Option<Box<RegionDescriptor>> {
    let bytes = fields.bytes(MAX_DESCRIPTOR)?;
    RegionDescriptor::from_bytes(bytes).ok().map(Box::new)
}

pub(super) fn part(fields: &mut Reader<'_>) -> Option<Part> {
    Some(Part {
        file: fields.u32()?,
        offset: fields.u64()?,
        len: fields.u32()?,
        at: fields.u64()?,
        within_ms: fields.u32()?,
    })
}

pub(super) fn sums(fields: &mut Reader<'_>) -> Option<Vec<u64>> {
    let count = usize::from(fields.u8()?);
    if count > MAX_SUMS {
        return None;
    }
    (0..count).map(|_| fields.u64()).collect()
}

pub(super) fn entries(fields: &mut Reader<'_>) -> Option<Answer> {
    let more = flag(fields)?;
    let skipped = fields.u32()?;
    let count = usize::from(fields.u16()?);
    if count > MAX_ENTRIES {
        return None;
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let kind = match flag(fields)? {
            true => Kind::Folder,
            false => Kind::File,
        };
        let size = fields.u64()?;
        let attributes = attributes(fields)??;
        let id = fields.u64()?;
        let name = component(fields)?;
        // One component that leads nowhere else; the copy is made under this name.
        RelativePath::default().join(&name).ok()?;
        entries.push(Entry {
            name,
            kind,
            size,
            attributes,
            id,
        });
    }
    Some(Answer::Entries {
        entries,
        more,
        skipped,
    })
}

pub(super) fn created(fields: &mut Reader<'_>) -> Option<Answer> {
    let file = fields.u32()?;
    let count = usize::from(fields.u16()?);
    if count > MAX_RANGES {
        return None;
    }
    let mut have: Vec<Range<u64>> = Vec::new();
    for _ in 0..count {
        let range = fields.u64()?..fields.u64()?;
        let before = have.last().map_or(0, |last| last.end);
        if range.start < before || range.end <= range.start {
            return None;
        }
        have.push(range);
    }
    Some(Answer::Created { file, have })
}

/// The beginning of a text, `most` bytes at most.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
