//! A running transfer: its threads, its end, its memory and its receipt.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crowfly_machine::usage;
use crowfly_route::hop::Candidate;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::receipt::Receipt;
use crowfly_route::units::Bytes;

use crate::digest::GRID;
use crate::engine::{MAX_LEVEL, since};
use crate::error::TransferError;
use crate::io::blocking::Blocking;
use crate::io::uring::{self, Uring};
use crate::job::{Job, Ledger};
use crate::memory::{Memory, Region};
use crate::receipt::Account;
use crate::save::Publication;
use crate::work::Way;
use crate::worker::{Ring, Staging, Worker};

/// Loaded memory and what loading it took.
#[derive(Debug)]
pub struct Loaded {
    /// One region for each piece; none in transit.
    pub regions: Vec<Region>,
    /// What the transfer did.
    pub receipt: Receipt,
}

/// A running transfer. Dropping it cancels; the memory lives until the devices are done with it.
pub struct Transfer {
    job: Arc<Job>,
    workers: Vec<JoinHandle<()>>,
    regions: Vec<Region>,
    account: Option<Account>,
    publication: Option<Publication>,
    total: Bytes,
}

impl Transfer {
    pub(crate) fn start(
        job: Job,
        workers: usize,
        blocking: bool,
        ring_slots: Option<usize>,
        regions: Vec<Region>,
        account: Account,
        publication: Option<Publication>,
    ) -> Result<Self, TransferError> {
        let total = job
            .chunks()
            .iter()
            .map(|c| Bytes(c.wanted.end - c.wanted.start))
            .sum();
        let job = Arc::new(job);
        let mut transfer = Self {
            job: Arc::clone(&job),
            workers: Vec::with_capacity(workers),
            regions,
            account: Some(account),
            publication,
            total,
        };
        for rank in 0..workers {
            let job = Arc::clone(&job);
            let body = move || work(&job, (rank, workers), blocking, ring_slots);
            let spawned = std::thread::Builder::new()
                .name(format!("crowfly-io-{rank}"))
                .spawn(body);
            match spawned {
                Ok(handle) => transfer.workers.push(handle),
                Err(_) if rank > 0 => break,
                Err(source) => {
                    return Err(TransferError::Setup {
                        what: "starting a thread",
                        source,
                    });
                }
            }
        }
        Ok(transfer)
    }

    /// Tells the receipt which routes there are between the two places, where they were looked up
    /// while the bytes already moved.
    pub fn consider(&mut self, candidates: Vec<Candidate>) {
        if let Some(account) = &mut self.account {
            account.candidates = candidates;
        }
    }

    /// Bytes asked for.
    pub const fn total(&self) -> Bytes {
        self.total
    }

    /// Bytes that have arrived so far.
    pub fn moved(&self) -> Bytes {
        Bytes(self.job.moved())
    }

    /// Whether all workers have ended, so that [`Transfer::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Asks the workers to stop; [`Transfer::wait`] then answers [`TransferError::Cancelled`].
    pub fn cancel(&self) {
        self.job.stop();
    }

    /// Waits for the end and returns the memory and the receipt.
    ///
    /// # Errors
    /// What went wrong first. No memory is returned then: part of it may hold old bytes.
    pub fn wait(mut self) -> Result<Loaded, TransferError> {
        let mut died = false;
        for worker in self.workers.drain(..) {
            died |= worker.join().is_err();
        }
        if let Some(error) = self.job.failure() {
            return Err(error);
        }
        if died {
            return Err(TransferError::WorkerDied);
        }
        if self.job.moved() != self.total.0 {
            return Err(TransferError::Cancelled);
        }
        if let Some(publication) = self.publication.take() {
            publication.publish()?;
        }
        let account = self.account.take().ok_or(TransferError::WorkerDied)?;
        let receipt = account.settle(&self.job, self.total)?;
        Ok(Loaded {
            regions: std::mem::take(&mut self.regions),
            receipt,
        })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.job.stop();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// The body of a worker thread.
fn work(job: &Job, rank: (usize, usize), blocking: bool, ring_slots: Option<usize>) {
    let cpu = usage::this_thread();
    let mut ledger = Ledger::default();
    // The buffers of copies to and from a GPU lie next to it.
    let numa = job.gpu().and_then(|gpu| gpu.facts().numa);
    let ring = match ring_slots.map(|slots| (slots, Memory::host(slots * GRID as usize, numa))) {
        None => None,
        Some((slots, Ok(memory))) => Some(Ring::new(memory, slots)),
        Some((_, Err(error))) => return job.fail(error.into()),
    };
    let staging = match (job.gpu(), &ring) {
        (Some(gpu), Some(ring)) => match Staging::new(gpu, ring, &mut ledger) {
            Ok(staging) => Some(staging),
            Err(source) => {
                let path = job.lanes.first().map_or(String::new(), |l| l.name.clone());
                return job.fail(TransferError::Gpu {
                    path,
                    offset: 0,
                    source,
                });
            }
        },
        _ => None,
    };
    let entries = ring_slots
        .unwrap_or(MAX_LEVEL)
        .max(job.level())
        .max(MAX_LEVEL);
    let uring = (!blocking).then(|| Uring::new(entries));
    match &uring {
        Some(Err(refusal)) => ledger.meet(without_ring(refusal)),
        None => uring::refusal()
            .iter()
            .for_each(|refusal| ledger.meet(without_ring(refusal))),
        Some(Ok(_)) => {}
    }
    let (mut ledger, workers_cpu) = match uring {
        Some(Ok(uring)) => {
            let (uring, ring) = registered(job, uring, ring, &mut ledger);
            let worker = Worker::new(job, uring, rank, ring, ledger);
            let ledger = worker.with_staging(staging).run();
            (ledger, usage::io_workers_of_this_thread())
        }
        _ => (
            Worker::new(job, Blocking::default(), rank, ring, ledger)
                .with_staging(staging)
                .run(),
            0.0,
        ),
    };
    let used = since(cpu);
    ledger.cpu += used;
    ledger.cpu.system += workers_cpu;
    job.settle(ledger);
}

/// Registers the ring of buffers, so that requests need no pinning of their own.
fn registered(
    job: &Job,
    mut uring: Uring,
    ring: Option<Ring>,
    ledger: &mut Ledger,
) -> (Uring, Option<Ring>) {
    let direct = job.chunks().iter().any(|c| c.way == Way::Direct);
    let ring = ring.map(|mut ring| {
        match direct.then(|| uring.register(ring.targets())) {
            None => {}
            Some(Ok(())) => ring.mark_registered(),
            Some(Err(error)) => ledger.meet(
                Obstacle::slows(
                    Code::MemlockTooSmall,
                    "buffers could not be registered with io_uring",
                )
                .seen("io_uring_register(BUFFERS)", error.to_string())
                .fixed_by(
                    Fix::run("Raise the locked-memory limit.", "ulimit -l unlimited")
                        .checked_by("ulimit -l"),
                ),
            ),
        }
        ring
    });
    (uring, ring)
}

/// Why io_uring could not be used.
fn without_ring(refusal: &io::Error) -> Obstacle {
    let shows = refusal.to_string();
    if refusal.raw_os_error() == Some(libc::ENOMEM) {
        return Obstacle::slows(
            Code::MemlockTooSmall,
            "the locked-memory limit has no room for io_uring",
        )
        .seen("io_uring_setup", shows)
        .fixed_by(
            Fix::run("Raise the locked-memory limit.", "ulimit -l unlimited")
                .checked_by("ulimit -l"),
        );
    }
    Obstacle::slows(Code::NoIoUring, "io_uring is not available to this process")
        .seen("io_uring_setup", shows)
        .fixed_by(
            Fix::run("Allow it, if the machine's policy permits.", "sysctl kernel.io_uring_disabled=0")
                .checked_by("sysctl kernel.io_uring_disabled"),
        )
        .fixed_by(Fix::by_hand(
            "In a container, use a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register.",
        ))
}
