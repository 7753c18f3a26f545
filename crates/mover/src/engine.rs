//! Setting a transfer up: which way each range goes, where it lands, how many workers carry it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crowfly_machine::gpu_storage::StorageFile;
use crowfly_machine::{huge_pages, limits, usage};
use crowfly_route::hop::{Candidate, Class};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path};
use crowfly_route::units::Bytes;

use crate::digest::GRID;
use crate::error::TransferError;
use crate::gpu::{DeviceMemory, Gpu};
use crate::io::Direction;
use crate::io::uring;
use crate::job::{Job, Landing, Lane, Ledger};
use crate::memory::{BLOCK, HUGE_PAGE, Memory, MemoryError, MemoryKind, Region};
use crate::receipt::{Account, Before, Counted};
use crate::request::{Destination, Piece, Request, Settings, Verify};
use crate::source::Source;
use crate::transfer::Transfer;
use crate::tune::Tuner;
use crate::work::{Chunk, Terms, Way, cut};

/// The most requests that all workers together keep in flight.
pub(crate) const MAX_LEVEL: usize = 32;
/// Workers with a ring of their own; more only help when one core cannot submit fast enough.
const MAX_RINGS: usize = 4;
/// Workers that block in their requests, where io_uring cannot be used.
const MAX_BLOCKING: usize = 16;
/// Threads, stacks and rings, kept free of the buffer budget.
const OVERHEAD: u64 = 32 << 20;

/// The least memory that a transfer which keeps nothing can do with: its overhead and one buffer.
pub const MIN_BUDGET: Bytes = Bytes(OVERHEAD + GRID);

/// Starts transfers.
#[derive(Clone, Debug, Default)]
pub struct Engine {
    settings: Settings,
}

/// Whether what will be kept fits into memory. Memory is given out before it is filled, and who fills too
/// much of it is ended without a word. Pages of a mapped file take none that the kernel cannot have back.
fn fits(chunks: &[Chunk]) -> Result<(), MemoryError> {
    let kept = chunks.iter().filter(|chunk| chunk.way != Way::Map);
    let bytes = kept
        .map(|chunk| chunk.wanted.end - chunk.wanted.start)
        .sum();
    match limits::memory_room() {
        Some(room) if bytes > room => Err(MemoryError::NoRoom { bytes, room }),
        _ => Ok(()),
    }
}

impl Engine {
    /// An engine with these settings.
    pub const fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Starts loading.
    ///
    /// # Errors
    /// Before the first byte moves: when the policy allows no open route, a piece lies outside of
    /// its file, or memory or threads cannot be had.
    pub fn load(&self, request: Request) -> Result<Transfer, TransferError> {
        let cpu = usage::this_thread();
        for piece in &request.pieces {
            if piece.range.start > piece.range.end || piece.range.end > piece.source.size() {
                return Err(TransferError::OutOfRange {
                    path: piece.source.name(),
                    size: piece.source.size(),
                    start: piece.range.start,
                    end: piece.range.end,
                });
            }
        }
        let mut setup = Ledger::default();
        let terms = Allowed::by(&request)?;
        let budget = self.settings.budget;
        if matches!(request.destination, Destination::Transit(_)) && budget < MIN_BUDGET {
            return Err(TransferError::BudgetTooSmall { budget });
        }
        let before = Before::look(&request.pieces);
        let (lanes, regions) = self.landings(
            &request,
            &before,
            terms.map && terms.prefer_cache,
            &mut setup,
        )?;
        let mut chunks = Vec::new();
        for (index, piece) in request.pieces.iter().enumerate() {
            let cached = |range: &Range<u64>| piece.source.cached(range);
            let by_storage = lanes
                .get(index)
                .is_some_and(|lane| lane.landing.by_storage());
            let terms = Terms {
                direct: terms.direct && piece.source.direct().is_some(),
                straight: if by_storage {
                    Way::Storage
                } else {
                    Way::Direct
                },
                cache: terms.cache,
                map: terms.map,
                // The drive's own DMA is worth more than a copy and a hop through host memory.
                prefer_cache: terms.prefer_cache && !by_storage,
                cached: &cached,
            };
            cut(index, piece.range.clone(), &terms, &mut chunks);
        }
        map_pages(&lanes, &mut chunks);
        if matches!(request.destination, Destination::Host(_)) {
            fits(&chunks)?;
        }
        let strict = request.policy == Policy::Require;
        if let (true, Destination::Gpu(gpu)) = (strict, &request.destination)
            && chunks.iter().any(|chunk| chunk.way != Way::Storage)
        {
            let mut obstacles = gpu.storage_obstacles().to_vec();
            obstacles.extend(setup.obstacles);
            return Err(refused(&request, obstacles));
        }
        let plan = self.staffing(&request, &chunks);
        let mut job = Job::new(Direction::Read, lanes, chunks, plan.tuner);
        job.strict = strict;
        job.sink = match &request.destination {
            Destination::Transit(sink) => sink.clone(),
            _ => request.watch.clone(),
        };
        if request.verify != Verify::No {
            job = job.with_digests();
        }
        setup.cpu = since(cpu);
        job.settle(setup);
        let account = Account {
            from: request.from,
            to: request.destination.place(),
            policy: request.policy,
            forced: request.path,
            verify: request.verify,
            candidates: request.candidates,
            ceiling: request.ceiling,
            pieces: request.pieces,
            before,
            storage: match &request.destination {
                Destination::Gpu(gpu) => gpu.storage().map(Counted::from_now),
                _ => None,
            },
        };
        let buffered = matches!(
            request.destination,
            Destination::Transit(_) | Destination::Gpu(_)
        );
        let ring = buffered.then_some(plan.slots);
        Transfer::start(
            job,
            plan.workers,
            plan.blocking,
            ring,
            regions,
            account,
            None,
        )
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    fn landings(
        &self,
        request: &Request,
        before: &Before,
        may_detour: bool,
        setup: &mut Ledger,
    ) -> Result<(Vec<Lane>, Vec<Region>), TransferError> {
        let mut regions = Vec::new();
        let mut lanes = Vec::new();
        let mut files = StorageFiles::for_request(request, setup);
        for (index, piece) in request.pieces.iter().enumerate() {
            let grain = match request.destination {
                Destination::Host(_) => HUGE_PAGE,
                _ => BLOCK,
            } as u64;
            let origin = piece.range.start / grain * grain;
            let length = piece.range.end.next_multiple_of(BLOCK as u64) - origin;
            let landing = match &request.destination {
                Destination::Transit(_) => Landing::Ring,
                Destination::Host(node) => Landing::Region {
                    // On the drive's own node, so that its DMA does not cross sockets.
                    memory: Memory::host(
                        length as usize,
                        node.or_else(|| piece.source.numa_node()),
                    )?,
                    shift: -(origin as i64),
                },
                Destination::Peer(address) => Landing::Region {
                    memory: Memory::peer(*address, length as usize)?,
                    shift: -(origin as i64),
                },
                Destination::Gpu(gpu) => Landing::Gpu {
                    memory: on_gpu(gpu, length as usize)?,
                    shift: -(origin as i64),
                    file: files.of(piece, setup),
                },
            };
            if let Landing::Gpu { memory, .. } = &landing {
                let range =
                    (piece.range.start - origin) as usize..(piece.range.end - origin) as usize;
                let index = match &request.destination {
                    Destination::Gpu(gpu) => gpu.index(),
                    _ => 0,
                };
                regions.push(Region::new(
                    Memory::of_gpu(index, Arc::clone(memory))?,
                    range,
                ));
            }
            if let Landing::Region { memory, .. } = &landing {
                if let Some(obstacle) = no_huge_pages(memory.kind()) {
                    setup.meet(obstacle);
                }
                let range =
                    (piece.range.start - origin) as usize..(piece.range.end - origin) as usize;
                regions.push(Region::new(Arc::clone(memory), range));
            }
            lanes.push(Lane {
                name: piece.source.name(),
                buffered: Arc::clone(piece.source.buffered()),
                direct: piece.source.direct().cloned(),
                landing,
                may_detour,
                was_cached: before.all_cached(&request.pieces, index),
            });
        }
        Ok((lanes, regions))
    }

    /// How many workers of which kind, and how many requests they may keep in flight.
    fn staffing(&self, request: &Request, chunks: &[Chunk]) -> Staffing {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cold_copies = || {
            let copy = |c: &&Chunk| c.way == Way::Copy;
            chunks.iter().find(copy).is_some_and(|chunk| {
                let source = &request.pieces[chunk.piece].source;
                source
                    .cached(&chunk.wanted)
                    .is_none_or(|cached| cached == 0)
            })
        };
        let direct = chunks.iter().any(|c| c.way == Way::Direct);
        // The storage library moves one request at a time for each thread.
        let by_storage = chunks.iter().any(|c| c.way == Way::Storage);
        let forced = request.path == Some(Path::Threads) || by_storage;
        let blocking =
            forced || (direct && uring::refusal().is_some()) || (!direct && cold_copies());
        let most = if blocking {
            MAX_BLOCKING
        } else {
            MAX_RINGS.min(cores)
        };
        let budget = (self.settings.budget.0.saturating_sub(OVERHEAD) / GRID) as usize;
        let to_gpu = matches!(request.destination, Destination::Gpu(_));
        let keeps = !to_gpu && !matches!(request.destination, Destination::Transit(_));
        let workers = self
            .settings
            .workers
            .unwrap_or(most)
            .clamp(1, 256)
            .min(chunks.len().max(1));
        // Each worker has buffers of its own.
        let workers = if keeps {
            workers
        } else {
            workers.min(budget.max(1))
        };
        let limit = budget.clamp(workers, MAX_LEVEL.max(workers));
        let limit = if blocking { limit.min(workers) } else { limit };
        let tuner = match self.settings.depth {
            Some(depth) => Tuner::fixed(depth.clamp(1, 1024)),
            // What only touches memory is bound by cores, not by requests in flight.
            None if !direct && !blocking => Tuner::fixed(workers),
            None => Tuner::new(limit),
        };
        let most_in_flight = self
            .settings
            .depth
            .map_or(limit, |depth| depth.clamp(1, 1024));
        // While one buffer is being filled, another one is copied to the GPU.
        let buffers = match to_gpu {
            true => (2 * most_in_flight).min(budget.max(2 * workers)),
            false => most_in_flight,
        };
        Staffing {
            workers,
            blocking,
            slots: (buffers / workers).max(1),
            tuner,
        }
    }
}

struct Staffing {
    workers: usize,
    blocking: bool,
    /// Ring buffers for each worker.
    slots: usize,
    tuner: Tuner,
}

/// What the policy and a forced path allow.
struct Allowed {
    direct: bool,
    cache: bool,
    map: bool,
    prefer_cache: bool,
}

impl Allowed {
    fn by(request: &Request) -> Result<Self, TransferError> {
        if let Some(path) = request.path {
            Self::check(path, request)?;
        }
        let to_host = matches!(request.destination, Destination::Host(_));
        let to_peer = matches!(request.destination, Destination::Peer(_));
        let to_gpu = matches!(request.destination, Destination::Gpu(_));
        let (direct, cache, map, prefer_cache) = match (request.policy, request.path) {
            (Policy::Socket, _) => return Err(refused(request, Vec::new())),
            (_, Some(Path::Staged)) => (true, true, false, false),
            // Through host memory on purpose, and by the straightest way there is to it.
            (Policy::Staged, None) if to_gpu => (true, true, false, true),
            (_, Some(Path::Mapped)) => (false, true, true, true),
            (_, Some(Path::Cached)) | (Policy::Staged, _) => (false, true, false, true),
            (Policy::Require, _) => (true, false, false, false),
            (_, Some(_)) => (true, true, false, false),
            // Peer memory is worth the drive's own DMA even when the bytes are cached.
            (_, None) => (true, true, to_host, !to_peer),
        };
        let needs_direct = request.policy == Policy::Require
            || matches!(
                request.path,
                Some(Path::Direct | Path::Peer | Path::CuFile | Path::HipFile)
            );
        if needs_direct {
            let without = request
                .pieces
                .iter()
                .filter_map(|p| p.source.direct_obstacle());
            let mut obstacles: Vec<Obstacle> = Vec::new();
            for obstacle in without {
                if !obstacles.contains(obstacle) {
                    obstacles.push(obstacle.clone());
                }
            }
            if !obstacles.is_empty() {
                return Err(refused(request, obstacles));
            }
        }
        Ok(Self {
            direct,
            cache,
            map,
            prefer_cache,
        })
    }

    /// Whether a path can serve the destination, and agrees with the policy.
    fn check(path: Path, request: &Request) -> Result<(), TransferError> {
        let reaches = |path: &Path| match request.destination {
            // Files do not arrive over a fabric.
            _ if Path::FABRIC.contains(path) => false,
            Destination::Gpu(_) => Path::GPU.contains(path),
            _ if !Path::STORAGE.contains(path) => false,
            Destination::Host(_) => *path != Path::Peer,
            Destination::Peer(_) => *path != Path::Mapped,
            Destination::Transit(_) => ![Path::Peer, Path::Mapped].contains(path),
        };
        let staged = |path: &Path| match request.destination {
            Destination::Gpu(_) => [Path::Staged, Path::Cached].contains(path),
            _ => *path == Path::Cached,
        };
        let agrees = |path: &Path| match request.policy {
            Policy::Require => !staged(path),
            Policy::Prefer => true,
            Policy::Staged => staged(path),
            Policy::Socket => false,
        };
        let ways = match request.destination {
            Destination::Gpu(_) => Path::GPU.as_slice(),
            _ => Path::STORAGE.as_slice(),
        };
        let able = ways.iter().copied().filter(reaches);
        if !reaches(&path) {
            let to = match request.destination {
                Destination::Transit(_) => "a ring of buffers".to_owned(),
                _ => request.destination.place().to_string(),
            };
            let able = able.collect();
            return Err(TransferError::PathCannotReach { path, to, able });
        }
        if agrees(&path) {
            return Ok(());
        }
        Err(TransferError::PathForbidden {
            policy: request.policy,
            path,
            able: able.filter(agrees).collect(),
        })
    }
}

/// New memory of a GPU.
fn on_gpu(gpu: &Gpu, bytes: usize) -> Result<Arc<DeviceMemory>, MemoryError> {
    DeviceMemory::allocate(gpu.device(), bytes).map_err(|source| MemoryError::Gpu {
        gpu: gpu.index(),
        bytes,
        source,
    })
}

/// The files of a request as the storage library of its GPU's maker knows them, each registered
/// once.
struct StorageFiles<'g> {
    gpu: Option<&'g Gpu>,
    known: HashMap<*const Source, Option<Arc<StorageFile>>>,
}

impl<'g> StorageFiles<'g> {
    /// None are registered where another way is asked for.
    fn for_request(request: &'g Request, setup: &mut Ledger) -> Self {
        let gpu = match &request.destination {
            Destination::Gpu(gpu) => Some(&**gpu),
            _ => None,
        };
        let asked = match request.path {
            None => request.policy != Policy::Staged,
            Some(path) => gpu.is_some_and(|gpu| path == gpu.storage_path()),
        };
        let gpu = gpu.filter(|_| asked);
        if let Some(gpu) = gpu {
            for obstacle in gpu.storage_obstacles() {
                setup.meet(obstacle.clone());
            }
        }
        Self {
            gpu,
            known: HashMap::new(),
        }
    }

    fn of(&mut self, piece: &Piece, setup: &mut Ledger) -> Option<Arc<StorageFile>> {
        let driver = self.gpu?.storage()?;
        let direct = piece.source.direct()?;
        let registered = self.known.entry(Arc::as_ptr(&piece.source));
        let file = registered.or_insert_with(|| match driver.register(Arc::clone(&direct.file)) {
            Ok(file) => Some(file),
            Err(error) => {
                setup.meet(
                    Obstacle::blocks(
                        Code::FileNotRegistered,
                        format!("the storage library refuses {}", piece.source.name()),
                    )
                    .seen("handle register", error.to_string())
                    .fixed_by(Fix::by_hand(
                        "Keep it on ext4 with data=ordered or xfs, on NVMe drives.",
                    )),
                );
                None
            }
        });
        file.clone()
    }
}

fn refused(request: &Request, mut obstacles: Vec<Obstacle>) -> TransferError {
    let direct = |candidate: &&Candidate| {
        candidate.route.hops.is_empty() || candidate.route.class() == Class::Direct
    };
    for candidate in request.candidates.iter().filter(direct) {
        let blocking = candidate
            .obstacles
            .iter()
            .filter(|o| !obstacles.contains(o));
        let blocking: Vec<_> = blocking.cloned().collect();
        obstacles.extend(blocking);
    }
    TransferError::Refused {
        from: Box::new(request.from.clone()),
        to: Box::new(request.destination.place()),
        policy: request.policy,
        obstacles,
    }
}

/// Why host memory is made of small pages, if it is.
fn no_huge_pages(kind: MemoryKind) -> Option<Obstacle> {
    let MemoryKind::Host { huge, .. } = kind else {
        return None;
    };
    let (at, shows) = match (huge, huge_pages::forbidden()) {
        (_, Some(setting)) => (huge_pages::SETTING, setting),
        (false, None) => ("madvise(MADV_HUGEPAGE)", "refused".to_owned()),
        (true, None) => return None,
    };
    let fix = Fix::run(
        "Let programs that ask have huge pages.",
        format!("echo madvise > {}", huge_pages::SETTING),
    );
    let small = Obstacle::slows(Code::NoHugePages, "host memory is made of small pages");
    let check = format!("cat {}", huge_pages::SETTING);
    Some(small.seen(at, shows).fixed_by(fix.checked_by(check)))
}

/// Lays the page cache's pages over the memory of runs of chunks that are to be mapped. Where the
/// file system cannot map, the chunks are copied instead.
fn map_pages(lanes: &[Lane], chunks: &mut [Chunk]) {
    let adjoining =
        |a: &Chunk, b: &Chunk| (a.piece, a.way, a.wanted.end) == (b.piece, b.way, b.wanted.start);
    for run in chunks.chunk_by_mut(adjoining) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        if first.way != Way::Map {
            continue;
        }
        let page = BLOCK as u64;
        let span = first.span(page).start..last.span(page).end;
        let lane = &lanes[first.piece];
        let mapped = lane.landing.target(&span).map(|target| {
            use std::os::fd::AsFd;
            target.map_file(lane.buffered.as_fd(), span.start)
        });
        if !matches!(mapped, Some(Ok(()))) {
            for chunk in run {
                chunk.way = Way::Copy;
            }
        }
    }
}

pub(crate) fn since(before: CpuSeconds) -> CpuSeconds {
    let now = usage::this_thread();
    CpuSeconds {
        user: now.user - before.user,
        system: now.system - before.system,
    }
}
