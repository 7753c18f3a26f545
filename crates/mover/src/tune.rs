//! Finds how many requests to keep in flight by watching the transfer itself.
//!
//! No constant fits both a laptop's SSD and a striped array. The tuner starts low, doubles the
//! number in flight while that brings more than [`WORTH`], settles on the best level it saw, and
//! costs nothing beyond the transfer: every byte moved while probing is a byte asked for.

use std::time::Duration;

/// The first number of requests in flight.
pub const FIRST: usize = 4;
/// The shortest time and the fewest completions over which one level is judged.
const WINDOW: (Duration, usize) = (Duration::from_millis(40), 16);
/// A level must be this much faster than the best so far to be worth its memory.
const WORTH: f64 = 1.05;
/// Levels tried beyond the best before settling: a plateau may have a dent.
const PATIENCE: usize = 2;

/// Watches completions and answers how many requests to keep in flight.
#[derive(Debug)]
pub struct Tuner {
    level: usize,
    limit: usize,
    best: Option<(usize, f64)>,
    misses: usize,
    settled: bool,
    window: Window,
}

#[derive(Debug, Default)]
struct Window {
    start: Duration,
    warm: usize,
    completions: usize,
    bytes: u64,
}

impl Tuner {
    /// A tuner that never exceeds `limit` requests in flight.
    pub fn new(limit: usize) -> Self {
        Self {
            level: FIRST.min(limit.max(1)),
            limit: limit.max(1),
            best: None,
            misses: 0,
            settled: false,
            window: Window::default(),
        }
    }

    /// A tuner that keeps exactly this many in flight.
    pub fn fixed(level: usize) -> Self {
        Self {
            settled: true,
            ..Self::new(level)
        }
        .at(level)
    }

    fn at(mut self, level: usize) -> Self {
        self.level = level.max(1);
        self
    }

    /// How many requests to keep in flight now.
    pub fn level(&self) -> usize {
        self.level
    }

    /// Whether probing is over.
    #[cfg(test)]
    pub fn settled(&self) -> bool {
        self.settled
    }

    /// Records a completion of `bytes` at `now`, measured from the start of the transfer.
    pub fn completed(&mut self, now: Duration, bytes: u64) {
        if self.settled {
            return;
        }
        // Requests submitted at the previous level say nothing about this one.
        if self.window.warm < self.level {
            self.window.warm += 1;
            self.window.start = now;
            return;
        }
        self.window.completions += 1;
        self.window.bytes += bytes;
        let elapsed = now.saturating_sub(self.window.start);
        if elapsed < WINDOW.0 || self.window.completions < WINDOW.1.max(self.level * 2) {
            return;
        }
        self.judge(self.window.bytes as f64 / elapsed.as_secs_f64());
        self.window = Window {
            start: now,
            ..Window::default()
        };
    }

    fn judge(&mut self, rate: f64) {
        match self.best {
            Some((_, best)) if rate <= best * WORTH => self.misses += 1,
            _ => {
                self.best = Some((self.level, rate));
                self.misses = 0;
            }
        }
        if self.misses >= PATIENCE || self.level == self.limit {
            self.settled = true;
            self.level = self.best.map_or(self.level, |(level, _)| level);
        } else {
            self.level = (self.level * 2).min(self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the tuner against a device of which each request takes `latency` and which carries at
    /// most `ceiling` bytes per second.
    fn settle(limit: usize, latency: f64, ceiling: f64) -> usize {
        const CHUNK: u64 = 1 << 20;
        let mut tuner = Tuner::new(limit);
        let mut now = 0.0;
        for _ in 0..1_000_000 {
            if tuner.settled() {
                return tuner.level();
            }
            let rate = (tuner.level() as f64 * CHUNK as f64 / latency).min(ceiling);
            now += CHUNK as f64 / rate;
            tuner.completed(Duration::from_secs_f64(now), CHUNK);
        }
        panic!("never settled");
    }

    #[test]
    fn given_a_device_that_one_request_saturates_the_tuner_stays_low() {
        assert_eq!(settle(64, 0.001, 1e9), FIRST);
    }

    #[test]
    fn given_long_latency_the_tuner_climbs_until_the_ceiling() {
        // 10 ms a request and 1.6 GB/s: 16 MiB must be in flight.
        assert_eq!(settle(64, 0.010, 1.6e9), 16);
    }

    #[test]
    fn given_a_device_that_always_wants_more_the_limit_holds() {
        assert_eq!(settle(24, 1.0, 1e12), 24);
        assert_eq!(settle(1, 1.0, 1e12), 1);
    }

    #[test]
    fn a_fixed_tuner_never_moves() {
        let mut tuner = Tuner::fixed(7);
        for i in 0..1000 {
            tuner.completed(Duration::from_millis(i), 1 << 20);
        }
        assert_eq!(tuner.level(), 7);
    }
}
