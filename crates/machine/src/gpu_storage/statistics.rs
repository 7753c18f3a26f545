//! Which way bytes went, by the libraries' counters and the kernel module's.

use std::ops::{Add, Sub};

use super::abi::{STATISTICS_LEVEL, Status};
use super::error::StorageError;
use super::functions::Functions;

/// Requests by the way they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// Through the kernel's PCIe peer-to-peer DMA.
    pub peer: u64,
    /// Through the vendor's kernel module (nvidia-fs), or hipFile's fast path.
    pub module: u64,
    /// By POSIX reads and writes through host memory.
    pub posix: u64,
    /// Of them all, those that were not aligned and went through a buffer.
    pub unaligned: u64,
    /// That failed.
    pub failed: u64,
}

impl Ways {
    /// Requests that the drive's DMA served without host memory.
    pub const fn direct(self) -> u64 {
        self.peer.saturating_add(self.module)
    }
}

impl Add for Ways {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            peer: self.peer.saturating_add(other.peer),
            module: self.module.saturating_add(other.module),
            posix: self.posix.saturating_add(other.posix),
            unaligned: self.unaligned.saturating_add(other.unaligned),
            failed: self.failed.saturating_add(other.failed),
        }
    }
}

impl Sub for Ways {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            peer: self.peer.saturating_sub(before.peer),
            module: self.module.saturating_sub(before.module),
            posix: self.posix.saturating_sub(before.posix),
            unaligned: self.unaligned.saturating_sub(before.unaligned),
            failed: self.failed.saturating_sub(before.failed),
        }
    }
}

/// What a library counted since its driver was opened, over all GPUs of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that read files.
    pub reads: Ways,
    /// Requests that wrote files.
    pub writes: Ways,
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
        }
    }
}

/// Room for the statistics of any version: those of 1.20 take 5,112 bytes.
const ROOM: usize = 1 << 16;
/// What the room is full of before the library writes into it.
const UNTOUCHED: u8 = 0xa5;
const MAX_GPUS: usize = 16;
/// `CUfileStatsLevel2_t` up to 1.18, and hipFile's.
const LEVEL_2: usize = 1024;
/// From 1.19 on, which has `cuFileReadv` and counts it.
const LEVEL_2_WITH_VECTORS: usize = 1136;
/// `CUfilePerGpuStats_t`: a UUID of 16 bytes and 29 numbers.
const PER_GPU: usize = 248;
const WORD: usize = 8;

/// Places of the numbers behind the UUID.
mod at {
    pub const P2P_READS: usize = 5;
    pub const NVFS_READS: usize = 6;
    pub const POSIX_READS: usize = 7;
    pub const UNALIGNED_READS: usize = 8;
    pub const FAILED_READS: usize = 12;
    pub const P2P_WRITES: usize = 18;
    pub const NVFS_WRITES: usize = 19;
    pub const POSIX_WRITES: usize = 20;
    pub const UNALIGNED_WRITES: usize = 21;
    pub const FAILED_WRITES: usize = 23;
}

impl Functions {
    /// Has the library count from now on. Levels are set before the driver is opened.
    pub(super) fn ask_for_statistics(&self) {
        if let Ok(set) = self.set_statistics_level() {
            // SAFETY: it takes a number, before the driver is opened.
            let _ = unsafe { set(STATISTICS_LEVEL) };
        }
    }

    /// What was counted.
    ///
    /// # Errors
    /// When the version does not count (cuFile before 1.15), or its numbers do not lie where any
    /// known version has them.
    pub fn counters(&self) -> Result<Counters, StorageError> {
        let ask = self.statistics()?;
        let mut room = vec![UNTOUCHED; ROOM];
        // SAFETY: the room is larger than the structure of any version.
        let status = unsafe { ask(room.as_mut_ptr().cast()) };
        if status != Status::SUCCESS {
            return Err(StorageError::Refused {
                call: self.dialect.of("cuFileGetStatsL3", "hipFileGetStatsL3"),
                code: status.code,
                gpu_code: status.gpu_code,
            });
        }
        let level_2 = match self.read_vector {
            Some(_) => LEVEL_2_WITH_VECTORS,
            None => LEVEL_2,
        };
        counters(&room, level_2).ok_or_else(|| StorageError::Unsupported {
            library: self.library.clone(),
            symbol: "cuFileGetStatsL3".into(),
            why: "its statistics are laid out in no known way".into(),
        })
    }
}

/// Reads the statistics that a library wrote into `room`; `None` unless what it wrote ends where
/// the layout says.
fn counters(room: &[u8], level_2: usize) -> Option<Counters> {
    let count = room.get(level_2..level_2 + 4)?;
    let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
    if count > MAX_GPUS {
        return None;
    }
    let gpus = (level_2 + 4).next_multiple_of(WORD);
    let end = gpus + MAX_GPUS * PER_GPU;
    if room.get(end..)?.iter().any(|byte| *byte != UNTOUCHED) {
        return None;
    }
    let mut total = Counters::default();
    for gpu in 0..count {
        let numbers = gpus + gpu * PER_GPU + 16;
        let number = |place: usize| {
            let at = numbers + place * WORD;
            let bytes = room.get(at..at + WORD)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let reads = Ways {
            peer: number(at::P2P_READS)?,
            module: number(at::NVFS_READS)?,
            posix: number(at::POSIX_READS)?,
            unaligned: number(at::UNALIGNED_READS)?,
            failed: number(at::FAILED_READS)?,
        };
        let writes = Ways {
            peer: number(at::P2P_WRITES)?,
            module: number(at::NVFS_WRITES)?,
            posix: number(at::POSIX_WRITES)?,
            unaligned: number(at::UNALIGNED_WRITES)?,
            failed: number(at::FAILED_WRITES)?,
        };
        total.reads = total.reads + reads;
        total.writes = total.writes + writes;
    }
    Some(total)
}

/// What the kernel module nvidia-fs counted, over all processes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvidiaFsCounters {
    /// Reads that it carried out.
    pub reads: u64,
    /// Writes that it carried out.
    pub writes: u64,
}

impl NvidiaFsCounters {
    /// Where the module shows its counters.
    pub const FILE: &'static str = "/proc/driver/nvidia-fs/stats";

    /// The counters now; `None` where the module is not loaded or does not count.
    pub fn now() -> Option<Self> {
        let text = std::fs::read_to_string(Self::FILE).ok()?;
        Self::parse(&text)
    }

    /// Reads the counters out of the module's text, whose lines are `Reads : n=7 ok=7 err=0 …`.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            let mut found = lines.filter(|(key, _)| key.trim() == name);
            let (_, values) = found.next()?;
            let mut words = values.split_whitespace();
            let ok = words.find_map(|word| word.strip_prefix("ok="))?;
            ok.parse().ok()
        };
        Some(Self {
            reads: number("Reads")?,
            writes: number("Writes")?,
        })
    }
}

impl Sub for NvidiaFsCounters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
        }
    }
}

/// Writes statistics as a library of either layout does, for the fake.
#[cfg(any(test, feature = "fakes"))]
pub(super) fn lay_out(counters: &Counters, vectors: bool) -> Vec<u8> {
    let level_2 = if vectors {
        LEVEL_2_WITH_VECTORS
    } else {
        LEVEL_2
    };
    let gpus = (level_2 + 4).next_multiple_of(WORD);
    let mut bytes = vec![0; gpus + PER_GPU];
    bytes[level_2..level_2 + 4].copy_from_slice(&1u32.to_le_bytes());
    let mut set = |place: usize, value: u64| {
        let start = gpus + 16 + place * WORD;
        bytes[start..start + WORD].copy_from_slice(&value.to_le_bytes());
    };
    set(at::P2P_READS, counters.reads.peer);
    set(at::NVFS_READS, counters.reads.module);
    set(at::POSIX_READS, counters.reads.posix);
    set(at::UNALIGNED_READS, counters.reads.unaligned);
    set(at::FAILED_READS, counters.reads.failed);
    set(at::P2P_WRITES, counters.writes.peer);
    set(at::NVFS_WRITES, counters.writes.module);
    set(at::POSIX_WRITES, counters.writes.posix);
    set(at::UNALIGNED_WRITES, counters.writes.unaligned);
    set(at::FAILED_WRITES, counters.writes.failed);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> Counters {
        let ways = |from: u64| Ways {
            peer: from,
            module: from + 1,
            posix: from + 2,
            unaligned: from + 3,
            failed: from + 4,
        };
        Counters {
            reads: ways(10),
            writes: ways(20),
        }
    }

    fn room(written: &[u8]) -> Vec<u8> {
        let mut room = vec![UNTOUCHED; ROOM];
        room[..written.len()].copy_from_slice(written);
        room
    }

    #[test]
    fn both_layouts_are_read_and_neither_as_the_other() {
        let old = room(&lay_out(&some(), false));
        let new = room(&lay_out(&some(), true));
        assert_eq!(counters(&old, LEVEL_2), Some(some()));
        assert_eq!(counters(&new, LEVEL_2_WITH_VECTORS), Some(some()));
        assert_ne!(counters(&new, LEVEL_2), Some(some()));
    }

    #[test]
    fn a_library_that_writes_more_than_the_layout_has_is_not_believed() {
        let mut later = room(&lay_out(&some(), true));
        later[LEVEL_2_WITH_VECTORS + 8 + MAX_GPUS * PER_GPU + 100] = 0;
        assert_eq!(counters(&later, LEVEL_2_WITH_VECTORS), None);
        let mut many = room(&lay_out(&some(), true));
        many[LEVEL_2_WITH_VECTORS] = 17;
        assert_eq!(counters(&many, LEVEL_2_WITH_VECTORS), None);
    }

    #[test]
    fn the_sizes_are_those_of_the_headers() {
        // 21 counters of operations of 16 bytes, 22 numbers, two histograms of 32 numbers; from
        // 1.19 on 2 counters and 10 numbers more.
        assert_eq!(LEVEL_2, 21 * 16 + 22 * WORD + 2 * 32 * WORD);
        assert_eq!(LEVEL_2_WITH_VECTORS, LEVEL_2 + 2 * 16 + 10 * WORD);
        assert_eq!(PER_GPU, 16 + (13 + 11 + 5) * WORD);
    }

    #[test]
    fn the_modules_counters_are_read_whatever_stands_around_them() {
        let text = "GDS Version: 1.7.0\nEnabled IO Stats\nReads  : n=9 ok=7 err=2 readMiB=12\n\
                    Reads: Bandwidth(MiB/s)=0\nWrites : n=3 ok=3 err=0\n";
        let expected = NvidiaFsCounters {
            reads: 7,
            writes: 3,
        };
        assert_eq!(NvidiaFsCounters::parse(text), Some(expected));
        assert_eq!(NvidiaFsCounters::parse("Reads : n=9"), None);
        assert_eq!(NvidiaFsCounters::parse(""), None);
    }

    proptest! {
        #[test]
        fn anything_in_the_room_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
            let room = room(&bytes);
            let _ = counters(&room, LEVEL_2);
            let _ = counters(&bytes, LEVEL_2_WITH_VECTORS);
        }

        #[test]
        fn any_text_of_the_module_is_read_without_a_panic(text in ".{0,200}") {
            let _ = NvidiaFsCounters::parse(&text);
        }
    }
}
