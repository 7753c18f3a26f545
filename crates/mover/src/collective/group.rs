//! The ranks that do collectives together.

pub(super) mod arguments;
mod call;
mod form;
mod plan;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crowfly_route::policy::Policy;

use super::arena::Layout;
use super::choose::{Algorithm, Costs, LastChoice};
use super::council::Council;
use super::courier::Courier;
use super::error::CollectiveError;
use super::flat::Flat;
use super::hosts::Hosts;
use super::lane::Lane;
use super::mesh::Mesh;
use super::neighbours::Neighbours;
use crate::fabric::{Backing, DEFAULT_DEADLINE, Fabric, Region};

/// How a group is formed.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    /// The time that forming it may take.
    pub time: Duration,
    /// What ranks that share memory have in common; found out when `None`. Ranks with different
    /// labels count as on different hosts.
    pub host: Option<String>,
    /// How the bytes between hosts may go.
    pub policy: Policy,
    /// What the choice of algorithms goes by, the same at all ranks; what the links between hosts carry
    /// when `None`.
    pub costs: Option<Costs>,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(60),
            host: None,
            policy: Policy::Prefer,
            costs: None,
        }
    }
}

/// How one call is to be done; the same at all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// The time it may take, until it ends or all ranks have agreed that it failed;
    /// [`DEFAULT_DEADLINE`] when `None`.
    pub deadline: Option<Duration>,
    /// How it is to be done; the fastest by the model when `None`.
    pub algorithm: Option<Algorithm>,
    /// Whether half precision is summed in single precision and rounded once.
    pub wide: bool,
}

impl CallOptions {
    /// With a time limit.
    pub const fn within(deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            algorithm: None,
            wide: false,
        }
    }

    /// By an algorithm.
    #[must_use]
    pub const fn by(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// With half precision summed in single precision.
    #[must_use]
    pub const fn in_single_precision(mut self) -> Self {
        self.wide = true;
        self
    }

    pub(super) fn allowed(&self) -> Duration {
        self.deadline.unwrap_or(DEFAULT_DEADLINE)
    }
}

/// The ranks that do collectives together. All must make the same calls in the same order; each call
/// ends within its deadline, and when it fails, every rank that is left gets the same error.
///
/// Results are the same bits at all ranks, and each time for the same numbers, ranks, hosts, options
/// and costs: the order in which numbers are reduced follows from those alone.
pub struct Group {
    mesh: Arc<Mesh>,
    settings: GroupSettings,
    /// What the choice of algorithms goes by.
    costs: Costs,
    council: Arc<Council>,
    id: u64,
    /// The mesh's numbers of the ranks.
    members: Vec<usize>,
    me: usize,
    hosts: Hosts,
    layout: Layout,
    #[expect(dead_code, reason = "held for its drop: others map it")]
    arena: Arc<Region>,
    /// The arenas of the ranks of this host.
    near: Vec<Option<Arc<Backing>>>,
    lanes: Vec<Option<Lane>>,
    flat: Option<Flat>,
    roomy: bool,
    neighbours: Neighbours,
    /// Whether all ranks run on one machine, however they reach each other.
    one_machine: bool,
    /// Whether each has a stream to each other one.
    streams: bool,
    number: u64,
    children: u64,
    /// Buffers made so far.
    buffers: u32,
    failure: Option<CollectiveError>,
    scratch: Vec<u8>,
    chosen: LastChoice,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.me, self.members.len())
    }
}

impl Group {
    /// This process's number in the group.
    pub const fn rank(&self) -> usize {
        self.me
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Which ranks share a host.
    pub const fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The number that each rank had in the group that was formed first.
    pub fn origin(&self) -> &[usize] {
        &self.members
    }

    /// The fabric under it.
    pub fn fabric(&self) -> &Fabric {
        &self.mesh.fabric
    }

    /// Sends to and receives from single ranks.
    pub fn courier(&self) -> Courier {
        Courier {
            mesh: Arc::clone(&self.mesh),
            group: self.id,
            members: self.members.as_slice().into(),
            me: self.me,
            policy: self.settings.policy,
        }
    }

    /// Why the group no longer works, if it does not.
    pub const fn failure(&self) -> Option<&CollectiveError> {
        self.failure.as_ref()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.mesh.councils.remove(&self.council);
        self.mesh.post_office.forget(self.id);
    }
}
