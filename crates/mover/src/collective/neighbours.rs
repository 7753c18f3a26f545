//! Other programs on the processors of a rank's host, as far as it notices them.
//!
//! Who gives its processor away to a rank of its group gets it back as soon as that one waits in its
//! turn, which is quicker than to be woken. A program that waits for nothing keeps it for a slice of the
//! scheduler, each time anew; who sleeps instead goes before such a one when it is woken.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// So long no rank works before it waits for another: who has the processor for longer is somebody else.
const TURN: Duration = Duration::from_millis(1);
/// For how long somebody else is expected to want it again, at first and at most: each time that it is so
/// as soon as it is tried again, for twice as long. One that comes seldom costs less than to be woken does.
const AT_FIRST: Duration = Duration::from_millis(8);
const AT_MOST: Duration = Duration::from_secs(1);

/// Other programs, as this rank has met them.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    expected: Mutex<Option<Expected>>,
}

/// Somebody else, who is expected to want the processor.
#[derive(Clone, Copy, Debug)]
struct Expected {
    until: Instant,
    span: Duration,
}

impl Neighbours {
    fn expected(&self) -> MutexGuard<'_, Option<Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one is likely to keep the processor that it is given.
    pub(crate) fn are_about(&self, now: Instant) -> bool {
        self.expected().is_some_and(|expected| now < expected.until)
    }

    /// Gives the processor away to whoever wants it.
    pub(crate) fn give_way(&self, now: Instant) {
        thread::yield_now();
        self.back(now, Instant::now());
    }

    /// Notes when this thread gave its processor away, and when it got it back.
    fn back(&self, gave: Instant, got: Instant) {
        if got.saturating_duration_since(gave) < TURN {
            return;
        }
        let mut expected = self.expected();
        let again = expected.filter(|last| gave < last.until + last.span);
        let span = again.map_or(AT_FIRST, |last| (last.span * 2).min(AT_MOST));
        let until = got + span;
        *expected = Some(Expected { until, span });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_kept_the_processor_for_longer_than_a_rank_does_is_expected_to_do_it_again_for_a_while() {
        let neighbours = Neighbours::default();
        let now = Instant::now();
        assert!(!neighbours.are_about(now), "nobody was met");
        let soon = now + TURN / 2;
        neighbours.back(now, soon);
        assert!(!neighbours.are_about(soon), "that was a rank");
        let late = now + TURN;
        neighbours.back(now, late);
        assert!(neighbours.are_about(late));
        assert!(neighbours.are_about(late + AT_FIRST / 2));
        assert!(!neighbours.are_about(late + AT_FIRST));
    }

    #[test]
    fn who_is_there_each_time_is_expected_for_longer_each_time_and_who_comes_seldom_is_not() {
        let neighbours = Neighbours::default();
        let mut now = Instant::now();
        let mut span = AT_FIRST;
        while span < AT_MOST * 2 {
            neighbours.back(now, now + TURN);
            now += TURN + span.min(AT_MOST);
            assert!(!neighbours.are_about(now));
            assert!(neighbours.are_about(now - TURN));
            span *= 2;
        }
        let later = now + AT_MOST;
        neighbours.back(later, later + TURN);
        assert!(!neighbours.are_about(later + TURN + AT_FIRST));
    }
}
