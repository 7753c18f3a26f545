//! The threads of a server that move bytes: a fixed number, each with a buffer, shared by all peers so
//! that none of them can have them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Session, Shared};
use crate::service::error::ServiceError;
use crate::service::message::Request;

/// One request to work on.
pub(crate) struct Task {
    pub session: Arc<Session>,
    pub number: u64,
    pub request: Request,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    closed: bool,
}

/// The queue of the threads.
#[derive(Default)]
pub(crate) struct Pool {
    queue: Mutex<Queue>,
    changed: Condvar,
    workers: AtomicUsize,
}

impl Pool {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, task: Task) {
        self.queue().tasks.push_back(task);
        self.changed.notify_one();
    }

    /// How many threads may work for one peer at a time: one that does not take its bytes keeps
    /// others waiting for no longer than it takes to notice.
    fn most_for_one(&self) -> usize {
        self.workers.load(Ordering::Relaxed).div_ceil(2)
    }

    /// The first task of a peer that has not its share of threads yet; `None` at the end.
    fn take(&self) -> Option<Task> {
        let mut queue = self.queue();
        loop {
            let most = self.most_for_one();
            let fits = queue
                .tasks
                .iter()
                .position(|task| task.session.working.load(Ordering::Relaxed) < most);
            if let Some(task) = fits.and_then(|index| queue.tasks.remove(index)) {
                task.session.working.fetch_add(1, Ordering::Relaxed);
                return Some(task);
            }
            if queue.closed && queue.tasks.is_empty() {
                return None;
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the threads once nothing is left to do.
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_all();
    }
}

/// Starts the threads.
///
/// # Errors
/// When not even one can be had.
pub(crate) fn start(
    shared: &Arc<Shared>,
    workers: usize,
) -> Result<Vec<JoinHandle<()>>, ServiceError> {
    shared.pool.workers.store(workers, Ordering::Relaxed);
    let mut threads = Vec::new();
    for index in 0..workers {
        let shared = Arc::clone(shared);
        let body = move || {
            while let Some(task) = shared.pool.take() {
                let session = Arc::clone(&task.session);
                session.work(task.number, task.request, shared.ring.slot(index));
                session.working.fetch_sub(1, Ordering::Relaxed);
                // Another task of the same peer may have waited for this one; whoever has just found it
                // not to fit is asleep once the lock is free.
                drop(shared.pool.queue());
                shared.pool.changed.notify_one();
            }
        };
        let name = format!("crowfly-serve-{index}");
        match std::thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(_) if index > 0 => break,
            Err(source) => {
                return Err(ServiceError::Setup {
                    what: "starting a thread",
                    source,
                });
            }
        }
    }
    shared.pool.workers.store(threads.len(), Ordering::Relaxed);
    Ok(threads)
}
