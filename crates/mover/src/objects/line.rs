//! What ends all that is asked for one copy when nobody wants the answers any more: requests to a store, to
//! whoever gives its key, and commands.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ureq::Agent;

/// What asks, until it is told to hang up.
#[derive(Default)]
pub(super) struct Line {
    over: AtomicBool,
    agents: Mutex<Agents>,
}

#[derive(Default)]
struct Agents {
    asking: BTreeMap<u64, Agent>,
    next: u64,
}

/// What an agent asks while this is held ends when the line is hung up.
pub(super) struct Call<'l> {
    line: &'l Line,
    number: u64,
}

impl Line {
    /// One by which this agent asks for as long as there is any.
    pub(super) fn of(agent: &Agent) -> Self {
        let line = Self::default();
        line.carries(agent);
        line
    }

    fn agents(&self) -> MutexGuard<'_, Agents> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carries(&self, agent: &Agent) -> u64 {
        let mut agents = self.agents();
        let number = agents.next;
        agents.next += 1;
        agents.asking.insert(number, agent.clone());
        drop(agents);
        // Whoever hung up meanwhile may not have seen it.
        if self.is_over() {
            self.hang_up();
        }
        number
    }

    pub(super) fn call(&self, agent: &Agent) -> Call<'_> {
        let number = self.carries(agent);
        Call { line: self, number }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends what is under way, and lets nothing begin.
    pub(super) fn hang_up(&self) {
        self.over.store(true, Ordering::Release);
        let agents = std::mem::take(&mut self.agents().asking);
        agents.into_values().for_each(Agent::shutdown);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.line.agents().asking.remove(&self.number);
    }
}

impl Call<'_> {
    /// Whether nobody wants the answer any more.
    pub(super) fn is_over(&self) -> bool {
        self.line.is_over()
    }
}

/// Why what was asked for has no answer.
pub(super) fn called_back() -> io::Error {
    io::Error::other("it was called back")
}
