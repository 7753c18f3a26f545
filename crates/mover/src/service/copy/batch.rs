//! Many files, moved part by part by several threads: while some parts of a file are still under way, the
//! next file begins.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::goal::{Goal, Known};
use super::origin::Origin;
use super::plan::FilePlan;
use super::stored;
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
    /// Bytes of a part, save the last.
    unit: u64,
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
    digests: Mutex<Vec<Option<Known>>>,
    whole: AtomicU64,
    /// Of those, files that an earlier copy had finished.
    unchanged: AtomicU64,
    /// Whether whole files are remembered until all of them are there.
    remember: bool,
    confirmed: AtomicU64,
}

/// What a batch did.
pub(super) struct Moved {
    /// Files that are whole.
    pub whole: u64,
    /// Those of them that an earlier copy had finished.
    pub unchanged: u64,
    /// Those of them whose bytes the destination confirmed.
    pub confirmed: u64,
    /// Their checksums.
    pub digests: Vec<Option<Known>>,
    /// The legs of their ways.
    pub legs: Legs,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'t> Batch<'t> {
    pub(super) fn new(
        files: Vec<FilePlan>,
        terms: &'t Terms,
        watched: &'t Watched,
        remember: bool,
    ) -> Self {
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
            unchanged: AtomicU64::new(0),
            remember,
            confirmed: AtomicU64::new(0),
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

    /// What came of it.
    pub(super) fn done(self) -> Moved {
        let digests = self.digests.into_inner();
        Moved {
            whole: self.whole.into_inner(),
            unchanged: self.unchanged.into_inner(),
            confirmed: self.confirmed.into_inner(),
            digests: digests.unwrap_or_else(PoisonError::into_inner),
            legs: self.legs,
        }
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
                    let range = at..(at + job.unit).min(job.size);
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
        let goal = Goal::begin(&plan.to, &origin, self.terms, self.remember)?;
        let size = origin.size();
        // It may have grown or shrunk since it was listed.
        let total = &self.watched.total;
        total.fetch_add(size, Ordering::Relaxed);
        total.fetch_sub(plan.size, Ordering::Relaxed);
        let (have, pieces) = goal.have();
        if have.iter().any(|have| have.start == 0 && have.end == size) {
            self.unchanged.fetch_add(1, Ordering::Relaxed);
        }
        let unit = goal.unit();
        Ok(Job {
            unit,
            origin,
            goal,
            size,
            have,
            left: AtomicU64::new(size.div_ceil(unit)),
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
        } else if let Goal::Object(upload) = &job.goal
            && upload.is_copied()
        {
            let stop = &self.watched.stop;
            let moved = stored::duplicate(upload, range, stop, self.terms, &self.legs)?;
            self.count(moved, len);
        } else if let Goal::Object(upload) = &job.goal {
            let bytes = self.gather(job, range, slot)?;
            let stop = &self.watched.stop;
            let moved = stored::deliver(upload, range, &bytes, stop, self.terms, &self.legs)?;
            self.count(moved, len);
        } else {
            let slot = job.origin.slot(range, slot);
            let sums = self.fetch(job, range, &slot)?;
            job.goal.store(range, sums, &slot, self.terms, &self.legs)?;
            self.watched.moved.fetch_add(len, Ordering::Relaxed);
        }
        match job.left.fetch_sub(1, Ordering::AcqRel) {
            1 => self.finish(job),
            _ => Ok(()),
        }
    }

    /// Counts bytes that were moved now, or were there already.
    fn count(&self, moved: bool, len: u64) {
        let count = match moved {
            true => &self.watched.moved,
            false => &self.watched.resumed,
        };
        count.fetch_add(len, Ordering::Relaxed);
    }

    /// Brings a part into a buffer; the checksums of its pieces, if any are made.
    fn fetch(
        &self,
        job: &Job,
        range: &Range<u64>,
        slot: &Slot<'_>,
    ) -> Result<Vec<u64>, ServiceError> {
        self.terms.in_time()?;
        let sums = job.origin.fetch(range, slot, self.terms, &self.legs)?;
        locked(&job.pieces).extend((range.start / GRID..).zip(sums.iter().copied()));
        Ok(sums)
    }

    /// Brings what is longer than a buffer into memory, one buffer after the other.
    fn gather(
        &self,
        job: &Job,
        range: &Range<u64>,
        slot: &Slot<'_>,
    ) -> Result<Vec<u8>, ServiceError> {
        let mut bytes = Vec::new();
        let wanted = (range.end - range.start) as usize;
        bytes
            .try_reserve_exact(wanted)
            .map_err(|_| ServiceError::Setup {
                what: "memory for a part of an object",
                source: std::io::ErrorKind::OutOfMemory.into(),
            })?;
        let mut at = range.start;
        while at < range.end && !self.stopped() {
            let part = at..(at + PART).min(range.end);
            self.fetch(job, &part, slot)?;
            slot.append_to(&mut bytes, (part.end - part.start) as usize)?;
            at = part.end;
        }
        match bytes.len() == wanted {
            true => Ok(bytes),
            false => Err(crate::error::TransferError::Cancelled.into()),
        }
    }

    /// The source is looked at once more before the file appears.
    fn finish(&self, job: &Job) -> Result<(), ServiceError> {
        job.origin.end(self.terms, &self.legs)?;
        let stop = &self.watched.stop;
        let told = job.goal.finish(stop, self.terms, &self.legs)?;
        let pieces = locked(&job.pieces);
        let all = self.terms.sums() && pieces.len() as u64 == job.size.div_ceil(GRID);
        let known = all.then(|| digest::whole(pieces.values().copied()));
        if let Some(slot) = locked(&self.digests).get_mut(job.index) {
            *slot = known.map(Known::Digest).or_else(|| told.clone());
        }
        let confirmed = match &told {
            Some(Known::AtStore(confirmed)) => confirmed.agreed,
            _ => job.goal.is_confirmed(),
        };
        self.confirmed
            .fetch_add(u64::from(confirmed), Ordering::Relaxed);
        self.whole.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
