//! What a server does for one peer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crowfly_route::policy::Policy;

use super::account::Legs;
use super::channel::Channel;
use super::error::ServiceError;
use super::exports::Exports;
use super::limits::{INTRODUCTION, LOOK, Limits, MAX_WORK};
use super::message::{Answer, Entry, Request, VERSION};
use super::metrics::Metrics;
use super::name::{Name, RelativePath};
use super::partial::Partial;
use super::ring::{Ring, Slot};
use crate::fabric::{FabricError, Peer, RegionDescriptor};
use crate::source::Source;

mod looking;
mod moving;
pub(crate) mod pool;

pub(crate) use moving::{hashed, same};

/// What all sessions of a server share.
pub(crate) struct Shared {
    pub exports: Exports,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub ring: Ring,
    pub pool: pool::Pool,
    pub totals: Legs,
    pub stop: AtomicBool,
    /// Once it stops: until when those who are there are served.
    pub until: OnceLock<Instant>,
}

impl Shared {
    /// Whether the server stops, and its time is over.
    fn is_over(&self) -> bool {
        let over = |until: &Instant| Instant::now() >= *until;
        self.stop.load(Ordering::Acquire) && self.until.get().is_none_or(over)
    }
}

/// A file that a peer has open.
enum Open {
    Reading {
        source: Box<Source>,
        policy: Policy,
        legs: Legs,
    },
    Writing {
        partial: RwLock<Option<Box<Partial>>>,
        resume: bool,
        policy: Policy,
        legs: Legs,
    },
}

impl Open {
    const fn legs(&self) -> &Legs {
        match self {
            Self::Reading { legs, .. } | Self::Writing { legs, .. } => legs,
        }
    }

    const fn direction(&self) -> &'static str {
        match self {
            Self::Reading { .. } => SENT,
            Self::Writing { .. } => RECEIVED,
        }
    }
}

const SENT: &str = "sent";
const RECEIVED: &str = "received";

/// A folder's entries while a peer asks for them page by page.
struct Listed {
    name: Name,
    path: RelativePath,
    follow: bool,
    entries: Vec<Entry>,
    skipped: u32,
}

/// One peer.
pub(crate) struct Session {
    shared: Arc<Shared>,
    channel: Box<dyn Channel>,
    peer: Peer,
    label: String,
    memory: RegionDescriptor,
    files: Mutex<HashMap<u32, Arc<Open>>>,
    listed: Mutex<Option<Listed>>,
    next: AtomicU64,
    under_way: AtomicUsize,
    /// Threads of the pool that work for it.
    working: AtomicUsize,
    broken: AtomicBool,
    /// Whether it was told where exposed memory is, which it reaches without asking.
    lent: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far storage may stray when the whole way may stray as far as said: a socket is not its matter.
pub(crate) const fn of_storage(policy: Policy) -> Policy {
    match policy {
        Policy::Require => Policy::Require,
        _ => Policy::Prefer,
    }
}

impl Session {
    /// Hears a peer's introduction and serves it until it goes, falls silent, breaks the rules or the
    /// server stops.
    pub(crate) fn serve(shared: &Arc<Shared>, channel: Box<dyn Channel>, peer: Peer) {
        let address = channel.address();
        let label = address
            .rsplit_once(':')
            .map_or(address.as_str(), |(host, _)| host);
        let label = label.to_owned();
        let begun = introduction(shared, channel.as_ref());
        let Ok((first, memory)) = begun else {
            shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
            channel.close();
            return peer.close();
        };
        let session = Arc::new(Self {
            shared: Arc::clone(shared),
            channel,
            peer,
            label,
            memory,
            files: Mutex::default(),
            listed: Mutex::default(),
            next: AtomicU64::new(1),
            under_way: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            lent: AtomicBool::new(false),
        });
        session.listen(first);
        session.end();
    }

    fn listen(self: &Arc<Self>, first: u64) {
        let mut last = first;
        let mut heard = Instant::now();
        while !self.shared.is_over() && !self.broken.load(Ordering::Acquire) {
            let Ok(message) = self.channel.receive(LOOK) else {
                return;
            };
            let Some(message) = message else {
                let idle = heard.elapsed() > self.shared.limits.idle;
                if self.peer.lost().is_some() || idle && self.under_way() == 0 {
                    return;
                }
                if self.shared.stop.load(Ordering::Acquire) && self.is_through() {
                    return;
                }
                continue;
            };
            heard = Instant::now();
            let (number, request) = match Request::decode(&message) {
                // A message that comes again is one that somebody recorded.
                Ok((number, _)) if number <= last => {
                    self.answer(
                        0,
                        Err(self.violation("a request came twice, or out of order")),
                    );
                    return;
                }
                Ok(request) => request,
                Err(source) => {
                    let peer = self.label.clone();
                    self.answer(0, Err(ServiceError::Message { peer, source }));
                    return;
                }
            };
            last = number;
            self.take(number, request);
        }
    }

    /// Whether nothing of what it asked for is under way.
    fn is_through(&self) -> bool {
        let lent = self.lent.load(Ordering::Acquire);
        !lent && self.under_way() == 0 && locked(&self.files).is_empty()
    }

    fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Acquire)
    }

    fn violation(&self, what: &'static str) -> ServiceError {
        ServiceError::Protocol {
            peer: self.label.clone(),
            what,
        }
    }

    /// Does what is quick at once and hands on what moves bytes.
    fn take(self: &Arc<Self>, number: u64, request: Request) {
        let moves = matches!(
            request,
            Request::Read { .. }
                | Request::Write { .. }
                | Request::Commit { .. }
                | Request::Sums { .. }
        );
        if !moves {
            let began = Instant::now();
            let word = request.word();
            let answer = self.quick(request);
            self.shared.metrics.took(word, began.elapsed());
            return self.answer(number, answer);
        }
        let limit = self.shared.limits.requests;
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= limit {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            let what = "requests under way";
            return self.answer(number, Err(ServiceError::TooMany { what, limit }));
        }
        self.shared.pool.add(pool::Task {
            session: Arc::clone(self),
            number,
            request,
        });
    }

    /// Does what moves bytes, on a thread of the pool with a buffer of its own.
    pub(crate) fn work(&self, number: u64, request: Request, slot: Slot<'_>) {
        let began = Instant::now();
        let word = request.word();
        let answer = match request {
            Request::Read { part, sums } => self.read(&part, sums, slot),
            Request::Write { part, sums } => self.write(&part, sums, slot),
            Request::Commit { file } => self.commit(file),
            Request::Sums { name, offset, len } => self.sums(&name, offset, len),
            _ => Err(self.violation("this request moves no bytes")),
        };
        if let Err(ServiceError::Fabric(FabricError::Deadline { .. })) = &answer {
            // Its memory and this buffer may still be waited for: nothing more goes there.
            self.broken.store(true, Ordering::Release);
        }
        self.shared.metrics.took(word, began.elapsed());
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        self.answer(number, answer);
    }

    fn answer(&self, number: u64, answer: Result<Answer, ServiceError>) {
        let answer = answer.unwrap_or_else(|error| {
            self.shared.metrics.failed(error.code());
            let mut message = error.to_string();
            for (index, obstacle) in error.obstacles().iter().enumerate() {
                message.push_str(if index == 0 { ": " } else { "; " });
                message.push_str(&obstacle.summary);
            }
            Answer::Failed {
                code: error.code().to_owned(),
                message,
            }
        });
        // Whoever is gone needs no answer.
        let _ = self.channel.send(&answer.encode(number), MAX_WORK);
    }

    /// Waits for what is under way, and lets go of everything.
    fn end(&self) {
        let until = Instant::now() + MAX_WORK;
        if self.shared.stop.load(Ordering::Acquire) {
            self.answer(0, Err(ServiceError::Stopping));
        } else {
            self.peer.close();
        }
        while self.under_way() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let numbers: Vec<u32> = locked(&self.files).keys().copied().collect();
        for number in numbers {
            let _ = self.let_go(number, "given-up");
        }
        self.channel.close();
        self.peer.close();
    }
}

/// Hears the first request of a peer; its number, and the peer's memory.
fn introduction(
    shared: &Shared,
    channel: &dyn Channel,
) -> Result<(u64, RegionDescriptor), ServiceError> {
    let peer = || channel.address();
    let late = ServiceError::Deadline {
        what: "an introduction",
        after: INTRODUCTION,
    };
    let message = channel.receive(INTRODUCTION)?.ok_or(late)?;
    let (number, request) = Request::decode(&message).map_err(|source| ServiceError::Message {
        peer: peer(),
        source,
    })?;
    let Request::Begin { version, memory } = request else {
        return Err(ServiceError::Protocol {
            peer: peer(),
            what: "it did not introduce itself",
        });
    };
    let answer = Answer::Begun {
        version: VERSION,
        requests: u16::try_from(shared.limits.requests).unwrap_or(u16::MAX),
    };
    channel.send(&answer.encode(number), INTRODUCTION)?;
    match version {
        VERSION => Ok((number, *memory)),
        _ => Err(ServiceError::Protocol {
            peer: peer(),
            what: "it speaks another version",
        }),
    }
}
