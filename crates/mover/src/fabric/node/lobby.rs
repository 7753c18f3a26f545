//! Peers that connected and wait until somebody here accepts them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many wait at most. Those that are gone make room for others, so that a process which accepts nobody,
/// as nothing but its memory is wanted, is reached for as long as it lives.
const MAX_UNACCEPTED: usize = 256;
/// How many of those that are gone are kept for who accepts late: each of them has descriptors.
const MAX_GONE: usize = 16;

pub(super) struct Lobby<P> {
    waiting: Mutex<VecDeque<P>>,
    came: Condvar,
}

impl<P> Default for Lobby<P> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            came: Condvar::new(),
        }
    }
}

impl<P> Lobby<P> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<P>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a peer wait; whether there is room beside those that are still there.
    pub(super) fn enter(&self, peer: P, is_there: impl Fn(&P) -> bool) -> bool {
        let mut waiting = self.waiting();
        let kept = match waiting.len() {
            0..MAX_UNACCEPTED => MAX_GONE,
            _ => 0,
        };
        let gone = waiting.iter().filter(|peer| !is_there(peer)).count();
        let mut surplus = gone.saturating_sub(kept);
        waiting.retain(|peer| {
            let goes = surplus > 0 && !is_there(peer);
            surplus -= usize::from(goes);
            !goes
        });
        let room = waiting.len() < MAX_UNACCEPTED;
        if room {
            waiting.push_back(peer);
            self.came.notify_one();
        }
        room
    }

    /// The one that has waited longest; waits for one, for `time` at most.
    pub(super) fn next(&self, time: Duration) -> Option<P> {
        let waiting = self.waiting();
        let nobody = |waiting: &mut VecDeque<P>| waiting.is_empty();
        let waited = self.came.wait_timeout_while(waiting, time, nobody);
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::fabric::memory::Buffer;
    use crate::fabric::{Access, Fabric, Options, Peer, Settings, SharedKey};

    const SOON: Duration = Duration::from_secs(20);
    /// Descriptors for as many connections as may wait, both ends of each with one stream, and some.
    const DESCRIPTORS: u64 = 6 * MAX_UNACCEPTED as u64;

    #[test]
    fn of_those_that_are_gone_the_last_few_wait_and_the_others_keep_their_turn() {
        let lobby = Lobby::default();
        let enter = |who: usize| lobby.enter(who, |who| *who < 10);
        assert!((0..100).all(enter));
        let mut left = std::iter::from_fn(|| lobby.next(Duration::ZERO));
        assert!((0..10).all(|who| left.next() == Some(who)));
        // The last one was there when it came.
        assert!((99 - MAX_GONE..100).all(|who| left.next() == Some(who)));
        assert_eq!(left.next(), None);
    }

    #[test]
    fn given_no_room_then_all_that_are_gone_make_some() {
        let lobby = Lobby::default();
        assert!((0..MAX_UNACCEPTED).all(|who| lobby.enter(who, |_| true)));
        let few = |who: &usize| *who >= MAX_GONE;
        assert!((1000..1000 + MAX_GONE).all(|who| lobby.enter(who, few)));
        assert!(!lobby.enter(2000, few));
        assert_eq!(lobby.next(Duration::ZERO), Some(MAX_GONE));
    }

    #[test]
    fn given_no_room_then_it_is_said_and_one_that_is_let_in_makes_some() {
        let lobby = Lobby::default();
        let enter = |who: usize| lobby.enter(who, |_| true);
        assert!((0..MAX_UNACCEPTED).all(enter) && !enter(7000));
        assert_eq!(lobby.next(Duration::ZERO), Some(0));
        assert!(enter(7001) && !enter(7002));
    }

    #[test]
    fn two_who_wait_for_one_each_do_not_wait_for_each_other() {
        let lobby = Lobby::<u8>::default();
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| lobby.next(SOON));
            let began = Instant::now();
            assert_eq!(lobby.next(Duration::from_millis(20)), None);
            assert!(began.elapsed() < SOON / 2, "it waited for the other one");
            assert!(lobby.enter(1, |_| true));
            assert_eq!(patient.join().expect("no panic"), Some(1));
        });
    }

    fn fabric() -> Fabric {
        let settings = Settings {
            shm: false,
            streams: 1,
            ..Settings::new(SharedKey::derive("lobby"))
        };
        Fabric::new(settings).expect("a fabric")
    }

    fn connect(here: &Fabric, there: &Fabric) -> Peer {
        let address = there.address().to_string();
        here.connect(&address, Options::within(SOON))
            .expect("connected")
    }

    /// Writes something into the memory of a process that may have accepted nobody.
    fn write(here: &Fabric, there: &Fabric, peer: &Peer) -> Result<(), crate::fabric::FabricError> {
        let memory = || Buffer::copy_of(&[1; 64]).expect("memory");
        let to = there
            .register(memory(), Access::READ_WRITE)
            .expect("registered");
        let from = here.register(memory(), Access::LOCAL).expect("registered");
        let to = to.descriptor().whole();
        peer.write(&from.whole(), &to, Options::within(SOON))
            .wait()
            .map(drop)
    }

    #[test]
    fn a_process_that_accepts_nobody_is_reached_however_many_came_and_went() {
        let (here, there) = (fabric(), fabric());
        for _ in 0..MAX_UNACCEPTED + 8 {
            connect(&here, &there).close();
        }
        // It may hear of the last ones late.
        assert!(there.core.lobby.waiting().len() < MAX_UNACCEPTED / 2);
        let peer = connect(&here, &there);
        write(&here, &there, &peer).expect("written");
    }

    #[test]
    fn given_as_many_as_may_wait_then_the_next_one_hears_why_it_is_sent_away() {
        let limit = getrlimit(Resource::Nofile);
        let enough = limit.current.is_none_or(|now| now >= DESCRIPTORS);
        let raised = Rlimit {
            current: Some(DESCRIPTORS),
            ..limit
        };
        if !enough && setrlimit(Resource::Nofile, raised).is_err() {
            crowfly_waive::waived!("this process may not have as many descriptors");
        }
        let (here, there) = (fabric(), fabric());
        let waiting: Vec<Peer> = (0..MAX_UNACCEPTED)
            .map(|_| connect(&here, &there))
            .collect();
        let away = connect(&here, &there);
        let until = Instant::now() + SOON;
        let why = loop {
            match away.lost() {
                Some(why) => break why,
                None => assert!(Instant::now() < until, "it is not sent away"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(why, "too many peers wait there that nobody accepts");
        assert!(waiting.iter().all(|peer| peer.lost().is_none()));
        there.accept(SOON).expect("accepted");
        let peer = connect(&here, &there);
        write(&here, &there, &peer).expect("written");
    }
}
