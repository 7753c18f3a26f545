//! Leave to touch memory, which can be taken back: once [`Gate::close`] has returned, nobody is
//! inside and nobody gets in any more.
//!
//! Whoever moves bytes enters for one bounded step at a time (one system call that does not block,
//! one chunk of a copy), so closing waits for one step at most.
//!
//! To enter and leave took 20 ns where this was measured, and short transfers pass three gates. They go by a
//! [`Turnstile`] instead, which is passed once and then lets through any gate that was made for it
//! ([`Gate::with_turnstiles`]); whoever closes one of those waits at each turnstile.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak};

/// A door that many may pass until it is closed for good.
#[derive(Debug, Default)]
pub struct Gate {
    passing: RwLock<()>,
    /// Written by who has the lock to itself; whoever only asks needs no lock.
    closed: AtomicBool,
    /// Whether it is passed by turnstiles as well.
    turnstiles: bool,
}

/// Keeps a gate from closing; hold it for one bounded step.
pub struct Inside<'a>(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>);

impl Gate {
    /// One that can be passed by turnstiles as well.
    pub(crate) fn with_turnstiles() -> Self {
        Self {
            turnstiles: true,
            ..Self::default()
        }
    }

    /// Leave to go on, until the guard is dropped; `None` once the gate is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let passing = self.passing.read().unwrap_or_else(PoisonError::into_inner);
        (!self.is_closed()).then_some(Inside(passing))
    }

    /// Closes the gate after those inside have left.
    pub fn close(&self) {
        {
            let _alone = self.passing.write().unwrap_or_else(PoisonError::into_inner);
            self.closed.store(true, Ordering::Release);
        }
        if self.turnstiles {
            // Those who pass a turnstile after this find the gate closed.
            for turnstile in all() {
                turnstile.clear();
            }
        }
    }

    /// Whether it is closed; `false` while somebody waits for those inside to leave.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// What somebody keeps at a turnstile from one passing to the next.
pub(crate) trait Kept: Send + 'static {
    /// What was let go of.
    type Gone;

    /// Lets go of everything whose gate is closed.
    fn let_go(&mut self) -> Self::Gone;
}

/// Passed by one thread at a time, which then gets through all gates that are open. It keeps something for
/// those who pass.
pub(crate) struct Turnstile<T>(Arc<Mutex<T>>);

/// Keeps gates that are passed by turnstiles from closing; hold it for one bounded step.
pub(crate) struct Passing<'a, T>(MutexGuard<'a, T>);

/// Shows that its holder passes a turnstile.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a>(PhantomData<&'a ()>);

impl Pass<'_> {
    /// Whether it gets through a gate, which then does not close before the turnstile is left.
    pub fn through(self, gate: &Gate) -> bool {
        gate.turnstiles && !gate.is_closed()
    }
}

impl<T: Kept> Turnstile<T> {
    pub(crate) fn new(kept: T) -> Self {
        let turnstile = Arc::new(Mutex::new(kept));
        let seen: Arc<dyn Cleared> = turnstile.clone();
        let mut turnstiles = TURNSTILES.lock().unwrap_or_else(PoisonError::into_inner);
        turnstiles.retain(|known| known.strong_count() > 0);
        turnstiles.push(Arc::downgrade(&seen));
        Self(turnstile)
    }

    /// Leave to pass, until the guard is dropped; `None` while another thread does.
    pub(crate) fn enter(&self) -> Option<Passing<'_, T>> {
        match self.0.try_lock() {
            Ok(kept) => Some(Passing(kept)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Passing(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Passing<'_, T> {
    pub(crate) const fn pass(&self) -> Pass<'_> {
        Pass(PhantomData)
    }

    pub(crate) fn kept(&self) -> &T {
        &self.0
    }

    pub(crate) fn kept_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A turnstile as those who close gates see it.
trait Cleared: Send + Sync {
    /// Waits until nobody passes, and has what is kept there let go of.
    fn clear(&self);
}

impl<T: Kept> Cleared for Mutex<T> {
    fn clear(&self) {
        let mut kept = self.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = kept.let_go();
        drop(kept);
        // Its end may take its time.
        drop(gone);
    }
}

/// All turnstiles of the process.
static TURNSTILES: Mutex<Vec<Weak<dyn Cleared>>> = Mutex::new(Vec::new());

fn all() -> Vec<Arc<dyn Cleared>> {
    let turnstiles = TURNSTILES.lock().unwrap_or_else(PoisonError::into_inner);
    turnstiles.iter().filter_map(Weak::upgrade).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn closing_waits_for_those_inside_and_lets_nobody_in_after() {
        let gate = Arc::new(Gate::default());
        let left = Arc::new(AtomicBool::new(false));
        let inside = gate.enter().expect("open");
        let closer = std::thread::spawn({
            let (gate, left) = (Arc::clone(&gate), Arc::clone(&left));
            move || {
                gate.close();
                assert!(
                    left.load(Ordering::SeqCst),
                    "closed while someone was inside"
                );
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        left.store(true, Ordering::SeqCst);
        drop(inside);
        closer.join().expect("closed in the end");
        assert!(gate.enter().is_none());
    }

    /// Gates, of which those that are closed are let go of.
    struct Gates(Vec<Arc<Gate>>);

    impl Kept for Gates {
        type Gone = Vec<Arc<Gate>>;

        fn let_go(&mut self) -> Vec<Arc<Gate>> {
            self.0.extract_if(.., |gate| gate.is_closed()).collect()
        }
    }

    #[test]
    fn closing_waits_for_who_passes_a_turnstile_and_has_let_go_of_what_is_kept_there_for_it() {
        let [gate, other] = [(); 2].map(|()| Arc::new(Gate::with_turnstiles()));
        let kept = vec![Arc::clone(&gate), Arc::clone(&other)];
        let turnstile = Turnstile::new(Gates(kept));
        let left = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let passing = turnstile.enter().expect("nobody passes");
            assert!(passing.pass().through(&gate));
            let closer = scope.spawn(|| {
                gate.close();
                assert!(left.load(Ordering::SeqCst), "closed while someone passed");
            });
            std::thread::sleep(Duration::from_millis(20));
            left.store(true, Ordering::SeqCst);
            drop(passing);
            closer.join().expect("closed in the end");
        });
        assert_eq!(Arc::strong_count(&gate), 1, "let go of");
        let passing = turnstile.enter().expect("nobody passes");
        assert!(!passing.pass().through(&gate), "closed");
        assert!(passing.pass().through(&other));
        assert!(turnstile.enter().is_none(), "one at a time");
    }

    #[test]
    fn a_gate_whose_closing_waits_at_no_turnstile_is_not_passed_by_one() {
        let turnstile = Turnstile::new(Gates(Vec::new()));
        let passing = turnstile.enter().expect("nobody passes");
        let gate = Gate::default();
        assert!(!passing.pass().through(&gate));
        // While somebody passes.
        gate.close();
    }
}
