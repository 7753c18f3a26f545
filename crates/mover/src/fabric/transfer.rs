//! A running transfer: a future, or a blocking wait.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crowfly_route::receipt::{CpuSeconds, Path, Receipt, Verification, Visibility};
use crowfly_route::units::Bytes;

use super::account::Account;
use super::conn::{send_kept_back, waits};
use super::error::FabricError;
use super::identity::Incarnation;
use super::provider::FlightId;
use super::wait::{Kick, Wait};
use super::waking;

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

/// What a finished transfer did, written down.
#[derive(Clone, Debug)]
pub struct Written {
    /// What it did. CPU seconds are those of this process.
    pub receipt: Receipt,
    /// The same bytes by NIC.
    pub nics: Vec<NicShare>,
    /// Rails of the same path that were not used, and why not.
    pub left_out: Vec<LeftOut>,
}

/// What a finished transfer did. It reads as what is [`Written`], which it becomes when somebody
/// first looks: to write a receipt takes as long as to move a page.
#[derive(Clone)]
pub struct Delivery {
    /// Which peer it was with.
    pub peer: Incarnation,
    account: Account,
    written: OnceLock<Box<Written>>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.account.fmt(f)
    }
}

impl Delivery {
    pub(crate) fn new(account: Account) -> Self {
        Self {
            peer: account.plan.peer,
            account,
            written: OnceLock::new(),
        }
    }

    /// Bytes that were moved.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.account.requested)
    }

    /// The wall time from the start to the end.
    pub const fn wall(&self) -> Duration {
        self.account.wall
    }

    /// CPU time of this process's threads that moved the bytes.
    pub const fn cpu(&self) -> CpuSeconds {
        self.account.cpu
    }

    /// The bytes by engine path.
    pub fn paths(&self) -> impl Iterator<Item = (Path, Bytes)> {
        self.account.paths()
    }

    /// The receipt alone.
    pub fn into_receipt(self) -> Receipt {
        let Self {
            account, written, ..
        } = self;
        match written.into_inner() {
            Some(written) => written.receipt,
            None => account.written().receipt,
        }
    }

    /// What its NICs wrote was made visible to the memory's device.
    pub(crate) fn is_seen(&mut self, visibility: Visibility) {
        self.account.note(|told| told.visibility = Some(visibility));
        self.written = OnceLock::new();
    }

    /// Both ends were compared.
    pub(crate) fn verified(&mut self, verification: Verification) {
        self.account.note(|told| told.verification = verification);
        self.written = OnceLock::new();
    }
}

impl Deref for Delivery {
    type Target = Written;

    fn deref(&self) -> &Written {
        self.written
            .get_or_init(|| Box::new(self.account.written()))
    }
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
    /// Threads that wait: to wake nobody costs a system call as well.
    waiting: usize,
    /// What wakes a thread that waits and watches connections meanwhile.
    kick: Option<Arc<Kick>>,
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
                waiting: 0,
                kick: None,
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

    /// Has a thread kicked when the end comes; `false` when it has come already.
    fn kicks(&self, kick: &Arc<Kick>) -> bool {
        let mut state = self.state();
        let coming = state.outcome.is_none() && !state.taken;
        state.kick = coming.then(|| Arc::clone(kick));
        coming
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
        let (waker, waiting, kick) = {
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
            let kick = state.kick.take();
            (state.waker.take(), state.waiting > 0, kick)
        };
        if waiting {
            self.ended.notify_all();
        }
        if let Some(kick) = kick {
            kick.wake();
        }
        if let Some(waker) = waker {
            waking::wake(waker);
        }
    }
}

/// Who can end a transfer early.
pub(crate) trait Canceller: Send + Sync {
    fn cancel(&self, flight: FlightId);

    /// Lets a thread that waits for its end move its bytes, as far as they can be moved by one thread;
    /// may return before the wait is over.
    fn attend(&self, _flight: FlightId, _wait: &Wait<'_>) {}
}

/// A running transfer. It is a future that needs no runtime, and it can be waited for.
///
/// Dropping it cancels; the memory belongs to the engine until the last byte has come to rest. To
/// let it run on alone, [`Transfer::detach`] it.
#[must_use = "dropping a transfer cancels it"]
pub struct Transfer<T = Delivery>(Course<T>);

enum Course<T> {
    /// It ended before the call that started it returned; `None` when the end was taken.
    Ended(Option<Outcome<T>>),
    Running(Running<T>),
}

struct Running<T> {
    slot: Arc<Slot<T>>,
    canceller: Weak<dyn Canceller>,
    flight: FlightId,
    detached: bool,
}

/// Nothing of it is ever pinned.
impl<T> Unpin for Transfer<T> {}

impl<T> fmt::Debug for Transfer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Course::Ended(_) => f.write_str("Transfer(ended)"),
            Course::Running(running) => write!(f, "Transfer({})", running.flight.0),
        }
    }
}

impl<T> Transfer<T> {
    pub(crate) const fn new(
        slot: Arc<Slot<T>>,
        canceller: Weak<dyn Canceller>,
        flight: FlightId,
    ) -> Self {
        Self(Course::Running(Running {
            slot,
            canceller,
            flight,
            detached: false,
        }))
    }

    /// One that has ended already.
    pub(crate) const fn ended(outcome: Outcome<T>) -> Self {
        Self(Course::Ended(Some(outcome)))
    }

    /// Waits for the end. It comes within the transfer's own deadline.
    ///
    /// # Errors
    /// Why the transfer failed.
    pub fn wait(mut self) -> Outcome<T> {
        match &mut self.0 {
            Course::Ended(outcome) => outcome.take().unwrap_or(Err(FabricError::Cancelled)),
            Course::Running(running) => running.wait(None).unwrap_or(Err(FabricError::Cancelled)),
        }
    }

    /// Waits for the end for as long as given; gives the transfer back when it still runs then.
    ///
    /// # Errors
    /// Why the transfer failed, inside of `Ok`; the transfer itself when it still runs.
    pub fn wait_for(mut self, time: Duration) -> Result<Outcome<T>, Self> {
        let outcome = match &mut self.0 {
            Course::Ended(outcome) => Some(outcome.take().unwrap_or(Err(FabricError::Cancelled))),
            Course::Running(running) => running.wait(Some(Instant::now() + time)),
        };
        outcome.ok_or(self)
    }

    /// Whether it has ended, so that waiting returns at once.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Course::Ended(_) => true,
            Course::Running(running) => {
                let ended = running.slot.is_put();
                if !ended {
                    send_kept_back();
                }
                ended
            }
        }
    }

    /// Ends it early; waiting then answers [`FabricError::Cancelled`] unless it was done before.
    pub fn cancel(&self) {
        if let Course::Running(running) = &self.0 {
            running.cancel();
        }
    }

    /// Lets it run on with nobody waiting. Its account still goes into the running totals.
    pub fn detach(mut self) {
        if let Course::Running(running) = &mut self.0 {
            running.detached = true;
        }
    }
}

impl<T> Slot<T> {
    /// Waits for the end, at most until then; `None` when it did not come.
    fn wait(&self, until: Option<Instant>) -> Option<Outcome<T>> {
        let mut state = self.state();
        loop {
            if let Some(outcome) = state.outcome.take() {
                state.taken = true;
                return Some(outcome);
            }
            if state.taken {
                return Some(Err(FabricError::Cancelled));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            state.waiting += 1;
            state = match left {
                None => (self.ended.wait(state)).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.ended.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting -= 1;
        }
    }
}

impl<T> Running<T> {
    /// Waits for the end, at most until then, and helps to bring it about.
    fn wait(&self, until: Option<Instant>) -> Option<Outcome<T>> {
        waits();
        if !self.slot.is_put() {
            send_kept_back();
        }
        if let Some(canceller) = self.canceller.upgrade()
            && let Some(kick) = Kick::own()
            && self.slot.kicks(&kick)
        {
            let wait = Wait {
                over: &|| self.slot.is_put(),
                until,
                inbound: false,
                kick,
            };
            canceller.attend(self.flight, &wait);
        }
        self.slot.wait(until)
    }

    fn cancel(&self) {
        if let Some(canceller) = self.canceller.upgrade() {
            canceller.cancel(self.flight);
        }
    }
}

impl<T> Future for Transfer<T> {
    type Output = Outcome<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        let running = match &mut self.0 {
            Course::Ended(outcome) => {
                return Poll::Ready(outcome.take().unwrap_or(Err(FabricError::Cancelled)));
            }
            Course::Running(running) => running,
        };
        let mut state = running.slot.state();
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
        drop(state);
        send_kept_back();
        Poll::Pending
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if !self.detached && !self.slot.is_put() {
            self.cancel();
        }
    }
}
