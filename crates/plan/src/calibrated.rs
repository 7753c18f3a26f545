//! The `calibrated` model: how long collectives take, by the algorithms that NCCL has, with its
//! own latency constants and with rates that published runs reached.
//!
//! Time is latency plus bytes over rate, for each algorithm and protocol that a group can use; the
//! fastest counts, as NCCL's tuner chooses. What each constant was set from is said beside it in
//! [`constants`]; nothing there was set from a point that [`crate::validate`] checks.

use crowfly_route::collective::{Collective as Known, Shape};
use crowfly_route::hop::Provenance;
use crowfly_route::units::BytesPerSecond;
use serde::Serialize;

use crate::catalog::Transport;
use crate::cluster::{Cluster, ScaleUp};

pub mod constants;
mod ring;
mod staged;
mod switched;
mod tree;
mod ways;

pub use staged::{StagedRange, StagedRate};
pub use ways::{MAX_BUFFER_BYTES, Way, Ways};

use constants::{LARGEST_CALIBRATED_GROUP, PAIRWISE_SHARE};

/// What the members of a group do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Each ends with the sum of all.
    AllReduce,
    /// Each ends with its part of the sum.
    ReduceScatter,
    /// Each ends with the parts of all.
    AllGather,
    /// Each has something for each other.
    AllToAll,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
    ];

    /// The word used in options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
        }
    }

    /// The same among all that the engine knows.
    const fn known(self) -> Known {
        match self {
            Self::AllReduce => Known::AllReduce,
            Self::ReduceScatter => Known::ReduceScatter,
            Self::AllGather => Known::AllGather,
            Self::AllToAll => Known::AllToAll,
        }
    }

    /// Bus bandwidth in units of bytes over time, as nccl-tests defines it.
    pub fn bus_factor(self, ranks: f64) -> f64 {
        self.known().bus_factor(ranks)
    }

    /// How often the data goes round.
    const fn rounds(self) -> f64 {
        self.known().rounds()
    }

    /// What one ring through `ranks` members asks of each.
    fn ring(self, ranks: f64) -> Shape {
        Shape::ring(self.known(), ranks)
    }
}

/// How they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// One ring through all GPUs.
    Ring,
    /// Two binary trees over the domains, a chain inside each.
    Tree,
    /// Reduced inside NVSwitch; one domain.
    Nvls,
    /// Inside NVSwitch within domains, trees between them.
    NvlsTree,
    /// Reduced within domains, rings of the shards between them, gathered within domains.
    Hierarchical,
    /// Everyone to everyone.
    Pairwise,
}

impl Algorithm {
    /// Those that can be asked for by name.
    pub const ALL: [Self; 5] = [
        Self::Ring,
        Self::Tree,
        Self::Nvls,
        Self::NvlsTree,
        Self::Hierarchical,
    ];

    /// The word used in options and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Nvls => "nvls",
            Self::NvlsTree => "nvls-tree",
            Self::Hierarchical => "hierarchical",
            Self::Pairwise => "pairwise",
        }
    }
}

/// How pieces are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// A flag beside every 4 B: quick, half the rate.
    Ll,
    /// A flag in every 128 B.
    Ll128,
    /// Large pieces and a fence.
    Simple,
}

/// What an estimate is limited by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The adapters' line rate.
    Nic,
    /// NVLink or what stands in its place.
    ScaleUp,
    /// Host memory, through which data is staged.
    HostMemory,
    /// The link to host memory.
    Uplink,
    /// The links between switches.
    Spine,
    /// The time that nothing moves.
    Latency,
}

impl Bound {
    /// For a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nic => "the NICs' line rate",
            Self::ScaleUp => "the links between GPUs of a domain",
            Self::HostMemory => "host memory",
            Self::Uplink => "the link to host memory",
            Self::Spine => "the links between switches",
            Self::Latency => "latency",
        }
    }
}

/// Who takes part, and over what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Scale-up domains that they are spread over.
    pub domains: u32,
    /// Members in each.
    pub per_domain: u32,
    /// What joins the members of a domain; `None`: they reach each other over the network alone.
    pub scale_up: Option<ScaleUp>,
    /// What the members of one domain have of adapters together, one direction, at line rate.
    pub network: BytesPerSecond,
    /// What limits that.
    pub network_bound: Bound,
    /// What carries it.
    pub transport: Transport,
    /// Ports down per port up at the leaf.
    pub oversubscription: f64,
}

/// How long a collective takes, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// All of it.
    pub seconds: f64,
    /// The part in which nothing moves.
    pub latency_seconds: f64,
    /// How it is done.
    pub algorithm: Algorithm,
    /// How pieces are handed over.
    pub protocol: Protocol,
    /// What it is limited by.
    pub bound: Bound,
    /// Whether the group is larger than any that the constants were set from.
    pub extrapolated: bool,
}

impl Estimate {
    /// Bus bandwidth as nccl-tests prints it, in B/s; `None` when no time passes.
    pub fn bus_bandwidth(&self, collective: Collective, ranks: f64, bytes: f64) -> Option<f64> {
        (self.seconds > 0.0).then(|| collective.bus_factor(ranks) * bytes / self.seconds)
    }

    /// Where the number comes from.
    pub fn provenance(&self) -> Provenance {
        Provenance::Computed(format!("calibrated: {}", self.algorithm.as_str()))
    }

    fn of(
        latency: f64,
        transfer: f64,
        algorithm: Algorithm,
        protocol: Protocol,
        bound: Bound,
    ) -> Self {
        Self {
            seconds: latency + transfer,
            latency_seconds: latency,
            algorithm,
            protocol,
            bound: if latency > transfer {
                Bound::Latency
            } else {
                bound
            },
            extrapolated: false,
        }
    }

    fn nothing() -> Self {
        Self::of(0.0, 0.0, Algorithm::Ring, Protocol::Simple, Bound::Latency)
    }
}

impl Group {
    /// All GPUs of a cluster, direct.
    pub fn of(cluster: &Cluster) -> Self {
        let nics = f64::from(cluster.domain_nics());
        Self {
            domains: cluster.domains(),
            per_domain: cluster.domain_gpus(),
            scale_up: cluster.server.scale_up.clone(),
            network: BytesPerSecond(nics * cluster.server.nic_rate.rate.0),
            network_bound: Bound::Nic,
            transport: cluster.server.transport,
            oversubscription: cluster.oversubscription,
        }
    }

    /// The same group with its adapters held to `rate` each, of `nics` per domain.
    #[must_use]
    pub fn staged(mut self, nics: u32, rate: &StagedRate) -> Self {
        self.network = BytesPerSecond(f64::from(nics) * rate.per_nic.0);
        self.network_bound = rate.bound;
        self
    }

    /// Members.
    pub fn ranks(&self) -> f64 {
        f64::from(self.domains) * f64::from(self.per_domain)
    }

    /// How long a collective on `bytes` takes by the fastest way, or by `only` one. `bytes` is what
    /// nccl-tests calls the size: the whole buffer of one member. `None` where the group cannot use
    /// that way.
    pub fn estimate(
        &self,
        collective: Collective,
        bytes: f64,
        only: Option<Algorithm>,
    ) -> Option<Estimate> {
        if self.ranks() <= 1.0 || bytes <= 0.0 {
            return Some(Estimate::nothing());
        }
        let mut ways = Vec::new();
        match collective {
            Collective::AllToAll => ways.push(self.pairwise(bytes)),
            Collective::AllReduce => {
                ways.extend(self.ring(collective, bytes));
                ways.extend(self.tree(bytes));
                ways.extend(self.switched(bytes));
                // The article's way, and what frameworks build from two groups; NCCL has no such
                // algorithm of its own, so it must be asked for.
                if only == Some(Algorithm::Hierarchical) {
                    ways.push(self.hierarchical(collective, bytes));
                }
            }
            Collective::ReduceScatter | Collective::AllGather => {
                ways.extend(self.ring(collective, bytes));
                if only == Some(Algorithm::Hierarchical) {
                    ways.push(self.hierarchical(collective, bytes));
                }
            }
        }
        let usable = ways
            .into_iter()
            .filter(|way| only.is_none_or(|only| only == way.algorithm));
        let fastest = usable.min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
        Some(Estimate {
            extrapolated: self.domains > LARGEST_CALIBRATED_GROUP || self.is_untried(),
            ..fastest
        })
    }

    /// As [`Group::estimate`] by the fastest way, which every group has.
    pub fn fastest(&self, collective: Collective, bytes: f64) -> Estimate {
        let found = self.estimate(collective, bytes, None);
        found.unwrap_or_else(Estimate::nothing)
    }

    /// Whether nobody measured this kind of domain.
    fn is_untried(&self) -> bool {
        let newer = constants::NEWEST_CALIBRATED_NVLINK;
        let nvlink = self.scale_up.as_ref().and_then(|fabric| fabric.nvlink);
        nvlink.is_some_and(|generation| generation > newer)
    }

    /// All-to-all: each member sends the same to every member. What goes to other domains shares
    /// the adapters, what stays shares the scale-up fabric, both at the same time.
    fn pairwise(&self, bytes: f64) -> Estimate {
        let (n, g) = (f64::from(self.domains), f64::from(self.per_domain));
        let outside = bytes * (n - 1.0) / n;
        let inside = bytes * (g - 1.0) / (n * g);
        // Across leaves only what the leaf's uplinks carry: with full leaves nearly all of it.
        let narrowed = self.network.0 / self.oversubscription;
        let network = outside * g / (narrowed * PAIRWISE_SHARE);
        let inner = self.inner_seconds(inside);
        let bound = match (network >= inner, self.oversubscription > 1.0) {
            (false, _) => Bound::ScaleUp,
            (true, true) => Bound::Spine,
            (true, false) => self.network_bound,
        };
        let network_step = if self.domains > 1 {
            self.network_step(Protocol::Simple)
        } else {
            constants::SIMPLE.ring_scale_up_step
        };
        let latency = constants::SIMPLE.base_ring + network_step;
        Estimate::of(
            latency,
            network.max(inner),
            Algorithm::Pairwise,
            Protocol::Simple,
            bound,
        )
    }

    /// Reduce-scatter within domains, a ring of each shard between them, all-gather within. The
    /// phases follow each other.
    fn hierarchical(&self, collective: Collective, bytes: f64) -> Estimate {
        let (n, g) = (f64::from(self.domains), f64::from(self.per_domain));
        let rounds = collective.rounds();
        let inner = rounds * self.inner_seconds(bytes * (g - 1.0) / g);
        let network = rounds * (n - 1.0) / n * bytes / (self.network.0 * constants::RING_SHARE);
        let steps = rounds * (n - 1.0);
        let inner_steps = rounds * (g - 1.0);
        let latency = constants::SIMPLE.base_ring
            + steps * self.network_step(Protocol::Simple)
            + inner_steps * constants::SIMPLE.ring_scale_up_step;
        let bound = if network >= inner {
            self.network_bound
        } else {
            Bound::ScaleUp
        };
        Estimate::of(
            latency,
            inner + network,
            Algorithm::Hierarchical,
            Protocol::Simple,
            bound,
        )
    }

    /// The time in which each member of a domain sends `bytes` to others of it.
    fn inner_seconds(&self, bytes: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        bytes / self.inner_rate()
    }

    /// What a member sends to others of its domain, B/s. Without a scale-up fabric that is its
    /// share of the adapters.
    fn inner_rate(&self) -> f64 {
        match &self.scale_up {
            Some(fabric) => fabric.rate.rate.0 * constants::scale_up_share(fabric.nvlink),
            None => self.network.0 * constants::RING_SHARE / f64::from(self.per_domain.max(1)),
        }
    }

    /// One hop over the network.
    fn network_step(&self, protocol: Protocol) -> f64 {
        constants::of(protocol).ring_network_step + constants::transport_step(self.transport)
    }
}

#[cfg(test)]
mod tests;
