//! One process's part of the fabric: its threads, its listener, its regions and its peers.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::Path;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::cma::Cma;
use super::copier::Copier;
use super::counter::{Counters, ImmCounter};
use super::descriptor::{Grant, RegionDescriptor};
use super::error::{CONNECTION, FabricError, SharedIo};
use super::gate::Gate;
use super::identity::{Capability, Incarnation, hex};
use super::memory::{Backing, Buffer};
use super::nics::{self, Nic};
use super::peer::Peer;
use super::provider::Imm;
use super::rail::Missing;
use super::reactor::Reactor;
use super::region::{Access, Region, RegionCore, Registered, Registrar, Registrations};
use super::regions::Regions;
use super::session::Sessions;
use super::settings::{Options, Settings};
use super::shm::{Devices, Shm};
use super::socket::Socket;
use super::stash::Stash;
use super::tcp::Sockets;
use super::totals::Totals;
use super::wait::{Bystander, Wait};
use super::waking::is_waking;
use super::whom::Whom;
use crate::entrance::{Entrance, Next};
use crate::strangers::Strangers;

mod lobby;
mod meeting;
mod stream;
mod unmet;

use lobby::Lobby;
use unmet::Unmet;

pub(crate) use stream::{Awaited, Stream, Token};

/// Connections that may be in the middle of their handshake.
const MAX_PENDING: usize = 64;
/// The time that a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(10);
/// How long a peer on this host may take to let go of a region, and a link of a transfer's memory: longer
/// than until the link is closed for it.
const LET_GO: Duration = Duration::from_secs(2);
/// How often it is looked whether a link has let go.
const NAP: Duration = Duration::from_millis(1);
/// How often who waits for a peer looks whether one could not be greeted.
const GLANCE: Duration = Duration::from_millis(50);
/// Threads of a kind when nobody says.
const MAX_THREADS: usize = 4;

struct Core {
    settings: Settings,
    incarnation: Incarnation,
    address: SocketAddr,
    started: Instant,
    reactor: Arc<Reactor>,
    copier: Arc<Copier>,
    sockets: Arc<Sockets>,
    nics: Vec<Nic>,
    /// The NICs that are not used, and why.
    left_out: Vec<Missing>,
    counters: Arc<Counters>,
    sessions: Sessions,
    stop: AtomicBool,
    /// Threads of a fabric that was dropped by a waker: whoever keeps the time ends it.
    left_to_clock: Mutex<Option<Vec<JoinHandle<()>>>>,
    pending: Arc<Strangers>,
    entrance: Entrance,
    lobby: Lobby<Peer>,
    unmet: Unmet,
}

/// One process's part of the fabric. Dropping it ends all its connections and threads; memory lives
/// on with its regions.
pub struct Fabric {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Fabric({} at {})",
            self.core.incarnation, self.core.address
        )
    }
}

impl Fabric {
    /// Starts to take part.
    ///
    /// # Errors
    /// When a NIC that was asked for does not exist or cannot be used, the address cannot be listened on, or threads cannot be had.
    pub fn new(settings: Settings) -> Result<Self, FabricError> {
        let incarnation = Incarnation::draw()?;
        let listener = TcpListener::bind(settings.listen)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            })
            .map_err(|error| FabricError::Listen {
                address: settings.listen,
                source: Arc::new(error),
            })?;
        let (listener, address) = listener;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = settings.threads.unwrap_or(cores.min(MAX_THREADS)).max(1);
        // The kernel and the application need cores as well: with a thread for each of two processors,
        // 1 MiB writes over loopback went at 0.9 to 1.7 GB/s, with one thread at 3.1 to 4.1.
        let watching = settings.threads.unwrap_or((cores / 2).min(MAX_THREADS));
        let reactor = Reactor::start(watching.max(1))?;
        let copier = Copier::start(threads)?;
        let sockets = Arc::new(Sockets {
            key: settings.key.clone(),
            reactor: Arc::clone(&reactor),
            regions: Arc::new(Regions::default()),
            stash: Arc::new(Stash::default()),
            silence: settings.silence,
        });
        let mut listeners: Vec<OwnedFd> = vec![listener.into()];
        let mut chosen = nics::choose(&settings, &sockets)?;
        if settings.shm {
            let name = format!("crowfly-{}", hex(incarnation.as_bytes())).into_bytes();
            listeners.push(
                listen_locally(&name)
                    .map_err(|error| FabricError::setup("listening on a Unix socket", error))?,
            );
            let shm = Nic::new(Arc::new(Shm {
                sockets: Arc::clone(&sockets),
                copier: Arc::clone(&copier),
                listening: name.clone(),
                devices: Arc::new(Devices::of(&settings.gpus)),
            }));
            let cma = Nic::new(Arc::new(Cma {
                sockets: Arc::clone(&sockets),
                copier: Arc::clone(&copier),
                listening: name,
            }));
            chosen.nics.splice(0..0, [shm, cma]);
        }
        let core = Arc::new(Core {
            settings,
            incarnation,
            address,
            started: Instant::now(),
            reactor,
            copier,
            sockets,
            nics: chosen.nics,
            left_out: chosen.left_out,
            counters: Arc::default(),
            sessions: Sessions::default(),
            stop: AtomicBool::new(false),
            left_to_clock: Mutex::default(),
            pending: Strangers::new(MAX_PENDING),
            entrance: Entrance::default(),
            lobby: Lobby::default(),
            unmet: Unmet::default(),
        });
        let mut fabric = Self {
            core,
            threads: Vec::new(),
        };
        let core = Arc::clone(&fabric.core);
        fabric.spawn("crowfly-accept", move || core.listen(&listeners))?;
        let core = Arc::clone(&fabric.core);
        fabric.spawn("crowfly-clock", move || core.keep_time())?;
        Ok(fabric)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), FabricError> {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(|error| FabricError::setup("starting a thread", error))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Which life of which process this is.
    pub fn incarnation(&self) -> Incarnation {
        self.core.incarnation
    }

    /// Where others can connect to.
    pub fn address(&self) -> SocketAddr {
        self.core.address
    }

    /// The NICs in use, as engine path and name; the interface that the kernel chooses is `any`.
    pub fn nics(&self) -> Vec<(Path, String)> {
        let providers = self.core.nics.iter().map(|nic| &nic.provider);
        providers.map(|p| (p.path(), p.nic().to_owned())).collect()
    }

    /// Why each NIC that this machine has and the fabric does not use is left out.
    pub fn left_out(&self) -> Vec<Obstacle> {
        let missing = self.core.left_out.iter();
        missing.map(|missing| missing.obstacle.clone()).collect()
    }

    /// Registers memory with all NICs. Peers can do with it what `access` allows, once they have
    /// its descriptor.
    ///
    /// # Errors
    /// When the memory may only be read and `access` is more than that, and under the policy
    /// `require`, when no NIC that moves bytes directly could register it; with what each one's
    /// real attempt met.
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<Region, FabricError> {
        self.register_by(buffer, access, self.core.settings.policy)
    }

    /// The same, by another policy than the fabric's.
    pub(crate) fn register_by(
        &self,
        buffer: Buffer,
        access: Access,
        policy: Policy,
    ) -> Result<Region, FabricError> {
        self.register_backing(buffer.into_backing(), access, policy)
    }

    /// Registers memory here that another fabric of this process has registered already: both may touch
    /// its bytes at any time.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub(crate) fn register_also(
        &self,
        region: &Region,
        access: Access,
    ) -> Result<Region, FabricError> {
        let policy = self.core.settings.policy;
        self.register_backing(Arc::clone(region.backing()), access, policy)
    }

    fn register_backing(
        &self,
        backing: Arc<Backing>,
        access: Access,
        policy: Policy,
    ) -> Result<Region, FabricError> {
        if access.allows_write() && !backing.writable() {
            let what = "writes: its memory may only be read";
            return Err(FabricError::NotAllowed { what });
        }
        let mut registrations = Registrations::default();
        let mut grants = Vec::new();
        let mut direct = false;
        for provider in self.core.nics.iter().map(|nic| &nic.provider) {
            let (path, nic) = (provider.path(), provider.nic().to_owned());
            match provider.register(&backing, access) {
                Ok(registration) => {
                    direct |= provider.class() == Class::Direct;
                    grants.push(Grant {
                        path,
                        nic: nic.clone(),
                        address: registration.address,
                        key: registration.key.clone(),
                    });
                    registrations.done.push(Registered {
                        path,
                        nic,
                        registration,
                    });
                }
                Err(obstacles) => registrations.refused.push((path, nic, obstacles)),
            }
        }
        if policy == Policy::Require && !direct {
            let obstacles = registrations.refused.iter().flat_map(|r| r.2.clone());
            return Err(FabricError::Registration {
                obstacles: obstacles.collect(),
            });
        }
        let descriptor = RegionDescriptor::new(
            self.core.incarnation,
            backing.len() as u64,
            access,
            backing.place().clone(),
            Capability::draw()?,
            grants,
        );
        descriptor.to_bytes()?;
        let core = Arc::new(RegionCore {
            descriptor,
            backing,
            gate: Gate::with_turnstiles(),
            registrations,
        });
        if access != Access::LOCAL {
            self.core.sockets.regions.insert(&core);
        }
        let registrar: Arc<dyn Registrar> = self.core.clone();
        Ok(Region::new(core, Arc::downgrade(&registrar)))
    }

    /// Connects to a process that listens at an address (`host:port`), or that wrote an entry of a directory.
    ///
    /// # Errors
    /// When it cannot be reached in time, does not know the key, or has no rail in common that the
    /// policy allows; [`FabricError::Replaced`] when it is another process than the one that is meant.
    pub fn connect(&self, whom: impl Into<Whom>, options: Options) -> Result<Peer, FabricError> {
        let Whom { address, life } = whom.into();
        let allowed = options.allowed();
        let deadline = Instant::now() + allowed;
        let late = |error| match error {
            FabricError::Unreachable { source, .. }
                if source.kind() == std::io::ErrorKind::TimedOut =>
            {
                let what = CONNECTION;
                FabricError::Deadline {
                    what,
                    after: allowed,
                }
            }
            other => other,
        };
        let peer = self.core.dial(&address, options, deadline).map_err(late)?;
        match (life, peer.incarnation()) {
            (Some(announced), found) if announced != found => {
                peer.close();
                Err(FabricError::Replaced {
                    address,
                    announced,
                    found,
                })
            }
            _ => Ok(peer),
        }
    }

    /// Waits for the next peer that connects to this process. Peers reach this process's memory whether it
    /// accepts them or not; of those that are still there, 256 may wait to be accepted at a time, and others
    /// are sent away.
    ///
    /// # Errors
    /// [`FabricError::Deadline`] when none does in time, [`FabricError::Setup`] when one does meanwhile
    /// and this process can have no thread to greet it, and [`FabricError::CannotAccept`] when it could let
    /// nobody in by then.
    pub fn accept(&self, time: Duration) -> Result<Peer, FabricError> {
        let began = Instant::now();
        loop {
            let left = time.saturating_sub(began.elapsed());
            if let Some(peer) = self.core.lobby.next(left.min(GLANCE)) {
                return Ok(peer);
            }
            self.all_greeted_since(began)?;
            if began.elapsed() >= time {
                return Err(match self.shortage() {
                    Some(source) => FabricError::CannotAccept { source },
                    None => FabricError::Deadline {
                        what: "a peer's connection",
                        after: time,
                    },
                });
            }
        }
    }

    /// Why this process takes no connections at the moment, such as too few descriptors; `None` while it does.
    /// It goes on by itself once it can.
    pub fn shortage(&self) -> Option<SharedIo> {
        self.core.entrance.shortage()
    }

    /// Whether whoever connected since a time could be greeted.
    ///
    /// # Errors
    /// [`FabricError::Setup`] when this process could have no thread for it.
    pub(crate) fn all_greeted_since(&self, since: Instant) -> Result<(), FabricError> {
        self.core.unmet.all_greeted_since(since)
    }

    /// Who connected since a time and did not show that it has this fabric's key.
    pub(crate) fn unproven_since(&self, since: Instant) -> Option<String> {
        self.core.unmet.unproven_since(since)
    }

    /// The counter of a value that peers' writes and notifications carry.
    pub fn counter(&self, imm: Imm) -> ImmCounter {
        let bystander: Arc<dyn Bystander> = self.core.clone();
        let counters = Arc::clone(&self.core.counters);
        ImmCounter::new(counters, imm, Arc::downgrade(&bystander))
    }

    /// What went where since this fabric started.
    pub fn totals(&self) -> Totals {
        self.core.sessions.totals()
    }

    /// How many values have arrived, of all counters.
    pub(crate) fn arrivals(&self) -> u64 {
        self.core.counters.arrivals()
    }

    /// Waits until more values have arrived than `seen`, for `time` at most.
    pub(crate) fn await_arrival(&self, seen: u64, time: Duration) {
        self.core.counters.await_arrival(seen, time);
    }

    /// Waits until all `peers` have come to the barrier with this number as well.
    ///
    /// # Errors
    /// [`FabricError::Deadline`] when one does not come in time, [`FabricError::PeerLost`] when one
    /// is gone.
    pub fn barrier(&self, peers: &[Peer], number: u64, time: Duration) -> Result<(), FabricError> {
        let until = Instant::now() + time;
        for peer in peers {
            peer.reach_barrier(number);
        }
        for peer in peers {
            peer.await_barrier(number, until, time)?;
        }
        Ok(())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if !is_waking() {
            self.core.stop.store(true, Ordering::Release);
            return self.core.end(threads);
        }
        // A thread of its own has woken whoever drops it, and would wait for itself.
        let left = self.core.left_to_clock.lock();
        *left.unwrap_or_else(PoisonError::into_inner) = Some(threads);
        self.core.stop.store(true, Ordering::Release);
    }
}

fn listen_locally(name: &[u8]) -> std::io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    const BACKLOG: i32 = 64;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

impl Core {
    fn keep_time(&self) {
        while !self.stop.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            for session in self.sessions.all() {
                session.tick();
            }
        }
        let left = self.left_to_clock.lock();
        let left = left.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(threads) = left {
            self.end(threads);
        }
    }

    /// Ends all connections and threads, save the one that calls.
    fn end(&self, threads: Vec<JoinHandle<()>>) {
        for session in self.sessions.all() {
            session.say_goodbye();
        }
        self.counters.close();
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        self.copier.stop();
        self.reactor.stop();
    }

    /// Accepts connections; the handshakes happen in threads of their own, of which there are few.
    fn listen(self: &Arc<Self>, listeners: &[OwnedFd]) {
        const NAP: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        use rustix::net::SocketFlags;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut pause = false;
        while !self.stop.load(Ordering::Acquire) {
            let mut fds: Vec<PollFd<'_>> = listeners
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            if pause {
                // They have nothing to wait for: whoever is there would be told of at once.
                fds.clear();
            }
            if poll(&mut fds, Some(&NAP)).is_err() {
                continue;
            }
            pause = false;
            for (index, listener) in listeners.iter().enumerate() {
                loop {
                    let socket = match rustix::net::accept_with(listener, flags) {
                        Ok(fd) => Socket::accepted(fd),
                        Err(error) => {
                            pause |= self.entrance.failed(error.into()) == Next::Pause;
                            break;
                        }
                    };
                    let from = socket.peer_ip();
                    let admitted = match self.pending.admit(socket.as_fd(), from) {
                        Ok(admitted) => admitted,
                        Err(error) => match self.entrance.failed(error) {
                            Next::Listen => continue,
                            Next::Pause => {
                                // The next one would be sent away like this one.
                                pause = true;
                                break;
                            }
                        },
                    };
                    self.entrance.took();
                    let core = Arc::clone(self);
                    let local = index > 0;
                    // Whoever fails, or whom no thread could be had for, is told by the closed
                    // connection.
                    let spawned = std::thread::Builder::new()
                        .name("crowfly-greet".into())
                        .spawn(move || core.unmet.greeted(core.greet(socket, local, &admitted)));
                    if let Err(error) = spawned {
                        self.unmet.without_thread(error);
                    }
                }
            }
        }
    }
}

impl Bystander for Core {
    fn attend(&self, wait: &Wait<'_>) {
        let sessions = self.sessions.all();
        let mut living = sessions.iter().filter(|s| s.scheduler.is_lost().is_none());
        // Of several peers one thread does not know whom to watch.
        if let (Some(session), None) = (living.next(), living.next()) {
            session.scheduler.attend_peer(wait);
        }
    }
}

impl Registrar for Core {
    fn withdraw(&self, region: &Arc<RegionCore>) -> Result<(), FabricError> {
        self.sockets.regions.remove(region);
        let deadline = Instant::now() + LET_GO;
        for session in self.sessions.all() {
            if !session.withdraw(region, deadline) {
                let peer = session.peer;
                return Err(FabricError::StillMapped { peer });
            }
        }
        Ok(())
    }

    fn await_release(&self, region: &RegionCore) {
        let until = Instant::now() + LET_GO;
        let sessions = self.sessions.all();
        let held = || sessions.iter().any(|s| s.scheduler.is_letting_go(region));
        while held() && Instant::now() < until {
            std::thread::sleep(NAP);
        }
    }
}
