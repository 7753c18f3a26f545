//! Connections that have not said yet who they are. There is room for a fixed number of them. When it
//! is full, the next one still comes in: whoever has said nothing for longest is shown out, of those
//! that come from where most do. So neither many silent connections nor many from one place keep out
//! those that do say who they are.

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{Shutdown, shutdown};

/// Connections that may be inside for each one that there is room for: those that said who they are and
/// are still being welcomed, and those that were shown out and have not noticed.
const INSIDE_PER_PLACE: usize = 4;

/// One connection: another handle of its socket, to show it out by.
struct Stranger {
    number: u64,
    source: Option<IpAddr>,
    socket: OwnedFd,
}

#[derive(Default)]
struct Waiting {
    /// The oldest first.
    strangers: Vec<Stranger>,
    next: u64,
    inside: usize,
}

/// The connections that have not said who they are.
pub(crate) struct Strangers {
    room: usize,
    waiting: Mutex<Waiting>,
}

/// A connection that was let in. Dropping it makes room.
pub(crate) struct Admitted {
    strangers: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    pub(crate) fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            room: room.max(1),
            waiting: Mutex::default(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in that came from `source`; without an address it came from this machine.
    ///
    /// # Errors
    /// When its socket cannot be told apart by another handle, or too many are still inside.
    pub(crate) fn admit(
        self: &Arc<Self>,
        socket: BorrowedFd<'_>,
        source: Option<IpAddr>,
    ) -> io::Result<Admitted> {
        let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0)?;
        let mut waiting = self.waiting();
        if waiting.inside >= self.room.saturating_mul(INSIDE_PER_PLACE) {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        if waiting.strangers.len() >= self.room
            && let Some(oldest) = crowd(&waiting.strangers)
        {
            let out = waiting.strangers.remove(oldest);
            // Its thread hears the end of the connection; one that is over already needs none.
            let _ = shutdown(&out.socket, Shutdown::Both);
        }
        waiting.next += 1;
        waiting.inside += 1;
        let number = waiting.next;
        waiting.strangers.push(Stranger {
            number,
            source,
            socket,
        });
        Ok(Admitted {
            strangers: Arc::clone(self),
            number,
        })
    }
}

/// The oldest of those that come from where most do.
fn crowd(strangers: &[Stranger]) -> Option<usize> {
    let from = |source: Option<IpAddr>| {
        let same = strangers.iter().filter(|one| one.source == source);
        same.count()
    };
    let most = strangers.iter().map(|one| from(one.source)).max()?;
    strangers.iter().position(|one| from(one.source) == most)
}

impl Admitted {
    /// It said who it is: it is not shown out any more.
    pub(crate) fn known(&self) {
        let mut waiting = self.strangers.waiting();
        waiting.strangers.retain(|one| one.number != self.number);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.known();
        self.strangers.waiting().inside -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    struct Connection {
        theirs: UnixStream,
        _ours: UnixStream,
        admitted: Option<Admitted>,
    }

    impl Connection {
        fn to(strangers: &Arc<Strangers>, source: &str) -> io::Result<Self> {
            let (theirs, ours) = UnixStream::pair().expect("a pair of sockets");
            let source = Some(source.parse().expect("an address"));
            let admitted = Some(strangers.admit(ours.as_fd(), source)?);
            Ok(Self {
                theirs,
                _ours: ours,
                admitted,
            })
        }

        fn is_out(&mut self) -> bool {
            let nap = Duration::from_millis(1);
            self.theirs.set_read_timeout(Some(nap)).expect("set");
            matches!(self.theirs.read(&mut [0]), Ok(0))
        }
    }

    #[test]
    fn given_a_full_room_the_oldest_of_the_crowd_is_shown_out_and_a_lone_one_stays() {
        let strangers = Strangers::new(3);
        let from = |source: &str| Connection::to(&strangers, source).expect("let in");
        let mut lone = from("192.0.2.1");
        let mut crowd = [from("192.0.2.2"), from("192.0.2.2")];
        let mut next = from("192.0.2.3");
        assert!(crowd[0].is_out(), "the oldest of the crowd");
        assert!(!lone.is_out() && !crowd[1].is_out() && !next.is_out());
    }

    #[test]
    fn given_one_that_said_who_it_is_it_is_not_shown_out_any_more() {
        let strangers = Strangers::new(1);
        let mut known = Connection::to(&strangers, "192.0.2.1").expect("let in");
        known.admitted.as_ref().expect("inside").known();
        let mut silent = Connection::to(&strangers, "192.0.2.1").expect("let in");
        let _next = Connection::to(&strangers, "192.0.2.1").expect("let in");
        assert!(!known.is_out() && silent.is_out());
    }

    #[test]
    fn given_those_shown_out_who_do_not_go_no_more_come_in_than_a_multiple_of_the_room() {
        let strangers = Strangers::new(1);
        let from = || Connection::to(&strangers, "192.0.2.1");
        let mut inside: Vec<Connection> = (0..INSIDE_PER_PLACE)
            .map(|_| from().expect("let in"))
            .collect();
        assert!(from().is_err(), "too many are inside");
        inside[0].admitted = None;
        from().expect("one has gone");
    }
}
