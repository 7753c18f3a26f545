//! Bytes in a GPU's memory, or the host's, that are known beforehand, so that what becomes of them elsewhere can be
//! checked.

use std::io;
use std::sync::Arc;

use crowfly_machine::gpu::{DeviceMemory, GpuError, Stream};
use crowfly_machine::verbs::Pinned;

use super::Gpu;
use crate::digest::{self, GRID, Running};
use crate::error::TransferError;
use crate::memory::{Memory, MemoryError, Region};

/// A region whose bytes are known.
#[derive(Debug)]
pub struct Sample {
    /// The bytes, in the GPU's memory or the host's.
    pub region: Region,
    /// Their checksum as receipts have it (`xxh3-64/2MiB`), computed before they were put there.
    pub digest: u64,
}

impl Sample {
    /// `len` new bytes of a GPU's memory that follow from `seed` and repeat after no power of two.
    ///
    /// # Errors
    /// When the GPU has no room, or fails.
    pub fn new(gpu: &Gpu, len: usize, seed: u64) -> Result<Self, TransferError> {
        let memory = DeviceMemory::allocate(gpu.device(), len);
        let memory = memory.map_err(|source| MemoryError::Gpu {
            gpu: gpu.index(),
            bytes: len,
            source,
        })?;
        let place = gpu.place().to_string();
        let failed = |offset: usize, source: GpuError| TransferError::Gpu {
            path: place.clone(),
            offset: offset as u64,
            source,
        };
        let stream = Stream::new(gpu.device()).map_err(|error| failed(0, error))?;
        let buffer = Memory::host(GRID as usize, gpu.device().facts().numa)?;
        let pinned: Arc<dyn Pinned> = Arc::clone(&buffer) as _;
        let mut bytes = vec![0; (GRID as usize).min(len)];
        let mut sums = Vec::new();
        let mut done = 0;
        while done < len {
            let step = bytes.len().min(len - done);
            let piece = bytes.get_mut(..step).unwrap_or_default();
            fill(piece, seed, done as u64);
            sums.push(digest::piece(piece));
            buffer.target(0..step).put(0, piece);
            let copy = stream.copy_in(&memory, done, &pinned, 0..step);
            copy.and_then(|copy| copy.wait())
                .map_err(|error| failed(done, error))?;
            done += step;
        }
        Ok(Self {
            region: Region::of_gpu(gpu.index(), memory)?,
            digest: digest::whole(sums),
        })
    }
}

impl Sample {
    /// The same bytes in host memory.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn in_host(len: usize, seed: u64) -> Result<Self, MemoryError> {
        let mut region = Region::zeroed(len, None)?;
        let mut sums = Vec::new();
        let bytes = region.as_mut_slice().unwrap_or_default();
        for (number, piece) in (0u64..).zip(bytes.chunks_mut(GRID as usize)) {
            fill(piece, seed, number * GRID);
            sums.push(digest::piece(piece));
        }
        Ok(Self {
            region,
            digest: digest::whole(sums),
        })
    }
}

/// The checksum of a region's bytes where they are now.
///
/// # Errors
/// What the GPU whose memory it is answers.
pub fn digest_of(region: &Region) -> io::Result<u64> {
    let mut bytes = vec![0; (GRID as usize).min(region.len().max(1))];
    let mut sums = Vec::new();
    let mut done = 0;
    while done < region.len() {
        let got = region.read_at(done, &mut bytes)?;
        if got == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let mut hash = Running::default();
        hash.update(bytes.get(..got).unwrap_or_default());
        sums.push(hash.finish());
        done += got;
    }
    Ok(digest::whole(sums))
}

/// SplitMix64 (Steele, Lea, Flood 2014) of the number of each eight bytes.
fn fill(bytes: &mut [u8], seed: u64, start: u64) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let number = (start / 8 + at as u64).wrapping_add(seed);
        let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let known = z.to_le_bytes();
        for (to, from) in word.iter_mut().zip(known) {
            *to = from;
        }
    }
}
