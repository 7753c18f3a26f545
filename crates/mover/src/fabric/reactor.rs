//! The threads that watch all sockets of a fabric.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::conn::Conn;
use super::error::FabricError;

/// How long a thread sleeps at most before it looks whether it should end.
const NAP: Duration = Duration::from_secs(1);
const WAKE: u64 = 0;

/// One thread's sockets.
struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
    conns: Mutex<HashMap<u64, Arc<Conn>>>,
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
        let mut watches = Vec::new();
        let mut handles = Vec::new();
        for rank in 0..threads.max(1) {
            let watch = Arc::new(Watch {
                epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?,
                conns: Mutex::default(),
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

    /// Watches a connection from now on.
    pub(crate) fn watch(&self, conn: &Arc<Conn>) -> Result<(), FabricError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.watches.len().max(1);
        let Some(watch) = self.watches.get(turn) else {
            return Err(FabricError::Closed);
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        conn.attach(Attachment {
            watch: Arc::clone(watch),
            id,
        });
        watch.locked().insert(id, Arc::clone(conn));
        let data = epoll::EventData::new_u64(id);
        epoll::add(&watch.epoll, conn.socket(), data, epoll::EventFlags::IN)
            .map_err(|error| FabricError::setup("watching a socket", error))?;
        conn.rearm();
        Ok(())
    }

    /// Ends the threads; nothing is watched any more.
    pub(crate) fn stop(&self) {
        for watch in &self.watches {
            watch.stop.store(true, Ordering::Release);
            let _ = rustix::io::write(&watch.wake, &1u64.to_ne_bytes());
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        for watch in &self.watches {
            watch.locked().clear();
        }
    }
}

/// How a connection reaches the thread that watches it.
pub(crate) struct Attachment {
    watch: Arc<Watch>,
    id: u64,
}

impl Attachment {
    /// Asks to be told, or no longer, when the socket takes more bytes.
    pub(crate) fn want_room(&self, conn: &Conn, wanted: bool) {
        let mut flags = epoll::EventFlags::IN;
        if wanted {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(self.id);
        // A socket that is no longer watched is one that broke.
        let _ = epoll::modify(&self.watch.epoll, conn.socket(), data, flags);
    }

    pub(crate) fn detach(&self, conn: &Conn) {
        let _ = epoll::delete(&self.watch.epoll, conn.socket());
        self.watch.locked().remove(&self.id);
    }
}

impl Watch {
    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Conn>>> {
        self.conns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let nap = Timespec {
            tv_sec: NAP.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let mut events = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            events.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&nap),
            );
            if waited.is_err() {
                continue;
            }
            for event in &events {
                let id = event.data.u64();
                let Some(conn) = self.locked().get(&id).map(Arc::clone) else {
                    continue;
                };
                conn.ready(event.flags);
            }
        }
    }
}
