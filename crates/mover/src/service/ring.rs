//! Buffers for bytes on their way, one part each: storage reads and writes them, the fabric reaches
//! them.

use std::sync::Arc;

use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Visibility;

use super::error::ServiceError;
use super::limits::PART;
use crate::digest::{self, GRID};
use crate::fabric::{Access, Buffer, Fabric, FabricError, LocalSlice, Region};
use crate::gpu::Gpu;
use crate::memory::Memory;
use crate::pass::Spot;

mod staging;

pub(crate) use staging::{Staging, through_host};

/// What is hashed at a time: a copy of bytes that peers could write to, small enough to stay in the
/// innermost cache of a processor.
const BITE: usize = 16 << 10;
/// What is hashed at a time of a GPU's memory, which is waited for each time.
const DEVICE_BITE: usize = 256 << 10;

/// Buffers of a fixed number.
pub(crate) struct Ring {
    /// As storage has them; `None` where no core may touch or write them.
    memory: Option<Arc<Memory>>,
    region: Option<Region>,
    staging: Option<Staging>,
}

impl Ring {
    /// Buffers that the fabric reaches; peers may do with them what `access` says.
    ///
    /// # Errors
    /// When memory cannot be had or registered.
    pub(crate) fn registered(
        fabric: &Fabric,
        parts: usize,
        access: Access,
    ) -> Result<Self, ServiceError> {
        let buffer = Buffer::zeroed(parts * PART as usize, None)?;
        let region = fabric.register(buffer, access)?;
        let memory = Memory::over(region.backing()).ok_or(ServiceError::Protocol {
            peer: "this process".into(),
            what: "its own memory cannot be written to",
        })?;
        Ok(Self {
            memory: Some(memory),
            region: Some(region),
            staging: None,
        })
    }

    /// Buffers in a GPU's memory, which the fabric reaches as far as the machine allows.
    ///
    /// # Errors
    /// When the GPU has no room, or nothing reaches it directly and the policy asks for that.
    pub(crate) fn on_gpu(
        fabric: &Fabric,
        gpu: &Gpu,
        parts: usize,
        (access, policy): (Access, Policy),
    ) -> Result<Self, ServiceError> {
        let buffer = Buffer::on_gpu(gpu, parts * PART as usize)?;
        Ok(Self {
            memory: None,
            region: Some(fabric.register_by(buffer, access, policy)?),
            staging: None,
        })
    }

    /// What was loaded into memory, in place of buffers: peers read it where it is.
    ///
    /// # Errors
    /// When its bytes could vanish, or nothing reaches them directly and the policy asks for that.
    pub(crate) fn of_loaded(
        fabric: &Fabric,
        loaded: &crate::Region,
        policy: Policy,
    ) -> Result<Self, ServiceError> {
        let buffer = match loaded.device() {
            Some(_) => Buffer::of_loaded(loaded)?,
            None => Buffer::loaded(loaded.clone()).ok_or_else(|| ServiceError::WrongKind {
                path: loaded.place().to_string(),
                found: "memory whose bytes can vanish",
                wanted: "plain memory of this process or a GPU's",
            })?,
        };
        Ok(Self {
            memory: None,
            region: Some(fabric.register_by(buffer, Access::READ, policy)?),
            staging: None,
        })
    }

    /// The same buffers, reached by another fabric as well.
    ///
    /// # Errors
    /// When they are local, or cannot be registered there.
    pub(crate) fn also_registered(
        &self,
        fabric: &Fabric,
        access: Access,
    ) -> Result<Self, ServiceError> {
        let region = self.registered_region()?;
        Ok(Self {
            memory: self.memory.clone(),
            region: Some(fabric.register_also(region, access)?),
            staging: None,
        })
    }

    fn registered_region(&self) -> Result<&Region, ServiceError> {
        self.region.as_ref().ok_or(ServiceError::Protocol {
            peer: "this process".into(),
            what: "its buffers are not registered",
        })
    }

    /// Buffers for copies that stay on this machine.
    ///
    /// # Errors
    /// When memory cannot be had.
    pub(crate) fn local(parts: usize) -> Result<Self, ServiceError> {
        Ok(Self {
            memory: Some(Memory::host(parts * PART as usize, None)?),
            region: None,
            staging: None,
        })
    }

    /// Buffers for copies that stay on this machine, whose bytes end in a GPU's memory.
    ///
    /// # Errors
    /// When memory cannot be had, here or there.
    pub(crate) fn towards_gpu(parts: usize, gpu: &Gpu) -> Result<Self, ServiceError> {
        let memory = Memory::host(parts * PART as usize, gpu.device().facts().numa)?;
        Ok(Self {
            staging: Some(Staging::arriving(gpu, Arc::clone(&memory))?),
            memory: Some(memory),
            region: None,
        })
    }

    /// Buffers for copies that stay on this machine, whose bytes were loaded before: into a GPU's memory
    /// where `loaded` says so.
    ///
    /// # Errors
    /// When memory cannot be had.
    pub(crate) fn for_loaded(parts: usize, loaded: &crate::Region) -> Result<Self, ServiceError> {
        let local = Self::local(parts)?;
        let staging = match (loaded.place(), loaded.device(), &local.memory) {
            (Place::Gpu(index), Some((device, _)), Some(memory)) => {
                let memory = Arc::clone(memory);
                Some(Staging::leaving(index, device.gpu(), memory))
            }
            _ => None,
        };
        Ok(Self { staging, ..local })
    }

    /// The memory as the fabric has it; `None` of local buffers.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Buffer number `index`.
    pub(crate) fn slot(&self, index: usize) -> Slot<'_> {
        self.from(index as u64 * PART)
    }

    /// From this byte of the memory on.
    pub(crate) fn from(&self, at: u64) -> Slot<'_> {
        Slot {
            ring: self,
            at: at as usize,
        }
    }
}

/// One buffer.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'r> {
    ring: &'r Ring,
    at: usize,
}

impl<'r> Slot<'r> {
    /// For storage.
    ///
    /// # Errors
    /// When it is no host memory, which is a mistake of the caller's.
    pub(crate) fn spot(&self) -> Result<Spot, ServiceError> {
        let memory = self.ring.memory.as_ref().ok_or(ServiceError::Protocol {
            peer: "this process".into(),
            what: "storage does not reach its buffers",
        })?;
        Ok(Spot {
            memory: Arc::clone(memory),
            at: self.at,
        })
    }

    /// The same memory, from another byte on.
    pub(crate) fn from(&self, at: u64) -> Slot<'r> {
        self.ring.from(at)
    }

    /// Appends its first `len` bytes.
    ///
    /// # Errors
    /// As [`Self::spot`].
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>, len: usize) -> Result<(), ServiceError> {
        let (spot, done) = (self.spot()?, bytes.len());
        let target = spot
            .memory
            .target(spot.at..spot.at + len.min(PART as usize));
        bytes.resize(done + len, 0);
        let got = target.copy_out(0, bytes.get_mut(done..).unwrap_or_default());
        bytes.truncate(done + got);
        Ok(())
    }

    /// What copies between it and a GPU's memory, where one is at an end of the copy.
    pub(crate) const fn staging(&self) -> Option<&Staging> {
        self.ring.staging.as_ref()
    }

    /// Where it lies in the registered memory.
    pub(crate) const fn at(&self) -> u64 {
        self.at as u64
    }

    /// Its first bytes, for the fabric.
    ///
    /// # Errors
    /// When the buffers are local, which is a mistake of the caller's.
    pub(crate) fn local(&self, len: usize) -> Result<LocalSlice, ServiceError> {
        self.of(self.ring, len)
    }

    /// Its first bytes, for the fabric that `ring` has the same buffers registered with.
    ///
    /// # Errors
    /// As [`Self::local`].
    pub(crate) fn of(&self, ring: &Ring, len: usize) -> Result<LocalSlice, ServiceError> {
        Ok(ring.registered_region()?.slice(self.at..self.at + len)?)
    }

    /// Has the GPU whose memory it is see what NICs wrote there, and says how; `None` of host memory.
    pub(crate) fn show(&self) -> Option<Visibility> {
        self.ring.region.as_ref().and_then(Region::show)
    }

    /// Checksums of the first `len` bytes, one for each piece of the digest's grid.
    ///
    /// # Errors
    /// When the GPU whose memory it is fails.
    pub(crate) fn sums(&self, len: usize) -> Result<Vec<u64>, ServiceError> {
        match (&self.ring.memory, &self.ring.region) {
            (Some(memory), _) => {
                let target = memory.target(self.at..self.at + len.min(PART as usize));
                pieces(len, BITE, |at, bite| Ok(target.copy_out(at, bite)))
            }
            (None, Some(region)) => hash(region, self.at, len),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// Checksums of a part of a region, one for each piece of the digest's grid; the part begins on it.
///
/// # Errors
/// When the GPU whose memory it is fails.
pub(crate) fn sums_of(region: &Region, offset: u64, len: u32) -> Result<Vec<u64>, ServiceError> {
    hash(region, offset as usize, len as usize)
}

fn hash(region: &Region, start: usize, len: usize) -> Result<Vec<u64>, ServiceError> {
    let bite = match region.backing().device() {
        Some(_) => DEVICE_BITE,
        None => BITE,
    };
    pieces(len, bite, |at, bite| region.fetch_at(start + at, bite))
}

/// Checksums of `len` bytes that come bite by bite, one for each piece of the digest's grid; of fewer
/// where no more come.
fn pieces(
    len: usize,
    bite: usize,
    copy: impl Fn(usize, &mut [u8]) -> Result<usize, FabricError>,
) -> Result<Vec<u64>, ServiceError> {
    let mut buffer = vec![0; bite.min(len)];
    let mut sums = Vec::with_capacity(2);
    let mut done = 0;
    while done < len {
        let end = len.min(done + GRID as usize);
        let mut running = digest::Running::default();
        while done < end {
            let step = buffer.len().min(end - done);
            let bytes = buffer.get_mut(..step).unwrap_or_default();
            let got = copy(done, bytes)?;
            if got == 0 {
                return Ok(sums);
            }
            running.update(bytes.get(..got).unwrap_or_default());
            done += got;
        }
        sums.push(running.finish());
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{Settings, SharedKey};

    #[test]
    fn checksums_are_those_of_the_digest_wherever_the_bytes_lie() {
        let settings = Settings {
            shm: false,
            ..Settings::new(SharedKey::derive("ring"))
        };
        let fabric = Fabric::new(settings).expect("a fabric");
        let ring = Ring::registered(&fabric, 2, Access::READ_WRITE).expect("buffers");
        let len = GRID as usize + 5;
        let bytes: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
        let region = ring.region().expect("registered");
        assert_eq!(region.write_at(PART as usize, &bytes), len);
        let expected: Vec<u64> = bytes.chunks(GRID as usize).map(digest::piece).collect();
        assert_eq!(ring.slot(1).sums(len).expect("host memory"), expected);
        let served = sums_of(region, PART, len as u32);
        assert_eq!(served.expect("host memory"), expected);
        let none = ring.slot(0).sums(0);
        assert_eq!(none.expect("host memory"), Vec::<u64>::new());
    }
}
