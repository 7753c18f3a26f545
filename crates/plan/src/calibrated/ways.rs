//! One collective by every algorithm that a cluster can use.

use crowfly_route::hop::Capacity;
use serde::Serialize;

use super::{Algorithm, Collective, Estimate, Group, StagedRange};
use crate::cluster::Cluster;
use crate::error::PlanError;

/// The largest buffer of one GPU that is asked about: an exbibyte.
pub const MAX_BUFFER_BYTES: u64 = 1 << 60;

/// One way of doing it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Whether this is the one that counts.
    pub chosen: bool,
    /// How long.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Bus bandwidth in 1e9 B/s.
    pub busbw_gbs: Option<f64>,
}

/// All ways of doing it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ways {
    /// Which collective.
    pub op: Collective,
    /// The buffer of one GPU.
    pub bytes: u64,
    /// GPUs.
    pub gpus: u64,
    /// Direct, by each algorithm that can; the fastest is chosen. None where one GPU is alone.
    pub direct: Vec<Way>,
    /// Staged at worst, by the fastest.
    pub staged_slow: Option<Way>,
    /// Staged at best, by the fastest.
    pub staged_fast: Option<Way>,
}

impl Ways {
    /// Of a collective on `bytes` a GPU among all GPUs of a cluster. `staged` is a measured rate of
    /// one adapter's staged transfers, where there is one.
    ///
    /// # Errors
    /// The size is zero or beyond [`MAX_BUFFER_BYTES`].
    pub fn of(
        cluster: &Cluster,
        op: Collective,
        bytes: u64,
        staged: Option<&Capacity>,
    ) -> Result<Self, PlanError> {
        let size = PlanError::count("size in bytes (--size)", bytes, MAX_BUFFER_BYTES)? as f64;
        let group = Group::of(cluster);
        let way = |estimate: Estimate, chosen| Way {
            busbw_gbs: estimate
                .bus_bandwidth(op, group.ranks(), size)
                .map(|rate| rate / 1e9),
            estimate,
            chosen,
        };
        let alone = cluster.gpus() <= 1;
        let each = Algorithm::ALL.into_iter().chain([Algorithm::Pairwise]);
        let fastest = group.fastest(op, size).algorithm;
        let direct = each
            .filter(|_| !alone)
            .filter_map(|algorithm| group.estimate(op, size, Some(algorithm)))
            .map(|estimate| {
                let chosen = estimate.algorithm == fastest;
                way(estimate, chosen)
            });
        let crosses = cluster.domains() > 1;
        let range = StagedRange::of(cluster, staged).filter(|_| crosses);
        let nics = cluster.domain_nics();
        let staged = |rate: &_| way(group.clone().staged(nics, rate).fastest(op, size), true);
        Ok(Self {
            op,
            bytes,
            gpus: cluster.gpus(),
            direct: direct.collect(),
            staged_slow: range.as_ref().map(|range| staged(&range.slow)),
            staged_fast: range.as_ref().map(|range| staged(&range.fast)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::cluster::{Overrides, ServerSpec};

    fn cluster(servers: u32) -> Cluster {
        let server =
            ServerSpec::from_catalog(&Catalog::built_in(), "dgx-h100", &Overrides::default());
        Cluster::new(server.expect("sound"), servers, 1.0).expect("sound")
    }

    #[test]
    fn given_no_bytes_or_more_than_there_are_it_is_refused() {
        for bytes in [0, MAX_BUFFER_BYTES + 1] {
            let refused = Ways::of(&cluster(8), Collective::AllReduce, bytes, None);
            assert_eq!(refused.expect_err("refused").code(), "plan-out-of-range");
        }
    }

    #[test]
    fn one_way_is_chosen_and_none_that_nccl_has_is_faster() {
        for (op, servers) in Collective::ALL
            .into_iter()
            .flat_map(|op| [(op, 1), (op, 8)])
        {
            for bytes in [1, 1 << 20, MAX_BUFFER_BYTES] {
                let ways = Ways::of(&cluster(servers), op, bytes, None).expect("sound");
                let chosen: Vec<&Way> = ways.direct.iter().filter(|way| way.chosen).collect();
                let [chosen] = chosen[..] else {
                    panic!("{op:?} {bytes}: {} chosen", chosen.len());
                };
                let nccl = ways.direct.iter().map(|way| &way.estimate);
                let nccl = nccl.filter(|way| way.algorithm != Algorithm::Hierarchical);
                let least = nccl.map(|way| way.seconds).fold(f64::INFINITY, f64::min);
                assert_eq!(chosen.estimate.seconds, least, "{op:?} {bytes}");
                assert!(chosen.busbw_gbs.is_some_and(|rate| rate > 0.0));
            }
        }
    }

    #[test]
    fn given_one_gpu_alone_there_is_no_way_at_all() {
        let mut cluster = cluster(1);
        (cluster.server.gpus, cluster.server.domain) = (1, 1);
        let ways = Ways::of(&cluster, Collective::AllReduce, 1 << 20, None).expect("sound");
        assert_eq!(ways.direct, []);
        assert_eq!(ways.staged_slow, None);
    }
}
