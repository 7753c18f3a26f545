//! CPU time of pieces of work, some of which are shorter than it takes to ask for it.
//!
//! To ask the kernel costs as much as to copy ten kilobytes. A piece that is through within
//! [`SHORT`] cannot have used more CPU time than passed on the clock, so that is what it is charged:
//! at most that much too much, when the thread was interrupted, and never too little. A longer one is
//! charged no more than the thread used since the kernel was last asked.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::receipt::CpuSeconds;

/// Work up to this long is charged by the clock alone.
const SHORT: Duration = Duration::from_micros(50);

thread_local! {
    /// What the kernel last said of this thread, in seconds.
    static ASKED: Cell<f64> = const { Cell::new(0.0) };
}

/// Does a piece of work; answers the CPU time that it took as well.
pub(crate) fn stint<R>(work: impl FnOnce() -> R) -> (R, CpuSeconds) {
    let began = Instant::now();
    let result = work();
    (result, cost(began.elapsed()))
}

/// The CPU time of work in user space by this thread that took so long and ends now.
pub(crate) fn cost(took: Duration) -> CpuSeconds {
    charged(
        took,
        CpuSeconds {
            user: took.as_secs_f64(),
            system: 0.0,
        },
    )
}

/// The same of work that the kernel does when it is called.
pub(crate) fn kernel_cost(took: Duration) -> CpuSeconds {
    charged(
        took,
        CpuSeconds {
            user: 0.0,
            system: took.as_secs_f64(),
        },
    )
}

fn charged(took: Duration, clock: CpuSeconds) -> CpuSeconds {
    if took <= SHORT {
        return clock;
    }
    let now = usage::this_thread_by_now();
    let used = now - ASKED.replace(now);
    let share = (used / clock.total()).clamp(0.0, 1.0);
    CpuSeconds {
        user: clock.user * share,
        system: clock.system * share,
    }
}

/// A sum of CPU time that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    user: AtomicU64,
    system: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, cpu: CpuSeconds) {
        let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
        self.user
            .fetch_add(nanoseconds(cpu.user), Ordering::Relaxed);
        self.system
            .fetch_add(nanoseconds(cpu.system), Ordering::Relaxed);
    }

    pub(crate) fn so_far(&self) -> CpuSeconds {
        let seconds = |nanoseconds: &AtomicU64| nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        CpuSeconds {
            user: seconds(&self.user),
            system: seconds(&self.system),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_is_charged_by_the_clock_and_long_work_by_what_the_kernel_saw() {
        let (_, short) = stint(|| std::hint::black_box(1 + 1));
        assert!(short.total() > 0.0);
        // One that sleeps uses hardly any.
        let _ = stint(|| std::thread::sleep(Duration::from_millis(1)));
        let (_, slept) = stint(|| std::thread::sleep(Duration::from_millis(200)));
        assert!(slept.total() < 0.1, "{slept:?}");
        // Pieces of less than a tick of the kernel's accounts are not lost.
        let before = usage::this_thread_by_now();
        let mut busy = 0.0;
        for _ in 0..100 {
            let until = Instant::now() + 4 * SHORT;
            busy += stint(|| while Instant::now() < until {}).1.total();
        }
        let used = usage::this_thread_by_now() - before;
        assert!(busy <= used && busy > 0.9 * used, "{busy} of {used}");
    }

    #[test]
    fn what_threads_add_is_all_there() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        tally.add(CpuSeconds {
                            user: 1e-6,
                            system: 2e-6,
                        });
                    }
                });
            }
        });
        let sum = tally.so_far();
        assert!((sum.user - 4e-3).abs() < 1e-9 && (sum.system - 8e-3).abs() < 1e-9);
    }
}
