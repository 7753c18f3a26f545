//! Many files, moved part by part by several threads: while some parts of a file are still under way, the
//! next file begins.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ends::{Goal, Origin};
use super::plan::FilePlan;
use super::{Terms, Watched};
use crate::digest::{self, GRID};
use crate::service::account::Legs;
use crate::service::error::ServiceError;
use crate::service::journal::Pieces;
use crate::service::limits::PART;
use crate::service::ring::{Ring, Slot};

/// A file whose parts are being moved.
struct Job {
    origin: Origin,
    goal: Goal,
    size: u64,
    have: Vec<Range<u64>>,
    /// Parts that are not moved yet.
    left: AtomicU64,
    pieces: Mutex<Pieces>,
    /// Its place among the files.
    index: usize,
}

/// One part of it.
type Part = (Arc<Job>, Range<u64>);

struct Feed {
    waiting: VecDeque<FilePlan>,
    current: Option<(Arc<Job>, u64)>,
    begun: usize,
}

/// All files of a copy.
pub(super) struct Batch<'t> {
    terms: &'t Terms,
    watched: &'t Watched,
    feed: Mutex<Feed>,
    legs: Legs,
    failure: Mutex<Option<ServiceError>>,
    digests: Mutex<Vec<Option<u64>>>,
    whole: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'t> Batch<'t> {
    pub(super) fn new(files: Vec<FilePlan>, terms: &'t Terms, watched: &'t Watched) -> Self {
        Self {
            terms,
            watched,
            digests: Mutex::new(vec![None; files.len()]),
            feed: Mutex::new(Feed {
                waiting: files.into(),
                current: None,
                begun: 0,
            }),
            legs: Legs::default(),
            failure: Mutex::default(),
            whole: AtomicU64::new(0),
        }
    }

    /// Moves all parts, several at a time.
    pub(super) fn run(&self, ring: &Ring, window: usize) -> Result<(), ServiceError> {
        std::thread::scope(|scope| {
            for index in 0..window {
                let slot = ring.slot(index);
                let body = move || self.work(slot);
                let name = format!("crowfly-part-{index}");
                let spawned = std::thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, body);
                if let Err(source) = spawned
                    && index == 0
                {
                    self.fail(ServiceError::Setup {
                        what: "starting a thread",
                        source,
                    });
                }
            }
        });
        let failure = locked(&self.failure).take();
        if failure.is_some() || self.stopped() {
            if let Some((job, _)) = locked(&self.feed).current.take() {
                job.goal.give_up(self.terms);
            }
            return Err(failure.unwrap_or_else(|| crate::error::TransferError::Cancelled.into()));
        }
        Ok(())
    }

    /// Files that are whole, their checksums, and the legs of their ways.
    pub(super) fn done(self) -> (u64, Vec<Option<u64>>, Legs) {
        let digests = self
            .digests
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        (self.whole.into_inner(), digests, self.legs)
    }

    fn stopped(&self) -> bool {
        self.watched.stop.load(Ordering::Acquire)
    }

    fn fail(&self, error: ServiceError) {
        locked(&self.failure).get_or_insert(error);
        self.watched.stop.store(true, Ordering::Release);
    }

    fn work(&self, slot: Slot<'_>) {
        while !self.stopped() {
            match self.take() {
                Ok(None) => return,
                Ok(Some((job, range))) => {
                    if let Err(error) = self.move_part(&job, &range, &slot) {
                        return self.fail(error);
                    }
                }
                Err(error) => return self.fail(error),
            }
        }
    }

    /// The next part of the current file, or the first of the next.
    fn take(&self) -> Result<Option<Part>, ServiceError> {
        let mut feed = locked(&self.feed);
        loop {
            if let Some((job, at)) = feed.current.take() {
                if at < job.size {
                    let range = at..(at + PART).min(job.size);
                    let part = (Arc::clone(&job), range.clone());
                    feed.current = Some((job, range.end));
                    return Ok(Some(part));
                }
                continue;
            }
            let Some(plan) = feed.waiting.pop_front() else {
                return Ok(None);
            };
            self.terms.in_time()?;
            let index = feed.begun;
            feed.begun += 1;
            let job = Arc::new(self.begin(&plan, index)?);
            if job.size == 0 {
                self.finish(&job)?;
            } else {
                feed.current = Some((job, 0));
            }
        }
    }

    fn begin(&self, plan: &FilePlan, index: usize) -> Result<Job, ServiceError> {
        let origin = Origin::open(&plan.from, self.terms)?;
        let goal = Goal::begin(&plan.to, &origin, self.terms)?;
        let size = origin.size();
        // It may have grown or shrunk since it was listed.
        let total = &self.watched.total;
        total.fetch_add(size, Ordering::Relaxed);
        total.fetch_sub(plan.size, Ordering::Relaxed);
        let (have, pieces) = goal.have();
        Ok(Job {
            origin,
            goal,
            size,
            have,
            left: AtomicU64::new(size.div_ceil(PART)),
            pieces: Mutex::new(pieces),
            index,
        })
    }

    fn move_part(
        &self,
        job: &Arc<Job>,
        range: &Range<u64>,
        slot: &Slot<'_>,
    ) -> Result<(), ServiceError> {
        let len = range.end - range.start;
        let there = |have: &Range<u64>| have.start <= range.start && range.end <= have.end;
        if job.have.iter().any(there) {
            self.watched.resumed.fetch_add(len, Ordering::Relaxed);
        } else {
            self.terms.in_time()?;
            let slot = job.origin.slot(range, slot);
            let sums = job.origin.fetch(range, &slot, self.terms, &self.legs)?;
            locked(&job.pieces).extend((range.start / GRID..).zip(sums.iter().copied()));
            job.goal.store(range, sums, &slot, self.terms, &self.legs)?;
            self.watched.moved.fetch_add(len, Ordering::Relaxed);
        }
        match job.left.fetch_sub(1, Ordering::AcqRel) {
            1 => self.finish(job),
            _ => Ok(()),
        }
    }

    /// The source is looked at once more before the file appears.
    fn finish(&self, job: &Job) -> Result<(), ServiceError> {
        job.origin.end(self.terms, &self.legs)?;
        let told = job.goal.finish(self.terms, &self.legs)?;
        let pieces = locked(&job.pieces);
        let all = self.terms.sums() && pieces.len() as u64 == job.size.div_ceil(GRID);
        let known = all.then(|| digest::whole(pieces.values().copied()));
        if let Some(slot) = locked(&self.digests).get_mut(job.index) {
            *slot = known.or(told);
        }
        self.whole.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
