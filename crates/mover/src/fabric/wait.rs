//! A caller that waits for an end, and may watch connections meanwhile.

use std::cell::OnceCell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

/// What wakes a thread that sleeps while it watches connections.
#[derive(Debug)]
pub(crate) struct Kick {
    fd: OwnedFd,
    thread: ThreadId,
}

impl Kick {
    /// The calling thread's; `None` where there is no descriptor for it.
    pub(crate) fn own() -> Option<Arc<Self>> {
        thread_local! {
            static OWN: OnceCell<Option<Arc<Kick>>> = const { OnceCell::new() };
        }
        let make = || {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            let thread = std::thread::current().id();
            Some(Arc::new(Self { fd, thread }))
        };
        OWN.with(|own| own.get_or_init(make).clone())
    }

    /// Wakes the thread, unless that is the one that calls.
    pub(crate) fn wake(&self) {
        if std::thread::current().id() != self.thread {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

/// What a caller waits for.
pub struct Wait<'a> {
    pub(crate) over: &'a dyn Fn() -> bool,
    pub(crate) until: Option<Instant>,
    /// Whether it is the peer that brings the end about by itself, and not the end of an op of this side.
    pub(crate) inbound: bool,
    /// What the caller is woken by when the end has come by other means than its own.
    pub(crate) kick: Arc<Kick>,
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wait(over: {}, until: {:?})", self.is_over(), self.until)
    }
}

/// Who can move bytes in the thread of a caller that waits for what peers do.
pub(crate) trait Bystander: Send + Sync {
    /// May return before the wait is over.
    fn attend(&self, wait: &Wait<'_>);
}

impl Wait<'_> {
    /// Whether the end has come.
    pub fn is_over(&self) -> bool {
        (self.over)()
    }

    /// The time after which the caller goes on without it; `None` when it does not.
    pub fn left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Becomes readable when the end came by other means than this thread's own.
    pub fn kick(&self) -> BorrowedFd<'_> {
        self.kick.fd.as_fd()
    }

    /// Makes what was readable unreadable again.
    pub fn took_note(&self) {
        let _ = rustix::io::read(&self.kick.fd, &mut [0u8; 8]);
    }
}
