//! The link of the `cma` path.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::hop::{CpuWork, Route};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};
use rustix::process::Pid;

use super::{CmaEndpoint, NAME, Probe};
use crate::fabric::conn::{Conn, Frame, Handler, Incoming, Landed};
use crate::fabric::copier::Copier;
use crate::fabric::descriptor::RegionDescriptor;
use crate::fabric::error::FabricError;
use crate::fabric::fields::{Reader, Writer};
use crate::fabric::gate::Gate;
use crate::fabric::handshake::Agreed;
use crate::fabric::hops;
use crate::fabric::identity::{Capability, Incarnation};
use crate::fabric::memory::Span;
use crate::fabric::provider::{
    Events, Joining, Limits, Link, Op, OpError, OpId, Posted, RailId, Refusal, Release, Verb,
    counted,
};
use crate::fabric::reactor::Reactor;
use crate::fabric::region::RegionCore;
use crate::fabric::regions::{Regions, Wish};
use crate::fabric::socket::Socket;
use crate::fabric::wire::{self, Header, Kind, MAX_SEGMENTS, Status, Violation};

/// The most bytes of one op, copied by one thread.
const OP_BYTES: u32 = 2 << 20;
/// Ops in flight each way; a peer that asks for more breaks the protocol.
const OPS: usize = 64;
/// Bytes copied between two looks at the gates.
const STEP: usize = 512 << 10;
/// The longest body of an access within a frame.
const MAX_ACCESS: usize = wire::MAX_BODY;

#[derive(Default)]
struct State {
    /// This end's ops whose end was not told yet.
    ops: HashMap<u64, Op>,
    /// Regions of this process that the peer is reading, by its ops. They keep the memory in place.
    reading: HashMap<u64, Arc<RegionCore>>,
    /// Writes of the peer's that this process has not pulled yet.
    pulling: usize,
}

/// The copies between two processes of this host.
pub(super) struct CmaLink {
    this: Weak<Self>,
    process: Pid,
    conn: Arc<Conn>,
    copier: Arc<Copier>,
    peer: Incarnation,
    rail: RailId,
    events: Weak<dyn Events>,
    regions: Arc<Regions>,
    gate: Gate,
    state: Mutex<State>,
    read: Condvar,
    cpu: Mutex<CpuSeconds>,
    /// The peer looks at it until its half has joined as well.
    _probe: Probe,
}

/// A part of this process's memory and where in the peer's its bytes are.
type Pull = (Span, u64);

/// Why bytes could not be pulled.
enum Failed {
    /// A gate of this end was closed.
    Closed,
    /// The peer or the kernel.
    Rail(String),
}

impl CmaLink {
    pub(super) fn start(
        endpoint: CmaEndpoint,
        socket: Socket,
        agreed: Agreed,
        process: Pid,
        joining: Joining,
        reactor: &Reactor,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let link = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            process,
            conn: Conn::new(socket, false, agreed.sending, agreed.receiving),
            copier: endpoint.copier,
            peer: joining.peer,
            rail: joining.rail,
            events: joining.events,
            regions: Arc::clone(&endpoint.sockets.regions),
            gate: Gate::default(),
            state: Mutex::default(),
            read: Condvar::new(),
            cpu: Mutex::default(),
            _probe: endpoint.probe,
        });
        let handler: Weak<Self> = Arc::downgrade(&link);
        link.conn.handled_by(handler);
        reactor.watch(&link.conn)?;
        Ok(link)
    }

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

    fn fail(&self, why: String) {
        self.close();
        if let Some(events) = self.events.upgrade() {
            events.down(self.rail, why);
        }
    }

    /// Pulls bytes out of the peer, inside the gates of a region and, of an own op, of its flight.
    fn pull(
        &self,
        pulls: &[Pull],
        region: &RegionCore,
        flight: Option<&Gate>,
    ) -> Result<(), Failed> {
        let before = usage::this_thread();
        let result = pulls
            .iter()
            .try_for_each(|(span, address)| self.pull_one(span, *address, region, flight));
        let after = usage::this_thread();
        let mut cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        cpu.user += after.user - before.user;
        cpu.system += after.system - before.system;
        drop(cpu);
        result?;
        // A peer that ended the connection may have freed what was read, or be another process by now.
        if self.conn.is_hung_up() {
            return Err(Failed::Rail("the peer closed its end".into()));
        }
        Ok(())
    }

    fn pull_one(
        &self,
        span: &Span,
        address: u64,
        region: &RegionCore,
        flight: Option<&Gate>,
    ) -> Result<(), Failed> {
        let mut done = 0;
        while done < span.len() {
            let rest = span.skip(done);
            let step = rest.first(STEP);
            let _link = self.gate.enter().ok_or(Failed::Closed)?;
            let _region = region.gate.enter().ok_or(Failed::Closed)?;
            let _flight = match flight {
                Some(gate) => Some(gate.enter().ok_or(Failed::Closed)?),
                None => None,
            };
            match step.fill_from(self.process, address.wrapping_add(done as u64)) {
                Ok(0) => return Err(Failed::Rail("the peer's memory ended early".into())),
                Ok(got) => done += got,
                Err(error) => {
                    let why = format!("process_vm_readv of the peer: {error}");
                    return Err(Failed::Rail(why));
                }
            }
        }
        Ok(())
    }

    /// A peer's write: its bytes are pulled by a thread that copies.
    fn written(&self, op: u64, body: &[u8]) -> Result<(), Violation> {
        const MALFORMED: Violation = Violation("a malformed access");
        let mut fields = Reader::new(body);
        let told = fields.bytes(MAX_ACCESS).and_then(wire::Access::decode);
        let told = told.ok_or(MALFORMED)?;
        if told.bytes() > u64::from(wire::MAX_PAYLOAD) {
            return Err(Violation("a write of too many bytes at once"));
        }
        let filled = told.runs.iter().filter(|(_, len)| *len > 0);
        let addresses: Option<Vec<u64>> = filled.map(|_| fields.u64()).collect();
        let addresses = addresses.filter(|_| fields.is_done()).ok_or(MALFORMED)?;
        if addresses.is_empty() {
            self.answer(op, told.imm);
            return Ok(());
        }
        let (region, spans) = match self.regions.resolve(&told, Wish::Write) {
            Ok(found) => found,
            Err(status) => {
                self.conn.send(Frame::answer(op, status));
                return Ok(());
            }
        };
        {
            let mut state = self.state();
            if state.pulling >= OPS {
                return Err(Violation("more writes at once than are taken"));
            }
            state.pulling += 1;
        }
        let pulls: Vec<Pull> = spans.into_iter().zip(addresses).collect();
        let Some(this) = self.this.upgrade() else {
            return Ok(());
        };
        self.copier.push(move || {
            let pulled = this.pull(&pulls, &region, None);
            this.state().pulling -= 1;
            match pulled {
                Ok(()) => this.answer(op, told.imm),
                Err(Failed::Closed) => this.conn.send(Frame::answer(op, Status::NoSuchRegion)),
                Err(Failed::Rail(why)) => this.fail(why),
            }
        });
        Ok(())
    }

    /// Counts a value whose bytes are here, and says so.
    fn answer(&self, op: u64, imm: Option<(u32, u64)>) {
        let status = match counted(&self.events, imm) {
            true => Status::Done,
            false => Status::QueueFull,
        };
        self.conn.send(Frame::answer(op, status));
    }

    /// Tells a peer that reads where the bytes are; they stay there until it says that it is through.
    fn lend(&self, op: u64, wanted: &wire::Access) -> Result<(), Violation> {
        let refuse = |status| self.conn.send(Frame::answer(op, status));
        let (region, spans) = match self.regions.resolve(wanted, Wish::Read) {
            Ok(found) => found,
            Err(status) => {
                refuse(status);
                return Ok(());
            }
        };
        {
            let mut state = self.state();
            if state.reading.len() >= OPS {
                return Err(Violation("more reads at once than are taken"));
            }
            state.reading.insert(op, Arc::clone(&region));
        }
        if region.gate.is_closed() {
            self.let_go(op);
            refuse(Status::NoSuchRegion);
            return Ok(());
        }
        let mut body = Writer::default();
        for span in &spans {
            body.u64(span.address());
        }
        self.conn.send(Frame::new(Kind::Data, op, body.finish()));
        Ok(())
    }

    fn let_go(&self, op: u64) {
        self.state().reading.remove(&op);
        self.read.notify_all();
    }

    /// The peer told where the bytes of a read are.
    fn lent(&self, op: u64, body: &[u8]) -> Result<(), Violation> {
        let through = || self.conn.send(Frame::new(Kind::Unmap, op, Vec::new()));
        let wanted = self.state().ops.get(&op).cloned();
        let Some(wanted) = wanted else {
            // It was cancelled.
            through();
            return Ok(());
        };
        let mut fields = Reader::new(body);
        let filled = wanted.segments.iter().filter(|segment| segment.len > 0);
        let addresses: Option<Vec<u64>> = filled.map(|_| fields.u64()).collect();
        let addresses = addresses.filter(|_| fields.is_done() && wanted.verb == Verb::Read);
        let addresses = addresses.ok_or(Violation("data that nobody asked for"))?;
        let (Some(local), Some(spans)) = (wanted.local.clone(), spans(&wanted)) else {
            return Err(Violation("data for no memory"));
        };
        let pulls: Vec<Pull> = spans.into_iter().zip(addresses).collect();
        let Some(this) = self.this.upgrade() else {
            return Ok(());
        };
        self.copier.push(move || {
            match this.pull(&pulls, &local.region, Some(&local.flight)) {
                Ok(()) => this.ended(op, Ok(())),
                Err(Failed::Closed) => {
                    this.ended(op, Err(OpError::Op(FabricError::Deregistered)));
                }
                Err(Failed::Rail(why)) => return this.fail(why),
            }
            this.conn.send(Frame::new(Kind::Unmap, op, Vec::new()));
        });
        Ok(())
    }

    fn access(op: &Op) -> wire::Access {
        let nothing = Capability::from_bytes([0; 16]);
        let remote = op.remote.as_ref();
        let capability = remote.map_or(nothing, |region| region.capability());
        let imm = op.imm.map(|(imm, flight)| (imm.0, flight.0));
        wire::Access::new(capability, imm, &op.segments)
    }
}

/// The parts of the local region that an op's bytes are in, without empty ones.
fn spans(op: &Op) -> Option<Vec<Span>> {
    let filled = op.segments.iter().filter(|segment| segment.len > 0);
    let span = |segment: &crate::fabric::provider::Segment| {
        let start = usize::try_from(segment.local).ok()?;
        let local = op.local.as_ref()?;
        local
            .region
            .span(start..start.checked_add(segment.len as usize)?)
    };
    filled.map(span).collect()
}

impl Handler for CmaLink {
    fn frame(
        &self,
        _: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        _: Option<OwnedFd>,
    ) -> Result<Incoming, Violation> {
        match header.kind {
            Kind::Write => self.written(header.op, body)?,
            Kind::Read => {
                let wanted = wire::Access::decode(body).ok_or(Violation("a malformed access"))?;
                self.lend(header.op, &wanted)?;
            }
            Kind::Data => self.lent(header.op, body)?,
            Kind::Unmap => self.let_go(header.op),
            Kind::Answer => {
                let status = Status::of(header.status).unwrap_or(Status::NotAllowed);
                let result = status.error(self.peer, 0, "what was asked of it");
                self.ended(header.op, result.map_err(OpError::Op));
            }
            _ => return Err(Violation("a frame that does not belong on a rail")),
        }
        Ok(Incoming::NOTHING)
    }

    fn landed(&self, _: &Arc<Conn>, _: &Header, _: &Incoming, _: Landed) {}

    fn broken(&self, why: String) {
        self.fail(why);
    }
}

impl Link for CmaLink {
    fn path(&self) -> Path {
        Path::Cma
    }

    fn nic(&self) -> &str {
        NAME
    }

    fn limits(&self) -> Limits {
        Limits {
            op_bytes: OP_BYTES,
            segments: MAX_SEGMENTS,
            ops: OPS,
            bytes: OPS as u64 * u64::from(OP_BYTES),
            imm_once: true,
        }
    }

    fn reaches(
        &self,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        if let Some(place) = remote.map(RegionDescriptor::place)
            && !matches!(place, Place::Host(_))
        {
            return Err(vec![hops::no_copy(place)]);
        }
        if remote.is_some_and(|region| region.grant(Path::Cma, NAME).is_none()) {
            return Err(vec![
                Obstacle::blocks(
                    Code::NoSharedMemory,
                    "the peer did not register this memory for copies between processes",
                )
                .seen("descriptor", "no grant for cma")
                .fixed_by(Fix::by_hand("Register host memory at the peer.")),
            ]);
        }
        match local.map(|region| region.backing().place()) {
            None | Some(Place::Host(_)) => Ok(()),
            Some(place) => Err(vec![hops::no_copy(place)]),
        }
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        hops::copied("cross-memory", CpuWork::KernelCopy, from, to)
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        let id = op.id.0;
        let access = Self::access(&op).encode();
        let frame = match op.verb {
            Verb::Read => Frame::new(Kind::Read, id, access),
            Verb::Write => {
                let gone = || Refusal::Failed(OpError::Op(FabricError::Deregistered));
                let mut body = Writer::default();
                body.bytes(&access);
                for span in spans(&op).ok_or_else(gone)? {
                    body.u64(span.address());
                }
                Frame::new(Kind::Write, id, body.finish())
            }
        };
        {
            let mut state = self.state();
            // Whoever closes the link breaks its connection before it clears the state.
            if self.conn.is_broken() {
                let why = "the peer closed its end".to_owned();
                return Err(Refusal::Failed(OpError::Rail(why)));
            }
            state.ops.insert(id, op);
        }
        self.conn.send(frame);
        Ok(Posted::InFlight)
    }

    fn cancel(&self, op: OpId) -> Release {
        let mut state = self.state();
        match state.ops.get(&op.0).map(|op| op.verb) {
            // The peer may be reading the memory: its answer ends the op.
            Some(Verb::Write) => Release::Later,
            _ => {
                state.ops.remove(&op.0);
                Release::Now
            }
        }
    }

    fn cpu(&self) -> CpuSeconds {
        let copied = *self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        copied + self.conn.cpu()
    }

    fn withdraw(&self, region: &RegionCore, deadline: Instant) -> bool {
        let read = |state: &State| {
            let mut reading = state.reading.values();
            reading.any(|known| std::ptr::eq(Arc::as_ptr(known), region))
        };
        let mut state = self.state();
        while read(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // A broken connection wakes nobody: look again now and then.
            let nap = left.min(Duration::from_millis(50));
            let waited = self.read.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn close(&self) {
        // The peer must be able to see that this end hung up before any memory is freed.
        self.conn.close();
        self.gate.close();
        let mut state = self.state();
        let (ops, reading) = (
            std::mem::take(&mut state.ops),
            std::mem::take(&mut state.reading),
        );
        drop(state);
        drop((ops, reading));
        self.read.notify_all();
    }
}
