//! What listeners do when the process, or the machine, has nothing left to take a connection with: they say
//! so, wait for a little, and go on once there is something again.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// How long a shortage is told at the least: one that turned somebody away may be over at once.
const TOLD: Duration = Duration::from_secs(1);

/// Why no connections are taken at the moment, if they are not.
#[derive(Debug, Default)]
pub(crate) struct Entrance(Mutex<Option<Shortage>>);

#[derive(Debug)]
struct Shortage {
    why: Arc<io::Error>,
    /// When somebody was last turned away, or kept waiting.
    last: Instant,
    /// Whether somebody was let in since, or nobody waited.
    over: bool,
}

/// What a listener does after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait until somebody comes.
    Listen,
    /// Try again after a pause: the one who waits cannot be let in now, and would be told of at once.
    Pause,
}

impl Entrance {
    fn known(&self) -> MutexGuard<'_, Option<Shortage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was taken.
    pub(crate) fn took(&self) {
        if let Some(shortage) = self.known().as_mut() {
            shortage.over = true;
        }
    }

    /// Taking a connection, or what belongs to it, failed.
    pub(crate) fn failed(&self, error: io::Error) -> Next {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                *self.known() = Some(Shortage {
                    why: Arc::new(error),
                    last: Instant::now(),
                    over: false,
                });
                Next::Pause
            }
            // The kernel looks for a descriptor first: there is one, and nobody waits.
            Some(Errno::AGAIN) => {
                self.took();
                Next::Listen
            }
            // Whoever came has gone.
            _ => Next::Listen,
        }
    }

    /// Why no connections are taken at the moment.
    pub(crate) fn shortage(&self) -> Option<Arc<io::Error>> {
        self.shortage_at(Instant::now())
    }

    fn shortage_at(&self, now: Instant) -> Option<Arc<io::Error>> {
        let known = self.known();
        let shortage = known.as_ref()?;
        let told = now.saturating_duration_since(shortage.last) >= TOLD;
        (!shortage.over || !told).then(|| Arc::clone(&shortage.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_nothing_left_to_take_connections_with_it_is_said_until_there_is_and_for_a_while() {
        let entrance = Entrance::default();
        let said = |later: Duration| {
            let error = entrance.shortage_at(Instant::now() + later);
            error.and_then(|error| error.raw_os_error())
        };
        assert_eq!(said(Duration::ZERO), None);
        for short in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let why = Some(short.raw_os_error());
            assert_eq!(entrance.failed(short.into()), Next::Pause);
            assert_eq!(entrance.failed(Errno::CONNABORTED.into()), Next::Listen);
            assert_eq!(said(2 * TOLD), why, "nobody was let in");
            match short {
                Errno::MFILE => entrance.took(),
                _ => assert_eq!(entrance.failed(Errno::AGAIN.into()), Next::Listen),
            }
            assert_eq!(
                said(Duration::ZERO),
                why,
                "whoever looks now and then hears of it"
            );
            assert_eq!(said(TOLD), None);
        }
    }
}
