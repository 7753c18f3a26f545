//! Transfers in the order of a stream (GPUDirect Async, where the platform has it): a kernel that is
//! queued behind a load starts when the bytes are there, and the host waits for nothing in between.
//!
//! The bytes go by `cuFileReadAsync` and its like. A version without them refuses with its name;
//! nothing is done some other way in its place, because only the stream's order makes this safe.

use std::ops::Range;
use std::sync::Arc;

use crowfly_machine::gpu::{DeviceMemory, GpuError, InFlight, Stream};
use crowfly_machine::gpu_storage::{MAX_REQUEST, Queued, StorageError, StorageFile};

use super::Gpu;
use crate::source::Source;

mod load;

pub use load::{QueuedLoad, load};

/// A file that the storage library of a GPU's maker knows, for transfers on streams.
#[derive(Clone, Debug)]
pub struct StreamFile {
    file: Arc<StorageFile>,
}

/// Requests on a stream. Dropping them waits for them.
#[must_use = "dropping them waits for the GPU"]
#[derive(Debug)]
pub struct Requests {
    queued: Vec<(Queued, usize)>,
}

/// Why a transfer on a stream could not be queued, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueuedError {
    /// The GPU has no open storage library: [`Gpu::storage_obstacles`] say why.
    #[error("no storage library goes straight to gpu:{gpu}")]
    NoStorage {
        /// The GPU.
        gpu: u32,
    },
    /// The file system does not let the drive write into memory.
    #[error("{path} cannot be read with O_DIRECT")]
    NoDirectIo {
        /// The file.
        path: String,
    },
    /// The library refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Fewer bytes arrived than were asked for.
    #[error("{arrived} of {asked} bytes arrived")]
    Short {
        /// Bytes that arrived.
        arrived: usize,
        /// Bytes asked for.
        asked: usize,
    },
}

impl QueuedError {
    /// A stable code for JSON output.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoStorage { .. } => "no-storage-library",
            Self::NoDirectIo { .. } => "no-direct-io",
            Self::Storage(error) => error.code(),
            Self::Short { .. } => "file-shrank",
        }
    }
}

impl StreamFile {
    /// Registers an open file for transfers to this GPU.
    ///
    /// # Errors
    /// Why the library does not take it.
    pub fn new(gpu: &Gpu, source: &Source) -> Result<Self, QueuedError> {
        let driver = gpu
            .storage()
            .ok_or(QueuedError::NoStorage { gpu: gpu.index() })?;
        let direct = source.direct().ok_or_else(|| QueuedError::NoDirectIo {
            path: source.name(),
        })?;
        let file = driver.register(Arc::clone(&direct.file))?;
        Ok(Self { file })
    }

    /// Queues the reading of `range.len()` bytes of the file from `offset` on into a part of a GPU's
    /// memory.
    ///
    /// # Errors
    /// When the version has nothing of the kind, or refuses; requests queued before are waited for.
    pub fn read(
        &self,
        stream: &Stream,
        to: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Requests, QueuedError> {
        let mut queued = Vec::new();
        let mut done = 0;
        while done < range.len() {
            let len = MAX_REQUEST.min(range.len() - done);
            let part = range.start + done..range.start + done + len;
            let request = self
                .file
                .queue_read(stream, to, part, offset + done as u64)?;
            queued.push((request, len));
            done += len;
        }
        Ok(Requests { queued })
    }

    /// Whether requests went straight is told by the library's counters.
    pub fn driver(&self) -> &Arc<crowfly_machine::gpu_storage::Driver> {
        self.file.driver()
    }
}

impl Requests {
    /// Whether [`Self::wait`] returns at once, as far as the GPU says.
    pub fn is_done(&self) -> bool {
        let mut requests = self.queued.iter();
        // One that failed is told of by waiting for it.
        requests.all(|(request, _)| request.flight().is_done().unwrap_or(true))
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// The first that failed, or brought less than was asked for.
    pub fn wait(self) -> Result<(), QueuedError> {
        let asked = self.queued.iter().map(|(_, asked)| asked).sum();
        self.wait_for(asked)
    }

    /// Waits for all of them, whose first `needed` bytes matter: what lies behind the end of a file does not
    /// arrive.
    fn wait_for(self, needed: usize) -> Result<(), QueuedError> {
        let mut left = needed;
        for (request, asked) in self.queued {
            let asked = asked.min(left);
            let arrived = request.wait()?;
            if arrived < asked {
                return Err(QueuedError::Short { arrived, asked });
            }
            left -= asked;
        }
        Ok(())
    }
}

/// Has what is queued on `later` from now on wait for what is queued on `earlier` so far, without
/// the host waiting.
///
/// # Errors
/// What the runtime answers.
pub fn after(earlier: &Stream, later: &Stream) -> Result<(), GpuError> {
    later.wait_for(&earlier.record()?)
}

/// Has a stream say, by a word of GPU memory, that all before it is done: a peer that polls the word
/// by RDMA, or another stream ([`Stream::wait_until`]), goes on from there.
///
/// # Errors
/// What the runtime answers.
pub fn signal(
    stream: &Stream,
    word: &Arc<DeviceMemory>,
    at: usize,
    value: u32,
) -> Result<InFlight, GpuError> {
    stream.write_word(word, at, value)
}
