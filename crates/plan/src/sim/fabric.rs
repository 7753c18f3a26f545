//! The links of a fat tree, numbered one after the other.
//!
//! Port `p` of every leaf goes to the same spine, and port `j` of that spine to the same core switch,
//! as in every pod: what a flow's way up chooses decides its way down.

use super::random::{Random, hash};
use super::{LinkUse, Routing, Simulation};
use crate::calibrated::constants::RING_SHARE;
use crate::error::PlanError;
use crate::fabric::{Switches, Wiring};

/// A link, one direction.
pub(super) type LinkId = u32;

/// Tiers of links, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    NicOut,
    NicIn,
    LeafUp,
    LeafDown,
    PodUp,
    PodDown,
    Storage,
}

impl Tier {
    const ALL: [Self; 7] = [
        Self::NicOut,
        Self::NicIn,
        Self::LeafUp,
        Self::LeafDown,
        Self::PodUp,
        Self::PodDown,
        Self::Storage,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NicOut => "NIC to leaf",
            Self::NicIn => "leaf to NIC",
            Self::LeafUp => "leaf to spine",
            Self::LeafDown => "spine to leaf",
            Self::PodUp => "spine to core",
            Self::PodDown => "core to spine",
            Self::Storage => "storage",
        }
    }
}

/// A NIC, as a server (or larger domain) and the rail it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nic {
    pub(super) server: u32,
    pub(super) rail: u32,
}

/// The links of a fabric.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) servers: u32,
    pub(super) rails: u32,
    routing: Routing,
    wiring: Wiring,
    switches: Switches,
    seed: u64,
    /// First number of each tier, and one past the last.
    starts: [usize; 8],
    capacity: Vec<f64>,
    /// With static routing, the uplinks of each leaf that work.
    alive: Vec<Vec<u32>>,
    dead_nics: Vec<bool>,
    failed: [u64; 7],
}

impl Fabric {
    pub(super) fn build(simulation: &Simulation) -> Result<Self, PlanError> {
        let cluster = &simulation.cluster;
        let (servers, rails) = (cluster.domains(), cluster.domain_nics());
        let switches = Switches::wired(
            simulation.wiring,
            servers,
            rails,
            simulation.radix,
            cluster.oversubscription,
            None,
        )?;
        let switches = match simulation.spines {
            Some(spines) => switches.with_spines(spines)?,
            None => switches,
        };
        let nics = servers as usize * rails as usize;
        let (leaves, pods) = (switches.leaf as usize, pods(&switches) as usize);
        let up = switches.up as usize;
        let half = (switches.radix / 2) as usize;
        let single = simulation.routing == Routing::Static;
        let of_leaves = match (switches.tiers, single) {
            (1, _) => 0,
            (_, true) => leaves * up,
            (_, false) => leaves,
        };
        let of_pods = if switches.tiers < 3 {
            0
        } else {
            pods * if single { up * half } else { 1 }
        };
        let sizes = [nics, nics, of_leaves, of_leaves, of_pods, of_pods, 1];
        let mut starts = [0; 8];
        let mut next = 0;
        for (start, size) in starts.iter_mut().skip(1).zip(sizes) {
            next += size;
            *start = next;
        }
        let mut fabric = Self {
            servers,
            rails,
            routing: simulation.routing,
            wiring: simulation.wiring,
            switches,
            seed: simulation.seed,
            starts,
            capacity: vec![cluster.server.nic_rate.rate.0 * RING_SHARE; next],
            alive: vec![(0..switches.up).collect(); leaves],
            dead_nics: vec![false; nics],
            failed: [0; 7],
        };
        fabric.slow_down(simulation);
        fabric.fail(simulation);
        fabric.widen(simulation, pods);
        Ok(fabric)
    }

    fn slow_down(&mut self, simulation: &Simulation) {
        let servers = self.servers as usize;
        let slow = (simulation.stragglers * servers as f64).round() as usize;
        let mut random = Random::new(hash(simulation.seed ^ 1));
        let rails = self.rails as usize;
        let second = self.starts[1];
        for server in random.choose(slow, servers) {
            for nic in server * rails..(server + 1) * rails {
                for link in [nic, second + nic] {
                    if let Some(capacity) = self.capacity.get_mut(link) {
                        *capacity *= simulation.straggler_rate;
                    }
                }
            }
        }
    }

    fn fail(&mut self, simulation: &Simulation) {
        let up = self.switches.up as usize;
        let cables = self.alive.len() * up;
        let dead = (simulation.failed_links * cables as f64).round() as usize;
        let mut random = Random::new(hash(simulation.seed ^ 2));
        for cable in random.choose(dead, cables) {
            if let Some(links) = self.alive.get_mut(cable / up.max(1)) {
                links.retain(|link| *link as usize != cable % up.max(1));
            }
        }
        self.failed[Tier::LeafUp as usize] = dead as u64;
        self.failed[Tier::LeafDown as usize] = dead as u64;
        let nics = self.dead_nics.len();
        let mut random = Random::new(hash(simulation.seed ^ 3));
        for nic in random.choose(simulation.failed_nics as usize, nics) {
            if let Some(dead) = self.dead_nics.get_mut(nic) {
                *dead = true;
            }
        }
        self.failed[Tier::NicOut as usize] = simulation.failed_nics.into();
        self.failed[Tier::NicIn as usize] = simulation.failed_nics.into();
    }

    /// With adaptive routing the working links of a switch are one wide link.
    fn widen(&mut self, simulation: &Simulation, pods: usize) {
        let line = simulation.cluster.server.nic_rate.rate.0 * RING_SHARE;
        if self.routing == Routing::Adaptive {
            let widths: Vec<f64> = self.alive.iter().map(|links| links.len() as f64).collect();
            for tier in [Tier::LeafUp, Tier::LeafDown] {
                let start = self.starts[tier as usize];
                for (leaf, width) in widths.iter().enumerate() {
                    if let Some(capacity) = self.capacity.get_mut(start + leaf) {
                        *capacity = line * width;
                    }
                }
            }
            if self.switches.tiers == 3 {
                // A pod's spines have as many links up as its leaves have.
                let half = self.switches.radix / 2;
                let width = f64::from(half) * f64::from(self.switches.up);
                for tier in [Tier::PodUp, Tier::PodDown] {
                    let start = self.starts[tier as usize];
                    for pod in 0..pods {
                        if let Some(capacity) = self.capacity.get_mut(start + pod) {
                            *capacity = line * width;
                        }
                    }
                }
            }
        }
        let storage = self.starts[Tier::Storage as usize];
        if let Some(capacity) = self.capacity.get_mut(storage) {
            *capacity = simulation
                .checkpoint
                .map_or(f64::INFINITY, |checkpoint| checkpoint.storage);
        }
    }

    pub(super) fn capacities(&self) -> &[f64] {
        &self.capacity
    }

    fn link(&self, tier: Tier, index: usize) -> LinkId {
        (self.starts[tier as usize] + index) as LinkId
    }

    pub(super) fn tier_of(&self, link: LinkId) -> Tier {
        let past = |tier: &Tier| (link as usize) < self.starts[*tier as usize + 1];
        Tier::ALL.into_iter().find(past).unwrap_or(Tier::Storage)
    }

    /// The NIC itself, or the next rail's that works; `None` where none of the server does.
    pub(super) fn working(&self, nic: Nic) -> Option<Nic> {
        let works = |rail: &u32| {
            let index = self.nic_index(Nic { rail: *rail, ..nic });
            !self.dead_nics.get(index).copied().unwrap_or(false)
        };
        let mut next = (0..self.rails).map(|step| (nic.rail + step) % self.rails);
        let rail = next.find(works)?;
        Some(Nic { rail, ..nic })
    }

    /// Servers that have a NIC on the same leaf.
    pub(super) fn unit(&self) -> u32 {
        match self.switches.tiers {
            1 => self.servers,
            _ => self.wiring.unit(self.switches.down, self.rails),
        }
        .max(1)
    }

    /// Leaves that the NICs of one rail are on.
    pub(super) fn units(&self) -> u32 {
        self.servers.div_ceil(self.unit())
    }

    fn leaf(&self, nic: Nic) -> u32 {
        let unit = nic.server / self.unit();
        match (self.switches.tiers, self.wiring) {
            (1, _) => 0,
            (_, Wiring::Rails) => unit * self.rails + nic.rail,
            (_, Wiring::Servers) => unit,
        }
    }

    fn pod(&self, leaf: u32) -> u32 {
        match self.switches.tiers {
            3 => leaf / (self.switches.radix / 2),
            _ => 0,
        }
    }

    fn nic_index(&self, nic: Nic) -> usize {
        nic.server as usize * self.rails as usize + nic.rail as usize
    }

    pub(super) fn out(&self, nic: Nic) -> LinkId {
        self.link(Tier::NicOut, self.nic_index(nic))
    }

    pub(super) fn into(&self, nic: Nic) -> LinkId {
        self.link(Tier::NicIn, self.nic_index(nic))
    }

    /// The links of a flow from one working NIC to another; `flow` is what is hashed. `None` where
    /// failed links leave no way.
    pub(super) fn path(&self, from: Nic, to: Nic, flow: u64, path: &mut Vec<LinkId>) -> Option<()> {
        path.push(self.out(from));
        self.between(from, to, flow, path)?;
        path.push(self.into(to));
        Some(())
    }

    /// The links between the leaves of two NICs.
    pub(super) fn between(
        &self,
        from: Nic,
        to: Nic,
        flow: u64,
        path: &mut Vec<LinkId>,
    ) -> Option<()> {
        let (a, b) = (self.leaf(from), self.leaf(to));
        if a == b {
            return Some(());
        }
        if self.working_ports(a).is_empty() || self.working_ports(b).is_empty() {
            return None;
        }
        let far = self.pod(a) != self.pod(b);
        match self.routing {
            Routing::Adaptive => {
                path.push(self.link(Tier::LeafUp, a as usize));
                if far {
                    path.push(self.link(Tier::PodUp, self.pod(a) as usize));
                    path.push(self.link(Tier::PodDown, self.pod(b) as usize));
                }
                path.push(self.link(Tier::LeafDown, b as usize));
            }
            Routing::Static => {
                let up = self.chosen(a, flow, 1, |port| self.reaches(port, b))?;
                path.push(self.at_leaf(Tier::LeafUp, a, up));
                if far {
                    let core = self.core(flow);
                    path.push(self.at_pod(Tier::PodUp, self.pod(a), up, core));
                    path.push(self.at_pod(Tier::PodDown, self.pod(b), up, core));
                }
                let spine = self.spine(up);
                let down = self.chosen(b, flow, 3, |port| self.spine(port) == spine)?;
                path.push(self.at_leaf(Tier::LeafDown, b, down));
            }
        }
        Some(())
    }

    /// From a NIC to storage, which hangs off the top of the fabric. `None` where failed links leave
    /// no way.
    pub(super) fn to_storage(&self, from: Nic, flow: u64, path: &mut Vec<LinkId>) -> Option<()> {
        path.push(self.out(from));
        let leaf = self.leaf(from);
        if self.switches.tiers > 1 {
            let up = self.chosen(leaf, flow, 5, |_| true)?;
            let (core, pod) = (self.core(flow), self.pod(leaf));
            match self.routing {
                Routing::Adaptive => path.push(self.link(Tier::LeafUp, leaf as usize)),
                Routing::Static => path.push(self.at_leaf(Tier::LeafUp, leaf, up)),
            }
            match (self.switches.tiers, self.routing) {
                (3, Routing::Adaptive) => path.push(self.link(Tier::PodUp, pod as usize)),
                (3, Routing::Static) => path.push(self.at_pod(Tier::PodUp, pod, up, core)),
                _ => {}
            }
        }
        path.push(self.link(Tier::Storage, 0));
        Some(())
    }

    fn working_ports(&self, leaf: u32) -> &[u32] {
        self.alive.get(leaf as usize).map_or(&[], Vec::as_slice)
    }

    /// Which spine a leaf's port up goes to, within the pod.
    fn spine(&self, port: u32) -> u32 {
        match self.switches.tiers {
            2 => port % self.switches.spine.max(1),
            _ => port,
        }
    }

    /// Whether the spine behind this port, or its like in the other pod, has a working link to a leaf.
    fn reaches(&self, port: u32, leaf: u32) -> bool {
        let working = self.working_ports(leaf);
        working.len() == self.switches.up as usize
            || working
                .iter()
                .any(|other| self.spine(*other) == self.spine(port))
    }

    /// One of a leaf's working ports up of this kind, by the flow's hash.
    fn chosen(&self, leaf: u32, flow: u64, salt: u64, kind: impl Fn(u32) -> bool) -> Option<u32> {
        let working = self.working_ports(leaf).iter().copied();
        let ports = || working.clone().filter(|port| kind(*port));
        let count = ports().count() as u64;
        let hashed = hash(flow ^ hash(self.seed ^ salt));
        ports().nth(hashed.checked_rem(count)? as usize)
    }

    /// Which of a spine's links up a flow takes.
    fn core(&self, flow: u64) -> u32 {
        let half = u64::from(self.switches.radix / 2);
        (hash(flow ^ hash(self.seed ^ 2)) % half.max(1)) as u32
    }

    fn at_leaf(&self, tier: Tier, leaf: u32, port: u32) -> LinkId {
        self.link(
            tier,
            leaf as usize * self.switches.up as usize + port as usize,
        )
    }

    fn at_pod(&self, tier: Tier, pod: u32, spine: u32, core: u32) -> LinkId {
        let half = self.switches.radix as usize / 2;
        let ports = self.switches.up as usize * half;
        self.link(
            tier,
            pod as usize * ports + spine as usize * half + core as usize,
        )
    }

    /// How busy each tier is under these loads.
    pub(super) fn usage(&self, loads: &[f64]) -> Vec<LinkUse> {
        let of_tier = |tier: Tier| {
            let range = self.starts[tier as usize]..self.starts[tier as usize + 1];
            let links = range.len() as u64;
            let shares = range.filter_map(|link| {
                let capacity = *self.capacity.get(link)?;
                let load = *loads.get(link)?;
                (capacity > 0.0).then_some(load / capacity)
            });
            let (busiest, sum) = shares.fold((0.0f64, 0.0), |(most, sum), share| {
                (most.max(share), sum + share)
            });
            LinkUse {
                name: tier.name(),
                links,
                failed: self.failed[tier as usize],
                busiest,
                mean: sum / links.max(1) as f64,
            }
        };
        let tiers = Tier::ALL.into_iter().map(of_tier);
        tiers
            .filter(|tier| {
                tier.links > 0 && (tier.name != Tier::Storage.name() || tier.busiest > 0.0)
            })
            .collect()
    }
}

fn pods(switches: &Switches) -> u32 {
    match switches.tiers {
        3 => switches.leaf.div_ceil(switches.radix / 2),
        _ => 1,
    }
}
