//! How a rank that sleeps is woken by one of its host that has something for it.
//!
//! Each rank has a bell in its arena. Who goes to sleep writes on it whom it waits for, looks once more
//! for what it waits for, and has the kernel put it to sleep for as long as that is written there. Who
//! has put something where others look for it rings the bells of those that wait for it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

use super::arena::Layout;
use crate::fabric::Backing;

/// On the bell of a rank that is awake.
const AWAKE: u32 = 0;
/// On that of one that waits for whoever comes first.
const ANYONE: u32 = u32::MAX;

/// What stands on the bell of one that waits for a rank, or for anyone.
fn waiting_for(rank: Option<usize>) -> u32 {
    let number = rank.and_then(|rank| u32::try_from(rank).ok()?.checked_add(1));
    number.unwrap_or(ANYONE)
}

/// This rank's own bell.
#[derive(Clone, Copy)]
pub(crate) struct Bell<'a> {
    arena: &'a Backing,
    at: usize,
}

impl<'a> Bell<'a> {
    pub(crate) const fn new(arena: &'a Backing, layout: &Layout) -> Self {
        Self {
            arena,
            at: layout.bell(),
        }
    }

    /// Writes down whom this rank is going to wait for. What it waits for may have come before that
    /// could be seen, so it must look once more.
    pub(crate) fn hang(&self, on: Option<usize>) {
        if let Some(bell) = self.arena.half_word(self.at) {
            bell.store(waiting_for(on), Ordering::SeqCst);
            // Pairs with the one of who rings: either that one sees this, or this rank what it has put.
            fence(Ordering::SeqCst);
        }
    }

    /// Sleeps until the bell is rung, for `time` at most.
    pub(crate) fn sleep(&self, on: Option<usize>, time: Duration) {
        let (Some(bell), Ok(time)) = (self.arena.half_word(self.at), Timespec::try_from(time))
        else {
            return std::thread::sleep(time);
        };
        // However it ends, what is waited for is looked for again.
        let _ = wait(bell, Flags::empty(), waiting_for(on), Some(&time));
    }

    /// This rank no longer waits.
    pub(crate) fn take_down(&self) {
        if let Some(bell) = self.arena.half_word(self.at) {
            bell.store(AWAKE, Ordering::Relaxed);
        }
    }
}

/// Wakes those of some ranks that wait for `me`, which has put up something for them.
pub(crate) fn ring<'a>(
    arenas: impl IntoIterator<Item = &'a Arc<Backing>>,
    layout: &Layout,
    me: usize,
) {
    fence(Ordering::SeqCst);
    for arena in arenas {
        let Some(bell) = arena.half_word(layout.bell()) else {
            continue;
        };
        let on = bell.load(Ordering::Relaxed);
        if on != ANYONE && on != waiting_for(Some(me)) {
            continue;
        }
        // Of several that ring one is enough.
        let (awake, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
        if bell.compare_exchange(on, AWAKE, awake, relaxed).is_ok() {
            let _ = wake(bell, Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::fabric::Buffer;

    /// Far longer than it takes to be woken, however busy the machine is.
    const LONG: Duration = Duration::from_secs(60);

    fn arena(layout: &Layout) -> Arc<Backing> {
        let memory = Buffer::zeroed(layout.len(), None).expect("memory");
        memory.into_backing()
    }

    fn stands(arena: &Backing, layout: &Layout) -> u32 {
        let bell = arena.half_word(layout.bell()).expect("a bell");
        bell.load(Ordering::SeqCst)
    }

    #[test]
    fn who_sleeps_is_woken_by_the_rank_that_it_waits_for() {
        let layout = Layout::new(3);
        let arena = arena(&layout);
        for on in [Some(0), None] {
            let began = Instant::now();
            let sleeper = thread::spawn({
                let arena = Arc::clone(&arena);
                move || {
                    let bell = Bell::new(&arena, &layout);
                    bell.hang(on);
                    bell.sleep(on, LONG);
                }
            });
            while !sleeper.is_finished() && began.elapsed() < LONG {
                // It may be rung before it is hung, or after its sleeper was woken.
                ring([&arena], &layout, 0);
                thread::sleep(Duration::from_millis(1));
            }
            sleeper.join().expect("no panic");
            assert!(began.elapsed() < LONG, "woken");
            assert_eq!(stands(&arena, &layout), AWAKE);
        }
    }

    #[test]
    fn a_bell_that_hangs_for_another_rank_is_left_alone() {
        let layout = Layout::new(3);
        let arena = arena(&layout);
        let bell = Bell::new(&arena, &layout);
        bell.hang(Some(2));
        ring([&arena], &layout, 1);
        assert_eq!(stands(&arena, &layout), waiting_for(Some(2)));
        bell.sleep(Some(2), Duration::from_millis(1));
        bell.take_down();
        assert_eq!(stands(&arena, &layout), AWAKE);
    }

    #[test]
    fn a_bell_that_was_rung_before_its_rank_slept_lets_it_not_sleep() {
        let layout = Layout::new(2);
        let arena = arena(&layout);
        let bell = Bell::new(&arena, &layout);
        bell.hang(Some(1));
        ring([&arena], &layout, 1);
        let began = Instant::now();
        bell.sleep(Some(1), LONG);
        assert!(began.elapsed() < LONG);
    }
}
