//! From places to devices; names that do not exist are met with the nearest that do.

use super::fabric::End;
use super::{SearchError, World};
use crate::place::{Memory, Place};
use crate::topology::Device;
use crate::units::{NumaNode, PciAddress};

/// Names nearer than this to a wrong one are offered in its stead.
const NEAR: f64 = 0.6;
const MAX_SUGGESTIONS: usize = 3;

impl World<'_> {
    /// Whether a place exists. A GPU on a machine without any is no mistake in the name: the
    /// answer is then what the machine offers instead.
    pub(super) fn check(&self, place: &Place) -> Result<(), SearchError> {
        let exists = match place {
            Place::Host(numa) | Place::Remote(Memory::Host(numa)) => self.has_node(*numa),
            Place::Gpu(index) | Place::Remote(Memory::Gpu(index)) => {
                self.topology.gpus.is_empty() || self.gpu_index(*index).is_some()
            }
            Place::Peer(address) => self.topology.pci.contains_key(address),
            Place::Nic(name) => self.nic_index(name).is_some(),
            Place::Drive(name) => {
                self.topology.blocks.contains_key(name)
                    || matches!(self.topology.find(name), Some(Device::Drive(_)))
            }
            Place::File(_) | Place::Object(_) | Place::Served(_) => true,
        };
        if exists {
            return Ok(());
        }
        let exist = self.places_like(place);
        let suggestions = nearest(&place.to_string(), &exist);
        Err(SearchError::NoSuchDevice {
            place: place.clone(),
            suggestions,
            exist,
        })
    }

    fn has_node(&self, numa: Option<NumaNode>) -> bool {
        let known = &self.topology.numa;
        numa.is_none_or(|numa| known.is_empty() || known.iter().any(|node| node.node == numa))
    }

    pub(super) fn gpu_index(&self, index: u32) -> Option<usize> {
        let index = usize::try_from(index).ok()?;
        (index < self.topology.gpus.len()).then_some(index)
    }

    pub(super) fn nic_index(&self, name: &str) -> Option<usize> {
        match self.topology.find(name)? {
            Device::Nic(index) => Some(index),
            _ => None,
        }
    }

    /// A memory at this server's end.
    pub(super) fn end(&self, place: &Place) -> Option<End> {
        match place {
            Place::Host(numa) => Some(End::Host(*numa)),
            Place::Gpu(index) => self.gpu_index(*index).map(End::Gpu),
            _ => None,
        }
    }

    /// The places of the same kind that exist.
    fn places_like(&self, place: &Place) -> Vec<String> {
        let topology = self.topology;
        let nodes = || topology.numa.iter().map(|node| node.node.0);
        let gpus = || (0..topology.gpus.len()).map(|index| format!("gpu:{index}"));
        match place {
            Place::Host(_) => nodes().map(|node| format!("host:{node}")).collect(),
            Place::Remote(Memory::Host(_)) => {
                nodes().map(|node| format!("remote:host:{node}")).collect()
            }
            Place::Gpu(_) => gpus().collect(),
            Place::Remote(Memory::Gpu(_)) => gpus().map(|gpu| format!("remote:{gpu}")).collect(),
            Place::Nic(_) => topology
                .nics
                .iter()
                .map(|nic| format!("nic:{}", nic.name))
                .collect(),
            Place::Drive(_) => {
                let drives = topology.drives.iter().map(|drive| &drive.name);
                let blocks = topology.blocks.keys();
                let mut names: Vec<String> = drives
                    .chain(blocks)
                    .map(|name| format!("drive:{name}"))
                    .collect();
                names.sort_unstable();
                names.dedup();
                names
            }
            Place::Peer(_) => {
                let publishing = topology.pci.values().filter(|f| f.peer_memory.is_some());
                let address = |address: PciAddress| format!("peer:{address}");
                publishing.map(|f| address(f.address)).collect()
            }
            Place::File(_) | Place::Object(_) | Place::Served(_) => Vec::new(),
        }
    }
}

/// The names most like a wrong one, the likest first.
fn nearest(wrong: &str, exist: &[String]) -> Vec<String> {
    let mut scored: Vec<(f64, &String)> = exist
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(wrong, name), name))
        .filter(|(score, _)| *score >= NEAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(MAX_SUGGESTIONS);
    scored.into_iter().map(|(_, name)| name.clone()).collect()
}
