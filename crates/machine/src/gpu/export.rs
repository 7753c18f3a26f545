//! Memory of a GPU as a dma-buf, for the RDMA stack.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use super::abi;
use super::device::Gpu;
use super::error::GpuError;
use crate::verbs::{ExportError, Exporter, Mapping};

/// Exports memory of one GPU.
#[derive(Debug)]
pub struct GpuExporter {
    gpu: Arc<Gpu>,
    owner: String,
    prefers_pcie: bool,
}

impl GpuExporter {
    /// Exports memory of this GPU, which people call `owner`.
    pub fn new(gpu: Arc<Gpu>, owner: impl Into<String>) -> Self {
        let prefers_pcie = gpu.facts().coherent_link == Some(true);
        Self {
            gpu,
            owner: owner.into(),
            prefers_pcie,
        }
    }
}

/// What stands for "there is no such function" among the runtime's answers.
const NO_FUNCTION: i32 = -1;

impl Exporter for GpuExporter {
    fn owner(&self) -> &str {
        &self.owner
    }

    fn prefers_pcie_mapping(&self) -> bool {
        self.prefers_pcie
    }

    fn export(&self, start: u64, len: u64, mapping: Mapping) -> Result<OwnedFd, ExportError> {
        let call = "cuMemGetHandleForAddressRange";
        let refused = |error: GpuError| ExportError {
            call: error.call().unwrap_or(call),
            code: error.answer().unwrap_or(NO_FUNCTION),
            meaning: match error {
                GpuError::Call { meaning, .. } => meaning,
                other => other.to_string(),
            },
        };
        let flags = match mapping {
            Mapping::Default => 0,
            Mapping::Pcie => abi::RANGE_MAPPING_PCIE,
        };
        let bytes = usize::try_from(len).map_err(|_| ExportError {
            call,
            code: abi::INVALID_VALUE,
            meaning: format!("{len} bytes are more than there are addresses"),
        })?;
        let _current = self.gpu.enter().map_err(refused)?;
        let mut fd = -1;
        let (to, kind) = ((&raw mut fd).cast(), abi::RANGE_DMA_BUF_FD);
        // SAFETY: of this kind, it writes one file descriptor.
        let exported = unsafe {
            self.gpu
                .functions()
                .range_handle(to, start, bytes, kind, flags)
        };
        self.gpu.did(exported).map_err(refused)?;
        if fd < 0 {
            return Err(ExportError {
                call,
                code: abi::SUCCESS,
                meaning: format!("success, and descriptor {fd}"),
            });
        }
        // SAFETY: the runtime made the descriptor for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
