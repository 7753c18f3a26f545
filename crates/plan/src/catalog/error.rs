//! Why a file of additions to the catalogue was refused.

use super::facts::Kind;
use super::{MAX_CATALOG_BYTES, MAX_ENTRIES, MAX_ID_CHARS, MAX_TEXT_CHARS};
use crate::quantity::FACT;

/// Why a file of additions to the catalogue was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// More than [`MAX_CATALOG_BYTES`].
    #[error("the catalogue is larger than {MAX_CATALOG_BYTES} bytes")]
    TooLarge,
    /// Not TOML; with line, column, what is wrong and a short excerpt.
    #[error("the catalogue is not TOML: {0}")]
    NotToml(String),
    /// A table of a kind that does not exist.
    #[error("the catalogue has `[[{name}]]`, which is no kind of entry")]
    UnknownKind {
        /// The kind asked for.
        name: String,
        /// The kinds nearest to it.
        nearest: Vec<String>,
    },
    /// A kind's value is not a list of tables.
    #[error("the catalogue has `{0}` in another form than `[[{0}]]`")]
    NotAList(String),
    /// More than [`MAX_ENTRIES`] of one kind.
    #[error("the catalogue has more than {MAX_ENTRIES} entries of kind {kind}")]
    TooMany {
        /// Of which kind.
        kind: Kind,
    },
    /// An entry has no id, or a bad one.
    #[error(
        "{kind} entry {position} of the catalogue has no id of 1 to {MAX_ID_CHARS} lower-case letters, digits, dots or dashes"
    )]
    BadId {
        /// Of which kind.
        kind: Kind,
        /// Counted from 1.
        position: usize,
    },
    /// Two entries of one text have the same id.
    #[error("{kind} `{id}` stands in the catalogue twice")]
    Twice {
        /// Of which kind.
        kind: Kind,
        /// The id.
        id: String,
    },
    /// An entry does not say what it rests on.
    #[error("{kind} `{id}` of the catalogue has no `{field}`")]
    NoBasis {
        /// Of which kind.
        kind: Kind,
        /// Its id.
        id: String,
        /// `sources` or `confidence`.
        field: &'static str,
    },
    /// A number that is negative, zero or not finite.
    #[error("{kind} `{id}` of the catalogue has `{field}` = {value}, which must be above zero")]
    NotPositive {
        /// Of which kind.
        kind: Kind,
        /// Its id.
        id: String,
        /// The field.
        field: String,
        /// What it says.
        value: String,
    },
    /// A number that no machine has.
    #[error(
        "{kind} `{id}` of the catalogue has `{field}` = {value}, which must be from {:e} to {:e}",
        FACT.start(), FACT.end()
    )]
    NotBetween {
        /// Of which kind.
        kind: Kind,
        /// Its id.
        id: String,
        /// The field.
        field: String,
        /// What it says.
        value: String,
    },
    /// A text beyond [`MAX_TEXT_CHARS`].
    #[error(
        "{kind} `{id}` of the catalogue has in `{field}` more than {MAX_TEXT_CHARS} characters"
    )]
    LongText {
        /// Of which kind.
        kind: Kind,
        /// Its id.
        id: String,
        /// The field.
        field: String,
    },
    /// A field is missing, unknown or of the wrong type.
    #[error("{kind} `{id}` of the catalogue: {what}")]
    BadFacts {
        /// Of which kind.
        kind: Kind,
        /// Its id.
        id: String,
        /// What is wrong.
        what: String,
    },
}

impl CatalogError {
    /// The stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLarge => "catalog-too-large",
            Self::NotToml(_) => "catalog-not-toml",
            Self::UnknownKind { .. } => "catalog-unknown-kind",
            Self::NotAList(_) => "catalog-not-a-list",
            Self::TooMany { .. } => "catalog-too-many",
            Self::BadId { .. } => "catalog-bad-id",
            Self::Twice { .. } => "catalog-twice",
            Self::NoBasis { .. } => "catalog-no-basis",
            Self::NotPositive { .. } => "catalog-not-positive",
            Self::NotBetween { .. } => "catalog-not-between",
            Self::LongText { .. } => "catalog-long-text",
            Self::BadFacts { .. } => "catalog-bad-entry",
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKind { nearest, .. } if !nearest.is_empty() => {
                Some(format!("nearest: {}", nearest.join(", ")))
            }
            Self::NoBasis { .. } => Some(
                "say where it is from: sources = [\"…\"] and confidence = \"low\", \"medium\" or \"high\""
                    .into(),
            ),
            Self::BadFacts { .. } => {
                Some("`crowfly plan catalog --json` shows entries with their fields".into())
            }
            _ => None,
        }
    }
}
