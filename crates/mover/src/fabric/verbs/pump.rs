//! The thread that fetches the completions of one port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_machine::usage;
use crowfly_machine::verbs::Completion;
use crowfly_route::receipt::CpuSeconds;
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::link::VerbsLink;
use super::lock;

/// How long the thread looks for completions before it sleeps: about what it takes to wake up.
const SPIN: Duration = Duration::from_micros(50);

/// How long it goes on before it looks whether links were added or removed.
const ROUND: Duration = Duration::from_millis(10);

/// The thread, which ends when the port and all its links are gone.
pub(super) struct Pump {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    links: Vec<Weak<VerbsLink>>,
    /// Links that were closed and may have something left to tell.
    closed: Vec<Arc<VerbsLink>>,
    stop: bool,
}

impl Pump {
    pub(super) fn start(nic: &str) -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: rustix::event::eventfd(0, flags)?,
        });
        let thread = std::thread::Builder::new()
            .name(format!("verbs {nic}"))
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run()
            })?;
        Ok(Arc::new(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Has the thread look at its links anew.
    pub(super) fn wake(&self) {
        self.shared.wake();
    }

    /// Fetches the completions of this link from now on, until it is gone.
    pub(super) fn serve(&self, link: &Arc<VerbsLink>) {
        lock(&self.shared.state).links.push(Arc::downgrade(link));
        self.shared.wake();
    }
}

impl Pump {
    /// Has the thread tell what a closed link has left to tell.
    pub(super) fn finish(&self, link: Arc<VerbsLink>) {
        lock(&self.shared.state).closed.push(link);
        self.shared.wake();
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake();
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        // The last link may be let go of by the thread itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The links there are; `None` when the thread is to end.
    fn links(&self) -> Option<Vec<Arc<VerbsLink>>> {
        let mut state = lock(&self.state);
        state.links.retain(|link| link.strong_count() > 0);
        (!state.stop).then(|| state.links.iter().filter_map(Weak::upgrade).collect())
    }

    fn run(&self) {
        let mut completions = Vec::new();
        let mut paid = usage::this_thread();
        while let Some(links) = self.links() {
            let closed = std::mem::take(&mut lock(&self.state).closed);
            closed.iter().for_each(|link| link.tell_late());
            drop(closed);
            let mut busy = vec![0u32; links.len()];
            look(&links, &mut busy, &mut completions);
            // What was used up to here goes to the links that had work, in equal parts.
            let now = usage::this_thread();
            let spent = CpuSeconds {
                user: now.user - paid.user,
                system: now.system - paid.system,
            };
            paid = now;
            charge(&links, &busy, spent);
            self.sleep(links, &mut completions);
        }
    }

    /// Sleeps until a completion comes or the links change, unless a completion is there already.
    fn sleep(&self, links: Vec<Arc<VerbsLink>>, completions: &mut Vec<Completion>) {
        let mut any = false;
        for link in &links {
            link.arm();
            // What came before arming causes no event.
            any |= link.progress(completions) > 0;
        }
        if any {
            return;
        }
        // Asleep, the thread must not keep alive a link that everybody else has let go of.
        let queues: Vec<_> = links.iter().map(|link| Arc::clone(link.queue())).collect();
        drop(links);
        let sources = queues.iter().filter_map(|queue| queue.event_source());
        let mut polled: Vec<PollFd<'_>> = std::iter::once(self.wake.as_fd())
            .chain(sources)
            .map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = rustix::event::poll(&mut polled, None);
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        for queue in &queues {
            let _ = queue.wait(Duration::ZERO);
        }
    }
}

/// Fetches completions until there were none for [`SPIN`], or for [`ROUND`].
fn look(links: &[Arc<VerbsLink>], busy: &mut [u32], completions: &mut Vec<Completion>) {
    let started = Instant::now();
    let mut since = started;
    loop {
        let mut any = false;
        for (link, busy) in links.iter().zip(&mut *busy) {
            let count = link.progress(completions);
            *busy = busy.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            any |= count > 0;
        }
        if any {
            since = Instant::now();
            if started.elapsed() >= ROUND {
                return;
            }
        } else if since.elapsed() >= SPIN {
            return;
        } else {
            // The work that is waited for may need this core, or its sibling's share of it.
            std::hint::spin_loop();
            std::thread::yield_now();
        }
    }
}

fn charge(links: &[Arc<VerbsLink>], busy: &[u32], spent: CpuSeconds) {
    let working = busy.iter().filter(|count| **count > 0).count();
    if working == 0 {
        return;
    }
    let part = 1.0 / working as f64;
    for (link, _) in links.iter().zip(busy).filter(|(_, count)| **count > 0) {
        link.charge(CpuSeconds {
            user: spent.user * part,
            system: spent.system * part,
        });
    }
}
