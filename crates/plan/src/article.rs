//! The `article` model: the arithmetic of "GPUDirect: getting data to the GPU without the CPU", in
//! decimal units and full precision. Simple on purpose: no latency, no overlap, links at line rate.
//! [`crate::calibrated`] stands beside it.

use crowfly_route::hop::Provenance;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::figure::{Figure, Unit};
use crate::workload::ModelSpec;

/// The name of this model in provenances.
const MODEL: &str = "article";
/// Data goes in and out at the same time.
const DIRECTIONS: f64 = 2.0;
/// Every staged byte is written to host RAM once and read once.
const PASSES: f64 = 2.0;
/// Width of a memory channel.
const CHANNEL_BYTES: f64 = 8.0;

/// Peak of host memory in B/s: sockets × channels × transfers per second × 8 B.
pub fn memory_peak(sockets: f64, channels: f64, transfers_per_second: f64) -> f64 {
    sockets * channels * transfers_per_second * CHANNEL_BYTES
}

/// Traffic in host memory in B/s when `nics` adapters of `nic` B/s are staged through it.
pub fn staged_traffic(nics: f64, nic: f64) -> f64 {
    nics * nic * DIRECTIONS * PASSES
}

/// What host memory of `peak` B/s leaves each of `nics` adapters, in B/s.
pub fn staged_per_nic(peak: f64, nics: f64) -> f64 {
    peak / (nics * DIRECTIONS * PASSES)
}

/// Bytes that each NIC sends when a ring over `servers` reduces and gathers a shard of `bytes`.
pub fn ring_bytes(servers: f64, bytes: f64) -> f64 {
    2.0 * (servers - 1.0) / servers * bytes
}

/// Hours between interruptions when `interruptions` happened in `days`.
pub fn hours_between(days: f64, interruptions: f64) -> f64 {
    days * 24.0 / interruptions
}

/// What the article's arithmetic says of a cluster and a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Article {
    /// All adapters of a server, one direction.
    pub line_rate: Figure,
    /// The same, both directions.
    pub line_rate_both_ways: Figure,
    /// Host memory traffic if all of it were staged.
    pub memory_traffic: Figure,
    /// Peak of host memory; `None` where it is not known, and then the next three are as well.
    pub memory_peak: Option<Figure>,
    /// What host memory leaves each NIC.
    pub staged_per_nic: Option<Figure>,
    /// The same as a share of the NIC's line rate; at most 1.
    pub staged_share: Option<Figure>,
    /// Memory bandwidth of one GPU in units of the server's host memory's.
    pub gpu_memory_ratio: Option<Figure>,
    /// bf16 gradients.
    pub gradients: Figure,
    /// The shard that crosses servers through one NIC.
    pub shard: Figure,
    /// What each NIC sends per step.
    pub bytes_per_nic: Figure,
    /// Time of the exchange, direct.
    pub direct: Figure,
    /// Time of the exchange, staged.
    pub staged: Option<Figure>,
    /// Staged over direct; `None` where nothing crosses servers.
    pub ratio: Option<Figure>,
    /// A checkpoint.
    pub checkpoint: Figure,
}

impl Article {
    /// The arithmetic for a cluster and a model.
    pub fn of(cluster: &Cluster, model: &ModelSpec) -> Self {
        let by = |formula: &str| Provenance::Computed(format!("{MODEL}: {formula}"));
        let figure = |value, unit, formula: &str| Figure::new(value, unit, by(formula));
        let nics = f64::from(cluster.domain_nics());
        let nic = cluster.server.nic_rate.rate.0;
        let line = nics * nic;
        let memory = cluster.server.memory.as_ref();
        let peak = memory.map(|memory| memory.rate.0 * f64::from(cluster.domain_servers()));
        let per_nic = peak.map(|peak| staged_per_nic(peak, nics));
        let gradients = model.gradient_bytes();
        let shard = gradients / nics;
        let bytes = ring_bytes(f64::from(cluster.domains()), shard);
        let direct = bytes / nic;
        let staged = per_nic.map(|rate| bytes / rate.min(nic));
        Self {
            line_rate: figure(line, Unit::BytesPerSecond, "NICs × line rate"),
            line_rate_both_ways: figure(
                DIRECTIONS * line,
                Unit::BytesPerSecond,
                "NICs × line rate × 2 directions",
            ),
            memory_traffic: figure(
                staged_traffic(nics, nic),
                Unit::BytesPerSecond,
                "line rate × 2 directions × 2 passes",
            ),
            memory_peak: peak.zip(memory).map(|(peak, memory)| {
                Figure::new(peak, Unit::BytesPerSecond, memory.provenance.clone())
            }),
            staged_per_nic: per_nic
                .map(|rate| figure(rate, Unit::BytesPerSecond, "memory peak / (NICs × 2 × 2)")),
            staged_share: per_nic.map(|rate| {
                figure(
                    (rate / nic).min(1.0),
                    Unit::Fraction,
                    "staged per NIC / line rate",
                )
            }),
            gpu_memory_ratio: cluster
                .server
                .gpu_memory_rate
                .zip(peak)
                .map(|(hbm, peak)| figure(hbm.0 / peak, Unit::Ratio, "GPU memory / host memory")),
            gradients: figure(gradients, Unit::Bytes, "2 B × parameters"),
            shard: figure(shard, Unit::Bytes, "gradients / NICs"),
            bytes_per_nic: figure(bytes, Unit::Bytes, "2 × (n − 1) / n × shard"),
            direct: figure(direct, Unit::Seconds, "bytes per NIC / line rate"),
            staged: staged.map(|staged| {
                figure(
                    staged,
                    Unit::Seconds,
                    "bytes per NIC / min(line rate, staged per NIC)",
                )
            }),
            ratio: staged
                .filter(|_| direct > 0.0)
                .map(|staged| figure(staged / direct, Unit::Ratio, "staged / direct")),
            checkpoint: figure(model.checkpoint_bytes(), Unit::Bytes, "14 B × parameters"),
        }
    }
}
