//! How long a thread looks again and again for what is about to come, before it sleeps.
//!
//! To be woken takes several microseconds and often another core, as long as to move tens of
//! kilobytes, so who waits for bytes that are on their way looks for a while first. That takes a core
//! which others may want, such as the very process that is waited for: it is offered to them between two
//! looks, who finds that they took it stops, and nobody looks again for a while. With one core nobody
//! looks at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long is looked after something last came. On a machine that had more to do than two processors
/// could, 1 MiB writes over loopback went at 4.7 to 5.3 GB/s with 20 us, at 3.5 to 4.3 with 50 and at 1.8
/// to 3.6 with 200.
const WATCH: Duration = Duration::from_micros(20);
/// Between two looks nothing is done that takes as long: who was away for longer had to give its core
/// up.
const AWAY: Duration = Duration::from_micros(100);
/// How long nobody looks then. The next one to find that others want the core gives them a hundred
/// times as long as it looked.
const REST: Duration = Duration::from_millis(2);

/// Whether the threads of a fabric may look for what is about to come.
#[derive(Debug)]
pub(crate) struct Vigil {
    started: Instant,
    /// Whether another thread can run meanwhile.
    cores: bool,
    /// Nobody looks before then, in nanoseconds after the start.
    rested: AtomicU64,
}

impl Vigil {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            started: Instant::now(),
            cores: cores > 1,
            rested: AtomicU64::new(0),
        }
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Something came at this time; whether to look for more.
    pub(crate) fn spell(&self, now: Instant) -> Option<Spell> {
        let rested = self.rested.load(Ordering::Relaxed) <= self.nanoseconds(now);
        (self.cores && rested).then_some(Spell {
            began: now,
            looked: now,
        })
    }
}

/// Looks without sleep after something came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spell {
    began: Instant,
    looked: Instant,
}

impl Spell {
    /// Nothing had come. Offers the core to others; `None` when it is time to sleep.
    pub(crate) fn on(self, vigil: &Vigil) -> Option<Self> {
        std::thread::yield_now();
        self.at(vigil, Instant::now())
    }

    /// When was last looked.
    pub(crate) const fn looked(self) -> Instant {
        self.looked
    }

    fn at(self, vigil: &Vigil, now: Instant) -> Option<Self> {
        if now.saturating_duration_since(self.looked) > AWAY {
            let rested = vigil.nanoseconds(now + REST);
            vigil.rested.store(rested, Ordering::Relaxed);
            return None;
        }
        let lasts = now.saturating_duration_since(self.began) <= WATCH;
        lasts.then_some(Self {
            looked: now,
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_micros(4);

    #[test]
    fn given_nothing_comes_when_it_has_looked_for_long_enough_then_it_sleeps() {
        let vigil = Vigil::new(2);
        let mut now = Instant::now();
        let mut spell = vigil.spell(now);
        let mut looks = 0;
        while let Some(more) = spell.and_then(|spell| spell.at(&vigil, now)) {
            spell = Some(more);
            now += MOMENT;
            looks += 1;
        }
        assert_eq!(looks, 6, "0, 4, 8, 12, 16 and 20 us after something came");
        assert!(
            vigil.spell(now).is_some(),
            "it was on its core all the time"
        );
    }

    #[test]
    fn given_it_was_off_its_core_then_nobody_looks_until_some_time_has_passed() {
        let vigil = Vigil::new(2);
        let began = Instant::now();
        let spell = vigil.spell(began).expect("there are cores");
        let back = began + AWAY + MOMENT;
        assert!(spell.at(&vigil, back).is_none());
        assert!(vigil.spell(back + REST - MOMENT).is_none());
        assert!(vigil.spell(back + REST).is_some());
    }

    #[test]
    fn with_one_core_nobody_looks() {
        assert!(Vigil::new(1).spell(Instant::now()).is_none());
    }
}
