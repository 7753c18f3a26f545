//! Which rails may carry a transfer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use super::State;
use crate::fabric::error::FabricError;
use crate::fabric::flight::Flight;
use crate::fabric::nics::Near;
use crate::fabric::plan::{Kind, Plan};
use crate::fabric::provider::{Flush, RailId, Verb};
use crate::fabric::rail::{RailState, allows, asked_for, rail_failed, rank};
use crate::fabric::transfer::LeftOut;

/// Rails, those that come first first.
type Tiers = BTreeMap<Tier, Vec<RailId>>;
/// Whether it takes a detour with a GPU's bytes, how straight its path is, how near its NIC is.
type Tier = (bool, u8, Near);

/// Among which rails one belongs for a kind of transfers.
///
/// # Errors
/// Why it may not, or cannot, carry them.
fn tier_of(known: &RailState, kind: &Kind<'_>) -> Result<Tier, Vec<Obstacle>> {
    let (path, link) = (known.rail.path, &known.rail.link);
    let local = kind.local.map(Arc::as_ref);
    let detour = link.detour(kind.verb, local, kind.remote);
    let detoured = detour.is_some();
    let class = match (detoured, known.class) {
        (true, Class::Direct) => Class::Staged,
        (_, class) => class,
    };
    if !allows(kind.policy, class) {
        let why = match kind.policy {
            Policy::Require => detour,
            policy => Some(asked_for(&known.rail, policy)),
        };
        return Err(why.into_iter().collect());
    }
    link.reaches(local, kind.remote)?;
    let place = kind.local.map(|region| region.backing().place());
    Ok((detoured, rank(path), known.rail.nearness.to(place)))
}

impl State {
    /// The plan for transfers of a kind; made once until a rail changes.
    pub(super) fn plan(&mut self, kind: &Kind<'_>) -> Result<Arc<Plan>, FabricError> {
        if let Some(plan) = self.plans.find(kind) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.choose_rails(kind)?);
        if !kind.is_of_a_gpu() {
            self.plans.keep(kind, &plan);
        }
        Ok(plan)
    }

    /// Which rails may carry it, straightest and nearest first, and why each better one may not.
    /// Among rails of one path those nearest to the local memory carry it; the others stand by in
    /// case these fail.
    fn choose_rails(&self, kind: &Kind<'_>) -> Result<Plan, FabricError> {
        let mut plan = Plan::new(self.peer, kind);
        let local = kind.local.map(Arc::as_ref);
        let mut tiers = Tiers::new();
        // By rails that are made anew, where no other is left: what goes by them waits until then.
        let mut later = Tiers::new();
        let mut met: Vec<(Path, Vec<Obstacle>)> = Vec::new();
        for id in self.latest().into_values() {
            let Some(known) = self.rails.get(&id) else {
                continue;
            };
            let path = known.rail.path;
            let tier = tier_of(known, kind);
            let tiers = match (&known.down, tier) {
                (None, Ok(tier)) => Some((&mut tiers, tier)),
                (None, Err(found)) => {
                    met.push((path, found));
                    None
                }
                (Some(why), tier) => {
                    met.push((path, vec![rail_failed(&known.rail, why)]));
                    let waits = self.is_made_anew(known);
                    tier.ok().filter(|_| waits).map(|tier| (&mut later, tier))
                }
            };
            if let Some((tiers, tier)) = tiers {
                tiers.entry(tier).or_default().push(id);
                plan.goes_by(id, &known.rail, local, tier.0);
            }
        }
        if tiers.is_empty() {
            tiers = later;
        }
        let best = tiers.keys().next().copied();
        // By a detour even a path that is otherwise better is none.
        let better = |path| best.is_none_or(|(detoured, best, _)| detoured || rank(path) <= best);
        let told = met.into_iter().filter(|(path, _)| better(*path));
        let mut obstacles: Vec<Obstacle> = told.flat_map(|(_, found)| found).collect();
        if let Some((detoured, best, near)) = best {
            let better = |path| rank(path) < best || detoured;
            let missing = self.missing.iter().filter(|m| better(m.path));
            obstacles.extend(missing.map(|missing| missing.obstacle.clone()));
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

    /// Notes how a GPU's bytes really went by the rails that carried them, and what stood in the way.
    pub(super) fn note_detours(&self, flight: &mut Flight) {
        let Some(local) = flight.order.local.clone() else {
            return;
        };
        let (verb, remote) = (flight.order.verb, flight.order.remote.clone());
        if !flight.order.kind().is_of_a_gpu() {
            return;
        }
        let used: Vec<RailId> = flight.moved.iter().map(|(rail, _)| *rail).collect();
        for id in used {
            let Some(known) = self.rails.get(&id) else {
                continue;
            };
            let detour = known.rail.link.detour(verb, Some(&local), remote.as_ref());
            let plan = Arc::make_mut(&mut flight.plan);
            plan.goes_by(id, &known.rail, Some(&local), detour.is_some());
            match detour {
                None => {}
                // What the path is like; what stood in the way of straighter ones says more.
                Some(detour) if detour.code == Code::GpuThroughHost => flight.met(detour),
                Some(detour) => plan.obstacles.insert(0, detour),
            }
        }
    }

    /// What makes visible to the memory's device what NICs of this host wrote into it.
    pub(super) fn flushes(&self, flight: &Flight) -> Vec<Flush> {
        let local = flight.order.local.as_ref();
        let Some(region) = local.filter(|_| flight.order.verb == Verb::Read) else {
            return Vec::new();
        };
        let used = flight.moved.iter().filter_map(|(id, _)| self.rails.get(id));
        let registrations =
            used.filter_map(|known| region.registration(known.rail.path, &known.rail.nic));
        registrations
            .filter_map(|known| known.flush.clone())
            .collect()
    }

    /// The rails of the path that carries which are farther from the memory than the nearest.
    fn standing_by(&self, tiers: &Tiers, best: u8, near: Near) -> Vec<LeftOut> {
        let farther = tiers
            .iter()
            .filter(|((_, path, away), _)| *path == best && *away != near);
        let rails =
            farther.flat_map(|((_, _, away), rails)| rails.iter().map(move |id| (away, id)));
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
