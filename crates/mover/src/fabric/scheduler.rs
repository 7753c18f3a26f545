//! The engine's heart, one for each peer: cuts transfers into ops, spreads them over the rails that
//! have room, tries again elsewhere what a failed rail dropped, and ends every transfer in time.
//!
//! It is a plain state machine under one lock. Time comes in from outside, and links are reached
//! through [`Link`](super::provider::Link) alone, so a simulation drives the very code that runs in production.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::units::Bytes;

use super::account;
use super::error::FabricError;
use super::flight::{Flight, Order, Piece};
use super::identity::Incarnation;
use super::provider::{FlightId, Op, OpError, OpId, Posted, RailId, Refusal, Release};
use super::rail::{
    InFlight, Rail, RailReport, RailState, RailTotals, allows, asked_for, rail_failed, rank,
};
use super::transfer::{Canceller, Outcome, Slot};

/// The most transfers that one peer may have under way.
pub const MAX_FLIGHTS: usize = 4096;
/// Transfers up to this size go by one rail.
pub const STRIPE: u64 = 128 << 10;
/// How often one transfer's pieces may move to another rail.
const MAX_RETRIES: u64 = 1024;
/// How long a cancelled op may hold its memory before its link is closed.
const RELEASE_GRACE: Duration = Duration::from_secs(1);

struct State {
    peer: Incarnation,
    rails: BTreeMap<RailId, RailState>,
    flights: BTreeMap<FlightId, Flight>,
    /// Flights with something left to post, in the order they came.
    waiting: VecDeque<FlightId>,
    next_flight: u64,
    next_op: u64,
    lost: Option<String>,
    now: Duration,
    /// Ended flights, to be told once the lock is let go of.
    ended: Vec<(Arc<Slot>, Outcome)>,
}

/// All transfers with one peer.
pub(crate) struct Scheduler(Mutex<State>);

impl Scheduler {
    pub(crate) fn new(peer: Incarnation) -> Self {
        Self(Mutex::new(State {
            peer,
            rails: BTreeMap::new(),
            flights: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_flight: 1,
            next_op: 1,
            lost: None,
            now: Duration::ZERO,
            ended: Vec::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a step and tells those whose transfers it ended, after the lock was let go of.
    fn step<R>(&self, step: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = step(&mut state);
        let ended = std::mem::take(&mut state.ended);
        drop(state);
        for (slot, outcome) in ended {
            slot.put(outcome);
        }
        result
    }

    pub(crate) fn add_rail(&self, id: RailId, rail: Rail, class: Class) {
        self.step(|state| {
            let known = RailState {
                rail,
                class,
                down: None,
                ops: HashMap::new(),
                bytes: 0,
                full: false,
                totals: RailTotals::default(),
            };
            state.rails.insert(id, known);
        });
    }

    /// Starts a transfer; its end comes to the slot.
    pub(crate) fn start(&self, order: Order, now: Duration) -> (FlightId, Arc<Slot>) {
        let slot = Arc::new(Slot::default());
        let id = self.step(|state| {
            state.now = state.now.max(now);
            let id = FlightId(state.next_flight);
            state.next_flight += 1;
            state.start(id, order, Arc::clone(&slot));
            id
        });
        (id, slot)
    }

    /// An op ended.
    pub(crate) fn completed(
        &self,
        rail: RailId,
        op: OpId,
        result: Result<(), OpError>,
        now: Duration,
    ) {
        self.step(|state| {
            state.now = state.now.max(now);
            state.completed(rail, op, result);
            state.pump();
        });
    }

    /// A rail broke.
    pub(crate) fn down(&self, rail: RailId, why: &str, now: Duration) {
        self.step(|state| {
            state.now = state.now.max(now);
            state.rail_down(rail, why);
            state.pump();
        });
    }

    /// The peer is gone: ends everything.
    pub(crate) fn lose(&self, why: &str, now: Duration) {
        self.step(|state| {
            state.now = state.now.max(now);
            state.lost.get_or_insert_with(|| why.to_owned());
            let rails: Vec<RailId> = state.rails.keys().copied().collect();
            for rail in rails {
                state.rail_down(rail, why);
            }
            state.pump();
        });
    }

    /// Ends what is overdue; answers when to come again.
    pub(crate) fn tick(&self, now: Duration) -> Option<Duration> {
        self.step(|state| {
            state.now = state.now.max(now);
            state.overdue();
            state.pump();
            state.next_alarm()
        })
    }

    pub(crate) fn is_lost(&self) -> Option<String> {
        self.state().lost.clone()
    }

    /// The running totals by rail.
    pub(crate) fn report(&self) -> Vec<RailReport> {
        let state = self.state();
        let rails = state.rails.values();
        rails
            .map(|known| RailReport {
                path: known.rail.path,
                nic: known.rail.nic.clone(),
                down: known.down.clone(),
                totals: known.totals,
            })
            .collect()
    }

    pub(crate) fn rail_at(&self, index: usize) -> Option<RailId> {
        self.state().rails.keys().nth(index).copied()
    }

    /// Whether some rail is of a class that the policy allows.
    pub(crate) fn suits(&self, policy: Policy) -> bool {
        let state = self.state();
        let mut rails = state.rails.values();
        rails.any(|known| allows(policy, known.class))
    }

    /// Transfers under way.
    pub(crate) fn under_way(&self) -> usize {
        self.state().flights.len()
    }
}

impl Canceller for Scheduler {
    fn cancel(&self, flight: FlightId) {
        self.step(|state| {
            state.fail(flight, FabricError::Cancelled);
            state.pump();
        });
    }
}

impl State {
    fn start(&mut self, id: FlightId, order: Order, slot: Arc<Slot>) {
        if let Some(why) = &self.lost {
            let (peer, why) = (self.peer, why.clone());
            return self
                .ended
                .push((slot, Err(FabricError::PeerLost { peer, why })));
        }
        if self.flights.len() >= MAX_FLIGHTS {
            let full = FabricError::QueueFull {
                what: "transfers with one peer",
                limit: MAX_FLIGHTS,
            };
            return self.ended.push((slot, Err(full)));
        }
        let mut flight = Flight::new(order, slot, self.now);
        if let Err(error) = self.choose_rails(&mut flight) {
            return self.ended.push((flight.slot, Err(error)));
        }
        for (rail, known) in &self.rails {
            let before = (known.rail.link.cpu(), known.moved());
            flight.before.insert(*rail, before);
        }
        self.flights.insert(id, flight);
        self.waiting.push_back(id);
        self.pump();
    }

    /// Which rails may carry a flight, straightest first, and why each better one may not.
    fn choose_rails(&self, flight: &mut Flight) -> Result<(), FabricError> {
        let order = &flight.order;
        let mut by_rank: BTreeMap<u8, Vec<RailId>> = BTreeMap::new();
        let mut obstacles = Vec::new();
        for (id, known) in &self.rails {
            if let Some(why) = &known.down {
                obstacles.push(rail_failed(&known.rail, why));
                continue;
            }
            if !allows(order.policy, known.class) {
                if order.policy != Policy::Require {
                    obstacles.push(asked_for(&known.rail, order.policy));
                }
                continue;
            }
            match known
                .rail
                .link
                .reaches(order.local.as_deref(), order.remote.as_deref())
            {
                Ok(()) => by_rank.entry(rank(known.rail.path)).or_default().push(*id),
                Err(found) => obstacles.extend(found),
            }
        }
        flight.tiers = by_rank.into_values().collect();
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

    fn peer_lost(&self, otherwise: &str) -> FabricError {
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
    fn pump(&mut self) {
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
                known.is_some_and(|known| known.down.is_none())
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
            let load = (known.bytes + size) as f64 / known.rail.weight.max(f64::MIN_POSITIVE);
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
        };
        self.next_op += 1;
        let entry = InFlight {
            flight: id,
            segments: op.segments.clone(),
            imm: piece.imm,
            bytes: op.bytes(),
            leaving: None,
        };
        let (op_id, bytes) = (op.id, entry.bytes);
        match known.rail.link.post(op) {
            Ok(posted) => {
                flight.in_flight += 1;
                known.bytes += bytes;
                known.ops.insert(op_id, entry);
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
                known.bytes += bytes;
                known.ops.insert(op_id, entry);
                self.completed(rail, op_id, Err(error));
            }
        }
    }

    fn completed(&mut self, rail: RailId, op: OpId, result: Result<(), OpError>) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        let Some(entry) = known.ops.remove(&op) else {
            return;
        };
        known.full = false;
        known.bytes -= entry.bytes;
        let Some(flight) = self.flights.get_mut(&entry.flight) else {
            return;
        };
        flight.in_flight -= 1;
        match result {
            Ok(()) => {
                known.totals.ops += 1;
                match flight.order.verb {
                    super::provider::Verb::Write => known.totals.written += Bytes(entry.bytes),
                    super::provider::Verb::Read => known.totals.read += Bytes(entry.bytes),
                }
                if entry.bytes > 0 {
                    *flight.moved.entry(rail).or_default() += entry.bytes;
                }
            }
            Err(OpError::Op(error)) => {
                known.totals.failed_ops += 1;
                self.fail(entry.flight, error);
            }
            Err(OpError::Rail(why)) => {
                known.totals.failed_ops += 1;
                let once = known.rail.link.limits().imm_once;
                self.try_again(entry, once, &why);
                return;
            }
        }
        self.settle(entry.flight);
    }

    /// Puts a piece that a failed rail dropped back, for another rail.
    fn try_again(&mut self, entry: InFlight, imm_once: bool, why: &str) {
        let peer = self.peer;
        let Some(flight) = self.flights.get_mut(&entry.flight) else {
            return;
        };
        if flight.ending.is_some() {
            return self.settle(entry.flight);
        }
        flight.retries += 1;
        let twice = entry.imm.is_some() && !imm_once;
        if flight.retries > MAX_RETRIES || twice {
            let why = why.to_owned();
            return self.fail(entry.flight, FabricError::PeerLost { peer, why });
        }
        flight.put_back(Piece {
            segments: entry.segments,
            imm: entry.imm,
        });
        if !self.waiting.contains(&entry.flight) {
            self.waiting.push_back(entry.flight);
        }
    }

    fn rail_down(&mut self, rail: RailId, why: &str) {
        let Some(known) = self.rails.get_mut(&rail) else {
            return;
        };
        if known.down.is_none() {
            known.down = Some(why.to_owned());
            known.rail.link.close();
        }
        let obstacle = rail_failed(&known.rail, why);
        let once = known.rail.link.limits().imm_once;
        let mut dropped: Vec<(OpId, InFlight)> = known.ops.drain().collect();
        // In the order they were posted: a run that is repeated is the same run.
        dropped.sort_by_key(|(op, _)| *op);
        known.bytes = 0;
        known.full = false;
        known.totals.failed_ops += dropped.len() as u64;
        for (_, entry) in dropped {
            if let Some(flight) = self.flights.get_mut(&entry.flight) {
                flight.in_flight -= 1;
                if !flight.obstacles.contains(&obstacle) {
                    flight.obstacles.push(obstacle.clone());
                }
            }
            self.try_again(entry, once, why);
        }
        // Flights that wait for room would wait for ever when this was their last rail.
        let stranded: Vec<FlightId> = self.waiting.iter().copied().collect();
        for id in stranded {
            let alive = self.flights.get(&id).is_none_or(|flight| {
                let mut rails = flight.tiers.iter().flatten();
                rails.any(|rail| self.rails.get(rail).is_some_and(|r| r.down.is_none()))
            });
            if !alive {
                let error = self.peer_lost("every rail that could carry the transfer is down");
                self.fail(id, error);
            }
        }
    }

    /// Ends a flight early: its memory is let go of first.
    fn fail(&mut self, id: FlightId, error: FabricError) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if flight.ending.is_none() {
            flight.ending = Some(error);
            flight.gate.close();
            for known in self.rails.values_mut() {
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
                            if let Some(entry) = known.ops.remove(&op) {
                                known.bytes -= entry.bytes;
                                known.full = false;
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
    fn settle(&mut self, id: FlightId) {
        let done = |flight: &Flight| match flight.ending {
            Some(_) => flight.in_flight == 0,
            None => flight.is_done(),
        };
        match self.flights.get(&id) {
            Some(flight) if done(flight) => {}
            Some(flight) if flight.has_work() => {
                if !self.waiting.contains(&id) {
                    self.waiting.push_back(id);
                }
                return;
            }
            _ => return,
        }
        let Some(mut flight) = self.flights.remove(&id) else {
            return;
        };
        self.waiting.retain(|waiting| *waiting != id);
        let outcome = match flight.ending.take() {
            Some(error) => Err(error),
            None => Ok(account::delivery(&flight, self.peer, &self.rails, self.now)),
        };
        self.ended.push((flight.slot, outcome));
    }

    fn overdue(&mut self) {
        let now = self.now;
        let late: Vec<(FlightId, Duration)> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.ending.is_none() && flight.deadline <= now)
            .map(|(id, flight)| (*id, flight.order.allowed))
            .collect();
        for (id, after) in late {
            let what = "the transfer";
            self.fail(id, FabricError::Deadline { what, after });
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

    fn next_alarm(&self) -> Option<Duration> {
        let flights = self
            .flights
            .values()
            .filter(|flight| flight.ending.is_none());
        let deadlines = flights.map(|flight| flight.deadline);
        let ops = self.rails.values().flat_map(|known| known.ops.values());
        let grace = ops.filter_map(|op| op.leaving.map(|since| since + RELEASE_GRACE));
        deadlines.chain(grace).min()
    }
}
