//! The threads that copy for the `shm` path.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::error::FabricError;
use super::memory::{Duo, second};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    stopped: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    more: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state();
            } else if state.stopped {
                return;
            } else {
                state = self
                    .more
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// The threads that copy for the `shm` path.
pub(crate) struct Copier {
    second: Arc<Duo>,
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Copier {
    pub(crate) fn start(threads: usize) -> Result<Arc<Self>, FabricError> {
        let failed = |error| FabricError::setup("starting a thread", error);
        let queue = Arc::new(Queue::default());
        let mut handles = Vec::new();
        for rank in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            let thread = std::thread::Builder::new()
                .name(format!("crowfly-copy-{rank}"))
                .spawn(move || queue.work())
                .map_err(failed)?;
            handles.push(thread);
        }
        let (second, thread) = second().map_err(failed)?;
        handles.extend(thread);
        Ok(Arc::new(Self {
            second,
            queue,
            threads: Mutex::new(handles),
        }))
    }

    /// A second core for copies that the asking thread does itself.
    pub(crate) fn second(&self) -> &Duo {
        &self.second
    }

    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) {
        self.queue.state().jobs.push_back(Box::new(job));
        self.queue.more.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.queue.state().stopped = true;
        self.queue.more.notify_all();
        self.second.stop();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
