//! Everything that is given for one diagnosis.

mod sections;

use std::sync::Arc;

use crowfly_route::snapshot::{Observation, Snapshot};
use crowfly_route::topology::Topology;

use crate::evidence::intake::MAX_LINE_BYTES;
use crate::evidence::kept::MAX_KEPT_BYTES;
use crate::evidence::{Artefact, Document, Format, Section, SourceName};
use crate::finding::Quote;

/// Documents that were read and machines that were captured, all of one story.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// What people pasted, in the order given.
    pub documents: Vec<Document>,
    /// Machines: captured by crowfly, or decoded from hwloc's XML.
    pub machines: Vec<Machine>,
    /// Texts that were kept for another reader, which refused them, and why.
    pub refused: Vec<Refused>,
}

/// One machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Where it was read from: a file name, or `this machine`.
    pub source: SourceName,
    /// What was observed; absent where only its topology is known (hwloc's XML).
    pub snapshot: Option<Arc<Snapshot>>,
    /// Its decoded topology.
    pub topology: Arc<Topology>,
}

/// A text that looked like a machine and could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where it is.
    pub quote: Quote,
    /// The decoder's stable code.
    pub code: &'static str,
    /// Its words.
    pub why: String,
}

impl Case {
    /// A case in which nothing is given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same case with another document. Snapshots and hwloc topologies in it become machines.
    pub fn with_document(mut self, document: Document) -> Self {
        self.add_document(document);
        self
    }

    /// The same case with another machine.
    pub fn with_snapshot(mut self, source: impl Into<SourceName>, snapshot: Snapshot) -> Self {
        self.add_snapshot(source, snapshot);
        self
    }

    /// Adds a document. Snapshots and hwloc topologies in it become machines.
    pub fn add_document(&mut self, document: Document) {
        for section in &document.sections {
            let Artefact::Kept(kept) = &section.artefact else {
                continue;
            };
            if kept.too_long {
                self.refused.push(Refused {
                    quote: Quote::from(&kept.cite),
                    code: "kept-too-long",
                    why: format!(
                        "of a text or a line this long only a part is kept: at most {} MiB and {} MiB",
                        MAX_KEPT_BYTES >> 20,
                        MAX_LINE_BYTES >> 20,
                    ),
                });
                continue;
            }
            let bytes = kept.text.as_bytes();
            let refused = match section.format {
                Format::Snapshot => match Snapshot::from_json(bytes) {
                    Ok(snapshot) => {
                        self.add_snapshot(document.source.clone(), snapshot);
                        continue;
                    }
                    Err(error) => (error.code(), error.to_string()),
                },
                _ => match Topology::from_any(bytes) {
                    Ok(topology) => {
                        self.machines.push(Machine {
                            source: document.source.clone(),
                            snapshot: None,
                            topology: Arc::new(topology),
                        });
                        continue;
                    }
                    Err(error) => (error.code(), error.to_string()),
                },
            };
            self.refused.push(Refused {
                quote: Quote::from(&kept.cite),
                code: refused.0,
                why: refused.1,
            });
        }
        self.documents.push(document);
    }

    /// Adds a machine by what was observed on it.
    pub fn add_snapshot(&mut self, source: impl Into<SourceName>, snapshot: Snapshot) {
        let topology = Topology::from_snapshot(&snapshot);
        self.machines.push(Machine {
            source: source.into(),
            snapshot: Some(Arc::new(snapshot)),
            topology: Arc::new(topology),
        });
    }

    /// Whether nothing in it can be judged: no machine, and no document in which anything was read.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty() && self.documents.iter().all(|d| d.sections.is_empty())
    }

    /// Whether all that is given are machines whose PCI functions were seen and of which none is a
    /// GPU.
    pub fn is_about_no_gpu(&self) -> bool {
        let without = |machine: &Machine| {
            machine.topology.gpus.is_empty() && !machine.topology.pci.is_empty()
        };
        let text = |document: &Document| {
            let machine = |s: &Section| matches!(s.format, Format::Snapshot | Format::Lstopo);
            !document.sections.iter().all(machine)
        };
        !self.machines.is_empty()
            && self.machines.iter().all(without)
            && !self.documents.iter().any(text)
    }
}

impl Machine {
    /// What was seen at a key, as a quote; `None` when nobody looked.
    pub fn quote(&self, key: &str) -> Option<Quote> {
        let seen = self.snapshot.as_ref()?.get(key)?;
        Some(Quote::key(self.source.clone(), key, &seen.shows()))
    }

    /// What was seen at a key; `None` when nobody looked.
    pub fn seen(&self, key: &str) -> Option<&Observation> {
        self.snapshot.as_ref()?.get(key)
    }

    /// The text seen at a key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.snapshot.as_ref()?.text(key)
    }

    /// Whether somebody looked at a key and found something.
    pub fn has(&self, key: &str) -> bool {
        matches!(self.seen(key), Some(Observation::Value(_)))
    }

    /// Whether somebody looked at a key and found nothing. Denied and errors are not this.
    pub fn lacks(&self, key: &str) -> bool {
        matches!(self.seen(key), Some(Observation::Absent))
    }
}
