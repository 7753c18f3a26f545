//! What is left of an adapter's rate when its data goes through host RAM.
//!
//! Three things cap it: the line, host memory (each byte written once and read once, in both
//! directions: a quarter of the memory's rate over the adapters), and the link to host memory,
//! which staged data crosses twice in each direction where GPU and adapter are both below it.
//! Processor caches can take the memory's part, so the answer is a range.

use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::units::BytesPerSecond;
use serde::Serialize;

use super::Bound;
use super::constants::SUSTAINED_MEMORY_SHARE;
use crate::article;
use crate::cluster::Cluster;

/// A rate of one adapter, and what caps it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagedRate {
    /// One adapter, one direction.
    pub per_nic: BytesPerSecond,
    /// What caps it.
    pub bound: Bound,
    /// Where the cap comes from.
    pub provenance: Provenance,
}

/// From the slowest to the fastest that staging can be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagedRange {
    /// Every byte passes host memory, which sustains what streams reach.
    pub slow: StagedRate,
    /// Processor caches take all of it.
    pub fast: StagedRate,
}

impl StagedRange {
    /// The range for a cluster; `None` where neither host memory nor the link to it is known.
    /// `measured` is a rate of staged network transfers that somebody measured, which is both ends.
    pub fn of(cluster: &Cluster, measured: Option<&Capacity>) -> Option<Self> {
        let server = &cluster.server;
        let line = StagedRate {
            per_nic: server.nic_rate.rate,
            bound: Bound::Nic,
            provenance: server.nic_rate.provenance.clone(),
        };
        if let Some(measured) = measured {
            let rate = StagedRate {
                per_nic: measured.rate,
                bound: Bound::HostMemory,
                provenance: measured.provenance.clone(),
            };
            let rate = lower(line, rate);
            return Some(Self {
                slow: rate.clone(),
                fast: rate,
            });
        }
        let nics = f64::from(server.nics);
        let memory = server.memory.as_ref().map(|memory| {
            let sustained = memory.rate.0 * SUSTAINED_MEMORY_SHARE;
            StagedRate {
                per_nic: BytesPerSecond(article::staged_per_nic(sustained, nics)),
                bound: Bound::HostMemory,
                provenance: memory.provenance.clone(),
            }
        });
        let uplink = server.uplink.as_ref().map(|uplink| {
            let sharing = f64::from(uplink.pairs) * (nics / f64::from(server.gpus)).max(1.0);
            StagedRate {
                per_nic: BytesPerSecond(
                    uplink.rate.rate.0 / (f64::from(uplink.crossings) * sharing),
                ),
                bound: Bound::Uplink,
                provenance: uplink.rate.provenance.clone(),
            }
        });
        if memory.is_none() && uplink.is_none() {
            return None;
        }
        let fast = uplink.into_iter().fold(line, lower);
        let slow = memory.into_iter().fold(fast.clone(), lower);
        Some(Self { slow, fast })
    }
}

fn lower(a: StagedRate, b: StagedRate) -> StagedRate {
    if b.per_nic.0 < a.per_nic.0 { b } else { a }
}
