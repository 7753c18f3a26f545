//! What a caller gets back: bytes in memory that devices can reach.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crowfly_machine::gpu::{DeviceMemory, Stream};
use crowfly_machine::verbs::Pinned;
use crowfly_route::place::Place;
use crowfly_route::units::{NumaNode, PciAddress};

use super::relay::Relay;
use super::{Memory, MemoryError, MemoryKind};

/// Bytes in memory that devices can reach. A clone shares the memory, which nobody can write to
/// while it is shared.
#[derive(Clone, Debug)]
pub struct Region {
    memory: Arc<Memory>,
    bytes: Range<usize>,
}

/// The same bytes of the same memory, whatever they hold.
impl PartialEq for Region {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.bytes == other.bytes
    }
}

impl Eq for Region {}

impl Region {
    pub(crate) fn new(memory: Arc<Memory>, bytes: Range<usize>) -> Self {
        assert!(
            bytes.start <= bytes.end && bytes.end <= memory.len,
            "outside of the memory"
        );
        Self { memory, bytes }
    }

    /// Host memory of `len` zero bytes, for instance to write to a file later.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn zeroed(len: usize, numa: Option<NumaNode>) -> Result<Self, MemoryError> {
        Ok(Self::new(Memory::host(len, numa)?, 0..len))
    }

    /// Peer memory of `len` bytes published by `address`.
    ///
    /// # Errors
    /// When the device publishes none or none is left.
    pub fn peer(address: PciAddress, len: usize) -> Result<Self, MemoryError> {
        Ok(Self::new(Memory::peer(address, len)?, 0..len))
    }

    /// Memory of GPU number `gpu`, such as a tensor's that another library lent
    /// ([`DeviceMemory::lent`]), for instance to write it to a file.
    ///
    /// # Errors
    /// When the memory has no address, which none has.
    pub fn of_gpu(gpu: u32, memory: Arc<DeviceMemory>) -> Result<Self, MemoryError> {
        let len = memory.len();
        Ok(Self::new(Memory::of_gpu(gpu, memory)?, 0..len))
    }

    /// The GPU's memory that the bytes lie in, and where in it; `None` of other memory.
    pub fn device(&self) -> Option<(&Arc<DeviceMemory>, Range<usize>)> {
        Some((self.memory.device()?, self.bytes.clone()))
    }

    pub(crate) const fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) const fn start(&self) -> usize {
        self.bytes.start
    }

    /// A part of this region; it shares the memory and keeps all of it.
    ///
    /// `None` when the range does not lie inside.
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let inside = range.start <= range.end && range.end <= self.len();
        inside.then(|| Self {
            memory: Arc::clone(&self.memory),
            bytes: self.bytes.start + range.start..self.bytes.start + range.end,
        })
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Where the bytes live.
    pub fn place(&self) -> Place {
        match self.memory.kind() {
            MemoryKind::Host { numa, .. } => Place::Host(numa),
            MemoryKind::Peer(address) => Place::Peer(address),
            MemoryKind::Gpu(gpu) => Place::Gpu(gpu),
        }
    }

    /// Whether parts are a mapping of the file they were loaded from: no copy was made, and if the
    /// file is cut or overwritten in place, the bytes change with it.
    pub fn follows_file(&self) -> bool {
        self.memory.follows_file.load(Ordering::Acquire)
    }

    /// The first byte's address, for handing to a device or another language. It is valid while
    /// the region lives. Reading through it when [`Region::follows_file`] raises SIGBUS if the file
    /// was cut in between; the address of a GPU's memory is for the GPU alone.
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the range was checked to lie inside the mapping.
        unsafe { self.memory.base.as_ptr().add(self.bytes.start) }
    }

    /// The bytes, when they are plain host memory that nothing else can change; otherwise use
    /// [`Region::read_at`].
    pub fn as_slice(&self) -> Option<&[u8]> {
        let plain = matches!(self.memory.kind(), MemoryKind::Host { .. }) && !self.follows_file();
        // SAFETY: inside the mapping, initialised, and no request is in flight any more, because a
        // region is handed out only after its transfer has ended; `&self` forbids writers.
        plain.then(|| unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) })
    }

    /// The bytes for writing, when they are plain host memory and this is the only user.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let plain = matches!(self.memory.kind(), MemoryKind::Host { .. }) && !self.follows_file();
        let alone = Arc::get_mut(&mut self.memory).is_some();
        let (pointer, len) = (self.as_ptr().cast_mut(), self.len());
        // SAFETY: as in `as_slice`, and no other handle to the memory exists.
        (plain && alone).then(|| unsafe { std::slice::from_raw_parts_mut(pointer, len) })
    }

    /// Copies bytes from `offset` on into `out`, whatever the memory is made of, without the risk
    /// of a signal. Returns how many bytes were copied (fewer at the end of the region).
    ///
    /// # Errors
    /// `EFAULT` when the mapped file was cut, or the device behind peer memory is gone; the GPU's
    /// answer when it is one's memory.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.len().saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        if let Some(memory) = self.memory.device() {
            return self.copy_from_gpu(memory, offset, out.get_mut(..len).unwrap_or_default());
        }
        match self.as_slice() {
            Some(bytes) => out[..len].copy_from_slice(&bytes[offset..offset + len]),
            None => {
                let start = self.bytes.start + offset;
                let mut done = 0;
                let mut relay = Relay::new()?;
                while done < len {
                    let step = Relay::SIZE.min(len - done);
                    let target = self.memory.target(start + done..start + done + step);
                    relay.bytes_of(&target, |bytes| {
                        out[done..done + step].copy_from_slice(bytes)
                    })?;
                    done += step;
                }
            }
        }
        Ok(len)
    }

    fn copy_from_gpu(
        &self,
        memory: &Arc<DeviceMemory>,
        offset: usize,
        out: &mut [u8],
    ) -> io::Result<usize> {
        let step = Relay::SIZE.min(out.len());
        let buffer = Memory::host(step, None).map_err(io::Error::other)?;
        let pinned: Arc<dyn Pinned> = Arc::clone(&buffer) as _;
        let stream = Stream::new(memory.gpu()).map_err(io::Error::other)?;
        let mut at = self.bytes.start + offset;
        for part in out.chunks_mut(step) {
            let copy = stream.copy_out(&pinned, 0, memory, at..at + part.len());
            copy.and_then(|copy| copy.wait())
                .map_err(io::Error::other)?;
            let arrived = buffer.target(0..part.len());
            arrived.with_bytes(|bytes| part.copy_from_slice(bytes));
            at += part.len();
        }
        Ok(out.len())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::{BLOCK, HUGE_PAGE};

    #[test]
    fn host_memory_starts_on_a_huge_page_and_is_zero() {
        let mut region = Region::zeroed(HUGE_PAGE + 5, None).expect("2 MiB");
        assert_eq!(region.as_ptr().align_offset(HUGE_PAGE), 0);
        assert_eq!(region.len(), HUGE_PAGE + 5);
        assert!(region.as_slice().is_some_and(|b| b.iter().all(|b| *b == 0)));
        region.as_mut_slice().expect("plain memory")[7] = 9;
        let mut out = [0; 2];
        assert_eq!(region.read_at(7, &mut out).expect("plain memory"), 2);
        assert_eq!(out, [9, 0]);
        assert_eq!(
            region
                .read_at(region.len() + 1, &mut out)
                .expect("past the end"),
            0
        );
    }

    #[test]
    fn given_a_mapped_file_that_was_cut_reading_gives_an_error_and_no_signal() {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[5; 3 * BLOCK]).expect("three blocks");
        let mut region = Region::zeroed(3 * BLOCK, None).expect("three blocks");
        region
            .memory
            .target(0..3 * BLOCK)
            .map_file(file.as_fd(), 0)
            .expect("mapped");
        assert!(region.as_slice().is_none() && region.as_mut_slice().is_none());
        let mut out = [0; 4];
        assert_eq!(region.read_at(2 * BLOCK, &mut out).expect("still there"), 4);
        assert_eq!(out, [5; 4]);
        file.set_len(BLOCK as u64).expect("cut");
        let error = region
            .read_at(2 * BLOCK, &mut out)
            .expect_err("the page is gone");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        let populate = region.memory.target(2 * BLOCK..3 * BLOCK).populate();
        assert_eq!(
            populate.expect_err("gone").raw_os_error(),
            Some(libc::EFAULT)
        );
    }

    #[test]
    fn a_part_shares_the_memory_and_must_lie_inside() {
        let mut region = Region::zeroed(10, None).expect("a page");
        region.as_mut_slice().expect("plain memory")[4] = 7;
        let part = region.part(3..8).expect("inside");
        assert_eq!(part.as_slice(), Some(&[0, 7, 0, 0, 0][..]));
        assert_eq!(part.part(1..2).expect("inside").as_slice(), Some(&[7][..]));
        assert_eq!(part.part(0..5).map(|p| p.len()), Some(5));
        assert!(part.part(0..6).is_none() && part.part(6..6).is_none());
        let backwards = std::ops::Range { start: 2, end: 1 };
        assert!(part.part(backwards).is_none());
        assert!(region.as_mut_slice().is_none(), "it is shared now");
    }

    #[test]
    fn peer_memory_of_a_device_that_does_not_exist_is_refused_by_name() {
        let address = "ffff:ff:1f.7".parse().expect("an address");
        let error = Region::peer(address, 4096).expect_err("no such device");
        assert_eq!(error.code(), "no-peer-memory");
        assert!(error.to_string().contains("ffff:ff:1f.7"), "{error}");
    }

    #[test]
    fn more_memory_than_addresses_is_an_error_and_no_panic() {
        assert_eq!(
            Region::zeroed(usize::MAX, None)
                .expect_err("too much")
                .code(),
            "no-host-memory"
        );
    }
}
