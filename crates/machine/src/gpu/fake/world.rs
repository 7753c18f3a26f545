//! Everything that exists, behind one lock: what is tested is the code above.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::super::abi;
use super::super::functions::Dialect;
use super::Model;
use super::space::{Physical, Reserved};

/// `CUDA_ERROR_ILLEGAL_ADDRESS`
pub(super) const ILLEGAL_ADDRESS: c_int = 700;
/// `CUDA_ERROR_INVALID_HANDLE`
pub(super) const INVALID_HANDLE: c_int = 400;

/// The copy that can be lost.
const COPY_IN: &str = "cuMemcpyHtoDAsync";

/// An export as a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Whether the PCIe mapping was asked for.
    pub pcie: bool,
}

/// A range of device addresses with memory behind it.
pub(super) struct Mapping {
    pub gpu: usize,
    pub len: usize,
    pub physical: Arc<Physical>,
    /// Its own addresses, unless it lies in a reservation.
    pub addresses: Option<Reserved>,
    /// What was asked for, where it is an allocation of the runtime's.
    pub allocated: Option<usize>,
    pub opened: bool,
}

/// One step of work on a stream. Answers whether it is done; a step that waits is asked again.
pub(crate) type Task = Box<dyn FnMut(&mut World) -> Result<bool, c_int> + Send>;

#[derive(Default)]
pub(super) struct StreamState {
    pub gpu: usize,
    queue: VecDeque<Task>,
    /// What went wrong, for whoever waits.
    failed: Option<c_int>,
}

impl StreamState {
    pub(super) fn of(gpu: usize) -> Self {
        Self {
            gpu,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct EventState {
    stream: u64,
    recorded: u64,
    reached: u64,
    /// Destroyed by its owner; streams may still wait for it.
    gone: bool,
}

#[derive(Default)]
pub(crate) struct World {
    pub(super) dialect: Option<Dialect>,
    pub(super) models: Vec<Model>,
    pub(super) contexts: HashMap<u64, usize>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    pub(super) reservations: BTreeMap<u64, Reserved>,
    pub(super) pieces: HashMap<u64, (usize, Arc<Physical>)>,
    pub(super) pinned: BTreeMap<u64, usize>,
    pub(super) streams: HashMap<u64, StreamState>,
    pub(super) events: HashMap<u64, EventState>,
    pub(super) peers: BTreeSet<(usize, usize)>,
    pub(super) exported: Vec<Exported>,
    unpinned: u64,
    /// What other devices wrote and a GPU does not show yet: GPU, address, bytes.
    late: Vec<(usize, u64, Vec<u8>)>,
    next: u64,
    calls: BTreeMap<&'static str, u64>,
    failures: Vec<(&'static str, u64, c_int)>,
    lost: Vec<u64>,
}

pub(crate) fn world() -> MutexGuard<'static, World> {
    static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn plug(&mut self, dialect: Dialect, models: &[Model]) {
        *self = Self::default();
        self.dialect = Some(dialect);
        self.models = models.to_vec();
    }

    pub(super) fn unplug(&mut self) {
        *self = Self::default();
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        0x1000 + 0x10 * self.next
    }

    pub(super) fn fail(&mut self, call: &'static str, nth: u64, code: c_int) {
        let at = self.calls.get(call).copied().unwrap_or(0) + nth;
        self.failures.push((call, at, code));
    }

    pub(super) fn lose(&mut self, nth: u64) {
        let at = self.calls.get(COPY_IN).copied().unwrap_or(0) + nth;
        self.lost.push(at);
    }

    /// Whether the copy into a GPU that was counted last is to do nothing.
    pub(super) fn loses(&self) -> bool {
        let last = self.calls.get(COPY_IN).copied().unwrap_or(0);
        self.lost.iter().any(|at| at + 1 == last)
    }

    /// Counts a call, and answers what it is to fail with.
    pub(super) fn called(&mut self, call: &'static str) -> Option<c_int> {
        let count = self.calls.entry(call).or_default();
        let nth = *count;
        *count += 1;
        let failures = self.failures.iter();
        let mut due = failures.filter(|(name, at, _)| *name == call && *at == nth);
        due.next().map(|(_, _, code)| *code)
    }

    pub(super) const fn calls(&self) -> &BTreeMap<&'static str, u64> {
        &self.calls
    }

    pub(super) fn exported(&self) -> &[Exported] {
        &self.exported
    }

    pub(super) const fn unpinned_bytes(&self) -> u64 {
        self.unpinned
    }

    pub(super) fn alive(&self) -> usize {
        let contexts: usize = self.contexts.values().sum();
        contexts
            + self.mappings.len()
            + self.reservations.len()
            + self.pieces.len()
            + self.pinned.len()
            + self.streams.len()
            + self.events.values().filter(|event| !event.gone).count()
    }

    pub(super) fn used(&self, gpu: usize) -> u64 {
        let of_gpu = self.mappings.values().filter(|m| m.gpu == gpu && !m.opened);
        of_gpu.map(|mapping| mapping.len as u64).sum()
    }

    /// The mapping that an address lies in, and where in it.
    pub(super) fn find(&self, address: u64) -> Option<(&Mapping, usize)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        let at = usize::try_from(address - start).ok()?;
        (at < mapping.len).then_some((mapping, at))
    }

    /// Memory that stands behind an address, for another mapping of it.
    pub(super) fn file_of(&self, address: u64) -> Option<OwnedFd> {
        self.find(address)?.0.physical.file().ok()
    }

    pub(super) fn is_pinned(&self, start: u64, len: usize) -> bool {
        let below = self.pinned.range(..=start).next_back();
        below.is_some_and(|(at, bytes)| start + len as u64 <= at + *bytes as u64)
    }

    pub(super) fn note_host(&mut self, start: u64, len: usize) {
        if !self.is_pinned(start, len) {
            self.unpinned += len as u64;
        }
    }

    /// Another device's write into a GPU's memory; false where none is. A GPU may show it late.
    pub(crate) fn written_by_device(&mut self, address: u64, bytes: &[u8]) -> bool {
        let Some(gpu) = self.find(address).map(|(mapping, _)| mapping.gpu) else {
            return false;
        };
        if self.models.get(gpu).is_some_and(|model| model.shows_late) {
            self.late.push((gpu, address, bytes.to_vec()));
            return true;
        }
        write(self, address, bytes)
    }

    /// Another device's read of a GPU's memory, which pushes earlier writes before it; false where
    /// there is none.
    pub(crate) fn read_by_device(&mut self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(gpu) = self.find(address).map(|(mapping, _)| mapping.gpu) else {
            return false;
        };
        self.show(gpu);
        read(self, address, bytes)
    }

    /// Shows what other devices wrote.
    pub(super) fn show(&mut self, gpu: usize) {
        for (of, address, bytes) in std::mem::take(&mut self.late) {
            match of == gpu {
                true => drop(write(self, address, &bytes)),
                false => self.late.push((of, address, bytes)),
            }
        }
    }

    /// Does one step of a stream; whether there was one to do.
    pub(super) fn step(&mut self, stream: u64) -> bool {
        let Some(state) = self.streams.get_mut(&stream) else {
            return false;
        };
        let Some(mut task) = state.queue.pop_front() else {
            return false;
        };
        if state.failed.is_some() {
            // A failed stream still lets whoever waits for its events go on.
            let _ = task(self);
            return true;
        }
        let done = task(self);
        let Some(state) = self.streams.get_mut(&stream) else {
            return true;
        };
        match done {
            Ok(true) => {}
            Ok(false) => {
                state.queue.push_front(task);
                return false;
            }
            Err(code) => state.failed = Some(code),
        }
        true
    }

    /// Does what a stream has, and what it waits for on others. Answers what failed, or that
    /// nothing can go on.
    pub(super) fn drain(&mut self, stream: u64) -> c_int {
        loop {
            let Some(state) = self.streams.get(&stream) else {
                return INVALID_HANDLE;
            };
            if state.queue.is_empty() {
                return state.failed.unwrap_or(abi::SUCCESS);
            }
            let others: Vec<u64> = self.streams.keys().copied().collect();
            let moved = self.step(stream) || others.iter().any(|other| self.step(*other));
            if !moved {
                // On a real GPU this hangs; a test is better served by an answer.
                return INVALID_HANDLE;
            }
        }
    }

    pub(super) fn record(&mut self, event: u64, stream: u64) -> c_int {
        let Some(state) = self.events.get_mut(&event) else {
            return INVALID_HANDLE;
        };
        state.recorded += 1;
        state.stream = stream;
        let mark = state.recorded;
        on_stream(
            self,
            stream,
            Box::new(move |world| {
                if let Some(state) = world.events.get_mut(&event) {
                    state.reached = state.reached.max(mark);
                    if state.gone && state.reached >= state.recorded {
                        world.events.remove(&event);
                    }
                }
                Ok(true)
            }),
        )
    }

    pub(super) fn wait_event(&mut self, stream: u64, event: u64) -> c_int {
        let Some(mark) = self.events.get(&event).map(|state| state.recorded) else {
            return INVALID_HANDLE;
        };
        on_stream(
            self,
            stream,
            Box::new(move |world| {
                let event = world.events.get(&event);
                Ok(event.is_none_or(|event| event.reached >= mark))
            }),
        )
    }

    /// Destroys an event. What waits for it goes on waiting.
    pub(super) fn destroy_event(&mut self, event: u64) -> c_int {
        match self.events.get_mut(&event) {
            Some(state) if !state.gone => {
                state.gone = true;
                if state.reached >= state.recorded {
                    self.events.remove(&event);
                }
                abi::SUCCESS
            }
            _ => INVALID_HANDLE,
        }
    }

    /// Whether an event is reached; else lets its stream take one step.
    pub(super) fn query(&mut self, event: u64) -> c_int {
        let Some(state) = self.events.get(&event).copied() else {
            return INVALID_HANDLE;
        };
        if state.reached < state.recorded {
            self.step(state.stream);
            return abi::NOT_READY;
        }
        self.failure_of(state.stream)
    }

    pub(super) fn wait(&mut self, event: u64) -> c_int {
        loop {
            let Some(state) = self.events.get(&event).copied() else {
                return INVALID_HANDLE;
            };
            if state.reached >= state.recorded {
                return self.failure_of(state.stream);
            }
            let others: Vec<u64> = self.streams.keys().copied().collect();
            if !self.step(state.stream) && !others.iter().any(|other| self.step(*other)) {
                return INVALID_HANDLE;
            }
        }
    }

    fn failure_of(&self, stream: u64) -> c_int {
        let failed = self.streams.get(&stream).and_then(|state| state.failed);
        failed.unwrap_or(abi::SUCCESS)
    }
}

/// Queues a task.
pub(crate) fn on_stream(world: &mut World, stream: u64, task: Task) -> c_int {
    match world.streams.get_mut(&stream) {
        Some(state) => {
            state.queue.push_back(task);
            abi::SUCCESS
        }
        None => INVALID_HANDLE,
    }
}

/// Copies out of device memory, across mappings that lie side by side; false when part of it is not
/// mapped.
pub(crate) fn read(world: &World, address: u64, to: &mut [u8]) -> bool {
    let mut done = 0;
    while done < to.len() {
        let Some((mapping, at)) = world.find(address + done as u64) else {
            return false;
        };
        let len = (mapping.len - at).min(to.len() - done);
        mapping.physical.read(at, &mut to[done..done + len]);
        done += len;
    }
    true
}

/// Copies into device memory, as [`read`].
pub(crate) fn write(world: &mut World, address: u64, from: &[u8]) -> bool {
    let mut done = 0;
    while done < from.len() {
        let Some((mapping, at)) = world.find(address + done as u64) else {
            return false;
        };
        let len = (mapping.len - at).min(from.len() - done);
        mapping.physical.write(at, &from[done..done + len]);
        done += len;
    }
    true
}
