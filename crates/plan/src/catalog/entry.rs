//! An entry, what it rests on, and the shelf it stands on.

use serde::{Deserialize, Serialize};

use super::facts::{Facts, Kind};
use super::{CatalogError, Listed};
use crate::error::{PlanError, suggestions};

/// How sure an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Sources conflict, or the thing is only announced, or one vendor says so.
    Low,
    /// A secondary source.
    Medium,
    /// A primary document or a raw log.
    High,
}

impl Confidence {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The key of the source that is none: somebody's memory.
const FROM_MEMORY: &str = "recall";
/// What follows from other numbers supports nothing by itself.
const BY_FORMULA: &str = "calc";

/// What an entry rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Basis {
    /// Keys of the sources, explained by [`super::Catalog::source`].
    pub sources: Vec<String>,
    /// How sure it is.
    pub confidence: Confidence,
    /// What a reader should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether the user added it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub added: bool,
}

impl Basis {
    /// Whether somebody read it in a source and there is no reason for doubt.
    pub fn is_verified(&self) -> bool {
        let mut read = self.sources.iter();
        self.confidence > Confidence::Low && read.any(|key| key != FROM_MEMORY && key != BY_FORMULA)
    }
}

/// Named facts with what they rest on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry<T> {
    /// The name by which it is asked for.
    pub id: String,
    /// The facts.
    #[serde(flatten)]
    pub facts: T,
    /// What they rest on.
    pub basis: Basis,
}

/// An entry that an answer used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Used {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub id: String,
    /// How sure it is.
    pub confidence: Confidence,
    /// Whether it may be relied on.
    pub verified: bool,
    /// Whether the user added it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub added: bool,
    /// What a reader should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl<T: Facts> Entry<T> {
    /// That this entry was used.
    pub fn used(&self) -> Used {
        Used {
            kind: T::KIND,
            id: self.id.clone(),
            confidence: self.basis.confidence,
            verified: self.basis.is_verified(),
            added: self.basis.added,
            note: self.basis.note.clone(),
        }
    }

    /// Where a number out of this entry comes from, for its provenance.
    pub fn cite(&self) -> String {
        let mark = if self.basis.is_verified() {
            ""
        } else {
            ", unverified"
        };
        format!("{} {}{mark}", T::KIND, self.id)
    }
}

/// Entries of one kind, in the order they were added.
#[derive(Clone, Debug)]
pub struct Shelf<T> {
    entries: Vec<Entry<T>>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T: Facts> Shelf<T> {
    /// The entries in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Entry<T>> {
        self.entries.iter()
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// There is none; the error suggests the nearest names.
    pub fn get(&self, id: &str) -> Result<&Entry<T>, PlanError> {
        let found = self.entries.iter().find(|entry| entry.id == id);
        found.ok_or_else(|| PlanError::UnknownName {
            kind: T::KIND,
            name: id.to_owned(),
            nearest: suggestions(id, self.entries.iter().map(|entry| entry.id.as_str())),
        })
    }

    /// Takes an entry in, in the place of one of the same id.
    pub(super) fn put(&mut self, entry: Entry<T>) -> Result<(), CatalogError> {
        let full = self.entries.len() >= super::MAX_ENTRIES;
        match self.entries.iter_mut().find(|old| old.id == entry.id) {
            Some(old) => *old = entry,
            None if full => return Err(CatalogError::TooMany { kind: T::KIND }),
            None => self.entries.push(entry),
        }
        Ok(())
    }

    pub(super) fn list<'a>(&'a self, all: &mut Vec<Listed<'a>>) {
        all.extend(self.entries.iter().map(|entry| Listed {
            kind: T::KIND,
            id: &entry.id,
            summary: entry.facts.summary(),
            basis: &entry.basis,
            verified: entry.basis.is_verified(),
        }));
    }
}
