//! Registered memory: what peers can reach, and what transfers move bytes out of and into.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::receipt::{Path, Visibility};

use super::account::less_certain;
use super::descriptor::{RegionDescriptor, check};
use super::error::FabricError;
use super::gate::Gate;
use super::memory::{Backing, Buffer, Part, Span};
use super::provider::Registration;

/// How long the last step of a thread that moves bytes may take.
const LAST_STEP: Duration = Duration::from_secs(1);

/// What peers may do with a region. Its own process can always use it, as far as its memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    read: bool,
    write: bool,
    ordered: bool,
}

impl Access {
    /// Nothing: the region is only a source or destination of this process's own transfers.
    pub const LOCAL: Self = Self {
        read: false,
        write: false,
        ordered: false,
    };
    /// Peers may read.
    pub const READ: Self = Self {
        read: true,
        write: false,
        ordered: false,
    };
    /// Peers may write.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
        ordered: false,
    };
    /// Peers may read and write.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
        ordered: false,
    };

    /// The same, for memory that is watched for what peers write: no NIC may let a write overtake
    /// an earlier one on its way through the machine (relaxed ordering), so whoever sees the later
    /// sees the earlier as well.
    #[must_use]
    pub const fn ordered(self) -> Self {
        Self {
            ordered: true,
            ..self
        }
    }

    /// Whether writes must arrive in order.
    pub const fn is_ordered(self) -> bool {
        self.ordered
    }

    /// Whether peers may read.
    pub const fn allows_read(self) -> bool {
        self.read
    }

    /// Whether peers may write.
    pub const fn allows_write(self) -> bool {
        self.write
    }

    pub(crate) const fn to_bits(self) -> u8 {
        self.read as u8 | (self.write as u8) << 1
    }

    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0..=3 => Some(Self {
                read: bits & 1 != 0,
                write: bits & 2 != 0,
                ordered: false,
            }),
            _ => None,
        }
    }
}

/// Where a region was registered, and where that was refused.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    pub done: Vec<Registered>,
    /// Path, NIC, and what its probe met.
    pub refused: Vec<(Path, String, Vec<Obstacle>)>,
}

/// A region's registration with one NIC.
#[derive(Debug)]
pub(crate) struct Registered {
    pub path: Path,
    pub nic: String,
    pub registration: Registration,
}

/// What a region, its slices and the links that move its bytes share.
pub struct RegionCore {
    pub(crate) descriptor: RegionDescriptor,
    pub(crate) backing: Arc<Backing>,
    pub(crate) gate: Gate,
    pub(crate) registrations: Registrations,
}

impl fmt::Debug for RegionCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(f)
    }
}

impl RegionCore {
    /// The memory itself.
    pub const fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    /// What the named NIC of a path gave for this memory.
    pub fn registration(&self, path: Path, nic: &str) -> Option<&Registration> {
        let mut done = self.registrations.done.iter();
        done.find(|known| known.path == path && known.nic == nic)
            .map(|known| &known.registration)
    }

    /// What stood in the way of registering with the named NIC.
    pub fn refusal(&self, path: Path, nic: &str) -> Option<&[Obstacle]> {
        let mut refused = self.registrations.refused.iter();
        refused
            .find(|(at, name, _)| *at == path && name == nic)
            .map(|(_, _, obstacles)| obstacles.as_slice())
    }

    pub(crate) fn span(&self, range: Range<usize>) -> Option<Span> {
        self.backing.span(range)
    }
}

/// What a region tells the fabric when it ends.
pub(crate) trait Registrar: Send + Sync {
    /// Withdraws the region from all peers; those that mapped it have let go when this returns.
    fn withdraw(&self, region: &Arc<RegionCore>) -> Result<(), FabricError>;

    /// Waits until links have let go of what transfers that ended early left them with.
    fn await_release(&self, region: &RegionCore);
}

/// Registered memory. Peers and NICs may touch its bytes at any time, so they can only be copied
/// in and out; to get slices again, [`Region::deregister`] it.
///
/// Dropping a region withdraws it from all peers; the memory lives on until the last transfer that
/// uses it has let go.
pub struct Region {
    core: Arc<RegionCore>,
    registrar: Weak<dyn Registrar>,
    withdrawn: bool,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.core, f)
    }
}

impl Region {
    pub(crate) const fn new(core: Arc<RegionCore>, registrar: Weak<dyn Registrar>) -> Self {
        Self {
            core,
            registrar,
            withdrawn: false,
        }
    }

    /// What peers need to know to reach it.
    pub fn descriptor(&self) -> &RegionDescriptor {
        &self.core.descriptor
    }

    /// The memory itself, for requests to storage and for collectives.
    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.core.backing
    }

    /// Bytes of the region.
    pub fn len(&self) -> usize {
        self.core.backing.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the bytes are.
    pub fn place(&self) -> &Place {
        self.core.backing.place()
    }

    /// Why each NIC that refused to register this memory did so.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        let refused = self.core.registrations.refused.iter();
        refused
            .flat_map(|(_, _, obstacles)| obstacles.iter().cloned())
            .collect()
    }

    /// A part of the region, in bytes from its start, as the local end of a transfer.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    pub fn slice(&self, range: Range<usize>) -> Result<LocalSlice, FabricError> {
        check(&(range.start as u64..range.end as u64), self.len() as u64)?;
        Ok(LocalSlice {
            region: Arc::clone(&self.core),
            range,
        })
    }

    /// The whole region as the local end of a transfer.
    pub fn whole(&self) -> LocalSlice {
        LocalSlice {
            region: Arc::clone(&self.core),
            range: 0..self.len(),
        }
    }

    /// Copies bytes out, from `offset` on; returns how many there were, none when the GPU whose memory
    /// it is fails. What a peer writes at the same time may be seen in part.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> usize {
        self.fetch_at(offset, out).unwrap_or(0)
    }

    /// As [`Region::read_at`], with what the GPU answered where it fails.
    pub(crate) fn fetch_at(&self, offset: usize, out: &mut [u8]) -> Result<usize, FabricError> {
        let Some(part) = self.behind(offset) else {
            return Ok(0);
        };
        part.get(out).map_err(|error| FabricError::GpuFailed {
            gpu: self.place().to_string(),
            why: error.to_string(),
        })
    }

    /// Has the GPU whose memory it is see what NICs wrote there, and says how: the least certain of what
    /// its NICs say. `None` of host memory.
    pub(crate) fn show(&self) -> Option<Visibility> {
        self.core.backing.device()?;
        let done = self.core.registrations.done.iter();
        let said = done.map(|known| match &known.registration.flush {
            Some(flush) => flush(),
            None => known.registration.visibility.clone(),
        });
        let least = said.reduce(less_certain);
        Some(least.unwrap_or_else(Registration::copied_by_the_gpu))
    }

    /// Copies bytes in, from `offset` on; returns how many fitted, none when the memory can only
    /// be read, or the GPU whose memory it is fails.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> usize {
        let part = self.behind(offset);
        part.and_then(|part| part.put(bytes).ok()).unwrap_or(0)
    }

    /// What there is from a byte on.
    fn behind(&self, offset: usize) -> Option<Part<'_>> {
        let len = self.len();
        self.core.backing.part(offset.min(len)..len)
    }

    /// Takes the memory back: no peer and no transfer can touch it any more.
    ///
    /// # Errors
    /// [`FabricError::StillInUse`] when a slice or a transfer still holds it, and
    /// [`FabricError::StillMapped`] when a peer on this host did not let go of it in time. The
    /// region is withdrawn all the same, and its memory is freed when the last user lets go.
    pub fn deregister(mut self) -> Result<Buffer, FabricError> {
        self.withdraw()?;
        if let Some(registrar) = self.registrar.upgrade() {
            registrar.await_release(&self.core);
        }
        let core = Arc::clone(&self.core);
        drop(self);
        let until = Instant::now() + LAST_STEP;
        let busy = FabricError::StillInUse {
            by: "held by a slice or a transfer",
        };
        let core = sole(core, until).ok_or(busy.clone())?;
        let RegionCore {
            backing,
            registrations,
            ..
        } = core;
        drop(registrations);
        let backing = sole(backing, until).ok_or(busy)?;
        Ok(Buffer::from_backing(backing))
    }

    fn withdraw(&mut self) -> Result<(), FabricError> {
        if std::mem::replace(&mut self.withdrawn, true) {
            return Ok(());
        }
        self.core.gate.close();
        let registrar = self.registrar.upgrade();
        registrar.map_or(Ok(()), |registrar| registrar.withdraw(&self.core))
    }
}

/// The value, once nobody else holds it: threads that are through with it may still be about to let
/// go.
fn sole<T>(mut shared: Arc<T>, until: Instant) -> Option<T> {
    loop {
        match Arc::try_unwrap(shared) {
            Ok(value) => return Some(value),
            Err(still) if Instant::now() < until => {
                shared = still;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A peer that holds on keeps only memory that nobody else uses; what its GPU may still touch is
        // kept for ever.
        if self.withdraw().is_err() && self.core.backing.device().is_some() {
            std::mem::forget(Arc::clone(&self.core.backing));
        }
    }
}

/// The local end of a transfer: a part of a region. It keeps the memory alive.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    pub(crate) region: Arc<RegionCore>,
    pub(crate) range: Range<usize>,
}

impl LocalSlice {
    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}
