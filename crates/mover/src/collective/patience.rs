//! Waiting for other ranks: first in a tight loop, then giving way, then asleep; never beyond the
//! deadline, and never once it is known that something went wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arena::{Layout, read_entry};
use super::bell::Bell;
use super::call::Call;
use super::council::{Council, HAD_LEFT};
use super::error::{Called, CollectiveError};
use super::neighbours::Neighbours;
use super::verdict::{Mismatch, Overdue};
use crate::fabric::{Backing, Fabric};

/// Turns of the tight loop: about what two cores take to exchange a line several times.
const SPINS: u32 = 300;
/// The same where only memory is waited for: a few tenths of a millisecond. Who gives way to another
/// program gets the core back a slice of the scheduler's later, which is milliseconds, and the ranks that
/// wait for this one wait for that.
const MEMORY_SPINS: u32 = 4000;
/// Turns of it at first that do not even pause, which some processors do for longer than a line takes
/// to come.
const EAGER: u32 = 50;
/// Turns of giving way to others before sleeping.
const YIELDS: u32 = 2000;
/// The same where a socket can wake this thread.
const SOCKET_YIELDS: u32 = 200;
/// Turns between two looks at what others on this host call.
const LOOK: u32 = 256;
/// The first nap, and the longest.
const NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// The longest nap that nothing ends early: so much may a call come late after a rank that came late.
const LONGEST_BLIND: Duration = Duration::from_micros(250);
/// How long after a broken connection its goodbye may come.
const FAREWELL: Duration = Duration::from_millis(100);
/// Of the time that a call may take, what is left for agreeing that it failed: a quarter, but not
/// more than this.
const MOST_GRACE: Duration = Duration::from_secs(2);

/// How to wait.
#[derive(Clone, Copy)]
pub(crate) enum Rest<'a> {
    /// For another rank, which may be quick.
    Spin,
    /// For another rank by memory that both have mapped: no thread of this process has anything to do
    /// meanwhile.
    Memory,
    /// For the network, which needs the cores: asleep until something arrives.
    UntilArrival,
    /// The same, but something that does not arrive may also help: room to send.
    Briefly,
    /// For sockets that this thread reads itself: quick at first, then asleep as this does it, for no
    /// longer than it is told.
    Sockets(&'a dyn Fn(Duration)),
}

/// What a call waits with.
pub(crate) struct Patience<'a> {
    council: &'a Council,
    fabric: &'a Fabric,
    /// The arenas of the ranks on this host, by rank.
    near: &'a [Option<Arc<Backing>>],
    layout: Layout,
    neighbours: &'a Neighbours,
    pub number: u64,
    pub call: Call,
    pub rank: usize,
    /// Whether each rank of this host has a core of its own.
    pub roomy: bool,
    allowed: Duration,
    until: Instant,
    turns: u32,
    since: Option<Instant>,
    nap: Duration,
    /// What others of this host wake this rank by, and whom it says there that it waits for.
    bell: Option<Bell<'a>>,
    hung: Option<Option<usize>>,
    last_chance: bool,
    /// What had arrived by the last look.
    seen: u64,
    /// The time spent waiting.
    pub waited: Duration,
}

/// What a call is, for those who wait in it.
pub(crate) struct Waiting<'a> {
    pub council: &'a Council,
    pub fabric: &'a Fabric,
    pub near: &'a [Option<Arc<Backing>>],
    pub layout: Layout,
    pub neighbours: &'a Neighbours,
    pub number: u64,
    pub call: Call,
    pub rank: usize,
    pub roomy: bool,
    pub allowed: Duration,
    /// When the call began.
    pub began: Instant,
}

pub(crate) fn grace(allowed: Duration) -> Duration {
    (allowed / 4).min(MOST_GRACE)
}

/// Turns of the tight loop: none where ranks share cores, for the one that is waited for may want this one.
const fn spins(rest: Rest<'_>, roomy: bool) -> u32 {
    match rest {
        Rest::Memory if roomy => MEMORY_SPINS,
        Rest::Spin | Rest::Sockets(_) if roomy => SPINS,
        _ => 0,
    }
}

/// Turns of giving way to others.
const fn yields(rest: Rest<'_>) -> u32 {
    match rest {
        Rest::Sockets(_) => SOCKET_YIELDS,
        _ => YIELDS,
    }
}

impl<'a> Patience<'a> {
    pub(crate) fn new(call: Waiting<'a>) -> Self {
        let own = call.near.get(call.rank).and_then(Option::as_deref);
        Self {
            council: call.council,
            fabric: call.fabric,
            near: call.near,
            layout: call.layout,
            neighbours: call.neighbours,
            number: call.number,
            call: call.call,
            rank: call.rank,
            roomy: call.roomy,
            allowed: call.allowed,
            until: call.began + call.allowed.saturating_sub(grace(call.allowed)),
            turns: 0,
            since: None,
            nap: NAP,
            bell: own.map(|arena| Bell::new(arena, &call.layout)),
            hung: None,
            last_chance: false,
            seen: 0,
            waited: Duration::ZERO,
        }
    }

    /// Notes what has arrived, before looking at it.
    pub(crate) fn look(&mut self) {
        self.seen = self.fabric.arrivals();
    }

    /// What is left of the time.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Something came: the next wait begins anew.
    pub(crate) fn reset(&mut self) {
        self.turns = 0;
        self.nap = NAP;
        self.last_chance = false;
        self.wake_up();
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
    }

    /// One turn of waiting, for something from `on`, if from one.
    pub(crate) fn pause(
        &mut self,
        on: Option<usize>,
        rest: Rest<'_>,
    ) -> Result<(), CollectiveError> {
        self.turns += 1;
        let spins = spins(rest, self.roomy);
        if self.turns < spins {
            if self.turns > EAGER {
                std::hint::spin_loop();
            }
            return Ok(());
        }
        let now = Instant::now();
        self.since.get_or_insert(now);
        if self.council.has_failed() {
            return Err(self.failed());
        }
        if let Some(rank) = on
            && self.council.has_departed(rank)
        {
            // What it sent before it left may have come between the look and now.
            if self.last_chance {
                self.council
                    .accuse(|verdict| verdict.lose(rank, self.rank, HAD_LEFT));
                return Err(self.failed());
            }
            self.last_chance = true;
            return Ok(());
        }
        if now >= self.until {
            let overdue = Overdue {
                number: self.number,
                by: self.rank,
                millis: u64::try_from(self.allowed.as_millis()).unwrap_or(u64::MAX),
            };
            self.council.accuse(|verdict| {
                verdict.overdue = Some(verdict.overdue.map_or(overdue, |o| o.min(overdue)));
            });
            return Err(self.failed());
        }
        if self.turns.is_multiple_of(LOOK) {
            self.compare()?;
        }
        match rest {
            Rest::UntilArrival => self.fabric.await_arrival(self.seen, LONGEST_NAP),
            Rest::Briefly => self.fabric.await_arrival(self.seen, NAP),
            Rest::Sockets(sleep) if self.roomy => sleep(LONGEST_NAP),
            _ if self.turns < spins + yields(rest) && !self.neighbours.are_about(now) => {
                self.neighbours.give_way(now);
            }
            Rest::Sockets(sleep) => sleep(LONGEST_NAP),
            Rest::Memory => self.doze(on, LONGEST_NAP)?,
            _ => {
                self.doze(None, self.nap)?;
                self.nap = (self.nap * 2).min(LONGEST_BLIND);
            }
        }
        Ok(())
    }

    /// Sleeps until a rank of this host has put something up, for `time` at most. The turn before that
    /// only says so, and is for one more look.
    fn doze(&mut self, on: Option<usize>, time: Duration) -> Result<(), CollectiveError> {
        let Some(bell) = self.bell else {
            std::thread::sleep(time);
            return Ok(());
        };
        if self.hung != Some(on) {
            bell.hang(on);
            self.hung = Some(on);
            return Ok(());
        }
        let began = Instant::now();
        bell.sleep(on, time);
        self.wake_up();
        // Nobody rang: perhaps because they call something else.
        match began.elapsed() >= time {
            true => self.compare(),
            false => Ok(()),
        }
    }

    fn wake_up(&mut self) {
        if let (Some(_), Some(bell)) = (self.hung.take(), self.bell) {
            bell.take_down();
        }
    }

    /// Looks whether the others on this host call the same.
    pub(crate) fn compare(&self) -> Result<(), CollectiveError> {
        for (rank, arena) in self.near.iter().enumerate() {
            let theirs = arena
                .as_ref()
                .and_then(|a| read_entry(a, &self.layout, self.number));
            if let Some(theirs) = theirs {
                self.same(rank, self.number, &theirs)?;
            }
        }
        Ok(())
    }

    /// Sees to it that a rank calls the same.
    pub(crate) fn same(
        &self,
        rank: usize,
        number: u64,
        theirs: &Call,
    ) -> Result<(), CollectiveError> {
        if number == self.number && *theirs == self.call {
            return Ok(());
        }
        Err(self.differs(
            rank,
            Called::of(rank, theirs),
            Called::of(self.rank, &self.call),
        ))
    }

    /// Tells everyone that a rank does something else than this one.
    pub(crate) fn differs(&self, rank: usize, theirs: Called, ours: Called) -> CollectiveError {
        let (one, other) = if rank < self.rank {
            (theirs, ours)
        } else {
            (ours, theirs)
        };
        let found = Mismatch {
            number: self.number,
            one,
            other,
        };
        self.council.accuse(|verdict| {
            let known = verdict.mismatch.take();
            let least = known.map_or_else(|| found.clone(), |known| known.min(found.clone()));
            verdict.mismatch = Some(least);
        });
        self.failed()
    }

    /// Whether a rank whose connection broke turns out to have taken its leave.
    pub(crate) fn leaves(&self, rank: usize) -> bool {
        let until = Instant::now() + FAREWELL.min(self.left());
        while !self.council.has_departed(rank) {
            if self.council.has_failed() || Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LONGEST_NAP);
        }
        true
    }

    /// A lane to a rank broke.
    pub(crate) fn broke(&self, rank: usize, why: &str) -> CollectiveError {
        self.council
            .accuse(|verdict| verdict.lose(rank, self.rank, why));
        self.failed()
    }

    /// What all agree on.
    fn failed(&self) -> CollectiveError {
        self.council.settle(grace(self.allowed))
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        self.wake_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_ranks_that_share_cores_who_waits_gives_its_core_away_at_once() {
        let sleep = |_: Duration| {};
        for rest in [Rest::Memory, Rest::Spin, Rest::Sockets(&sleep)] {
            assert_eq!(spins(rest, false), 0);
        }
        assert_eq!(spins(Rest::Memory, true), MEMORY_SPINS);
        assert_eq!(spins(Rest::Spin, true), SPINS);
        assert_eq!(spins(Rest::Sockets(&sleep), true), SPINS);
        assert_eq!(
            spins(Rest::UntilArrival, true),
            0,
            "the network needs the core"
        );
    }
}
