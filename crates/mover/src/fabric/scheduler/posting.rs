//! Starting transfers, and posting their pieces to the rails of their plan.

use std::sync::Arc;

use crowfly_route::policy::Policy;
use crowfly_route::receipt::CpuSeconds;
use smallvec::SmallVec;

use super::{Ended, MAX_FLIGHTS, STRIPE, State};
use crate::fabric::error::FabricError;
use crate::fabric::flight::{Flight, Order, Piece};
use crate::fabric::port::CHECKED_FROM;
use crate::fabric::provider::{FlightId, Op, OpError, OpId, Posted, RailId, Refusal};
use crate::fabric::rail::{InFlight, RailState};
use crate::fabric::transfer::Slot;

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
        let plan = match self.plan(&order.kind()) {
            Ok(plan) => plan,
            Err(error) => return self.ended.push(Ended::failed(slot, error)),
        };
        let mut flight = Box::new(Flight::new(order, plan, slot, self.now));
        if flight.total() >= CHECKED_FROM {
            let up = self.rails.iter().filter(|(_, known)| known.down.is_none());
            let ports = up.map(|(id, known)| (*id, known.rail.link.port_counters()));
            flight.ports = ports.collect();
        }
        self.flights.insert(id, flight);
        self.waits(id);
        self.pump();
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
        while let Some(id) = self.next_waiting() {
            if self.post_all(id) {
                later.push(id);
            }
            if !self.rails.values().any(RailState::has_room) {
                break;
            }
        }
        for id in later.into_iter().rev() {
            self.waits_on(id);
        }
    }

    /// Posts a flight's pieces as far as there is room; answers whether some are left.
    fn post_all(&mut self, id: FlightId) -> bool {
        loop {
            let Some(flight) = self.flights.get(&id) else {
                return false;
            };
            if !flight.has_work() {
                self.settle(id);
                return false;
            }
            let usable = |rail: &&RailId| self.is_usable(**rail, flight);
            let tiers = flight.plan.tiers.iter();
            let mut alive = tiers.map(|tier| tier.iter().filter(usable).copied().collect());
            let Some(alive) = alive.find(|alive: &SmallVec<[RailId; 4]>| !alive.is_empty()) else {
                if self.may_return(flight) {
                    return true;
                }
                let error = self.peer_lost("every rail that could carry the transfer is down");
                self.fail(id, error);
                return false;
            };
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
        let bytes = op.bytes();
        let mark = known.posting(bytes);
        let entry = InFlight {
            flight: id,
            segments: op.segments.clone(),
            imm: piece.imm,
            bytes,
            mark,
            cpu: CpuSeconds::default(),
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
                    return self.completed(rail, op_id, Ok(()));
                }
                let link = &known.rail.link;
                if !self
                    .posted
                    .last()
                    .is_some_and(|last| Arc::ptr_eq(last, link))
                {
                    self.posted.push(Arc::clone(link));
                }
            }
            Err(Refusal::Full(op)) => {
                known.refused(mark);
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
