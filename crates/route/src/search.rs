//! Every route between two places of a machine, with what stands in its way.
//!
//! The search is a function of values: a [`Topology`], the [`Snapshot`] it was decoded from if there
//! is one (obstacles quote it), and rates that were [`Measured`], if any. Nothing is tried out.
//!
//! # How a route gets its numbers
//!
//! The counters are derived from the hops ([`Route::counters`](crate::hop::Route::counters)); the
//! hops follow what the engines of the field do. For a byte on its way into a GPU behind a PCIe
//! switch, with drive and adapter behind the same switch (two links up to the CPU from each):
//!
//! | route | hops | copies | CPU touches | PCIe hops | RAM passes |
//! |---|---|---|---|---|---|
//! | `gpudirect-storage` | drive → GPU | 1 | 0 | 2 | 0 |
//! | `o-direct` | drive → bounce → GPU | 2 | 0 | 4 | 2 |
//! | `page-cache` | drive → page cache → bounce → GPU | 3 | 1 | 4 | 4 |
//! | `gpudirect-rdma` | wire → NIC → GPU | 1 | 0 | 2 | 0 |
//! | `rdma` | wire → NIC → bounce → GPU | 2 | 0 | 4 | 2 |
//! | `sockets` | wire → NIC → socket buffer → bounce → GPU | 3 | 1 | 4 | 4 |
//! | `sockets-tls` | store → NIC → socket buffer → ciphertext → bounce → GPU | 4 | 2 | 4 | 6 |
//!
//! * Direct means one copy, the arrival, and two PCIe hops: up to the switch and down again.
//! * Staged means that each byte goes up to the CPU and down again, 2 + 2 links, is written to RAM
//!   by one DMA and read by another: two passes. Every core that copies adds a copy and two passes.
//! * TLS is one more copy than plain sockets: the core reads the ciphertext and writes the text.
//! * A file on dm-crypt pays the same as TLS.
//! * To a peer server both ends pay, and the wire is no copy: over sockets from GPU to GPU that
//!   makes 5 copies (bounce, socket buffer, and the same there, then the GPU) and 8 passes.
//!
//! # Ceilings
//!
//! A route carries what its slowest hop carries, as the hops of a stream run at once. A hop carries
//! what its slowest link does after encoding; through host RAM no more than its share of the
//! memory's rate, where that is known; a copy by a core an assumed rate unless one was measured.
//!
//! A staged route goes up and down the same link when source and GPU share it. PCIe carries both
//! directions at once, so one transfer does not halve it; transfers both ways at once do. The links
//! concerned are those of [`Route::shared_links`](crate::hop::Route::shared_links).
//!
//! Host buffers are taken to lie on the GPU's NUMA node, which is where engines put them.

use std::collections::BTreeMap;

use crate::hop::{Candidate, Standing};
use crate::obstacle::{Code, Evidence, Fix, Obstacle};
use crate::place::{Memory, Place};
use crate::snapshot::Snapshot;
use crate::topology::Topology;

mod adapters;
mod draft;
mod fabric;
mod file_systems;
mod gds;
mod gpu_memory;
mod gpus;
mod legs;
mod links;
mod order;
mod outside;
mod peer;
mod places;
mod rates;
mod seen;
mod storage;
mod store;

pub use order::obstacles_of_better;
pub use rates::{Calibration, DriveRates, Measured};

use draft::Draft;
use fabric::End;
use seen::Seen;
use store::Holder;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// A place names a device that the machine does not have.
    #[error("{place} does not exist on this machine")]
    NoSuchDevice {
        /// What was asked for.
        place: Place,
        /// The existing places most like it, likest first.
        suggestions: Vec<String>,
        /// All places of that kind that exist.
        exist: Vec<String>,
    },
    /// Nothing moves: both places are the same.
    #[error("{place} is both start and end: nothing moves")]
    SamePlace {
        /// The place.
        place: Place,
    },
    /// No engine moves data between places of these kinds in one transfer.
    #[error("no single transfer goes from {from} to {to}")]
    NoRoute {
        /// Where the data starts.
        from: Place,
        /// Where the data ends.
        to: Place,
    },
}

impl SearchError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchDevice { .. } => "no-such-device",
            Self::SamePlace { .. } => "same-place",
            Self::NoRoute { .. } => "no-route",
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoSuchDevice {
                suggestions, exist, ..
            } => {
                let other = |name: &&String| !suggestions.contains(name);
                let others: Vec<&String> = exist.iter().filter(other).collect();
                let near = suggestions.join(" or ");
                Some(match (near.as_str(), others.as_slice()) {
                    ("", []) => "this machine has none of that kind".into(),
                    ("", others) => format!("there is {}", peer::list(others)),
                    (near, []) => format!("did you mean {near}?"),
                    (near, others) => {
                        format!("did you mean {near}? there is also {}", peer::list(others))
                    }
                })
            }
            Self::SamePlace { .. } => None,
            Self::NoRoute { from, to } => Some(format!(
                "ask for the two halves: from {from} to host, and from host to {to}"
            )),
        }
    }
}

/// Every candidate route between two places, those one would take first in front: open ones by
/// class and ceiling, then those that could not be proved, then blocked ones.
///
/// # Errors
/// When a place names a device that does not exist, or no transfer goes between such places.
pub fn candidates(
    topology: &Topology,
    snapshot: Option<&Snapshot>,
    from: &Place,
    to: &Place,
) -> Result<Vec<Candidate>, SearchError> {
    Search {
        topology,
        snapshot,
        measured: &NOTHING_MEASURED,
    }
    .candidates(from, to)
}

static NOTHING_MEASURED: Measured = Measured {
    copy: None,
    crypto: None,
    memory: None,
    drives: BTreeMap::new(),
};

/// A machine to search, with what was measured of it.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The graph.
    pub topology: &'a Topology,
    /// What the graph was decoded from, to quote and to look up drivers and settings in.
    pub snapshot: Option<&'a Snapshot>,
    /// Rates measured on the machine.
    pub measured: &'a Measured,
}

impl Search<'_> {
    /// As [`candidates`], with measured rates where there are some.
    ///
    /// # Errors
    /// As [`candidates`].
    pub fn candidates(&self, from: &Place, to: &Place) -> Result<Vec<Candidate>, SearchError> {
        let world = World {
            topology: self.topology,
            seen: Seen(self.snapshot),
            measured: self.measured,
        };
        world.check(from)?;
        world.check(to)?;
        if from == to && !matches!(from, Place::Host(_)) {
            return Err(SearchError::SamePlace {
                place: from.clone(),
            });
        }
        let mut found = world.without_gpu(from, to);
        if found.is_empty() {
            found = world.planned(from, to)?;
        }
        order::price(&mut found);
        order::order(&mut found);
        Ok(found)
    }
}

/// What the search stands on.
#[derive(Clone, Copy, Debug)]
struct World<'a> {
    topology: &'a Topology,
    seen: Seen<'a>,
    measured: &'a Measured,
}

impl World<'_> {
    /// The candidates between two places whose devices exist.
    fn planned(&self, from: &Place, to: &Place) -> Result<Vec<Candidate>, SearchError> {
        let dress = |draft| self.candidate(draft, from.clone(), to.clone());
        if let Some(drafts) = self.inward(from, to, false) {
            return Ok(drafts.into_iter().map(dress).collect());
        }
        let Some(drafts) = self.inward(to, from, true) else {
            return Err(SearchError::NoRoute {
                from: from.clone(),
                to: to.clone(),
            });
        };
        let turned = drafts.into_iter().map(|draft| Draft {
            hops: legs::turned_round(draft.hops),
            ..draft
        });
        Ok(turned.map(dress).collect())
    }

    /// The ways from a store, a wire or host memory inward to a GPU or to memory, and from memory
    /// to a peer server. `reverse` says that the data goes the other way, as in a checkpoint that
    /// is written.
    fn inward(&self, from: &Place, to: &Place, reverse: bool) -> Option<Vec<Draft>> {
        match (from, to) {
            (Place::File(_) | Place::Drive(_), _) => self.out_of_store(from, to, reverse),
            (Place::Object(url), _) => Some(self.object_to(url, self.end(to)?)),
            (Place::Nic(name), _) => {
                Some(self.wire_to(self.nic_index(name)?, self.end(to)?, reverse))
            }
            (_, Place::Remote(memory)) => {
                let there = self.remote_end(memory)?;
                Some(self.server_to_server(self.end(from)?, there))
            }
            (Place::Host(numa), Place::Gpu(gpu)) => {
                Some(self.host_to_gpu(*numa, self.gpu_index(*gpu)?))
            }
            (Place::Host(a), Place::Host(b)) => Some(self.host_to_host(*a, *b)),
            (Place::Host(numa), Place::Peer(address)) => {
                Some(self.host_to_peer(*numa, *address, reverse))
            }
            (Place::Gpu(a), Place::Gpu(b)) => {
                Some(self.gpu_to_gpu(self.gpu_index(*a)?, self.gpu_index(*b)?))
            }
            _ => None,
        }
    }

    fn out_of_store(&self, from: &Place, to: &Place, write: bool) -> Option<Vec<Draft>> {
        let store = self.store(from)?;
        if let (Holder::Servers(servers), Some(end)) = (&store.holder, self.end(to)) {
            return Some(self.servers_to(&store, *servers, end));
        }
        match to {
            Place::Host(numa) => Some(self.storage_to_host(&store, *numa, write)),
            Place::Gpu(gpu) => Some(self.storage_to_gpu(&store, self.gpu_index(*gpu)?, write)),
            Place::Peer(address) => Some(self.storage_to_peer(&store, *address, write)),
            _ => None,
        }
    }

    fn remote_end(&self, memory: &Memory) -> Option<End> {
        match memory {
            Memory::Host(numa) => Some(End::Host(*numa)),
            Memory::Gpu(index) => self.gpu_index(*index).map(End::Gpu),
        }
    }

    /// On a machine without GPUs, a route that asks for one: what is missing, and the same route
    /// with host memory in its place, as far as there is one.
    fn without_gpu(&self, from: &Place, to: &Place) -> Vec<Candidate> {
        let is_gpu = |place: &Place| matches!(place, Place::Gpu(_) | Place::Remote(Memory::Gpu(_)));
        if !self.topology.gpus.is_empty() || !(is_gpu(from) || is_gpu(to)) {
            return Vec::new();
        }
        let name = match (from, to) {
            (Place::File(_) | Place::Drive(_), _) | (_, Place::File(_) | Place::Drive(_)) => {
                "gpudirect-storage"
            }
            (Place::Gpu(_) | Place::Host(_), Place::Gpu(_) | Place::Host(_)) => "gpu-peer-to-peer",
            _ => "gpudirect-rdma",
        };
        let missing = Draft::missing(name, self.no_gpu());
        let mut found = vec![self.candidate(missing, from.clone(), to.clone())];
        let instead = |place: &Place| match place {
            Place::Gpu(_) => Place::Host(None),
            Place::Remote(Memory::Gpu(_)) => Place::Remote(Memory::Host(None)),
            other => other.clone(),
        };
        let (from, to) = (instead(from), instead(to));
        if from != to
            && let Ok(others) = self.planned(&from, &to)
        {
            found.extend(
                others
                    .into_iter()
                    .filter(|other| other.standing() != Standing::Blocked),
            );
        }
        found
    }

    fn no_gpu(&self) -> Obstacle {
        let functions = self.topology.pci.len();
        let key = "/sys/bus/pci/devices";
        if functions == 0 {
            return Obstacle::unproven(
                Code::NoGpu,
                "No GPU was seen, but neither was any other PCI device.",
            )
            .proved_by([self.seen.quote(key)]);
        }
        let mut obstacle = Obstacle::blocks(Code::NoGpu, "This machine has no GPU.").seen(
            key,
            format!("{functions} functions, none a GPU or accelerator with memory of its own"),
        );
        for function in self.topology.pci.values().filter(|f| f.class >> 16 == 0x03) {
            obstacle = obstacle.proved_by([Evidence::new(
                peer::sysfs(function.address, "class"),
                format!(
                    "{:#08x}, {}: graphics without memory of its own",
                    function.class, function.name
                ),
            )]);
        }
        obstacle.fixed_by(
            Fix::by_hand(
                "Run on a machine with a data-center GPU, or pass one through to this one.",
            )
            .checked_by("lspci -d ::0302"),
        )
    }
}
