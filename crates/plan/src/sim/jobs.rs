//! What moves over the fabric.

use std::collections::HashMap;

use super::fabric::{Fabric, LinkId, Nic};
use super::random::{Random, hash};
use super::share::{Job, Run};
use super::{JobOutcome, MAX_HASHED_FLOWS, Placement, Routing, Simulation};
use crate::article::ring_bytes;
use crate::error::PlanError;

pub(super) const RING: &str = "all-reduce";
pub(super) const ALL_TO_ALL: &str = "all-to-all";
pub(super) const CHECKPOINT: &str = "checkpoint";

fn cut_off(from: Nic, to: Option<Nic>) -> PlanError {
    let of = |nic: Nic| format!("server {}, rail {}", nic.server, nic.rail);
    let to = to.map_or("the storage".to_owned(), of);
    PlanError::Impossible {
        what: format!("failed links leave no way from {} to {to}", of(from)),
        hint: "let fewer links fail, or try another seed".into(),
    }
}

/// The NIC that works for this one.
fn working(fabric: &Fabric, nic: Nic) -> Result<Nic, PlanError> {
    fabric.working(nic).ok_or_else(|| PlanError::Impossible {
        what: format!("all NICs of server {} have failed", nic.server),
        hint: "let fewer NICs fail, or try another seed".into(),
    })
}

/// A ring of each rail over all servers: NIC r of each sends its shard on to the next.
pub(super) fn rings(simulation: &Simulation, fabric: &Fabric) -> Result<Vec<Job>, PlanError> {
    if fabric.servers < 2 {
        return Ok(Vec::new());
    }
    let order = order(simulation, fabric.servers as usize);
    let shard = simulation.bytes / f64::from(fabric.rails);
    let bytes = ring_bytes(f64::from(fabric.servers), shard);
    let mut jobs = Vec::with_capacity(fabric.rails as usize);
    let mut path = Vec::new();
    for rail in 0..fabric.rails {
        let mut loads = Loads::default();
        let next = order.iter().cycle().skip(1);
        for (from, to) in order.iter().zip(next) {
            let nic = |server: &usize| {
                let server = *server as u32;
                working(fabric, Nic { server, rail })
            };
            let (from, to) = (nic(from)?, nic(to)?);
            path.clear();
            let flow = hash((u64::from(from.server) << 32) | u64::from(rail));
            let way = fabric.path(from, to, flow, &mut path);
            way.ok_or_else(|| cut_off(from, Some(to)))?;
            loads.add(&path, 1.0);
        }
        jobs.push(Job {
            kind: RING,
            bytes,
            flows: u64::from(fabric.servers),
            loads: loads.sorted(),
        });
    }
    Ok(jobs)
}

fn order(simulation: &Simulation, servers: usize) -> Vec<usize> {
    match simulation.placement {
        Placement::Packed => (0..servers).collect(),
        Placement::Scattered => Random::new(hash(simulation.seed ^ 4)).choose(servers, servers),
    }
}

/// Each NIC sends the same to that of its rail in every other server. Flows between two leaves are
/// counted together, which is exact where routing is adaptive and one hash per source and leaf where
/// it is static.
pub(super) fn all_to_all(simulation: &Simulation, fabric: &Fabric) -> Result<Vec<Job>, PlanError> {
    let (Some(bytes), true) = (simulation.all_to_all, fabric.servers > 1) else {
        return Ok(Vec::new());
    };
    let (servers, unit, units) = (fabric.servers, fabric.unit(), fabric.units());
    let hashed = u64::from(servers) * u64::from(units) * u64::from(fabric.rails);
    if simulation.routing == Routing::Static && hashed > MAX_HASHED_FLOWS {
        return Err(PlanError::Impossible {
            what: format!("an all-to-all of {hashed} flows is too many to hash one by one"),
            hint: "simulate adaptive routing, or fewer servers".into(),
        });
    }
    let gpus = f64::from(simulation.cluster.domain_gpus());
    let n = f64::from(servers);
    let per_nic = bytes * gpus / f64::from(fabric.rails) * (n - 1.0) / n;
    let mut jobs = Vec::new();
    let mut path = Vec::new();
    for rail in 0..fabric.rails {
        let mut loads = Loads::default();
        for server in 0..servers {
            let from = working(fabric, Nic { server, rail })?;
            loads.add(&[fabric.out(from), fabric.into(from)], 1.0);
            for other in 0..units {
                if other == server / unit {
                    continue;
                }
                let members = unit.min(servers - other * unit);
                let server = other * unit;
                let to = working(fabric, Nic { server, rail })?;
                path.clear();
                let flow =
                    hash((u64::from(server) << 32) | (u64::from(other) << 8) | u64::from(rail));
                let way = fabric.between(from, to, flow, &mut path);
                way.ok_or_else(|| cut_off(from, Some(to)))?;
                loads.add(&path, f64::from(members) / (n - 1.0));
            }
        }
        jobs.push(Job {
            kind: ALL_TO_ALL,
            bytes: per_nic,
            flows: u64::from(servers) * u64::from(servers - 1),
            loads: loads.sorted(),
        });
    }
    Ok(jobs)
}

/// Each server writes its part over the NICs in turn: server s by rail s.
pub(super) fn checkpoint(simulation: &Simulation, fabric: &Fabric) -> Result<Vec<Job>, PlanError> {
    let Some(checkpoint) = simulation.checkpoint else {
        return Ok(Vec::new());
    };
    let bytes = checkpoint.bytes / f64::from(fabric.servers);
    let job = |server: u32| {
        let rail = server % fabric.rails;
        let from = working(fabric, Nic { server, rail })?;
        let mut path = Vec::new();
        let flow = hash(u64::from(server) | (1 << 63));
        let way = fabric.to_storage(from, flow, &mut path);
        way.ok_or_else(|| cut_off(from, None))?;
        Ok(Job {
            kind: CHECKPOINT,
            bytes,
            flows: 1,
            loads: path.into_iter().map(|link| (link, 1.0)).collect(),
        })
    };
    (0..fabric.servers).map(job).collect()
}

/// Flows of a job on each link.
#[derive(Default)]
struct Loads(HashMap<LinkId, f64>);

impl Loads {
    fn add(&mut self, path: &[LinkId], flows: f64) {
        for link in path {
            *self.0.entry(*link).or_default() += flows;
        }
    }

    /// In the order of the links, so that sums do not depend on the map's.
    fn sorted(self) -> Vec<(LinkId, f64)> {
        let mut loads: Vec<_> = self.0.into_iter().collect();
        loads.sort_unstable_by_key(|(link, _)| *link);
        loads
    }
}

/// What happened, the jobs of one kind together.
pub(super) fn outcomes(jobs: &[Job], run: &Run, fabric: &Fabric) -> Vec<JobOutcome> {
    let mut outcomes = Vec::new();
    for kind in [RING, ALL_TO_ALL, CHECKPOINT] {
        let all = || jobs.iter().enumerate().filter(|(_, job)| job.kind == kind);
        let end = |index: usize| run.ends.get(index).copied().unwrap_or(0.0);
        let Some((last, _)) = all().max_by(|a, b| end(a.0).total_cmp(&end(b.0))) else {
            continue;
        };
        let slowest = |worst: f64, seconds: f64| worst.max(seconds);
        // The jobs of one kind would share the fabric with each other.
        let own: Vec<Job> = all().map(|(_, job)| job.clone()).collect();
        let alone = super::share::run(fabric.capacities(), &own, super::TOGETHER);
        let alone = alone.map_or(0.0, |run| run.ends.into_iter().fold(0.0, slowest));
        let (parts, sum) = all().fold((0u32, 0.0), |(parts, sum), (index, _)| {
            (parts + 1, sum + end(index))
        });
        let held = run.held_by.get(last).copied().flatten();
        outcomes.push(JobOutcome {
            name: kind.to_owned(),
            flows: all().map(|(_, job)| job.flows).sum(),
            seconds: end(last),
            mean_seconds: sum / f64::from(parts),
            alone_seconds: alone,
            bottleneck: held
                .map_or("nothing", |link| fabric.tier_of(link).name())
                .to_owned(),
        });
    }
    outcomes
}
