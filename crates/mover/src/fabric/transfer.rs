//! A running transfer: a future, or a blocking wait.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crowfly_route::receipt::{Path, Receipt};
use crowfly_route::units::Bytes;

use super::error::FabricError;
use super::identity::Incarnation;
use super::provider::FlightId;

/// The bytes that went by one NIC.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NicShare {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// Bytes of the transfer that it moved.
    pub bytes: Bytes,
    /// What the port's own counters say to that.
    pub checked: Checked,
}

/// What a port's own counters say of the bytes that are said to have gone by it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Checked {
    /// They counted at least as many; headers and others' bytes come on top.
    Agrees {
        /// Bytes that the port counted in that time and direction.
        counted: Bytes,
    },
    /// They counted fewer: the bytes went another way, or the driver counts late.
    Disagrees {
        /// Bytes that the port counted in that time and direction.
        counted: Bytes,
    },
    /// There is nothing to compare with.
    Unavailable {
        /// Why not.
        why: String,
    },
}

/// A rail that could have carried a transfer and was not used.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// Why it was not used.
    pub why: String,
}

/// What a finished transfer did.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Which peer it was with.
    pub peer: Incarnation,
    /// What it did. CPU seconds are those of this process.
    pub receipt: Receipt,
    /// The same bytes by NIC.
    pub nics: Vec<NicShare>,
    /// Rails of the same path that were not used, and why not.
    pub left_out: Vec<LeftOut>,
}

/// The end of a transfer.
pub type Outcome<T = Delivery> = Result<T, FabricError>;

/// What is done with an outcome instead of handing it to whoever waits.
type Then<T> = Box<dyn FnOnce(Outcome<T>) + Send>;

struct State<T> {
    outcome: Option<Outcome<T>>,
    then: Option<Then<T>>,
    taken: bool,
    waker: Option<Waker>,
}

/// Where the end of a transfer is put down for whoever waits for it.
pub(crate) struct Slot<T = Delivery> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                outcome: None,
                then: None,
                taken: false,
                waker: None,
            }),
            ended: Condvar::new(),
        }
    }
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot that hands what is put into it on.
    pub(crate) fn then(next: impl FnOnce(Outcome<T>) + Send + 'static) -> Self {
        let slot = Self::default();
        slot.state().then = Some(Box::new(next));
        slot
    }

    pub(crate) fn is_put(&self) -> bool {
        let state = self.state();
        state.outcome.is_some() || state.taken
    }

    /// The end, if it has come and nobody took it.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<Outcome<T>> {
        let mut state = self.state();
        state.taken |= state.outcome.is_some();
        state.outcome.take()
    }

    pub(crate) fn put(&self, outcome: Outcome<T>) {
        let waker = {
            let mut state = self.state();
            if state.outcome.is_some() || state.taken {
                return;
            }
            if let Some(then) = state.then.take() {
                state.taken = true;
                drop(state);
                return then(outcome);
            }
            state.outcome = Some(outcome);
            state.waker.take()
        };
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Who can end a transfer early.
pub(crate) trait Canceller: Send + Sync {
    fn cancel(&self, flight: FlightId);
}

/// A running transfer. It is a future that needs no runtime, and it can be waited for.
///
/// Dropping it cancels; the memory belongs to the engine until the last byte has come to rest. To
/// let it run on alone, [`Transfer::detach`] it.
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer<T = Delivery> {
    slot: Arc<Slot<T>>,
    canceller: Weak<dyn Canceller>,
    flight: FlightId,
    detached: bool,
}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer({})", self.flight.0)
    }
}

impl<T> Transfer<T> {
    pub(crate) const fn new(
        slot: Arc<Slot<T>>,
        canceller: Weak<dyn Canceller>,
        flight: FlightId,
    ) -> Self {
        Self {
            slot,
            canceller,
            flight,
            detached: false,
        }
    }

    /// Waits for the end. It comes within the transfer's own deadline.
    ///
    /// # Errors
    /// Why the transfer failed.
    pub fn wait(self) -> Outcome<T> {
        let mut state = self.slot.state();
        loop {
            if let Some(outcome) = state.outcome.take() {
                state.taken = true;
                return outcome;
            }
            if state.taken {
                return Err(FabricError::Cancelled);
            }
            state = self
                .slot
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end for as long as given; gives the transfer back when it still runs then.
    ///
    /// # Errors
    /// Why the transfer failed, inside of `Ok`; the transfer itself when it still runs.
    pub fn wait_for(self, time: Duration) -> Result<Outcome<T>, Self> {
        let until = Instant::now() + time;
        let mut state = self.slot.state();
        loop {
            if let Some(outcome) = state.outcome.take() {
                state.taken = true;
                return Ok(outcome);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.slot.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        Err(self)
    }

    /// Whether it has ended, so that waiting returns at once.
    pub fn is_finished(&self) -> bool {
        self.slot.is_put()
    }

    /// Ends it early; waiting then answers [`FabricError::Cancelled`] unless it was done before.
    pub fn cancel(&self) {
        if let Some(canceller) = self.canceller.upgrade() {
            canceller.cancel(self.flight);
        }
    }

    /// Lets it run on with nobody waiting. Its account still goes into the running totals.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl<T> Future for Transfer<T> {
    type Output = Outcome<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        let mut state = self.slot.state();
        if let Some(outcome) = state.outcome.take() {
            state.taken = true;
            return Poll::Ready(outcome);
        }
        if state.taken {
            return Poll::Ready(Err(FabricError::Cancelled));
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Transfer<T> {
    fn drop(&mut self) {
        if !self.detached && !self.is_finished() {
            self.cancel();
        }
    }
}
