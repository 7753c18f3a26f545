//! The seam between the engine and the ways of moving bytes: `shm`, `cma`, `tcp`, `verbs` and, in tests,
//! a simulated one.
//!
//! A [`Provider`] is one NIC of one engine path. It registers memory, and it makes one [`Link`] for
//! each peer by an exchange of two short messages over the authenticated control connection
//! ([`Endpoint`]). The engine above cuts transfers into [`Op`]s, posts them to the links that have
//! room, and learns of their ends through [`Events`]. Deadlines, retries on other rails,
//! cancellation and accounts are the engine's; a link only moves bytes and says what became of
//! each op.
//!
//! The rules for a link:
//!
//! 1. An op it accepted ends exactly once: with [`Posted::Done`], with [`Events::completed`], or
//!    with [`Release::Now`] when it is cancelled. [`Events::down`] ends all of a link's ops at once.
//! 2. It writes into an op's memory only while inside both of the op's gates, one bounded step at a
//!    time; a whole short transfer is one ([`Shortcut`]). A device that cannot ask answers [`Release::Later`] to a cancellation and tells the
//!    end when it has stopped; the engine closes the link when that takes too long. Reading from
//!    an op's memory is allowed for as long as the link keeps the memory alive.
//! 3. It never calls [`Events`] from within [`Link::post`], [`Link::cancel`] or [`Link::close`].
//! 4. It calls [`Events`] while holding no lock that these three take, and inside no gate.
//! 5. No call blocks for longer than one step, but for those of a caller's thread that say so.
//! 6. Whoever cannot tell a repeated immediate value from a new one keeps count of those that came, and says
//!    after [`Link::close`] how many that were ([`Link::tally`]): then the other end knows which of its own
//!    that ended badly were counted ([`Link::landed`]), and sends only the others again.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crowfly_route::hop::{Class, Route};
use crowfly_route::obstacle::Obstacle;
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path, Visibility};

use super::descriptor::RegionDescriptor;
use super::error::{FabricError, NotMapped};
use super::gate::{Gate, Pass};
use super::identity::Incarnation;
use super::memory::Backing;
use super::port::PortCount;
use super::region::{Access, RegionCore};
pub use super::wait::Wait;

/// The longest message by which two endpoints find each other.
pub const MAX_ENDPOINT: usize = 4096;
/// The longest account of what came by a closed link.
pub const MAX_TALLY: usize = 2 * MAX_ENDPOINT;

/// Which end of a connection this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It asked for the connection.
    Dialer,
    /// It was asked.
    Acceptor,
}

/// One NIC of one engine path.
pub trait Provider: Send + Sync {
    /// The engine path.
    fn path(&self) -> Path;

    /// What the path amounts to for memory in host RAM.
    fn class(&self) -> Class;

    /// The NIC's name: `mlx5_0:1`, `eth0`; for `shm` there is one, `shm`.
    fn nic(&self) -> &str;

    /// The rate the NIC negotiated, in bytes per second, when it says.
    fn line_rate(&self) -> Option<f64> {
        None
    }

    /// Whether it is a virtual function: a part of a device that was made for a guest.
    fn is_virtual_function(&self) -> bool {
        false
    }

    /// Whether a rail by it makes sense to a peer that was met there.
    fn suits(&self, _meeting: &Meeting) -> bool {
        true
    }

    /// How well it goes together with the peer's half of a link, of which there is the
    /// [`Endpoint::hello`]: more is better.
    ///
    /// # Errors
    /// Why they cannot be joined.
    fn fit(&self, _theirs: &[u8], _meeting: &Meeting) -> Result<u8, String> {
        Ok(0)
    }

    /// Registers memory for real; it is undone when the answer's `keep` is dropped.
    ///
    /// # Errors
    /// Why the NIC cannot reach this memory, as a real attempt showed it.
    fn register(
        &self,
        memory: &Arc<Backing>,
        access: Access,
    ) -> Result<Registration, Vec<Obstacle>>;

    /// The local half of a new link.
    ///
    /// # Errors
    /// When the NIC cannot make one, with the obstacle to show in receipts.
    fn endpoint(&self, role: Role, meeting: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle>;
}

/// Where the two ends met.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    /// The acceptor's address, as the dialer reached it.
    pub address: SocketAddr,
    /// The address of this end.
    pub here: IpAddr,
}

/// Memory registered with a NIC.
#[derive(Clone)]
pub struct Registration {
    /// The first byte as the NIC counts.
    pub address: u64,
    /// What a peer must present, [`MAX_NIC_KEY`](super::MAX_NIC_KEY) bytes at most.
    pub key: Vec<u8>,
    /// The provider's own handle (a memory region, its local key); dropping the last one undoes
    /// the registration.
    pub keep: Arc<dyn Any + Send + Sync>,
    /// What makes the registration worse than it could be, if anything.
    pub obstacles: Vec<Obstacle>,
    /// Whether the memory's device sees what the NIC wrote into it, and why.
    pub visibility: Visibility,
    /// What makes the NIC's writes visible to the memory's device and says what came of it; `None`
    /// where there is nothing to be done.
    pub flush: Option<Flush>,
}

/// Makes what a NIC wrote visible to the memory's device.
pub type Flush = Arc<dyn Fn() -> Visibility + Send + Sync>;

impl Registration {
    /// A registration by which threads of this process copy, to which a NIC's keys mean nothing.
    pub(crate) fn by_copies(memory: &Backing) -> Self {
        Self {
            address: 0,
            key: Vec::new(),
            keep: Arc::new(()),
            obstacles: Vec::new(),
            visibility: match memory.device() {
                Some(_) => Self::copied_by_the_gpu(),
                None => Self::visible_to_the_host(),
            },
            flush: None,
        }
    }

    /// What is said where a GPU's copy engine wrote the bytes.
    pub fn copied_by_the_gpu() -> Visibility {
        Visibility::NotNeeded("the GPU's copies were waited for".into())
    }

    /// What is said of host memory.
    pub fn visible_to_the_host() -> Visibility {
        Visibility::NotNeeded("host memory is coherent with the CPU and with DMA".into())
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({:#x})", self.address)
    }
}

/// The local half of a link that is being made.
pub trait Endpoint: Send {
    /// What the other half needs to know, [`MAX_ENDPOINT`] bytes at most.
    fn hello(&self) -> Vec<u8>;

    /// Joins the other half. The dialer joins first, the acceptor when it hears that the dialer
    /// has.
    ///
    /// # Errors
    /// When the halves do not find each other before the deadline, with the reason.
    fn join(self: Box<Self>, theirs: &[u8], joining: Joining)
    -> Result<Arc<dyn Link>, FabricError>;
}

/// What a link needs to know of its place in the engine.
#[derive(Clone)]
pub struct Joining {
    /// The peer.
    pub peer: Incarnation,
    /// The number by which the link names itself to `events`.
    pub rail: RailId,
    /// Whom it tells. Held weakly: the engine owns the link.
    pub events: Weak<dyn Events>,
    /// When to give up.
    pub deadline: Instant,
}

/// The number of a rail of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailId(pub u32);

/// The number of an op, never used twice on one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The number of a transfer, never used twice on one peer; a receiver counts each number's
/// immediate value once, however often it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlightId(pub u64);

/// A value that arrives with, and not before, the bytes of the write it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Imm(pub u32);

/// What an op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// From the local memory into the remote.
    Write,
    /// From the remote memory into the local.
    Read,
}

/// A run of bytes that lie together at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it starts in the local region.
    pub local: u64,
    /// Where it starts in the remote region.
    pub remote: u64,
    /// Its length.
    pub len: u64,
}

/// A transfer that a link could carry out before the call that starts it returns.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a> {
    /// What it does.
    pub verb: Verb,
    /// The local memory.
    pub local: &'a RegionCore,
    /// The remote region.
    pub remote: &'a RegionDescriptor,
    /// The runs of bytes; inside both regions.
    pub runs: &'a [Run],
}

/// A run of bytes of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts in the local region.
    pub local: u64,
    /// Where it starts in the remote region.
    pub remote: u64,
    /// Its length.
    pub len: u32,
}

/// The local memory of an op.
#[derive(Clone, Debug)]
pub struct Local {
    /// The region, which the op keeps alive.
    pub region: Arc<RegionCore>,
    /// Shut when the transfer was cancelled or failed.
    pub flight: Arc<Gate>,
}

/// One piece of a transfer, for one link.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its number.
    pub id: OpId,
    /// What it does.
    pub verb: Verb,
    /// The local memory; `None` when no bytes move.
    pub local: Option<Local>,
    /// The remote region; `None` when no bytes move.
    pub remote: Option<RegionDescriptor>,
    /// The runs of bytes; inside both regions.
    pub segments: Vec<Segment>,
    /// What the receiver is told once the bytes are there, and the transfer it belongs to.
    pub imm: Option<(Imm, FlightId)>,
    /// Whether it may only go straight: a link that would have to take a [`Link::detour`] answers
    /// [`OpError::Elsewhere`].
    pub straight: bool,
}

impl Op {
    /// Bytes it moves.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|run| u64::from(run.len)).sum()
    }
}

/// What a link can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of one op.
    pub op_bytes: u32,
    /// The most segments of one op.
    pub segments: usize,
    /// The most ops in flight.
    pub ops: usize,
    /// The most bytes in flight.
    pub bytes: u64,
    /// Whether an immediate value goes with its transfer's number, by which a repeated one is told from a
    /// new one. Where it does not, nobody sends a value again that the peer says nothing of
    /// ([`Link::tally`]).
    pub imm_once: bool,
}

/// An op was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Its end will be told.
    InFlight,
    /// It is done already.
    Done,
}

/// An op was not accepted.
#[derive(Debug)]
pub enum Refusal {
    /// There is no room now; there will be when another op ends.
    Full(Op),
    /// It can never work.
    Failed(OpError),
}

/// What cancelling an op came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The link has let go of its memory and will say nothing more about it.
    Now,
    /// Its end will still be told.
    Later,
}

/// Why an op failed.
#[derive(Clone, Debug)]
pub enum OpError {
    /// The rail failed: another one may still do it.
    Rail(String),
    /// The op itself cannot work: the error for the caller.
    Op(FabricError),
    /// The link turned out not to reach the memory, and works on for others; why.
    Elsewhere(Vec<Obstacle>),
}

/// An op's work, left to the thread that posted it. It calls [`Events`], as rule 4 has it.
pub type Chore = Box<dyn FnOnce() + Send>;

/// A connection to one peer by one NIC.
pub trait Link: Send + Sync {
    /// The engine path.
    fn path(&self) -> Path;

    /// The NIC it goes by on this host.
    fn nic(&self) -> &str;

    /// What it can take.
    fn limits(&self) -> Limits;

    /// Whether it can move bytes between these two; `None` stands for no bytes at all.
    ///
    /// # Errors
    /// What stands in its way, for the receipt.
    fn reaches(
        &self,
        local: Option<&RegionCore>,
        remote: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>>;

    /// Why bytes between these two pass a buffer in host RAM although a GPU has them at one end, as
    /// far as it is known now; `None` where they do not.
    fn detour(
        &self,
        _verb: Verb,
        _local: Option<&RegionCore>,
        _remote: Option<&RegionDescriptor>,
    ) -> Option<Obstacle> {
        None
    }

    /// The hops that its bytes take, but for a detour.
    fn route(&self, verb: Verb, from: Place, to: Place) -> Route;

    /// Starts an op.
    ///
    /// # Errors
    /// When it was not accepted.
    fn post(&self, op: Op) -> Result<Posted, Refusal>;

    /// What carries out short transfers between two memories in the threads that start them, where nothing
    /// has to be asked for first; `None` when they have to be posted.
    fn shortcut(
        &self,
        _local: &RegionCore,
        _remote: &RegionDescriptor,
    ) -> Option<Box<dyn Shortcut>> {
        None
    }

    /// Starts an op for a thread that would rather carry it out than wait for another to: what it is
    /// to do, once it holds no lock, is added to `chores`. The op ends as any other that is in flight.
    ///
    /// # Errors
    /// When it was not accepted.
    fn post_here(&self, op: Op, _chores: &mut Vec<Chore>) -> Result<Posted, Refusal> {
        self.post(op)
    }

    /// Ops were posted a moment ago, and the engine holds no lock any more: the time for what takes
    /// longer than a post should, such as sending their bytes. It calls no [`Events`].
    fn posted(&self) {}

    /// Watches for the ends of ops in the thread of a caller that has nothing else to do until then.
    /// It calls [`Events`], as rule 4 has it. Returns before the wait is over where there is nothing
    /// that this thread could do better than those of the provider.
    fn attend(&self, _wait: &Wait<'_>) {}

    /// Ends an op early.
    fn cancel(&self, op: OpId) -> Release;

    /// CPU time spent on this link so far by threads of the provider.
    fn cpu(&self) -> CpuSeconds;

    /// Makes the peer let go of a region of this process that it can reach without asking; answers
    /// whether it has by the deadline. May block until then; called from threads of the caller.
    fn withdraw(&self, _region: &RegionCore, _deadline: Instant) -> bool {
        true
    }

    /// Whether the peer may still reach memory of this process without asking, closed or not.
    fn lends(&self) -> bool {
        false
    }

    /// Counts up with everything that comes from the peer, where the link can tell.
    fn heard(&self) -> u64 {
        0
    }

    /// Whether it has lost a part of what it moves bytes by, and works on with the rest.
    fn is_worn(&self) -> bool {
        false
    }

    /// Ends the link: when this returns it touches no memory any more. May take as long as its device takes
    /// to give back what was posted; the engine holds no lock meanwhile.
    fn close(&self);

    /// How long after it was closed bytes of it may still come to the peer's memory, whatever the peer does;
    /// `None` where they may for as long as the peer's end is open.
    fn lingers(&self) -> Option<Duration> {
        None
    }

    /// Whether [`Link::say`] reaches the peer for as long as the link works.
    fn takes_word(&self) -> bool {
        false
    }

    /// Says something to the engine at the other end ([`Events::word`]), beside the bytes.
    fn say(&self, _word: Vec<u8>) {}

    /// Whether an op has failed, or was in flight when the link was closed, and its value may have been
    /// counted by the peer all the same. Where the receiver tells a repeated value from a new one, that is so
    /// only of one that has bytes with it, which would be written again.
    fn is_in_doubt(&self, _op: OpId) -> bool {
        false
    }

    /// Of a closed link, what came by it in all, for [`Link::landed`] of the peer's end: nothing comes by it
    /// any more. [`MAX_TALLY`] bytes at most; `None` where that cannot be said.
    fn tally(&self) -> Option<Vec<u8>> {
        None
    }

    /// Whether the value of an op in doubt was counted, by the tally of the peer's end; `None` where it does
    /// not tell.
    fn landed(&self, _op: OpId, _tally: &[u8]) -> Option<bool> {
        None
    }

    /// A peer's region as memory of this process, where both are on one host. May block until the
    /// deadline; called from threads of the caller.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    fn attach(
        &self,
        _region: &RegionDescriptor,
        _deadline: Instant,
    ) -> Result<Arc<Backing>, NotMapped> {
        Err(NotMapped::Apart)
    }

    /// What the NIC's own counters have counted so far.
    ///
    /// # Errors
    /// Why there is nothing to read.
    fn port_counters(&self) -> Result<PortCount, String> {
        Err("no port carries this path".into())
    }
}

/// Carries out short transfers between two memories by one link.
pub trait Shortcut: Send + Sync {
    /// Whether the link and the remote memory can still be reached. It is dropped once they cannot, and may
    /// keep them until then.
    fn is_open(&self) -> bool;

    /// Carries a transfer out, inside all gates that `pass` gets it through; answers the CPU time of threads
    /// that helped, which [`Link::cpu`] does not count. `None`, and nothing is done, when it has to be posted.
    fn carry(&self, short: &Short<'_>, pass: Pass<'_>) -> Option<Result<CpuSeconds, OpError>>;
}

/// What links tell the engine.
pub trait Events: Send + Sync {
    /// An op ended.
    fn completed(&self, rail: RailId, op: OpId, result: Result<(), OpError>);

    /// A peer's write with an immediate value has landed here; answers whether it was counted.
    fn arrived(&self, imm: Imm, flight: Option<FlightId>) -> bool;

    /// The engine at the other end says something; answers whether that means anything.
    fn word(&self, _rail: RailId, _word: &[u8]) -> bool {
        false
    }

    /// The link broke; all its ops have failed with it.
    fn down(&self, rail: RailId, why: String);
}

/// Hands a value that came with a write on, where there is one and somebody to take it; answers whether
/// it was counted.
pub(super) fn counted(events: &Weak<dyn Events>, value: Option<(u32, u64)>) -> bool {
    match (value, events.upgrade()) {
        (Some((imm, flight)), Some(events)) => events.arrived(Imm(imm), Some(FlightId(flight))),
        _ => true,
    }
}

/// How long to wait for something when nobody says.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
