//! Saving: the caller waits for a copy of its tensors, the rest happens behind its back.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::hop::Capacity;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::CpuSeconds;
use crowfly_route::units::Bytes;

use super::attempt::{Hurry, Terms};
use super::disk::{Disk, Witness};
use super::error::SaveError;
use super::image::Image;
use super::receipt::SaveReceipt;
use super::state::State;
use super::store::Retention;
use crate::checkpoint::select::RankSlice;
use crate::digest::GRID;
use crate::engine::Engine;
use crate::memory::Region;

mod background;
mod staging;

use background::{Background, Finished};
use staging::Staging;

/// One staging buffer, in bytes: a multiple of the checksums' grid.
pub const SLAB: u64 = 32 << 20;

/// Buffers of a save that is waited for: enough to copy into while others are written. More would only
/// be more fresh memory.
const MOST_WAITING: u64 = 6;

const _: () = assert!(SLAB.is_multiple_of(GRID), "checksums would span buffers");

/// How checkpoints are saved.
#[derive(Clone)]
pub struct SaverSettings {
    /// The most memory for copies of tensors that are not yet on the drive; [`SLAB`] at least. It is
    /// taken as it is needed and kept for the next save. A state that fits into it stalls the caller
    /// for no longer than a copy in memory takes.
    pub staging: Bytes,
    /// How long ranks wait for each other, and for whoever holds the folder.
    pub patience: Duration,
    /// Names this job. Ranks of one job name the same; jobs that may save into one folder at the
    /// same time name different ones.
    pub session: String,
    /// Whether a step that is there already is replaced, at one instant; an error otherwise.
    pub replace: bool,
    /// Which older checkpoints stay after each save; all of them when `None`.
    pub retention: Option<Retention>,
    /// How far the bytes may stray on their way to the drive.
    pub policy: Policy,
    /// The rate at which the drive can be read, where it is known: what the receipt prices a restore
    /// at. The rate that the save itself reached is taken otherwise.
    pub read_ceiling: Option<Capacity>,
    /// The engine that writes.
    pub engine: Engine,
    /// Who is told of every act on the file system; for tests.
    pub witness: Option<Arc<dyn Witness>>,
}

impl Default for SaverSettings {
    fn default() -> Self {
        Self {
            staging: Bytes(1 << 30),
            patience: Duration::from_secs(600),
            session: "default".into(),
            replace: false,
            retention: None,
            policy: Policy::Prefer,
            read_ceiling: None,
            engine: Engine::default(),
            witness: None,
        }
    }
}

/// Saves one rank's part of checkpoints into a folder, one at a time.
///
/// Dropping it waits for a save in the background, so that none is lost half-written.
pub struct Saver {
    root: PathBuf,
    rank: RankSlice,
    settings: SaverSettings,
    disk: Disk,
    staging: Staging,
    running: Option<Running>,
}

struct Running {
    step: u64,
    thread: JoinHandle<Vec<Region>>,
    outcome: Arc<Outcome>,
}

/// Where a save in the background leaves its result.
#[derive(Default)]
struct Outcome {
    slot: Mutex<Slot>,
    ready: Condvar,
}

#[derive(Default)]
enum Slot {
    #[default]
    Running,
    Done(Box<Result<SaveReceipt, SaveError>>),
    Taken,
}

impl Outcome {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // A single assignment leaves no half-made value behind.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, result: Result<SaveReceipt, SaveError>) {
        let mut slot = self.slot();
        if matches!(*slot, Slot::Running) {
            *slot = Slot::Done(Box::new(result));
        }
        drop(slot);
        self.ready.notify_all();
    }

    /// Takes the result once it is there; `None` when somebody took it before.
    fn take(&self) -> Option<Result<SaveReceipt, SaveError>> {
        let mut slot = self.slot();
        while matches!(*slot, Slot::Running) {
            slot = self
                .ready
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Done(result) => Some(*result),
            _ => None,
        }
    }
}

/// Leaves a result even when the thread panics.
struct Promise {
    step: u64,
    outcome: Arc<Outcome>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.outcome
            .put(Err(SaveError::ThreadDied { step: self.step }));
    }
}

/// A save that goes on in the background. Dropping it changes nothing: the save goes on, and an
/// error that nobody waited for comes out of the next save.
#[must_use = "an error comes out here, or else out of the next save"]
pub struct Pending {
    step: u64,
    outcome: Arc<Outcome>,
    hurry: Hurry,
    stall_seconds: f64,
    fresh_bytes: Bytes,
}

impl Pending {
    /// The step.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// How long the caller waited for the copy, in seconds.
    pub const fn stall_seconds(&self) -> f64 {
        self.stall_seconds
    }

    /// Whether [`Pending::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        !matches!(*self.outcome.slot(), Slot::Running)
    }

    /// Ranks that take part are known to be lost: this rank waits no longer than another second for what is to
    /// come from others. It still writes its own part, and the checkpoint is published where nothing is missing.
    pub fn hurry(&self) {
        self.hurry.begin();
    }

    /// Waits until the checkpoint is published, durable, and visible to every rank.
    ///
    /// # Errors
    /// Why it was not; see [`SaveError`].
    pub fn wait(self) -> Result<SaveReceipt, SaveError> {
        let waited = Instant::now();
        let result = self.outcome.take();
        let mut receipt = result.unwrap_or(Err(SaveError::ThreadDied { step: self.step }))?;
        receipt.stall_seconds = self.stall_seconds;
        receipt.fresh_bytes = self.fresh_bytes;
        receipt.waited_seconds = waited.elapsed().as_secs_f64();
        Ok(receipt)
    }
}

impl Saver {
    /// A saver of one rank's part into `root`, which is made by the first save if it is missing.
    ///
    /// # Errors
    /// When the budget for staging has no room for a single buffer.
    pub fn new(
        root: impl Into<PathBuf>,
        rank: RankSlice,
        settings: SaverSettings,
    ) -> Result<Self, SaveError> {
        let budget = settings.staging.0;
        if budget < SLAB {
            let least = SLAB;
            return Err(SaveError::BudgetTooSmall { budget, least });
        }
        Ok(Self {
            root: root.into(),
            rank,
            disk: Disk::new(settings.witness.clone()),
            settings,
            staging: Staging::new(),
            running: None,
        })
    }

    /// The folder of checkpoints.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Saves and waits until the checkpoint is published.
    ///
    /// # Errors
    /// See [`SaveError`]; [`SaveError::Earlier`] when a save in the background failed before and
    /// nobody heard of it, in which case this one was not begun.
    pub fn save(&mut self, step: u64, state: &State<'_>) -> Result<SaveReceipt, SaveError> {
        let began = Instant::now();
        let mut receipt = self.begin(step, state, MOST_WAITING)?.wait()?;
        receipt.stall_seconds = began.elapsed().as_secs_f64();
        receipt.waited_seconds = 0.0;
        Ok(receipt)
    }

    /// Copies the tensors into staging and returns; the rest happens in the background. When a save
    /// is still under way, waits for it first.
    ///
    /// # Errors
    /// What is wrong with the state, and what became of an earlier save that nobody waited for. What
    /// goes wrong later comes out of [`Pending::wait`] or the next save.
    pub fn save_async(&mut self, step: u64, state: &State<'_>) -> Result<Pending, SaveError> {
        self.begin(step, state, u64::MAX)
    }

    /// Begins to make memory ready for copies of such a state, as much as the budget allows, in the
    /// background: the first save then stalls its caller no longer than the next ones do. Fresh memory
    /// can cost many times the copy into it.
    ///
    /// # Errors
    /// What is wrong with the state.
    pub fn prepare(&mut self, state: &State<'_>) -> Result<(), SaveError> {
        state.check()?;
        let image = Image::new(state.mine(self.rank.rank(), self.rank.ranks()), 0)?;
        self.staging
            .prepare(self.slabs(&image, u64::MAX), image.len());
        Ok(())
    }

    /// Memory for copies that is there, without what a save in the background holds.
    pub fn ready(&mut self) -> Bytes {
        self.staging.ready_bytes()
    }

    /// How many buffers a save takes.
    fn slabs(&self, image: &Image<'_>, most: u64) -> usize {
        let budget = self.settings.staging.0 / SLAB;
        budget.min(image.len().div_ceil(SLAB)).min(most) as usize
    }

    /// Begins a save with at most so many buffers.
    fn begin(&mut self, step: u64, state: &State<'_>, most: u64) -> Result<Pending, SaveError> {
        let began = Instant::now();
        self.settle()?;
        state.check()?;
        let image = Image::new(state.mine(self.rank.rank(), self.rank.ranks()), step)?;
        let outcome = Arc::new(Outcome::default());
        let slabs = self.slabs(&image, most);
        let there = self.staging.ready();
        let fresh = self.staging.prepare(slabs, image.len());
        let (filled, to_write) = mpsc::sync_channel(slabs.max(1));
        let (written, free) = mpsc::sync_channel(slabs.max(1) + there);
        let hurry = Hurry::default();
        let job = Background {
            terms: Terms {
                root: self.root.clone(),
                step,
                rank: self.rank.rank(),
                world: self.rank.ranks(),
                session: self.settings.session.clone(),
                replace: self.settings.replace,
                patience: self.settings.patience,
                hurry: hurry.clone(),
            },
            settings: self.settings.clone(),
            disk: self.disk.clone(),
            contents: image.contents(),
            known: state.known(),
            objects: state.objects.clone(),
            tensor_bytes: Bytes(image.tensor_bytes()),
            began,
        };
        let promise = Promise {
            step,
            outcome: Arc::clone(&outcome),
        };
        let thread = std::thread::Builder::new()
            .name("crowfly-save".into())
            .spawn(move || {
                let Finished { result, pool } = job.run(&to_write, &written);
                promise.outcome.put(result);
                pool
            })
            .map_err(|source| SaveError::Io {
                action: "start a thread to save into",
                path: self.root.clone(),
                source,
            })?;
        self.running = Some(Running {
            step,
            thread,
            outcome: Arc::clone(&outcome),
        });
        self.stage(&image, slabs, &filled, &free)?;
        Ok(Pending {
            step,
            outcome,
            hurry,
            stall_seconds: began.elapsed().as_secs_f64(),
            fresh_bytes: fresh,
        })
    }

    /// Copies the image into buffers, as many as are allowed, and then into those that come back.
    fn stage(
        &mut self,
        image: &Image<'_>,
        slabs: usize,
        filled: &SyncSender<Slab>,
        free: &Receiver<Region>,
    ) -> Result<(), SaveError> {
        let mut taken = 0;
        let mut at = 0;
        while at < image.len() {
            let buffer = if taken < slabs {
                taken += 1;
                Some(self.staging.take()?)
            } else {
                free.recv().ok()
            };
            // The other side has ended before its time and says why when it is asked.
            let Some(mut memory) = buffer else {
                return Ok(());
            };
            let cpu = usage::this_thread();
            let Some(bytes) = memory.as_mut_slice() else {
                return Ok(());
            };
            let length = image.copy(at, bytes);
            let used = crate::engine::since(cpu);
            let slab = Slab {
                memory,
                at,
                length,
                copying: used,
            };
            if filled.send(slab).is_err() {
                return Ok(());
            }
            at += length as u64;
        }
        self.staging.give_back(free.try_iter());
        Ok(())
    }

    /// Waits for a save in the background.
    ///
    /// # Errors
    /// Its error, unless somebody has heard of it.
    pub fn settle(&mut self) -> Result<(), SaveError> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        if let Ok(pool) = running.thread.join() {
            self.staging.give_back(pool);
        }
        // The receipt of a success that nobody waited for is still there for whoever waits later.
        let mut slot = running.outcome.slot();
        if matches!(&*slot, Slot::Done(result) if result.is_err())
            && let Slot::Done(result) = std::mem::replace(&mut *slot, Slot::Taken)
            && let Err(source) = *result
        {
            return Err(SaveError::Earlier {
                step: running.step,
                source: Box::new(source),
            });
        }
        Ok(())
    }

    /// Whether a save is still going on in the background.
    pub fn is_saving(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| !running.thread.is_finished())
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.thread.join();
        }
    }
}

/// A filled buffer on its way to the drive.
struct Slab {
    memory: Region,
    /// The place of its first byte in the file.
    at: u64,
    /// How many of its bytes are filled.
    length: usize,
    /// CPU time that filling it took.
    copying: CpuSeconds,
}
