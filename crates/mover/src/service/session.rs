//! What a server does for one peer.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_route::policy::Policy;

use super::account::{Doing, Legs};
use super::channel::Channel;
use super::error::ServiceError;
use super::exports::{Exports, Exposed, Found, tag};
use super::limits::{INTRODUCTION, LOOK, Limits, MAX_PAGE, MAX_RANGES, MAX_WORK, PART};
use super::message::{Answer, Entry, Part, Request, VERSION};
use super::metrics::Metrics;
use super::name::{Name, RelativePath};
use super::partial::{Partial, Plan};
use super::ring::{Ring, Slot, sums_of};
use crate::engine::since;
use crate::fabric::{FabricError, Options, Peer, RegionDescriptor};
use crate::pass;
use crate::source::Source;

pub(crate) mod pool;

/// What all sessions of a server share.
pub(crate) struct Shared {
    pub exports: Exports,
    pub metrics: Arc<Metrics>,
    pub limits: Limits,
    pub ring: Ring,
    pub pool: pool::Pool,
    pub totals: Legs,
    pub stop: AtomicBool,
}

/// A file that a peer has open.
enum Open {
    Reading {
        source: Box<Source>,
        policy: Policy,
        legs: Legs,
    },
    Writing {
        partial: RwLock<Option<Partial>>,
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
        });
        session.listen(first);
        session.end();
    }

    fn listen(self: &Arc<Self>, first: u64) {
        let mut last = first;
        let mut heard = Instant::now();
        while !self.shared.stop.load(Ordering::Acquire) && !self.broken.load(Ordering::Acquire) {
            let Ok(message) = self.channel.receive(LOOK) else {
                return;
            };
            let Some(message) = message else {
                let idle = heard.elapsed() > self.shared.limits.idle;
                if self.peer.lost().is_some() || idle && self.under_way() == 0 {
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
            Answer::Failed {
                code: error.code().to_owned(),
                message: error.to_string(),
            }
        });
        // Whoever is gone needs no answer.
        let _ = self.channel.send(&answer.encode(number), MAX_WORK);
    }

    fn quick(&self, request: Request) -> Result<Answer, ServiceError> {
        match request {
            Request::Open { name, path, policy } => self.open(&name, &path, policy),
            Request::List { name, path, after } => self.list(name, path, &after),
            Request::Create {
                name,
                path,
                size,
                tag,
                resume,
                policy,
            } => {
                let Exposed::Folder(folder) = self.shared.exports.get(&name)? else {
                    return Err(ServiceError::ReadOnly {
                        path: name.to_string(),
                    });
                };
                self.room()?;
                let (at, file) = folder.folder_for(&path)?;
                let partial = Partial::begin(Plan {
                    folder: at,
                    name: file,
                    shown: format!("{name}/{path}"),
                    length: size,
                    tag,
                    resume,
                    policy: of_storage(policy),
                })?;
                let mut have = partial.have();
                have.truncate(MAX_RANGES);
                let file = self.keep(Open::Writing {
                    partial: RwLock::new(Some(partial)),
                    resume,
                    policy,
                    legs: Legs::default(),
                });
                Ok(Answer::Created { file, have })
            }
            Request::Close { file } => self.close(file),
            _ => Err(self.violation("it introduced itself twice")),
        }
    }

    fn open(
        &self,
        name: &Name,
        path: &RelativePath,
        policy: Policy,
    ) -> Result<Answer, ServiceError> {
        let found = match self.shared.exports.get(name)? {
            Exposed::File(file) if path.is_empty() => Found::File(Box::new(Source::open(file)?)),
            Exposed::Memory(region) if path.is_empty() => {
                return Ok(Answer::Memory(Box::new(region.descriptor().clone())));
            }
            Exposed::File(_) | Exposed::Memory(_) => {
                return Err(ServiceError::NotFound {
                    path: format!("{name}/{path}"),
                });
            }
            Exposed::Folder(folder) => folder.find(path)?,
        };
        let Found::File(source) = found else {
            return Ok(Answer::Folder);
        };
        self.room()?;
        let (size, tag) = (source.size(), tag(&source.stamp()));
        let file = self.keep(Open::Reading {
            source,
            policy,
            legs: Legs::default(),
        });
        Ok(Answer::File { file, size, tag })
    }

    fn room(&self) -> Result<(), ServiceError> {
        let limit = self.shared.limits.files;
        match locked(&self.files).len() < limit {
            true => Ok(()),
            false => Err(ServiceError::TooMany {
                what: "open files",
                limit,
            }),
        }
    }

    fn keep(&self, open: Open) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) as u32;
        locked(&self.files).insert(number, Arc::new(open));
        self.shared.metrics.files.fetch_add(1, Ordering::Relaxed);
        number
    }

    fn file(&self, number: u32) -> Result<Arc<Open>, ServiceError> {
        let open = locked(&self.files).get(&number).cloned();
        open.ok_or_else(|| self.violation("it has no such file open"))
    }

    /// Lets go of a file, with its account.
    fn let_go(&self, number: u32, outcome: &'static str) -> Result<Arc<Open>, ServiceError> {
        let open = locked(&self.files).remove(&number);
        let open = open.ok_or_else(|| self.violation("it has no such file open"))?;
        self.shared.metrics.files.fetch_sub(1, Ordering::Relaxed);
        self.shared.metrics.ended(open.direction(), outcome);
        for leg in open.legs().all() {
            self.shared.totals.add(leg);
        }
        Ok(open)
    }

    fn list(&self, name: Name, path: RelativePath, after: &str) -> Result<Answer, ServiceError> {
        let Exposed::Folder(folder) = self.shared.exports.get(&name)? else {
            return Err(ServiceError::WrongKind {
                path: name.to_string(),
                found: "no folder",
                wanted: "one",
            });
        };
        let mut listed = locked(&self.listed);
        let known = listed.as_ref().filter(|_| !after.is_empty());
        if known.is_none_or(|known| (&known.name, &known.path) != (&name, &path)) {
            let (entries, skipped) = folder.list(&path)?;
            *listed = Some(Listed {
                name,
                path,
                entries,
                skipped,
            });
        }
        let (entries, skipped) = match listed.as_ref() {
            Some(listed) => (listed.entries.as_slice(), listed.skipped),
            None => (&[][..], 0),
        };
        let start = entries.partition_point(|entry| entry.name.as_str() <= after);
        let mut bytes = 0;
        let rest = entries.get(start..).unwrap_or_default();
        let fits = rest.iter().take_while(|entry| {
            const BESIDES: usize = 1 + 8 + 2;
            bytes += entry.name.len() + BESIDES;
            bytes <= MAX_PAGE
        });
        let page: Vec<Entry> = fits.cloned().collect();
        let more = page.len() < rest.len();
        if !more {
            *listed = None;
        }
        Ok(Answer::Entries {
            entries: page,
            more,
            skipped,
        })
    }

    /// The bytes of a part, inside of a file of `size` bytes and of the peer's memory.
    fn range(&self, part: &Part, size: u64) -> Result<Range<u64>, ServiceError> {
        let end = part.offset.checked_add(u64::from(part.len));
        let there = part.at.checked_add(u64::from(part.len));
        let fits =
            end.is_some_and(|end| end <= size) && there.is_some_and(|end| end <= self.memory.len());
        let whole = part.offset.is_multiple_of(PART) && u64::from(part.len) <= PART;
        match end {
            Some(end) if fits && whole => Ok(part.offset..end),
            _ => Err(self.violation("a part lies outside of its file, its memory or the grid")),
        }
    }

    fn options(part: &Part, policy: Policy) -> Options {
        let within = Duration::from_millis(u64::from(part.within_ms)).min(MAX_WORK);
        Options::within(within).by(policy)
    }

    fn read(&self, part: &Part, sums: bool, slot: Slot<'_>) -> Result<Answer, ServiceError> {
        let open = self.file(part.file)?;
        let Open::Reading {
            source,
            policy,
            legs,
        } = &*open
        else {
            return Err(self.violation("the file is open for writing"));
        };
        let range = self.range(part, source.size())?;
        let there = self.memory.slice(part.at..part.at + u64::from(part.len))?;
        let len = part.len as usize;
        let ledger = pass::read(source, range, &slot.spot(), of_storage(*policy))?;
        source.unchanged()?;
        legs.stored(Doing::Reading, ledger);
        let sums = match sums {
            true => hashed(&slot, len, legs, Doing::Reading),
            false => Vec::new(),
        };
        let options = Self::options(part, *policy);
        let delivery = self.peer.write(&slot.local(len)?, &there, options).wait()?;
        self.shared
            .metrics
            .moved(&self.label, &delivery.receipt.shares, SENT);
        legs.crossed(delivery);
        Ok(Answer::Sums(sums))
    }

    fn write(&self, part: &Part, sums: Vec<u64>, slot: Slot<'_>) -> Result<Answer, ServiceError> {
        let open = self.file(part.file)?;
        let Open::Writing {
            partial,
            resume,
            policy,
            legs,
        } = &*open
        else {
            return Err(self.violation("the file is open for reading"));
        };
        let partial = partial.read().unwrap_or_else(PoisonError::into_inner);
        let partial = partial
            .as_ref()
            .ok_or_else(|| self.violation("the file is finished"))?;
        let range = self.range(part, partial.length())?;
        let there = self.memory.slice(part.at..part.at + u64::from(part.len))?;
        let len = part.len as usize;
        let options = Self::options(part, *policy);
        let delivery = self.peer.read(&slot.local(len)?, &there, options).wait()?;
        self.shared
            .metrics
            .moved(&self.label, &delivery.receipt.shares, RECEIVED);
        legs.crossed(delivery);
        let found = match *resume || !sums.is_empty() {
            true => hashed(&slot, len, legs, Doing::Writing),
            false => Vec::new(),
        };
        if !sums.is_empty() {
            same(partial.shown(), range.start, &sums, &found)?;
        }
        let ledger = partial.write(range, &slot.spot(), &found)?;
        legs.stored(Doing::Writing, ledger);
        Ok(Answer::Sums(found))
    }

    fn commit(&self, number: u32) -> Result<Answer, ServiceError> {
        let open = self.file(number)?;
        let Open::Writing { partial, .. } = &*open else {
            return Err(self.violation("the file is open for reading"));
        };
        // Behind whatever is still being written to it.
        let mut partial = partial.write().unwrap_or_else(PoisonError::into_inner);
        let finished = partial
            .take()
            .ok_or_else(|| self.violation("the file is finished"))?;
        let digest = finished.digest();
        let published = finished.publish();
        let open = self.let_go(number, if published.is_ok() { "whole" } else { "failed" })?;
        published?;
        Ok(Answer::Account {
            digest,
            legs: open.legs().to_json(),
        })
    }

    fn close(&self, number: u32) -> Result<Answer, ServiceError> {
        let unchanged = match &*self.file(number)? {
            Open::Reading { source, .. } => source.unchanged(),
            Open::Writing { .. } => Ok(()),
        };
        let outcome = match (&unchanged, &*self.file(number)?) {
            (Ok(()), Open::Reading { source, legs, .. }) => {
                match source.size() > 0 && legs.all().is_empty() {
                    true => "looked-at",
                    false => "read",
                }
            }
            (Ok(()), Open::Writing { .. }) => "given-up",
            _ => "failed",
        };
        let open = self.let_go(number, outcome)?;
        unchanged?;
        Ok(Answer::Account {
            digest: None,
            legs: open.legs().to_json(),
        })
    }

    fn sums(&self, name: &Name, offset: u64, len: u32) -> Result<Answer, ServiceError> {
        let Exposed::Memory(region) = self.shared.exports.get(name)? else {
            return Err(ServiceError::WrongKind {
                path: name.to_string(),
                found: "no memory",
                wanted: "memory",
            });
        };
        let inside = offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= region.len() as u64);
        if !inside || u64::from(len) > PART || !offset.is_multiple_of(PART) {
            return Err(self.violation("a part lies outside of the memory or the grid"));
        }
        Ok(Answer::Sums(sums_of(region, offset, len)))
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

/// The checksums of what lies in a buffer, whose making is part of a leg.
pub(crate) fn hashed(slot: &Slot<'_>, len: usize, legs: &Legs, doing: Doing) -> Vec<u64> {
    let cpu = usage::this_thread();
    let sums = slot.sums(len);
    legs.worked(doing, since(cpu));
    sums
}

/// Compares checksums of the pieces of a part that starts at `offset`.
pub(crate) fn same(
    path: &str,
    offset: u64,
    left: &[u64],
    arrived: &[u64],
) -> Result<(), ServiceError> {
    if left == arrived {
        return Ok(());
    }
    let mut pairs = left.iter().zip(arrived).enumerate();
    let differs = pairs.find(|(_, (left, arrived))| left != arrived);
    let (index, expected, found) = match differs {
        Some((index, (left, arrived))) => (index, *left, *arrived),
        None => (left.len().min(arrived.len()), 0, 0),
    };
    Err(ServiceError::Differs {
        path: path.to_owned(),
        offset: offset + index as u64 * crate::digest::GRID,
        expected,
        found,
    })
}
