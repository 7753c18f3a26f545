//! A connected peer: what can be done with it.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;

use super::descriptor::{RegionDescriptor, RemoteSlice};
use super::error::{FabricError, NotMapped};
use super::flight::Order;
use super::identity::Incarnation;
use super::memory::Backing;
use super::plan::Kind;
use super::provider::{Imm, Run, Verb};
use super::rail::RailReport;
use super::region::LocalSlice;
use super::session::{MAX_CHECKED_RUNS, Mailbox, Session};
use super::settings::Options;
use super::transfer::{Canceller, Slot, Transfer};

/// The most pages of one paged transfer.
pub const MAX_PAGES: usize = 1 << 20;

/// One page of a paged transfer, in bytes from the start of the two slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it is in the local slice.
    pub local: u64,
    /// Where it is in the remote slice.
    pub remote: u64,
}

/// A connected peer. Clones share the connection, which ends with the fabric, with the peer, or by
/// [`Peer::close`].
#[derive(Clone)]
pub struct Peer {
    session: Arc<Session>,
    policy: Policy,
    obstacles: Arc<Vec<Obstacle>>,
    /// Why no memory is shared with it, where that was tried.
    unshared: Option<NotMapped>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} at {})", self.session.peer, self.session.address)
    }
}

impl Peer {
    pub(crate) const fn new(
        session: Arc<Session>,
        policy: Policy,
        obstacles: Arc<Vec<Obstacle>>,
        unshared: Option<NotMapped>,
    ) -> Self {
        Self {
            session,
            policy,
            obstacles,
            unshared,
        }
    }

    /// Why no memory is shared with it, where it is on this host and that was tried.
    pub(crate) const fn unshared(&self) -> Option<&NotMapped> {
        self.unshared.as_ref()
    }

    /// Which life of which process it is.
    pub fn incarnation(&self) -> Incarnation {
        self.session.peer
    }

    /// The address it was reached at, or came from.
    pub fn address(&self) -> &str {
        &self.session.address
    }

    /// Why it is gone, if it is.
    pub fn lost(&self) -> Option<String> {
        self.session.scheduler.is_lost()
    }

    /// The running totals of each rail to it.
    pub fn rails(&self) -> Vec<RailReport> {
        self.session.scheduler.report()
    }

    /// The straightest path to it that a policy leaves, and what its links carry, in bytes per second, where
    /// that is known.
    pub(crate) fn line(&self, policy: Policy) -> Option<(Path, Option<f64>)> {
        self.session.scheduler.line(policy)
    }

    /// Why each rail that could not be set up is missing.
    pub fn obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    /// Transfers under way.
    pub fn under_way(&self) -> usize {
        self.session.scheduler.under_way()
    }

    /// Writes local bytes into the peer's region.
    pub fn write(&self, from: &LocalSlice, to: &RemoteSlice, options: Options) -> Transfer {
        self.single(Verb::Write, from, to, None, options)
    }

    /// Writes, and has the peer count `imm` when the bytes are there.
    pub fn write_imm(
        &self,
        from: &LocalSlice,
        to: &RemoteSlice,
        imm: Imm,
        options: Options,
    ) -> Transfer {
        self.single(Verb::Write, from, to, Some(imm), options)
    }

    /// Reads the peer's bytes into a local region.
    pub fn read(&self, to: &LocalSlice, from: &RemoteSlice, options: Options) -> Transfer {
        self.single(Verb::Read, to, from, None, options)
    }

    /// Writes pages of `page_len` bytes each from where they lie to where they belong, as one
    /// transfer; the peer counts `imm`, if any, when all of them are there.
    pub fn write_paged(
        &self,
        from: &LocalSlice,
        to: &RemoteSlice,
        page_len: u64,
        pages: &[Page],
        imm: Option<Imm>,
        options: Options,
    ) -> Transfer {
        self.paged(Verb::Write, from, to, page_len, pages, imm, options)
    }

    /// Reads pages, as [`Peer::write_paged`] writes them.
    pub fn read_paged(
        &self,
        to: &LocalSlice,
        from: &RemoteSlice,
        page_len: u64,
        pages: &[Page],
        options: Options,
    ) -> Transfer {
        self.paged(Verb::Read, to, from, page_len, pages, None, options)
    }

    /// Has the peer count `imm`; no bytes move.
    pub fn notify(&self, imm: Imm, options: Options) -> Transfer {
        let order = Order {
            verb: Verb::Write,
            local: None,
            remote: None,
            runs: Vec::new(),
            imm: Some(imm),
            policy: options.policy.unwrap_or(self.policy),
            allowed: options.allowed(),
        };
        self.start(order, options)
    }

    /// Sends a message of up to [`MAX_MESSAGE`](super::MAX_MESSAGE) bytes; done when it is in the
    /// peer's queue.
    pub fn send(&self, message: &[u8], options: Options) -> Transfer<()> {
        self.session.send(message, options.allowed())
    }

    /// Receives the next message.
    pub fn recv(&self, options: Options) -> Transfer<Vec<u8>> {
        self.session.receive(options.allowed())
    }

    /// Ends the connection; everything under way fails.
    pub fn close(&self) {
        self.session.say_goodbye();
    }

    /// The same for one for whom there is no room here.
    pub(crate) fn send_away(&self) {
        self.session.send_away();
    }

    /// Takes the rail with this place in [`Peer::rails`] out of use, as if its NIC had failed: what
    /// it carries goes on by the others. For maintenance, and to test what a failure does.
    ///
    /// Rails that fail by themselves are made anew when that is possible; one that was taken out of
    /// use is not until [`Peer::mend_rail`].
    pub fn break_rail(&self, index: usize) {
        self.session.break_rail(index);
    }

    /// Lets a rail that was taken out of use come back. The process that connected makes it anew.
    pub fn mend_rail(&self, index: usize) {
        self.session.mend_rail(index);
    }

    /// See [`Mailbox`].
    pub(crate) fn deliver_to(&self, mailbox: Weak<dyn Mailbox>) {
        self.session.deliver_to(mailbox);
    }

    /// Maps the peer's region as memory of this process, where both are on one host. The bytes may
    /// change at any time, and stay mapped when the peer withdraws the region: only for memory that
    /// its owner never takes back to use it as slices.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    pub(crate) fn attach(
        &self,
        region: &RegionDescriptor,
        deadline: Instant,
    ) -> Result<Arc<Backing>, NotMapped> {
        self.session.attach(region, deadline)
    }

    pub(crate) fn reach_barrier(&self, number: u64) {
        self.session.reach_barrier(number);
    }

    pub(crate) fn await_barrier(
        &self,
        number: u64,
        until: Instant,
        allowed: Duration,
    ) -> Result<(), FabricError> {
        self.session.await_barrier(number, until, allowed)
    }

    fn single(
        &self,
        verb: Verb,
        local: &LocalSlice,
        remote: &RemoteSlice,
        imm: Option<Imm>,
        options: Options,
    ) -> Transfer {
        let run = match Order::run(local, remote) {
            Ok(run) => run,
            Err(error) => return Transfer::ended(Err(error)),
        };
        self.carry(verb, local, remote, Runs::One(run), imm, options)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "two public methods' arguments in one"
    )]
    fn paged(
        &self,
        verb: Verb,
        local: &LocalSlice,
        remote: &RemoteSlice,
        page_len: u64,
        pages: &[Page],
        imm: Option<Imm>,
        options: Options,
    ) -> Transfer {
        match runs(local, remote, page_len, pages) {
            Ok(runs) => self.carry(verb, local, remote, Runs::Many(runs), imm, options),
            Err(error) => Transfer::ended(Err(error)),
        }
    }

    /// Moves bytes: before this returns, where they are few and there is nothing to tell or compare.
    fn carry(
        &self,
        verb: Verb,
        local: &LocalSlice,
        remote: &RemoteSlice,
        runs: Runs,
        imm: Option<Imm>,
        options: Options,
    ) -> Transfer {
        if let Err(error) = self.may(verb, local, remote) {
            return Transfer::ended(Err(error));
        }
        let kind = Kind {
            verb,
            policy: options.policy.unwrap_or(self.policy),
            local: Some(&local.region),
            remote: Some(&remote.region),
        };
        if imm.is_none() && !options.verify {
            let session = &self.session;
            let clock = || session.now();
            if let Some(outcome) = session.scheduler.at_once(&kind, runs.as_slice(), clock) {
                return Transfer::ended(outcome);
            }
        }
        let order = Order {
            verb,
            local: Some(Arc::clone(&local.region)),
            remote: Some(remote.region.clone()),
            runs: runs.into_vec(),
            imm,
            policy: kind.policy,
            allowed: options.allowed(),
        };
        self.start(order, options)
    }

    /// Whether a transfer of this kind is allowed.
    fn may(&self, verb: Verb, local: &LocalSlice, remote: &RemoteSlice) -> Result<(), FabricError> {
        let (described, connected) = (remote.region.owner(), self.session.peer);
        if described != connected {
            return Err(FabricError::StaleDescriptor {
                described,
                connected,
            });
        }
        let access = remote.region.access();
        let (allowed, what) = match verb {
            Verb::Write => (access.allows_write(), "remote writes"),
            Verb::Read => (access.allows_read(), "remote reads"),
        };
        if !allowed {
            return Err(FabricError::NotAllowed { what });
        }
        if verb == Verb::Read && !local.region.backing().writable() {
            let what = "local writes";
            return Err(FabricError::NotAllowed { what });
        }
        if local.region.gate.is_closed() {
            return Err(FabricError::Deregistered);
        }
        Ok(())
    }

    fn start(&self, order: Order, options: Options) -> Transfer {
        let slot = Arc::new(Slot::default());
        if options.verify {
            return self.start_checked(order, slot);
        }
        let session = &self.session;
        let scheduler: Arc<dyn Canceller> = session.scheduler.clone();
        let flight = session.scheduler.start(order, &slot, session.now());
        Transfer::new(slot, Arc::downgrade(&scheduler), flight)
    }

    /// Starts a transfer whose bytes are compared once they are there.
    fn start_checked(&self, order: Order, slot: Arc<Slot>) -> Transfer {
        let both: Arc<dyn Canceller> = self.session.canceller.clone();
        if order.runs.len() > MAX_CHECKED_RUNS {
            return Transfer::ended(Err(FabricError::QueueFull {
                what: "pages of one verified transfer",
                limit: MAX_CHECKED_RUNS,
            }));
        }
        let (session, copy, last) = (
            Arc::downgrade(&self.session),
            order.clone(),
            Arc::clone(&slot),
        );
        let number = Arc::new(OnceLock::new());
        let known = Arc::clone(&number);
        let moved = Slot::then(move |outcome| match (outcome, session.upgrade()) {
            (Ok(delivery), Some(session)) => {
                session.check(known, copy, delivery, last);
            }
            (Ok(_), None) => last.put(Err(FabricError::Closed)),
            (Err(error), _) => last.put(Err(error)),
        });
        let now = self.session.now();
        let flight = self.session.scheduler.start(order, &Arc::new(moved), now);
        let _ = number.set(flight);
        Transfer::new(slot, Arc::downgrade(&both), flight)
    }
}

/// The runs of a transfer. Most have one, for which nothing is allocated.
enum Runs {
    One(Run),
    Many(Vec<Run>),
}

impl Runs {
    fn as_slice(&self) -> &[Run] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Many(runs) => runs,
        }
    }

    fn into_vec(self) -> Vec<Run> {
        match self {
            Self::One(run) => vec![run],
            Self::Many(runs) => runs,
        }
    }
}

/// Pages as runs of bytes, neighbours joined.
fn runs(
    local: &LocalSlice,
    remote: &RemoteSlice,
    page_len: u64,
    pages: &[Page],
) -> Result<Vec<Run>, FabricError> {
    if pages.len() > MAX_PAGES {
        return Err(FabricError::QueueFull {
            what: "pages of one transfer",
            limit: MAX_PAGES,
        });
    }
    let inside = |start: u64, len: u64| {
        let end = start.saturating_add(page_len);
        super::descriptor::check(&(start..end), len)
    };
    let mut runs: Vec<Run> = Vec::with_capacity(pages.len());
    for page in pages {
        inside(page.local, local.len() as u64)?;
        inside(page.remote, remote.len())?;
        let run = Run {
            local: local.range.start as u64 + page.local,
            remote: remote.range.start + page.remote,
            len: page_len,
        };
        match runs.last_mut() {
            Some(last)
                if last.local + last.len == run.local && last.remote + last.len == run.remote =>
            {
                last.len += run.len;
            }
            _ => runs.push(run),
        }
    }
    Ok(runs)
}
