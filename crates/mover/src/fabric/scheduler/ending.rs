//! What becomes of pieces and transfers: their ends, other rails after a failure, deadlines.

use std::sync::Arc;
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::units::Bytes;

use super::returning::MAX_FALLS;
use super::{Ended, MAX_RETRIES, RELEASE_GRACE, State};
use crate::fabric::error::FabricError;
use crate::fabric::flight::{Flight, Piece};
use crate::fabric::port::PortCount;
use crate::fabric::provider::{FlightId, Link, OpError, OpId, RailId, Release, Verb};
use crate::fabric::rail::{InFlight, Rail, RailState, rail_failed};
use crate::fabric::transfer::Delivery;

impl State {
    pub(super) fn completed(&mut self, rail: RailId, op: OpId, result: Result<(), OpError>) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        let Some(entry) = known.gave_back(op) else {
            return;
        };
        known.stirred = self.now;
        if known.retiring && known.ops.is_empty() && known.down.is_none() {
            self.closing.push((rail, known.retire()));
        }
        let Some(flight) = self.flights.get_mut(&entry.flight) else {
            return;
        };
        flight.in_flight -= 1;
        flight.pays(entry.cpu);
        match result {
            Ok(()) => self.credits(rail, &entry),
            Err(OpError::Op(error)) => {
                known.totals.failed_ops += 1;
                self.fail(entry.flight, error);
            }
            Err(OpError::Elsewhere(found)) => return self.go_elsewhere(rail, entry, found),
            Err(OpError::Rail(why)) => {
                known.totals.failed_ops += 1;
                flight.met(rail_failed(&known.rail, &why));
                let (valued, worn) = (known.rail.link.is_in_doubt(op), known.rail.link.is_worn());
                flight.numbered |= entry.imm.is_some() && known.rail.link.limits().imm_once;
                // A link that lost a lane works on, and its peer's end is not closed.
                if valued || (!worn && self.may_come_late(rail, &entry)) {
                    // The peer says what came once both ends are closed.
                    self.doubts(rail, op, entry);
                    return self.rail_down(rail, &why);
                }
                return self.try_again(entry, &why);
            }
        }
        self.settle(entry.flight);
    }

    /// An op went well by a rail.
    pub(super) fn credits(&mut self, rail: RailId, entry: &InFlight) {
        let (Some(flight), Some(known)) = (
            self.flights.get_mut(&entry.flight),
            self.rails.get_mut(&rail),
        ) else {
            return;
        };
        known.totals.ops += 1;
        match flight.order.verb {
            Verb::Write => known.totals.written += Bytes(entry.bytes),
            Verb::Read => known.totals.read += Bytes(entry.bytes),
        }
        if entry.bytes > 0 {
            flight.has_moved(rail, entry.bytes);
        }
    }

    /// Puts a piece that a rail cannot carry back, for rails that can; the flight asks this one no more.
    fn go_elsewhere(&mut self, rail: RailId, entry: InFlight, found: Vec<Obstacle>) {
        let peer = self.peer.to_string();
        let Some(flight) = self.flights.get_mut(&entry.flight) else {
            return;
        };
        found.into_iter().for_each(|obstacle| flight.met(obstacle));
        let plan = Arc::make_mut(&mut flight.plan);
        for tier in &mut plan.tiers {
            tier.retain(|known| *known != rail);
        }
        plan.tiers.retain(|tier| !tier.is_empty());
        if flight.ending.is_some() {
            return self.settle(entry.flight);
        }
        if plan.tiers.is_empty() {
            let met = plan.obstacles.iter().chain(&flight.met);
            let error = FabricError::Refused {
                peer,
                policy: flight.order.policy,
                obstacles: met.cloned().collect(),
            };
            return self.fail(entry.flight, error);
        }
        flight.put_back(Piece {
            segments: entry.segments,
            imm: entry.imm,
        });
        self.waits(entry.flight);
    }

    /// Puts a piece that a failed rail dropped back, for another rail.
    pub(super) fn try_again(&mut self, entry: InFlight, why: &str) {
        let peer = self.peer;
        let Some(flight) = self.flights.get_mut(&entry.flight) else {
            return;
        };
        if flight.ending.is_some() {
            return self.settle(entry.flight);
        }
        flight.retries += 1;
        if flight.retries > MAX_RETRIES * (1 + flight.falls) {
            let why = why.to_owned();
            return self.fail(entry.flight, FabricError::PeerLost { peer, why });
        }
        flight.put_back(Piece {
            segments: entry.segments,
            imm: entry.imm,
        });
        self.waits(entry.flight);
    }

    /// A rail is of no use any more. What it has in flight goes elsewhere once its link is closed, which
    /// is done without the lock.
    pub(super) fn rail_down(&mut self, rail: RailId, why: &str) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        if known.down.is_none() {
            known.down = Some(why.to_owned());
            self.closing.push((rail, Arc::clone(&known.rail.link)));
            self.plans.forget();
            self.falls_under(rail, why);
        }
        // Flights that wait for room would wait for ever when this was their last rail.
        self.fail_stranded();
    }

    /// The link of a rail that is down touches no memory any more.
    pub(super) fn has_closed(&mut self, rail: RailId, link: &Arc<dyn Link>) {
        self.returning.closed(rail, link);
        if let Some(known) = self.rails.get_mut(&rail) {
            known.closed = Some(self.now);
            let why = known.down.clone().unwrap_or_default();
            let obstacle = rail_failed(&known.rail, &why);
            let dropped = known.dropped_all();
            known.totals.failed_ops += dropped.len() as u64;
            for (op, entry) in dropped {
                if let Some(flight) = self.flights.get_mut(&entry.flight) {
                    flight.in_flight -= 1;
                    flight.pays(entry.cpu);
                    flight.met(obstacle.clone());
                    flight.numbered |= entry.imm.is_some() && link.limits().imm_once;
                }
                match link.is_in_doubt(op) || self.may_come_late(rail, &entry) {
                    true => self.doubts(rail, op, entry),
                    false => self.try_again(entry, &why),
                }
            }
            self.recalls(rail);
        }
        self.learns_no_more();
        self.fail_stranded();
    }

    /// A rail fails while transfers are under way that it could carry.
    fn falls_under(&mut self, rail: RailId, why: &str) {
        let mut too_often = Vec::new();
        for (id, flight) in &mut self.flights {
            if flight.ending.is_none() && flight.plan.tiers.iter().flatten().any(|r| *r == rail) {
                flight.falls += 1;
                if flight.falls > MAX_FALLS {
                    too_often.push(*id);
                }
            }
        }
        for id in too_often {
            let (peer, why) = (
                self.peer,
                format!("{why}; rails failed {MAX_FALLS} times before"),
            );
            self.fail(id, FabricError::PeerLost { peer, why });
        }
    }

    /// A rail takes the place of one that is down: flights that could have gone by that one go by it.
    pub(super) fn rail_back(&mut self, id: RailId, rail: Rail, class: Class) {
        let slot = rail.slot;
        let mut new = RailState::new(rail, class);
        new.returns = 1;
        let Self {
            rails,
            flights,
            closing,
            ..
        } = self;
        let followed: Vec<RailId> = rails
            .iter()
            .filter(|(_, known)| known.rail.slot == slot)
            .map(|(id, _)| *id)
            .collect();
        for flight in flights.values_mut().filter(|f| f.ending.is_none()) {
            let order = &flight.order;
            let link = &new.rail.link;
            let reached = link.reaches(order.local.as_deref(), order.remote.as_ref());
            let mut tiers = flight.plan.tiers.iter();
            let tier = tiers.position(|tier| tier.iter().any(|old| followed.contains(old)));
            if let (Some(tier), Ok(())) = (tier, reached) {
                let (local, remote) = (order.local.as_deref(), order.remote.as_ref());
                let detour = link.detour(order.verb, local, remote).is_some();
                let plan = Arc::make_mut(&mut flight.plan);
                plan.goes_by(id, &new.rail, flight.order.local.as_deref(), detour);
                if let Some(tier) = plan.tiers.get_mut(tier) {
                    tier.push(id);
                }
            }
        }
        for old in followed {
            if let Some(known) = rails.get_mut(&old).filter(|known| known.down.is_none()) {
                known.retiring = true;
                if known.ops.is_empty() {
                    closing.push((old, known.retire()));
                }
            }
            let counted = |flight: &Flight| flight.moved.iter().any(|(rail, _)| *rail == old);
            // What a link that is being closed had in flight is still to be seen to.
            let busy = |known: &RailState| !known.in_doubt.is_empty() || !known.ops.is_empty();
            let needed =
                flights.values().any(|flight| counted(flight)) || rails.get(&old).is_some_and(busy);
            // Its account is kept for as long as a flight refers to it, and then added to the new one's.
            if !needed && rails.get(&old).is_some_and(|known| known.down.is_some()) {
                new.follows(rails.remove(&old));
            }
        }
        rails.insert(id, new);
        self.plans.forget();
    }

    /// Ends a flight early. Whoever waits for a read hears of it when its memory was let go of, or it
    /// could change after that. A write's memory is only read: its end is told at once, and the ops
    /// that some link has not let go of hold the memory.
    pub(super) fn fail(&mut self, id: FlightId, error: FabricError) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if flight.ending.is_none() {
            if flight.order.verb == Verb::Write {
                let slot = Arc::clone(&flight.slot);
                self.ended.push(Ended::failed(slot, error.clone()));
            }
            flight.ending = Some(error);
            flight.gate.close();
            for known in self.rails.values_mut() {
                let before = known.in_doubt.len();
                known.in_doubt.retain(|(_, entry)| entry.flight != id);
                flight.in_flight -= before - known.in_doubt.len();
                let mine = |entry: &InFlight| entry.flight == id && entry.leaving.is_none();
                let ops: Vec<OpId> = known
                    .ops
                    .iter()
                    .filter(|(_, entry)| mine(entry))
                    .map(|(op, _)| *op)
                    .collect();
                for op in ops {
                    match known.rail.link.cancel(op) {
                        Release::Now => {
                            if known.gave_back(op).is_some() {
                                flight.in_flight -= 1;
                            }
                        }
                        Release::Later => {
                            if let Some(entry) = known.ops.get_mut(&op) {
                                entry.leaving = Some(self.now);
                            }
                        }
                    }
                }
            }
        }
        self.settle(id);
    }

    /// Ends a flight that has nothing left to do.
    pub(super) fn settle(&mut self, id: FlightId) {
        let done = |flight: &Flight| match flight.ending {
            Some(_) => flight.in_flight == 0,
            None => flight.is_done(),
        };
        match self.flights.get(&id) {
            Some(flight) if done(flight) => {}
            Some(flight) if flight.has_work() => return self.waits(id),
            _ => return,
        }
        let Some(mut flight) = self.flights.remove(&id) else {
            return;
        };
        self.tidy_line();
        self.ended.push(match flight.ending.take() {
            Some(error) => Ended::failed(flight.slot, error),
            None => {
                self.note_detours(&mut flight);
                let account = flight.account(self.now, |rail| self.counted(rail));
                Ended {
                    outcome: Ok(Delivery::new(account)),
                    flushes: self.flushes(&flight),
                    slot: flight.slot,
                }
            }
        });
    }

    /// What the port of a rail has counted by now.
    fn counted(&self, rail: RailId) -> Result<PortCount, String> {
        let known = self.rails.get(&rail).ok_or("the rail is gone")?;
        known.rail.link.port_counters()
    }

    pub(super) fn overdue(&mut self) {
        let now = self.now;
        let late: Vec<(FlightId, FabricError)> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.ending.is_none() && flight.deadline <= now)
            .map(|(id, flight)| (*id, self.too_late(*id, flight)))
            .collect();
        for (id, error) in late {
            self.fail(id, error);
        }
        let stuck = |known: &RailState| {
            let mut ops = known.ops.values();
            ops.any(|op| op.leaving.is_some_and(|since| since + RELEASE_GRACE <= now))
        };
        let stuck: Vec<RailId> = self
            .rails
            .iter()
            .filter(|(_, known)| stuck(known))
            .map(|(id, _)| *id)
            .collect();
        for rail in stuck {
            self.rail_down(rail, "it did not let go of a cancelled transfer's memory");
        }
    }

    /// Gives up rails by which nothing comes to an end any more, when others could carry what they
    /// have: some devices would try for ever.
    pub(super) fn give_up_silent(&mut self) {
        let (now, silence) = (self.now, self.silence);
        let usable = |known: &RailState| known.down.is_none() && !known.retiring;
        let silent = |known: &RailState| {
            let stirred = known.stirred();
            usable(known) && !known.ops.is_empty() && now.saturating_sub(stirred) >= silence
        };
        let others = |id: RailId, known: &RailState| {
            let flights = known
                .ops
                .values()
                .filter_map(|op| self.flights.get(&op.flight));
            let mut rails = flights.flat_map(|flight| flight.plan.tiers.iter().flatten());
            rails.any(|other| {
                let other = self.rails.get(other).filter(|_| *other != id);
                other.is_some_and(|other| usable(other) && !silent(other))
            })
        };
        let given_up: Vec<RailId> = self
            .rails
            .iter()
            .filter(|(id, known)| silent(known) && others(**id, known))
            .map(|(id, _)| *id)
            .collect();
        for rail in given_up {
            let why = format!(
                "nothing came to an end by it for {:.1} s",
                silence.as_secs_f64()
            );
            self.rail_down(rail, &why);
        }
    }

    pub(super) fn next_alarm(&self) -> Option<Duration> {
        let flights = self
            .flights
            .values()
            .filter(|flight| flight.ending.is_none());
        let deadlines = flights.map(|flight| flight.deadline);
        let ops = self.rails.values().flat_map(|known| known.ops.values());
        let grace = ops.filter_map(|op| op.leaving.map(|since| since + RELEASE_GRACE));
        let forgotten = self
            .rails
            .values()
            .filter_map(|known| self.forgotten(known));
        deadlines.chain(grace).chain(forgotten).min()
    }
}
