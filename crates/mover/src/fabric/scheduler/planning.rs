//! Which rails may carry a transfer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowfly_route::policy::Policy;

use super::State;
use crate::fabric::error::FabricError;
use crate::fabric::nics::Near;
use crate::fabric::plan::{Kind, Plan};
use crate::fabric::provider::RailId;
use crate::fabric::rail::{allows, asked_for, rail_failed, rank};
use crate::fabric::transfer::LeftOut;

/// Rails by how straight their path is and how near their NIC.
type Tiers = BTreeMap<(u8, Near), Vec<RailId>>;

impl State {
    /// The plan for transfers of a kind; made once until a rail changes.
    pub(super) fn plan(&mut self, kind: &Kind<'_>) -> Result<Arc<Plan>, FabricError> {
        if let Some(plan) = self.plans.find(kind) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.choose_rails(kind)?);
        self.plans.keep(kind, &plan);
        Ok(plan)
    }

    /// Which rails may carry it, straightest and nearest first, and why each better one may not.
    /// Among rails of one path those nearest to the local memory carry it; the others stand by in
    /// case these fail.
    fn choose_rails(&self, kind: &Kind<'_>) -> Result<Plan, FabricError> {
        let mut plan = Plan::new(self.peer, kind);
        let place = kind.local.map(|region| region.backing().place());
        let local = kind.local.map(Arc::as_ref);
        let mut tiers = Tiers::new();
        let mut obstacles = Vec::new();
        for id in self.latest().into_values() {
            let Some(known) = self.rails.get(&id) else {
                continue;
            };
            if let Some(why) = &known.down {
                obstacles.push(rail_failed(&known.rail, why));
                continue;
            }
            if !allows(kind.policy, known.class) {
                if kind.policy != Policy::Require {
                    obstacles.push(asked_for(&known.rail, kind.policy));
                }
                continue;
            }
            match known.rail.link.reaches(local, kind.remote) {
                Ok(()) => {
                    let near = known.rail.nearness.to(place);
                    let tier = (rank(known.rail.path), near);
                    tiers.entry(tier).or_default().push(id);
                    plan.goes_by(id, &known.rail, local);
                }
                Err(found) => obstacles.extend(found),
            }
        }
        if let Some((best, near)) = tiers.keys().next().copied() {
            let better = self.missing.iter().filter(|m| rank(m.path) < best);
            obstacles.extend(better.map(|missing| missing.obstacle.clone()));
            plan.left_out = self.standing_by(&tiers, best, near);
        } else {
            if self.rails.values().all(|known| known.down.is_some()) {
                return Err(self.peer_lost("every rail to it is down"));
            }
            return Err(FabricError::Refused {
                peer: self.peer.to_string(),
                policy: kind.policy,
                obstacles,
            });
        }
        plan.tiers = tiers.into_values().collect();
        plan.obstacles = obstacles;
        Ok(plan)
    }

    /// The rails of the path that carries which are farther from the memory than the nearest.
    fn standing_by(&self, tiers: &Tiers, best: u8, near: Near) -> Vec<LeftOut> {
        let farther = tiers
            .iter()
            .filter(|((path, away), _)| *path == best && *away != near);
        let rails = farther.flat_map(|((_, away), rails)| rails.iter().map(move |id| (away, id)));
        rails
            .filter_map(|(away, id)| {
                let rail = &self.rails.get(id)?.rail;
                Some(LeftOut {
                    path: rail.path,
                    nic: rail.nic.clone(),
                    why: format!("it is {away} the memory, and others are {near} it"),
                })
            })
            .collect()
    }
}
