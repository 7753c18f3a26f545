//! The threads that watch all sockets of a fabric.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::conn::{Conn, LINGER, Left};
use super::error::FabricError;
use super::vigil::{Spell, Vigil};

/// How long a thread sleeps at most before it looks whether it should end.
const NAP: Duration = Duration::from_secs(1);
const WAKE: u64 = 0;
/// Looks at connections that something happened to, between two at all of them.
const LOOKS: u32 = 16;
/// The most of those.
const MAX_LIVELY: usize = 4;
/// Looks after connections that a caller watches, before it counts as one that will for long.
const PATIENCE: u32 = 20;

/// One thread's sockets.
struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
    conns: Mutex<HashMap<u64, Arc<Conn>>>,
    /// Connections that callers left to nobody, and how often each was found with a caller since.
    left: Mutex<Vec<(Arc<Conn>, u32)>>,
    vigil: Arc<Vigil>,
    stop: AtomicBool,
}

/// The threads that watch all sockets of a fabric.
pub(crate) struct Reactor {
    watches: Vec<Arc<Watch>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
    turn: AtomicUsize,
}

impl Reactor {
    pub(crate) fn start(threads: usize) -> Result<Arc<Self>, FabricError> {
        let failed = |error: rustix::io::Errno| FabricError::setup("watching sockets", error);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let vigil = Arc::new(Vigil::new(cores));
        let mut watches = Vec::new();
        let mut handles = Vec::new();
        for rank in 0..threads.max(1) {
            let watch = Arc::new(Watch {
                epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?,
                conns: Mutex::default(),
                left: Mutex::default(),
                vigil: Arc::clone(&vigil),
                stop: AtomicBool::new(false),
            });
            let data = epoll::EventData::new_u64(WAKE);
            epoll::add(&watch.epoll, &watch.wake, data, epoll::EventFlags::IN).map_err(failed)?;
            let body = Arc::clone(&watch);
            let thread = std::thread::Builder::new()
                .name(format!("crowfly-net-{rank}"))
                .spawn(move || body.run())
                .map_err(|error| FabricError::setup("starting a thread", error))?;
            watches.push(watch);
            handles.push(thread);
        }
        Ok(Arc::new(Self {
            watches,
            threads: Mutex::new(handles),
            next: AtomicU64::new(WAKE + 1),
            turn: AtomicUsize::new(0),
        }))
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.watches.len()
    }

    /// Watches a connection from now on.
    pub(crate) fn watch(&self, conn: &Arc<Conn>) -> Result<(), FabricError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.watches.len().max(1);
        let Some(watch) = self.watches.get(turn) else {
            return Err(FabricError::Closed);
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        watch.locked().insert(id, Arc::clone(conn));
        let data = epoll::EventData::new_u64(id);
        if let Err(error) = epoll::add(&watch.epoll, conn.socket(), data, epoll::EventFlags::IN) {
            watch.locked().remove(&id);
            return Err(FabricError::setup("watching a socket", error));
        }
        // Only now can it be asked to be told of more.
        conn.attach(Attachment {
            watch: Arc::clone(watch),
            id,
        });
        conn.rearm();
        Ok(())
    }

    /// Ends the threads; nothing is watched any more.
    pub(crate) fn stop(&self) {
        for watch in &self.watches {
            watch.stop.store(true, Ordering::Release);
            watch.kick();
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        for watch in &self.watches {
            watch.locked().clear();
            watch.left().clear();
        }
    }
}

/// How a connection reaches the thread that watches it.
pub(crate) struct Attachment {
    watch: Arc<Watch>,
    id: u64,
}

impl Attachment {
    /// Asks to be told of this about the connection, instead of what was asked for before.
    pub(crate) fn tell_of(&self, conn: &Conn, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(self.id);
        // A socket that is no longer watched is one that broke.
        let _ = epoll::modify(&self.watch.epoll, conn.socket(), data, flags);
    }

    /// Whether threads may look for what is about to come.
    pub(crate) fn vigil(&self) -> &Vigil {
        &self.watch.vigil
    }

    /// Has a connection that was left to nobody watched again if it stays so.
    pub(crate) fn look_after(&self, conn: &Arc<Conn>) {
        let mut left = self.watch.left();
        if left.iter().any(|(known, _)| Arc::ptr_eq(known, conn)) {
            return;
        }
        let asleep = left.is_empty();
        left.push((Arc::clone(conn), 0));
        drop(left);
        if asleep {
            self.watch.kick();
        }
    }

    pub(crate) fn detach(&self, conn: &Conn) {
        let _ = epoll::delete(&self.watch.epoll, conn.socket());
        self.watch.locked().remove(&self.id);
    }
}

impl Watch {
    fn locked(&self) -> MutexGuard<'_, HashMap<u64, Arc<Conn>>> {
        self.conns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Vec<(Arc<Conn>, u32)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn run(&self) {
        let mut turn = Turn {
            events: Vec::with_capacity(64),
            since: Instant::now(),
            spell: None,
            lively: Vec::new(),
        };
        let (mut nap, mut looks) = (NAP, 0);
        let mut looked_after = turn.since;
        while !self.stop.load(Ordering::Acquire) {
            let moved = if turn.spell.is_some() && looks < LOOKS {
                looks += 1;
                turn.look()
            } else {
                looks = 0;
                self.await_events(&mut turn, nap)
            };
            turn.spell = match (turn.spell, moved) {
                (_, true) => self.vigil.spell(Instant::now()),
                (Some(spell), false) => spell.on(&self.vigil),
                (None, false) => None,
            };
            if turn.spell.is_none() {
                turn.lively.clear();
            }
            let now = turn.spell.map_or_else(Instant::now, Spell::looked);
            if turn.spell.is_none() || now.saturating_duration_since(looked_after) >= LINGER {
                nap = self.look_after();
                looked_after = now;
            }
        }
    }

    /// Waits for events, unless it is a time to look only; whether bytes came or went.
    fn await_events(&self, turn: &mut Turn, nap: Duration) -> bool {
        let time = match turn.spell {
            Some(_) => Duration::ZERO,
            None => nap,
        };
        turn.events.clear();
        let waited = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut turn.events),
            Timespec::try_from(time).ok().as_ref(),
        );
        if turn.spell.is_none() {
            // It slept.
            turn.since = Instant::now();
        }
        if waited.is_err() || turn.events.is_empty() {
            return false;
        }
        turn.lively.clear();
        let mut moved = false;
        for event in &turn.events {
            let id = event.data.u64();
            if id == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                continue;
            }
            let conn = self.locked().get(&id).map(Arc::clone);
            if let Some(conn) = conn {
                moved |= conn.work(event.flags, &mut turn.since);
                if turn.lively.len() < MAX_LIVELY {
                    turn.lively.push(conn);
                }
            }
        }
        moved
    }

    /// Watches connections again that nobody came back to; how long the thread may sleep then.
    fn look_after(&self) -> Duration {
        let mut left = self.left();
        left.retain_mut(|(conn, found)| match conn.looked_after() {
            _ if conn.is_broken() => false,
            Left::Reactor => false,
            Left::Nobody => {
                *found = 0;
                true
            }
            Left::Caller => {
                *found += 1;
                *found < PATIENCE
            }
        });
        if left.is_empty() { NAP } else { LINGER }
    }
}

/// What a thread of the reactor is about.
struct Turn {
    events: Vec<epoll::Event>,
    /// The end of what the last connection was charged for.
    since: Instant,
    spell: Option<Spell>,
    /// The connections that something last happened to: who looks without sleep asks them first.
    lively: Vec<Arc<Conn>>,
}

impl Turn {
    /// Looks at the connections that something last happened to; whether bytes came or went.
    fn look(&mut self) -> bool {
        let mut moved = false;
        for conn in self.lively.iter().filter(|conn| conn.is_the_reactors()) {
            moved |= conn.work(epoll::EventFlags::IN, &mut self.since);
        }
        moved
    }
}
