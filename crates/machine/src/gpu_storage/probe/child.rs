//! What a child does: everything that a transfer would do, once, on one megabyte.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use super::super::abi;
use super::super::driver::{Compat, Driver, StorageFile};
use super::super::error::StorageError;
use super::super::functions::Functions;
use super::super::statistics::NvidiaFsCounters;
use super::{StorageQuestion, functions};
use crate::gpu::{DeviceMemory, GpuError, Runtime, Stream};
use crate::trial::{Refusal, Reporter};
use crate::verbs::Pinned;

/// How much is read.
pub(crate) const SAMPLE: usize = 1 << 20;
/// What memory is full of before it is read into, so that nothing read shows.
const POISON: u8 = 0xa7;
const ALIGNMENT: usize = 4096;

/// Names of the steps, which the verdict looks for.
pub(crate) mod step {
    pub const LIBRARY: &str = "library";
    pub const VERSION: &str = "version";
    pub const OPEN: &str = "driver-open";
    pub const INPUT: &str = "descriptor-0";
    pub const COMPAT: &str = "compat-mode";
    pub const PEER_FLAGS: &str = "peer-flags";
    pub const FILE: &str = "open(O_DIRECT)";
    pub const REGISTER: &str = "handle-register";
    pub const RUNTIME: &str = "gpu";
    pub const PIN: &str = "buffer-register";
    pub const READ: &str = "read";
    pub const CONTENT: &str = "content";
    pub const COUNTERS: &str = "counters";
    pub const MODULE: &str = "nvidia-fs";
    pub const SYSTEM_CALLS: &str = "system-calls";
}

impl Refusal for StorageError {
    fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl Refusal for GpuError {
    fn code(&self) -> Option<i32> {
        self.answer()
    }
}

pub(crate) fn answer<W: Write>(question: &StorageQuestion, report: &mut Reporter<W>) {
    let loaded = report.step(
        step::LIBRARY,
        || functions(question),
        |functions| functions.library.clone(),
    );
    if let Some(functions) = loaded {
        let runtime = || Runtime::load(question.dialect());
        try_out(question, &functions, &runtime, report);
    }
}

/// The same with any functions, and any runtime.
pub(super) fn try_out<W: Write>(
    question: &StorageQuestion,
    functions: &Arc<Functions>,
    runtime: &dyn Fn() -> Result<Arc<Runtime>, GpuError>,
    report: &mut Reporter<W>,
) {
    if let Some((major, minor)) = functions.library_version() {
        report.saw(step::VERSION, format!("{major}.{minor}"));
    }
    let mut closed_input = false;
    let compat = match question.allow_compat {
        true => Compat::AsConfigured,
        false => Compat::Refused,
    };
    let opened = report.step(
        step::OPEN,
        || {
            let (opened, closed) = Driver::open_and_tell(functions, compat);
            closed_input = closed;
            opened
        },
        |_| "success".into(),
    );
    report.saw(step::INPUT, if closed_input { "closed" } else { "kept" });
    let Some(driver) = opened else { return };
    if let Some(allowed) = compat_allowed(functions) {
        report.saw(step::COMPAT, if allowed { "allowed" } else { "refused" });
    }
    if let Some(flags) = peer_flags(functions) {
        report.saw(step::PEER_FLAGS, flags.to_string());
    }
    let Some(path) = &question.file else { return };
    let open = || {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)
    };
    let Some(file) = report.step(step::FILE, open, |_| "success".into()) else {
        return;
    };
    let registered = report.step(
        step::REGISTER,
        || driver.register(Arc::new(file)),
        |_| "success".into(),
    );
    let Some(file) = registered else { return };
    let before = Before::look(&driver);
    let arrived = match question.gpu {
        Some(address) => {
            let memory = || {
                let gpu = runtime()?.open(address)?;
                let memory = DeviceMemory::allocate(&gpu, SAMPLE)?;
                Stream::new(&gpu)?
                    .fill(&memory, 0..SAMPLE, POISON)?
                    .wait()?;
                Ok::<_, GpuError>(memory)
            };
            let Some(memory) = report.step(step::RUNTIME, memory, |_| address.to_string()) else {
                return;
            };
            into_gpu(&driver, &file, &memory, report)
        }
        None => into_host(&driver, &file, report),
    };
    if let Some(arrived) = arrived {
        report.step(step::CONTENT, || compare(path, &arrived), Clone::clone);
    }
    before.compare(&driver, report);
}

fn into_gpu<W: Write>(
    driver: &Arc<Driver>,
    file: &StorageFile,
    memory: &Arc<DeviceMemory>,
    report: &mut Reporter<W>,
) -> Option<Vec<u8>> {
    let _pinned = report.step(
        step::PIN,
        || driver.register_memory(Arc::clone(memory)),
        |_| "success".into(),
    );
    let read = report.step(
        step::READ,
        || file.read(memory, 0..SAMPLE, 0),
        ToString::to_string,
    )?;
    let host: Arc<dyn Pinned> = Arc::new(HostSample::new());
    let out = Stream::new(memory.gpu()).and_then(|stream| {
        stream
            .copy_out(&host, 0, memory, 0..read.min(SAMPLE))?
            .wait()
    });
    out.ok().map(|()| HostSample::bytes(&*host, read))
}

/// cuFile reads into host memory as well: what a machine without a GPU can show.
fn into_host<W: Write>(
    driver: &Arc<Driver>,
    file: &StorageFile,
    report: &mut Reporter<W>,
) -> Option<Vec<u8>> {
    let host = HostSample::new();
    let (start, read) = (
        host.start.as_ptr().cast::<c_void>(),
        driver.functions().read,
    );
    let act = || {
        // SAFETY: the sample is that long, and nobody else knows of it.
        let returned = unsafe { read(file.raw(), start, SAMPLE, 0, 0) };
        usize::try_from(returned).map_err(|_| match returned {
            -1 => io::Error::last_os_error(),
            code => io::Error::other(format!("the library's code {}", -code)),
        })
    };
    let read = report.step(step::READ, act, ToString::to_string)?;
    Some(HostSample::bytes(&host, read))
}

/// Whether the properties say that reading through host memory is allowed.
fn compat_allowed(functions: &Functions) -> Option<bool> {
    /// Larger than the structure of either library.
    const ROOM: usize = 64;
    /// Where both have their control flags: behind two words, two sizes and a word.
    const CONTROL: usize = 7;
    let ask = functions.properties?;
    let mut words = [0u32; ROOM];
    // SAFETY: the room is larger than the structure.
    let status = unsafe { ask(words.as_mut_ptr().cast()) };
    (status.code == 0).then_some(words[CONTROL] & (1 << abi::CONTROL_ALLOW_COMPAT) != 0)
}

fn peer_flags(functions: &Functions) -> Option<u32> {
    let (ask, mut flags) = (functions.peer_flags?, 0);
    // SAFETY: it writes one word.
    let status = unsafe { ask(abi::STATUS_NVME, &raw mut flags) };
    (status.code == 0).then_some(flags)
}

/// Compares what arrived with what the page cache says.
fn compare(path: &Path, arrived: &[u8]) -> io::Result<String> {
    let file = File::open(path)?;
    let expected = SAMPLE.min(usize::try_from(file.metadata()?.size()).unwrap_or(SAMPLE));
    if arrived.len() != expected {
        return Ok(format!("{} bytes of {expected}", arrived.len()));
    }
    let mut bytes = vec![0; arrived.len()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(if bytes == arrived { "equal" } else { "differs" }.into())
}

/// Counters before the read.
struct Before {
    library: Option<super::super::Counters>,
    module: Option<NvidiaFsCounters>,
    system_calls: Option<u64>,
}

impl Before {
    fn look(driver: &Driver) -> Self {
        Self {
            library: driver.counters().ok(),
            module: NvidiaFsCounters::now(),
            system_calls: read_by_calls(),
        }
    }

    fn compare<W: Write>(self, driver: &Driver, report: &mut Reporter<W>) {
        // Before anything else is read.
        let system_calls = read_by_calls();
        if let Some(before) = self.library {
            let counted = || driver.counters().map(|now| (now - before).reads);
            report.step(step::COUNTERS, counted, |ways| {
                format!(
                    "peer={} module={} posix={}",
                    ways.peer, ways.module, ways.posix
                )
            });
        }
        if let (Some(before), Some(now)) = (self.module, NvidiaFsCounters::now()) {
            report.saw(step::MODULE, (now - before).reads.to_string());
        }
        if let (Some(before), Some(now)) = (self.system_calls, system_calls) {
            report.saw(step::SYSTEM_CALLS, now.saturating_sub(before).to_string());
        }
    }
}

/// Bytes that this process has read by read(2) and its like. An `ioctl` that has a drive write into
/// a GPU is none of them.
fn read_by_calls() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("rchar:"))?;
    line.trim().parse().ok()
}

/// Aligned host memory, full of poison.
struct HostSample {
    start: NonNull<u8>,
    storage: *mut [u8],
}

// SAFETY: plain memory that only devices and this module's raw copies touch.
unsafe impl Send for HostSample {}
// SAFETY: as above.
unsafe impl Sync for HostSample {}
// SAFETY: the storage neither moves nor goes while this lives.
unsafe impl Pinned for HostSample {
    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn len(&self) -> usize {
        SAMPLE
    }
}

impl HostSample {
    fn new() -> Self {
        let storage = Box::into_raw(vec![POISON; SAMPLE + ALIGNMENT].into_boxed_slice());
        let first = storage.cast::<u8>();
        // SAFETY: the aligned byte lies within the storage, which is longer by the alignment.
        let start = unsafe { first.add(first.align_offset(ALIGNMENT)) };
        Self {
            // SAFETY: inside an allocation, so not null.
            start: unsafe { NonNull::new_unchecked(start) },
            storage,
        }
    }

    /// The first `len` bytes, once nothing is in flight.
    fn bytes(sample: &dyn Pinned, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(SAMPLE)];
        let from = sample.address() as *const u8;
        // SAFETY: the sample is at least that long, and the work on it has been waited for.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }
}

impl Drop for HostSample {
    fn drop(&mut self) {
        // SAFETY: made from a box by `new`.
        drop(unsafe { Box::from_raw(self.storage) });
    }
}
