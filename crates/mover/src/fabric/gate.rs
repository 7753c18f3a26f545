//! Leave to touch memory, which can be taken back: once [`Gate::close`] has returned, nobody is
//! inside and nobody gets in any more.
//!
//! Whoever moves bytes enters for one bounded step at a time (one system call that does not block,
//! one chunk of a copy), so closing waits for one step at most.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A door that many may pass until it is closed for good.
#[derive(Debug, Default)]
pub struct Gate {
    passing: RwLock<()>,
    /// Written by who has the lock to itself; whoever only asks needs no lock.
    closed: AtomicBool,
}

/// Keeps a gate from closing; hold it for one bounded step.
pub struct Inside<'a>(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>);

impl Gate {
    /// Leave to go on, until the guard is dropped; `None` once the gate is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let passing = self.passing.read().unwrap_or_else(PoisonError::into_inner);
        (!self.is_closed()).then_some(Inside(passing))
    }

    /// Closes the gate after those inside have left.
    pub fn close(&self) {
        let _alone = self.passing.write().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Release);
    }

    /// Whether it is closed; `false` while somebody waits for those inside to leave.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

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
        std::thread::sleep(std::time::Duration::from_millis(20));
        left.store(true, Ordering::SeqCst);
        drop(inside);
        closer.join().expect("closed in the end");
        assert!(gate.enter().is_none());
    }
}
