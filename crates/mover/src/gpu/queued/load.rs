//! Whole loads in the order of a stream.

use std::sync::Arc;
use std::time::Instant;

use crowfly_machine::gpu::{DeviceMemory, Stream};
use crowfly_machine::gpu_storage::StorageError;
use crowfly_machine::usage;
use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{
    CpuSeconds, RECEIPT_SCHEMA, Receipt, Share, Verification, Visibility,
};
use crowfly_route::units::Bytes;

use super::{QueuedError, Requests, StreamFile};
use crate::engine::since;
use crate::error::TransferError;
use crate::gpu::Gpu;
use crate::io::Direction;
use crate::memory::{BLOCK, MemoryError, Region};
use crate::receipt::{Counted, bare_route};
use crate::request::Piece;

/// Bytes on their way into a GPU's memory, in the order of a stream: whatever is queued there from now on
/// finds them in place. Dropping it waits for them.
#[must_use = "dropping it waits for the GPU"]
pub struct QueuedLoad {
    regions: Vec<Region>,
    requests: Vec<Requests>,
    gpu: Arc<Gpu>,
    from: Place,
    pieces: Vec<Piece>,
    read: u64,
    counted: Counted,
    started: Instant,
    cpu: CpuSeconds,
}

/// Queues the reading of pieces of files into new memory of a GPU. Nothing is done in another way in its
/// place: only the stream's order makes this safe.
///
/// # Errors
/// [`TransferError::Refused`], with what stands in the way, where the storage library of the GPU's maker does
/// not go straight for these files or its version puts nothing into the order of a stream; when a piece lies
/// outside of its file, or the GPU has no room. What was queued before is waited for.
pub fn load(
    gpu: &Arc<Gpu>,
    stream: &Stream,
    from: Place,
    pieces: Vec<Piece>,
) -> Result<QueuedLoad, TransferError> {
    let cpu = usage::this_thread();
    let started = Instant::now();
    let refused = |obstacles| TransferError::Refused {
        from: Box::new(from.clone()),
        to: Box::new(gpu.place()),
        policy: Policy::Require,
        obstacles,
    };
    let Some(driver) = gpu.storage() else {
        let mut known = gpu.storage_obstacles().to_vec();
        if known.is_empty() {
            known.push(not_looked_for(gpu));
        }
        return Err(refused(known));
    };
    let counted = Counted::from_now(driver);
    let (mut regions, mut requests, mut read) = (Vec::new(), Vec::new(), 0);
    for piece in &pieces {
        let (start, end) = (piece.range.start, piece.range.end);
        if start > end || end > piece.source.size() {
            return Err(TransferError::OutOfRange {
                path: piece.source.name(),
                size: piece.source.size(),
                start,
                end,
            });
        }
        // Whole blocks are read without a buffer of the library's.
        let origin = start / BLOCK as u64 * BLOCK as u64;
        let room = (end.next_multiple_of(BLOCK as u64) - origin) as usize;
        let memory = DeviceMemory::allocate(gpu.device(), room);
        let memory = memory.map_err(|source| MemoryError::Gpu {
            gpu: gpu.index(),
            bytes: room,
            source,
        })?;
        if start < end {
            let queued = StreamFile::new(gpu, &piece.source)
                .and_then(|file| file.read(stream, &memory, 0..room, origin));
            requests.push(queued.map_err(|error| match error {
                QueuedError::Storage(StorageError::Unsupported { .. })
                | QueuedError::NoDirectIo { .. }
                | QueuedError::NoStorage { .. } => refused(vec![not_on_a_stream(gpu, &error)]),
                QueuedError::Storage(source) => TransferError::Storage {
                    path: piece.source.name(),
                    offset: origin,
                    source,
                },
                QueuedError::Short { .. } => ended_early(piece),
            })?);
            read += room as u64;
        }
        let bytes = (start - origin) as usize..(end - origin) as usize;
        let whole = Region::of_gpu(gpu.index(), memory)?;
        regions.extend(whole.part(bytes));
    }
    Ok(QueuedLoad {
        regions,
        requests,
        gpu: Arc::clone(gpu),
        from,
        pieces,
        read,
        counted,
        started,
        cpu: since(cpu),
    })
}

impl QueuedLoad {
    /// Where the bytes come to, in the order of the pieces. What is queued on the stream may use them at
    /// once; the host may look only after [`Self::wait`].
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Whether [`Self::wait`] returns at once.
    pub fn is_done(&self) -> bool {
        self.requests.iter().all(Requests::is_done)
    }

    /// Waits until the bytes are there, and says which way they went, by the library's own counters.
    ///
    /// # Errors
    /// When a request failed, brought less than was asked for, or went through host memory against what was
    /// asked: kernels that followed on the stream have then worked with wrong bytes, or with ones that took
    /// a detour. Also when a file was changed meanwhile.
    pub fn wait(self) -> Result<Receipt, TransferError> {
        let cpu = usage::this_thread();
        let to = self.gpu.place();
        let wanted = self.pieces.iter().filter(|piece| !piece.range.is_empty());
        for (requests, piece) in self.requests.into_iter().zip(wanted) {
            let needed =
                (piece.range.end - piece.range.start / BLOCK as u64 * BLOCK as u64) as usize;
            requests.wait_for(needed).map_err(|error| match error {
                QueuedError::Storage(source) => TransferError::Storage {
                    path: piece.source.name(),
                    offset: piece.range.start,
                    source,
                },
                _ => ended_early(piece),
            })?;
        }
        for piece in &self.pieces {
            piece.source.unchanged()?;
        }
        let path = self.gpu.storage_path();
        let asked: u64 = self
            .pieces
            .iter()
            .map(|piece| piece.range.end - piece.range.start)
            .sum();
        let found = self.counted.found(Direction::Read, path);
        let obstacles: Vec<Obstacle> = found.obstacle.into_iter().collect();
        if found.is_compat {
            return Err(TransferError::Refused {
                from: Box::new(self.from),
                to: Box::new(to),
                policy: Policy::Require,
                obstacles,
            });
        }
        let route = bare_route(path, found.route, &self.from, &to);
        let later = since(cpu);
        Ok(Receipt {
            schema: RECEIPT_SCHEMA.into(),
            policy: Policy::Require,
            requested: Bytes(asked),
            shares: match asked {
                0 => Vec::new(),
                bytes => vec![Share {
                    path,
                    class: found.class,
                    bytes: Bytes(bytes),
                    because: found.because,
                }],
            },
            bounced: match found.class {
                Class::Direct => Bytes(0),
                _ => Bytes(asked),
            },
            overread: Bytes(self.read.saturating_sub(asked)),
            retries: 0,
            wall_seconds: self.started.elapsed().as_secs_f64(),
            cpu: self.cpu + later,
            ceiling: None,
            obstacles,
            visibility: Visibility::NotNeeded(
                "what is queued behind the load on its stream finds the bytes in place".into(),
            ),
            verification: Verification::NotAsked,
            route,
            from: self.from,
            to,
        })
    }
}

fn ended_early(piece: &Piece) -> TransferError {
    TransferError::Shrank {
        path: piece.source.name(),
        offset: piece.range.end,
    }
}

/// Why nothing is known of the library.
fn not_looked_for(gpu: &Gpu) -> Obstacle {
    Obstacle::blocks(
        Code::NoStorageLibrary,
        format!(
            "{} was opened without the storage library of its maker",
            gpu.place()
        ),
    )
    .seen("Gpu::find_storage", "not called")
}

/// Why the library puts nothing into the order of a stream.
fn not_on_a_stream(gpu: &Gpu, error: &QueuedError) -> Obstacle {
    let code = match error {
        QueuedError::NoDirectIo { .. } => Code::NoDirectIo,
        QueuedError::NoStorage { .. } => Code::NoStorageLibrary,
        _ => Code::StorageDriverRefused,
    };
    Obstacle::blocks(
        code,
        format!("{} brings these bytes into no stream's order", gpu.storage_path()),
    )
    .seen("the storage library", error.to_string())
    .fixed_by(Fix::by_hand(
        "Use cuFile 1.7 (CUDA 12.2) or newer, on a file system that GPUDirect Storage reaches, or load without a stream and wait.",
    ))
}
