//! Which rails carry a transfer, and posting its pieces to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use super::{Ended, MAX_FLIGHTS, STRIPE, State};
use crate::fabric::error::FabricError;
use crate::fabric::flight::{Flight, Order, Piece};
use crate::fabric::nics::Near;
use crate::fabric::port::CHECKED_FROM;
use crate::fabric::provider::{FlightId, Op, OpError, OpId, Posted, RailId, Refusal};
use crate::fabric::rail::{InFlight, RailState, allows, asked_for, rail_failed, rank};
use crate::fabric::transfer::{LeftOut, Slot};

/// What decides which rails carry a transfer: whether they take it past a GPU's detour, how straight
/// their path is, how near their NIC is.
type Tier = (bool, u8, Near);

impl State {
    pub(super) fn start(&mut self, id: FlightId, order: Order, slot: Arc<Slot>) {
        if let Some(why) = &self.lost {
            let (peer, why) = (self.peer, why.clone());
            let error = FabricError::PeerLost { peer, why };
            return self.ended.push(Ended::failed(slot, error));
        }
        if self.flights.len() >= MAX_FLIGHTS {
            let full = FabricError::QueueFull {
                what: "transfers with one peer",
                limit: MAX_FLIGHTS,
            };
            return self.ended.push(Ended::failed(slot, full));
        }
        let mut flight = Flight::new(order, slot, self.now);
        if let Err(error) = self.choose_rails(&mut flight) {
            return self.ended.push(Ended::failed(flight.slot, error));
        }
        let look = flight.total() >= CHECKED_FROM;
        for (rail, known) in &self.rails {
            flight.before.insert(*rail, known.before(look));
        }
        self.flights.insert(id, flight);
        self.waiting.push_back(id);
        self.pump();
    }

    /// Which rails may carry a flight, straightest and nearest first, and why each better one may
    /// not. Among rails of one path those nearest to the local memory carry it; the others stand by
    /// in case these fail.
    fn choose_rails(&self, flight: &mut Flight) -> Result<(), FabricError> {
        let order = &flight.order;
        let place = order.local.as_ref().map(|region| region.backing().place());
        let mut tiers: BTreeMap<Tier, Vec<RailId>> = BTreeMap::new();
        let mut met: Vec<(Path, Vec<Obstacle>)> = Vec::new();
        for id in self.latest().into_values() {
            let Some(known) = self.rails.get(&id) else {
                continue;
            };
            let (path, link) = (known.rail.path, &known.rail.link);
            if let Some(why) = &known.down {
                met.push((path, vec![rail_failed(&known.rail, why)]));
                continue;
            }
            let (local, remote) = (order.local.as_deref(), order.remote.as_deref());
            let detour = link.detour(order.verb, local, remote);
            let class = match (&detour, known.class) {
                (Some(_), Class::Direct) => Class::Staged,
                (_, class) => class,
            };
            let detoured = detour.is_some();
            if !allows(order.policy, class) {
                let why = match order.policy {
                    Policy::Require => detour,
                    policy => Some(asked_for(&known.rail, policy)),
                };
                met.push((path, why.into_iter().collect()));
                continue;
            }
            match link.reaches(local, remote) {
                Ok(()) => {
                    let near = known.rail.nearness.to(place);
                    let tier = (detoured, rank(path), near);
                    tiers.entry(tier).or_default().push(id);
                }
                Err(found) => met.push((path, found)),
            }
        }
        let best = tiers.keys().next().copied();
        // By a detour even a path that is otherwise better is none.
        let better = |path| best.is_none_or(|(detoured, best, _)| detoured || rank(path) <= best);
        let mut obstacles: Vec<Obstacle> = Vec::new();
        for (_, found) in met.into_iter().filter(|(path, _)| better(*path)) {
            obstacles.extend(found);
        }
        if let Some((detoured, best, near)) = best {
            let better = |path| rank(path) < best || detoured;
            let missing = self.missing.iter().filter(|m| better(m.path));
            obstacles.extend(missing.map(|missing| missing.obstacle.clone()));
            flight.left_out = self.standing_by(&tiers, best, near);
        }
        flight.tiers = tiers.into_values().collect();
        flight.obstacles = obstacles;
        if flight.tiers.is_empty() {
            if self.rails.values().all(|known| known.down.is_some()) {
                return Err(self.peer_lost("every rail to it is down"));
            }
            return Err(FabricError::Refused {
                peer: self.peer.to_string(),
                policy: flight.order.policy,
                obstacles: std::mem::take(&mut flight.obstacles),
            });
        }
        Ok(())
    }

    /// The rails of the path that carries which are farther from the memory than the nearest.
    fn standing_by(
        &self,
        tiers: &BTreeMap<Tier, Vec<RailId>>,
        best: u8,
        near: Near,
    ) -> Vec<LeftOut> {
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

    pub(super) fn peer_lost(&self, otherwise: &str) -> FabricError {
        let mut downs = self
            .rails
            .values()
            .rev()
            .filter_map(|known| known.down.as_ref());
        let why = self.lost.as_ref().or_else(|| downs.next());
        FabricError::PeerLost {
            peer: self.peer,
            why: why.map_or(otherwise, String::as_str).to_owned(),
        }
    }

    /// Posts what there is room for, in the order the flights came.
    pub(super) fn pump(&mut self) {
        let mut later = Vec::new();
        while let Some(id) = self.waiting.pop_front() {
            if self.post_all(id) && !later.contains(&id) {
                later.push(id);
            }
            if !self.rails.values().any(RailState::has_room) {
                break;
            }
        }
        for id in later.into_iter().rev() {
            if !self.waiting.contains(&id) {
                self.waiting.push_front(id);
            }
        }
    }

    /// Posts a flight's pieces as far as there is room; answers whether some are left.
    fn post_all(&mut self, id: FlightId) -> bool {
        loop {
            let Some(flight) = self.flights.get_mut(&id) else {
                return false;
            };
            if !flight.has_work() {
                self.settle(id);
                return false;
            }
            let usable = |rail: &&RailId| {
                let known = self.rails.get(*rail);
                known.is_some_and(|known| known.down.is_none() && !known.retiring)
            };
            let tier = flight
                .tiers
                .iter()
                .find(|tier| tier.iter().any(|r| usable(&r)));
            let Some(tier) = tier else {
                let error = self.peer_lost("every rail that could carry the transfer is down");
                self.fail(id, error);
                return false;
            };
            let alive: Vec<RailId> = tier.iter().filter(usable).copied().collect();
            let share = flight.total() / (2 * alive.len() as u64);
            let size = share.max(STRIPE);
            let Some(rail) = self.roomiest(&alive, size) else {
                return true;
            };
            self.post_one(id, rail, size);
        }
    }

    /// The rail with room whose load is lightest for its weight.
    fn roomiest(&self, rails: &[RailId], size: u64) -> Option<RailId> {
        let mut best: Option<(f64, RailId)> = None;
        for id in rails {
            let Some(known) = self.rails.get(id) else {
                continue;
            };
            let limits = known.rail.link.limits();
            let size = size.min(u64::from(limits.op_bytes));
            if !known.has_room() {
                continue;
            }
            // What other peers have in flight by the same NIC slows this one as well.
            let ahead = known.rail.load.bytes().max(known.bytes()) + size;
            let load = ahead as f64 / known.rail.weight.max(f64::MIN_POSITIVE);
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, *id));
            }
        }
        best.map(|(_, id)| id)
    }

    fn post_one(&mut self, id: FlightId, rail: RailId, size: u64) {
        let (Some(flight), Some(known)) = (self.flights.get_mut(&id), self.rails.get_mut(&rail))
        else {
            return;
        };
        let limits = known.rail.link.limits();
        let Some(piece) = flight.take(&limits, size) else {
            return;
        };
        let op = Op {
            id: OpId(self.next_op),
            verb: flight.order.verb,
            local: flight.local(),
            remote: flight.order.remote.clone(),
            segments: piece.segments,
            imm: piece.imm.map(|imm| (imm, id)),
            straight: flight.order.policy == Policy::Require,
        };
        self.next_op += 1;
        let entry = InFlight {
            flight: id,
            segments: op.segments.clone(),
            imm: piece.imm,
            bytes: op.bytes(),
            leaving: None,
        };
        let op_id = op.id;
        let posted = match &mut self.starting {
            Some((starting, chores)) if *starting == id => known.rail.link.post_here(op, chores),
            _ => known.rail.link.post(op),
        };
        match posted {
            Ok(posted) => {
                flight.in_flight += 1;
                known.took(op_id, entry, self.now);
                if posted == Posted::Done {
                    self.completed(rail, op_id, Ok(()));
                }
            }
            Err(Refusal::Full(op)) => {
                known.full = !known.ops.is_empty();
                let nothing_in_flight = known.ops.is_empty();
                flight.put_back(Piece {
                    segments: op.segments,
                    imm: piece.imm,
                });
                if nothing_in_flight {
                    // No op will end and make room: such a link would never be asked again.
                    self.rail_down(rail, "it has no room although nothing is in flight");
                }
            }
            Err(Refusal::Failed(error)) => {
                flight.in_flight += 1;
                known.took(op_id, entry, self.now);
                // A link that is at its end says so later: until then it would refuse again and again.
                let dead = match &error {
                    OpError::Rail(why) if !known.rail.link.is_worn() => Some(why.clone()),
                    _ => None,
                };
                self.completed(rail, op_id, Err(error));
                if let Some(why) = dead {
                    self.rail_down(rail, &why);
                }
            }
        }
    }
}
