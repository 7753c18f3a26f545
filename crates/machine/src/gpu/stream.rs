//! Work queued on a GPU: copies one after the other on a [`Stream`], and [`Event`]s between them.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::abi::{self, Handle};
use super::device::Gpu;
use super::error::GpuError;
use super::functions::{Dialect, Refusal};
use super::memory::{DeviceMemory, Keeper, in_bounds};
use crate::verbs::Pinned;

enum Owner {
    Own,
    Other(#[expect(dead_code, reason = "held for its drop")] Keeper),
}

/// A queue of a GPU, whose work is done in order.
pub struct Stream {
    raw: Handle,
    gpu: Arc<Gpu>,
    owner: Owner,
}

// SAFETY: the runtimes' functions are thread-safe, and a stream has no thread affinity.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.gpu.facts().address)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Owner::Own, Ok(_current)) = (&self.owner, self.gpu.enter()) {
            // SAFETY: made by this type; the runtime finishes what is queued before it goes.
            drop(unsafe { self.gpu.functions().stream_destroy(self.raw) });
        }
    }
}

impl Stream {
    /// A queue that does not wait for the runtime's default one.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Arc<Self>, GpuError> {
        let _current = gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        gpu.did(unsafe {
            gpu.functions()
                .stream_create(&raw mut raw, abi::STREAM_NON_BLOCKING)
        })?;
        Ok(Arc::new(Self {
            raw,
            gpu: Arc::clone(gpu),
            owner: Owner::Own,
        }))
    }

    /// Another library's queue, such as the one that PyTorch's kernels are on.
    ///
    /// # Safety
    /// `raw` must be a stream of this GPU (`CUstream` or `hipStream_t`), or null for the default
    /// one, and stay so until `keeper` is dropped.
    pub unsafe fn lent(gpu: &Arc<Gpu>, raw: *mut std::ffi::c_void, keeper: Keeper) -> Arc<Self> {
        Arc::new(Self {
            raw,
            gpu: Arc::clone(gpu),
            owner: Owner::Other(keeper),
        })
    }

    /// The GPU.
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The runtime's own handle, for another library's call.
    pub const fn raw(&self) -> *mut std::ffi::c_void {
        self.raw
    }

    /// Queues a copy from host memory into the GPU's.
    ///
    /// # Errors
    /// When a range lies outside of its memory, or the runtime refuses.
    pub fn copy_in(
        &self,
        to: &Arc<DeviceMemory>,
        at: usize,
        from: &Arc<dyn Pinned>,
        range: Range<usize>,
    ) -> Result<InFlight, GpuError> {
        in_bounds(&range, from.len())?;
        let target = to.at(&(at..at.saturating_add(range.len())))?;
        let source = (from.address() + range.start as u64) as *const std::ffi::c_void;
        let held = Held(vec![Box::new(Arc::clone(to)), Box::new(Arc::clone(from))]);
        // SAFETY: both ranges lie in memories that are held until the copy is done.
        self.queue(held, || unsafe {
            let f = self.gpu.functions();
            f.copy_in(target, source, range.len(), self.raw)
        })
    }

    /// Queues a copy from the GPU's memory into host memory.
    ///
    /// # Errors
    /// When a range lies outside of its memory, or the runtime refuses.
    pub fn copy_out(
        &self,
        to: &Arc<dyn Pinned>,
        at: usize,
        from: &Arc<DeviceMemory>,
        range: Range<usize>,
    ) -> Result<InFlight, GpuError> {
        in_bounds(&(at..at.saturating_add(range.len())), to.len())?;
        let source = from.at(&range)?;
        let target = (to.address() + at as u64) as *mut std::ffi::c_void;
        let held = Held(vec![Box::new(Arc::clone(to)), Box::new(Arc::clone(from))]);
        // SAFETY: as above.
        self.queue(held, || unsafe {
            let f = self.gpu.functions();
            f.copy_out(target, source, range.len(), self.raw)
        })
    }

    /// Queues a copy between memories of GPUs that reach each other ([`Gpu::reach`]). Where they do
    /// not, runtimes may copy through host memory without saying so: it is for the caller to ask.
    ///
    /// # Errors
    /// When a range lies outside of its memory, or the runtime refuses.
    pub fn copy_across(
        &self,
        to: &Arc<DeviceMemory>,
        at: usize,
        from: &Arc<DeviceMemory>,
        range: Range<usize>,
    ) -> Result<InFlight, GpuError> {
        let target = to.at(&(at..at.saturating_add(range.len())))?;
        let source = from.at(&range)?;
        let len = range.len();
        let (to_gpu, from_gpu) = (to.gpu(), from.gpu());
        let held = Held(vec![Box::new(Arc::clone(to)), Box::new(Arc::clone(from))]);
        let f = self.gpu.functions();
        self.queue(held, || {
            if to_gpu.device() == from_gpu.device() {
                // SAFETY: as above.
                return unsafe { f.copy_within(target, source, len, self.raw) };
            }
            match f.dialect {
                // SAFETY: as above; the contexts are held by their GPUs, and those by the memories.
                Dialect::Cuda => unsafe {
                    let (into, out_of) = (to_gpu.context(), from_gpu.context());
                    f.copy_between_contexts(target, into, source, out_of, len, self.raw)
                },
                // SAFETY: as above.
                Dialect::Hip => unsafe {
                    let (into, out_of) = (to_gpu.device(), from_gpu.device());
                    f.copy_between_devices(target, into, source, out_of, len, self.raw)
                },
            }
        })
    }

    /// Queues the setting of bytes.
    ///
    /// # Errors
    /// When the range lies outside of the memory, or the runtime refuses.
    pub fn fill(
        &self,
        to: &Arc<DeviceMemory>,
        range: Range<usize>,
        byte: u8,
    ) -> Result<InFlight, GpuError> {
        let target = to.at(&range)?;
        let held = Held(vec![Box::new(Arc::clone(to))]);
        // SAFETY: the range lies in a memory that is held until it is done.
        self.queue(held, || unsafe {
            let f = self.gpu.functions();
            f.fill(target, byte, range.len(), self.raw)
        })
    }

    /// Queues work of another library that is handed [`Stream::raw`], and keeps `held` until it is
    /// done.
    ///
    /// # Errors
    /// The library's own refusal, or the runtime's.
    pub fn queue_other<E: From<GpuError>>(
        &self,
        held: Keeper,
        call: impl FnOnce() -> Result<(), E>,
    ) -> Result<InFlight, E> {
        let held = Held(vec![Box::new(held)]);
        let _current = self.gpu.enter()?;
        call()?;
        self.in_flight(held).map_err(E::from)
    }

    fn queue(
        &self,
        held: Held,
        call: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<InFlight, GpuError> {
        let _current = self.gpu.enter()?;
        self.gpu.did(call())?;
        self.in_flight(held)
    }

    fn in_flight(&self, held: Held) -> Result<InFlight, GpuError> {
        match self.record() {
            Ok(event) => Ok(InFlight {
                work: Some((event, held)),
            }),
            Err(error) => {
                // The work is queued and cannot be watched; its memory has to outlive it.
                if self.synchronize().is_err() {
                    std::mem::forget(held);
                }
                Err(error)
            }
        }
    }

    /// Marks what is queued so far.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn record(&self) -> Result<Event, GpuError> {
        let event = Event::new(&self.gpu)?;
        let _current = self.gpu.enter()?;
        // SAFETY: both are alive.
        let recorded = unsafe { self.gpu.functions().event_record(event.raw, self.raw) };
        self.gpu.did(recorded)?;
        Ok(event)
    }

    /// Has what is queued from now on wait for an event, without the CPU waiting.
    ///
    /// # Errors
    /// What the runtime answers.
    pub fn wait_for(&self, event: &Event) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: both are alive; the runtime keeps what it needs of the event.
        self.gpu.did(unsafe {
            self.gpu
                .functions()
                .stream_wait_event(self.raw, event.raw, 0)
        })
    }

    /// Has what is queued from now on wait until the four bytes at an offset are at least `value`,
    /// counted as the runtime does (cyclically).
    ///
    /// # Errors
    /// When the word lies outside of the memory or is not aligned, or the runtime refuses.
    pub fn wait_until(
        &self,
        word: &Arc<DeviceMemory>,
        at: usize,
        value: u32,
    ) -> Result<(), GpuError> {
        let address = Self::word(word, at)?;
        let _current = self.gpu.enter()?;
        let (f, flags) = (self.gpu.functions(), abi::WAIT_VALUE_GEQ);
        self.gpu.did(match f.dialect {
            // SAFETY: the word lies in a memory that the caller holds; a stream that waits for it
            // is the caller's to release before the memory goes.
            Dialect::Cuda => unsafe { f.wait_value(self.raw, address, value, flags) },
            // SAFETY: as above.
            Dialect::Hip => unsafe {
                f.wait_value_masked(self.raw, address, value, flags, u32::MAX)
            },
        })
    }

    /// Queues the setting of four bytes, after everything that was queued before.
    ///
    /// # Errors
    /// When the word lies outside of the memory or is not aligned, or the runtime refuses.
    pub fn write_word(
        &self,
        word: &Arc<DeviceMemory>,
        at: usize,
        value: u32,
    ) -> Result<InFlight, GpuError> {
        let address = Self::word(word, at)?;
        let held = Held(vec![Box::new(Arc::clone(word))]);
        // SAFETY: the word lies in a memory that is held until it is written.
        self.queue(held, || unsafe {
            let f = self.gpu.functions();
            f.write_value(self.raw, address, value, 0)
        })
    }

    fn word(memory: &Arc<DeviceMemory>, at: usize) -> Result<u64, GpuError> {
        const WORD: usize = size_of::<u32>();
        let end = at.saturating_add(WORD);
        let address = memory.at(&(at..end))?;
        if address % WORD as u64 == 0 {
            return Ok(address);
        }
        Err(GpuError::OutOfBounds {
            start: at,
            end,
            len: memory.len(),
        })
    }

    /// Waits until everything queued so far is done.
    ///
    /// # Errors
    /// What the runtime answers; work that failed shows here as well.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the stream is alive.
        self.gpu
            .did(unsafe { self.gpu.functions().stream_synchronize(self.raw) })
    }
}

/// A mark in a stream.
pub struct Event {
    raw: Handle,
    gpu: Arc<Gpu>,
}

// SAFETY: the runtimes' functions are thread-safe, and an event has no thread affinity.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({})", self.gpu.facts().address)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: made by this type; the runtime keeps what waits for it going.
            drop(unsafe { self.gpu.functions().event_destroy(self.raw) });
        }
    }
}

impl Event {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let _current = gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        gpu.did(unsafe {
            gpu.functions()
                .event_create(&raw mut raw, abi::EVENT_DISABLE_TIMING)
        })?;
        Ok(Self {
            raw,
            gpu: Arc::clone(gpu),
        })
    }

    /// Whether everything before the mark is done.
    ///
    /// # Errors
    /// When that work failed.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the event is alive.
        match unsafe { self.gpu.functions().event_query(self.raw) } {
            Err(Refusal::Answer { code, .. }) if code == abi::NOT_READY => Ok(false),
            other => self.gpu.did(other).map(|()| true),
        }
    }

    /// Waits until everything before the mark is done.
    ///
    /// # Errors
    /// When that work failed.
    pub fn wait(&self) -> Result<(), GpuError> {
        let _current = self.gpu.enter()?;
        // SAFETY: the event is alive.
        self.gpu
            .did(unsafe { self.gpu.functions().event_synchronize(self.raw) })
    }
}

/// What queued work uses, kept until it is done.
struct Held(#[expect(dead_code, reason = "held for its drop")] Vec<Box<dyn Any + Send + Sync>>);

/// Work that was queued. Dropping it waits for it, because a device may still use the memory.
#[must_use = "dropping it waits for the GPU"]
pub struct InFlight {
    work: Option<(Event, Held)>,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({:?})", self.work.as_ref().map(|work| &work.0))
    }
}

impl InFlight {
    /// Whether it is done.
    ///
    /// # Errors
    /// When it failed.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        self.work
            .as_ref()
            .map_or(Ok(true), |(event, _)| event.is_done())
    }

    /// The mark behind it, for another stream to wait for.
    pub fn event(&self) -> Option<&Event> {
        self.work.as_ref().map(|(event, _)| event)
    }

    /// Waits for it.
    ///
    /// # Errors
    /// When it failed.
    pub fn wait(mut self) -> Result<(), GpuError> {
        self.settle()
    }

    fn settle(&mut self) -> Result<(), GpuError> {
        let Some((event, held)) = self.work.take() else {
            return Ok(());
        };
        let waited = event.wait();
        if waited.is_err() {
            // Nobody knows whether the GPU is done with the memory: it is kept for ever.
            std::mem::forget(held);
        }
        waited
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let _ = self.settle();
    }
}
