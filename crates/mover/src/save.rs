//! Writing memory to a file so that at every instant the path holds the old bytes or the new ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crowfly_machine::{limits, usage};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use crate::engine::Engine;
use crate::error::TransferError;
use crate::io::{Direction, uring};
use crate::job::{Job, Landing, Lane, Ledger};
use crate::memory::{BLOCK, Region};
use crate::receipt::{Account, Before};
use crate::request::Verify;
use crate::source::Direct;
use crate::transfer::Transfer;
use crate::tune::Tuner;
use crate::work::{Terms, cut};

/// What to write.
pub struct SaveRequest {
    /// The bytes; keep a clone to have them whatever happens.
    pub region: Region,
    /// The file they become, replaced atomically.
    pub path: PathBuf,
    /// How far the bytes may stray.
    pub policy: Policy,
    /// One engine path for all bytes, to compare.
    pub path_asked: Option<Path>,
}

/// The file being written, invisible until published and removed unless it is.
pub(crate) struct Publication {
    temporary: PathBuf,
    target: PathBuf,
    file: Arc<File>,
    length: u64,
    published: bool,
}

impl Publication {
    fn create(target: &FsPath, length: u64) -> Result<Self, TransferError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = target.display().to_string();
        if let Some(most) = limits::largest_file().filter(|most| *most < length) {
            let (path, bytes) = (name, length);
            return Err(TransferError::FileTooLarge { path, bytes, most });
        }
        let failed = |source| TransferError::Open {
            path: name.clone(),
            source,
        };
        let base = target
            .file_name()
            .ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
        if target.is_dir() {
            return Err(TransferError::NotAFile {
                path: name,
                found: "a directory",
            });
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(base);
        let serial = COUNT.fetch_add(1, Ordering::Relaxed);
        hidden.push(format!(".{}-{serial}.crowfly", std::process::id()));
        let temporary = target.with_file_name(hidden);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&temporary)
            .map_err(failed)?;
        let publication = Self {
            temporary,
            target: target.to_owned(),
            file: Arc::new(file),
            length,
            published: false,
        };
        publication.reserve()?;
        Ok(publication)
    }

    /// Whether the file may grow to whole blocks for a while, as direct writes need.
    fn may_be_padded(&self) -> bool {
        let padded = self.length.next_multiple_of(BLOCK as u64);
        limits::largest_file().is_none_or(|most| padded <= most)
    }

    /// Reserves the space first: a full disk is found before the first byte is written.
    fn reserve(&self) -> Result<(), TransferError> {
        let bytes = if self.may_be_padded() {
            self.length.next_multiple_of(BLOCK as u64)
        } else {
            self.length
        };
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&*self.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(
                error @ (rustix::io::Errno::NOSPC
                | rustix::io::Errno::DQUOT
                | rustix::io::Errno::FBIG),
            ) => Err(TransferError::NoSpace {
                path: self.target.display().to_string(),
                bytes: self.length,
                source: error.into(),
            }),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    fn failed(&self, source: io::Error) -> TransferError {
        TransferError::Write {
            path: self.target.display().to_string(),
            offset: self.length,
            source,
        }
    }

    /// Cuts the padding off, makes the bytes durable and gives the file its name.
    pub(crate) fn publish(mut self) -> Result<(), TransferError> {
        let done = (|| {
            self.file.set_len(self.length)?;
            self.file.sync_all()?;
            std::fs::rename(&self.temporary, &self.target)
        })();
        done.map_err(|error| self.failed(error))?;
        self.published = true;
        let parent = self.target.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = File::open(parent.unwrap_or_else(|| FsPath::new(".")));
        folder
            .and_then(|folder| folder.sync_all())
            .map_err(|error| self.failed(error))
    }

    fn direct(&self) -> Result<Direct, io::Error> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = libc::O_DIRECT | libc::O_CLOEXEC;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(link)?;
        Ok(Direct {
            file: Arc::new(file),
            align: BLOCK as u64,
        })
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

impl Engine {
    /// Starts writing a region to a file.
    ///
    /// The path holds the old file until every byte of the new one is durable; a failure, a
    /// cancelled or dropped transfer, or a crash leaves it untouched.
    ///
    /// # Errors
    /// Before the first byte moves: no space, no permission, or a policy that no open route allows.
    pub fn save(&self, request: SaveRequest) -> Result<Transfer, TransferError> {
        let cpu = usage::this_thread();
        let length = request.region.len() as u64;
        let publication = Publication::create(&request.path, length)?;
        let mut setup = Ledger::default();
        let direct = direct(&request, &publication, &mut setup);
        let refused = request.policy == Policy::Socket
            || (request.policy == Policy::Require && direct.is_none());
        let to = Place::File(request.path.display().to_string());
        if refused {
            return Err(TransferError::Refused {
                from: Box::new(request.region.place()),
                to: Box::new(to),
                policy: request.policy,
                obstacles: setup.obstacles,
            });
        }
        let terms = Terms {
            direct: direct.is_some(),
            cache: true,
            map: false,
            prefer_cache: false,
            cached: &|_| None,
        };
        let mut chunks = Vec::new();
        cut(0, 0..length, &terms, &mut chunks);
        let lane = Lane {
            name: request.path.display().to_string(),
            buffered: Arc::clone(&publication.file),
            landing: Landing::Region {
                memory: Arc::clone(request.region.memory()),
                shift: request.region.start() as i64,
            },
            direct,
            may_map: false,
            was_cached: false,
        };
        let blocking = request.path_asked == Some(Path::Threads) || uring::refusal().is_some();
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
        job.strict = request.policy == Policy::Require;
        setup.cpu = crate::engine::since(cpu);
        job.settle(setup);
        let account = Account {
            from: request.region.place(),
            to,
            policy: request.policy,
            forced: request.path_asked,
            verify: Verify::No,
            candidates: Vec::new(),
            ceiling: None,
            pieces: Vec::new(),
            before: Before::look(&[]),
        };
        let regions = vec![request.region];
        Transfer::start(
            job,
            workers,
            blocking,
            None,
            regions,
            account,
            Some(publication),
        )
    }
}

/// The file's direct side; `None`, with the obstacle, where the bytes have to be copied.
fn direct(request: &SaveRequest, publication: &Publication, setup: &mut Ledger) -> Option<Direct> {
    if matches!(request.path_asked, Some(Path::Cached)) || request.policy == Policy::Staged {
        return None;
    }
    let past = request.region.start() % BLOCK;
    let obstacle = match publication.direct() {
        Ok(_) if past != 0 => {
            Obstacle::blocks(Code::Unaligned, "the memory does not start on a block")
                .seen("address", format!("{past} bytes past a {BLOCK}-byte block"))
        }
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
        Err(error) => Obstacle::blocks(
            Code::NoDirectIo,
            format!("{} cannot be written with O_DIRECT", request.path.display()),
        )
        .seen("open(O_DIRECT)", error.to_string())
        .fixed_by(Fix::by_hand(
            "Write to a file system that supports O_DIRECT.",
        )),
    };
    setup.meet(obstacle);
    None
}
