//! Reduction inside NVSwitch, and a tree between the domains that do so.

use super::constants::{
    self, CHANNELS, FEWEST_SWITCHED, FIRST_SWITCHED_NVLINK, RING_SHARE, SWITCHED_BASE,
    SWITCHED_CHUNK_BYTES, SWITCHED_TREE_CHUNK_BYTES, SWITCHED_TREE_STEP, TREE_SHARE, pipeline_fill,
    switched_share,
};
use super::{Algorithm, Bound, Estimate, Group, Protocol};

/// Into the switch and out again.
const SWITCHED_STAGES: f64 = 3.0;

impl Group {
    /// The switches reduce and spread: a GPU sends its data once and receives it once, whatever the
    /// number of GPUs.
    pub(super) fn switched(&self, bytes: f64) -> Option<Estimate> {
        let fabric = self.scale_up.as_ref()?;
        let nvlink = fabric
            .nvlink
            .filter(|nvlink| *nvlink >= FIRST_SWITCHED_NVLINK)?;
        if self.per_domain < FEWEST_SWITCHED {
            return None;
        }
        let inner = fabric.rate.rate.0 * switched_share(nvlink);
        let stream = bytes / (CHANNELS * f64::from(self.per_domain));
        if self.domains == 1 {
            let transfer = bytes / inner
                * (1.0 + pipeline_fill(SWITCHED_STAGES, stream, SWITCHED_CHUNK_BYTES));
            return Some(Estimate::of(
                SWITCHED_BASE,
                transfer,
                Algorithm::Nvls,
                Protocol::Simple,
                Bound::ScaleUp,
            ));
        }
        // Shards go out over all adapters at once, as in a ring; only what the switches do is slowed.
        let network = self.network.0 * RING_SHARE / self.tree_passes();
        let inner = inner * TREE_SHARE;
        let depth = self.tree_depth();
        let between = SWITCHED_TREE_STEP + constants::transport_step(self.transport);
        let latency = SWITCHED_BASE + 2.0 * depth * between;
        let stages = SWITCHED_STAGES + 2.0 * depth;
        let transfer = bytes / network.min(inner)
            * (1.0 + pipeline_fill(stages, stream, SWITCHED_TREE_CHUNK_BYTES));
        let bound = if network <= inner {
            self.network_bound
        } else {
            Bound::ScaleUp
        };
        Some(Estimate::of(
            latency,
            transfer,
            Algorithm::NvlsTree,
            Protocol::Simple,
            bound,
        ))
    }
}
