//! Two binary trees over the domains, a chain of the members inside each.

use super::constants::{
    self, CHANNELS, LARGEST_EDGE, RING_SHARE, TREE_CHUNK_BYTES, TREE_SHARE, pipeline_fill,
};
use super::{Algorithm, Bound, Estimate, Group};

impl Group {
    /// Up the tree to reduce, down to spread. A domain is inside one tree and a leaf of the other,
    /// and so sends the data twice over the network; two domains are one edge and send it once.
    pub(super) fn tree(&self, bytes: f64) -> Vec<Estimate> {
        if self.domains < 2 {
            return Vec::new();
        }
        let network = self.network.0 * RING_SHARE * TREE_SHARE / self.tree_passes();
        let inner = if self.per_domain > 1 {
            // In the middle of a chain a GPU sends the data on and the sum back.
            self.inner_rate() * TREE_SHARE / 2.0
        } else {
            f64::INFINITY
        };
        let bound = if network <= inner {
            self.network_bound
        } else {
            Bound::ScaleUp
        };
        let inside = f64::from(self.per_domain) - 1.0;
        let depth = self.tree_depth();
        let stages = 2.0 * (inside + depth);
        let way = |protocol| {
            let constant = constants::of(protocol);
            let between = constant.tree_network_step + constants::transport_step(self.transport);
            let latency =
                constant.base_tree + 2.0 * (inside * constant.tree_scale_up_step + depth * between);
            let streaming = bytes / constants::carried(protocol, network.min(inner), self.domains);
            let transfer =
                streaming * (1.0 + pipeline_fill(stages, bytes / CHANNELS, TREE_CHUNK_BYTES));
            Estimate::of(latency, transfer, Algorithm::Tree, protocol, bound)
        };
        self.protocols(bytes).map(way).collect()
    }

    /// How often a domain sends the data over the network.
    pub(super) fn tree_passes(&self) -> f64 {
        if self.domains <= LARGEST_EDGE {
            1.0
        } else {
            2.0
        }
    }

    /// Edges from a leaf to the root.
    pub(super) fn tree_depth(&self) -> f64 {
        f64::from(self.domains.max(1).ilog2())
    }
}
