//! How many bytes a link has in flight: no more than it brings to their end soon.
//!
//! A NIC does not take a request back, so what a cancelled transfer has in flight has to end by itself, and the
//! engine closes a link that does not let go of the memory in time. What waits in the engine can be dropped at once.

use std::time::Duration;

/// What is in flight ends within this time: half of what the engine gives a link to let go of memory.
const DRAIN: Duration = Duration::from_millis(500);
/// The least: several ops, so that a port never idles.
const LEAST: u64 = 1 << 20;
/// What is tried first: more than the fastest port carries in the time of a round trip.
const FIRST: u64 = 4 << 20;

/// The bytes that a link may have in flight, by how long they took so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    bytes: u64,
    most: u64,
}

impl Window {
    /// One that grows up to this many bytes.
    pub(super) const fn up_to(most: u64) -> Self {
        let bytes = if FIRST < most { FIRST } else { most };
        Self { bytes, most }
    }

    /// Whether an op of so many bytes may join so many that are in flight.
    pub(super) const fn takes(self, bytes: u64, in_flight: u64) -> bool {
        in_flight == 0 || in_flight + bytes <= self.bytes
    }

    /// An op went well: it had `bytes` itself and `queued` with those in front of it.
    pub(super) fn ended(&mut self, bytes: u64, queued: u64, took: Duration) {
        if took <= DRAIN {
            self.bytes = (self.bytes + bytes).min(self.most);
            return;
        }
        let fits = queued as f64 * (DRAIN.as_secs_f64() / took.as_secs_f64());
        let least = LEAST.min(self.most);
        self.bytes = (fits as u64).max(least).min(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn given_a_fast_port_it_grows_to_its_most_and_no_further() {
        let mut window = Window::up_to(32 * MIB);
        assert!(window.takes(MIB, 3 * MIB));
        assert!(!window.takes(MIB, 4 * MIB));
        for _ in 0..100 {
            window.ended(MIB, 4 * MIB, Duration::from_millis(1));
        }
        assert!(window.takes(MIB, 31 * MIB));
        assert!(!window.takes(MIB, 32 * MIB));
    }

    #[test]
    fn given_a_slow_port_it_holds_what_ends_within_half_a_second() {
        let mut window = Window::up_to(32 * MIB);
        // 4 MiB a second.
        window.ended(MIB, 4 * MIB, Duration::from_secs(1));
        assert!(window.takes(MIB, MIB));
        assert!(!window.takes(MIB, 2 * MIB));
        // An op that comes to its end late although little was in front of it does not close it.
        window.ended(MIB, MIB, Duration::from_secs(60));
        assert!(window.takes(MIB / 2, MIB / 2));
        assert!(!window.takes(MIB, MIB / 2));
        // Faster again, it opens again.
        window.ended(MIB, MIB, Duration::from_millis(100));
        assert!(window.takes(MIB, MIB));
    }

    #[test]
    fn an_op_that_is_larger_goes_alone() {
        let mut window = Window::up_to(MIB / 2);
        window.ended(MIB, MIB, Duration::from_secs(9));
        assert!(window.takes(MIB, 0));
        assert!(!window.takes(1, MIB / 2));
    }
}
