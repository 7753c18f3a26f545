//! Waking tasks. What a waker does is its executor's affair: one that runs its task at once may post, cancel, or
//! drop the fabric itself, in the thread that moves bytes and inside whatever that has entered.
//!
//! So a waker is called once the thread is [held up](hold) by nothing any more, and whoever ends a fabric asks
//! whether it [is called](is_waking) by one: then the thread cannot be waited for.

use std::cell::{Cell, RefCell};
use std::task::Waker;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static WAKING: Cell<bool> = const { Cell::new(false) };
    static LATER: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// While there is one, this thread's wakers are put off.
#[must_use = "dropping it lets wakers be called"]
pub(crate) struct Hold(());

/// Puts wakers off: this thread is where one must not do as it likes.
pub(crate) fn hold() -> Hold {
    HELD.set(HELD.get() + 1);
    Hold(())
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        if HELD.get() == 0 {
            let put_off = LATER.take();
            put_off.into_iter().for_each(call);
        }
    }
}

/// Wakes a task, now or as soon as nothing holds this thread up.
pub(crate) fn wake(waker: Waker) {
    match HELD.get() {
        0 => call(waker),
        _ => LATER.with_borrow_mut(|put_off| put_off.push(waker)),
    }
}

fn call(waker: Waker) {
    let before = WAKING.replace(true);
    waker.wake();
    WAKING.set(before);
}

/// Whether this is called by a waker.
pub(crate) fn is_waking() -> bool {
    WAKING.get()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counted {
        calls: AtomicUsize,
        waking: AtomicUsize,
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.waking
                .fetch_add(usize::from(is_waking()), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waker_is_called_at_once_or_when_the_last_hold_is_let_go_of() {
        let counted = Arc::new(Counted::default());
        let calls = || {
            let [calls, waking] = [&counted.calls, &counted.waking];
            assert_eq!(
                calls.load(Ordering::Relaxed),
                waking.load(Ordering::Relaxed)
            );
            calls.load(Ordering::Relaxed)
        };
        let again = || wake(Waker::from(Arc::clone(&counted)));
        again();
        assert_eq!(calls(), 1);
        let outer = hold();
        again();
        drop(hold());
        assert_eq!(calls(), 1);
        drop(outer);
        assert_eq!(calls(), 2);
        again();
        assert!(calls() == 3 && !is_waking());
    }
}
