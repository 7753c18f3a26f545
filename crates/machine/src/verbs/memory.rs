//! Protection domains and registered memory.

use std::ffi::{c_int, c_uint};
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use super::abi;
use super::completion::CompletionQueue;
use super::device::Context;
use super::error::VerbsError;
use super::mlx5::{ACCESS_DATA_DIRECT, DataDirect, NoDataDirect};
use super::pair::{QueuePair, Reset, Sizes};

/// Memory that may be registered with a device.
///
/// # Safety
/// From [`Pinned::address`] on, [`Pinned::len`] bytes must stay mapped at the same address as long
/// as the value lives. Nobody may hold references to the bytes while a device may write them, and
/// other threads and devices may write them at any time.
pub unsafe trait Pinned: Send + Sync {
    /// The address of the first byte, as this process (or the GPU) counts.
    fn address(&self) -> u64;

    /// How many bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What may be done with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The device may write it for its own queue pairs: receives, and the targets of reads.
    pub local_write: bool,
    /// Peers may read it.
    pub remote_read: bool,
    /// Peers may write it.
    pub remote_write: bool,
    /// Writes may overtake each other on PCIe.
    pub relaxed_ordering: bool,
}

impl Access {
    /// Everything, in strict order.
    pub const ALL: Self = Self {
        local_write: true,
        remote_read: true,
        remote_write: true,
        relaxed_ordering: false,
    };

    /// The same with or without relaxed ordering.
    pub const fn relaxed(self, relaxed_ordering: bool) -> Self {
        Self {
            relaxed_ordering,
            ..self
        }
    }

    pub(super) const fn flags(self) -> c_uint {
        let mut flags = 0;
        // The verbs refuse remote writes to what the device may not write itself.
        if self.local_write || self.remote_write {
            flags |= abi::ACCESS_LOCAL_WRITE;
        }
        if self.remote_read {
            flags |= abi::ACCESS_REMOTE_READ;
        }
        if self.remote_write {
            flags |= abi::ACCESS_REMOTE_WRITE;
        }
        if self.relaxed_ordering {
            flags |= abi::ACCESS_RELAXED_ORDERING;
        }
        flags
    }
}

/// The domain that regions and queue pairs share.
pub struct ProtectionDomain {
    raw: NonNull<abi::Pd>,
    relaxed: OnceLock<Result<(), String>>,
    data_direct: OnceLock<Result<DataDirect, NoDataDirect>>,
    context: Arc<Context>,
}

// SAFETY: libibverbs documents its verbs as thread-safe; a domain has no thread affinity.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.context.name())
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold an `Arc` of their domain, so none is left.
        let _ = unsafe { (self.context.functions().dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl ProtectionDomain {
    pub(super) fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.functions().alloc_pd)(context.raw()) };
        let raw = context.created(raw, || "ibv_alloc_pd".into())?;
        Ok(Arc::new(Self {
            raw,
            relaxed: OnceLock::new(),
            data_direct: OnceLock::new(),
            context: Arc::clone(context),
        }))
    }

    /// Whether the device takes relaxed ordering, found out once by registering a page with it; if
    /// not, why.
    ///
    /// # Errors
    /// What the attempt met.
    pub fn relaxed_ordering(self: &Arc<Self>) -> Result<(), &str> {
        let found = self.relaxed.get_or_init(|| {
            let access = Access::ALL.relaxed(true);
            let page = Page::new();
            // SAFETY: the page outlives the region, which nobody but the device knows of.
            match unsafe { self.register_raw(page.address(), page.len(), access) } {
                Ok(raw) => {
                    // SAFETY: the region was just made and nobody knows of it.
                    let rc = unsafe { (self.context.functions().dereg_mr)(raw.as_ptr()) };
                    if rc != 0 {
                        // The device may still write into it.
                        std::mem::forget(page);
                    }
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            }
        });
        match found {
            Ok(()) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// The device's path for data past the CPU, looked for once.
    ///
    /// # Errors
    /// That it has none, or that nobody can tell.
    pub fn data_direct(&self) -> Result<&DataDirect, &NoDataDirect> {
        let found = self.data_direct.get_or_init(|| {
            let functions = (self.context.functions().mlx5)();
            // SAFETY: the context is open as long as the domain is.
            unsafe { DataDirect::of(self.context.name(), self.context.raw(), functions) }
        });
        found.as_ref()
    }

    /// The device.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) const fn raw(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }

    /// Makes a reliable queue pair that reports what it sent and what it received to `sent` and
    /// `received`.
    ///
    /// # Errors
    /// The driver's refusal, for instance of the sizes.
    pub fn queue_pair(
        self: &Arc<Self>,
        sent: &Arc<CompletionQueue>,
        received: &Arc<CompletionQueue>,
        sizes: Sizes,
    ) -> Result<QueuePair<Reset>, VerbsError> {
        QueuePair::new(self, sent, received, sizes)
    }

    /// Registers memory by its address in this process. The kernel pins its pages; of a GPU's
    /// memory this asks the driver's peer-memory client.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn register(
        self: &Arc<Self>,
        memory: Arc<dyn Pinned>,
        access: Access,
    ) -> Result<Arc<MemoryRegion>, VerbsError> {
        // SAFETY: `Pinned` promises it as long as `memory` lives, which the region holds.
        let raw = unsafe { self.register_raw(memory.address(), memory.len(), access) }?;
        Ok(MemoryRegion::new(self, raw, memory, access))
    }

    /// Registers memory behind a dma-buf: `memory` starts `offset` bytes into it. Peers address
    /// the region by the memory's own addresses.
    ///
    /// # Errors
    /// The kernel's refusal, or [`VerbsError::Unsupported`].
    pub fn register_dma_buf(
        self: &Arc<Self>,
        memory: Arc<dyn Pinned>,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        access: Access,
    ) -> Result<Arc<MemoryRegion>, VerbsError> {
        let (address, len) = (memory.address(), memory.len());
        let raw = self.dma_buf(offset, len, address, dma_buf.as_raw_fd(), access)?;
        Ok(MemoryRegion::new(self, raw, memory, access))
    }

    /// Registers a GPU's memory behind a dma-buf of the PCIe mapping for the device's path past the CPU;
    /// otherwise as [`Self::register_dma_buf`].
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn register_data_direct(
        self: &Arc<Self>,
        path: &DataDirect,
        memory: Arc<dyn Pinned>,
        (dma_buf, offset): (BorrowedFd<'_>, u64),
        access: Access,
    ) -> Result<Arc<MemoryRegion>, VerbsError> {
        let (iova, len) = (memory.address(), memory.len());
        let flags = c_int::try_from(access.flags()).unwrap_or(0);
        let fd = dma_buf.as_raw_fd();
        let register = path.functions.reg_dmabuf_mr;
        // SAFETY: the domain is open and of an mlx5 device, or there were no such path; the kernel takes
        // its own reference to the dma-buf.
        let raw = unsafe { register(self.raw(), offset, len, iova, fd, flags, ACCESS_DATA_DIRECT) };
        let raw = self.context.created(raw, || {
            format!("mlx5dv_reg_dmabuf_mr of {len} bytes at offset {offset}, address {iova:#x}")
        })?;
        Ok(MemoryRegion::new(self, raw, memory, access))
    }

    /// # Safety
    /// The range must stay mapped, and nobody may hold references into it, until the region is gone.
    unsafe fn register_raw(
        &self,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<NonNull<abi::Mr>, VerbsError> {
        let functions = self.context.functions();
        let pointer = address as *mut std::ffi::c_void;
        // As the C header does: optional flags need the newer function, whose kernel interface
        // lets a driver ignore those it does not know.
        let raw = if access.relaxed_ordering {
            let register = functions.reg_mr_iova2()?;
            // SAFETY: the domain is open, and the caller vouches for the range.
            unsafe { register(self.raw(), pointer, len, address, access.flags()) }
        } else {
            let flags = c_int::try_from(access.flags()).unwrap_or(0);
            // SAFETY: as above.
            unsafe { (functions.reg_mr)(self.raw(), pointer, len, flags) }
        };
        self.context
            .created(raw, || format!("ibv_reg_mr of {len} bytes at {address:#x}"))
    }

    fn dma_buf(
        &self,
        offset: u64,
        len: usize,
        iova: u64,
        fd: c_int,
        access: Access,
    ) -> Result<NonNull<abi::Mr>, VerbsError> {
        let register = self.context.functions().reg_dmabuf_mr()?;
        let flags = c_int::try_from(access.flags()).unwrap_or(0);
        // SAFETY: the domain is open; the kernel takes its own reference to the dma-buf.
        let raw = unsafe { register(self.raw(), offset, len, iova, fd, flags) };
        self.context.created(raw, || {
            format!("ibv_reg_dmabuf_mr of {len} bytes at offset {offset}, address {iova:#x}")
        })
    }

    /// Asks whether the device registers dma-bufs at all, by trying with a descriptor that cannot
    /// be one: a kernel that knows how complains about the descriptor, another about the request.
    pub fn takes_dma_bufs(&self) -> DmaBufSupport {
        const NO_DESCRIPTOR: c_int = -1;
        let nothing = Access::default();
        match self.dma_buf(0, PROBE_BYTES, 0, NO_DESCRIPTOR, nothing) {
            Ok(raw) => {
                // SAFETY: the region was just made and nobody knows of it.
                let _ = unsafe { (self.context.functions().dereg_mr)(raw.as_ptr()) };
                DmaBufSupport::Unknown(VerbsError::Call {
                    device: self.context.name().to_owned(),
                    call: "ibv_reg_dmabuf_mr with descriptor -1".into(),
                    source: std::io::Error::other("it succeeded"),
                })
            }
            Err(error) => match error.errno() {
                Some(libc::EBADF) => DmaBufSupport::Yes,
                Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => DmaBufSupport::No(error),
                _ if matches!(error, VerbsError::Unsupported { .. }) => DmaBufSupport::No(error),
                _ => DmaBufSupport::Unknown(error),
            },
        }
    }
}

/// A page of host memory to try a registration with.
pub(super) struct Page(Box<PageBytes>);

#[repr(align(4096))]
struct PageBytes(#[expect(dead_code, reason = "only its address is used")] [u8; PROBE_BYTES]);

impl Page {
    pub(super) fn new() -> Self {
        Self(Box::new(PageBytes([0; PROBE_BYTES])))
    }
}

// SAFETY: the box never moves its page, whose bytes nobody looks at.
unsafe impl Pinned for Page {
    fn address(&self) -> u64 {
        std::ptr::from_ref::<PageBytes>(&self.0) as u64
    }

    fn len(&self) -> usize {
        PROBE_BYTES
    }
}

/// How many bytes the probes register, or pretend to.
const PROBE_BYTES: usize = 4096;

/// Whether a device registers dma-bufs.
#[derive(Debug)]
pub enum DmaBufSupport {
    /// It does.
    Yes,
    /// It does not; the refusal.
    No(VerbsError),
    /// The answer was something else.
    Unknown(VerbsError),
}

/// Memory that a device may reach. It stays registered, and the memory alive, until the last
/// clone of the `Arc` is gone, and requests in flight hold one.
pub struct MemoryRegion {
    raw: NonNull<abi::Mr>,
    address: u64,
    len: usize,
    access: Access,
    keys: Keys,
    /// Dropped by hand: after the region was deregistered, or never.
    memory: std::mem::ManuallyDrop<Arc<dyn Pinned>>,
    domain: Arc<ProtectionDomain>,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For this device's own requests.
    pub local: u32,
    /// For a peer's.
    pub remote: u32,
}

// SAFETY: the region is an identifier; its memory is `Send` and `Sync`.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MemoryRegion({} bytes on {})",
            self.len,
            self.domain.context.name()
        )
    }
}

impl MemoryRegion {
    fn new(
        domain: &Arc<ProtectionDomain>,
        raw: NonNull<abi::Mr>,
        memory: Arc<dyn Pinned>,
        access: Access,
    ) -> Arc<Self> {
        // SAFETY: the region was just made.
        let (local, remote) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Arc::new(Self {
            raw,
            address: memory.address(),
            len: memory.len(),
            access,
            keys: Keys { local, remote },
            memory: std::mem::ManuallyDrop::new(memory),
            domain: Arc::clone(domain),
        })
    }

    /// The address of the first byte, for local and remote requests alike.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys.
    pub const fn keys(&self) -> Keys {
        self.keys
    }

    /// What may be done with it.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<dyn Pinned> {
        &self.memory
    }

    /// A part of the region, for a request.
    ///
    /// # Errors
    /// [`VerbsError::OutOfBounds`].
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Result<Slice, VerbsError> {
        if range.start > range.end || range.end > self.len {
            return Err(VerbsError::OutOfBounds {
                start: range.start,
                end: range.end,
                len: self.len,
            });
        }
        Ok(Slice {
            region: Arc::clone(self),
            range,
        })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: no request in flight uses the region, as each holds an `Arc` of it; a peer's
        // requests fail from here on.
        let rc = unsafe { (self.domain.context.functions().dereg_mr)(self.raw.as_ptr()) };
        if rc == 0 {
            // SAFETY: dropped once, here. If deregistering failed the device may still write into
            // the memory, which then must never be freed.
            unsafe { std::mem::ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// A part of a region, in bytes from its start.
#[derive(Clone, Debug)]
pub struct Slice {
    pub(super) region: Arc<MemoryRegion>,
    range: Range<usize>,
}

impl Slice {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    pub(super) fn piece(&self) -> abi::Sge {
        abi::Sge {
            addr: self.region.address + self.range.start as u64,
            length: u32::try_from(self.len()).unwrap_or(u32::MAX),
            lkey: self.region.keys.local,
        }
    }
}
