//! A rail to a peer as the scheduler sees it: its link, its load, its totals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{CpuSeconds, Path};
use crowfly_route::units::Bytes;

use super::account::{Mark, Meter};
use super::error::{NotMapped, SharedIo};
use super::flight::Flight;
use super::nics::Nearness;
use super::provider::{FlightId, Imm, Link, OpId, Segment, Verb};
use super::scheduler::AT_ONCE;

/// A rail as it is told to the scheduler.
pub(crate) struct Rail {
    /// Which of the rails that the two ends agreed on; one that comes back has its old place.
    pub slot: u16,
    pub path: Path,
    pub nic: String,
    /// What it can carry relative to the other rails of its path; bytes per second where known.
    pub weight: f64,
    /// How far its NIC is from where memory can be.
    pub nearness: Arc<Nearness>,
    /// What its NIC has in flight, to this peer and to others.
    pub load: Arc<NicLoad>,
    pub link: Arc<dyn Link>,
}

/// What a rail of unknown rate counts as, where that of no other is known.
pub(crate) const ANY_WEIGHT: f64 = 1.0;

impl Rail {
    /// What its link can carry, in bytes per second, where that is known.
    pub(crate) fn line_rate(&self) -> Option<f64> {
        (self.weight > ANY_WEIGHT).then_some(self.weight)
    }
}

/// Bytes that a NIC has in flight to all peers together.
#[derive(Debug, Default)]
pub(crate) struct NicLoad(AtomicU64);

impl NicLoad {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A rail that the two ends do not have.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub path: Path,
    pub obstacle: Obstacle,
    /// The system's answer, where that is why.
    pub answer: Option<SharedIo>,
}

impl Missing {
    pub(crate) const fn new(path: Path, obstacle: Obstacle) -> Self {
        let answer = None;
        Self {
            path,
            obstacle,
            answer,
        }
    }

    /// Why no memory is shared, where this is a rail by which it would be and that was tried.
    pub(crate) fn unshared(&self) -> Option<NotMapped> {
        let tried = [Code::NoSharedMemory, Code::PortsDoNotMeet].contains(&self.obstacle.code);
        if self.path != Path::Shm || !tried {
            return None;
        }
        if let Some(answer) = &self.answer {
            return Some(NotMapped::Failed(answer.clone()));
        }
        let seen = self.obstacle.evidence.last();
        let why = seen.map_or(&self.obstacle.summary, |seen| &seen.shows);
        Some(NotMapped::Barred(why.clone()))
    }
}

/// What went by one rail so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RailTotals {
    /// Bytes written to the peer.
    pub written: Bytes,
    /// Bytes read from the peer.
    pub read: Bytes,
    /// Ops that ended well.
    pub ops: u64,
    /// Ops that ended badly.
    pub failed_ops: u64,
}

impl std::ops::AddAssign for RailTotals {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.read += other.read;
        self.ops += other.ops;
        self.failed_ops += other.failed_ops;
    }
}

/// What threads that passed one turnstile moved by a rail themselves. Only those write it, one at a time, and
/// anybody may look.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ShortTotals {
    written: AtomicU64,
    read: AtomicU64,
    ops: AtomicU64,
    failed_ops: AtomicU64,
    /// When the last one ended, in nanoseconds of the session's time.
    stirred: AtomicU64,
}

impl ShortTotals {
    /// A transfer ended, well or not.
    pub(crate) fn add(&self, verb: Verb, bytes: u64, well: bool, now: Duration) {
        let add = |sum: &AtomicU64, more: u64| {
            sum.store(sum.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        let now = now.as_secs() * 1_000_000_000 + u64::from(now.subsec_nanos());
        self.stirred.store(now, Ordering::Relaxed);
        match (well, verb) {
            (false, _) => return add(&self.failed_ops, 1),
            (true, Verb::Write) => add(&self.written, bytes),
            (true, Verb::Read) => add(&self.read, bytes),
        }
        add(&self.ops, 1);
    }

    fn so_far(&self) -> RailTotals {
        let seen = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        RailTotals {
            written: Bytes(seen(&self.written)),
            read: Bytes(seen(&self.read)),
            ops: seen(&self.ops),
            failed_ops: seen(&self.failed_ops),
        }
    }

    fn stirred(&self) -> Duration {
        Duration::from_nanos(self.stirred.load(Ordering::Relaxed))
    }
}

/// The running totals of one rail.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RailReport {
    /// The engine path.
    pub path: Path,
    /// The NIC on this host.
    pub nic: String,
    /// Why it is down, if it is.
    pub down: Option<String>,
    /// How often it came back after it was down.
    pub returns: u64,
    /// What went by it.
    pub totals: RailTotals,
}

impl RailReport {
    /// The account of the same rail after it came back.
    pub(crate) fn followed_by(&mut self, later: Self) {
        self.totals += later.totals;
        self.returns += later.returns;
        self.down = later.down;
        self.nic = later.nic;
    }
}

/// What the scheduler knows of a rail.
pub(crate) struct RailState {
    pub rail: Rail,
    pub class: Class,
    pub down: Option<String>,
    /// When its link was closed, once it is down.
    pub closed: Option<Duration>,
    pub ops: HashMap<OpId, InFlight>,
    /// Ops that failed, and whose value the peer may have counted or whose bytes may still reach it.
    pub in_doubt: Vec<(OpId, InFlight)>,
    /// What the peer said of its end once that was closed, if it has.
    pub told: Option<Option<Vec<u8>>>,
    bytes: u64,
    pub full: bool,
    /// The same of what was posted.
    pub stirred: Duration,
    /// Another link has its place; what it has in flight ends, and nothing more is posted.
    pub retiring: bool,
    /// How often it came back, and what went by it before it last did.
    pub returns: u64,
    earlier: RailTotals,
    /// What was posted.
    pub totals: RailTotals,
    /// What was carried out by those who started it, by turnstile.
    pub short: [Arc<ShortTotals>; AT_ONCE],
    meter: Meter,
}

impl RailState {
    pub(crate) fn new(rail: Rail, class: Class) -> Self {
        Self {
            rail,
            class,
            down: None,
            closed: None,
            ops: HashMap::new(),
            in_doubt: Vec::new(),
            told: None,
            bytes: 0,
            full: false,
            stirred: Duration::ZERO,
            retiring: false,
            returns: 0,
            earlier: RailTotals::default(),
            totals: RailTotals::default(),
            short: Default::default(),
            meter: Meter::default(),
        }
    }

    /// Bytes in flight.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An op of so many bytes is about to be posted. Its time counts from here: the link may be
    /// through with it before the post returns.
    pub(crate) fn posting(&mut self, bytes: u64) -> Mark {
        self.meter.start(bytes, self.rail.link.cpu())
    }

    /// The link did not take it.
    pub(crate) fn refused(&mut self, mark: Mark) {
        self.meter.end(mark, self.rail.link.cpu());
    }

    /// The link has the op.
    pub(crate) fn took(&mut self, op: OpId, entry: InFlight, now: Duration) {
        if self.ops.is_empty() {
            self.stirred = now;
        }
        self.bytes += entry.bytes;
        self.rail.load.0.fetch_add(entry.bytes, Ordering::Relaxed);
        self.ops.insert(op, entry);
    }

    /// The link does not have the op any more.
    pub(crate) fn gave_back(&mut self, op: OpId) -> Option<InFlight> {
        let mut entry = self.ops.remove(&op)?;
        entry.cpu = self.meter.end(entry.mark, self.rail.link.cpu());
        self.bytes -= entry.bytes;
        self.rail.load.0.fetch_sub(entry.bytes, Ordering::Relaxed);
        self.full = false;
        Some(entry)
    }

    /// The link has nothing any more. In the order they were posted: a run that is repeated is the
    /// same run.
    pub(crate) fn dropped_all(&mut self) -> Vec<(OpId, InFlight)> {
        let mut dropped: Vec<(OpId, InFlight)> = self.ops.drain().collect();
        dropped.sort_by_key(|(op, _)| *op);
        let now = self.rail.link.cpu();
        for (_, entry) in &mut dropped {
            entry.cpu = self.meter.end(entry.mark, now);
        }
        self.rail.load.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
        self.full = false;
        dropped
    }

    /// Takes a link whose place another one has out of use; answers it, to be closed.
    pub(crate) fn retire(&mut self) -> Arc<dyn Link> {
        self.down = Some("it was made anew".into());
        Arc::clone(&self.rail.link)
    }

    /// Takes over the account of the rail it follows.
    pub(crate) fn follows(&mut self, old: Option<Self>) {
        if let Some(old) = old {
            self.earlier += old.earlier;
            self.earlier += old.totals();
            self.returns += old.returns;
        }
    }

    /// What went by this link.
    pub(crate) fn totals(&self) -> RailTotals {
        let mut totals = self.totals;
        for short in &self.short {
            totals += short.so_far();
        }
        totals
    }

    /// When something last came to an end, or was posted to the idle rail.
    pub(crate) fn stirred(&self) -> Duration {
        let short = self.short.iter().map(|short| short.stirred());
        short.fold(self.stirred, Duration::max)
    }

    pub(crate) fn report(&self) -> RailReport {
        let mut totals = self.earlier;
        totals += self.totals();
        RailReport {
            path: self.rail.path,
            nic: self.rail.nic.clone(),
            down: self.down.clone(),
            returns: self.returns,
            totals,
        }
    }

    /// Whether it can carry a transfer's value, if the receiver may have to tell it from a new one.
    pub(crate) fn suits(&self, flight: &Flight) -> bool {
        !flight.numbered || self.rail.link.limits().imm_once
    }

    /// Whether another op of any size could be posted.
    pub(crate) fn has_room(&self) -> bool {
        let limits = self.rail.link.limits();
        self.down.is_none()
            && !self.retiring
            && !self.full
            && self.ops.len() < limits.ops
            && (self.ops.is_empty() || self.bytes < limits.bytes)
    }
}

/// An op that a link has and that has not ended.
pub(crate) struct InFlight {
    pub flight: FlightId,
    pub segments: Vec<Segment>,
    pub imm: Option<Imm>,
    pub bytes: u64,
    pub mark: Mark,
    /// CPU time that the link spent on it, once it has given it back.
    pub cpu: CpuSeconds,
    /// Since when its memory is waited for.
    pub leaving: Option<Duration>,
}

/// Whether a policy allows rails of a class.
pub(crate) const fn allows(policy: Policy, class: Class) -> bool {
    match policy {
        Policy::Require => matches!(class, Class::Direct),
        Policy::Staged => matches!(class, Class::Staged),
        Policy::Socket => matches!(class, Class::Socket),
        Policy::Prefer => true,
    }
}

/// Which path is straighter: smaller is better.
pub(crate) const fn rank(path: Path) -> u8 {
    match path {
        Path::Shm => 0,
        Path::Cma => 1,
        Path::Verbs => 2,
        _ => 3,
    }
}

pub(crate) fn asked_for(rail: &Rail, policy: Policy) -> Obstacle {
    Obstacle::blocks(
        Code::AskedFor,
        format!(
            "policy `{policy}` was asked for, which rules out {} of {}",
            rail.path, rail.nic
        ),
    )
    .seen("policy", policy.as_str())
    .fixed_by(Fix::by_hand("Ask for the policy `prefer`."))
}

pub(crate) fn rail_failed(rail: &Rail, why: &str) -> Obstacle {
    Obstacle::blocks(
        Code::RailFailed,
        format!("{} of {} failed while it was in use", rail.path, rail.nic),
    )
    .seen(format!("{}:{}", rail.path, rail.nic), why)
    .fixed_by(Fix::by_hand("Look at the NIC, its cable and the peer."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::error::FabricError;

    #[test]
    fn why_memory_is_not_shared_is_the_systems_answer_where_there_is_one() {
        let full = || std::io::Error::from_raw_os_error(24);
        let blocked = |code| Obstacle::blocks(code, "no rail by shm").seen("a pipe", "words");
        let plain = Missing::new(Path::Shm, blocked(Code::NoSharedMemory));
        let answered = Missing {
            answer: Some(Arc::new(full())),
            ..plain.clone()
        };
        let told = answered.unshared();
        assert!(matches!(told, Some(NotMapped::Failed(e)) if e.raw_os_error() == Some(24)));
        // A number in somebody's words is no answer of the system.
        let worded =
            Obstacle::blocks(Code::PortsDoNotMeet, "apart").seen("shm:shm", full().to_string());
        let worded = Missing::new(Path::Shm, worded).unshared();
        assert!(matches!(worded, Some(NotMapped::Barred(why)) if why == full().to_string()));
        assert!(matches!(plain.unshared(), Some(NotMapped::Barred(why)) if why == "words"));
        for other in [
            Missing::new(Path::Tcp, blocked(Code::PortsDoNotMeet)),
            Missing::new(Path::Shm, blocked(Code::AskedFor)),
        ] {
            assert!(other.unshared().is_none(), "{other:?}");
        }
    }

    #[test]
    fn an_error_has_the_systems_answer_only_where_the_system_gave_one() {
        let numbered = FabricError::setup("a pipe", std::io::Error::from_raw_os_error(24));
        assert_eq!(numbered.answer().and_then(|e| e.raw_os_error()), Some(24));
        let own = FabricError::setup("a pipe", std::io::Error::other("(os error 24)"));
        assert!(own.answer().is_none());
        assert!(FabricError::Cancelled.answer().is_none());
    }
}
