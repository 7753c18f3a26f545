//! The `tcp` path: one-sided writes and reads, acted out by the receiver's engine over several
//! streams. Bytes go from the kernel's socket buffer straight into the region they are for.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_route::hop::{
    Capacity, Carrier, Class, CpuWork, Crossing, Hop, HostUse, LinkKind, Provenance, Route,
};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};
use crowfly_route::units::BytesPerSecond;

use super::conn::{Attendance, Conn, Frame, Handler, Incoming, Landed, Landing};
use super::descriptor::RegionDescriptor;
use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::handshake::{self, Agreed, Purpose, TOKEN};
use super::hops::{host_of, stop};
use super::identity::{Incarnation, SharedKey};
use super::interfaces::{self, Address};
use super::memory::{Backing, Span};
use super::port::{InterfacePort, PortCount};
use super::provider::{
    Endpoint, Joining, Limits, Link, Meeting, Op, OpError, OpId, Posted, Provider, RailId, Refusal,
    Registration, Release, Role, Verb, Wait, counted,
};
use super::reactor::Reactor;
use super::region::{Access, RegionCore};
use super::regions::{Regions, Wish};
use super::socket::Socket;
use super::stash::{Expected, MAX_STREAMS, Stash, await_kept};
use super::wire::{self, Header, Kind, MAX_SEGMENTS, Status, Violation};

mod host;
mod nic;
mod pairing;
mod values;

pub(crate) use nic::Tcp;
use values::Values;

/// The most bytes of one op: large enough that its frame costs little, small enough that several
/// streams share a transfer and that a cancelled one ends soon.
const OP_BYTES: u32 = 1 << 20;
/// Ops in flight by stream: enough for the streams never to run dry between two answers.
const OPS_PER_STREAM: usize = 32;
/// The word by which the kernel knows an interface that never leaves the host.
const LOOPBACK: &str = "lo";

/// What all of a fabric's socket rails share.
pub(crate) struct Sockets {
    pub key: SharedKey,
    pub reactor: Arc<Reactor>,
    pub regions: Arc<Regions>,
    pub stash: Arc<Stash>,
    /// How long a peer may leave data unacknowledged.
    pub silence: Duration,
}

/// An op whose end the peer will tell.
struct Pending {
    op: Op,
    conn: usize,
    /// The engine is being told of its end. Until it knows, a link that closes leaves the op in doubt.
    ended: bool,
}

/// The streams to one peer by one interface.
struct TcpLink {
    conns: Vec<Arc<Conn>>,
    nic: String,
    port: InterfacePort,
    line_rate: Option<f64>,
    peer: Incarnation,
    rail: RailId,
    events: Weak<dyn super::provider::Events>,
    regions: Arc<Regions>,
    pending: Mutex<HashMap<u64, Pending>>,
    /// Ops pending by each of `conns`.
    busy: Vec<AtomicUsize>,
    values: Values,
    attendance: Attendance,
}

impl TcpLink {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an op out of those that are pending.
    fn take(&self, op: u64) -> Option<Pending> {
        let mut pending = self.pending();
        pending.get(&op).filter(|known| !known.ended)?;
        let known = pending.remove(&op)?;
        self.rests(known.conn);
        Some(known)
    }

    /// Which of the streams this is.
    fn stream(&self, conn: &Arc<Conn>) -> usize {
        let mut conns = self.conns.iter();
        conns
            .position(|known| Arc::ptr_eq(known, conn))
            .unwrap_or(0)
    }

    /// One op fewer is under way by a stream.
    fn rests(&self, conn: usize) {
        if let Some(busy) = self.busy.get(conn) {
            busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn ended(&self, op: u64, result: Result<(), FabricError>) {
        let memory = {
            let mut pending = self.pending();
            let Some(known) = pending.get_mut(&op).filter(|known| !known.ended) else {
                return;
            };
            known.ended = true;
            self.rests(known.conn);
            known.op.local.take()
        };
        // Whoever is told may want it back at once.
        drop(memory);
        if let Some(events) = self.events.upgrade() {
            events.completed(self.rail, OpId(op), result.map_err(OpError::Op));
        }
        self.pending().remove(&op);
    }

    /// The GPU whose memory an op's bytes are in, or are for, failed at this end.
    fn failed_here(&self, op: u64, why: String) {
        let gpu = {
            let pending = self.pending();
            let local = pending.get(&op).and_then(|known| known.op.local.as_ref());
            local.map(|local| local.region.backing().place().to_string())
        };
        let gpu = gpu.unwrap_or_else(|| "a GPU".into());
        self.ended(op, Err(FabricError::GpuFailed { gpu, why }));
    }

    /// The parts of the local region that an op's bytes are in.
    fn spans(op: &Op) -> Option<VecDeque<Span>> {
        let Some(local) = &op.local else {
            return op.segments.is_empty().then(VecDeque::new);
        };
        let span = |s: &super::provider::Segment| {
            let start = usize::try_from(s.local).ok()?;
            local.region.span(start..start.checked_add(s.len as usize)?)
        };
        op.segments.iter().map(span).collect()
    }

    /// What a peer's write may be put into.
    fn writable(&self, wanted: &wire::Access) -> Incoming {
        if wanted.runs.is_empty() {
            return Incoming {
                imm: wanted.imm,
                ..Incoming::NOTHING
            };
        }
        match self.regions.resolve(wanted, Wish::Write) {
            Ok((region, spans)) => Incoming {
                landing: Some(Landing {
                    spans,
                    region,
                    flight: None,
                }),
                imm: wanted.imm,
                ..Incoming::NOTHING
            },
            Err(status) => Incoming::refused(status),
        }
    }

    /// Sends what a peer asked to read.
    fn serve(&self, conn: &Conn, header: &Header, wanted: &wire::Access) {
        let frame = match self.regions.resolve(wanted, Wish::Read) {
            Ok((_, spans)) => Frame {
                payload: spans,
                ..Frame::new(Kind::Data, header.op, Vec::new())
            },
            Err(status) => Frame::answer(header.op, status),
        };
        // Sent once what has arrived was taken.
        conn.queue(frame);
    }

    /// Where the data of a read that was asked for here goes; nowhere when it was cancelled.
    fn wanted(&self, header: &Header) -> Result<Incoming, Violation> {
        let pending = self.pending();
        let Some(pending) = pending.get(&header.op) else {
            return Ok(Incoming::NOTHING);
        };
        if pending.op.verb != Verb::Read || pending.op.bytes() != u64::from(header.payload) {
            return Err(Violation("data that nobody asked for"));
        }
        let spans = Self::spans(&pending.op);
        let landing = pending
            .op
            .local
            .as_ref()
            .zip(spans)
            .map(|(local, spans)| Landing {
                spans,
                region: Arc::clone(&local.region),
                flight: Some(Arc::clone(&local.flight)),
            });
        Ok(Incoming {
            landing,
            ..Incoming::NOTHING
        })
    }

    /// The error for what the peer answered, and said of its GPU if that is what failed.
    fn verdict(&self, op: u64, status: Status, said: Option<&str>) -> Result<(), FabricError> {
        let pending = self.pending();
        let op = pending.get(&op).map(|pending| &pending.op);
        let remote = op.and_then(|op| op.remote.as_ref());
        if let (Status::DeviceFailed, Some(region), Some(why)) = (status, remote, said) {
            return Err(FabricError::GpuFailed {
                gpu: format!("{} of peer {}", region.place(), self.peer),
                why: why.to_owned(),
            });
        }
        let error = status.error(
            self.peer,
            0,
            match op.map(|op| op.verb) {
                Some(Verb::Read) => "remote reads",
                _ => "remote writes",
            },
        );
        match (error, op) {
            (Err(FabricError::OutOfBounds { .. }), Some(op)) => Err(FabricError::OutOfBounds {
                start: op.segments.iter().map(|s| s.remote).min().unwrap_or(0),
                end: op
                    .segments
                    .iter()
                    .map(|s| s.remote + u64::from(s.len))
                    .max()
                    .unwrap_or(0),
                len: remote.map_or(0, RegionDescriptor::len),
            }),
            (error, _) => error,
        }
    }
}

impl Handler for TcpLink {
    fn frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        _: Option<OwnedFd>,
    ) -> Result<Incoming, Violation> {
        let access = || wire::Access::decode(body).ok_or(Violation("a malformed access"));
        match header.kind {
            Kind::Write => {
                let wanted = access()?;
                if wanted.bytes() != u64::from(header.payload) {
                    return Err(Violation("a payload of another length than its runs"));
                }
                Ok(self.writable(&wanted))
            }
            Kind::Read => {
                let wanted = access()?;
                let oversize = wanted.bytes() > u64::from(wire::MAX_PAYLOAD);
                if header.payload != 0 || oversize {
                    return Err(Violation("a read of too many bytes at once"));
                }
                self.serve(conn, header, &wanted);
                Ok(Incoming::NOTHING)
            }
            Kind::Data => self.wanted(header),
            Kind::Answer if header.payload == 0 && header.status == Status::Done as u8 => {
                let also = Reader::new(body).last_u64s(body.len() / size_of::<u64>());
                Ok(Incoming {
                    also: also.ok_or(Violation("an answer of half an op"))?,
                    ..Incoming::NOTHING
                })
            }
            Kind::Answer if header.payload == 0 => {
                let said = String::from_utf8_lossy(body);
                let said: String = said.chars().filter(|c| !c.is_control()).collect();
                Ok(Incoming {
                    said: Some(said).filter(|said| !said.is_empty()),
                    ..Incoming::NOTHING
                })
            }
            Kind::Fallen if header.payload == 0 => {
                let events = self.events.upgrade();
                match events.is_none_or(|events| events.word(self.rail, body)) {
                    true => Ok(Incoming::NOTHING),
                    false => Err(Violation("a malformed word about a rail")),
                }
            }
            _ => Err(Violation("a frame that does not belong on a rail")),
        }
    }

    fn landed(&self, conn: &Arc<Conn>, header: &Header, incoming: &Incoming, landed: Landed) {
        match (header.kind, landed) {
            (Kind::Write, Landed::Failed(why)) => conn.send(Frame::failed(header.op, &why)),
            (Kind::Write, landed) => {
                let mut status = incoming.status;
                if status == Status::Done && landed != Landed::Whole {
                    // It was deregistered on the way.
                    status = Status::NoSuchRegion;
                }
                if status == Status::Done {
                    let count = || counted(&self.events, incoming.imm);
                    let counted = match incoming.imm.is_some() && header.payload > 0 {
                        true => self.values.come(self.stream(conn), header.op, count),
                        false => Some(count()),
                    };
                    // The other end hears of a closed link what came by it.
                    let Some(counted) = counted else { return };
                    if !counted {
                        status = Status::QueueFull;
                    }
                }
                // Sent soon, with others where more has come.
                match status {
                    Status::Done => conn.queue_done(header.op),
                    _ => conn.queue(Frame::answer(header.op, status)),
                }
            }
            (Kind::Data, Landed::Whole) => self.ended(header.op, Ok(())),
            (Kind::Data, Landed::Dropped) => {
                self.ended(header.op, Err(FabricError::Deregistered));
            }
            (Kind::Data, Landed::Failed(why)) => self.failed_here(header.op, why),
            (Kind::Answer, _) => {
                let status = Status::of(header.status).unwrap_or(Status::NotAllowed);
                let result = match status {
                    Status::Done => Ok(()),
                    _ => self.verdict(header.op, status, incoming.said.as_deref()),
                };
                self.ended(header.op, result);
                incoming.also.iter().for_each(|op| self.ended(*op, Ok(())));
            }
            _ => {}
        }
    }

    fn unsent(&self, op: u64, why: String) {
        self.failed_here(op, why);
    }

    fn broken(&self, why: String) {
        self.close();
        if let Some(events) = self.events.upgrade() {
            events.down(self.rail, why);
        }
    }
}

impl Link for TcpLink {
    fn path(&self) -> Path {
        Path::Tcp
    }

    fn nic(&self) -> &str {
        &self.nic
    }

    fn limits(&self) -> Limits {
        Limits {
            op_bytes: OP_BYTES,
            segments: MAX_SEGMENTS,
            ops: OPS_PER_STREAM * self.conns.len(),
            bytes: (OPS_PER_STREAM * self.conns.len()) as u64 * u64::from(OP_BYTES) / 4,
            imm_once: true,
        }
    }

    fn reaches(
        &self,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        let here = local.map(|region| region.backing().place());
        let there = remote.map(RegionDescriptor::place);
        let beyond = [here, there]
            .into_iter()
            .flatten()
            .find(|p| !matches!(p, Place::Host(_) | Place::Gpu(_)));
        match beyond {
            None => Ok(()),
            Some(place) => Err(vec![
                Obstacle::blocks(
                    Code::NotBuilt,
                    format!("sockets cannot reach {place} itself"),
                )
                .seen("place", place.to_string()),
            ]),
        }
    }

    fn detour(
        &self,
        _: Verb,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Option<Obstacle> {
        let gpu = super::hops::gpu_at(local, remote)?;
        let why = "the kernel's sockets take and give bytes of host memory only";
        Some(super::hops::behind_host("sockets", &gpu, why))
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        route(&self.nic, self.line_rate, from, to)
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        let gone = || Refusal::Failed(OpError::Op(FabricError::Deregistered));
        // The other end remembers as many values of each stream as ops may be under way by it.
        let is_full = |(index, _): &(usize, &Arc<Conn>)| {
            let busy = self.busy.get(*index);
            busy.is_some_and(|busy| busy.load(Ordering::Relaxed) >= OPS_PER_STREAM)
        };
        let conns = self.conns.iter().enumerate();
        let least = conns.min_by_key(|known| (is_full(known), known.1.queued()));
        let Some((index, conn)) = least else {
            return Err(Refusal::Failed(OpError::Rail("it has no streams".into())));
        };
        let capability = match &op.remote {
            Some(remote) => remote.capability(),
            None => super::identity::Capability::from_bytes([0; 16]),
        };
        let imm = op.imm.map(|(imm, flight)| (imm.0, flight.0));
        let body = wire::Access::new(capability, imm, &op.segments).encode();
        let id = op.id.0;
        let frame = match op.verb {
            Verb::Write => Frame {
                payload: Self::spans(&op).ok_or_else(gone)?,
                ..Frame::new(Kind::Write, id, body)
            },
            Verb::Read => Frame::new(Kind::Read, id, body),
        };
        {
            let mut pending = self.pending();
            // Whoever closes the link breaks its connections before it clears this.
            if conn.is_broken() {
                let why = "its connection broke".to_owned();
                return Err(Refusal::Failed(OpError::Rail(why)));
            }
            let known = Pending {
                op,
                conn: index,
                ended: false,
            };
            pending.insert(id, known);
        }
        if let Some(busy) = self.busy.get(index) {
            busy.fetch_add(1, Ordering::Relaxed);
        }
        conn.queue(frame);
        Ok(Posted::InFlight)
    }

    fn posted(&self) {
        for (conn, busy) in self.conns.iter().zip(&self.busy) {
            conn.push(busy.load(Ordering::Relaxed));
        }
    }

    fn attend(&self, wait: &Wait<'_>) {
        let has_more = |index: usize| {
            let busy = self.busy.get(index);
            busy.is_some_and(|busy| busy.load(Ordering::Relaxed) > 0)
        };
        self.attendance.until(&self.conns, wait, has_more);
    }

    fn cancel(&self, op: OpId) -> Release {
        if let Some(pending) = self.take(op.0)
            && let Some(conn) = self.conns.get(pending.conn)
        {
            let kind = match pending.op.verb {
                Verb::Write => Kind::Write,
                Verb::Read => Kind::Read,
            };
            conn.take_back(kind, op.0);
        }
        Release::Now
    }

    fn cpu(&self) -> CpuSeconds {
        let each = self.conns.iter().map(|conn| conn.cpu());
        each.fold(CpuSeconds::default(), |sum, cpu| sum + cpu)
    }

    fn heard(&self) -> u64 {
        self.conns.iter().map(|conn| conn.heard()).sum()
    }

    fn port_counters(&self) -> Result<PortCount, String> {
        self.port.count()
    }

    fn close(&self) {
        for conn in &self.conns {
            conn.close();
        }
        // Waits for values that are just being counted.
        self.values.close();
        let mut pending = self.pending();
        self.values.doubt(pending.values().map(|known| &known.op));
        pending.clear();
    }

    fn takes_word(&self) -> bool {
        true
    }

    fn say(&self, word: Vec<u8>) {
        let whole = self.conns.iter().filter(|conn| !conn.is_broken());
        if let Some(conn) = whole.min_by_key(|conn| conn.queued()) {
            conn.send(Frame::new(Kind::Fallen, 0, word));
        }
    }

    fn is_in_doubt(&self, op: OpId) -> bool {
        self.values.is_in_doubt(op)
    }

    fn tally(&self) -> Option<Vec<u8>> {
        self.values.tally()
    }

    fn landed(&self, op: OpId, tally: &[u8]) -> Option<bool> {
        Values::landed(op, tally)
    }
}

/// The hops by way of sockets.
fn route(nic: &str, rate: Option<f64>, from: Place, to: Place) -> Route {
    let copy = || Carrier::Cpu {
        work: CpuWork::KernelCopy,
    };
    let fabric = if nic == LOOPBACK {
        "loopback"
    } else {
        "Ethernet"
    };
    let (out, back) = (
        stop(&host_of(&from), HostUse::SocketBuffer),
        stop(&host_of(&to), HostUse::SocketBuffer),
    );
    let cable = Crossing {
        link: nic.to_owned(),
        kind: LinkKind::Network,
        rate: rate.map(BytesPerSecond),
        degraded: false,
    };
    let wire = Carrier::Wire {
        fabric: fabric.into(),
    };
    let wire = Hop {
        crosses: vec![cable],
        capacity: rate.map(|rate| Capacity {
            rate: BytesPerSecond(rate),
            provenance: Provenance::LinkRate(format!("{nic}, as its driver reports it")),
        }),
        ..Hop::bare(out.clone(), back.clone(), wire)
    };
    let hops = vec![
        Hop::bare(stop(&from, HostUse::Application), out, copy()),
        wire,
        Hop::bare(back, stop(&to, HostUse::Application), copy()),
    ];
    Route {
        name: "sockets".into(),
        from,
        to,
        hops,
    }
}

#[cfg(test)]
mod tests;
