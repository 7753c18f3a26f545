//! Memory of GPUs that NCCL registers: whose it is, and what makes writes into it visible.
//!
//! The fabric exports it by itself where it registers it, with all that it knows of mappings and of older
//! ways; the dma-buf that NCCL has exported for the same bytes is not needed, and NCCL closes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crowfly_machine::gpu::{Dialect, Gpu, GpuError, Runtime, WriteFlush};
use crowfly_route::units::PciAddress;

use crate::comm::locked;

/// The GPUs that the process uses.
#[derive(Default)]
pub(crate) struct Gpus {
    runtime: OnceLock<Result<Arc<Runtime>, GpuError>>,
    open: Mutex<HashMap<PciAddress, Arc<Gpu>>>,
}

impl Gpus {
    #[cfg(test)]
    pub(crate) fn of(runtime: Arc<Runtime>) -> Self {
        let gpus = Self::default();
        let _ = gpus.runtime.set(Ok(runtime));
        gpus
    }

    /// The GPU whose memory is at an address, and its number in PCI address order.
    pub(crate) fn owner_of(&self, address: u64) -> Result<(u32, Arc<Gpu>), GpuError> {
        // NCCL has loaded it long before it hands memory of a GPU over.
        let load = || Runtime::load(Dialect::Cuda);
        let runtime = self.runtime.get_or_init(load).clone()?;
        let (index, facts) = runtime.owner_of(address)?;
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let mut open = locked(&self.open);
        if let Some(gpu) = open.get(&facts.address) {
            return Ok((index, Arc::clone(gpu)));
        }
        let gpu = runtime.open(facts.address)?;
        open.insert(facts.address, Arc::clone(&gpu));
        Ok((index, gpu))
    }
}

/// Makes what NICs wrote visible to the GPU.
///
/// # Errors
/// Why that cannot be done.
pub(crate) fn flush(gpu: &Gpu) -> Result<(), String> {
    match gpu.flush_writes() {
        WriteFlush::NotNeeded(_) | WriteFlush::Flushed => Ok(()),
        WriteFlush::Impossible(why) => Err(why),
    }
}
