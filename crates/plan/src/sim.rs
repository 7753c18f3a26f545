//! A simulation of the flows of a fabric: hierarchical all-reduce, all-to-all and checkpoints on one
//! fat tree, with or without rails, with failed links, failed and slowed NICs, adaptive or static routing.
//!
//! Flows are fluid: each gets its max-min fair share of the links on its way, and the shares change
//! when a job ends. The flows of one ring advance together, since each waits for its neighbour, so a
//! ring is one job whose load on a link is its rate times the number of its flows there; that keeps
//! the work proportional to the number of links and not of pairs. Everything random comes from the
//! seed. Where the closed form holds, both agree ([`Simulated::closed_form_seconds`]).

use serde::Serialize;

use crate::calibrated::constants::RING_SHARE;
use crate::calibrated::{Algorithm, Collective, Group};
use crate::cluster::Cluster;
use crate::error::PlanError;
use crate::fabric::Wiring;
use crate::quantity::{
    CHECKPOINT_BYTES, CHECKPOINT_RATE, EXCHANGED_BYTES, FAILED_LINKS, REDUCED_BYTES,
    STRAGGLER_RATE, STRAGGLERS,
};

mod fabric;
mod jobs;
mod random;
mod share;

use fabric::Fabric;
use share::Job;

/// The most GPUs of a simulation.
pub const MAX_GPUS: u64 = 131_072;
/// The most flows that are hashed onto links one by one.
const MAX_HASHED_FLOWS: u64 = 32 << 20;
/// Jobs that end within this share of each other end together.
const TOGETHER: f64 = 1e-3;

/// How a switch chooses among the links up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// Packet by packet by load: all links up are one.
    #[default]
    Adaptive,
    /// Flow by flow by a hash (ECMP): flows collide.
    Static,
}

/// Which servers are neighbours in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Servers of one leaf follow each other.
    #[default]
    Packed,
    /// Any server follows any.
    Scattered,
}

/// A checkpoint that is written at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckpointTraffic {
    /// All of it, in bytes.
    pub bytes: f64,
    /// What the storage takes, B/s.
    pub storage: f64,
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// On which cluster.
    pub cluster: Cluster,
    /// Ports of a switch.
    pub radix: u32,
    /// The all-reduce: the buffer of one GPU, in bytes.
    pub bytes: f64,
    /// An all-to-all beside it: what one GPU sends in all, in bytes.
    pub all_to_all: Option<f64>,
    /// A checkpoint beside it.
    pub checkpoint: Option<CheckpointTraffic>,
    /// How switches choose links.
    pub routing: Routing,
    /// Which NICs share a leaf.
    pub wiring: Wiring,
    /// Spine switches of two tiers; `None` takes as few as do.
    pub spines: Option<u32>,
    /// Who is whose neighbour.
    pub placement: Placement,
    /// Share of the links between leaf and spine that failed.
    pub failed_links: f64,
    /// NICs that failed; their traffic goes by the next rail's.
    pub failed_nics: u32,
    /// Share of the servers whose NICs are slow.
    pub stragglers: f64,
    /// What is left of the rate of those.
    pub straggler_rate: f64,
    /// What everything random comes from.
    pub seed: u64,
}

/// What happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Its name.
    pub name: String,
    /// Its flows.
    pub flows: u64,
    /// When the last of it ended, in seconds.
    pub seconds: f64,
    /// When its parts ended in the mean: each ring, each rail's exchange, each server's file.
    pub mean_seconds: f64,
    /// How long it would take alone.
    pub alone_seconds: f64,
    /// The kind of link that held it up while all jobs ran.
    pub bottleneck: String,
}

/// Links of one tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// Which tier.
    pub name: &'static str,
    /// Links, each direction for itself; links that are one to the routing count as one.
    pub links: u64,
    /// Cables that failed.
    pub failed: u64,
    /// Load of the busiest as a share of its rate, while all jobs run.
    pub busiest: f64,
    /// Mean load.
    pub mean: f64,
}

/// What a simulation found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// GPUs.
    pub gpus: u64,
    /// The buffer of one GPU.
    pub bytes: f64,
    /// What a NIC was given, B/s.
    pub nic_rate: f64,
    /// The all-reduce, its parts within servers included.
    pub all_reduce_seconds: f64,
    /// The part of it between servers.
    pub network_seconds: f64,
    /// What the closed form says of it; `None` where something is simulated that it leaves out.
    pub closed_form_seconds: Option<f64>,
    /// Each job; the all-reduce first.
    pub jobs: Vec<JobOutcome>,
    /// Each tier of links.
    pub links: Vec<LinkUse>,
    /// Times at which shares changed.
    pub events: u64,
    /// The seed.
    pub seed: u64,
}

impl Simulation {
    /// An all-reduce of `bytes` on a cluster where nothing is wrong.
    pub fn of(cluster: Cluster, radix: u32, bytes: f64) -> Self {
        Self {
            cluster,
            radix,
            bytes,
            all_to_all: None,
            checkpoint: None,
            routing: Routing::Adaptive,
            wiring: Wiring::Rails,
            spines: None,
            placement: Placement::Packed,
            failed_links: 0.0,
            failed_nics: 0,
            stragglers: 0.0,
            straggler_rate: 1.0,
            seed: 0,
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        PlanError::count("GPUs of a simulation", self.cluster.gpus(), MAX_GPUS)?;
        REDUCED_BYTES.positive(self.bytes)?;
        if let Some(bytes) = self.all_to_all {
            EXCHANGED_BYTES.positive(bytes)?;
        }
        if let Some(checkpoint) = &self.checkpoint {
            CHECKPOINT_BYTES.positive(checkpoint.bytes)?;
            CHECKPOINT_RATE.positive(checkpoint.storage / 1e9)?;
        }
        FAILED_LINKS.between(self.failed_links)?;
        STRAGGLERS.between(self.stragglers)?;
        STRAGGLER_RATE.between(self.straggler_rate)?;
        let nics = u64::from(self.cluster.domains()) * u64::from(self.cluster.domain_nics());
        if u64::from(self.failed_nics) >= nics {
            return Err(PlanError::TooMany {
                what: "failed NICs",
                value: self.failed_nics.into(),
                most: nics - 1,
            });
        }
        Ok(())
    }

    /// Runs it.
    ///
    /// # Errors
    /// A number is out of range, switches of that radix cannot join so many NICs, or failures cut
    /// somebody off.
    pub fn run(&self) -> Result<Simulated, PlanError> {
        self.check()?;
        let group = Group::of(&self.cluster);
        let inner = self.inner_seconds(&group);
        let fabric = Fabric::build(self)?;
        let mut jobs = jobs::rings(self, &fabric)?;
        jobs.extend(jobs::all_to_all(self, &fabric)?);
        jobs.extend(jobs::checkpoint(self, &fabric)?);
        let run = share::run(fabric.capacities(), &jobs, TOGETHER)?;
        let ring = |job: &Job| job.kind == jobs::RING;
        let network = jobs
            .iter()
            .zip(&run.ends)
            .filter(|(job, _)| ring(job))
            .fold(0.0, |latest: f64, (_, end)| latest.max(*end));
        Ok(Simulated {
            gpus: self.cluster.gpus(),
            bytes: self.bytes,
            nic_rate: self.cluster.server.nic_rate.rate.0 * RING_SHARE,
            all_reduce_seconds: inner + network,
            network_seconds: network,
            closed_form_seconds: self.closed_form(&group),
            jobs: jobs::outcomes(&jobs, &run, &fabric),
            links: fabric.usage(&run.first_loads),
            events: run.events,
            seed: self.seed,
        })
    }

    fn hierarchical(&self, group: &Group) -> f64 {
        let estimate = group.estimate(
            Collective::AllReduce,
            self.bytes,
            Some(Algorithm::Hierarchical),
        );
        estimate.map_or(0.0, |estimate| estimate.seconds - estimate.latency_seconds)
    }

    /// What happens within domains, before and after, by the closed form.
    fn inner_seconds(&self, group: &Group) -> f64 {
        let alone = Group {
            domains: 1,
            ..group.clone()
        };
        self.hierarchical(&alone)
    }

    fn closed_form(&self, group: &Group) -> Option<f64> {
        let nothing_else = self.all_to_all.is_none()
            && self.checkpoint.is_none()
            && self.failed_links == 0.0
            && self.failed_nics == 0
            && (self.stragglers == 0.0 || self.straggler_rate == 1.0)
            && self.routing == Routing::Adaptive
            && (self.placement == Placement::Packed || self.cluster.oversubscription == 1.0);
        nothing_else.then(|| self.hierarchical(group))
    }
}

#[cfg(test)]
mod tests;
