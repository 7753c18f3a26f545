//! GPUs that exist only in this process, for tests: a table of functions that behaves as CUDA's
//! driver API or as HIP, with every call's failure to be had for the asking.
//!
//! Their memory has addresses that a core which touches them is killed for, as on real machines.
//! It starts out full of [`POISON`], never of zeros. Work on a stream is not done when it is
//! queued, but bit by bit when somebody asks or waits for it: a buffer that is used again too early
//! shows as wrong bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crowfly_route::units::PciAddress;

use super::functions::{Dialect, Functions};
use super::memory::DeviceMemory;
use super::runtime::Runtime;
use crate::verbs::Pinned;

mod calls;
mod space;
mod world;

pub use world::Exported;
pub(crate) use world::{Task, World, on_stream, read, world, write};

/// What fresh memory is full of.
pub const POISON: u8 = 0xd5;

/// One of the GPUs. The default has everything and reaches all others.
#[derive(Clone, Debug)]
pub struct Model {
    /// Bytes of memory.
    pub memory: u64,
    /// Its compute capability.
    pub capability: (i32, i32),
    /// Whether the CPU reaches its memory coherently.
    pub coherent: bool,
    /// Whether its memory can be reached by the other GPUs.
    pub reachable: bool,
    /// What it answers for `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`.
    pub flush_options: i32,
    /// What it answers for `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`.
    pub writes_ordering: i32,
    /// Whether it shows what other devices write only after a flush, or after a device read it.
    pub shows_late: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            capability: (9, 0),
            coherent: false,
            reachable: true,
            flush_options: 1,
            writes_ordering: 100,
            shows_late: false,
        }
    }
}

/// GPUs in this process, plugged out when they are dropped. Only one set exists at a time: a second
/// one waits for the first to go.
pub struct FakeGpus {
    dialect: Dialect,
    without: Vec<&'static str>,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl FakeGpus {
    /// Plugs GPUs in, the first at 0000:10:00.0, the next at 0000:11:00.0 and so on.
    pub fn plug(dialect: Dialect, models: &[Model]) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        world().plug(dialect, models);
        Self {
            dialect,
            without: Vec::new(),
            _alone: alone,
        }
    }

    /// Some GPUs of CUDA.
    pub fn cuda(count: usize) -> Self {
        Self::plug(Dialect::Cuda, &vec![Model::default(); count])
    }

    /// Takes a function out of the library, by CUDA's name.
    pub fn without(mut self, call: &'static str) -> Self {
        self.without.push(call);
        self
    }

    /// The address of a GPU.
    pub fn address(index: usize) -> PciAddress {
        PciAddress {
            domain: 0,
            bus: 0x10 + index as u8,
            device: 0,
            function: 0,
        }
    }

    /// The table of functions.
    pub fn functions(&self) -> Arc<Functions> {
        Arc::new(calls::functions(self.dialect, &self.without))
    }

    /// The runtime.
    ///
    /// # Errors
    /// Those that were asked for.
    pub fn runtime(&self) -> Result<Arc<Runtime>, super::GpuError> {
        // SAFETY: the functions do what the makers document.
        unsafe { Runtime::with(self.functions()) }
    }

    /// Has the `nth` call of a function from now on, counted from 0, fail with a code. Functions go
    /// by CUDA's names in both dialects.
    pub fn fail(&self, call: &'static str, nth: u64, code: i32) {
        world().fail(call, nth, code);
    }

    /// Has the `nth` copy from host memory from now on succeed without copying anything.
    pub fn lose_copy(&self, nth: u64) {
        world().lose(nth);
    }

    /// How often each function was called, by CUDA's name.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        world().calls().clone()
    }

    /// How many allocations, mappings, registrations, streams, events and contexts exist now.
    pub fn alive(&self) -> usize {
        world().alive()
    }

    /// What was exported as dma-bufs, in order.
    pub fn exported(&self) -> Vec<Exported> {
        world().exported().to_vec()
    }

    /// Bytes that were copied from or to host memory that was not pinned.
    pub fn unpinned_bytes(&self) -> u64 {
        world().unpinned_bytes()
    }

    /// What a GPU's memory holds, as the GPU sees it now: work that is queued may still change it.
    pub fn bytes(&self, memory: &DeviceMemory) -> Vec<u8> {
        let mut bytes = vec![0; memory.len()];
        assert!(
            read(&world(), memory.address(), &mut bytes),
            "it is no longer allocated"
        );
        bytes
    }

    /// Changes what a GPU's memory holds, as a kernel or another device would.
    pub fn set_bytes(&self, memory: &DeviceMemory, at: usize, bytes: &[u8]) {
        assert!(
            write(&mut world(), memory.address() + at as u64, bytes),
            "it is no longer allocated"
        );
    }
}

impl Drop for FakeGpus {
    fn drop(&mut self) {
        world().unplug();
    }
}

#[cfg(test)]
mod tests;
