//! The `shm` path: a peer on this host hands over its region's memory file, this process maps it,
//! and one copy by a CPU core moves the bytes. Questions, answers and values go over a Unix socket.
//!
//! Only processes of the same user are talked to, and only memory files that can never be cut are
//! mapped, so a hostile peer can spoil its own region's bytes and nothing else.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::hop::{Carrier, Class, CpuWork, HostUse, Route};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};

use super::conn::{Conn, Frame, Handler, Incoming};
use super::copier::Copier;
use super::descriptor::RegionDescriptor;
use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::gate::Gate;
use super::handshake::{self, Purpose, TOKEN};
use super::hops;
use super::identity::{Capability, Incarnation};
use super::memory::{Backing, Caches};
use super::provider::{
    Endpoint, Events, Joining, Limits, Link, Meeting, Op, OpError, OpId, Posted, Provider, RailId,
    Refusal, Registration, Release, Role, Verb, counted,
};
use super::region::{Access, RegionCore};
use super::regions::{Regions, Wish};
use super::socket::Socket;
use super::stash::{Expected, await_kept};
use super::tcp::Sockets;
use super::wire::{self, Header, Kind, MAX_SEGMENTS, Status, Violation};

pub(super) mod endpoint;

/// The one "NIC" of this path.
pub(crate) const NAME: &str = "shm";
/// Up to this size the calling thread copies: handing it over would take longer.
const INLINE: u64 = 64 << 10;
/// The most bytes of one op, copied by one thread.
const OP_BYTES: u32 = 2 << 20;
/// Bytes copied between two looks at the gates.
const STEP: u32 = 512 << 10;
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
        if memory.file().is_none() && access != Access::LOCAL {
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
        Ok(Registration {
            address: 0,
            key: Vec::new(),
            keep: Arc::new(()),
            obstacles: Vec::new(),
            visibility: Registration::visible_to_the_host(),
        })
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
    memory: Arc<Backing>,
    /// Closed when the peer withdraws the region.
    gate: Gate,
}

enum Mapping {
    /// Asked for; these ops wait for it.
    Asked(Vec<Op>),
    Here(Arc<Mapped>),
}

#[derive(Default)]
struct State {
    maps: HashMap<Capability, Mapping>,
    /// Ops whose end was not told yet; a cancelled one is not among them.
    ops: HashMap<u64, Verb>,
    /// Regions of this process that the peer was allowed to map.
    lent: HashMap<Capability, Lent>,
    next_question: u64,
    /// What the questions asked are about.
    questions: HashMap<u64, Capability>,
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
    process: Option<rustix::process::Pid>,
    conn: Arc<Conn>,
    copier: Arc<Copier>,
    peer: Incarnation,
    rail: RailId,
    events: Weak<dyn Events>,
    regions: Arc<Regions>,
    gate: Gate,
    state: Mutex<State>,
    withdrawn: Condvar,
    mapped: Condvar,
    cpu: Mutex<CpuSeconds>,
}

impl ShmLink {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self, op: u64, result: Result<(), OpError>) {
        if self.state().ops.remove(&op).is_some()
            && let Some(events) = self.events.upgrade()
        {
            events.completed(self.rail, OpId(op), result);
        }
    }

    /// Copies an op's bytes.
    fn copy(&self, op: &Op, mapped: &Mapped) -> Result<(), FabricError> {
        let gone = FabricError::NoSuchRegion { peer: self.peer };
        let local = op.local.as_ref().ok_or(FabricError::Deregistered)?;
        // Only a transfer of twice that size or more is cut into pieces so large.
        let caches = if op.bytes() >= u64::from(OP_BYTES) {
            Caches::Pass
        } else {
            Caches::Keep
        };
        for segment in &op.segments {
            let mut done = 0;
            while done < segment.len {
                let step = STEP.min(segment.len - done);
                let part = |start: u64| {
                    let start = usize::try_from(start + u64::from(done)).ok()?;
                    Some(start..start.checked_add(step as usize)?)
                };
                let ours = part(segment.local).and_then(|range| local.region.span(range));
                let theirs = part(segment.remote).and_then(|range| mapped.memory.span(range));
                let (Some(ours), Some(theirs)) = (ours, theirs) else {
                    return Err(FabricError::OutOfBounds {
                        start: segment.remote,
                        end: segment.remote + u64::from(segment.len),
                        len: mapped.memory.len() as u64,
                    });
                };
                let _link = self.gate.enter().ok_or(FabricError::Cancelled)?;
                let _theirs = mapped.gate.enter().ok_or(gone.clone())?;
                let _ours = local.region.gate.enter().ok_or(FabricError::Deregistered)?;
                let _flight = local.flight.enter().ok_or(FabricError::Cancelled)?;
                let copied = match op.verb {
                    Verb::Write => ours.copy_to(&theirs, caches),
                    Verb::Read => theirs.copy_to(&ours, caches),
                };
                let what = match op.verb {
                    Verb::Write => "remote writes",
                    Verb::Read => "local writes",
                };
                copied.map_err(|_| FabricError::NotAllowed { what })?;
                done += step;
            }
        }
        Ok(())
    }

    /// Copies an op's bytes and sees to its value; `Some` when that is its end.
    fn carry_out(&self, op: &Op, mapped: &Mapped) -> Option<Result<(), FabricError>> {
        let before = usage::this_thread();
        let result = self.copy(op, mapped);
        let after = usage::this_thread();
        {
            let mut cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
            cpu.user += after.user - before.user;
            cpu.system += after.system - before.system;
        }
        if result.is_ok() && op.imm.is_some() {
            self.tell(op);
            return None;
        }
        Some(result)
    }

    /// Sends an op's value; the answer ends the op.
    fn tell(&self, op: &Op) {
        let imm = op.imm.map(|(imm, flight)| (imm.0, flight.0));
        let nothing = Capability::from_bytes([0; 16]);
        let body = wire::Access::new(nothing, imm, &[]).encode();
        self.conn.send(Frame::new(Kind::Write, op.id.0, body));
    }

    /// Carries out an op whose region is mapped, in a thread of its own when it is long.
    fn dispatch(&self, op: Op, mapped: Arc<Mapped>) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        self.copier.push(move || {
            if !this.state().ops.contains_key(&op.id.0) {
                return;
            }
            if let Some(result) = this.carry_out(&op, &mapped) {
                this.ended(op.id.0, result.map_err(OpError::Op));
            }
        });
    }

    /// Gives the peer a region's memory file.
    fn lend(&self, op: u64, capability: Capability) {
        let refuse = |status: Status| Frame {
            status: status as u8,
            ..Frame::new(Kind::Mapped, op, Vec::new())
        };
        let found = self
            .regions
            .find(&capability, Wish::Write)
            .map(|region| (region, true))
            .or_else(|_| Ok((self.regions.find(&capability, Wish::Read)?, false)));
        let frame = match found {
            Err(status) => refuse(status),
            Ok((region, writable)) => {
                let file = region.backing().file().and_then(|file| {
                    if writable {
                        rustix::io::fcntl_dupfd_cloexec(file, 0).ok()
                    } else {
                        // A descriptor that cannot be mapped for writing.
                        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
                    }
                });
                let room = self.state().lent.len() < MAX_MAPS;
                match file.filter(|_| room) {
                    None => refuse(Status::NotMappable),
                    Some(file) => {
                        self.state().lent.insert(capability, Lent::Mapped);
                        if region.gate.is_closed() {
                            self.state().lent.remove(&capability);
                            refuse(Status::NoSuchRegion)
                        } else {
                            let mut body = Writer::default();
                            body.u64(region.backing().len() as u64)
                                .u8(u8::from(writable));
                            Frame {
                                descriptor: Some(file),
                                ..Frame::new(Kind::Mapped, op, body.finish())
                            }
                        }
                    }
                }
            }
        };
        self.conn.send(frame);
    }

    /// A peer's region arrived, or was refused.
    fn arrived(
        &self,
        header: &Header,
        body: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<(), Violation> {
        let mut fields = Reader::new(body);
        let described = fields.u64().zip(fields.u8());
        let mapped = match (Status::of(header.status), described, file) {
            (Some(Status::Done), Some((len, writable)), Some(file)) => {
                let memory = usize::try_from(len)
                    .ok()
                    .and_then(|len| Backing::map(file, len, writable != 0).ok());
                let memory = memory.ok_or(Violation("memory that could be cut"))?;
                Ok(Arc::new(Mapped {
                    memory: Arc::new(memory),
                    gate: Gate::default(),
                }))
            }
            (Some(Status::Done), ..) => return Err(Violation("a region without its memory")),
            (Some(status), ..) => Err(status),
            (None, ..) => return Err(Violation("an unknown answer")),
        };
        let waiting = {
            let mut state = self.state();
            let Some(capability) = state.questions.remove(&header.op) else {
                return Err(Violation("memory that nobody asked for"));
            };
            let before = match &mapped {
                Ok(mapped) => state
                    .maps
                    .insert(capability, Mapping::Here(Arc::clone(mapped))),
                Err(_) => state.maps.remove(&capability),
            };
            match before {
                Some(Mapping::Asked(ops)) => ops,
                _ => Vec::new(),
            }
        };
        self.mapped.notify_all();
        for op in waiting {
            match &mapped {
                Ok(mapped) => self.dispatch(op, Arc::clone(mapped)),
                Err(status) => {
                    let error = status.error(self.peer, 0, "to be mapped");
                    self.ended(op.id.0, error.map_err(OpError::Op));
                }
            }
        }
        Ok(())
    }

    /// Whether the peer's mappings ended with it: its process is gone, or is this one, whose links
    /// let go when they close.
    fn peer_is_gone(&self) -> bool {
        let Some(process) = self.process else {
            return false;
        };
        let gone = rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH);
        gone || process == rustix::process::getpid()
    }

    /// The peer withdraws a region: nothing here touches it any more when this returns.
    fn let_go(&self, capability: &Capability) {
        let before = self.state().maps.remove(capability);
        match before {
            Some(Mapping::Here(mapped)) => mapped.gate.close(),
            Some(Mapping::Asked(ops)) => {
                for op in ops {
                    let gone = FabricError::NoSuchRegion { peer: self.peer };
                    self.ended(op.id.0, Err(OpError::Op(gone)));
                }
            }
            None => {}
        }
    }
}

fn capability_of(body: &[u8]) -> Result<Capability, Violation> {
    let mut fields = Reader::new(body);
    let capability = fields.array().filter(|_| fields.is_done());
    capability
        .map(Capability::from_bytes)
        .ok_or(Violation("a malformed capability"))
}

impl Handler for ShmLink {
    fn frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Incoming, Violation> {
        match header.kind {
            Kind::Map => self.lend(header.op, capability_of(body)?),
            Kind::Mapped => self.arrived(header, body, descriptor)?,
            Kind::Unmap => {
                self.let_go(&capability_of(body)?);
                conn.send(Frame::new(Kind::Answer, header.op, body.to_vec()));
            }
            Kind::Write => {
                let told = wire::Access::decode(body).ok_or(Violation("a malformed access"))?;
                if !told.runs.is_empty() {
                    return Err(Violation("bytes where memory is shared"));
                }
                let counted = counted(&self.events, told.imm);
                let status = if counted {
                    Status::Done
                } else {
                    Status::QueueFull
                };
                conn.send(Frame::answer(header.op, status));
            }
            Kind::Answer if body.is_empty() => {
                let status = Status::of(header.status).unwrap_or(Status::NotAllowed);
                let result = status.error(self.peer, 0, "remote writes");
                self.ended(header.op, result.map_err(OpError::Op));
            }
            Kind::Answer => {
                self.state().lent.remove(&capability_of(body)?);
                self.withdrawn.notify_all();
            }
            _ => return Err(Violation("a frame that does not belong on a rail")),
        }
        Ok(Incoming::NOTHING)
    }

    fn landed(&self, _: &Arc<Conn>, _: &Header, _: &Incoming, _: bool) {}

    fn broken(&self, why: String) {
        self.close();
        if let Some(events) = self.events.upgrade() {
            events.down(self.rail, why);
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
        match local.map(|region| region.backing().place()) {
            None | Some(Place::Host(_)) => Ok(()),
            Some(place) => Err(vec![
                Obstacle::blocks(Code::NotBuilt, format!("no CPU copy reaches {place}"))
                    .seen("place", place.to_string()),
            ]),
        }
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        let copy = hops::bare(
            hops::stop(&from, HostUse::Application),
            hops::stop(&to, HostUse::Application),
            Carrier::Cpu {
                work: CpuWork::UserCopy,
            },
        );
        Route {
            name: "shared-memory".into(),
            from,
            to,
            hops: vec![copy],
        }
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        let id = op.id.0;
        if self.conn.is_broken() {
            let why = "the peer closed its end".to_owned();
            return Err(Refusal::Failed(OpError::Rail(why)));
        }
        let Some(remote) = op.remote.as_ref().filter(|_| !op.segments.is_empty()) else {
            self.state().ops.insert(id, op.verb);
            self.tell(&op);
            return Ok(Posted::InFlight);
        };
        let capability = remote.capability();
        let mut state = self.state();
        match state.maps.get_mut(&capability) {
            Some(Mapping::Here(mapped)) => {
                let mapped = Arc::clone(mapped);
                state.ops.insert(id, op.verb);
                drop(state);
                if op.bytes() > INLINE {
                    self.dispatch(op, mapped);
                    return Ok(Posted::InFlight);
                }
                match self.carry_out(&op, &mapped) {
                    None => Ok(Posted::InFlight),
                    Some(result) => {
                        self.state().ops.remove(&id);
                        result.map_err(|error| Refusal::Failed(OpError::Op(error)))?;
                        Ok(Posted::Done)
                    }
                }
            }
            Some(Mapping::Asked(waiting)) => {
                waiting.push(op.clone());
                state.ops.insert(id, op.verb);
                Ok(Posted::InFlight)
            }
            None => {
                if state.maps.len() >= MAX_MAPS {
                    return Err(Refusal::Full(op));
                }
                state.ops.insert(id, op.verb);
                let question = state.ask(capability, vec![op]);
                drop(state);
                let body = capability.as_bytes().to_vec();
                self.conn.send(Frame::new(Kind::Map, question, body));
                Ok(Posted::InFlight)
            }
        }
    }

    fn cancel(&self, op: OpId) -> Release {
        let mut state = self.state();
        state.ops.remove(&op.0);
        for mapping in state.maps.values_mut() {
            if let Mapping::Asked(waiting) = mapping {
                waiting.retain(|known| known.id != op);
            }
        }
        Release::Now
    }

    fn cpu(&self) -> CpuSeconds {
        let copied = *self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let told = self.conn.cpu();
        CpuSeconds {
            user: copied.user + told.user,
            system: copied.system + told.system,
        }
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
            if self.conn.is_broken() && self.peer_is_gone() {
                return true;
            }
            // A broken connection wakes nobody: look again now and then.
            let nap = left.min(Duration::from_millis(50));
            let waited = self.withdrawn.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn attach(&self, region: &RegionDescriptor, deadline: Instant) -> Option<Arc<Backing>> {
        region.grant(Path::Shm, NAME)?;
        let capability = region.capability();
        let mut state = self.state();
        if !state.maps.contains_key(&capability) {
            if state.maps.len() >= MAX_MAPS {
                return None;
            }
            let question = state.ask(capability, Vec::new());
            drop(state);
            let body = capability.as_bytes().to_vec();
            self.conn.send(Frame::new(Kind::Map, question, body));
            state = self.state();
        }
        loop {
            match state.maps.get(&capability) {
                Some(Mapping::Here(mapped)) => return Some(Arc::clone(&mapped.memory)),
                Some(Mapping::Asked(_)) => {}
                None => return None,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.conn.is_broken() {
                return None;
            }
            // A broken connection wakes nobody: look again now and then.
            let nap = left.min(Duration::from_millis(50));
            let waited = self.mapped.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn close(&self) {
        self.conn.close();
        self.gate.close();
        let mut state = self.state();
        state.maps.clear();
        state.ops.clear();
        state.questions.clear();
    }
}
