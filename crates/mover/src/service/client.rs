//! A connection to a server, on which several threads can ask at a time.

use std::ffi::OsStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_route::policy::Policy;

use super::attributes::{Attributes, Wanted};
use super::channel::{Channel, FabricChannel};
use super::error::ServiceError;
use super::limits::{COURTESY, INTRODUCTION, PATIENCE, WINDOW};
use super::message::{Answer, Entry, Part, Request, Tag, VERSION};
use super::name::{Location, Name, RelativePath};
use super::ring::{Ring, Slot};
use super::server::Auth;
use crate::fabric::{Access, Fabric, Incarnation, Options, Peer, RegionDescriptor, Settings, Whom};
use crate::gpu::Gpu;

mod dial;
mod line;

use dial::{certified, late, rails};
use line::Line;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Dialing {
    /// How to say who this is.
    pub auth: Auth,
    /// How to say it to the server of a copy's destination, where that is not the same.
    pub goal_auth: Option<Auth>,
    /// Which life of the source's server is meant, and which of the destination's, where a directory says;
    /// otherwise whoever answers.
    pub lives: [Option<Incarnation>; 2],
    /// The fabric: NICs, shared memory, patience. The key is set by the client.
    pub fabric: Settings,
    /// How long connecting, and any one request, may take.
    pub patience: Duration,
}

/// What a connection is for.
pub(crate) struct Purpose<'o> {
    /// What the server may do with this end's buffers.
    pub access: Access,
    /// How far the bytes may stray. Under `require` there has to be a direct path from the beginning.
    pub policy: Policy,
    /// Where the bytes are on this side of the connection.
    pub buffers: Buffers<'o>,
}

/// Where the bytes of a copy are on this side of a connection.
#[derive(Clone, Copy)]
pub(crate) enum Buffers<'o> {
    /// In buffers of host memory.
    Host,
    /// In buffers of a GPU's memory.
    Gpu(&'o Gpu),
    /// Where they were loaded; there are no buffers.
    Loaded(&'o crate::Region),
    /// In the buffers of another connection.
    Of(&'o Client),
}

impl Purpose<'_> {
    fn ring(&self, fabric: &Fabric) -> Result<Ring, ServiceError> {
        match self.buffers {
            Buffers::Host => Ring::registered(fabric, WINDOW, self.access),
            Buffers::Gpu(gpu) => Ring::on_gpu(fabric, gpu, WINDOW, (self.access, self.policy)),
            Buffers::Loaded(region) => Ring::of_loaded(fabric, region, self.policy),
            Buffers::Of(other) => other.ring.also_registered(fabric, self.access),
        }
    }
}

impl Dialing {
    /// The usual way, with this much said of who it is.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn by(auth: Auth) -> Result<Self, ServiceError> {
        Ok(Self {
            fabric: Settings::new(auth.fabric_key()?),
            auth,
            goal_auth: None,
            lives: [None; 2],
            patience: PATIENCE,
        })
    }

    /// Which life of the server is meant.
    fn life(&self) -> Option<Incarnation> {
        self.lives[0]
    }

    /// How to connect to the server of a copy's destination.
    pub(crate) fn towards_goal(&self) -> Self {
        Self {
            auth: self.goal_auth.as_ref().unwrap_or(&self.auth).clone(),
            lives: [self.lives[1]; 2],
            ..self.clone()
        }
    }
}

/// Something that was opened at a server.
pub(crate) enum Opened {
    File {
        file: u32,
        size: u64,
        tag: Tag,
        attributes: Option<Attributes>,
    },
    Folder(Attributes),
    Memory(Box<RegionDescriptor>),
}

/// A connection to a server.
pub(crate) struct Client {
    line: Arc<Line>,
    listener: Option<JoinHandle<()>>,
    ring: Ring,
    next: AtomicU64,
    patience: Duration,
    /// When connecting began, which is when a copy begins.
    since: Instant,
    window: usize,
    /// Ended last: its threads carry all of the above.
    _fabric: Fabric,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client(of {})", self.line.server)
    }
}

impl Client {
    /// Connects to the server at `host:port`.
    ///
    /// # Errors
    /// When it cannot be reached, one end does not accept the other, or the policy allows none of the
    /// paths between them.
    pub(crate) fn connect(
        location: &Location,
        dialing: &Dialing,
        purpose: &Purpose<'_>,
    ) -> Result<Self, ServiceError> {
        let began = Instant::now();
        let until = began + dialing.patience;
        let server = location.server.clone();
        let left = || until.saturating_duration_since(Instant::now());
        let (fabric, channel, peer) = match &dialing.auth {
            Auth::Certificates(_) => certified(location, dialing, purpose.policy, until)?,
            Auth::Open | Auth::Key(_) => {
                let fabric = Fabric::new(Settings {
                    key: dialing.auth.fabric_key()?,
                    ..dialing.fabric.clone()
                })?;
                let whom = Whom {
                    address: server.clone(),
                    life: dialing.life(),
                };
                let met = fabric.connect(&whom, rails(purpose.policy, left()));
                let peer = met.map_err(|error| late(error, dialing.patience))?;
                let channel: Box<dyn Channel> = Box::new(FabricChannel(peer.clone()));
                (fabric, channel, peer)
            }
        };
        let ring = purpose.ring(&fabric)?;
        let line = Arc::new(Line {
            channel,
            peer,
            server,
            waiting: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let listening = Arc::clone(&line);
        let listener = std::thread::Builder::new()
            .name("crowfly-answers".into())
            .spawn(move || listening.listen())
            .map_err(|source| ServiceError::Setup {
                what: "starting a thread",
                source,
            })?;
        let mut client = Self {
            line,
            listener: Some(listener),
            ring,
            next: AtomicU64::new(1),
            patience: dialing.patience,
            since: began,
            window: WINDOW,
            _fabric: fabric,
        };
        client.window = client.begin(left().min(INTRODUCTION))?;
        Ok(client)
    }

    /// Introduces this end; how many requests may be under way.
    fn begin(&self, time: Duration) -> Result<usize, ServiceError> {
        let Some(region) = self.ring.region() else {
            return Err(self.odd("its own memory is not registered"));
        };
        let memory = Box::new(region.descriptor().clone());
        let version = VERSION;
        match self.ask(Request::Begin { version, memory }, time, None)? {
            Answer::Begun {
                version: VERSION,
                requests,
            } if requests > 0 => Ok(usize::from(requests).min(WINDOW)),
            Answer::Begun { .. } => Err(self.odd("it speaks another version")),
            _ => Err(self.odd("it did not answer the introduction")),
        }
    }

    fn odd(&self, what: &'static str) -> ServiceError {
        ServiceError::Protocol {
            peer: self.line.server.clone(),
            what,
        }
    }

    /// Parts that may be under way at a time.
    pub(crate) const fn window(&self) -> usize {
        self.window
    }

    /// Buffers that the server reaches.
    pub(crate) const fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The server on the fabric.
    pub(crate) fn peer(&self) -> &Peer {
        &self.line.peer
    }

    /// Asks, and waits for the answer: a little longer than the server may work on it, so that it can say
    /// what it did not do in time, but never longer than `until`.
    fn ask(
        &self,
        request: Request,
        time: Duration,
        until: Option<Instant>,
    ) -> Result<Answer, ServiceError> {
        let (answers, answer) = channel();
        let number = {
            let mut waiting = self.line.waiting();
            if waiting.end.is_some() {
                drop(waiting);
                return Err(self.line.ended());
            }
            // Numbers are sent in order.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            waiting.answers.insert(number, answers);
            let sent = self.line.channel.send(&request.encode(number), time);
            if let Err(error) = sent {
                waiting.answers.remove(&number);
                return Err(error);
            }
            number
        };
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let patience = time.saturating_add(COURTESY);
        let wait = left.map_or(patience, |left| left.min(patience));
        match answer.recv_timeout(wait) {
            Ok(Answer::Failed { code, message }) => Err(ServiceError::Remote {
                server: self.line.server.clone(),
                code: ServiceError::known(&code),
                message,
            }),
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(self.line.ended()),
            Err(RecvTimeoutError::Timeout) => {
                self.line.waiting().answers.remove(&number);
                // When it is over for all of the copy, that is what is said.
                self.time(until)?;
                Err(ServiceError::Deadline {
                    what: "a request",
                    after: time,
                })
            }
        }
    }

    /// Ends the connection, which whatever waits for the server notices.
    pub(crate) fn leave(&self) {
        self.line.stop.store(true, Ordering::Release);
        self.line.channel.close();
        self.line.peer.close();
    }

    fn time(&self, until: Option<Instant>) -> Result<Duration, ServiceError> {
        let Some(until) = until else {
            return Ok(self.patience);
        };
        let left = until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ServiceError::Deadline {
                what: "the copy",
                after: until.saturating_duration_since(self.since),
            }),
            false => Ok(left.min(self.patience)),
        }
    }

    /// Opens something for reading.
    pub(crate) fn open(
        &self,
        name: &Name,
        path: &RelativePath,
        policy: Policy,
        until: Option<Instant>,
    ) -> Result<Opened, ServiceError> {
        let request = Request::Open {
            name: name.clone(),
            path: path.clone(),
            policy,
        };
        match self.ask(request, self.time(until)?, until)? {
            Answer::File {
                file,
                size,
                tag,
                attributes,
            } => Ok(Opened::File {
                file,
                size,
                tag,
                attributes,
            }),
            Answer::Folder(attributes) => Ok(Opened::Folder(attributes)),
            Answer::Memory(descriptor) => Ok(Opened::Memory(descriptor)),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// Makes a folder, or finishes one that is `filled`; whether it was not there before.
    pub(crate) fn folder(
        &self,
        name: &Name,
        path: &RelativePath,
        (wanted, filled): (Wanted, bool),
        until: Option<Instant>,
    ) -> Result<bool, ServiceError> {
        let request = Request::Folder {
            name: name.clone(),
            path: path.clone(),
            wanted,
            filled,
        };
        match self.ask(request, self.time(until)?, until)? {
            Answer::Made(made) => Ok(made),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// Has whole files of a folder remembered no longer.
    pub(crate) fn forget(
        &self,
        name: &Name,
        path: &RelativePath,
        until: Option<Instant>,
    ) -> Result<(), ServiceError> {
        let request = Request::Forget {
            name: name.clone(),
            path: path.clone(),
        };
        match self.ask(request, self.time(until)?, until)? {
            Answer::Made(_) => Ok(()),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// Entries of a folder after one of them, whether there are more, and how many others there are.
    pub(crate) fn list(
        &self,
        name: &Name,
        path: &RelativePath,
        (after, follow): (&OsStr, bool),
        until: Option<Instant>,
    ) -> Result<(Vec<Entry>, bool, u32), ServiceError> {
        let request = Request::List {
            name: name.clone(),
            path: path.clone(),
            after: after.to_owned(),
            follow,
        };
        match self.ask(request, self.time(until)?, until)? {
            Answer::Entries {
                entries,
                more,
                skipped,
            } => {
                let mut before = after;
                for entry in &entries {
                    if entry.name.as_os_str() <= before && !(before.is_empty()) {
                        return Err(self.odd("its listing is out of order"));
                    }
                    before = &entry.name;
                }
                match more && entries.is_empty() {
                    true => Err(self.odd("its listing does not end")),
                    false => Ok((entries, more, skipped)),
                }
            }
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    fn part(&self, file: u32, offset: u64, len: usize, slot: &Slot<'_>, time: Duration) -> Part {
        Part {
            file,
            offset,
            len: len as u32,
            at: slot.at(),
            within_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
        }
    }

    fn sums(&self, answer: Answer) -> Result<Vec<u64>, ServiceError> {
        match answer {
            Answer::Sums(sums) => Ok(sums),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// Has a part of a file written into a buffer.
    pub(crate) fn read(
        &self,
        file: u32,
        (offset, len): (u64, usize),
        slot: &Slot<'_>,
        sums: bool,
        until: Option<Instant>,
    ) -> Result<Vec<u64>, ServiceError> {
        let time = self.time(until)?;
        let part = self.part(file, offset, len, slot, time);
        let answer = self.ask(Request::Read { part, sums }, time, until)?;
        self.sums(answer)
    }

    /// Has a part fetched from a buffer.
    pub(crate) fn write(
        &self,
        file: u32,
        (offset, len): (u64, usize),
        slot: &Slot<'_>,
        sums: Vec<u64>,
        until: Option<Instant>,
    ) -> Result<Vec<u64>, ServiceError> {
        let time = self.time(until)?;
        let part = self.part(file, offset, len, slot, time);
        let answer = self.ask(Request::Write { part, sums }, time, until)?;
        self.sums(answer)
    }

    /// Begins a file there; its number, and the ranges that are there already.
    pub(crate) fn create(
        &self,
        request: Request,
        until: Option<Instant>,
    ) -> Result<(u32, Vec<std::ops::Range<u64>>), ServiceError> {
        match self.ask(request, self.time(until)?, until)? {
            Answer::Created { file, have } => Ok((file, have)),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// Ends a file there, whole or not; its checksum where that is known, and the server's account.
    pub(crate) fn end(
        &self,
        file: u32,
        commit: bool,
        until: Option<Instant>,
    ) -> Result<(Option<u64>, String), ServiceError> {
        let request = match commit {
            true => Request::Commit { file },
            false => Request::Close { file },
        };
        match self.ask(request, self.time(until)?, until)? {
            Answer::Account { digest, legs } => Ok((digest, legs)),
            _ => Err(self.odd("it answered something else than was asked")),
        }
    }

    /// The checksums of a part of exposed memory.
    pub(crate) fn sums_of(
        &self,
        name: &Name,
        offset: u64,
        len: usize,
        until: Option<Instant>,
    ) -> Result<Vec<u64>, ServiceError> {
        let request = Request::Sums {
            name: name.clone(),
            offset,
            len: len as u32,
        };
        let answer = self.ask(request, self.time(until)?, until)?;
        self.sums(answer)
    }

    /// The time and policy of a transfer of this end.
    pub(crate) fn options(
        &self,
        policy: Policy,
        until: Option<Instant>,
    ) -> Result<Options, ServiceError> {
        Ok(Options::within(self.time(until)?).by(policy))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leave();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}
