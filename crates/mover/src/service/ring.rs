//! Buffers for bytes on their way, one part each: storage reads and writes them, the fabric reaches
//! them.

use std::sync::Arc;

use super::error::ServiceError;
use super::limits::PART;
use crate::digest::{self, GRID};
use crate::fabric::{Access, Buffer, Fabric, LocalSlice, Region};
use crate::memory::Memory;
use crate::pass::Spot;

/// What is hashed at a time: a copy of bytes that peers could write to, small enough to stay in the
/// innermost cache of a processor.
const BITE: usize = 16 << 10;

/// Buffers of a fixed number.
pub(crate) struct Ring {
    memory: Arc<Memory>,
    region: Option<Region>,
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
            memory,
            region: Some(region),
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
            memory: Arc::clone(&self.memory),
            region: Some(fabric.register_also(region, access)?),
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
            memory: Memory::host(parts * PART as usize, None)?,
            region: None,
        })
    }

    /// The memory as the fabric has it; `None` of local buffers.
    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Buffer number `index`.
    pub(crate) fn slot(&self, index: usize) -> Slot<'_> {
        Slot {
            ring: self,
            at: index * PART as usize,
        }
    }
}

/// One buffer.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'r> {
    ring: &'r Ring,
    at: usize,
}

impl Slot<'_> {
    /// For storage.
    pub(crate) fn spot(&self) -> Spot {
        Spot {
            memory: Arc::clone(&self.ring.memory),
            at: self.at,
        }
    }

    /// Puts bytes there, from `at` on; what has no room is left out.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let (start, end) = (self.at, self.at + PART as usize);
        self.ring.memory.target(start..end).put(at, bytes);
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

    /// Checksums of the first `len` bytes, one for each piece of the digest's grid.
    pub(crate) fn sums(&self, len: usize) -> Vec<u64> {
        let target = self
            .ring
            .memory
            .target(self.at..self.at + len.min(PART as usize));
        let mut bite = [0; BITE];
        let mut sums = Vec::with_capacity(2);
        let mut done = 0;
        while done < len {
            let end = len.min(done + GRID as usize);
            let mut hash = digest::Running::default();
            while done < end {
                let step = BITE.min(end - done);
                let got = target.copy_out(done, &mut bite[..step]);
                if got == 0 {
                    return sums;
                }
                hash.update(&bite[..got]);
                done += got;
            }
            sums.push(hash.finish());
        }
        sums
    }
}

/// Checksums of a part of a region, one for each piece of the digest's grid.
pub(crate) fn sums_of(region: &Region, offset: u64, len: u32) -> Vec<u64> {
    let mut bite = [0; BITE];
    let mut sums = Vec::with_capacity(2);
    let end = offset.saturating_add(u64::from(len));
    for piece in digest::grid(offset..end) {
        let mut hash = digest::Running::default();
        let mut at = piece.start;
        while at < piece.end {
            let step = (piece.end - at).min(BITE as u64) as usize;
            let got = region.read_at(at as usize, &mut bite[..step]);
            if got == 0 {
                return sums;
            }
            hash.update(&bite[..got]);
            at += got as u64;
        }
        sums.push(hash.finish());
    }
    sums
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
        assert_eq!(ring.slot(1).sums(len), expected);
        assert_eq!(sums_of(region, PART, len as u32), expected);
        assert_eq!(ring.slot(0).sums(0), Vec::<u64>::new());
    }
}
