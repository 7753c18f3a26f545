//! Writing memory to a file so that at every instant the path holds the old bytes or the new ones.

mod flights;
mod parts;
mod publication;
mod stream;

use std::fs::File;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use crowfly_machine::{limits, usage};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use crate::engine::{Engine, MAX_LEVEL};
use crate::error::TransferError;
use crate::gpu::Gpu;
use crate::io::{Direction, uring};
use crate::job::{Job, Landing, Lane, Ledger};
use crate::memory::{BLOCK, Region};
use crate::receipt::{Account, Before, Counted};
use crate::request::Verify;
use crate::source::Direct;
use crate::transfer::Transfer;
use crate::tune::Tuner;
use crate::work::{Terms, Way, cut};

pub(crate) use flights::{Flights, IN_FLIGHT};
pub use parts::Parts;
pub(crate) use parts::gather;
pub(crate) use publication::Publication;
pub use stream::{BUFFER, PartsRequest, Saving};

/// What to write.
pub struct SaveRequest {
    /// The bytes; keep a clone to have them whatever happens.
    pub region: Region,
    /// The file they become, replaced atomically, or the block device whose first bytes they become.
    pub path: PathBuf,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// One engine path for all bytes, to compare.
    pub path_asked: Option<Path>,
}

impl Engine {
    /// Starts writing a region to a file.
    ///
    /// The path holds the old file until every byte of the new one is durable; a failure, a
    /// cancelled or dropped transfer, or a crash leaves it untouched. Only a block device, which must
    /// not be in use, is written in place.
    ///
    /// # Errors
    /// Before the first byte moves: no space, no permission, or a policy that no open route allows.
    pub fn save(&self, request: SaveRequest) -> Result<Transfer, TransferError> {
        self.save_by(request, None)
    }

    /// Starts writing a region of a GPU's memory to a file, by the storage library of its maker where
    /// that goes straight.
    ///
    /// # Errors
    /// As [`Engine::save`].
    pub fn save_from(&self, request: SaveRequest, gpu: &Gpu) -> Result<Transfer, TransferError> {
        self.save_by(request, Some(gpu))
    }

    fn save_by(&self, request: SaveRequest, gpu: Option<&Gpu>) -> Result<Transfer, TransferError> {
        let length = request.region.len() as u64;
        let terms = WriteTerms::of(&request);
        let mut writing = Writing::begin(&request.path, length, terms, &request.region.place())?;
        let publication = writing.publication.take();
        self.write_by(&writing, request.region, 0, publication, gpu)
    }

    /// Starts writing a region to its place in a file that is written in several transfers.
    ///
    /// # Errors
    /// When threads cannot be had.
    pub(crate) fn write(
        &self,
        writing: &Writing,
        region: Region,
        offset: u64,
        publication: Option<Publication>,
    ) -> Result<Transfer, TransferError> {
        self.write_by(writing, region, offset, publication, None)
    }

    fn write_by(
        &self,
        writing: &Writing,
        region: Region,
        offset: u64,
        publication: Option<Publication>,
        gpu: Option<&Gpu>,
    ) -> Result<Transfer, TransferError> {
        let cpu = usage::this_thread();
        let mut setup = Ledger::default();
        for obstacle in &writing.obstacles {
            setup.meet(obstacle.clone());
        }
        let WriteTerms {
            policy, path_asked, ..
        } = writing.terms;
        let landing = writing.landing(&region, offset, gpu, &mut setup);
        let (by_storage, on_gpu) = (landing.by_storage(), landing.gpu().is_some());
        if policy == Policy::Require && on_gpu && !by_storage {
            return Err(TransferError::Refused {
                from: Box::new(region.place()),
                to: Box::new(Place::File(writing.name.clone())),
                policy,
                obstacles: setup.obstacles,
            });
        }
        let terms = Terms {
            direct: writing.direct.is_some(),
            straight: if by_storage {
                Way::Storage
            } else {
                Way::Direct
            },
            cache: true,
            map: false,
            prefer_cache: false,
            cached: &|_| None,
        };
        let mut chunks = Vec::new();
        cut(0, offset..offset + region.len() as u64, &terms, &mut chunks);
        let lane = Lane {
            name: writing.name.clone(),
            buffered: Arc::clone(&writing.file),
            landing,
            direct: writing.direct.clone(),
            may_detour: false,
            was_cached: false,
        };
        let blocking =
            path_asked == Some(Path::Threads) || by_storage || uring::refusal().is_some();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self
            .settings()
            .workers
            .unwrap_or(if blocking { 8 } else { cores.min(4) });
        let workers = workers.clamp(1, chunks.len().max(1));
        let tuner = match self.settings().depth {
            Some(depth) => Tuner::fixed(depth.clamp(1, 1024)),
            None => Tuner::new(if blocking { workers } else { 32 }),
        };
        let mut job = Job::new(Direction::Write, vec![lane], chunks, tuner);
        job.strict = policy == Policy::Require;
        setup.cpu = crate::engine::since(cpu);
        job.settle(setup);
        let account = Account {
            from: region.place(),
            to: Place::File(writing.name.clone()),
            policy,
            forced: path_asked,
            verify: Verify::No,
            candidates: Vec::new(),
            ceiling: None,
            pieces: Vec::new(),
            before: Before::look(&[]),
            storage: match (gpu, by_storage) {
                (Some(gpu), true) => gpu.storage().map(Counted::from_now),
                _ => None,
            },
        };
        let ring = on_gpu.then_some((2 * MAX_LEVEL / workers).max(1));
        let regions = vec![region];
        Transfer::start(job, workers, blocking, ring, regions, account, publication)
    }
}

/// How far the bytes of a file may stray on their way.
#[derive(Clone, Copy)]
pub(crate) struct WriteTerms {
    pub(crate) policy: Policy,
    pub(crate) path_asked: Option<Path>,
    /// How far past a block the memory begins.
    pub(crate) past: usize,
    /// Whether it is a GPU's memory, whose bytes go through aligned buffers.
    pub(crate) on_gpu: bool,
}

impl WriteTerms {
    fn of(request: &SaveRequest) -> Self {
        let on_gpu = request.region.device().is_some();
        Self {
            policy: request.policy,
            path_asked: request.path_asked,
            past: if on_gpu {
                0
            } else {
                request.region.start() % BLOCK
            },
            on_gpu,
        }
    }
}

/// A file that is being written, by one transfer or by several.
pub(crate) struct Writing {
    name: String,
    file: Arc<File>,
    direct: Option<Direct>,
    obstacles: Vec<Obstacle>,
    terms: WriteTerms,
    publication: Option<Publication>,
}

impl Writing {
    /// Makes the file under a hidden name and reserves its space.
    ///
    /// # Errors
    /// No space, no permission, or a policy that no open route allows.
    pub(crate) fn begin(
        path: &FsPath,
        length: u64,
        terms: WriteTerms,
        from: &Place,
    ) -> Result<Self, TransferError> {
        let publication = Publication::create(path, length)?;
        let mut setup = Ledger::default();
        let direct = direct(terms, &publication, &mut setup);
        let name = path.display().to_string();
        let refused =
            terms.policy == Policy::Socket || (terms.policy == Policy::Require && direct.is_none());
        if refused {
            return Err(TransferError::Refused {
                from: Box::new(from.clone()),
                to: Box::new(Place::File(name)),
                policy: terms.policy,
                obstacles: setup.obstacles,
            });
        }
        Ok(Self {
            name,
            file: Arc::clone(&publication.file),
            direct,
            obstacles: setup.obstacles,
            terms,
            publication: Some(publication),
        })
    }

    /// Where the bytes are, and who takes them from there.
    fn landing(
        &self,
        region: &Region,
        offset: u64,
        gpu: Option<&Gpu>,
        setup: &mut Ledger,
    ) -> Landing {
        let shift = region.start() as i64 - offset as i64;
        let Some((memory, _)) = region.device() else {
            return Landing::Region {
                memory: Arc::clone(region.memory()),
                shift,
            };
        };
        let asked = |gpu: &&Gpu| match self.terms.path_asked {
            None => self.terms.policy != Policy::Staged,
            Some(path) => path == gpu.storage_path(),
        };
        let mut file = None;
        if let Some(gpu) = gpu.filter(asked) {
            for obstacle in gpu.storage_obstacles() {
                setup.meet(obstacle.clone());
            }
            if let (Some(driver), Some(direct)) = (gpu.storage(), &self.direct) {
                match driver.register(Arc::clone(&direct.file)) {
                    Ok(registered) => file = Some(registered),
                    Err(error) => setup.meet(
                        Obstacle::blocks(
                            Code::FileNotRegistered,
                            format!("the storage library refuses {}", self.name),
                        )
                        .seen("handle register", error.to_string())
                        .fixed_by(Fix::by_hand(
                            "Write to ext4 with data=ordered or xfs, on NVMe drives.",
                        )),
                    ),
                }
            }
        }
        Landing::Gpu {
            memory: Arc::clone(memory),
            shift,
            file,
        }
    }

    /// Makes the bytes durable and gives the file its name.
    ///
    /// # Errors
    /// What the file system answers; the file is gone then.
    pub(crate) fn publish(mut self) -> Result<(), TransferError> {
        match self.publication.take() {
            Some(publication) => publication.publish(),
            None => Ok(()),
        }
    }
}

/// The file's direct side; `None`, with the obstacle, where the bytes have to be copied.
fn direct(terms: WriteTerms, publication: &Publication, setup: &mut Ledger) -> Option<Direct> {
    let staged = terms.policy == Policy::Staged && !terms.on_gpu;
    if matches!(terms.path_asked, Some(Path::Cached)) || staged {
        return None;
    }
    let past = terms.past;
    let obstacle = match publication.direct() {
        Ok(_) if past != 0 => {
            Obstacle::blocks(Code::Unaligned, "the memory does not start on a block")
                .seen("address", format!("{past} bytes past a {BLOCK}-byte block"))
        }
        Ok(_) if publication.in_place() && !publication.may_be_padded() => Obstacle::blocks(
            Code::Unaligned,
            "the device's last block is not written whole: the rest of it is not this file's",
        )
        .seen("length", format!("{} bytes", publication.length)),
        Ok(_) if !publication.may_be_padded() => Obstacle::blocks(
            Code::Unaligned,
            "the limit on the size of files leaves no room for the last whole block",
        )
        .seen(
            "getrlimit(RLIMIT_FSIZE)",
            format!("{} bytes", limits::largest_file().unwrap_or_default()),
        )
        .fixed_by(Fix::run("Raise the limit.", "ulimit -f unlimited").checked_by("ulimit -f")),
        Ok(direct) => return Some(direct),
        Err(obstacle) => obstacle,
    };
    setup.meet(obstacle);
    None
}
