//! Host memory that a GPU's copy engines reach by DMA.

use std::fmt;
use std::sync::Arc;

use super::abi;
use super::device::Gpu;
use super::error::GpuError;
use super::functions::Refusal;
use crate::verbs::Pinned;

/// Host memory that is pinned for GPUs until this is dropped. Copies from and to other host memory
/// work as well, through a buffer of the runtime's and not beside the program.
pub struct HostRegistration {
    memory: Arc<dyn Pinned>,
    gpu: Arc<Gpu>,
    /// Whether it is this value's to undo.
    ours: bool,
}

impl fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRegistration({} bytes)", self.memory.len())
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if !self.ours {
            return;
        }
        if let Ok(_current) = self.gpu.enter() {
            let start = self.memory.address() as *mut std::ffi::c_void;
            // SAFETY: registered by `new`; the memory is still mapped, and copies in flight hold it.
            drop(unsafe { self.gpu.functions().host_unregister(start) });
        }
    }
}

impl HostRegistration {
    /// Pins host memory. Memory that is pinned already stays so.
    ///
    /// # Errors
    /// What the runtime answers, for instance when too much is pinned.
    pub fn new(gpu: &Arc<Gpu>, memory: Arc<dyn Pinned>) -> Result<Self, GpuError> {
        let _current = gpu.enter()?;
        let (start, len) = (memory.address() as *mut std::ffi::c_void, memory.len());
        // SAFETY: the memory stays mapped while this value, which holds it, lives.
        let registered = unsafe {
            gpu.functions()
                .host_register(start, len, abi::HOST_REGISTER_PORTABLE)
        };
        let ours = match registered {
            Err(Refusal::Answer { code, .. }) if code == abi::HOST_MEMORY_ALREADY_REGISTERED => {
                false
            }
            other => {
                gpu.did(other)?;
                true
            }
        };
        Ok(Self {
            memory,
            gpu: Arc::clone(gpu),
            ours,
        })
    }

    /// The memory.
    pub const fn memory(&self) -> &Arc<dyn Pinned> {
        &self.memory
    }
}
