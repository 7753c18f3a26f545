//! One rank's part of a group of GPUs.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::abi::{Config, Handle, IN_PROGRESS, Kind, Operation, SUCCESS, UniqueId};
use super::error::NcclError;
use super::functions::Functions;
use crate::gpu::{DeviceMemory, Gpu, InFlight, Stream};

/// Looks at the library or at a stream in a row before sleeping between them.
const LOOKS: u32 = 200;
/// The sleep between two looks.
const NAP: Duration = Duration::from_micros(20);

/// Which rank of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// This one, from 0.
    pub rank: usize,
    /// All of them.
    pub ranks: usize,
}

/// A range of a GPU's memory, in bytes.
#[derive(Clone, Debug)]
pub struct Part {
    /// The memory.
    pub memory: Arc<DeviceMemory>,
    /// Which bytes of it.
    pub range: Range<usize>,
}

impl Part {
    /// A range of a memory.
    pub fn of(memory: &Arc<DeviceMemory>, range: Range<usize>) -> Self {
        Self {
            memory: Arc::clone(memory),
            range,
        }
    }

    fn address(&self) -> Result<*mut c_void, NcclError> {
        Ok(self.memory.at(&self.range)? as *mut c_void)
    }

    fn len(&self) -> usize {
        self.range.len()
    }
}

/// One rank's part of a group of GPUs, which does what all of them call in the same order.
pub struct Communicator {
    functions: Arc<Functions>,
    gpu: Arc<Gpu>,
    member: Member,
    /// Gone once it was given up.
    raw: Mutex<Option<Raw>>,
}

/// The library's handle.
#[derive(Clone, Copy)]
struct Raw(Handle);

// SAFETY: the library takes calls of a communicator from any thread, one at a time, which the lock
// around it sees to.
unsafe impl Send for Raw {}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Member { rank, ranks } = self.member;
        let gpu = self.gpu.facts().address;
        write!(f, "Communicator(rank {rank} of {ranks}, {gpu})")
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Some(Raw(raw)) = self.lock().take() {
            // SAFETY: made by this type and not given up.
            let _ = self
                .gpu
                .current(|| unsafe { (self.functions.destroy)(raw) });
        }
    }
}

impl Communicator {
    /// Joins the other ranks, all of which call this with the same identity.
    ///
    /// # Errors
    /// When not all come in `time`, and what the library answers.
    pub fn join(
        functions: &Arc<Functions>,
        gpu: &Arc<Gpu>,
        id: UniqueId,
        member: Member,
        time: Duration,
    ) -> Result<Arc<Self>, NcclError> {
        let number = |number: usize| c_int::try_from(number).unwrap_or(-1);
        let mut raw: Handle = std::ptr::null_mut();
        let mut config = Config::NON_BLOCKING;
        // SAFETY: it writes one handle, and copies what it keeps of the configuration.
        let code = gpu.current(|| unsafe {
            let (rank, ranks) = (number(member.rank), number(member.ranks));
            (functions.init_rank)(&raw mut raw, ranks, id, rank, &raw mut config)
        })?;
        let made = Self {
            functions: Arc::clone(functions),
            gpu: Arc::clone(gpu),
            member,
            raw: Mutex::new((!raw.is_null()).then_some(Raw(raw))),
        };
        let until = Instant::now() + time;
        let begun = match code {
            SUCCESS | IN_PROGRESS => made.settle("ncclCommInitRankConfig", until, time),
            code => Err(functions.failure("ncclCommInitRankConfig", code, raw)),
        };
        match begun {
            Ok(()) => Ok(Arc::new(made)),
            Err(error) => {
                made.abort();
                Err(error)
            }
        }
    }

    /// Which rank this is.
    pub const fn member(&self) -> Member {
        self.member
    }

    /// The library.
    pub const fn functions(&self) -> &Arc<Functions> {
        &self.functions
    }

    fn lock(&self) -> MutexGuard<'_, Option<Raw>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the communicator up: what is queued on streams ends, done or not, and nothing is called
    /// any more.
    pub fn abort(&self) {
        if let Some(Raw(raw)) = self.lock().take() {
            // SAFETY: made by this type, and nobody has the handle any more.
            let _ = self.gpu.current(|| unsafe { (self.functions.abort)(raw) });
        }
    }

    fn aborted(&self) -> NcclError {
        NcclError::Aborted {
            library: self.functions.library.clone(),
        }
    }

    /// What the library says of what was begun: `None` while it is under way.
    fn state(&self, call: &'static str) -> Option<Result<(), NcclError>> {
        let raw = self.lock();
        let Some(Raw(handle)) = *raw else {
            return Some(Err(self.aborted()));
        };
        let mut code = IN_PROGRESS;
        // SAFETY: the handle is alive while the lock is held, and it writes one integer.
        let asked = unsafe { (self.functions.async_error)(handle, &raw mut code) };
        match (asked, code) {
            (SUCCESS, SUCCESS) => Some(Ok(())),
            (SUCCESS, IN_PROGRESS) => None,
            (SUCCESS, code) => Some(Err(self.functions.failure(call, code, handle))),
            (asked, _) => {
                let call = "ncclCommGetAsyncError";
                Some(Err(self.functions.failure(call, asked, handle)))
            }
        }
    }

    fn late(&self, what: &'static str, time: Duration) -> NcclError {
        NcclError::Late {
            library: self.functions.library.clone(),
            what,
            seconds: time.as_secs_f64(),
        }
    }

    /// Waits until what was begun is queued.
    fn settle(&self, call: &'static str, until: Instant, time: Duration) -> Result<(), NcclError> {
        let mut looks = 0;
        loop {
            if let Some(state) = self.state(call) {
                return state;
            }
            if Instant::now() >= until {
                return Err(self.late(call, time));
            }
            pause(&mut looks);
        }
    }

    /// Waits for work of this communicator, and gives it up where that fails or is late.
    ///
    /// # Errors
    /// What the library or the GPU says, and [`NcclError::Late`].
    pub fn wait(&self, work: InFlight, time: Duration) -> Result<(), NcclError> {
        let until = Instant::now() + time;
        let mut looks = 0;
        let failed = loop {
            match work.is_done() {
                Ok(true) => return Ok(work.wait()?),
                Ok(false) => {}
                Err(error) => break error.into(),
            }
            if let Some(Err(error)) = self.state("work on a stream") {
                break error;
            }
            if Instant::now() >= until {
                break self.late("work on a stream", time);
            }
            pause(&mut looks);
        };
        // It ends what is queued, so that dropping the work does not wait for other ranks.
        self.abort();
        Err(failed)
    }

    /// Makes a call that queues work on a stream, and sees it queued.
    fn queue(
        &self,
        stream: &Stream,
        call: &'static str,
        held: Vec<Part>,
        time: Duration,
        make: impl FnOnce(&Functions, Handle, *mut c_void) -> c_int,
    ) -> Result<InFlight, NcclError> {
        stream.queue_other(Arc::new(held), || {
            let code = {
                let raw = self.lock();
                let Some(Raw(handle)) = *raw else {
                    return Err(self.aborted());
                };
                let code = make(&self.functions, handle, stream.raw());
                match code {
                    SUCCESS | IN_PROGRESS => Ok(()),
                    code => Err(self.functions.failure(call, code, handle)),
                }
            };
            let queued = code.and_then(|()| self.settle(call, Instant::now() + time, time));
            if queued.is_err() {
                // A part of it may be queued: the memory has to outlive that.
                self.abort();
                let _ = stream.synchronize();
            }
            queued
        })
    }

    /// Queues an all-reduce; input and output may be the same.
    ///
    /// # Errors
    /// When the lengths do not fit, and what the library answers.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        (input, output): (Part, Part),
        (kind, operation): (Kind, Operation),
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let call = "ncclAllReduce";
        let count = numbers(call, &output, kind)?;
        fits(call, &input, output.len())?;
        let (from, to) = (input.address()?, output.address()?);
        let held = vec![input, output];
        // SAFETY: both ranges lie in memories that are held until the work is done, and are as long
        // as the call needs; the stream is of the communicator's GPU or refused by the library.
        self.queue(stream, call, held, time, |f, comm, stream| unsafe {
            let (kind, operation) = (kind as c_int, operation as c_int);
            (f.all_reduce)(from, to, count, kind, operation, comm, stream)
        })
    }

    /// Queues a reduce-scatter: `output` is this rank's part of the reduction of all `input`s.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn reduce_scatter(
        &self,
        stream: &Stream,
        (input, output): (Part, Part),
        (kind, operation): (Kind, Operation),
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let call = "ncclReduceScatter";
        let count = numbers(call, &output, kind)?;
        fits(call, &input, output.len().saturating_mul(self.member.ranks))?;
        let (from, to) = (input.address()?, output.address()?);
        let held = vec![input, output];
        // SAFETY: as in `all_reduce`.
        self.queue(stream, call, held, time, |f, comm, stream| unsafe {
            let (kind, operation) = (kind as c_int, operation as c_int);
            (f.reduce_scatter)(from, to, count, kind, operation, comm, stream)
        })
    }

    /// Queues an all-gather: `output` is everyone's `input`, in the order of the ranks.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn all_gather(
        &self,
        stream: &Stream,
        (input, output): (Part, Part),
        kind: Kind,
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let call = "ncclAllGather";
        let count = numbers(call, &input, kind)?;
        fits(call, &output, input.len().saturating_mul(self.member.ranks))?;
        let (from, to) = (input.address()?, output.address()?);
        let held = vec![input, output];
        // SAFETY: as in `all_reduce`.
        self.queue(stream, call, held, time, |f, comm, stream| unsafe {
            (f.all_gather)(from, to, count, kind as c_int, comm, stream)
        })
    }

    /// Queues a broadcast of what `root` has.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn broadcast(
        &self,
        stream: &Stream,
        data: Part,
        root: usize,
        kind: Kind,
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let call = "ncclBroadcast";
        let count = numbers(call, &data, kind)?;
        let (at, root) = (data.address()?, rank_number(root));
        // SAFETY: as in `all_reduce`.
        self.queue(stream, call, vec![data], time, |f, comm, stream| unsafe {
            (f.broadcast)(at, at, count, kind as c_int, root, comm, stream)
        })
    }

    /// Queues a reduction whose result `root` alone has in `output`.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn reduce(
        &self,
        stream: &Stream,
        (input, output): (Part, Part),
        root: usize,
        (kind, operation): (Kind, Operation),
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let call = "ncclReduce";
        let count = numbers(call, &input, kind)?;
        fits(call, &output, input.len())?;
        let (from, to) = (input.address()?, output.address()?);
        let held = vec![input, output];
        // SAFETY: as in `all_reduce`.
        self.queue(stream, call, held, time, |f, comm, stream| unsafe {
            let (kind, operation, root) = (kind as c_int, operation as c_int, rank_number(root));
            (f.reduce)(from, to, count, kind, operation, root, comm, stream)
        })
    }

    /// Queues sends and receives that go on side by side: each a rank and what goes to it or comes
    /// from it. What a rank sends, the other must receive.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn exchange(
        &self,
        stream: &Stream,
        sends: Vec<(usize, Part)>,
        receives: Vec<(usize, Part)>,
        kind: Kind,
        time: Duration,
    ) -> Result<InFlight, NcclError> {
        let ends = |call, parts: &[(usize, Part)]| {
            let ends = parts.iter().map(|(rank, part)| {
                let count = numbers(call, part, kind)?;
                Ok((rank_number(*rank), count, part.address()?))
            });
            ends.collect::<Result<Vec<_>, NcclError>>()
        };
        let out = ends("ncclSend", &sends)?;
        let into = ends("ncclRecv", &receives)?;
        let held = sends.into_iter().chain(receives).map(|(_, part)| part);
        let held = held.collect();
        let kind = kind as c_int;
        self.queue(stream, "ncclGroupEnd", held, time, |f, comm, stream| {
            // SAFETY: as in `all_reduce`; the group that is begun is ended, whatever fails between.
            unsafe {
                let begun = (f.group_start)();
                if begun != SUCCESS {
                    return begun;
                }
                let sent = out
                    .iter()
                    .map(|(to, count, at)| (f.send)(*at, *count, kind, *to, comm, stream));
                let received = into
                    .iter()
                    .map(|(from, count, at)| (f.recv)(*at, *count, kind, *from, comm, stream));
                let failed = sent
                    .chain(received)
                    .find(|code| *code != SUCCESS && *code != IN_PROGRESS);
                let ended = (f.group_end)();
                failed.unwrap_or(ended)
            }
        })
    }
}

fn pause(looks: &mut u32) {
    *looks += 1;
    if *looks < LOOKS {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(NAP);
    }
}

fn rank_number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(-1)
}

/// How many numbers a part has.
fn numbers(call: &'static str, part: &Part, kind: Kind) -> Result<usize, NcclError> {
    let (bytes, size) = (part.len(), kind.size());
    if bytes.is_multiple_of(size) {
        return Ok(bytes / size);
    }
    let wanted = bytes.next_multiple_of(size);
    Err(NcclError::Length {
        call,
        bytes,
        wanted,
    })
}

fn fits(call: &'static str, part: &Part, wanted: usize) -> Result<(), NcclError> {
    let bytes = part.len();
    if bytes == wanted {
        return Ok(());
    }
    Err(NcclError::Length {
        call,
        bytes,
        wanted,
    })
}
