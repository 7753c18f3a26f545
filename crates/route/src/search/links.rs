//! Links that run below their best, found on any route.

use super::World;
use super::peer::sysfs;
use super::rates::slowest;
use crate::hop::{Hop, Provenance, Route};
use crate::obstacle::{Code, Cost, Fix, Obstacle};
use crate::topology::{LinkState, PcieLink};
use crate::units::{BytesPerSecond, PciAddress};

impl World<'_> {
    /// The degraded PCIe links that a route crosses in this server, each once.
    pub(super) fn degraded_links(&self, route: &Route) -> Vec<Obstacle> {
        let mut names: Vec<&str> = Vec::new();
        let crossed = route.hops.iter().flat_map(|hop| &hop.crosses);
        for crossing in crossed.filter(|crossing| crossing.degraded) {
            if !names.contains(&crossing.link.as_str()) {
                names.push(&crossing.link);
            }
        }
        if names.is_empty() {
            return Vec::new();
        }
        let degraded = self
            .topology
            .pci
            .keys()
            .filter(|address| self.topology.link_state(**address) == Some(LinkState::Degraded));
        degraded
            .filter_map(|address| {
                let name = self.topology.crossing_above(*address)?.link;
                let link = self.topology.link_above(*address)?;
                names
                    .contains(&name.as_str())
                    .then(|| self.degraded(route, *address, &name, link))?
            })
            .collect()
    }

    fn degraded(
        &self,
        route: &Route,
        address: PciAddress,
        name: &str,
        link: PcieLink,
    ) -> Option<Obstacle> {
        let (current, maximum) = (link.current?, link.maximum?);
        let mut obstacle = Obstacle::slows(
            Code::LinkDegraded,
            format!("The link above {address} runs at {current}; both ends can do {maximum}."),
        );
        for file in [
            "current_link_speed",
            "current_link_width",
            "max_link_speed",
            "max_link_width",
        ] {
            let decoded = if file.starts_with("current") {
                current
            } else {
                maximum
            };
            obstacle = obstacle.proved_by([self
                .seen
                .quote_or(sysfs(address, file), decoded.to_string())]);
        }
        obstacle.cost = cost(route, name, maximum.rate());
        Some(
            obstacle
                .fixed_by(
                    Fix::by_hand(
                        "Reseat the card and its riser or cable; then look for bifurcation and link speed settings in the firmware.",
                    )
                    .checked_by(format!("sudo lspci -s {address} -vv | grep -E 'LnkCap:|LnkSta:'")),
                ),
        )
    }
}

/// The route's ceiling as it is, and with one link at its best; `None` when that link does not bind.
fn cost(route: &Route, link: &str, best: BytesPerSecond) -> Option<Cost> {
    let now = route.ceiling()?.capacity.rate;
    let healed = Route {
        hops: route.hops.iter().map(|hop| heal(hop, link, best)).collect(),
        ..route.clone()
    };
    let without = healed.ceiling()?.capacity.rate;
    (without.0 > now.0).then_some(Cost { now, without })
}

fn heal(hop: &Hop, link: &str, best: BytesPerSecond) -> Hop {
    let mut healed = hop.clone();
    for crossing in &mut healed.crosses {
        if crossing.link.trim_start_matches("remote ") == link {
            crossing.rate = Some(best);
        }
    }
    let bound_by_a_link = hop
        .capacity
        .as_ref()
        .is_some_and(|c| matches!(c.provenance, Provenance::LinkRate(_)));
    if bound_by_a_link {
        healed.capacity = slowest(&healed.crosses);
    }
    healed
}
