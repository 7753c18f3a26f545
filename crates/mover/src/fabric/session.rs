//! What this process shares with one peer: rails, transfers, messages, barriers, and the control
//! connection whose silence tells that the peer is gone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crowfly_route::receipt::Path;

use super::conn::{Conn, Frame, Handler, Incoming, Landed, send_kept_back};
use super::copier::Copier;
use super::counter::{Counters, Seen};
use super::descriptor::RegionDescriptor;
use super::error::{FabricError, NotMapped};
use super::fields::{Reader, Writer};
use super::identity::Incarnation;
use super::memory::Backing;
use super::provider::{Events, FlightId, Imm, Link, OpError, OpId, RailId};
use super::region::RegionCore;
use super::regions::Regions;
use super::scheduler::Scheduler;
use super::wire::{Header, Kind, Violation};

mod checking;
mod fencing;
mod hearing;
mod known;
mod mail;
mod mending;

pub use checking::MAX_CHECKED_RUNS;
pub(crate) use known::Sessions;
pub(crate) use mail::Mailbox;
pub use mail::{MAX_INBOX, MAX_SENDING};
pub(crate) use mending::{Makings, Met};

/// Why a peer is gone that took its leave.
const GOODBYE: &str = "it ended the connection";
/// Why one is gone that had no room for this process.
const NO_ROOM: &str = "too many peers wait there that nobody accepts";
/// Barriers that a peer may have reached ahead of this process.
const MAX_BARRIERS: usize = 1024;

/// Why a process ends a connection; the number of its last frame.
#[derive(Clone, Copy)]
enum Farewell {
    OnPurpose = 0,
    /// Nobody accepts peers, and too many wait.
    Full = 1,
}

impl Farewell {
    /// Why the peer that said so is gone.
    const fn heard(number: u64) -> &'static str {
        match number {
            n if n == Self::Full as u64 => NO_ROOM,
            _ => GOODBYE,
        }
    }
}

/// What all sessions of a fabric share.
#[derive(Clone)]
pub(crate) struct Parts {
    pub counters: Arc<Counters>,
    pub copier: Arc<Copier>,
    pub regions: Arc<Regions>,
    pub started: Instant,
    pub silence: Duration,
}

/// What this process shares with one peer.
pub(crate) struct Session {
    this: Weak<Self>,
    pub peer: Incarnation,
    /// The address it was reached at, or came from.
    pub address: String,
    pub scheduler: Arc<Scheduler>,
    control: OnceLock<Arc<Conn>>,
    counters: Arc<Counters>,
    started: Instant,
    silence: Duration,
    hearing: hearing::Hearing,
    fencing: fencing::Fencing,
    pinged: AtomicU64,
    links: Mutex<BTreeMap<u16, Arc<dyn Link>>>,
    /// Links that others were made instead of, while the peer still has memory by them.
    lenders: Mutex<Vec<Arc<dyn Link>>>,
    mending: mending::Mending,
    checking: checking::Checking,
    /// Ends transfers that are compared when they are done.
    pub canceller: Arc<checking::Both>,
    copier: Arc<Copier>,
    regions: Arc<Regions>,
    mail: Mutex<mail::Mail>,
    barriers: Mutex<BTreeMap<u64, u64>>,
    reached: Condvar,
    seen: Mutex<Seen>,
    mailbox: OnceLock<Weak<dyn Mailbox>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(peer: Incarnation, address: String, parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            this: Weak::clone(this),
            peer,
            address,
            scheduler: {
                let scheduler = Arc::new(Scheduler::new(peer, parts.silence));
                let session = Weak::clone(this);
                scheduler.rings(move || {
                    if let Some(session) = session.upgrade() {
                        session.tell_fallen();
                    }
                });
                scheduler
            },
            control: OnceLock::new(),
            counters: parts.counters,
            started: parts.started,
            silence: parts.silence,
            hearing: hearing::Hearing::at(parts.started.elapsed()),
            fencing: fencing::Fencing::default(),
            pinged: AtomicU64::new(0),
            links: Mutex::default(),
            lenders: Mutex::default(),
            mending: mending::Mending::default(),
            checking: checking::Checking::default(),
            canceller: Arc::new(checking::Both {
                session: Weak::clone(this),
            }),
            copier: parts.copier,
            regions: parts.regions,
            mail: Mutex::default(),
            barriers: Mutex::default(),
            reached: Condvar::new(),
            seen: Mutex::default(),
            mailbox: OnceLock::new(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Gives it its control connection, once both ends have agreed on their rails.
    pub(crate) fn controlled_by(&self, control: Arc<Conn>) {
        let _ = self.control.set(control);
    }

    fn tell(&self, frame: Frame) {
        if let Some(control) = self.control.get() {
            control.send(frame);
        }
    }

    /// Keeps the link of a rail, instead of an earlier one.
    pub(crate) fn keep(&self, slot: u16, link: Arc<dyn Link>) {
        let earlier = locked(&self.links).insert(slot, link);
        let mut lenders = locked(&self.lenders);
        lenders.extend(earlier);
        lenders.retain(|link| link.lends());
    }

    fn all_links(&self) -> Vec<Arc<dyn Link>> {
        let mut links: Vec<Arc<dyn Link>> = locked(&self.links).values().cloned().collect();
        links.extend(locked(&self.lenders).iter().cloned());
        links
    }

    /// Whether the peer may still reach memory of this process without asking.
    fn lends(&self) -> bool {
        self.all_links().iter().any(|link| link.lends())
    }

    /// A link that goes by a NIC.
    fn link_by(&self, path: Path, nic: &str) -> Option<Arc<dyn Link>> {
        let links = locked(&self.links);
        let mut links = links.values();
        let known = links.find(|link| link.path() == path && link.nic() == nic);
        known.map(Arc::clone)
    }

    /// Makes the peer let go of a region; answers whether it has.
    pub(crate) fn withdraw(&self, region: &RegionCore, deadline: Instant) -> bool {
        let links = self.all_links();
        links.iter().all(|link| link.withdraw(region, deadline))
    }

    /// Ends everything with this peer.
    pub(crate) fn lose(&self, why: &str) {
        self.scheduler.lose(why, self.now());
        if let Some(control) = self.control.get() {
            control.close();
        }
        self.end_talk(&FabricError::PeerLost {
            peer: self.peer,
            why: why.to_owned(),
        });
    }

    /// Ends everything that needs the control connection.
    fn end_talk(&self, error: &FabricError) {
        self.lose_checks(error);
        self.lose_mail(error);
        self.reached.notify_all();
        if let (Some(mailbox), FabricError::PeerLost { why, .. }) = (self.mailbox(), error) {
            mailbox.lost(self.peer, why, why == GOODBYE);
        }
    }

    /// Maps a peer's region, where it is on this host.
    pub(crate) fn attach(
        &self,
        region: &RegionDescriptor,
        deadline: Instant,
    ) -> Result<Arc<Backing>, NotMapped> {
        let links: Vec<Arc<dyn Link>> = locked(&self.links).values().cloned().collect();
        let tried = links.iter().map(|link| link.attach(region, deadline));
        let told = tried.reduce(|one, other| match one {
            Err(NotMapped::Apart) => other,
            told => told,
        });
        told.unwrap_or(Err(NotMapped::Apart))
    }

    /// Tells the peer that this is the end, and ends it.
    pub(crate) fn say_goodbye(&self) {
        self.part(Farewell::OnPurpose);
    }

    /// The same to a peer for whom there is no room here.
    pub(crate) fn send_away(&self) {
        self.part(Farewell::Full);
    }

    fn part(&self, farewell: Farewell) {
        self.tell(Frame::new(Kind::Bye, farewell as u64, Vec::new()));
        self.lose("this process ended the connection");
    }

    /// Ends what is overdue and notices silence.
    pub(crate) fn tick(&self) {
        let now = self.now();
        self.scheduler.tick(now);
        self.overdue_mail(now);
        self.overdue_checks(now);
        if self.scheduler.is_lost().is_some() {
            return;
        }
        self.mend(now);
        self.ask_again(now);
        self.listen(now);
    }

    fn lost(&self) -> Option<FabricError> {
        let lost = self.scheduler.is_lost().map(|why| FabricError::PeerLost {
            peer: self.peer,
            why,
        });
        lost.or_else(|| self.deaf())
    }

    /// Tells the peer that this process has reached a barrier.
    pub(crate) fn reach_barrier(&self, number: u64) {
        let mut body = Writer::default();
        body.u64(number);
        self.tell(Frame::new(Kind::Barrier, 0, body.finish()));
    }

    /// Waits until the peer has reached it too.
    pub(crate) fn await_barrier(
        &self,
        number: u64,
        until: Instant,
        allowed: Duration,
    ) -> Result<(), FabricError> {
        send_kept_back();
        let mut barriers = locked(&self.barriers);
        loop {
            if let Some(count) = barriers.get_mut(&number) {
                *count -= 1;
                if *count == 0 {
                    barriers.remove(&number);
                }
                return Ok(());
            }
            if let Some(error) = self.lost() {
                return Err(error);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FabricError::Deadline {
                    what: "the barrier",
                    after: allowed,
                });
            }
            let waited = self.reached.wait_timeout(barriers, left);
            barriers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Events for Session {
    fn completed(&self, rail: RailId, op: OpId, result: Result<(), OpError>) {
        self.scheduler.completed(rail, op, result, self.now());
    }

    fn arrived(&self, imm: Imm, flight: Option<FlightId>) -> bool {
        if flight.is_none() {
            // It came by a NIC, and so did its bytes.
            self.regions.make_visible();
        }
        let first = flight.is_none_or(|flight| locked(&self.seen).first(flight.0));
        !first || self.counters.count(imm)
    }

    fn word(&self, _: RailId, word: &[u8]) -> bool {
        self.heard_by_rail(word).is_some()
    }

    fn down(&self, rail: RailId, why: String) {
        self.scheduler.down(rail, &why, self.now());
        self.rail_ended();
    }
}

impl Handler for Session {
    fn frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        _: Option<OwnedFd>,
    ) -> Result<Incoming, Violation> {
        match header.kind {
            Kind::Ping => conn.send(Frame::new(Kind::Pong, 0, Vec::new())),
            Kind::Pong => {}
            Kind::Message => self.message(conn, header.op, body),
            Kind::Answer => self.answered(header.op, header.status),
            Kind::Barrier => {
                let mut fields = Reader::new(body);
                let number = fields.u64().ok_or(Violation("a malformed barrier"))?;
                let mut barriers = locked(&self.barriers);
                if !barriers.contains_key(&number) && barriers.len() >= MAX_BARRIERS {
                    return Err(Violation("too many barriers ahead"));
                }
                *barriers.entry(number).or_default() += 1;
                drop(barriers);
                self.reached.notify_all();
            }
            Kind::Fallen | Kind::Mend | Kind::Mended | Kind::Joined => {
                self.mending_frame(header.kind, body)?;
            }
            Kind::Sum | Kind::Summed => self.checking_frame(conn, header, body)?,
            Kind::Bye => self.lose(Farewell::heard(header.op)),
            _ => {
                return Err(Violation(
                    "a frame that does not belong on a control connection",
                ));
            }
        }
        Ok(Incoming::NOTHING)
    }

    fn landed(&self, _: &Arc<Conn>, _: &Header, _: &Incoming, _: Landed) {}

    fn broken(&self, why: String) {
        self.control_ended(&why);
    }
}
