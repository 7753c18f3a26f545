//! A storage library that exists only in this process, for tests: it moves bytes between real files
//! and the memory of [fake GPUs](crate::gpu::fake), counts as the real ones do, and fails as they
//! are known to.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::functions::Functions;
use super::statistics::Counters;
use crate::gpu::Dialect;
use crate::gpu::fake::FakeGpus;

mod calls;

/// Which way the library moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel's peer-to-peer DMA.
    #[default]
    Peer,
    /// By the vendor's kernel module.
    Module,
    /// Through host memory, which it calls compatible.
    Posix,
}

/// What the library does. The default does everything right and goes straight.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Which way.
    pub mode: Mode,
    /// One request in so many goes through host memory; 0 is none.
    pub posix_one_in: u64,
    /// Whether it refuses files in [`Mode::Posix`] once it was told to. Real versions did not.
    pub obeys_refusal: bool,
    /// Opening the driver returns this code.
    pub open: i32,
    /// Opening the driver closes descriptor 0.
    pub closes_input: bool,
    /// Opening the driver never returns.
    pub hangs: bool,
    /// Registering a file returns this code.
    pub register: i32,
    /// Registering memory returns this code.
    pub pin: i32,
    /// The most bytes that one request moves.
    pub longest: usize,
    /// Its version, as `cuFileGetVersion` counts.
    pub version: i32,
    /// Whether it counts which way requests went.
    pub counts: bool,
    /// Whether it has `cuFileReadv`, and with it the later layout of statistics.
    pub vectors: bool,
    /// Whether it has operations on streams and batches.
    pub queues: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            mode: Mode::Peer,
            posix_one_in: 0,
            obeys_refusal: false,
            open: 0,
            closes_input: false,
            hangs: false,
            register: 0,
            pin: 0,
            longest: usize::MAX,
            version: 1170,
            counts: true,
            vectors: false,
            queues: true,
        }
    }
}

/// A storage library in this process, as long as this and the fake GPUs live.
pub struct FakeStorage<'g> {
    gpus: std::marker::PhantomData<&'g FakeGpus>,
    dialect: Dialect,
}

impl<'g> FakeStorage<'g> {
    /// Installs it beside some GPUs.
    pub fn install(_gpus: &'g FakeGpus, dialect: Dialect, behaviour: Behaviour) -> Self {
        *state() = State {
            behaviour,
            ..State::default()
        };
        Self {
            gpus: std::marker::PhantomData,
            dialect,
        }
    }

    /// The table of functions.
    pub fn functions(&self) -> Arc<Functions> {
        Arc::new(table(self.dialect))
    }

    /// Changes what it does from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut state().behaviour);
    }

    /// Has the `nth` call of a function from now on fail with a code: one of the library's, or the
    /// negative of an error number where bytes are moved. Functions go by cuFile's names.
    pub fn fail(&self, call: &'static str, nth: u64, code: i32) {
        let mut state = state();
        let at = state.calls.get(call).copied().unwrap_or(0) + nth;
        state.failures.push((call, at, code));
    }

    /// How often each function was called, by cuFile's name.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        state().calls.clone()
    }

    /// How many drivers, files, pinned memories and batches exist now.
    pub fn alive(&self) -> usize {
        let state = state();
        state.opened + state.files.len() + state.pinned.len() + state.batches.len()
    }
}

/// Installs a library without GPUs, for a process that does nothing else.
#[cfg(test)]
pub(super) fn alone(dialect: Dialect, behaviour: Behaviour) -> Arc<Functions> {
    *state() = State {
        behaviour,
        ..State::default()
    };
    Arc::new(table(dialect))
}

#[derive(Default)]
struct State {
    behaviour: Behaviour,
    refused_compat: bool,
    opened: usize,
    files: HashMap<u64, i32>,
    pinned: HashMap<u64, usize>,
    batches: HashMap<u64, Vec<super::abi::BatchEvent>>,
    counters: Counters,
    requests: u64,
    next: u64,
    calls: BTreeMap<&'static str, u64>,
    failures: Vec<(&'static str, u64, i32)>,
}

// SAFETY: the cookies that events hold are numbers of their owner's, never looked behind.
unsafe impl Send for State {}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        0x7000 + 0x10 * self.next
    }

    fn called(&mut self, call: &'static str) -> Option<i32> {
        let count = self.calls.entry(call).or_default();
        let nth = *count;
        *count += 1;
        let mut due = self
            .failures
            .iter()
            .filter(|(name, at, _)| *name == call && *at == nth);
        due.next().map(|(_, _, code)| *code)
    }
}

fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn table(dialect: Dialect) -> Functions {
    let Behaviour {
        counts,
        vectors,
        queues,
        ..
    } = state().behaviour;
    let cuda = dialect == Dialect::Cuda;
    Functions {
        dialect,
        library: dialect.storage_libraries()[0].to_owned(),
        driver_open: calls::driver_open,
        handle_register: calls::handle_register,
        handle_deregister: calls::handle_deregister,
        buffer_register: calls::buffer_register,
        buffer_deregister: calls::buffer_deregister,
        read: calls::read,
        write: calls::write,
        driver_close_v2: cuda.then_some(calls::driver_close),
        driver_close: Some(calls::driver_close),
        version: cuda.then_some(calls::version),
        properties: Some(calls::properties),
        peer_flags: (cuda && counts).then_some(calls::peer_flags),
        set_bool: Some(calls::set_bool),
        set_string: cuda.then_some(calls::set_string),
        set_statistics_level: (cuda && counts).then_some(calls::set_statistics_level),
        statistics_start: (cuda && counts).then_some(calls::statistics_start),
        statistics: counts.then_some(calls::statistics),
        read_vector: vectors.then_some(calls::read_vector),
        read_async: queues.then_some(calls::read_async),
        write_async: queues.then_some(calls::write_async),
        batch_set_up: queues.then_some(calls::batch_set_up),
        batch_submit: queues.then_some(calls::batch_submit),
        batch_status: queues.then_some(calls::batch_status),
        batch_destroy: queues.then_some(calls::batch_destroy),
    }
}

#[cfg(test)]
mod tests;
