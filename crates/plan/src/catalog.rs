//! What the planner knows: accelerators, servers, adapters, switches, storage, models, prices, each
//! entry with its sources and how sure it is.
//!
//! The built-in catalogue is `catalog/*.toml` beside this crate's sources; users add entries of the
//! same form, or replace some, with [`Catalog::add`]. An entry that rests on memory alone or in
//! which little confidence is put is *unverified*, and every answer that uses it says so.

use std::collections::BTreeMap;

use serde::Serialize;

mod entry;
mod error;
mod excerpt;
mod facts;
mod read;

pub use entry::{Basis, Confidence, Entry, Shelf, Used};
pub use error::CatalogError;
pub use excerpt::MAX_EXCERPT_CHARS;
pub use facts::{
    CloudProvider, Fabric, Facts, Gpu, Kind, Memory, Model, Nic, Pcie, Price, Reliability, Server,
    StorageClass, StorageDirect, StorageSystem, Switch, Transport,
};

/// The largest file of additions.
pub const MAX_CATALOG_BYTES: usize = 1 << 20;
/// The most entries of one kind.
pub const MAX_ENTRIES: usize = 4096;
/// The longest id and the longest text of an entry.
pub const MAX_ID_CHARS: usize = 64;
/// The longest note, source or name.
pub const MAX_TEXT_CHARS: usize = 1024;

const BUILT_IN: [&str; 12] = [
    include_str!("../catalog/sources.toml"),
    include_str!("../catalog/gpus.toml"),
    include_str!("../catalog/memory.toml"),
    include_str!("../catalog/servers.toml"),
    include_str!("../catalog/nics.toml"),
    include_str!("../catalog/switches.toml"),
    include_str!("../catalog/pcie.toml"),
    include_str!("../catalog/storage.toml"),
    include_str!("../catalog/fabrics.toml"),
    include_str!("../catalog/models.toml"),
    include_str!("../catalog/prices.toml"),
    include_str!("../catalog/reliability.toml"),
];

/// All entries, by kind.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Accelerators.
    pub gpus: Shelf<Gpu>,
    /// Host memory.
    pub memory: Shelf<Memory>,
    /// Servers and cloud shapes.
    pub servers: Shelf<Server>,
    /// Network adapters.
    pub nics: Shelf<Nic>,
    /// Switches.
    pub switches: Shelf<Switch>,
    /// Generations of PCI Express.
    pub pcie: Shelf<Pcie>,
    /// Storage systems.
    pub storage: Shelf<StorageSystem>,
    /// Fabrics that exist.
    pub fabrics: Shelf<Fabric>,
    /// Models.
    pub models: Shelf<Model>,
    /// Prices and power.
    pub prices: Shelf<Price>,
    /// How often training is interrupted.
    pub reliability: Shelf<Reliability>,
    sources: BTreeMap<String, String>,
}

/// One line of a listing.
#[derive(Clone, Debug, Serialize)]
pub struct Listed<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub id: &'a str,
    /// Its facts on one line.
    pub summary: String,
    /// What it rests on.
    pub basis: &'a Basis,
    /// Whether that is enough to rely on it.
    pub verified: bool,
}

impl Catalog {
    /// What comes with crowfly.
    #[expect(
        clippy::expect_used,
        reason = "the text is part of the program, and a test reads it"
    )]
    pub fn built_in() -> Self {
        let mut catalog = Self::default();
        for text in BUILT_IN {
            let read = catalog.read(text, false);
            read.expect("the built-in catalogue is sound");
        }
        catalog
    }

    /// Adds the entries of a TOML text in the form of the built-in ones; an entry replaces one of
    /// the same kind and id. Nothing is added when there is an error.
    ///
    /// # Errors
    /// The text is too large, is not TOML, or an entry is not sound; the error names the entry.
    pub fn add(&mut self, text: &str) -> Result<(), CatalogError> {
        let mut with_additions = self.clone();
        with_additions.read(text, true)?;
        *self = with_additions;
        Ok(())
    }

    /// The full reference behind a source's key; for a key that nobody explained, the key.
    pub fn source<'a>(&'a self, key: &'a str) -> &'a str {
        self.sources.get(key).map_or(key, String::as_str)
    }

    /// Entries of one kind, or all, whose kind, id or summary contains `filter`, ignoring case.
    pub fn list(&self, kind: Option<Kind>, filter: Option<&str>) -> Vec<Listed<'_>> {
        let mut all = Vec::new();
        self.gpus.list(&mut all);
        self.servers.list(&mut all);
        self.memory.list(&mut all);
        self.nics.list(&mut all);
        self.switches.list(&mut all);
        self.pcie.list(&mut all);
        self.storage.list(&mut all);
        self.fabrics.list(&mut all);
        self.models.list(&mut all);
        self.prices.list(&mut all);
        self.reliability.list(&mut all);
        let wanted = filter.map(str::to_lowercase);
        all.retain(|entry| {
            let text = || format!("{} {} {}", entry.kind, entry.id, entry.summary).to_lowercase();
            kind.is_none_or(|kind| kind == entry.kind)
                && wanted.as_ref().is_none_or(|wanted| text().contains(wanted))
        });
        all
    }

    /// The GPU that a driver calls by this name.
    pub fn gpu_by_name(&self, name: &str) -> Option<&Entry<Gpu>> {
        let folded = name.to_lowercase();
        let longest = |entry: &&Entry<Gpu>| {
            let fits = entry
                .facts
                .names
                .iter()
                .filter(|n| folded.contains(&n.to_lowercase()));
            fits.map(|n| n.len()).max()
        };
        let fitting = self.gpus.iter().filter(|entry| longest(entry).is_some());
        fitting.max_by_key(longest)
    }
}

#[cfg(test)]
mod tests;
