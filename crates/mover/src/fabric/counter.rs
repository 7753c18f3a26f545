//! Values that arrive with the bytes of writes, counted. A receiver that knows how many writes will
//! come waits for the count and needs no order among them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::conn::send_kept_back;
use super::error::FabricError;
use super::provider::Imm;
use super::wait::{Bystander, Kick, Wait};
use super::waking;

/// The most different values that are counted at one time; a peer cannot make this process
/// remember more.
pub const MAX_COUNTERS: usize = 65_536;

#[derive(Default)]
struct State {
    counts: HashMap<Imm, u64>,
    waiting: Vec<(Imm, u64, Waker)>,
    /// What wakes threads that wait and watch connections meanwhile.
    kicks: Vec<Arc<Kick>>,
    /// Threads that wait and do not: to wake nobody costs a system call as well.
    sleeping: usize,
    closed: bool,
}

/// All counters of a fabric.
#[derive(Default)]
pub(crate) struct Counters {
    state: Mutex<State>,
    changed: Condvar,
    /// All arrivals of all values.
    arrivals: AtomicU64,
}

impl Counters {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one arrival; `false` when there are too many different values.
    pub(crate) fn count(&self, imm: Imm) -> bool {
        let mut state = self.state();
        if !state.counts.contains_key(&imm) && state.counts.len() >= MAX_COUNTERS {
            return false;
        }
        let count = state.counts.entry(imm).or_default();
        *count += 1;
        let count = *count;
        self.arrivals.fetch_add(1, Ordering::Release);
        let due = |(at, wanted, _): &mut (Imm, u64, Waker)| *at == imm && *wanted <= count;
        let wakers: Vec<Waker> = state.waiting.extract_if(.., due).map(|w| w.2).collect();
        state.kicks.iter().for_each(|kick| kick.wake());
        let sleeping = state.sleeping > 0;
        drop(state);
        if sleeping {
            self.changed.notify_all();
        }
        wakers.into_iter().for_each(waking::wake);
        true
    }

    /// Arrivals so far, of all values.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// Waits until there are more than `seen`, for `time` at most.
    pub(crate) fn await_arrival(&self, seen: u64, time: Duration) {
        send_kept_back();
        let state = self.state();
        // Arrivals are counted under the lock: none comes between this look and the wait.
        if self.arrivals() == seen && !state.closed {
            drop(self.sleep(state, time));
        }
    }

    /// Sleeps until something arrives, for `time` at most.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        state.sleeping += 1;
        let waited = self.changed.wait_timeout(state, time);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.sleeping -= 1;
        state
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let wakers: Vec<Waker> = state.waiting.drain(..).map(|w| w.2).collect();
        state.kicks.iter().for_each(|kick| kick.wake());
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(waking::wake);
    }
}

/// How often one value has arrived.
#[derive(Clone)]
pub struct ImmCounter {
    counters: Arc<Counters>,
    imm: Imm,
    bystander: Weak<dyn Bystander>,
}

impl ImmCounter {
    pub(crate) const fn new(
        counters: Arc<Counters>,
        imm: Imm,
        bystander: Weak<dyn Bystander>,
    ) -> Self {
        Self {
            counters,
            imm,
            bystander,
        }
    }

    /// How often the value has arrived since it was last taken.
    pub fn get(&self) -> u64 {
        send_kept_back();
        let state = self.counters.state();
        state.counts.get(&self.imm).copied().unwrap_or(0)
    }

    /// Takes `count` arrivals off, to use the value again; `false` when there are not as many.
    pub fn take(&self, count: u64) -> bool {
        let mut state = self.counters.state();
        let Some(have) = state.counts.get_mut(&self.imm) else {
            return count == 0;
        };
        if *have < count {
            return false;
        }
        *have -= count;
        if *have == 0 {
            state.counts.remove(&self.imm);
        }
        true
    }

    /// Waits until the value has arrived `count` times.
    ///
    /// # Errors
    /// [`FabricError::Deadline`] or [`FabricError::Closed`].
    pub fn wait(&self, count: u64, time: Duration) -> Result<(), FabricError> {
        let until = Instant::now() + time;
        send_kept_back();
        self.watch(count, until);
        let mut state = self.counters.state();
        loop {
            if state.counts.get(&self.imm).copied().unwrap_or(0) >= count {
                return Ok(());
            }
            if state.closed {
                return Err(FabricError::Closed);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FabricError::Deadline {
                    what: "the arrival of the values",
                    after: time,
                });
            }
            state = self.counters.sleep(state, left);
        }
    }

    /// Moves what comes while there is nothing else to do, as far as this thread can.
    fn watch(&self, count: u64, until: Instant) {
        let over = || {
            let state = self.counters.state();
            let have = state.counts.get(&self.imm).copied().unwrap_or(0);
            have >= count || state.closed
        };
        let (Some(bystander), Some(kick)) = (self.bystander.upgrade(), Kick::own()) else {
            return;
        };
        self.counters.state().kicks.push(Arc::clone(&kick));
        let wait = Wait {
            over: &over,
            until: Some(until),
            inbound: true,
            kick: Arc::clone(&kick),
        };
        if !over() {
            bystander.attend(&wait);
        }
        let kicks = &mut self.counters.state().kicks;
        if let Some(own) = kicks.iter().position(|known| Arc::ptr_eq(known, &kick)) {
            kicks.swap_remove(own);
        }
    }

    /// A future that is ready when the value has arrived `count` times. It has no deadline of its
    /// own: combine it with a timer of the runtime in use.
    pub const fn reaches(&self, count: u64) -> Reaches<'_> {
        Reaches {
            counter: self,
            count,
        }
    }
}

/// See [`ImmCounter::reaches`].
pub struct Reaches<'a> {
    counter: &'a ImmCounter,
    count: u64,
}

impl Future for Reaches<'_> {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        send_kept_back();
        let mut state = self.counter.counters.state();
        let have = state.counts.get(&self.counter.imm).copied().unwrap_or(0);
        if have >= self.count {
            return Poll::Ready(Ok(()));
        }
        if state.closed {
            return Poll::Ready(Err(FabricError::Closed));
        }
        let entry = (self.counter.imm, self.count, context.waker().clone());
        state.waiting.push(entry);
        Poll::Pending
    }
}

/// Tells a transfer's value from its repetition, after a rail failed and it was sent again.
#[derive(Default)]
pub(crate) struct Seen {
    /// All numbers below were seen, or are too old to be told.
    floor: u64,
    above: std::collections::BTreeSet<u64>,
}

impl Seen {
    /// The most numbers that are remembered, as many as transfers can be under way, and some.
    const MOST: usize = 4 * super::scheduler::MAX_FLIGHTS;

    /// Whether this is the first time.
    pub(crate) fn first(&mut self, flight: u64) -> bool {
        if flight < self.floor || !self.above.insert(flight) {
            return false;
        }
        while self.above.len() > Self::MOST {
            if let Some(oldest) = self.above.pop_first() {
                self.floor = oldest + 1;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Bystander for Nobody {
        fn attend(&self, _: &Wait<'_>) {}
    }

    #[test]
    fn a_value_is_waited_for_by_count_and_can_be_used_again() {
        let counters = Arc::new(Counters::default());
        let nobody: Weak<dyn Bystander> = Weak::<Nobody>::new();
        let counter = ImmCounter::new(Arc::clone(&counters), Imm(5), nobody);
        let late = counter
            .wait(1, Duration::from_millis(1))
            .expect_err("none came");
        assert_eq!(late.code(), "deadline-exceeded");
        assert!(counters.count(Imm(5)) && counters.count(Imm(6)) && counters.count(Imm(5)));
        counter.wait(2, Duration::ZERO).expect("two came");
        assert!(!counter.take(3) && counter.take(2));
        assert_eq!(counter.get(), 0);
    }

    #[test]
    fn a_peer_cannot_make_this_process_remember_values_without_end() {
        let counters = Counters::default();
        assert!((0..MAX_COUNTERS as u32).all(|value| counters.count(Imm(value))));
        assert!(!counters.count(Imm(u32::MAX)));
        assert!(counters.count(Imm(7)), "one that is known already");
    }

    #[test]
    fn a_repeated_transfer_is_told_from_a_new_one_and_memory_is_bounded() {
        let mut seen = Seen::default();
        assert!(seen.first(10) && !seen.first(10) && seen.first(9));
        let far = 3 * Seen::MOST as u64;
        assert!((100..far).all(|flight| seen.first(flight)));
        assert!(!seen.first(50), "too old to be told from a repetition");
        assert!(seen.above.len() <= Seen::MOST);
    }
}
