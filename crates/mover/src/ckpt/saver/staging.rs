//! Buffers for copies of tensors: those of earlier saves, and new ones, which threads of their own make
//! ready, because fresh memory can cost more than the copy into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use crowfly_route::units::Bytes;

use super::SLAB;
use crate::fresh::FreshMemory;
use crate::memory::{HUGE_PAGE, Memory, MemoryError, Region};

/// Threads that make buffers ready at a time. More would wait for each other in the kernel.
const MOST_MAKERS: usize = 8;

type Made = Result<Region, MemoryError>;

/// Buffers of [`SLAB`] bytes.
pub(super) struct Staging {
    idle: Vec<Region>,
    coming: Vec<Coming>,
    /// Bytes of each buffer whose pages are there; the others come when they are first written to.
    there: usize,
    /// What fresh memory has been found to cost here.
    fresh: Arc<FreshMemory>,
}

/// Buffers that are being made.
struct Coming {
    left: usize,
    ready: Receiver<Made>,
}

impl Staging {
    pub(super) fn new() -> Self {
        Self {
            idle: Vec::new(),
            coming: Vec::new(),
            there: 0,
            fresh: Arc::default(),
        }
    }

    /// Begins to make as many buffers ready as are missing until there are so many, for `bytes` in all; how much
    /// memory is not there yet. Where no thread can be had, [`Staging::take`] makes them.
    pub(super) fn prepare(&mut self, buffers: usize, bytes: u64) -> Bytes {
        // A small state shall not wait for pages that it does not need; part of a large page costs all of it.
        let there = bytes.min(SLAB).next_multiple_of(HUGE_PAGE as u64) as usize;
        if there > self.there {
            self.there = there;
            self.idle.clear();
            self.coming.clear();
        }
        let fresh = buffers.saturating_sub(self.ready()) * self.there;
        let coming: usize = self.coming.iter().map(|coming| coming.left).sum();
        let missing = buffers.saturating_sub(self.ready() + coming);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (made, ready) = mpsc::channel();
        let left = Arc::new(AtomicUsize::new(missing));
        for _ in 0..cores.min(MOST_MAKERS).min(missing) {
            let (made, left) = (made.clone(), Arc::clone(&left));
            let (fresh, there) = (Arc::clone(&self.fresh), self.there);
            let body = move || make(&left, there, &fresh, &made);
            let name = "crowfly-staging".into();
            if std::thread::Builder::new().name(name).spawn(body).is_err() {
                break;
            }
        }
        let left = missing;
        self.coming.push(Coming { left, ready });
        Bytes(fresh as u64)
    }

    /// How many there are without waiting.
    pub(super) fn ready(&mut self) -> usize {
        for coming in &mut self.coming {
            while let Ok(made) = coming.ready.try_recv() {
                coming.left = coming.left.saturating_sub(1);
                self.idle.extend(made);
            }
        }
        self.coming.retain(|coming| coming.left > 0);
        self.idle.len()
    }

    /// How much memory is there without waiting.
    pub(super) fn ready_bytes(&mut self) -> Bytes {
        Bytes((self.ready() * self.there) as u64)
    }

    /// A buffer: an idle one, the next that comes, or a new one.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub(super) fn take(&mut self) -> Made {
        if let Some(buffer) = self.idle.pop() {
            return Ok(buffer);
        }
        while let Some(coming) = self.coming.first_mut() {
            if coming.left > 0
                && let Ok(made) = coming.ready.recv()
            {
                coming.left -= 1;
                return made;
            }
            self.coming.remove(0);
        }
        fresh(self.there, &self.fresh)
    }

    /// Takes buffers back.
    pub(super) fn give_back(&mut self, buffers: impl IntoIterator<Item = Region>) {
        self.idle.extend(buffers);
    }
}

/// Makes buffers until enough are made or nobody wants them any more.
fn make(left: &AtomicUsize, there: usize, fresh_memory: &FreshMemory, made: &Sender<Made>) {
    let one = |left: usize| left.checked_sub(1);
    while left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one)
        .is_ok()
    {
        if made.send(fresh(there, fresh_memory)).is_err() {
            return;
        }
    }
}

/// A new buffer, of whose bytes so many are there.
fn fresh(there: usize, fresh: &FreshMemory) -> Made {
    let memory = Memory::host(SLAB as usize, None)?;
    fresh.fill(&memory.target(0..there));
    Ok(Region::new(memory, 0..SLAB as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_were_asked_for_come_and_those_that_were_given_back_come_first() {
        let mut staging = Staging::new();
        assert_eq!(staging.ready(), 0);
        staging.prepare(1, SLAB);
        staging.prepare(2, 2 * SLAB);
        staging.prepare(1, SLAB);
        let mut first = staging.take().expect("memory");
        first.as_mut_slice().expect("plain")[0] = 7;
        let second = staging.take().expect("memory");
        assert_eq!((second.len() as u64, staging.ready()), (SLAB, 0));
        assert!(staging.coming.is_empty(), "two were asked for, and no more");
        let third = staging.take().expect("made on the spot");
        staging.give_back([second, third, first]);
        staging.prepare(3, 3 * SLAB);
        assert_eq!(staging.ready(), 3);
        assert!(staging.coming.is_empty());
        let again = staging.take().expect("there");
        assert_eq!(again.as_slice().expect("plain")[0], 7);
    }

    #[test]
    fn a_small_state_waits_for_few_pages_and_a_large_one_has_all_of_them_made() {
        const ONE: u64 = HUGE_PAGE as u64;
        let mut staging = Staging::new();
        for (bytes, fresh, there) in [
            (1, ONE, ONE),
            (ONE, 0, ONE),
            (ONE + 1, 2 * ONE, 2 * ONE),
            (1, 0, 2 * ONE),
            (40 * SLAB, SLAB, SLAB),
            (1, 0, SLAB),
        ] {
            assert_eq!(staging.prepare(1, bytes), Bytes(fresh), "{bytes} bytes");
            let buffer = staging.take().expect("memory");
            let whole = buffer.memory().target(0..SLAB as usize);
            assert_eq!(whole.there() as u64, there, "{bytes} bytes");
            staging.give_back([buffer]);
        }
    }

    #[test]
    fn whoever_makes_buffers_for_nobody_stops() {
        let (made, ready) = mpsc::channel();
        drop(ready);
        let left = AtomicUsize::new(3);
        make(&left, 1, &FreshMemory::default(), &made);
        assert_eq!(left.load(Ordering::Relaxed), 2);
    }
}
