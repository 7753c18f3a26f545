//! NCCL among the GPUs that exist only in this process ([`crate::gpu::fake`]), for tests: ranks are
//! threads, each with a GPU of its own, and a collective is done when the streams of all have come
//! to it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::abi::{Config, Handle, IN_PROGRESS, Kind, SUCCESS, Text, UniqueId};
use super::functions::Functions;
use crate::gpu::fake::{Task, on_stream, read, world, write};

/// `ncclInvalidArgument`
const INVALID_ARGUMENT: c_int = 4;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`
const ILLEGAL_ADDRESS: c_int = 700;
/// What a fake library says it is: 2.20.5.
const VERSION: c_int = 22_005;

/// One rank's communicator.
struct Rank {
    id: u64,
    rank: usize,
    ranks: usize,
    calls: u64,
    /// What it was told to say of itself.
    error: Option<c_int>,
}

/// A message: whose, which call of the communicator, from whom to whom.
type Key = (u64, u64, usize, usize);

#[derive(Default)]
struct State {
    next: u64,
    ranks: BTreeMap<u64, Rank>,
    joined: BTreeMap<u64, BTreeSet<usize>>,
    /// What ranks have given to others.
    given: BTreeMap<Key, Vec<u8>>,
    /// Messages between two ranks so far: communicator, from, to; sent and received.
    sent: BTreeMap<(u64, usize, usize), u64>,
    received: BTreeMap<(u64, usize, usize), u64>,
    failures: Vec<(&'static str, c_int)>,
    aborts: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Sends and receives of the group that was begun.
    static GROUP: RefCell<Option<Vec<(u64, Task)>>> = const { RefCell::new(None) };
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// What a call is to fail with.
    fn due(&mut self, call: &str) -> Option<c_int> {
        let at = self.failures.iter().position(|(name, _)| *name == call)?;
        Some(self.failures.remove(at).1)
    }

    fn of(&mut self, comm: Handle) -> Option<&mut Rank> {
        self.ranks.get_mut(&(comm as u64))
    }

    /// Whether a communicator still is.
    fn is_alive(&self, comm: u64) -> bool {
        self.ranks.contains_key(&comm)
    }
}

/// The fake library.
#[derive(Debug)]
pub struct FakeNccl(());

impl FakeNccl {
    /// Its functions, with nothing going on.
    pub fn plug() -> Self {
        *state() = State::default();
        Self(())
    }

    /// The table of functions.
    pub fn functions(&self) -> Arc<Functions> {
        Arc::new(Functions {
            library: "libnccl.so.2".to_owned(),
            version,
            unique_id,
            init_rank,
            destroy,
            abort,
            async_error,
            error_text,
            last_error,
            all_reduce,
            reduce_scatter,
            all_gather,
            broadcast,
            reduce,
            send,
            recv,
            group_start,
            group_end,
        })
    }

    /// Has the next call of a function fail with a code.
    pub fn fail(&self, call: &'static str, code: c_int) {
        state().failures.push((call, code));
    }

    /// Has a rank's communicators say that something went wrong with what they had begun.
    pub fn break_rank(&self, rank: usize, code: c_int) {
        for known in state()
            .ranks
            .values_mut()
            .filter(|known| known.rank == rank)
        {
            known.error = Some(code);
        }
    }

    /// Communicators that exist now.
    pub fn alive(&self) -> usize {
        state().ranks.len()
    }

    /// Communicators that were given up.
    pub fn aborts(&self) -> usize {
        state().aborts
    }
}

unsafe extern "C" fn version(to: *mut c_int) -> c_int {
    if let Some(code) = state().due("ncclGetVersion") {
        return code;
    }
    // SAFETY: promised by the caller.
    unsafe { to.write(VERSION) };
    SUCCESS
}

unsafe extern "C" fn unique_id(to: *mut UniqueId) -> c_int {
    let mut state = state();
    if let Some(code) = state.due("ncclGetUniqueId") {
        return code;
    }
    state.next += 1;
    let mut id = UniqueId::ZERO;
    for (to, from) in id.0.iter_mut().zip(state.next.to_le_bytes()) {
        *to = from;
    }
    // SAFETY: promised by the caller.
    unsafe { to.write(id) };
    SUCCESS
}

unsafe extern "C" fn init_rank(
    comm: *mut Handle,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    _: *mut Config,
) -> c_int {
    let mut state = state();
    if let Some(code) = state.due("ncclCommInitRankConfig") {
        return code;
    }
    let (Ok(rank), Ok(ranks)) = (usize::try_from(rank), usize::try_from(ranks)) else {
        return INVALID_ARGUMENT;
    };
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    state.joined.entry(id).or_default().insert(rank);
    state.next += 1;
    let handle = state.next;
    let made = Rank {
        id,
        rank,
        ranks,
        calls: 0,
        error: None,
    };
    state.ranks.insert(handle, made);
    // SAFETY: promised by the caller.
    unsafe { comm.write(handle as Handle) };
    IN_PROGRESS
}

unsafe extern "C" fn destroy(comm: Handle) -> c_int {
    match state().ranks.remove(&(comm as u64)) {
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    }
}

unsafe extern "C" fn abort(comm: Handle) -> c_int {
    let mut state = state();
    state.aborts += 1;
    match state.ranks.remove(&(comm as u64)) {
        Some(_) => SUCCESS,
        None => INVALID_ARGUMENT,
    }
}

unsafe extern "C" fn async_error(comm: Handle, to: *mut c_int) -> c_int {
    let state = state();
    let Some(rank) = state.ranks.get(&(comm as u64)) else {
        return INVALID_ARGUMENT;
    };
    let all = state.joined.get(&rank.id).map_or(0, BTreeSet::len) >= rank.ranks;
    let code = match (rank.error, all) {
        (Some(code), _) => code,
        (None, true) => SUCCESS,
        (None, false) => IN_PROGRESS,
    };
    // SAFETY: promised by the caller.
    unsafe { to.write(code) };
    SUCCESS
}

unsafe extern "C" fn error_text(code: c_int) -> Text {
    let text: &[u8] = match code {
        6 => b"remote process exited or there was a network error\0",
        _ => b"invalid usage\0",
    };
    text.as_ptr().cast::<c_char>()
}

unsafe extern "C" fn last_error(_: Handle) -> Text {
    c"".as_ptr()
}

/// Reads device memory; the code of an illegal access where there is none.
fn taken(world: &crate::gpu::fake::World, from: u64, len: usize) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; len];
    read(world, from, &mut bytes)
        .then_some(bytes)
        .ok_or(ILLEGAL_ADDRESS)
}

/// Queues a step, now or when the group that was begun ends.
fn queue(stream: *mut c_void, task: Task) -> c_int {
    let left = GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push((stream as u64, task));
            None
        }
        None => Some(task),
    });
    match left.map(|task| on_stream(&mut world(), stream as u64, task)) {
        None | Some(0) => SUCCESS,
        Some(_) => INVALID_ARGUMENT,
    }
}

/// A collective: each rank gives `len` bytes, and has what `made` makes of everyone's.
fn collective(
    call: &'static str,
    (comm, stream): (Handle, *mut c_void),
    (from, len): (*const c_void, usize),
    to: *mut c_void,
    made: impl Fn(usize, &[Vec<u8>]) -> Option<Vec<u8>> + Send + 'static,
) -> c_int {
    let mut known = state();
    if let Some(code) = known.due(call) {
        return code;
    }
    let Some(rank) = known.of(comm) else {
        return INVALID_ARGUMENT;
    };
    rank.calls += 1;
    let (id, nth, me, ranks) = (rank.id, rank.calls, rank.rank, rank.ranks);
    drop(known);
    let (comm, from, to) = (comm as u64, from as u64, to as u64);
    let mut gave = false;
    let step: Task = Box::new(move |world| {
        let mut state = state();
        if !state.is_alive(comm) {
            return Ok(true);
        }
        if !std::mem::replace(&mut gave, true) {
            state
                .given
                .insert((id, nth, me, usize::MAX), taken(world, from, len)?);
        }
        let all = (0..ranks).map(|rank| state.given.get(&(id, nth, rank, usize::MAX)).cloned());
        let Some(all) = all.collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        match made(me, &all) {
            Some(result) if !write(world, to, &result) => Err(ILLEGAL_ADDRESS),
            _ => Ok(true),
        }
    });
    queue(stream, step)
}

/// Numbers of a kind as doubles, and back.
fn numbers(kind: c_int, bytes: &[u8]) -> Vec<f64> {
    if kind == Kind::F32 as c_int {
        let singles = bytes.as_chunks::<4>().0.iter();
        return singles.map(|b| f64::from(f32::from_le_bytes(*b))).collect();
    }
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|b| f64::from(i32::from_le_bytes(*b))).collect()
}

fn bytes(kind: c_int, numbers: &[f64]) -> Vec<u8> {
    let one = |number: &f64| match kind == Kind::F32 as c_int {
        true => (*number as f32).to_le_bytes(),
        false => (*number as i32).to_le_bytes(),
    };
    numbers.iter().flat_map(one).collect()
}

/// Everyone's numbers as one; of singles and of 32-bit integers alone.
fn reduced(kind: c_int, operation: c_int, all: &[Vec<u8>]) -> Vec<u8> {
    let mut all = all.iter().map(|one| numbers(kind, one));
    let mut result = all.next().unwrap_or_default();
    let mut ranks = 1.0;
    for other in all {
        ranks += 1.0;
        for (into, with) in result.iter_mut().zip(other) {
            *into = match operation {
                1 => *into * with,
                2 => into.max(with),
                3 => into.min(with),
                _ => *into + with,
            };
        }
    }
    if operation == 4 {
        result.iter_mut().for_each(|number| *number /= ranks);
    }
    bytes(kind, &result)
}

const fn size(kind: c_int) -> usize {
    match kind {
        0 | 1 => 1,
        6 | 9 => 2,
        4 | 5 | 8 => 8,
        _ => 4,
    }
}

unsafe extern "C" fn all_reduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    operation: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let given = (from, count * size(kind));
    collective("ncclAllReduce", (comm, stream), given, to, move |_, all| {
        Some(reduced(kind, operation, all))
    })
}

unsafe extern "C" fn reduce_scatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    operation: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let part = count * size(kind);
    let Some(ranks) = state().of(comm).map(|rank| rank.ranks) else {
        return INVALID_ARGUMENT;
    };
    let given = (from, part * ranks);
    let on = (comm, stream);
    collective("ncclReduceScatter", on, given, to, move |me, all| {
        let whole = reduced(kind, operation, all);
        whole.get(me * part..(me + 1) * part).map(<[u8]>::to_vec)
    })
}

unsafe extern "C" fn all_gather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let given = (from, count * size(kind));
    collective("ncclAllGather", (comm, stream), given, to, |_, all| {
        Some(all.concat())
    })
}

unsafe extern "C" fn broadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let given = (from, count * size(kind));
    collective("ncclBroadcast", (comm, stream), given, to, move |_, all| {
        all.get(usize::try_from(root).ok()?).cloned()
    })
}

unsafe extern "C" fn reduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    kind: c_int,
    operation: c_int,
    root: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let given = (from, count * size(kind));
    collective("ncclReduce", (comm, stream), given, to, move |me, all| {
        (usize::try_from(root) == Ok(me)).then(|| reduced(kind, operation, all))
    })
}

/// The next message between two ranks.
fn message(comm: Handle, peer: c_int, sends: bool) -> Option<Key> {
    let mut state = state();
    let peer = usize::try_from(peer).ok()?;
    let rank = state.of(comm)?;
    let (id, me) = (rank.id, rank.rank);
    let (from, to) = if sends { (me, peer) } else { (peer, me) };
    let counts = if sends {
        &mut state.sent
    } else {
        &mut state.received
    };
    let nth = counts.entry((id, from, to)).or_default();
    *nth += 1;
    // Messages and collectives are counted apart.
    Some((id, u64::MAX - *nth, from, to))
}

unsafe extern "C" fn send(
    from: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let Some(key) = message(comm, peer, true) else {
        return INVALID_ARGUMENT;
    };
    let (from, len) = (from as u64, count * size(kind));
    let step: Task = Box::new(move |world| {
        let bytes = taken(world, from, len)?;
        state().given.insert(key, bytes);
        Ok(true)
    });
    queue(stream, step)
}

unsafe extern "C" fn recv(
    to: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> c_int {
    let Some(key) = message(comm, peer, false) else {
        return INVALID_ARGUMENT;
    };
    let (comm, to, len) = (comm as u64, to as u64, count * size(kind));
    let step: Task = Box::new(move |world| {
        let mut state = state();
        if !state.is_alive(comm) {
            return Ok(true);
        }
        match state.given.remove(&key) {
            None => Ok(false),
            Some(bytes) if bytes.len() == len && write(world, to, &bytes) => Ok(true),
            Some(_) => Err(ILLEGAL_ADDRESS),
        }
    });
    queue(stream, step)
}

unsafe extern "C" fn group_start() -> c_int {
    GROUP.with_borrow_mut(|group| *group = Some(Vec::new()));
    SUCCESS
}

unsafe extern "C" fn group_end() -> c_int {
    let steps = GROUP.with_borrow_mut(Option::take).unwrap_or_default();
    if let Some(code) = state().due("ncclGroupEnd") {
        return code;
    }
    // What is sent comes first: the steps of a stream follow each other here.
    for (stream, step) in steps {
        if on_stream(&mut world(), stream, step) != 0 {
            return INVALID_ARGUMENT;
        }
    }
    SUCCESS
}
