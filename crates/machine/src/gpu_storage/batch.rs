//! Many reads at once, in one call of the library.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::abi::{self, BatchEvent, BatchParameters};
use super::driver::{Driver, StorageFile, request, succeeded};
use super::error::StorageError;
use crate::gpu::DeviceMemory;
use crate::verbs::Pinned;

/// The most requests of one batch that every version takes.
const MAX_REQUESTS: usize = 128;
/// How long one look for completions waits, in nanoseconds.
const LOOK: i64 = 100_000_000;

/// One read of a batch.
#[derive(Clone, Debug)]
pub struct BatchRead {
    /// The file.
    pub file: Arc<StorageFile>,
    /// The memory.
    pub memory: Arc<DeviceMemory>,
    /// Where in the memory the bytes go.
    pub range: Range<usize>,
    /// Where in the file they lie.
    pub offset: u64,
}

/// What became of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// So many bytes arrived.
    Read(usize),
    /// It failed, with the library's status (`CUfileStatus_t`).
    Failed(i32),
}

/// Room for requests that are submitted together, kept for batch after batch.
pub struct Batch {
    raw: *mut c_void,
    room: usize,
    driver: Arc<Driver>,
}

// SAFETY: a batch is used by one thread at a time, any one.
unsafe impl Send for Batch {}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({})", self.room)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(destroy) = self.driver.functions().batch_destroy {
            // SAFETY: set up by `new`; `read` leaves nothing in flight.
            unsafe { destroy(self.raw) };
        }
    }
}

impl Batch {
    /// Room for `room` requests, at most 128.
    ///
    /// # Errors
    /// When the version has no batches, or refuses.
    pub fn new(driver: &Arc<Driver>, room: usize) -> Result<Self, StorageError> {
        let f = driver.functions();
        let (set_up, room) = (f.batch_set_up()?, room.clamp(1, MAX_REQUESTS));
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { set_up(&raw mut raw, room as c_uint) };
        succeeded(
            f.dialect.of("cuFileBatchIOSetUp", "hipFileBatchIOSetUp"),
            status,
        )?;
        Ok(Self {
            raw,
            room,
            driver: Arc::clone(driver),
        })
    }

    /// Carries the reads out and waits for all; the outcomes in the order of the reads.
    ///
    /// # Errors
    /// When the batch could not be submitted or watched. Then everything it uses is kept for ever,
    /// as nobody knows whether the drive is done with it.
    pub fn read(&mut self, reads: &[BatchRead]) -> Result<Vec<BatchOutcome>, StorageError> {
        let mut outcomes = Vec::with_capacity(reads.len());
        for part in reads.chunks(self.room) {
            outcomes.extend(self.together(part)?);
        }
        Ok(outcomes)
    }

    fn together(&mut self, reads: &[BatchRead]) -> Result<Vec<BatchOutcome>, StorageError> {
        let Some(gpu) = reads.first().map(|read| Arc::clone(read.memory.gpu())) else {
            return Ok(Vec::new());
        };
        let f = Arc::clone(self.driver.functions());
        let (submit, status) = (f.batch_submit()?, f.batch_status()?);
        let mut parameters = Vec::with_capacity(reads.len());
        for (index, read) in reads.iter().enumerate() {
            let (at, len, offset) = request(&read.memory, &read.range, read.offset)?;
            parameters.push(BatchParameters {
                mode: abi::BATCH,
                base: read.memory.address() as *mut c_void,
                file_offset: offset,
                memory_offset: at,
                len,
                file: read.file.raw(),
                opcode: abi::BATCH_READ,
                cookie: index as *mut c_void,
            });
        }
        let submitted = gpu.current(|| {
            let count = parameters.len() as c_uint;
            // SAFETY: every range lies in its memory, which is held until the end of this call.
            unsafe { submit(self.raw, count, parameters.as_mut_ptr(), 0) }
        })?;
        let call = f.dialect.of("cuFileBatchIOSubmit", "hipFileBatchIOSubmit");
        succeeded(call, submitted)?;
        let mut outcomes = vec![None; reads.len()];
        let watched = gpu.current(|| self.watch(status, &mut outcomes));
        if let Err(error) | Ok(Err(error)) = watched.map_err(StorageError::from) {
            // Leaks on purpose, see above.
            reads.iter().cloned().for_each(std::mem::forget);
            return Err(error);
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    fn watch(
        &self,
        status: unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            *mut c_uint,
            *mut BatchEvent,
            *mut libc::timespec,
        ) -> abi::Status,
        outcomes: &mut [Option<BatchOutcome>],
    ) -> Result<(), StorageError> {
        let call = "cuFileBatchIOGetStatus";
        let empty = BatchEvent {
            cookie: std::ptr::null_mut(),
            status: 0,
            result: 0,
        };
        let mut events = vec![empty; outcomes.len()];
        while outcomes.iter().any(Option::is_none) {
            let mut count = events.len() as c_uint;
            let mut patience = libc::timespec {
                tv_sec: 0,
                tv_nsec: LOOK,
            };
            // SAFETY: the events have room for `count` of them.
            let seen = unsafe {
                status(
                    self.raw,
                    1,
                    &raw mut count,
                    events.as_mut_ptr(),
                    &raw mut patience,
                )
            };
            succeeded(call, seen)?;
            let seen = events.get(..count as usize).unwrap_or_default();
            for event in seen
                .iter()
                .filter(|e| e.status & abi::BATCH_UNFINISHED == 0)
            {
                let outcome = match event.status {
                    abi::BATCH_COMPLETE => BatchOutcome::Read(event.result),
                    other => BatchOutcome::Failed(other),
                };
                match outcomes.get_mut(event.cookie as usize) {
                    Some(slot) => *slot = Some(outcome),
                    None => {
                        return Err(StorageError::Io {
                            call,
                            source: io::Error::other("it named a request that was not submitted"),
                        });
                    }
                }
            }
        }
        Ok(())
    }
}
