//! One copy by two cores: the thread that asks, and one that lends a hand.
//!
//! The caller copies the front, the second thread the back, so each core meets the same bytes again
//! when a buffer is used again. The caller waits for nobody to start: when it is through with its own
//! part and the second thread has not begun, because it sleeps or was not given a core, it takes the
//! back from it. It waits only for a part that was begun.
//!
//! To wake a thread takes longer than to copy 64 KiB, so the second one watches for a while after
//! each copy before it sleeps, and is woken once the caller has copied so much alone that it would
//! have paid. Watching takes a core that others may want: a watcher that finds that it was off its
//! core stops, and is let alone for some time. On a machine with one core there is no second thread.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crowfly_route::receipt::CpuSeconds;

use super::copy::{self, Caches};
use crate::fabric::stint::cost;
use crate::fabric::turns::point;

/// From this many bytes on a copy is shared.
const FROM: usize = 48 << 10;
/// The bytes that a core copies while a word goes to another core and one comes back, 0.3 us at
/// 40 GB/s where this was measured: by so much the caller's part is longer.
const AHEAD: usize = 10 << 10;
/// Both parts meet where a cache line begins.
const LINE: usize = 64;
/// Bytes that are copied alone before the second thread is woken; about as long as it then watches.
const ALONE: usize = 1 << 20;
/// How long it watches for the next copy.
const WATCH: Duration = Duration::from_micros(50);
/// Between two looks at the clock nothing is done that takes as long: a watcher that was away for
/// longer had to give its core up.
const AWAY: Duration = Duration::from_micros(100);
/// How long it is let alone then.
const REST: Duration = Duration::from_millis(20);
/// Looks at a word between two looks at the clock, or two pauses; with a pause after each a word took 0.7 us
/// to another core and back in place of 0.37, in which so many looks are taken.
const LOOKS: u32 = 256;
/// So many times as many before the caller lets others have its core.
const PATIENCE: u32 = 1024;

/// Keeps words that different cores write apart.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// The back of what is copied. Written by callers alone, the turn last: in one cache line, so that the
/// second thread, which looks at the turn all the time, has fetched all of it with that.
#[derive(Default)]
struct Job {
    /// Counts up with each copy.
    turn: AtomicU64,
    /// The last turn whose back its caller has taken from the second thread.
    withdrawn: AtomicU64,
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
    len: AtomicUsize,
    past_caches: AtomicBool,
}

/// What became of a turn. Written by the second thread alone.
#[derive(Default)]
struct Help {
    /// The last turn that it is through with.
    ended: AtomicU64,
    /// Whether it let that turn's back alone, because it found it withdrawn.
    refrained: AtomicBool,
    /// What the turn cost, watching for it included, in nanoseconds of CPU time.
    user: AtomicU64,
    system: AtomicU64,
}

/// A second core for copies.
#[derive(Default)]
pub(crate) struct Duo {
    job: Line<Job>,
    help: Line<Help>,
    /// The last turn whose back the second thread meant to copy. Written by it alone, and looked at only by
    /// callers that find it late: the thread needs not fetch it from another core before each copy.
    begun: Line<AtomicU64>,
    /// Whether a caller shares a copy now; others copy alone.
    taken: Line<AtomicBool>,
    watching: Line<AtomicBool>,
    stopped: AtomicBool,
    alone: AtomicUsize,
    second: OnceLock<Thread>,
    /// When the second thread may be woken again, in nanoseconds of `Self::clock`.
    rested: AtomicU64,
    started: OnceLock<Instant>,
}

impl std::fmt::Debug for Duo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Duo(watching: {:?})", self.watching.0)
    }
}

impl Duo {
    /// Copies `len` bytes; the two ranges may overlap, and are copied by one core then. Answers what
    /// the second thread's help cost.
    ///
    /// # Safety
    /// As for [`std::ptr::copy`].
    pub(super) unsafe fn copy(
        &self,
        from: *const u8,
        to: *mut u8,
        len: usize,
        caches: Caches,
    ) -> CpuSeconds {
        let apart = (from as usize).abs_diff(to as usize) >= len;
        let shared = len >= FROM
            && apart
            && self.is_watched(len)
            && !self.taken.0.swap(true, Ordering::Acquire);
        if !shared {
            // SAFETY: promised by the caller.
            unsafe { copy::copy(from, to, len, caches) };
            return CpuSeconds::default();
        }
        let back = len.saturating_sub(AHEAD) / 2 / LINE * LINE;
        let front = len - back;
        // SAFETY: both parts lie inside the ranges that the caller promised.
        let rest = unsafe { (from.add(front), to.add(front)) };
        let turn = self.publish(rest.0, rest.1, back, caches);
        // SAFETY: promised by the caller; the second thread has nothing to do with this part.
        unsafe { copy::copy(from, to, front, caches) };
        let helped = self.helped(turn);
        if helped.is_none() {
            // SAFETY: promised by the caller; the second thread lets this part alone.
            unsafe { copy::copy(rest.0, rest.1, back, caches) };
        }
        self.taken.0.store(false, Ordering::Release);
        helped.unwrap_or_default()
    }

    /// Whether the second thread watches. When it does not, these bytes count towards waking it.
    fn is_watched(&self, len: usize) -> bool {
        if self.watching.0.load(Ordering::Relaxed) {
            return true;
        }
        let Some(second) = self.second.get() else {
            return false;
        };
        if self.alone.fetch_add(len, Ordering::Relaxed) + len >= ALONE {
            self.alone.store(0, Ordering::Relaxed);
            if self.clock() >= self.rested.load(Ordering::Relaxed) {
                second.unpark();
            }
        }
        false
    }

    fn clock(&self) -> u64 {
        let started = self.started.get_or_init(Instant::now);
        u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Offers a part to the second thread; answers the number of the turn.
    fn publish(&self, from: *const u8, to: *mut u8, len: usize, caches: Caches) -> u64 {
        let job = &self.job.0;
        let turn = job.turn.load(Ordering::Relaxed) + 1;
        job.from.store(from.cast_mut(), Ordering::Relaxed);
        job.to.store(to, Ordering::Relaxed);
        job.len.store(len, Ordering::Relaxed);
        job.past_caches
            .store(caches == Caches::Pass, Ordering::Relaxed);
        point();
        job.turn.store(turn, Ordering::Release);
        turn
    }

    /// What it cost that the second thread copied its part of a turn, which it has nothing to do with
    /// any more when this returns. `None` when it did not copy it.
    fn helped(&self, turn: u64) -> Option<CpuSeconds> {
        let help = &self.help.0;
        point();
        let ended = || help.ended.load(Ordering::Acquire) == turn;
        let seen = || (0..LOOKS).any(|_| ended());
        // Most often it ends first, and need not be asked whether it has begun.
        if !seen() && self.begun.0.load(Ordering::Relaxed) != turn {
            point();
            self.job.0.withdrawn.store(turn, Ordering::Relaxed);
            point();
            // Of two threads that each write their own word before they read the other's, with this
            // fence between, at least one sees what the other wrote.
            fence(Ordering::SeqCst);
            if self.begun.0.load(Ordering::Relaxed) != turn {
                return None;
            }
        }
        let mut looks = 0u32;
        while !seen() {
            point();
            looks += 1;
            if looks < PATIENCE {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let seconds = |word: &AtomicU64| word.load(Ordering::Relaxed) as f64 / 1e9;
        let copied = !help.refrained.load(Ordering::Relaxed);
        copied.then(|| CpuSeconds {
            user: seconds(&help.user),
            system: seconds(&help.system),
        })
    }

    /// What the second thread does, until [`Duo::stop`].
    pub(crate) fn work(&self) {
        let mut seen = self.job.0.turn.load(Ordering::Acquire);
        let mut spent = CpuSeconds::default();
        while !self.stopped.load(Ordering::Acquire) {
            std::thread::park();
            self.watching.0.store(true, Ordering::Release);
            self.watch(&mut seen, &mut spent);
            self.watching.0.store(false, Ordering::Release);
        }
    }

    /// Helps for as long as there is something to help with now and then. What nobody was charged
    /// for yet is in `spent`.
    fn watch(&self, seen: &mut u64, spent: &mut CpuSeconds) {
        let mut since = Instant::now();
        let (mut idle, mut looked) = (since, since);
        loop {
            let mut turn = *seen;
            for _ in 0..LOOKS {
                turn = self.job.0.turn.load(Ordering::Acquire);
                if turn != *seen {
                    break;
                }
            }
            if turn != *seen {
                *seen = turn;
                self.help(turn, &mut since, spent);
                idle = since;
                looked = since;
                continue;
            }
            let now = Instant::now();
            if now - looked > AWAY {
                let rest = u64::try_from(REST.as_nanos()).unwrap_or(u64::MAX);
                self.rested.store(self.clock() + rest, Ordering::Relaxed);
                break;
            }
            if now - idle > WATCH || self.stopped.load(Ordering::Acquire) {
                break;
            }
            looked = now;
            std::hint::spin_loop();
        }
        *spent += cost(since.elapsed());
    }

    /// Copies the back of a turn.
    fn help(&self, turn: u64, since: &mut Instant, spent: &mut CpuSeconds) {
        let (job, help) = (&self.job.0, &self.help.0);
        let (from, to, len) = (
            job.from.load(Ordering::Relaxed),
            job.to.load(Ordering::Relaxed),
            job.len.load(Ordering::Relaxed),
        );
        let caches = match job.past_caches.load(Ordering::Relaxed) {
            true => Caches::Pass,
            false => Caches::Keep,
        };
        point();
        self.begun.0.store(turn, Ordering::Relaxed);
        point();
        // As in `helped`. A later turn's words are written after this one was withdrawn, so whoever
        // has read some of them sees that here as well.
        fence(Ordering::SeqCst);
        let withdrawn = job.withdrawn.load(Ordering::Relaxed) >= turn;
        point();
        if !withdrawn {
            // SAFETY: the turn was not withdrawn, so these are its words, and its caller, who promised
            // that the ranges are valid, waits until `ended` says that it is through.
            unsafe { copy::copy(from, to, len, caches) };
            let now = Instant::now();
            *spent += cost(now - *since);
            *since = now;
            let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
            help.user.store(nanoseconds(spent.user), Ordering::Relaxed);
            help.system
                .store(nanoseconds(spent.system), Ordering::Relaxed);
            *spent = CpuSeconds::default();
        }
        help.refrained.store(withdrawn, Ordering::Relaxed);
        point();
        help.ended.store(turn, Ordering::Release);
    }

    /// Ends the second thread.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(second) = self.second.get() {
            second.unpark();
        }
    }
}

/// A second thread, and its handle to be joined.
pub(crate) fn second() -> std::io::Result<(Arc<Duo>, Option<std::thread::JoinHandle<()>>)> {
    let duo = Arc::new(Duo::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return Ok((duo, None));
    }
    let body = Arc::clone(&duo);
    let thread = std::thread::Builder::new()
        .name("crowfly-second".into())
        .spawn(move || body.work())?;
    let _ = duo.second.set(thread.thread().clone());
    Ok((duo, Some(thread)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::turns::{Orders, in_turns};

    fn end(duo: &Duo, thread: Option<std::thread::JoinHandle<()>>) {
        duo.stop();
        if let Some(thread) = thread {
            thread.join().expect("no panic");
        }
    }

    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len)
            .map(|at| (at * 31 + seed * 7 + at / 251) as u8)
            .collect()
    }

    #[test]
    fn every_byte_arrives_whether_the_second_thread_helps_or_not() {
        let (duo, thread) = second().expect("a thread");
        let mut helped = 0.0;
        for (turn, len) in
            (0..).zip([0, 1, FROM - 1, FROM, 65_537, 300_000, 1 << 20, 3 << 20].repeat(20))
        {
            let source = pattern(len, turn);
            let mut target = vec![0xee; len + 64];
            let caches = if turn % 2 == 0 {
                Caches::Keep
            } else {
                Caches::Pass
            };
            // SAFETY: both vectors have at least `len` bytes and are different ones.
            let cost = unsafe { duo.copy(source.as_ptr(), target.as_mut_ptr(), len, caches) };
            helped += cost.total();
            assert_eq!(target[..len], source[..], "turn {turn}");
            assert!(target[len..].iter().all(|byte| *byte == 0xee));
        }
        match &thread {
            // Whether it was given a core in time is up to the machine.
            Some(_) => println!("the second thread was charged {helped} s"),
            None => assert_eq!(helped, 0.0, "there is no second core"),
        }
        end(&duo, thread);
    }

    #[test]
    fn callers_at_the_same_time_copy_right_as_well() {
        let (duo, thread) = second().expect("a thread");
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let duo = &duo;
                scope.spawn(move || {
                    for turn in 0..200 {
                        let source = pattern(200_000 + turn, caller * 1000 + turn);
                        let mut target = vec![0; source.len()];
                        // SAFETY: as above.
                        unsafe {
                            duo.copy(
                                source.as_ptr(),
                                target.as_mut_ptr(),
                                source.len(),
                                Caches::Keep,
                            );
                        }
                        assert!(target == source, "caller {caller} turn {turn}");
                    }
                });
            }
        });
        end(&duo, thread);
    }

    /// Orders of the caller's and the second thread's steps, over three turns: every one of the first eight
    /// steps, and longer ones by chance.
    const ORDERS: Orders = Orders {
        every: 8,
        longer: 200,
    };

    #[test]
    fn in_whatever_order_both_threads_take_their_steps_every_byte_arrives_and_nothing_is_written_later()
     {
        const LEN: usize = FROM;
        let sources: Vec<Vec<u8>> = (0..3).map(|turn| pattern(LEN, turn)).collect();
        let (mut helped, mut refrained) = (0, 0);
        for order in ORDERS.all() {
            let duo = Duo::default();
            // As if the second thread watched.
            duo.watching.0.store(true, Ordering::Relaxed);
            let left = AtomicBool::new(false);
            let caller = || {
                let mut targets = vec![vec![0u8; LEN]; sources.len()];
                for (source, target) in sources.iter().zip(&mut targets) {
                    // SAFETY: both vectors have `LEN` bytes and are different ones.
                    unsafe {
                        duo.copy(source.as_ptr(), target.as_mut_ptr(), LEN, Caches::Keep);
                    }
                    assert!(target == source, "{order:?}");
                    target.fill(0xee);
                    point();
                }
                left.store(true, Ordering::Release);
                point();
                let untouched = |target: &Vec<u8>| target.iter().all(|byte| *byte == 0xee);
                assert!(targets.iter().all(untouched), "{order:?}");
            };
            let mut counts = (0, 0);
            let second = || {
                let (mut seen, mut since) = (0, Instant::now());
                loop {
                    let over = left.load(Ordering::Acquire);
                    let turn = duo.job.0.turn.load(Ordering::Acquire);
                    point();
                    if turn != seen {
                        seen = turn;
                        duo.help(turn, &mut since, &mut CpuSeconds::default());
                        match duo.help.0.refrained.load(Ordering::Relaxed) {
                            true => counts.1 += 1,
                            false => counts.0 += 1,
                        }
                    } else if over {
                        return;
                    }
                }
            };
            in_turns(order.iter().copied(), caller, second);
            helped += counts.0;
            refrained += counts.1;
        }
        assert!(
            helped > 50 && refrained > 50,
            "both are tried: {helped} {refrained}"
        );
    }

    #[test]
    fn given_ranges_that_overlap_the_target_has_what_the_source_had() {
        let (duo, thread) = second().expect("a thread");
        for (from, to) in [(0usize, 40usize), (40, 0)] {
            let mut bytes = pattern(100_000, 3);
            let before = bytes.clone();
            let base = bytes.as_mut_ptr();
            // SAFETY: both ranges lie in the vector.
            unsafe { duo.copy(base.add(from), base.add(to), 90_000, Caches::Keep) };
            assert!(bytes[to..to + 90_000] == before[from..from + 90_000]);
        }
        end(&duo, thread);
    }
}
