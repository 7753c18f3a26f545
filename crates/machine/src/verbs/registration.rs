//! Registering memory the best way there is, and saying what stood in the way of better ones.
//!
//! Host memory is registered by its address. A GPU's memory is exported as a dma-buf and registered
//! through it, or, where that is refused, by its address through the driver's peer-memory client
//! (nvidia-peermem). What is reported was met by a real attempt: neither a library's version nor a
//! loaded module proves that registering works.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crowfly_route::obstacle::{Code, Obstacle};

use self::refusal::Medium;
use super::error::VerbsError;
use super::memory::{Access, MemoryRegion, Pinned, ProtectionDomain};
use super::mlx5::NoDataDirect;

mod refusal;
mod visibility;

pub use visibility::{Flush, GpuFacts};

/// How a GPU's memory is mapped for other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// As the driver does by default; on coherent CPU-GPU links that is the CPU's address space.
    Default,
    /// Through the GPU's PCIe BAR, past the coherent link and for NICs with a data-direct path beside the
    /// CPU (`CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`).
    Pcie,
}

/// A driver's refusal to export memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} returned {code}: {meaning}")]
pub struct ExportError {
    /// The function that was called.
    pub call: &'static str,
    /// What it returned.
    pub code: i32,
    /// What the driver says that means.
    pub meaning: String,
}

impl ExportError {
    /// `CUDA_ERROR_INVALID_VALUE`: drivers that do not know a flag.
    pub const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_NOT_SUPPORTED`: drivers that know it and cannot honour it.
    pub const NOT_SUPPORTED: i32 = 801;

    /// Whether the flag, rather than the memory, may be what was refused.
    const fn may_be_the_flag(&self) -> bool {
        matches!(self.code, Self::INVALID_VALUE | Self::NOT_SUPPORTED)
    }
}

/// A driver that exports memory of its device as dma-bufs.
pub trait Exporter {
    /// What the memory belongs to, as people call it: `GPU 0`.
    fn owner(&self) -> &str;

    /// Whether the PCIe mapping is worth asking for with any NIC: the GPU hangs on a coherent link
    /// beside its PCIe one.
    fn prefers_pcie_mapping(&self) -> bool {
        false
    }

    /// Exports exactly the bytes `start .. start + len`, both multiples of the page size.
    ///
    /// # Errors
    /// The driver's refusal.
    fn export(&self, start: u64, len: u64, mapping: Mapping) -> Result<OwnedFd, ExportError>;
}

/// By which way memory was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host memory, by its address.
    Host,
    /// Device memory, through a dma-buf with this mapping.
    DmaBuf(Mapping),
    /// Device memory, through a dma-buf with the PCIe mapping and the NIC's path past the CPU.
    DataDirect,
    /// Device memory, by its address through the driver's peer-memory client.
    PeerClient,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host memory",
            Self::DmaBuf(Mapping::Default) => "dma-buf",
            Self::DmaBuf(Mapping::Pcie) => "dma-buf with the PCIe mapping",
            Self::DataDirect => "dma-buf, data-direct",
            Self::PeerClient => "peer-memory client",
        })
    }
}

/// Memory that was registered.
#[derive(Debug)]
pub struct Registered {
    /// The region.
    pub region: Arc<MemoryRegion>,
    /// By which way.
    pub way: Way,
    /// Whether writes to it may overtake each other on PCIe.
    pub relaxed_ordering: bool,
    /// What makes a peer's writes visible to the memory's device.
    pub flush: Flush,
    /// What was met on the way: better ways that were refused.
    pub obstacles: Vec<Obstacle>,
}

/// Why a device that was asked whether it takes dma-bufs at all does not.
pub(super) fn dma_buf_refusal(nic: &str, error: &VerbsError) -> Obstacle {
    refusal::obstacle(nic, &Medium::DmaBuf("any device"), error)
}

/// Registers host memory, with relaxed ordering where the device takes it.
///
/// # Errors
/// What a real attempt met.
pub fn register_host(
    domain: &Arc<ProtectionDomain>,
    memory: &Arc<dyn Pinned>,
    access: Access,
) -> Result<Registered, Vec<Obstacle>> {
    let attempt = |access| domain.register(Arc::clone(memory), access);
    let mut obstacles = Vec::new();
    let registered = relaxed_if_possible(domain, access, &mut obstacles, attempt);
    of_host(domain, registered, obstacles)
}

/// Registers host memory that is watched for what peers write, where no write may overtake an
/// earlier one.
///
/// # Errors
/// What a real attempt met.
pub fn register_host_ordered(
    domain: &Arc<ProtectionDomain>,
    memory: &Arc<dyn Pinned>,
    access: Access,
) -> Result<Registered, Vec<Obstacle>> {
    let registered = domain.register(Arc::clone(memory), access.relaxed(false));
    of_host(domain, registered, Vec::new())
}

fn of_host(
    domain: &Arc<ProtectionDomain>,
    registered: Result<Arc<MemoryRegion>, VerbsError>,
    mut obstacles: Vec<Obstacle>,
) -> Result<Registered, Vec<Obstacle>> {
    match registered {
        Ok(region) => Ok(Registered {
            relaxed_ordering: region.access().relaxed_ordering,
            region,
            way: Way::Host,
            flush: Flush::not_needed_for_host(),
            obstacles,
        }),
        Err(error) => {
            obstacles.push(refusal::obstacle(
                domain.context().name(),
                &Medium::Host,
                &error,
            ));
            Err(obstacles)
        }
    }
}

/// Registers device memory, the best way first: through a dma-buf by the NIC's path past the CPU where it
/// has one, through one with the PCIe mapping where the GPU hangs on a coherent link, through one as the
/// driver maps it by default, or else through the driver's peer-memory client.
///
/// # Errors
/// What a real attempt of each met.
pub fn register_device(
    domain: &Arc<ProtectionDomain>,
    memory: &Arc<dyn Pinned>,
    exporter: &dyn Exporter,
    facts: &GpuFacts,
    access: Access,
) -> Result<Registered, Vec<Obstacle>> {
    let mut obstacles = Vec::new();
    let done = |region: Arc<MemoryRegion>, way, obstacles| Registered {
        relaxed_ordering: region.access().relaxed_ordering,
        flush: Flush::of(facts, way),
        region,
        way,
        obstacles,
    };
    match by_dma_buf(domain, memory, exporter, access, &mut obstacles) {
        Ok((region, way)) => return Ok(done(region, way, obstacles)),
        Err(obstacle) => obstacles.push(*obstacle),
    }
    let attempt = |access| domain.register(Arc::clone(memory), access);
    match relaxed_if_possible(domain, access, &mut obstacles, attempt) {
        Ok(region) => Ok(done(region, Way::PeerClient, obstacles)),
        Err(error) => {
            let medium = Medium::PeerClient(exporter.owner());
            obstacles.push(refusal::obstacle(domain.context().name(), &medium, &error));
            // Beside ways that are closed, what would have slowed them does not matter.
            obstacles.retain(|o| o.effect == crowfly_route::obstacle::Effect::Blocks);
            Err(obstacles)
        }
    }
}

fn by_dma_buf(
    domain: &Arc<ProtectionDomain>,
    memory: &Arc<dyn Pinned>,
    exporter: &dyn Exporter,
    access: Access,
    obstacles: &mut Vec<Obstacle>,
) -> Result<(Arc<MemoryRegion>, Way), Box<Obstacle>> {
    let nic = domain.context().name();
    if let Ok(path) = domain.data_direct() {
        let attempt = |dma_buf: BorrowedFd<'_>, offset, access| {
            domain.register_data_direct(path, Arc::clone(memory), (dma_buf, offset), access)
        };
        match mapped(
            domain,
            memory,
            exporter,
            Mapping::Pcie,
            access,
            obstacles,
            &attempt,
        ) {
            Ok(region) => return Ok((region, Way::DataDirect)),
            Err(refused) => {
                obstacles.push(refusal::no_data_direct(nic, exporter.owner(), &refused));
            }
        }
    }
    let attempt = |dma_buf: BorrowedFd<'_>, offset, access| {
        domain.register_dma_buf(Arc::clone(memory), dma_buf, offset, access)
    };
    if exporter.prefers_pcie_mapping() {
        match mapped(
            domain,
            memory,
            exporter,
            Mapping::Pcie,
            access,
            obstacles,
            &attempt,
        ) {
            Ok(region) => return Ok((region, Way::DmaBuf(Mapping::Pcie))),
            Err(refused) if refused.may_be_the_flag() => {
                let mut slower = refusal::no_pcie_mapping(nic, exporter.owner(), &refused);
                if let Err(unknown @ NoDataDirect::Unknown(_)) = domain.data_direct() {
                    slower = slower.seen("data-direct path", unknown.to_string());
                }
                obstacles.push(slower);
            }
            Err(refused) => return Err(Box::new(refused.obstacle(nic, exporter.owner()))),
        }
    }
    mapped(
        domain,
        memory,
        exporter,
        Mapping::Default,
        access,
        obstacles,
        &attempt,
    )
    .map(|region| (region, Way::DmaBuf(Mapping::Default)))
    .map_err(|refused| Box::new(refused.obstacle(nic, exporter.owner())))
}

/// One of the two steps of a registration through a dma-buf refused.
enum Refused {
    Export(ExportError),
    Register(VerbsError),
}

impl Refused {
    fn may_be_the_flag(&self) -> bool {
        match self {
            Self::Export(error) => error.may_be_the_flag(),
            Self::Register(error) => error.errno() == Some(libc::EINVAL),
        }
    }

    fn obstacle(&self, nic: &str, owner: &str) -> Obstacle {
        match self {
            Self::Export(error) => refusal::export(owner, error),
            Self::Register(error) => refusal::obstacle(nic, &Medium::DmaBuf(owner), error),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Export(error) => error.fmt(f),
            Self::Register(error) => error.fmt(f),
        }
    }
}

/// Registers memory that starts so many bytes into a dma-buf.
type Register<'r> =
    dyn Fn(BorrowedFd<'_>, u64, Access) -> Result<Arc<MemoryRegion>, VerbsError> + 'r;

/// Exports the pages that hold the memory and registers the memory within them. The range is the
/// one asked for, not the allocation it lies in: memory may be stitched together of many
/// allocations, and a driver knows the bounds of only one. The region keeps the memory's own
/// addresses, so that what peers compute with them is right.
fn mapped(
    domain: &Arc<ProtectionDomain>,
    memory: &Arc<dyn Pinned>,
    exporter: &dyn Exporter,
    mapping: Mapping,
    access: Access,
    obstacles: &mut Vec<Obstacle>,
    register: &Register<'_>,
) -> Result<Arc<MemoryRegion>, Refused> {
    let pages = Pages::around(
        memory.address(),
        memory.len(),
        rustix::param::page_size() as u64,
    );
    let dma_buf = exporter
        .export(pages.start, pages.len, mapping)
        .map_err(Refused::Export)?;
    let attempt = |access| register(dma_buf.as_fd(), pages.offset, access);
    // The descriptor closes on return: the registration holds the memory by itself.
    relaxed_if_possible(domain, access, obstacles, attempt).map_err(Refused::Register)
}

/// The whole pages that hold a range.
#[derive(Debug, PartialEq, Eq)]
struct Pages {
    start: u64,
    len: u64,
    /// Where the range starts within them.
    offset: u64,
}

impl Pages {
    fn around(address: u64, len: usize, page: u64) -> Self {
        let start = address - address % page;
        let offset = address - start;
        let whole = offset.saturating_add(len as u64).max(1);
        Self {
            start,
            len: whole.checked_next_multiple_of(page).unwrap_or(whole),
            offset,
        }
    }
}

/// Tries with relaxed ordering first and without it when that may be what was refused; an obstacle
/// says so then.
fn relaxed_if_possible(
    domain: &Arc<ProtectionDomain>,
    access: Access,
    obstacles: &mut Vec<Obstacle>,
    attempt: impl Fn(Access) -> Result<Arc<MemoryRegion>, VerbsError>,
) -> Result<Arc<MemoryRegion>, VerbsError> {
    let refused = match domain.relaxed_ordering() {
        Ok(()) => match attempt(access.relaxed(true)) {
            Ok(region) => return Ok(region),
            Err(error) if error.errno() == Some(libc::EINVAL) => error.to_string(),
            Err(error) => return Err(error),
        },
        Err(why) => why.to_owned(),
    };
    let region = attempt(access.relaxed(false))?;
    let known = obstacles.iter().any(|o| o.code == Code::RelaxedOrderingOff);
    if !known {
        obstacles.push(refusal::strict_ordering(domain.context().name(), &refused));
    }
    Ok(region)
}

#[cfg(test)]
mod tests;
