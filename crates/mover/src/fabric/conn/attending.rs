//! Connections watched by the thread of a caller that waits for what comes by them.
//!
//! Whoever waits has nothing else to do, so it sends and receives itself, and nobody has to be woken
//! in between: neither the reactor's thread when there is something, nor the caller when it is done.
//! Meanwhile the reactor is not told of these connections.
//!
//! A caller that leaves while more of its own is under way will most likely be back at once, and so will
//! one that came back at once the last time. The connections are left to nobody then, and the reactor looks
//! after those soon ([`LINGER`]). What the latter has to answer goes out with what it posts next: two
//! processes that write to each other in turns need one call each, and not two.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::outgoing::AT_ONCE;
use super::*;

/// How long nobody may look after a connection.
pub(in crate::fabric) const LINGER: Duration = Duration::from_micros(500);
/// How long a caller sleeps at most before it looks whether it still has to wait.
const NAP: Duration = Duration::from_millis(100);

/// Who watches a link's connections for a caller: one thread at a time.
#[derive(Default)]
pub(crate) struct Attendance {
    /// Held by that thread; when the last one left.
    turn: Mutex<Option<Instant>>,
    /// Whether another thread waits as well, and was sent away.
    others: AtomicBool,
}

impl Attendance {
    /// Watches those of the connections by which `has_more` says that something of this side is under
    /// way, and all of them where the peer is waited for, until the wait is over. Returns before that
    /// when another thread does so already, where nothing is under way, and when one broke.
    pub(crate) fn until(
        &self,
        conns: &[Arc<Conn>],
        wait: &Wait<'_>,
        has_more: impl Fn(usize) -> bool,
    ) {
        let Some(mut turn) = tried(&self.turn) else {
            self.others.store(true, Ordering::Relaxed);
            return;
        };
        let attachment = conns.first().and_then(|conn| conn.attachment.get());
        let Some(vigil) = attachment.map(Attachment::vigil) else {
            return;
        };
        let mut watched: Vec<&Arc<Conn>> = Vec::with_capacity(conns.len());
        let mut since = Instant::now();
        let away = turn.map(|left| since.saturating_duration_since(left));
        let at_once = away.is_some_and(|away| away < AT_ONCE);
        let leaves = || at_once && wait.is_over();
        let mut spell = vigil.spell(since);
        let mut in_vain = false;
        while !wait.is_over() && !conns.iter().any(|conn| conn.is_broken()) {
            for (index, conn) in conns.iter().enumerate() {
                let wanted = wait.inbound || has_more(index);
                if wanted && !watched.iter().any(|known| Arc::ptr_eq(known, conn)) {
                    watched.push(conn);
                    conn.watched_by(wait);
                }
            }
            if watched.is_empty() {
                return;
            }
            let mut moved = false;
            for conn in &watched {
                moved |= conn.work_until(EventFlags::IN | EventFlags::OUT, &mut since, &leaves);
            }
            if moved {
                spell = vigil.spell(since);
                in_vain = false;
                continue;
            }
            spell = spell.and_then(|spell| spell.on(vigil));
            if spell.is_none() {
                if in_vain {
                    // What woke it is another thread's, which may need this very core to get through with it.
                    std::thread::yield_now();
                }
                if !sleep(&watched, wait) {
                    break;
                }
                in_vain = true;
                since = Instant::now();
            }
        }
        // Whoever was sent away sleeps, and may never come back to watch.
        let others = self.others.swap(false, Ordering::Relaxed);
        let came_back = away.is_some_and(|away| away < LINGER);
        let back_soon = !others && (came_back || (0..conns.len()).any(has_more));
        let now = Instant::now();
        for conn in watched {
            conn.left(back_soon.then_some(now));
        }
        *turn = Some(now);
    }
}

/// Sleeps until there is something to do; `false` when the time is over.
fn sleep(conns: &[&Arc<Conn>], wait: &Wait<'_>) -> bool {
    let left = wait.left().map_or(NAP, |left| left.min(NAP));
    if left.is_zero() {
        return false;
    }
    let mut fds = vec![PollFd::from_borrowed_fd(wait.kick(), PollFlags::IN)];
    for conn in conns {
        fds.push(PollFd::from_borrowed_fd(conn.socket(), conn.hears()));
    }
    let time = Timespec::try_from(left).ok();
    // From here on whoever ends the wait, or has something sent, kicks.
    if !wait.is_over() && poll(&mut fds, time.as_ref()).is_ok() {
        let kicked = fds.first().is_some_and(|fd| !fd.revents().is_empty());
        if kicked {
            wait.took_note();
        }
    }
    conns.iter().for_each(|conn| conn.is_awake());
    true
}

impl Conn {
    /// A caller's thread watches it from now on.
    fn watched_by(&self, wait: &Wait<'_>) {
        let mut out = locked(&self.out);
        out.watcher = Watcher::Caller {
            kick: Arc::clone(&wait.kick),
            hears_room: true,
        };
        out.may_be_taken = true;
        self.arm(&mut out);
    }

    /// What the caller's thread that watches it has to wake up for.
    fn hears(&self) -> PollFlags {
        let mut out = locked(&self.out);
        let idle = out.is_idle();
        if let Watcher::Caller { hears_room, .. } = &mut out.watcher {
            *hears_room = !idle;
        }
        if idle {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// The caller's thread that watches it looks by itself.
    fn is_awake(&self) {
        if let Watcher::Caller { hears_room, .. } = &mut locked(&self.out).watcher {
            *hears_room = true;
        }
    }

    /// The caller's thread does not watch it any more. If it left then and is back soon, it sends what is
    /// queued before it waits.
    fn left(self: &Arc<Self>, back_soon: Option<Instant>) {
        let mut out = locked(&self.out);
        let back_soon = back_soon.filter(|_| out.is_idle() || self.keep_back());
        if let Some((attachment, since)) = self.attachment.get().zip(back_soon) {
            out.watcher = Watcher::Nobody(since);
            drop(out);
            attachment.look_after(self);
        } else {
            out.watcher = Watcher::Reactor;
            self.arm(&mut out);
        }
    }

    /// Whether a thread of the reactor watches it.
    pub(in crate::fabric) fn is_the_reactors(&self) -> bool {
        let out = tried(&self.out).filter(|_| !self.is_broken());
        out.is_some_and(|mut out| {
            // Who meant to send meanwhile relies on whoever has the lock.
            self.arm(&mut out);
            matches!(out.watcher, Watcher::Reactor)
        })
    }

    /// Has the reactor watch it again where nobody else has for some time; what it was left to.
    pub(in crate::fabric) fn looked_after(&self) -> Left {
        let Some(mut out) = tried(&self.out) else {
            // Somebody sends by it.
            return Left::Nobody;
        };
        let left = match &out.watcher {
            Watcher::Reactor => Left::Reactor,
            Watcher::Caller { .. } => Left::Caller,
            Watcher::Nobody(since) if since.elapsed() < LINGER => Left::Nobody,
            Watcher::Nobody(_) => {
                out.watcher = Watcher::Reactor;
                Left::Reactor
            }
        };
        // As in `is_the_reactors`.
        self.arm(&mut out);
        left
    }
}

/// Who watches a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric) enum Left {
    Reactor,
    Caller,
    Nobody,
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::atomic::AtomicUsize;
    use std::thread::ThreadId;

    use super::*;
    use crate::fabric::conn::outgoing::CALM;
    use crate::fabric::memory::Buffer;
    use crate::fabric::reactor::Reactor;

    const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];

    /// Notes which thread took the last frame, and how many came.
    #[derive(Default)]
    struct Noted {
        frames: AtomicUsize,
        /// Ops that were answered.
        answered: AtomicUsize,
        by: Mutex<Option<ThreadId>>,
    }

    impl Noted {
        fn await_frames(&self, count: usize) {
            let until = Instant::now() + Duration::from_secs(20);
            while self.frames.load(Ordering::SeqCst) < count {
                assert!(Instant::now() < until, "no frame {count}");
                std::thread::yield_now();
            }
        }

        fn by_this_thread(&self) -> bool {
            *locked(&self.by) == Some(std::thread::current().id())
        }
    }

    impl Handler for Noted {
        fn frame(
            &self,
            _: &Arc<Conn>,
            header: &Header,
            body: &[u8],
            _: Option<OwnedFd>,
        ) -> Result<Incoming, Violation> {
            if header.kind == Kind::Answer {
                let ops = 1 + body.len() / size_of::<u64>();
                self.answered.fetch_add(ops, Ordering::SeqCst);
            }
            Ok(Incoming::NOTHING)
        }

        fn landed(&self, conn: &Arc<Conn>, header: &Header, _: &Incoming, _: Landed) {
            if header.kind == Kind::Read {
                conn.queue_done(header.op);
            }
            *locked(&self.by) = Some(std::thread::current().id());
            self.frames.fetch_add(1, Ordering::SeqCst);
        }

        fn broken(&self, _: String) {}
    }

    struct End {
        conn: Arc<Conn>,
        noted: Arc<Noted>,
        reactor: Arc<Reactor>,
    }

    impl Drop for End {
        fn drop(&mut self) {
            self.conn.close();
            self.reactor.stop();
        }
    }

    fn end(stream: TcpStream, sending: [u8; 32], receiving: [u8; 32]) -> End {
        stream.set_nonblocking(true).expect("non-blocking");
        let socket = Socket::accepted(stream.into());
        let conn = Conn::new(socket, true, Lane::new(sending), Lane::new(receiving));
        let noted = Arc::new(Noted::default());
        let handler: Weak<Noted> = Arc::downgrade(&noted);
        conn.handled_by(handler);
        let reactor = Reactor::start(1).expect("a thread");
        reactor.watch(&conn).expect("watched");
        End {
            conn,
            noted,
            reactor,
        }
    }

    fn ends() -> (End, End) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let here = TcpStream::connect(address).expect("connected");
        let (there, _) = listener.accept().expect("accepted");
        (end(here, KEYS[0], KEYS[1]), end(there, KEYS[1], KEYS[0]))
    }

    fn attend(end: &End, over: &dyn Fn() -> bool, back_soon: bool) {
        attend_again(&Attendance::default(), end, over, back_soon);
    }

    /// The same by a thread that is known from before.
    fn attend_again(known: &Attendance, end: &End, over: &dyn Fn() -> bool, back_soon: bool) {
        let wait = Wait {
            over,
            until: Some(Instant::now() + Duration::from_secs(20)),
            inbound: false,
            kick: Kick::own().expect("a descriptor"),
        };
        let under_way = |_| !over() || back_soon;
        known.until(std::slice::from_ref(&end.conn), &wait, under_way);
        assert!(over(), "it waited in vain");
    }

    fn ping() -> Frame {
        Frame::new(Kind::Ping, 0, Vec::new())
    }

    #[test]
    fn given_a_caller_that_waits_when_a_frame_comes_then_its_own_thread_takes_it() {
        let (here, there) = ends();
        for turn in 1..=200 {
            let sent = AtomicBool::new(false);
            // The first look comes after the connection is watched.
            let over = || {
                let came = here.noted.frames.load(Ordering::SeqCst) == turn;
                let watched = matches!(locked(&here.conn.out).watcher, Watcher::Caller { .. });
                if watched && !sent.swap(true, Ordering::SeqCst) {
                    there.conn.send(ping());
                }
                came
            };
            attend(&here, &over, true);
            assert!(here.noted.by_this_thread(), "turn {turn}");
        }
    }

    #[test]
    fn given_a_caller_that_left_then_the_reactor_takes_what_comes_whether_it_was_expected_back_or_not()
     {
        let (here, there) = ends();
        for (turn, back_soon) in [(1, true), (2, false), (3, true)] {
            let looked = AtomicUsize::new(0);
            let over = || looked.fetch_add(1, Ordering::SeqCst) > 2;
            attend(&here, &over, back_soon);
            there.conn.send(ping());
            here.noted.await_frames(turn);
            assert!(!here.noted.by_this_thread());
        }
    }

    #[test]
    fn given_a_caller_that_sleeps_when_another_thread_ends_its_wait_then_it_is_woken() {
        let (here, _there) = ends();
        let ended = AtomicBool::new(false);
        let kick = Kick::own().expect("a descriptor");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                ended.store(true, Ordering::SeqCst);
                kick.wake();
            });
            attend(&here, &|| ended.load(Ordering::SeqCst), false);
        });
    }

    #[test]
    fn given_a_caller_that_sleeps_when_another_thread_sends_more_than_there_is_room_for_then_all_of_it_goes_out()
     {
        const FRAMES: usize = 8;
        const BYTES: usize = 4 << 20;
        let (here, there) = ends();
        let memory = Buffer::zeroed(BYTES, None).expect("memory").into_backing();
        let over = || there.noted.frames.load(Ordering::SeqCst) == FRAMES;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                for _ in 0..FRAMES {
                    here.conn.queue(Frame {
                        payload: memory.span(0..BYTES).into_iter().collect(),
                        ..Frame::new(Kind::Data, 0, Vec::new())
                    });
                    here.conn.push(0);
                }
            });
            attend(&here, &over, false);
        });
        assert_eq!(here.conn.queued(), 0);
    }

    #[test]
    fn given_short_frames_around_long_ones_when_they_are_sent_together_then_all_arrive_in_turn() {
        let (here, there) = ends();
        let memory = Buffer::zeroed(1 << 20, None)
            .expect("memory")
            .into_backing();
        let mut sent = 0;
        for bytes in [0, 1, 9_000, 1 << 20, 300] {
            for _ in 0..70 {
                here.conn.queue(ping());
            }
            here.conn.queue(Frame {
                payload: memory.span(0..bytes).into_iter().collect(),
                ..Frame::new(Kind::Data, 0, vec![7; 100])
            });
            sent += 71;
        }
        // A frame that is out of turn ends the connection.
        here.conn.push(0);
        there.noted.await_frames(sent);
        assert!(!there.conn.is_broken());
        assert_eq!(here.conn.queued(), 0);
    }

    /// Posts a frame as one of so many ops under way just after its thread has left the connection to nobody;
    /// whether it was kept back.
    fn post(end: &End, under_way: usize) -> bool {
        let looked = AtomicUsize::new(0);
        attend(end, &|| looked.fetch_add(1, Ordering::SeqCst) > 1, true);
        end.conn.queue(ping());
        end.conn.push(under_way);
        !locked(&end.conn.out).queue.is_empty()
    }

    #[test]
    fn given_ops_on_their_way_and_a_caller_that_is_back_soon_then_more_is_kept_until_it_waits_or_some_time_has_passed()
     {
        let (here, there) = ends();
        let mut kept = 0;
        for turn in 1..=400 {
            // On a busy machine some time may have passed already.
            kept += usize::from(post(&here, 3));
            if turn % 2 == 0 {
                send_kept_back();
                assert!(locked(&here.conn.out).queue.is_empty(), "turn {turn}");
            }
            there.noted.await_frames(turn);
        }
        assert!(kept > 0, "nothing was ever kept");
    }

    /// Has `here` wait for one frame after another that is to be answered; whether the answer to the last one
    /// was left for what its thread posts next.
    fn answers_in_turns(here: &End, there: &End, turns: usize) -> bool {
        let known = Attendance::default();
        let before = here.noted.frames.load(Ordering::SeqCst);
        for turn in 1..=turns {
            there
                .conn
                .send(Frame::new(Kind::Read, turn as u64, Vec::new()));
            let over = || here.noted.frames.load(Ordering::SeqCst) >= before + turn;
            attend_again(&known, here, &over, false);
        }
        !locked(&here.conn.out).queue.is_empty()
    }

    fn await_answers(end: &End, count: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while end.noted.answered.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < until, "no answer {count}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn given_a_thread_that_waits_again_and_again_then_what_it_answers_goes_out_when_it_waits_or_soon()
     {
        let (here, there) = ends();
        let mut left = 0;
        for round in 1..=100 {
            // On a busy machine it may have been away for too long.
            left += usize::from(answers_in_turns(&here, &there, 3));
            if round % 2 == 0 {
                send_kept_back();
                assert!(locked(&here.conn.out).queue.is_empty(), "round {round}");
            }
            await_answers(&there, 3 * round);
        }
        assert!(left > 0, "nothing was ever left");
    }

    #[test]
    fn given_answers_that_were_left_when_the_connection_is_closed_then_they_go_out_before() {
        let mut left = 0;
        for _ in 0..100 {
            let (here, there) = ends();
            left += usize::from(answers_in_turns(&here, &there, 3));
            here.conn.close();
            await_answers(&there, 3);
        }
        assert!(left > 0, "nothing was ever left");
    }

    #[test]
    fn given_ops_that_went_well_when_they_are_answered_then_one_frame_tells_of_many() {
        let (here, there) = ends();
        // Two frames: one tells of its own op and of so many others.
        let ops = 2 * (1 + MAX_ALSO);
        (0..ops).for_each(|op| here.conn.queue_done(op as u64));
        assert_eq!(locked(&here.conn.out).queue.len(), 2);
        here.conn.push(0);
        await_answers(&there, ops);
        assert_eq!(there.noted.frames.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn given_a_peer_that_reads_no_answers_then_those_that_wait_are_counted() {
        let (here, _there) = ends();
        let most = CALM * (1 + MAX_ALSO) + 2 * MAX_QUEUED;
        let frames = |end: &End| locked(&end.conn.out).queue.len();
        (0..most).for_each(|op| here.conn.queue_done(op as u64));
        assert!(here.conn.is_broken() || frames(&here) > MAX_QUEUED);
    }

    /// Posts one of so many ops under way by a thread that has waited, while the reactor has the connection;
    /// whether the thread took it.
    fn takes_over(end: &End, under_way: usize) -> bool {
        locked(&end.conn.out).watcher = Watcher::Reactor;
        waits();
        end.conn.queue(ping());
        end.conn.push(under_way);
        !matches!(locked(&end.conn.out).watcher, Watcher::Reactor)
    }

    #[test]
    fn given_a_thread_that_waits_for_what_it_posts_then_it_takes_the_connection_from_the_reactor_once()
     {
        let (here, there) = ends();
        assert!(!takes_over(&here, 1), "nothing but this is under way");
        assert!(takes_over(&here, 8));
        assert!(!takes_over(&here, 8), "it has not watched since");
        attend(&here, &|| true, false);
        let looked = AtomicUsize::new(0);
        attend(&here, &|| looked.fetch_add(1, Ordering::SeqCst) > 2, true);
        assert!(takes_over(&here, 8));
        // Nobody comes back: the reactor looks after it.
        there.conn.send(ping());
        here.noted.await_frames(1);
        there.noted.await_frames(4);
    }

    #[test]
    fn given_hardly_anything_on_its_way_then_nothing_is_kept_back() {
        let (here, there) = ends();
        let mut kept = 0;
        for turn in 1..=100 {
            // The reactor may look at the connection that very moment.
            kept += usize::from(post(&here, 2));
            there.noted.await_frames(turn);
        }
        assert!(kept < 20, "{kept} of 100");
    }
}
