//! What listeners do when the process, or the machine, has nothing left to take a connection with: they say
//! so, wait for a little, and go on once there is something again.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

/// Why no connections are taken at the moment, if they are not.
#[derive(Debug, Default)]
pub(crate) struct Entrance(Mutex<Option<Arc<io::Error>>>);

/// What a listener does after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait until somebody comes.
    Listen,
    /// Try again after a pause: the one who waits cannot be let in now, and would be told of at once.
    Pause,
}

impl Entrance {
    /// A connection was taken.
    pub(crate) fn took(&self) {
        self.is(None);
    }

    /// Taking a connection, or what belongs to it, failed.
    pub(crate) fn failed(&self, error: io::Error) -> Next {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.is(Some(error));
                Next::Pause
            }
            // The kernel looks for a descriptor first: there is one, and nobody waits.
            Some(Errno::AGAIN) => {
                self.is(None);
                Next::Listen
            }
            // Whoever came has gone.
            _ => Next::Listen,
        }
    }

    fn is(&self, shortage: Option<io::Error>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = shortage.map(Arc::new);
    }

    /// Why no connections are taken at the moment.
    pub(crate) fn shortage(&self) -> Option<Arc<io::Error>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_nothing_left_to_take_connections_with_it_is_said_until_there_is() {
        let entrance = Entrance::default();
        let said = || entrance.shortage().and_then(|error| error.raw_os_error());
        for short in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(entrance.failed(short.into()), Next::Pause);
            assert_eq!(said(), Some(short.raw_os_error()));
            assert_eq!(entrance.failed(Errno::CONNABORTED.into()), Next::Listen);
            assert_eq!(said(), Some(short.raw_os_error()), "nobody was let in");
            match short {
                Errno::MFILE => entrance.took(),
                _ => assert_eq!(entrance.failed(Errno::AGAIN.into()), Next::Listen),
            }
            assert_eq!(said(), None);
        }
    }
}
