//! The engine's heart, one for each peer: cuts transfers into ops, spreads them over the rails that
//! have room, tries again elsewhere what a failed rail dropped, and ends every transfer in time.
//!
//! It is a plain state machine under one lock. Time comes in from outside, and links are reached
//! through [`Link`] alone, so a simulation drives the very code that runs in production.
//! `planning` chooses rails, `posting` posts, `ending` settles what became of it, `returning` bridges the
//! time until a rail is made anew; `short` is for what needs none of that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use smallvec::SmallVec;

use super::account;
use super::error::FabricError;
use super::flight::{Flight, Order};
use super::identity::Incarnation;
use super::plan::Plans;
use super::provider::{Chore, FlightId, Flush, Link, OpError, OpId, RailId, Wait};
use super::rail::{Missing, Rail, RailReport, RailState, allows, rank};
use super::region::RegionCore;
use super::transfer::{Canceller, Outcome, Slot};

mod ending;
mod planning;
mod posting;
mod returning;
mod short;
mod waiting;

use returning::Returning;
pub(crate) use short::AT_ONCE;
use short::Turnstiles;

/// The most transfers that one peer may have under way.
pub const MAX_FLIGHTS: usize = 4096;
/// Transfers up to this size go by one rail.
pub const STRIPE: u64 = 128 << 10;
/// Transfers up to this size are carried out by the thread that starts them, where the link lets it:
/// source and target fit into one core's own cache (2 MiB where this was measured), and to wake other
/// threads takes as long as such a copy. From 1 MiB on several cores together were faster.
const HERE: u64 = 2 << 20;
/// How often one transfer's pieces may be posted again for each rail that failed.
const MAX_RETRIES: u64 = 1024;
/// How long a cancelled op may hold its memory before its link is closed.
const RELEASE_GRACE: Duration = Duration::from_secs(1);

struct State {
    peer: Incarnation,
    /// How long a rail with something in flight may end nothing while others could carry it.
    silence: Duration,
    rails: BTreeMap<RailId, RailState>,
    /// Rails that the two ends do not have, and why.
    missing: Vec<Missing>,
    plans: Plans,
    returning: Returning,
    /// Boxed: they are large, and each start and end moves those beside it.
    flights: BTreeMap<FlightId, Box<Flight>>,
    /// Flights with something left to post, in the order they came, and some that have ended since.
    waiting: VecDeque<FlightId>,
    next_flight: u64,
    next_op: u64,
    lost: Option<String>,
    now: Duration,
    /// While a transfer is being started: its number, and what its own thread is to do for it.
    starting: Option<(FlightId, Vec<Chore>)>,
    /// Ended flights, to be told once the lock is let go of.
    /// Most steps end one at most, for which nothing is allocated.
    ended: SmallVec<[Ended; 1]>,
    /// Links with new ops, to be told then as well.
    posted: SmallVec<[Arc<dyn Link>; 1]>,
    /// Links of rails that are down, to be closed then: a device may take its time.
    closing: Vec<(RailId, Arc<dyn Link>)>,
}

/// The end of a flight.
struct Ended {
    slot: Arc<Slot>,
    outcome: Outcome,
    /// What makes visible to the memory's device what NICs wrote into it.
    flushes: Vec<Flush>,
}

impl Ended {
    const fn failed(slot: Arc<Slot>, error: FabricError) -> Self {
        Self {
            slot,
            outcome: Err(error),
            flushes: Vec::new(),
        }
    }

    fn tell(mut self) {
        let flushed = self.flushes.iter().map(|flush| flush());
        if let (Ok(delivery), Some(seen)) =
            (&mut self.outcome, flushed.reduce(account::less_certain))
        {
            delivery.is_seen(seen);
        }
        self.slot.put(self.outcome);
    }
}

/// All transfers with one peer.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// Passed by threads that carry short transfers out themselves.
    turnstiles: Turnstiles,
    /// That of the plans.
    era: Arc<AtomicU64>,
    /// Called when links were closed that the peer is to be told of.
    bell: OnceLock<Bell>,
}

type Bell = Box<dyn Fn() + Send + Sync>;

impl Scheduler {
    pub(crate) fn new(peer: Incarnation, silence: Duration) -> Self {
        let state = State {
            peer,
            silence,
            rails: BTreeMap::new(),
            missing: Vec::new(),
            plans: Plans::default(),
            returning: Returning::default(),
            flights: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_flight: 1,
            next_op: 1,
            lost: None,
            now: Duration::ZERO,
            starting: None,
            ended: SmallVec::new(),
            posted: SmallVec::new(),
            closing: Vec::new(),
        };
        Self {
            turnstiles: Turnstiles::default(),
            era: Arc::clone(state.plans.era()),
            state: Mutex::new(state),
            bell: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a step, closes the links that it ended and tells those whose transfers it ended, after the
    /// lock was let go of.
    fn step<R>(&self, step: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = step(&mut state);
        let mut closed = false;
        while let Some((rail, link)) = state.closing.pop() {
            drop(state);
            link.close();
            state = self.state();
            state.has_closed(rail, &link);
            state.pump();
            closed = true;
        }
        let ended = std::mem::take(&mut state.ended);
        let posted = std::mem::take(&mut state.posted);
        drop(state);
        ended.into_iter().for_each(Ended::tell);
        posted.iter().for_each(|link| link.posted());
        if let Some(bell) = self.bell.get().filter(|_| closed) {
            bell();
        }
        result
    }

    /// Has somebody called, by a thread that holds no lock of this, when links were closed that the peer is
    /// to be told of ([`Scheduler::take_closed`]). Only the first one counts.
    pub(crate) fn rings(&self, bell: impl Fn() + Send + Sync + 'static) {
        let _ = self.bell.set(Box::new(bell));
    }

    pub(crate) fn add_rail(&self, id: RailId, rail: Rail, class: Class) {
        self.step(|state| {
            state.rails.insert(id, RailState::new(rail, class));
            state.plans.forget();
        });
    }

    /// Says which rails there could be and are not.
    pub(crate) fn is_missing(&self, missing: Vec<Missing>) {
        let mut state = self.state();
        state.missing = missing;
        state.plans.forget();
    }

    /// A rail that was down has come back by a new link. Its number is new, so that what the old link
    /// may still say is not taken for the new one's.
    pub(crate) fn came_back(&self, id: RailId, rail: Rail, class: Class, now: Duration) {
        self.step(|state| {
            state.now = state.now.max(now);
            state.rail_back(id, rail, class);
            state.pump();
        });
    }

    /// Starts a transfer, and carries a short one out where the link lets the caller's thread; its end
    /// comes to the slot.
    pub(crate) fn start(&self, order: Order, slot: &Arc<Slot>, now: Duration) -> FlightId {
        let (id, chores) = self.step(|state| {
            state.now = state.now.max(now);
            let id = FlightId(state.next_flight);
            state.next_flight += 1;
            state.starting = (order.bytes() <= HERE).then(|| (id, Vec::new()));
            state.start(id, order, Arc::clone(slot));
            (id, state.starting.take())
        });
        for chore in chores.into_iter().flat_map(|(_, chores)| chores) {
            chore();
        }
        id
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
            state.plans.forget();
            let rails: Vec<RailId> = state.rails.keys().copied().collect();
            for rail in rails {
                state.rail_down(rail, why);
            }
            state.learns_no_more();
            state.pump();
        });
    }

    /// Ends what is overdue; answers when to come again.
    pub(crate) fn tick(&self, now: Duration) -> Option<Duration> {
        self.step(|state| {
            state.now = state.now.max(now);
            state.overdue();
            state.give_up_silent();
            state.learns_no_more();
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
        let mut reports: BTreeMap<u16, RailReport> = BTreeMap::new();
        // A rail that came back stands behind the one it follows.
        for known in state.rails.values() {
            let report = known.report();
            match reports.get_mut(&known.rail.slot) {
                Some(earlier) => earlier.followed_by(report),
                None => {
                    reports.insert(known.rail.slot, report);
                }
            }
        }
        reports.into_values().collect()
    }

    /// The straightest path that a policy leaves, and what the links of its rails carry together, in bytes
    /// per second, where that is known of all of them.
    pub(crate) fn line(&self, policy: Policy) -> Option<(Path, Option<f64>)> {
        let state = self.state();
        let up = |known: &&RailState| known.down.is_none() && allows(policy, known.class);
        let rails = || state.rails.values().filter(up);
        let path = rails()
            .map(|known| known.rail.path)
            .min_by_key(|path| rank(*path))?;
        let same = rails().filter(|known| known.rail.path == path);
        Some((path, same.map(|known| known.rail.line_rate()).sum()))
    }

    /// The rail that stands for a place in the report now.
    pub(crate) fn rail_at(&self, index: usize) -> Option<(u16, RailId)> {
        let slots = self.state().latest();
        slots.into_iter().nth(index)
    }

    /// The rails that are down (`false`), or worn and at work (`true`).
    pub(crate) fn fallen(&self) -> Vec<(RailId, bool)> {
        let state = self.state();
        let fallen = |id: RailId| {
            let known = state.rails.get(&id)?;
            match known.down {
                Some(_) => Some((id, false)),
                None => known.rail.link.is_worn().then_some((id, true)),
            }
        };
        state.latest().into_values().filter_map(fallen).collect()
    }

    /// Whether some rail works.
    pub(crate) fn any_up(&self) -> bool {
        let state = self.state();
        state.rails.values().any(|known| known.down.is_none())
    }

    /// When an op last came to its end.
    pub(crate) fn stirred(&self) -> Duration {
        let state = self.state();
        let stirred = state.rails.values().map(RailState::stirred);
        stirred.max().unwrap_or_default()
    }

    /// Whether a rail is the one that stands for its place.
    pub(crate) fn stands(&self, slot: u16, rail: RailId) -> bool {
        self.state().latest().get(&slot) == Some(&rail)
    }

    /// Whether a number is higher than that of the rail that stands for a place, as a new one's must be.
    pub(crate) fn precedes(&self, slot: u16, rail: RailId) -> bool {
        let latest = self.state().latest();
        latest.get(&slot).is_some_and(|known| *known < rail)
    }

    /// Whether some rail is of a class that the policy allows.
    pub(crate) fn suits(&self, policy: Policy) -> bool {
        let state = self.state();
        let mut rails = state.rails.values();
        rails.any(|known| allows(policy, known.class))
    }

    /// Whether some link still holds a region's memory for a transfer that ended early.
    pub(crate) fn is_letting_go(&self, region: &RegionCore) -> bool {
        let state = self.state();
        let mut ending = state.flights.values().filter(|f| f.ending.is_some());
        ending.any(|flight| {
            let local = flight.order.local.as_deref();
            local.is_some_and(|local| std::ptr::eq(local, region))
        })
    }

    /// Lets a thread that waits for something that the peer does move bytes by the rail that this will
    /// most likely come by.
    pub(crate) fn attend_peer(&self, wait: &Wait<'_>) {
        let link = {
            let state = self.state();
            let up = state.rails.values().filter(|known| known.down.is_none());
            let best = up.min_by_key(|known| rank(known.rail.path));
            best.map(|known| Arc::clone(&known.rail.link))
        };
        if let Some(link) = link {
            link.attend(wait);
        }
    }

    /// Transfers under way.
    pub(crate) fn under_way(&self) -> usize {
        self.state().flights.len()
    }
}

impl State {
    /// The one link by which pieces of a flight are on their way, or those that it waits behind.
    fn sole_carrier(&self, flight: FlightId) -> Option<Arc<dyn Link>> {
        let waits = &self.flights.get(&flight)?.plan.tiers;
        let sole = |carries: &dyn Fn(&(&RailId, &RailState)) -> bool| {
            let mut carriers = self.rails.iter().filter(carries);
            let (_, carrier) = carriers.next()?;
            let link = carriers.next().is_none().then_some(&carrier.rail.link)?;
            Some(Arc::clone(link))
        };
        let carried = |known: &RailState| known.ops.values().any(|op| op.flight == flight);
        match self.rails.values().any(carried) {
            true => sole(&|(_, known)| carried(known)),
            false => sole(&|(id, known)| {
                !known.ops.is_empty() && waits.iter().flatten().any(|rail| rail == *id)
            }),
        }
    }

    /// Which rail stands for each place now.
    fn latest(&self) -> BTreeMap<u16, RailId> {
        let rails = self.rails.iter();
        rails.map(|(id, known)| (known.rail.slot, *id)).collect()
    }
}

impl Canceller for Scheduler {
    fn cancel(&self, flight: FlightId) {
        self.step(|state| {
            state.fail(flight, FabricError::Cancelled);
            state.pump();
        });
    }

    fn attend(&self, flight: FlightId, wait: &Wait<'_>) {
        let carrier = self.state().sole_carrier(flight);
        if let Some(link) = carrier {
            link.attend(wait);
        }
    }
}

#[cfg(test)]
mod tests;
