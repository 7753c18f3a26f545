//! One ring through all members.

use super::constants::{self, RING_SHARE};
use super::{Algorithm, Bound, Collective, Estimate, Group, Protocol};

impl Group {
    /// Each member sends (N − 1)/N of the data per round. A ring enters and leaves each domain once,
    /// with all its adapters in parallel, so the network carries as much as each link within.
    pub(super) fn ring(&self, collective: Collective, bytes: f64) -> Vec<Estimate> {
        let ranks = self.ranks();
        let rounds = collective.rounds();
        let shape = collective.ring(ranks);
        let sent = shape.volume * bytes;
        let inner = if self.per_domain > 1 {
            self.inner_rate()
        } else {
            f64::INFINITY
        };
        let network = if self.domains > 1 {
            self.network.0 * RING_SHARE
        } else {
            f64::INFINITY
        };
        let bound = if network <= inner {
            self.network_bound
        } else {
            Bound::ScaleUp
        };
        let steps = shape.steps;
        let between = rounds * (f64::from(self.domains) - 1.0);
        let way = |protocol| {
            let constant = constants::of(protocol);
            let latency = constant.base_ring
                + (steps - between) * constant.ring_scale_up_step
                + between * self.network_step(protocol);
            let transfer = sent / constants::carried(protocol, network.min(inner), self.domains);
            Estimate::of(latency, transfer, Algorithm::Ring, protocol, bound)
        };
        self.protocols(bytes).map(way).collect()
    }

    /// The protocols that the group's transport allows for this much.
    pub(super) fn protocols(&self, bytes: f64) -> impl Iterator<Item = Protocol> + use<> {
        let ordered = (self.domains == 1 || constants::is_ordered(self.transport))
            && bytes <= constants::LARGEST_LL128_BYTES;
        [Protocol::Ll, Protocol::Ll128, Protocol::Simple]
            .into_iter()
            .filter(move |protocol| ordered || *protocol != Protocol::Ll128)
    }
}
