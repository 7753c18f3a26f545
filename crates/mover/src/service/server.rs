//! The server: who may connect, and its threads.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_route::units::Bytes;
use serde::Serialize;

use super::account::{Leg, Legs};
use super::channel::{Channel, FabricChannel};
use super::error::ServiceError;
use super::exports::{Export, Exports};
use super::limits::{INTRODUCTION, LOOK, Limits, PART, PARTING};
use super::message::Answer;
use super::metrics::{Metrics, http};
use super::ring::Ring;
use super::session::{Session, Shared, pool};
use super::tls::{Identity, TlsChannel};
use super::welcome::{Join, Welcome};
use crate::entrance::{Entrance, Next};
use crate::fabric::rendezvous::{Directory, Entry, Presence, RendezvousError, reachable};
use crate::fabric::{
    Access, Fabric, FabricError, Incarnation, Peer, Settings, SharedIo, SharedKey,
};
use crate::strangers::{Admitted, Strangers};

/// What those on loopback connect with where nobody is asked who they are.
const OPEN_KEY: &str = "crowfly service on loopback, open to everyone on this machine";
/// Connections that have not shown their certificate yet.
const MAX_STRANGERS: usize = 64;

/// Who may connect.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Everyone; only on loopback.
    Open,
    /// Whoever knows the key.
    Key(SharedKey),
    /// Whoever has a certificate of a trusted authority, and sees one.
    Certificates(Identity),
}

impl Auth {
    /// The key of a fabric for those who may connect; drawn anew where certificates decide.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub(crate) fn fabric_key(&self) -> Result<SharedKey, ServiceError> {
        Ok(match self {
            Self::Open => SharedKey::derive(OPEN_KEY),
            Self::Key(key) => key.clone(),
            Self::Certificates(_) => SharedKey::generate()?,
        })
    }
}

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Who may connect.
    pub auth: Auth,
    /// What is exposed.
    pub exports: Vec<Export>,
    /// Where the metrics can be read over HTTP; nobody is asked who they are.
    pub metrics: Option<SocketAddr>,
    /// Its limits.
    pub limits: Limits,
    /// The fabric: NICs, shared memory, patience. Key and address are set by the server.
    pub fabric: Settings,
}

/// What a server did.
#[derive(Clone, Debug, Serialize)]
pub struct Totals {
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Peers that connected.
    pub connections: u64,
    /// Peers that were sent away.
    pub refused: u64,
    /// Files by direction and outcome, such as `sent-closed` or `received-whole`.
    pub files: BTreeMap<String, u64>,
    /// Errors by code.
    pub errors: BTreeMap<String, u64>,
    /// What went each leg of the way, over all files.
    pub legs: Vec<Leg>,
}

/// Counts down when a connection is over.
struct Place<'c>(&'c AtomicUsize);

impl<'c> Place<'c> {
    fn take(count: &'c AtomicUsize, limit: usize) -> Option<Self> {
        if count.fetch_add(1, Ordering::AcqRel) >= limit {
            count.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Self(count))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Core {
    shared: Arc<Shared>,
    fabric: Fabric,
    key: SharedKey,
    auth: Auth,
    peers: AtomicUsize,
    strangers: Arc<Strangers>,
    entrance: Entrance,
    /// Peers on the fabric whose certificates are still being looked at, by who they say they are.
    lobby: Mutex<Vec<(Incarnation, Peer, Instant)>>,
}

/// A running server. Dropping it stops it.
pub struct Server {
    core: Arc<Core>,
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    started: Instant,
    threads: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Server {
    /// Starts.
    ///
    /// # Errors
    /// When others could reach it and nobody would be asked who they are, something to expose is not
    /// there, or an address, memory or threads cannot be had.
    pub fn start(settings: ServerSettings) -> Result<Self, ServiceError> {
        let address = settings.listen;
        if matches!(settings.auth, Auth::Open) && !address.ip().is_loopback() {
            return Err(ServiceError::Unauthenticated { address });
        }
        let key = settings.auth.fabric_key()?;
        let certified = matches!(settings.auth, Auth::Certificates(_));
        let fabric = Fabric::new(Settings {
            key: key.clone(),
            listen: match certified {
                true => SocketAddr::new(address.ip(), 0),
                false => address,
            },
            ..settings.fabric
        })?;
        let listener = match certified {
            true => Some(http::listen(address)?),
            false => None,
        };
        let metrics_listener = settings.metrics.map(http::listen).transpose()?;
        let bound = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|source| ServiceError::Listen { address, source })
        };
        let metrics_address = metrics_listener.as_ref().map(bound).transpose()?;
        let address = match &listener {
            Some(listener) => bound(listener)?,
            None => fabric.address(),
        };
        let exports = Exports::open(&settings.exports, &fabric)?;
        let workers = settings.limits.workers();
        let ring = Ring::registered(&fabric, workers, Access::LOCAL)?;
        let metrics = Arc::new(Metrics::default());
        metrics
            .buffers
            .store(workers as u64 * PART, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            exports,
            metrics,
            limits: settings.limits,
            ring,
            pool: pool::Pool::default(),
            totals: Legs::default(),
            stop: AtomicBool::new(false),
            until: OnceLock::new(),
        });
        let core = Arc::new(Core {
            shared: Arc::clone(&shared),
            fabric,
            key,
            auth: settings.auth,
            peers: AtomicUsize::new(0),
            strangers: Strangers::new(MAX_STRANGERS),
            entrance: Entrance::default(),
            lobby: Mutex::default(),
        });
        let mut server = Self {
            core: Arc::clone(&core),
            address,
            metrics_address,
            started: Instant::now(),
            threads: Vec::new(),
            workers: Vec::new(),
        };
        server.workers = pool::start(&shared, workers)?;
        if let Some(listener) = metrics_listener {
            let shared = Arc::clone(&shared);
            server.spawn("crowfly-metrics", move || {
                http::answer(&listener, &shared.metrics, &shared.stop);
            })?;
        }
        if let Some(listener) = listener {
            let core = Arc::clone(&core);
            server.spawn("crowfly-tls", move || core.greet(&listener))?;
        }
        server.spawn("crowfly-peers", move || core.accept())?;
        Ok(server)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServiceError> {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(|source| ServiceError::Setup {
                what: "starting a thread",
                source,
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes down where it listens, for as long as the answer lives.
    ///
    /// # Errors
    /// [`RendezvousError`].
    pub fn announce(
        &self,
        directory: &dyn Directory,
        name: &str,
    ) -> Result<Presence, RendezvousError> {
        let entry = Entry {
            incarnation: self.core.fabric.incarnation(),
            address: reachable(self.address),
        };
        directory.hold(name, &entry.to_text())
    }

    /// Where its metrics are, if anywhere.
    pub const fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Memory for bytes on their way.
    pub fn buffers(&self) -> Bytes {
        Bytes(self.core.shared.metrics.buffers.load(Ordering::Relaxed))
    }

    /// Why it takes no connections at the moment, such as too few descriptors; `None` while it does. It goes
    /// on by itself once it can.
    pub fn shortage(&self) -> Option<SharedIo> {
        self.core.shortage()
    }

    /// What it did so far.
    pub fn totals(&self) -> Totals {
        let metrics = &self.core.shared.metrics;
        let (errors, files) = metrics.totals();
        Totals {
            seconds: self.started.elapsed().as_secs_f64(),
            connections: metrics.connections.load(Ordering::Relaxed),
            refused: metrics.refused.load(Ordering::Relaxed),
            files,
            errors,
            legs: self.core.shared.totals.all(),
        }
    }

    /// Stops: takes no more peers, serves those that are there until they ask for nothing more or
    /// [`Limits::grace`] is over, and says what it did.
    pub fn stop(mut self) -> Totals {
        self.end();
        self.totals()
    }

    fn end(&mut self) {
        let shared = &self.core.shared;
        let until = *shared
            .until
            .get_or_init(|| Instant::now() + shared.limits.grace);
        shared.stop.store(true, Ordering::Release);
        let until = until + PARTING;
        while self.core.peers.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.core.shared.pool.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if self.core.peers.load(Ordering::Acquire) == 0 {
            for worker in self.workers.drain(..) {
                let _ = worker.join();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Core {
    fn shortage(&self) -> Option<SharedIo> {
        let fabric = self.fabric.shortage();
        fabric.or_else(|| self.entrance.shortage())
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    fn lobby(&self) -> MutexGuard<'_, Vec<(Incarnation, Peer, Instant)>> {
        self.lobby.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes peers as they come to the fabric.
    fn accept(self: &Arc<Self>) {
        let mut told = false;
        while !self.stopping() {
            self.lobby().retain(|(_, peer, since)| {
                let waits = since.elapsed() < INTRODUCTION && peer.lost().is_none();
                if !waits {
                    peer.close();
                }
                waits
            });
            let short = self.shortage();
            if let (Some(source), false) = (&short, told) {
                let source = Arc::clone(source);
                let error = FabricError::CannotAccept { source };
                self.shared.metrics.failed(error.code());
            }
            told = short.is_some();
            let Ok(peer) = self.fabric.accept(LOOK) else {
                continue;
            };
            if let Auth::Certificates(_) = self.auth {
                let mut lobby = self.lobby();
                match lobby.len() < MAX_STRANGERS {
                    true => lobby.push((peer.incarnation(), peer, Instant::now())),
                    false => peer.close(),
                }
                continue;
            }
            let channel = Box::new(FabricChannel(peer.clone()));
            self.admit(channel, peer);
        }
    }

    /// Serves a peer on a thread of its own, if there is room.
    fn admit(self: &Arc<Self>, channel: Box<dyn Channel>, peer: Peer) {
        let core = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("crowfly-session".into())
            .spawn(move || core.serve(channel, peer));
        if spawned.is_err() {
            self.shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn serve(&self, channel: Box<dyn Channel>, peer: Peer) {
        let metrics = &self.shared.metrics;
        let limit = self.shared.limits.peers;
        let Some(_place) = Place::take(&self.peers, limit) else {
            metrics.refused.fetch_add(1, Ordering::Relaxed);
            let error = ServiceError::TooMany {
                what: "peers",
                limit,
            };
            metrics.failed(error.code());
            let answer = Answer::Failed {
                code: error.code().into(),
                message: error.to_string(),
            };
            let _ = channel.send(&answer.encode(0), INTRODUCTION);
            // Until it has heard so, and goes.
            let _ = channel.receive(INTRODUCTION);
            let _ = channel.receive(INTRODUCTION);
            channel.close();
            return peer.close();
        };
        metrics.connections.fetch_add(1, Ordering::Relaxed);
        metrics.connected.fetch_add(1, Ordering::Relaxed);
        Session::serve(&self.shared, channel, peer);
        metrics.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes connections that show certificates.
    fn greet(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stopping() {
            let (stream, address) = match listener.accept() {
                Ok(taken) => taken,
                Err(error) => {
                    self.entrance.failed(error);
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let core = Arc::clone(self);
            let admitted = match self.strangers.admit(stream.as_fd(), Some(address.ip())) {
                Ok(admitted) => admitted,
                Err(error) => {
                    self.shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
                    if self.entrance.failed(error) == Next::Pause {
                        std::thread::sleep(LOOK);
                    }
                    continue;
                }
            };
            self.entrance.took();
            let spawned = std::thread::Builder::new()
                .name("crowfly-greet".into())
                .spawn(move || {
                    let peer = address.to_string();
                    match core.introduced(stream, &peer, &admitted) {
                        Ok((channel, peer)) => {
                            drop(admitted);
                            core.serve(Box::new(channel), peer);
                        }
                        Err(error) => {
                            core.shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
                            core.shared.metrics.failed(error.code());
                        }
                    }
                });
            drop(spawned);
        }
    }

    /// A peer's certificate is looked at, it is told how to reach the fabric, and comes there.
    fn introduced(
        &self,
        stream: std::net::TcpStream,
        address: &str,
        admitted: &Admitted,
    ) -> Result<(TlsChannel, Peer), ServiceError> {
        let Auth::Certificates(identity) = &self.auth else {
            return Err(ServiceError::Stopping);
        };
        let until = Instant::now() + INTRODUCTION;
        let left = || until.saturating_duration_since(Instant::now());
        let channel = TlsChannel::accept(stream, address, identity)?;
        channel.handshake(until)?;
        admitted.known();
        let welcome = Welcome {
            key: *self.key.as_bytes(),
            port: self.fabric.address().port(),
            incarnation: self.fabric.incarnation(),
        };
        channel.send(&welcome.encode(), left())?;
        let late = || ServiceError::Deadline {
            what: "an introduction",
            after: INTRODUCTION,
        };
        let message = channel.receive(left())?.ok_or_else(late)?;
        let join = Join::decode(&message).ok_or_else(|| ServiceError::Protocol {
            peer: address.to_owned(),
            what: "a malformed introduction",
        })?;
        loop {
            let mut lobby = self.lobby();
            let there = lobby
                .iter()
                .position(|(who, _, _)| *who == join.incarnation);
            if let Some(index) = there {
                let (_, peer, _) = lobby.swap_remove(index);
                return Ok((channel, peer));
            }
            drop(lobby);
            if left().is_zero() || self.stopping() {
                return Err(late());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
