//! A link: a few queue pairs to one peer, the ops in flight on them, and what became of each.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crowfly_machine::verbs::{
    CompletionQueue, Failed, MemoryRegion, QueuePair, Ready, Remote, Slice, VerbsError,
};
use crowfly_route::hop::Route;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path};

use super::super::descriptor::RegionDescriptor;
use super::super::error::FabricError;
use super::super::port::PortCount;
use super::super::provider::{
    Events, Imm, Limits, Link, Op, OpError, OpId, Posted, RailId, Refusal, Release, Verb,
};
use super::super::region::RegionCore;
use super::hops::{self, Cable};
use super::pump::Pump;
use super::{NicCore, lock, region_of};

mod chain;
mod completions;
mod lane;
mod values;
mod window;

use chain::Request;
pub(super) use lane::Lane;
use values::Values;
use window::Window;

/// The most bytes of one op: large enough that posting costs nothing, small enough to share out
/// over lanes and rails.
const OP_BYTES: u32 = 1 << 20;
/// The most segments of one op.
const SEGMENTS: usize = 64;
/// The most bytes in flight on one lane: several times what the fastest port carries in the time
/// of a round trip.
const LANE_BYTES: u64 = 16 << 20;
/// Bits of a request's number that tell its place in its op's chain.
const CHAIN_BITS: u32 = 8;
/// How long a network may hold on to packets: a switch of InfiniBand drops what it could not pass on within 4.096 µs
/// × 2^19 (2.1 s) at the most, and on Ethernet queues are shorter.
const LIFETIME: Duration = Duration::from_secs(5);
const _: () = assert!(SEGMENTS < 1 << CHAIN_BITS);

/// An op whose end has not come.
struct InFlight {
    op: Op,
    lane: usize,
    /// The number of its last request, whose completion is the last of the op's.
    last: u64,
    failed: Option<Failed>,
    bytes: u64,
    /// The bytes that were in flight then, its own included.
    queued: u64,
    since: Instant,
}

struct State {
    lanes: Vec<Lane>,
    ops: HashMap<u64, InFlight>,
    /// Bytes of all ops.
    bytes: u64,
    window: Window,
    next: u64,
    values: Values,
    closed: bool,
    /// Of a closed link, what came by it, where that is certain.
    tally: Option<Vec<u8>>,
    /// Values that came while it was being closed, when nobody could be told.
    late: Vec<Imm>,
    /// Whether the engine was told that the link is down.
    down: bool,
}

impl State {
    fn new(lanes: Vec<Lane>, most: u64) -> Self {
        Self {
            lanes,
            ops: HashMap::new(),
            bytes: 0,
            window: Window::up_to(most),
            next: 0,
            values: Values::default(),
            closed: false,
            tally: None,
            late: Vec::new(),
            down: false,
        }
    }

    /// An op is not in flight any more.
    fn ended(&mut self, key: u64) -> Option<InFlight> {
        let flight = self.ops.remove(&key)?;
        self.bytes -= flight.bytes;
        if flight.failed.is_none() {
            let took = flight.since.elapsed();
            self.window.ended(flight.bytes, flight.queued, took);
        }
        Some(flight)
    }
}

/// What joins a link to the rest.
pub(super) struct Ends {
    pub nic: Arc<NicCore>,
    pub pump: Arc<Pump>,
    pub peer_nic: String,
    /// What joins the two ports.
    pub fabric: &'static str,
    pub rail: RailId,
    pub events: Weak<dyn Events>,
}

/// A link by queue pairs.
pub(super) struct VerbsLink {
    ends: Ends,
    queue: Arc<CompletionQueue>,
    limits: Limits,
    inline: usize,
    state: Mutex<State>,
    cpu: Mutex<CpuSeconds>,
    this: Weak<Self>,
}

impl fmt::Debug for VerbsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VerbsLink({} to {})",
            self.ends.nic.name, self.ends.peer_nic
        )
    }
}

impl VerbsLink {
    pub(super) fn new(ends: Ends, queue: Arc<CompletionQueue>, lanes: Vec<Lane>) -> Arc<Self> {
        let sizes = |lane: &Lane| lane.pair.as_ref().map(QueuePair::sizes);
        let requests: usize = lanes.iter().filter_map(|l| Some(sizes(l)?.requests)).sum();
        let inline = lanes.iter().filter_map(|l| Some(sizes(l)?.inline)).min();
        let depth = lanes.iter().filter_map(|l| Some(sizes(l)?.requests)).min();
        let limits = Limits {
            op_bytes: OP_BYTES.min(ends.nic.port.max_message.max(1)),
            segments: SEGMENTS.min(depth.unwrap_or(1)),
            ops: requests,
            bytes: LANE_BYTES * lanes.len() as u64,
            imm_once: false,
        };
        Arc::new_cyclic(|this| Self {
            ends,
            queue,
            limits,
            inline: inline.unwrap_or(0),
            state: Mutex::new(State::new(lanes, limits.bytes)),
            cpu: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    pub(super) const fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    pub(super) fn arm(&self) {
        // If the device refuses, it is gone, and the next look at its queue says so.
        let _ = self.queue.arm();
    }

    pub(super) fn charge(&self, spent: CpuSeconds) {
        *lock(&self.cpu) += spent;
    }

    /// The local region, as this NIC has it registered, and the peer's, as its NIC does.
    fn ends_of(&self, op: &Op) -> Result<(Option<Arc<MemoryRegion>>, Remote), OpError> {
        let local = match &op.local {
            None => None,
            Some(local) => {
                let known = local.region.registration(Path::Verbs, &self.ends.nic.name);
                let region = known.and_then(region_of);
                Some(region.ok_or_else(|| {
                    OpError::Rail(format!(
                        "the local memory is not registered with {}",
                        self.ends.nic.name
                    ))
                })?)
            }
        };
        let remote = match &op.remote {
            None => Remote { address: 0, key: 0 },
            Some(remote) => {
                let grant = remote.grant(Path::Verbs, &self.ends.peer_nic);
                let key = grant.and_then(|grant| <[u8; 4]>::try_from(grant.key.as_slice()).ok());
                let (Some(grant), Some(key)) = (grant, key) else {
                    let nic = &self.ends.peer_nic;
                    return Err(OpError::Rail(format!(
                        "the peer's memory is not registered with its {nic}"
                    )));
                };
                Remote {
                    address: grant.address,
                    key: u32::from_le_bytes(key),
                }
            }
        };
        Ok((local, remote))
    }

    /// Posts an op on a lane. The queue pair holds the region that the op's memory lies in.
    fn ring(
        &self,
        pair: &mut QueuePair<Ready>,
        base: u64,
        op: &Op,
        region: Option<&Arc<MemoryRegion>>,
        requests: &[Request],
    ) -> Result<usize, VerbsError> {
        let mut batch = pair.batch();
        for (at, request) in requests.iter().enumerate() {
            let wr_id = base | at as u64;
            let remote = request.remote;
            let immediate = match op.imm {
                Some((Imm(value), _)) if at + 1 == requests.len() => Some(value),
                _ => None,
            };
            if let Some(bytes) = self.small(op, request) {
                batch.write_inline(wr_id, &bytes, remote, immediate)?;
                continue;
            }
            let pieces: Result<Vec<Slice>, VerbsError> = region
                .into_iter()
                .flat_map(|region| request.pieces.iter().map(|p| region.slice(p.clone())))
                .collect();
            match op.verb {
                Verb::Write => batch.write(wr_id, pieces?, remote, immediate)?,
                Verb::Read => batch.read(wr_id, remote, pieces?)?,
            };
        }
        Ok(batch.ring()?.posted)
    }

    /// The bytes of a write that is small enough to travel inside of its request, copied now.
    fn small(&self, op: &Op, request: &Request) -> Option<Vec<u8>> {
        let local = op.local.as_ref().filter(|_| op.verb == Verb::Write)?;
        let len: usize = request.pieces.iter().map(std::ops::Range::len).sum();
        let host = matches!(local.region.backing().place(), Place::Host(_));
        if len == 0 || len > self.inline || !host {
            return None;
        }
        let mut bytes = vec![0; len];
        let mut at = 0;
        for piece in &request.pieces {
            let span = local.region.span(piece.clone())?;
            at += span.get(bytes.get_mut(at..at + piece.len())?).ok()?;
        }
        (at == len).then_some(bytes)
    }
}

impl Link for VerbsLink {
    fn path(&self) -> Path {
        Path::Verbs
    }

    fn nic(&self) -> &str {
        &self.ends.nic.name
    }

    fn reaches(
        &self,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        let (ours, theirs) = (&self.ends.nic.name, &self.ends.peer_nic);
        if let Some(local) = local
            && local.registration(Path::Verbs, ours).is_none()
        {
            let met = local.refusal(Path::Verbs, ours).unwrap_or_default();
            return Err(met.to_vec());
        }
        if let Some(remote) = remote
            && remote.grant(Path::Verbs, theirs).is_none()
        {
            return Err(vec![
                Obstacle::blocks(
                    Code::RegistrationRefused,
                    format!("the peer's memory is not registered with its {theirs}"),
                )
                .seen("descriptor", format!("no key of {theirs}"))
                .fixed_by(Fix::by_hand(
                    "The peer knows why: ask its region for its obstacles.",
                )),
            ]);
        }
        Ok(())
    }

    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        let nic = &self.ends.nic;
        let bits = nic.context.rate(nic.port.number).filter(|_| !nic.software);
        let cable = Cable {
            ours: &nic.name,
            theirs: &self.ends.peer_nic,
            fabric: self.ends.fabric,
            rate: bits.map(|bits| bits / 8.0),
            software: nic.software,
        };
        hops::route(&cable, from, to)
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        let bytes = op.bytes();
        let (region, remote) = self.ends_of(&op).map_err(Refusal::Failed)?;
        let pieces = {
            let state = lock(&self.state);
            if !state.window.takes(bytes, state.bytes) {
                return Err(Refusal::Full(op));
            }
            let pairs = state.lanes.iter().filter_map(|lane| lane.pair.as_ref());
            pairs.map(|pair| pair.sizes().pieces).min().unwrap_or(1)
        };
        let requests = chain::of(&op, remote, pieces);
        let mut state = lock(&self.state);
        if !state.lanes.iter().any(Lane::is_alive) {
            let why = state.lanes.iter().find_map(|lane| lane.broken.clone());
            let why = why.unwrap_or_else(|| "the link was closed".into());
            return Err(Refusal::Failed(OpError::Rail(why)));
        }
        let roomiest = state.lanes.iter().enumerate().max_by_key(|(_, l)| l.room());
        let Some((at, _)) = roomiest.filter(|(_, lane)| lane.room() >= requests.len()) else {
            return Err(Refusal::Full(op));
        };
        // Held until the requests are with the device, whose completions let go of the memory.
        let local = op.local.clone();
        let gates = local
            .as_ref()
            .map(|local| (local.flight.enter(), local.region.gate.enter()));
        match gates {
            Some((None, _)) => return Err(Refusal::Failed(OpError::Op(FabricError::Cancelled))),
            Some((_, None)) => return Err(Refusal::Failed(OpError::Op(FabricError::Deregistered))),
            _ => {}
        }
        state.next += 1;
        let key = state.next;
        let base = key << CHAIN_BITS;
        let State {
            lanes,
            ops,
            values,
            bytes: in_flight,
            ..
        } = &mut *state;
        let lane = &mut lanes[at];
        let Some(pair) = &mut lane.pair else {
            return Err(Refusal::Full(op));
        };
        let rung = self.ring(pair, base, &op, region.as_ref(), &requests);
        drop(gates);
        match rung {
            Ok(posted) => {
                let last = base | (posted.max(1) - 1) as u64;
                if op.imm.is_some() {
                    values.sent(op.id, at, lane);
                }
                *in_flight += bytes;
                let flight = InFlight {
                    op,
                    lane: at,
                    last,
                    failed: None,
                    bytes,
                    queued: *in_flight,
                    since: Instant::now(),
                };
                ops.insert(key, flight);
                if posted < requests.len() {
                    // The rest never left: stopped, what did leave completes as flushed.
                    lane.stop(format!("{} took only part of an op", self.ends.nic.name));
                }
                Ok(Posted::InFlight)
            }
            Err(error) => {
                let why = error.to_string();
                lane.stop(why.clone());
                drop(state);
                // The end of the link, if this was its last lane, is told by the pump's thread.
                self.ends.pump.wake();
                Err(Refusal::Failed(OpError::Rail(why)))
            }
        }
    }

    fn cancel(&self, _: OpId) -> Release {
        // A device cannot be told to drop one request: its end comes, or the link is closed.
        Release::Later
    }

    fn cpu(&self) -> CpuSeconds {
        *lock(&self.cpu)
    }

    fn is_worn(&self) -> bool {
        let state = lock(&self.state);
        let broken = |lane: &Lane| lane.broken.is_some();
        !state.closed && state.lanes.iter().any(broken) && !state.lanes.iter().all(broken)
    }

    fn lingers(&self) -> Option<Duration> {
        Some(LIFETIME)
    }

    fn close(&self) {
        {
            let mut state = lock(&self.state);
            if std::mem::replace(&mut state.closed, true) {
                return;
            }
            for lane in &mut state.lanes {
                lane.stop("the link was closed".into());
            }
        }
        let certain = self.give_back();
        let (pairs, ops) = {
            let mut state = lock(&self.state);
            let pairs: Vec<_> = state
                .lanes
                .iter_mut()
                .map(|lane| lane.pair.take())
                .collect();
            (pairs, std::mem::take(&mut state.ops))
        };
        // Destroyed, a queue pair touches no memory any more; only then its regions are let go of.
        drop(pairs);
        drop(ops);
        {
            let mut state = lock(&self.state);
            state.tally = certain.then(|| values::tally(&state.lanes));
        }
        match self.this.upgrade() {
            Some(this) => self.ends.pump.finish(this),
            None => self.ends.pump.wake(),
        }
    }

    fn is_in_doubt(&self, op: OpId) -> bool {
        lock(&self.state).values.is_in_doubt(op)
    }

    fn tally(&self) -> Option<Vec<u8>> {
        lock(&self.state).tally.clone()
    }

    fn landed(&self, op: OpId, tally: &[u8]) -> Option<bool> {
        lock(&self.state).values.landed(op, tally)
    }

    fn port_counters(&self) -> Result<PortCount, String> {
        self.ends.nic.counters()
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.close();
    }
}
