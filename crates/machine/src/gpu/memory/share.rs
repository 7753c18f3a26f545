//! Memory of a GPU in several processes of one host: what is sent, and what is made of it.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::super::abi::{self, IpcHandle};
use super::super::device::Gpu;
use super::super::error::GpuError;
use super::{DeviceMemory, Owner};

/// What another process of this host opens memory by. The memory must stay allocated where it was
/// made for as long as it is open elsewhere.
#[derive(Debug)]
pub enum Shared {
    /// Memory of the runtime's allocator: the handle of its allocation, and where in that it starts.
    Handle {
        /// The handle.
        handle: IpcHandle,
        /// Bytes from the start of the allocation.
        offset: u64,
    },
    /// Memory that is mapped of pieces: each one, in order, with its bytes.
    Pieces(Vec<(OwnedFd, usize)>),
}

impl DeviceMemory {
    /// What another process opens the memory by.
    ///
    /// # Errors
    /// When it cannot be sent: it is of another process itself, or made in a way that its runtime
    /// has no handle for.
    pub fn share(&self) -> Result<Shared, GpuError> {
        let refused = |why: &str| GpuError::NotShareable {
            gpu: self.gpu.facts().address.to_string(),
            why: why.into(),
        };
        let _current = self.gpu.enter()?;
        let f = self.gpu.functions();
        if let Owner::Map { pieces, .. } = &self.owner {
            let sent = pieces.iter().map(|(handle, bytes)| {
                let mut fd = -1;
                let kind = abi::HANDLE_POSIX_FD;
                // SAFETY: of this kind, it writes one file descriptor; the piece is held by this.
                let exported = unsafe { f.export_handle((&raw mut fd).cast(), *handle, kind, 0) };
                self.gpu.did(exported)?;
                if fd < 0 {
                    return Err(refused(
                        "its runtime gave no descriptor and called it success",
                    ));
                }
                // SAFETY: the runtime made the descriptor for its caller.
                Ok((unsafe { OwnedFd::from_raw_fd(fd) }, *bytes))
            });
            return Ok(Shared::Pieces(sent.collect::<Result<_, _>>()?));
        }
        let (mut start, mut len) = (self.address, 0);
        match self.owner {
            Owner::Ipc(_) => return Err(refused("another process made it")),
            Owner::Other(_) => {
                let (to, bytes) = (&raw mut start, &raw mut len);
                // SAFETY: it writes an address and a number.
                self.gpu
                    // SAFETY: as above.
                    .did(unsafe { f.address_range(to, bytes, self.address) })?;
            }
            Owner::Allocator | Owner::Map { .. } => {}
        }
        let offset = self.address.checked_sub(start);
        let offset = offset.ok_or_else(|| refused("its allocation starts behind it"))?;
        let mut handle = IpcHandle { bytes: [0; 64] };
        // SAFETY: it writes one handle.
        self.gpu.did(unsafe { f.ipc_get(&raw mut handle, start) })?;
        Ok(Shared::Handle { handle, offset })
    }

    /// Memory that another process made and sent, on the GPU that it is of.
    ///
    /// # Errors
    /// When the runtime cannot open it: it is this process's own, or of another GPU.
    pub fn open(gpu: &Arc<Gpu>, shared: &Shared, len: usize) -> Result<Arc<Self>, GpuError> {
        let _current = gpu.enter()?;
        let f = gpu.functions();
        match shared {
            Shared::Handle { handle, offset } => {
                let mut start = 0;
                let flags = abi::IPC_LAZY_PEER_ACCESS;
                // SAFETY: it writes one address; the runtime checks the handle.
                gpu.did(unsafe { f.ipc_open(&raw mut start, *handle, flags) })?;
                Ok(Arc::new(Self {
                    gpu: Arc::clone(gpu),
                    address: start.saturating_add(*offset),
                    len,
                    owner: Owner::Ipc(start),
                }))
            }
            Shared::Pieces(sent) => {
                let reserved = sent
                    .iter()
                    .try_fold(0usize, |sum, (_, bytes)| sum.checked_add(*bytes))
                    .filter(|reserved| *reserved >= len);
                let reserved = reserved.ok_or(GpuError::OutOfBounds {
                    start: 0,
                    end: len,
                    len: 0,
                })?;
                let mut sent = sent.iter();
                Self::assemble(gpu, len, reserved, || {
                    let (fd, bytes) = sent.next().ok_or(GpuError::OutOfBounds {
                        start: 0,
                        end: len,
                        len: reserved,
                    })?;
                    let mut handle = 0;
                    let shareable = fd.as_fd().as_raw_fd() as usize as *mut std::ffi::c_void;
                    let kind = abi::HANDLE_POSIX_FD;
                    // SAFETY: it writes one handle; of this kind, the pointer is the descriptor.
                    gpu.did(unsafe { f.import_handle(&raw mut handle, shareable, kind) })?;
                    Ok((handle, *bytes))
                })
            }
        }
    }
}
