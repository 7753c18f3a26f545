//! The `shm` path: a peer on this host hands over its region's memory file, this process maps it,
//! and one copy by a CPU core moves the bytes. Questions, answers and values go over a Unix socket.
//!
//! Only processes of the same user are talked to, and only memory files that can never be cut are
//! mapped, so a hostile peer can spoil its own region's bytes and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_route::hop::{Class, CpuWork, Route};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};

use super::conn::{Attendance, Conn, Frame, Handler, Incoming, Landed};
use super::copier::Copier;
use super::descriptor::RegionDescriptor;
use super::error::{FabricError, NotMapped, SharedIo};
use super::fields::{Reader, Writer};
use super::gate::Gate;
use super::handshake::{self, Purpose, TOKEN};
use super::hops;
use super::identity::{Capability, Incarnation};
use super::memory::{Backing, Caches, Duo};
use super::provider::{
    Chore, Endpoint, Events, Joining, Limits, Link, Meeting, Op, OpError, OpId, Posted, Provider,
    RailId, Refusal, Registration, Release, Role, Run, Short, Shortcut, Verb, Wait, counted,
};
use super::region::{Access, RegionCore};
use super::regions::{Regions, Wish};
use super::socket::Socket;
use super::stash::{Expected, await_kept};
use super::stint::{Tally, stint};
use super::tcp::Sockets;
use super::wire::{self, Header, Kind, MAX_SEGMENTS, Status, Violation};

mod copying;
mod devices;
pub(super) mod endpoint;
mod lending;
mod tether;

pub(crate) use devices::Devices;

/// The one "NIC" of this path.
pub(crate) const NAME: &str = "shm";
/// Up to this size the calling thread copies: handing it over would take longer.
const INLINE: u64 = 64 << 10;
/// The most bytes of one op, copied by one thread.
const OP_BYTES: u32 = 2 << 20;
/// Bytes copied between two looks at the gates.
const STEP: u64 = 512 << 10;
/// The longest name of a Unix socket.
const MAX_NAME: usize = 100;
/// The most regions of a peer that are kept mapped.
const MAX_MAPS: usize = 65_536;

/// Memory shared with processes of this host.
pub(crate) struct Shm {
    pub sockets: Arc<Sockets>,
    pub copier: Arc<Copier>,
    /// The abstract name of the Unix socket that this process listens on.
    pub listening: Vec<u8>,
    /// What opens the GPUs' memory that peers share.
    pub devices: Arc<Devices>,
}

impl Provider for Shm {
    fn path(&self) -> Path {
        Path::Shm
    }

    fn class(&self) -> Class {
        Class::Direct
    }

    fn nic(&self) -> &str {
        NAME
    }

    fn register(
        &self,
        memory: &Arc<Backing>,
        access: Access,
    ) -> Result<Registration, Vec<Obstacle>> {
        if let Some(device) = memory.device().filter(|_| access != Access::LOCAL) {
            let shared = devices::share(device, memory.place());
            return Ok(Registration {
                keep: Arc::new(shared.map_err(|obstacle| vec![*obstacle])?),
                ..Registration::by_copies(memory)
            });
        }
        let device = memory.device().is_some();
        if memory.file().is_none() && access != Access::LOCAL && !device {
            return Err(vec![
                Obstacle::blocks(
                    Code::NoSharedMemory,
                    "this memory is no memory file, which another process could map",
                )
                .seen("memory", format!("{memory:?}"))
                .fixed_by(Fix::by_hand(
                    "Use a buffer of the fabric's own (Buffer::zeroed) where peers on this host read or write.",
                )),
            ]);
        }
        Ok(Registration::by_copies(memory))
    }

    fn endpoint(&self, role: Role, _: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle> {
        let expected = match role {
            Role::Dialer => None,
            Role::Acceptor => Some(self.sockets.stash.expect().map_err(|error| {
                Obstacle::blocks(Code::NoSharedMemory, "no more rails can be set up now")
                    .seen("stash", error.to_string())
            })?),
        };
        Ok(Box::new(endpoint::ShmEndpoint {
            sockets: Arc::clone(&self.sockets),
            copier: Arc::clone(&self.copier),
            listening: self.listening.clone(),
            devices: Arc::clone(&self.devices),
            expected,
        }))
    }
}

/// Whether the process at the other end belongs to the same user.
pub(crate) fn same_user(socket: &Socket) -> std::io::Result<()> {
    if socket.peer_user()? == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(std::io::Error::from(std::io::ErrorKind::PermissionDenied))
}

/// A peer's region as this process sees it.
struct Mapped {
    /// `None` only while it is dropped.
    memory: Option<Arc<Backing>>,
    /// Closed when the peer withdraws the region.
    gate: Gate,
    /// What the peer is told once nothing here has the memory open any more.
    farewell: Mutex<Option<(Arc<Conn>, Frame)>>,
    /// Let go of after the memory.
    _hold: tether::Hold,
}

impl Mapped {
    fn new(memory: Backing, hold: tether::Hold) -> Arc<Self> {
        Arc::new(Self {
            memory: Some(Arc::new(memory)),
            gate: Gate::with_turnstiles(),
            farewell: Mutex::default(),
            _hold: hold,
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // First the memory: the peer frees its own when it hears of it.
        drop(self.memory.take());
        let farewell = self
            .farewell
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((conn, frame)) = farewell.take() {
            conn.send(frame);
        }
    }
}

enum Mapping {
    /// Asked for; these ops wait for it.
    Asked(Vec<Op>),
    Here(Arc<Mapped>),
    /// It cannot be opened in this process; why.
    Refused(Vec<Obstacle>),
    /// The system does not map it; its answer.
    Failed(SharedIo),
}

impl Mapping {
    /// Why ops of it have to go another way.
    fn obstacles(&self) -> Option<Vec<Obstacle>> {
        match self {
            Self::Asked(_) | Self::Here(_) => None,
            Self::Refused(why) => Some(why.clone()),
            Self::Failed(error) => Some(vec![unmapped(error)]),
        }
    }
}

/// What is in the way of memory that the system does not map.
fn unmapped(error: &SharedIo) -> Obstacle {
    let what = "this process cannot map the peer's memory";
    Obstacle::blocks(Code::NoSharedMemory, what).seen("mmap", error.to_string())
}

#[derive(Default)]
struct State {
    /// In order, which for the few that most peers have is found faster than a hash is made.
    maps: BTreeMap<Capability, Mapping>,
    /// Ops whose end was not told yet; a cancelled one is not among them.
    ops: HashMap<u64, Verb>,
    /// Those whose value was sent, which the peer answers.
    told: HashSet<u64>,
    /// Regions of this process that the peer was allowed to map.
    lent: HashMap<Capability, Lent>,
    next_question: u64,
    /// What the questions asked are about.
    questions: HashMap<u64, Capability>,
    /// A GPU's memory of which some pieces have come.
    arriving: HashMap<Capability, devices::Arriving>,
    /// A GPU's memory that is being opened, and what the peer is told if it withdraws it meanwhile.
    opening: HashMap<Capability, Option<Frame>>,
    /// Kept with everything of the peer's that is mapped here; none once the link is closed.
    hold: Option<tether::Hold>,
    /// What is cut when the peer has nothing of this process's mapped any more.
    tether: Option<OwnedFd>,
}

impl State {
    /// Notes that a region is asked for, and what waits for it; answers the question's number.
    fn ask(&mut self, capability: Capability, waiting: Vec<Op>) -> u64 {
        self.maps.insert(capability, Mapping::Asked(waiting));
        self.next_question += 1;
        self.questions.insert(self.next_question, capability);
        self.next_question
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    Mapped,
    Withdrawing,
}

/// The shared memory of two processes.
pub(crate) struct ShmLink {
    this: Weak<Self>,
    conn: Arc<Conn>,
    copier: Arc<Copier>,
    peer: Incarnation,
    rail: RailId,
    events: Weak<dyn Events>,
    regions: Arc<Regions>,
    devices: Arc<Devices>,
    gate: Gate,
    state: Mutex<State>,
    withdrawn: Condvar,
    mapped: Condvar,
    attendance: Attendance,
    cpu: Tally,
}

impl ShmLink {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an op; one that is longer than [`INLINE`] is left to the caller where it takes chores.
    fn begin(&self, op: Op, chores: Option<&mut Vec<Chore>>) -> Result<Posted, Refusal> {
        let id = op.id.0;
        let mut state = self.state();
        // Whoever closes the link breaks its connection before it clears the state.
        if self.conn.is_broken() {
            let why = "the peer closed its end".to_owned();
            return Err(Refusal::Failed(OpError::Rail(why)));
        }
        let Some(remote) = op.remote.as_ref().filter(|_| !op.segments.is_empty()) else {
            state.ops.insert(id, op.verb);
            drop(state);
            self.tell(&op);
            return Ok(Posted::InFlight);
        };
        let capability = remote.capability();
        match state.maps.get_mut(&capability) {
            Some(Mapping::Here(mapped)) => {
                let mapped = Arc::clone(mapped);
                if let Some(detour) = Self::strays(&op, &mapped) {
                    return Err(Refusal::Failed(OpError::Elsewhere(vec![detour])));
                }
                state.ops.insert(id, op.verb);
                drop(state);
                if op.bytes() > INLINE {
                    match chores {
                        Some(chores) => chores.extend(self.chore(op, mapped)),
                        None => self.dispatch(op, mapped),
                    }
                    return Ok(Posted::InFlight);
                }
                match self.carry_out(&op, &mapped) {
                    None => Ok(Posted::InFlight),
                    Some(result) => {
                        self.state().ops.remove(&id);
                        result.map_err(Refusal::Failed)?;
                        Ok(Posted::Done)
                    }
                }
            }
            Some(Mapping::Asked(waiting)) => {
                waiting.push(op.clone());
                state.ops.insert(id, op.verb);
                Ok(Posted::InFlight)
            }
            Some(refused) => {
                let why = refused.obstacles().unwrap_or_default();
                Err(Refusal::Failed(OpError::Elsewhere(why)))
            }
            None => {
                if state.maps.len() >= MAX_MAPS {
                    return Err(Refusal::Full(op));
                }
                state.ops.insert(id, op.verb);
                let question = state.ask(capability, vec![op]);
                drop(state);
                self.conn.send(devices::question(question, capability, 0));
                Ok(Posted::InFlight)
            }
        }
    }

    /// Why an op that may only go straight would not.
    fn strays(op: &Op, mapped: &Mapped) -> Option<Obstacle> {
        let (local, theirs) = (op.local.as_ref()?, mapped.memory.as_deref()?);
        let detour = || devices::unreached(op.verb, local.region.backing(), theirs);
        op.straight.then(detour).flatten()
    }

    fn ended(&self, op: u64, result: Result<(), OpError>) {
        let known = {
            let mut state = self.state();
            state.told.remove(&op);
            state.ops.remove(&op).is_some()
        };
        if known && let Some(events) = self.events.upgrade() {
            events.completed(self.rail, OpId(op), result);
        }
    }
}

impl Link for ShmLink {
    fn path(&self) -> Path {
        Path::Shm
    }

    fn nic(&self) -> &str {
        NAME
    }

    fn limits(&self) -> Limits {
        Limits {
            op_bytes: OP_BYTES,
            segments: MAX_SEGMENTS,
            ops: 64,
            bytes: 64 * u64::from(OP_BYTES),
            imm_once: true,
        }
    }

    fn reaches(
        &self,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        let mapped = |region: &RegionDescriptor| region.grant(Path::Shm, NAME).is_none();
        if remote.is_some_and(mapped) {
            return Err(vec![
                Obstacle::blocks(
                    Code::NoSharedMemory,
                    "the peer's memory is no memory file, which this process could map",
                )
                .seen("descriptor", "no grant for shm")
                .fixed_by(Fix::by_hand(
                    "Register a buffer of the fabric's own (Buffer::zeroed) at the peer.",
                )),
            ]);
        }
        if let Some(remote) = remote
            && let Some(mapping) = self.state().maps.get(&remote.capability())
            && let Some(why) = mapping.obstacles()
        {
            return Err(why);
        }
        match local.map(RegionCore::backing) {
            None => Ok(()),
            Some(here) if here.device().is_some() => Ok(()),
            Some(here) if matches!(here.place(), Place::Host(_)) => Ok(()),
            Some(here) => Err(vec![hops::no_copy(here.place())]),
        }
    }

    fn detour(
        &self,
        verb: Verb,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Option<Obstacle> {
        let gpu = hops::gpu_at(local, remote)?;
        let (local, remote) = local.zip(remote)?;
        let both = local.backing().device().is_some() && matches!(remote.place(), Place::Gpu(_));
        if !both {
            let why = "the other end is host memory that is shared and not pinned for the GPU";
            return Some(hops::behind_host("shared memory", &gpu, why));
        }
        let mapped = match self.state().maps.get(&remote.capability()) {
            Some(Mapping::Here(mapped)) => Arc::clone(mapped),
            // Not known yet: the op that has the memory opened finds out.
            _ => return None,
        };
        devices::unreached(verb, local.backing(), mapped.memory.as_deref()?)
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        match (hops::gpu_of(&from), hops::gpu_of(&to)) {
            (Some((copying, _)), Some(_)) => hops::by_gpu("gpu-ipc", copying, from, to),
            _ => hops::copied("shared-memory", CpuWork::UserCopy, from, to),
        }
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        self.begin(op, None)
    }

    fn post_here(&self, op: Op, chores: &mut Vec<Chore>) -> Result<Posted, Refusal> {
        self.begin(op, Some(chores))
    }

    fn shortcut(&self, local: &RegionCore, remote: &RegionDescriptor) -> Option<Box<dyn Shortcut>> {
        let by_cores =
            local.backing().device().is_none() && matches!(remote.place(), Place::Host(_));
        let link = self.this.upgrade().filter(|_| by_cores)?;
        let mapped = match self.state().maps.get(&remote.capability()) {
            Some(Mapping::Here(mapped)) => Arc::clone(mapped),
            _ => return None,
        };
        Some(Box::new(copying::ByCaller { link, mapped }))
    }

    fn attend(&self, wait: &Wait<'_>) {
        // Copies are those of other threads.
        let told = |_| !self.state().told.is_empty();
        let conns = std::slice::from_ref(&self.conn);
        self.attendance.until(conns, wait, told);
    }

    fn cancel(&self, op: OpId) -> Release {
        let mut state = self.state();
        state.ops.remove(&op.0);
        state.told.remove(&op.0);
        for mapping in state.maps.values_mut() {
            if let Mapping::Asked(waiting) = mapping {
                waiting.retain(|known| known.id != op);
            }
        }
        Release::Now
    }

    fn cpu(&self) -> CpuSeconds {
        let copied = self.cpu.so_far();
        copied + self.conn.cpu()
    }

    fn withdraw(&self, region: &RegionCore, deadline: Instant) -> bool {
        let capability = region.descriptor.capability();
        let mut state = self.state();
        match state.lent.get_mut(&capability) {
            None => return true,
            Some(lent) => *lent = Lent::Withdrawing,
        }
        drop(state);
        let body = capability.as_bytes().to_vec();
        self.conn.send(Frame::new(Kind::Unmap, 0, body));
        let mut state = self.state();
        while state.lent.contains_key(&capability) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if self.is_given_back(&state) {
                return true;
            }
            // A broken connection wakes nobody: look again now and then.
            let nap = left.min(Duration::from_millis(50));
            let waited = self.withdrawn.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lends(&self) -> bool {
        let state = self.state();
        !state.lent.is_empty() && !self.is_given_back(&state)
    }

    fn attach(
        &self,
        region: &RegionDescriptor,
        deadline: Instant,
    ) -> Result<Arc<Backing>, NotMapped> {
        let shared = region.grant(Path::Shm, NAME).is_some();
        if !shared || !matches!(region.place(), Place::Host(_)) {
            // A GPU's memory is no memory that callers could keep after its owner takes it back.
            return Err(NotMapped::Apart);
        }
        let capability = region.capability();
        let mut state = self.state();
        if !state.maps.contains_key(&capability) {
            if state.maps.len() >= MAX_MAPS {
                return Err(NotMapped::Refused);
            }
            let question = state.ask(capability, Vec::new());
            drop(state);
            self.conn.send(devices::question(question, capability, 0));
            state = self.state();
        }
        loop {
            match state.maps.get(&capability) {
                Some(Mapping::Here(mapped)) => {
                    return mapped.memory.clone().ok_or(NotMapped::Refused);
                }
                Some(Mapping::Asked(_)) => {}
                Some(Mapping::Failed(error)) => return Err(NotMapped::Failed(error.clone())),
                // Its entries go when the link is closed.
                None if self.conn.is_broken() => return Err(NotMapped::Parted),
                Some(Mapping::Refused(_)) | None => return Err(NotMapped::Refused),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.conn.is_broken() {
                return Err(NotMapped::Parted);
            }
            if left.is_zero() {
                return Err(NotMapped::Late);
            }
            // A broken connection wakes nobody: look again now and then.
            let nap = left.min(Duration::from_millis(50));
            let waited = self.mapped.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lingers(&self) -> Option<Duration> {
        // What moves bytes are threads of this process.
        Some(Duration::ZERO)
    }

    fn close(&self) {
        self.conn.close();
        self.gate.close();
        let mut state = self.state();
        let maps = std::mem::take(&mut state.maps);
        state.ops.clear();
        state.told.clear();
        state.questions.clear();
        state.arriving.clear();
        let hold = state.hold.take();
        drop(state);
        // Closing a GPU's memory may take its time.
        drop(maps);
        drop(hold);
    }
}
