//! TOML into entries. The text may be anybody's.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::excerpt::{excerpt, located, reason};
use super::{
    Basis, Catalog, CatalogError, Entry, Facts, Kind, MAX_CATALOG_BYTES, MAX_ID_CHARS,
    MAX_TEXT_CHARS, Shelf,
};
use crate::error::suggestions;
use crate::quantity::{FACT, Short};

/// The table that explains the keys of sources.
const SOURCES: &str = "sources";

impl Catalog {
    /// Reads the entries of a text into this catalogue; `added` marks them as the user's.
    pub(super) fn read(&mut self, text: &str, added: bool) -> Result<(), CatalogError> {
        if text.len() > MAX_CATALOG_BYTES {
            return Err(CatalogError::TooLarge);
        }
        let document = toml::from_str::<Table>(text);
        let document = document.map_err(|error| CatalogError::NotToml(located(&error, text)))?;
        for (key, value) in document {
            if key == SOURCES {
                self.read_sources(value)?;
                continue;
            }
            let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.as_str() == key) else {
                let nearest = suggestions(&key, Kind::ALL.iter().map(|kind| kind.as_str()));
                let name = excerpt(&key);
                return Err(CatalogError::UnknownKind { name, nearest });
            };
            match kind {
                Kind::Gpu => fill(&mut self.gpus, value, added)?,
                Kind::Memory => fill(&mut self.memory, value, added)?,
                Kind::Server => fill(&mut self.servers, value, added)?,
                Kind::Nic => fill(&mut self.nics, value, added)?,
                Kind::Switch => fill(&mut self.switches, value, added)?,
                Kind::Pcie => fill(&mut self.pcie, value, added)?,
                Kind::Storage => fill(&mut self.storage, value, added)?,
                Kind::Fabric => fill(&mut self.fabrics, value, added)?,
                Kind::Model => fill(&mut self.models, value, added)?,
                Kind::Price => fill(&mut self.prices, value, added)?,
                Kind::Reliability => fill(&mut self.reliability, value, added)?,
            }
        }
        Ok(())
    }

    fn read_sources(&mut self, value: Value) -> Result<(), CatalogError> {
        let bad = || CatalogError::NotToml(format!("`[{SOURCES}]` must map keys to texts"));
        let Value::Table(table) = value else {
            return Err(bad());
        };
        for (key, text) in table {
            match text {
                Value::String(text) if text.chars().count() <= MAX_TEXT_CHARS => {
                    self.sources.insert(key, text);
                }
                _ => return Err(bad()),
            }
        }
        Ok(())
    }
}

fn fill<T: Facts + DeserializeOwned>(
    shelf: &mut Shelf<T>,
    value: Value,
    added: bool,
) -> Result<(), CatalogError> {
    let not_a_list = || CatalogError::NotAList(T::KIND.as_str().into());
    let Value::Array(tables) = value else {
        return Err(not_a_list());
    };
    let mut seen = HashSet::new();
    for (index, table) in tables.into_iter().enumerate() {
        let Value::Table(table) = table else {
            return Err(not_a_list());
        };
        let entry: Entry<T> = entry(table, index + 1, added)?;
        // A text may replace what another says, but not say two things of one id itself.
        if !seen.insert(entry.id.clone()) {
            let (kind, id) = (T::KIND, entry.id);
            return Err(CatalogError::Twice { kind, id });
        }
        shelf.put(entry)?;
    }
    Ok(())
}

fn entry<T: Facts + DeserializeOwned>(
    mut table: Table,
    position: usize,
    added: bool,
) -> Result<Entry<T>, CatalogError> {
    let kind = T::KIND;
    let id = match table.remove("id") {
        Some(Value::String(id)) if is_id(&id) => id,
        _ => return Err(CatalogError::BadId { kind, position }),
    };
    let basis = basis(&mut table, kind, &id, added)?;
    for (field, value) in &table {
        check(value, kind, &id, field)?;
    }
    let facts: Result<T, toml::de::Error> = Value::Table(table).try_into();
    let facts = facts.map_err(|error| CatalogError::BadFacts {
        kind,
        id: id.clone(),
        what: reason(&error),
    })?;
    Ok(Entry { id, facts, basis })
}

fn is_id(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_".contains(c);
    (1..=MAX_ID_CHARS).contains(&text.len()) && text.chars().all(allowed)
}

fn basis(table: &mut Table, kind: Kind, id: &str, added: bool) -> Result<Basis, CatalogError> {
    let missing = |field| CatalogError::NoBasis {
        kind,
        id: id.to_owned(),
        field,
    };
    let sources: Option<Vec<String>> = table.remove("sources").and_then(|v| v.try_into().ok());
    let confidence = table.remove("confidence").and_then(|v| v.try_into().ok());
    let note = match table.remove("note") {
        Some(Value::String(note)) => Some(note),
        None => None,
        Some(_) => {
            return Err(CatalogError::BadFacts {
                kind,
                id: id.to_owned(),
                what: "`note` must be a text".into(),
            });
        }
    };
    let sources = sources.filter(|keys| !keys.is_empty());
    let basis = Basis {
        sources: sources.ok_or_else(|| missing("sources"))?,
        confidence: confidence.ok_or_else(|| missing("confidence"))?,
        note,
        added,
    };
    for text in &basis.sources {
        short(text, kind, id, "sources")?;
    }
    if let Some(text) = &basis.note {
        short(text, kind, id, "note")?;
    }
    Ok(basis)
}

fn short(text: &str, kind: Kind, id: &str, field: &str) -> Result<(), CatalogError> {
    if text.chars().count() <= MAX_TEXT_CHARS {
        return Ok(());
    }
    Err(CatalogError::LongText {
        kind,
        id: id.to_owned(),
        field: excerpt(field),
    })
}

/// No fact of any kind can be zero or less, or without end, or beyond [`FACT`].
fn check(value: &Value, kind: Kind, id: &str, field: &str) -> Result<(), CatalogError> {
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::String(text) => return short(text, kind, id, field),
        Value::Array(values) => {
            return values
                .iter()
                .try_for_each(|value| check(value, kind, id, field));
        }
        _ => return Ok(()),
    };
    if FACT.contains(&number) {
        return Ok(());
    }
    let (id, field, value) = (id.to_owned(), excerpt(field), Short(number).to_string());
    Err(if number > 0.0 && number.is_finite() {
        CatalogError::NotBetween {
            kind,
            id,
            field,
            value,
        }
    } else {
        CatalogError::NotPositive {
            kind,
            id,
            field,
            value,
        }
    })
}
