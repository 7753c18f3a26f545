//! Which rails may carry transfers between two memories, and what a receipt says of each of them.
//!
//! A plan holds for all transfers of one kind between the same two memories until a rail changes, so
//! it is made once for many of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crowfly_route::hop::{Class, Route};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::{Memory, Place};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Visibility};

use super::descriptor::{DescriptorId, RegionDescriptor};
use super::hops;
use super::identity::Incarnation;
use super::provider::{RailId, Registration, Verb};
use super::rail::Rail;
use super::region::RegionCore;
use super::transfer::LeftOut;

/// Kinds of transfers that something is kept for.
const MAX_KEPT: usize = 16;

/// What moves where, without its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Kind<'a> {
    pub verb: Verb,
    pub policy: Policy,
    pub local: Option<&'a Arc<RegionCore>>,
    pub remote: Option<&'a RegionDescriptor>,
}

impl Kind<'_> {
    /// Whether a GPU's memory is at either end. How its bytes go may turn out only on the way.
    pub(crate) fn is_of_a_gpu(&self) -> bool {
        let (from, to) = self.ends();
        [from, to].iter().any(|place| hops::gpu_of(place).is_some())
    }

    /// The two ends, in the direction of the bytes.
    fn ends(&self) -> (Place, Place) {
        let here = self
            .local
            .map_or(Place::Host(None), |region| region.backing().place().clone());
        let there = match self.remote.map(RegionDescriptor::place) {
            Some(Place::Host(node)) => Place::Remote(Memory::Host(*node)),
            Some(Place::Gpu(index)) => Place::Remote(Memory::Gpu(*index)),
            Some(other) => other.clone(),
            None => Place::Remote(Memory::Host(None)),
        };
        match self.verb {
            Verb::Write => (here, there),
            Verb::Read => (there, here),
        }
    }
}

/// What a receipt says of the bytes that one rail carried.
#[derive(Debug)]
pub(crate) struct Way {
    pub path: Path,
    pub nic: String,
    pub class: Class,
    pub route: Route,
    /// Whether the device of the destination sees what this rail's NIC wrote; `None` where something is
    /// to be done first, which tells.
    pub visibility: Option<Visibility>,
}

/// Which rails may carry transfers between two memories.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub peer: Incarnation,
    pub policy: Policy,
    pub from: Place,
    pub to: Place,
    verb: Verb,
    /// Rails that may carry it, best tier first.
    pub tiers: Vec<Vec<RailId>>,
    /// Why each better rail does not carry it.
    pub obstacles: Vec<Obstacle>,
    /// Rails of the best path that are not used, and why not.
    pub left_out: Vec<LeftOut>,
    ways: Vec<(RailId, Arc<Way>)>,
}

impl Plan {
    pub(crate) fn new(peer: Incarnation, kind: &Kind<'_>) -> Self {
        let (from, to) = kind.ends();
        Self {
            peer,
            policy: kind.policy,
            from,
            to,
            verb: kind.verb,
            tiers: Vec::new(),
            obstacles: Vec::new(),
            left_out: Vec::new(),
            ways: Vec::new(),
        }
    }

    /// Notes what a receipt would say of a rail, by a detour through host memory or without.
    pub(crate) fn goes_by(
        &mut self,
        id: RailId,
        rail: &Rail,
        local: Option<&RegionCore>,
        detour: bool,
    ) {
        let (from, to) = (self.from.clone(), self.to.clone());
        let route = rail.link.route(self.verb, from, to);
        let route = match detour {
            true => hops::through_host(route),
            false => route,
        };
        let way = Way {
            path: rail.path,
            nic: rail.nic.clone(),
            class: route.class(),
            visibility: self.visibility(rail, local),
            route,
        };
        self.ways.retain(|(known, _)| *known != id);
        self.ways.push((id, Arc::new(way)));
    }

    pub(crate) fn way(&self, rail: RailId) -> Option<&Arc<Way>> {
        let mut ways = self.ways.iter();
        ways.find(|(id, _)| *id == rail).map(|(_, way)| way)
    }

    /// Whether two rails are of one path and NIC, as one is and another that was made in its place.
    pub(crate) fn go_by_one_nic(&self, one: RailId, other: RailId) -> bool {
        let ways = self.way(one).zip(self.way(other));
        ways.is_some_and(|(one, other)| one.path == other.path && one.nic == other.nic)
    }

    /// The way that comes first.
    pub(crate) fn first(&self) -> Option<&Way> {
        self.way(*self.tiers.first()?.first()?).map(Arc::as_ref)
    }

    /// What a rail's NIC said when the memory was registered with it.
    fn visibility(&self, rail: &Rail, local: Option<&RegionCore>) -> Option<Visibility> {
        let unknown = |why: &str| Some(Visibility::Unknown(why.into()));
        if self.reaches_host() {
            return Some(Registration::visible_to_the_host());
        }
        if rail.path != Path::Verbs {
            // Threads of the two processes have the GPU copy, and wait for it.
            return Some(Registration::copied_by_the_gpu());
        }
        let Some(region) = local.filter(|_| self.verb == Verb::Read) else {
            return unknown(
                "the peer flushes before it counts a value or hands over a message; whether it has was not asked",
            );
        };
        match region.registration(rail.path, &rail.nic) {
            None => unknown("the memory is not registered with the NIC that wrote it"),
            Some(registration) => match registration.flush {
                Some(_) => None,
                None => Some(registration.visibility.clone()),
            },
        }
    }

    /// Whether the bytes come to rest in host memory.
    pub(crate) const fn reaches_host(&self) -> bool {
        matches!(self.to, Place::Host(_) | Place::Remote(Memory::Host(_)))
    }
}

/// What is kept for kinds of transfers; the oldest makes room.
pub(crate) struct Kinds<T> {
    kept: Vec<Kept<T>>,
    turn: usize,
}

struct Kept<T> {
    verb: Verb,
    policy: Policy,
    /// Held, so that no other region can have the same address.
    local: Option<Weak<RegionCore>>,
    remote: Option<DescriptorId>,
    what: T,
}

impl<T> Kept<T> {
    fn is_for(&self, kind: &Kind<'_>) -> bool {
        let local = match (&self.local, kind.local) {
            (Some(known), Some(local)) => std::ptr::eq(known.as_ptr(), Arc::as_ptr(local)),
            (None, None) => true,
            _ => false,
        };
        let remote = match (&self.remote, kind.remote) {
            (Some(known), Some(remote)) => known.is_of(remote),
            (None, None) => true,
            _ => false,
        };
        local && remote && self.verb == kind.verb && self.policy == kind.policy
    }
}

impl<T> Default for Kinds<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            turn: 0,
        }
    }
}

impl<T> Kinds<T> {
    pub(crate) fn find(&self, kind: &Kind<'_>) -> Option<&T> {
        let mut kept = self.kept.iter();
        kept.find(|kept| kept.is_for(kind)).map(|kept| &kept.what)
    }

    pub(crate) fn has(&self, kind: &Kind<'_>) -> bool {
        self.find(kind).is_some()
    }

    /// Answers what makes room for it, if something does.
    pub(crate) fn keep(&mut self, kind: &Kind<'_>, what: T) -> Option<T> {
        let new = Kept {
            verb: kind.verb,
            policy: kind.policy,
            local: kind.local.map(Arc::downgrade),
            remote: kind.remote.map(RegionDescriptor::identity),
            what,
        };
        if self.kept.len() < MAX_KEPT {
            self.kept.push(new);
            return None;
        }
        self.turn = (self.turn + 1) % MAX_KEPT;
        let oldest = self.kept.get_mut(self.turn)?;
        Some(std::mem::replace(oldest, new).what)
    }

    /// Takes those out that are of no use any more.
    pub(crate) fn drop_if(&mut self, useless: impl Fn(&T) -> bool) -> Vec<T> {
        let gone = self.kept.extract_if(.., |kept| useless(&kept.what));
        gone.map(|kept| kept.what).collect()
    }
}

/// Plans that were made already.
#[derive(Default)]
pub(crate) struct Plans {
    kinds: Kinds<Arc<Plan>>,
    /// Counts up with each change of a rail.
    era: Arc<AtomicU64>,
}

impl Plans {
    /// Changes when plans that were made before hold no more.
    pub(crate) const fn era(&self) -> &Arc<AtomicU64> {
        &self.era
    }

    pub(crate) fn find(&self, kind: &Kind<'_>) -> Option<&Arc<Plan>> {
        self.kinds.find(kind)
    }

    pub(crate) fn keep(&mut self, kind: &Kind<'_>, plan: &Arc<Plan>) {
        self.kinds.keep(kind, Arc::clone(plan));
    }

    /// A rail changed: none of them holds any more.
    pub(crate) fn forget(&mut self) {
        self.kinds = Kinds::default();
        self.era.fetch_add(1, Ordering::Release);
    }
}
