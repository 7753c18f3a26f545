//! An open file and what the kernel says about reading it directly.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::units::NumaNode;
use rustix::fs::{AtFlags, FileType, StatxFlags};

use crate::checkpoint::{NotAFile, Stamp, not_a_file};
use crate::error::{NO_SIZE, TransferError};
use crate::memory::{BLOCK, HUGE_PAGE, Memory, Region};

/// File systems that live in the page cache: their O_DIRECT, where accepted, is a copy.
const MEMORY_FILE_SYSTEMS: [(u64, &str); 3] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x9584_58f6, "hugetlbfs"),
];

/// The file system of /proc.
const PROC: u64 = 0x9fa0;

/// File systems whose files are made up when they are read: procfs, sysfs, debugfs, tracefs,
/// securityfs, configfs and both versions of cgroups.
const MADE_UP_FILE_SYSTEMS: [u64; 8] = [
    PROC,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
];

/// A file open for reading, by the page cache and, where the file system allows it, directly.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    size: u64,
    stamp: Stamp,
    buffered: Arc<File>,
    direct: Result<Direct, Box<Obstacle>>,
}

/// The O_DIRECT side of a file.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    pub(crate) file: Arc<File>,
    /// Alignment of offsets and lengths, a power of two.
    pub(crate) align: u64,
}

/// What a file's direct side is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Source {
    /// Opens a regular file or a block device.
    ///
    /// # Errors
    /// When it is something else, does not exist or may not be read. A FIFO never blocks.
    pub fn open(path: &Path) -> Result<Self, TransferError> {
        let name = path.display().to_string();
        let failed = |source| TransferError::Open {
            path: name.clone(),
            source,
        };
        let open = |flags| {
            let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | flags;
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        };
        // Looking before opening: opening a device node or a FIFO can have effects of its own.
        let stands = std::fs::metadata(path).map_err(failed)?;
        let is_device = match not_a_file(&stands) {
            None => false,
            Some(NotAFile::BlockDevice) => true,
            Some(found) => {
                let (path, found) = (name, found.as_str());
                return Err(TransferError::NotAFile { path, found });
            }
        };
        let mut buffered = open(0).map_err(failed)?;
        let device_size = match is_device {
            true => Some(buffered.seek(SeekFrom::End(0)).map_err(failed)?),
            false => None,
        };
        Self::of(path, buffered, device_size)
    }

    /// A regular file that was opened for reading by someone who knows how; `path` is its name in
    /// errors.
    pub(crate) fn opened(path: &Path, file: File) -> Result<Self, TransferError> {
        let name = path.display().to_string();
        let metadata = file.metadata().map_err(|source| TransferError::Open {
            path: name.clone(),
            source,
        })?;
        match not_a_file(&metadata) {
            None => Self::of(path, file, None),
            Some(found) => {
                let found = found.as_str();
                Err(TransferError::NotAFile { path: name, found })
            }
        }
    }

    fn of(path: &Path, buffered: File, device_size: Option<u64>) -> Result<Self, TransferError> {
        let name = path.display().to_string();
        let stamp = Stamp::of(&buffered).map_err(|source| TransferError::Open {
            path: name.clone(),
            source,
        })?;
        let (is_device, size) = (device_size.is_some(), device_size.unwrap_or(stamp.len));
        if !is_device && !says_its_size(&buffered, size) {
            let found = NO_SIZE;
            return Err(TransferError::NotAFile { path: name, found });
        }
        let direct = open_direct(&buffered, &name, Access::Read);
        Ok(Self {
            path: path.to_owned(),
            size,
            stamp,
            buffered: Arc::new(buffered),
            direct: direct.map_err(Box::new),
        })
    }

    /// The NUMA node of the drive the file lies on, where it is known.
    pub fn numa_node(&self) -> Option<NumaNode> {
        let meta = self.buffered.metadata().ok()?;
        let device = if meta.file_type().is_block_device() {
            meta.rdev()
        } else {
            meta.dev()
        };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        crowfly_machine::numa::node_of_block_device(major, minor)
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in it when it was opened.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// What identified it when it was opened.
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Why it cannot be read directly, if it cannot.
    pub fn direct_obstacle(&self) -> Option<&Obstacle> {
        self.direct.as_ref().err().map(AsRef::as_ref)
    }

    /// Lays the file's pages over new memory without reading them: they come when they are touched.
    /// What is written into the memory stays there and never reaches the file.
    ///
    /// # Errors
    /// When the range lies outside of the file, or the file system cannot map.
    pub fn map(&self, range: Range<u64>) -> Result<Region, TransferError> {
        if range.start > range.end || range.end > self.size {
            return Err(TransferError::OutOfRange {
                path: self.name(),
                size: self.size,
                start: range.start,
                end: range.end,
            });
        }
        // On the file's own grid of huge pages, so that a kernel that can map those may.
        let origin = range.start / HUGE_PAGE as u64 * HUGE_PAGE as u64;
        let begin = (range.start - origin) as usize;
        let end = begin + (range.end - range.start) as usize;
        let memory = Memory::host(end, None)?;
        if begin < end {
            let first = begin / BLOCK * BLOCK;
            let target = memory.target(first..end.next_multiple_of(BLOCK));
            let offset = origin + first as u64;
            let mapped = target.map_file(self.buffered.as_fd(), offset);
            mapped.map_err(|source| TransferError::Read {
                path: self.name(),
                offset,
                bytes: range.end - range.start,
                source,
            })?;
        }
        Ok(Region::new(memory, begin..end))
    }

    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref().ok()
    }

    pub(crate) const fn buffered(&self) -> &Arc<File> {
        &self.buffered
    }

    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Bytes of the range that lie in the page cache; `None` when the kernel does not say.
    pub fn cached(&self, range: &Range<u64>) -> Option<u64> {
        let length = range.end.saturating_sub(range.start);
        crowfly_machine::residency::cached_bytes(self.buffered.as_fd(), range.start, length).ok()
    }

    /// Asks the kernel to drop the file's clean pages from the page cache.
    ///
    /// # Errors
    /// When the kernel refuses the advice.
    pub fn drop_cache(&self) -> io::Result<()> {
        rustix::fs::fadvise(&*self.buffered, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }

    /// Checks that the file is still what it was when it was opened.
    pub(crate) fn unchanged(&self) -> Result<(), TransferError> {
        let now = Stamp::of(&self.buffered).map_err(|source| TransferError::Open {
            path: self.name(),
            source,
        })?;
        self.follows(self.stamp, now)
    }

    /// Checks that the file was, when it was opened, the one that an earlier look saw.
    pub(crate) fn is_still(&self, seen: Stamp) -> Result<(), TransferError> {
        self.follows(seen, self.stamp)
    }

    fn follows(&self, before: Stamp, now: Stamp) -> Result<(), TransferError> {
        let path = self.name();
        let what = if now == before {
            return Ok(());
        } else if (now.device, now.inode) != (before.device, before.inode) {
            "replaced by another file".to_owned()
        } else if now.len < before.len {
            return Err(TransferError::Shrank {
                path,
                offset: before.len,
            });
        } else if now.len > before.len {
            format!("size {} -> {}", before.len, now.len)
        } else {
            "modification time".to_owned()
        };
        Err(TransferError::Changed { path, what })
    }
}

/// Whether a file holds as many bytes as it is said to. The files of /proc are all said to be empty,
/// or as large as memory, and those of /sys to fill a page; what they hold is made up when it is read.
pub(crate) fn says_its_size(file: &File, size: u64) -> bool {
    let magic = || {
        let magic = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u64 & 0xffff_ffff);
        magic.unwrap_or_default()
    };
    let made_up = || MADE_UP_FILE_SYSTEMS.contains(&magic());
    // The bytes of a file that is no larger than this are cheap to look at.
    if size > BLOCK as u64 {
        return magic() != PROC;
    }
    if size > 0 && !made_up() {
        return true;
    }
    let mut bytes = vec![0; BLOCK + 1];
    match file.read_at(&mut bytes, 0) {
        Ok(read) => read as u64 == size,
        // What cannot be read without waiting for it has no size either.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        // Nor has what is made up and cannot be read at its beginning, such as a process's memory.
        Err(_) => !made_up(),
    }
}

pub(crate) fn open_direct(buffered: &File, name: &str, access: Access) -> Result<Direct, Obstacle> {
    let done = match access {
        Access::Read => "read",
        Access::Write => "written",
    };
    let refused = |at: &str, shows: String| {
        Obstacle::blocks(
            Code::NoDirectIo,
            format!("{name} cannot be {done} with O_DIRECT"),
        )
        .seen(at, shows)
        .fixed_by(Fix::by_hand(
            "Keep the file on a file system that supports O_DIRECT, such as ext4 or xfs on NVMe.",
        ))
    };
    // A device's file lies in devtmpfs, which says nothing about the device.
    let is_device = rustix::fs::fstat(buffered)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    if !is_device
        && let Ok(stat) = rustix::fs::fstatfs(buffered)
        && let Some((_, fs)) = MEMORY_FILE_SYSTEMS
            .iter()
            .find(|(magic, _)| *magic == stat.f_type as u64 & 0xffff_ffff)
    {
        return Err(refused(
            "statfs",
            format!("{fs}: files live in the page cache"),
        ));
    }
    let align = match rustix::fs::statx(buffered, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(facts) if facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            match facts.stx_dio_offset_align {
                0 => {
                    return Err(refused(
                        "statx stx_dio_offset_align",
                        "0: not supported for this file".into(),
                    ));
                }
                align => u64::from(align.max(facts.stx_dio_mem_align)),
            }
        }
        _ => BLOCK as u64,
    };
    if !align.is_power_of_two() || align > BLOCK as u64 {
        return Err(refused("statx stx_dio_offset_align", align.to_string()));
    }
    // The same file, whatever its path points to by now.
    let link = format!("/proc/self/fd/{}", buffered.as_raw_fd());
    let flags = libc::O_DIRECT | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(access == Access::Write);
    match options.custom_flags(flags).open(link) {
        Ok(file) => Ok(Direct {
            file: Arc::new(file),
            // What is written is padded to whole blocks.
            align: match access {
                Access::Read => align,
                Access::Write => BLOCK as u64,
            },
        }),
        Err(error) => Err(refused("open(O_DIRECT)", error.to_string())),
    }
}
