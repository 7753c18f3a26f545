//! An authenticated connection that carries frames, driven by the reactor.
//!
//! A payload goes from the kernel's socket buffer straight to where it belongs, under the gates of
//! its memory; the only bytes that pass a buffer of ours are headers, bodies and what little of a
//! payload came along with them.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Instant;

use crowfly_route::receipt::CpuSeconds;
use rustix::event::epoll::EventFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};

use super::gate::Gate;
use super::memory::{Fault, Span, discard};
use super::reactor::Attachment;
use super::region::RegionCore;
use super::socket::Socket;
use super::stint::{Tally, kernel_cost};
use super::wait::{Kick, Wait};
use super::wire::{HEADER, Header, Kind, Lane, MAX_ALSO, MAX_BODY, Status, Violation};

mod attending;
mod incoming;
mod outgoing;

pub(crate) use attending::Attendance;
pub(in crate::fabric) use attending::{LINGER, Left};
use incoming::Input;
pub(crate) use outgoing::Frame;
use outgoing::{Out, Watcher};
pub(in crate::fabric) use outgoing::{send_kept_back, waits};

/// Bytes moved for one connection before others get their turn.
const TURN: usize = 4 << 20;
/// Bytes that a thread sends at once that has posted them and may have other things to do.
const PUSH: usize = 1 << 20;
/// Frames that wait to be sent before the connection is given up: its other end asks and asks and
/// reads no answer.
const MAX_QUEUED: usize = 16_384;

/// Where a payload goes.
pub(crate) struct Landing {
    pub spans: VecDeque<Span>,
    pub region: Arc<RegionCore>,
    /// The gate of the transfer that waits for it, if it was asked for here.
    pub flight: Option<Arc<Gate>>,
}

/// What a handler made of a frame.
pub(crate) struct Incoming {
    /// Where its payload goes; nowhere when refused.
    pub landing: Option<Landing>,
    /// What will be answered when the payload is through.
    pub status: Status,
    /// The value to count then.
    pub imm: Option<(u32, u64)>,
    /// What the peer said of a GPU of its own that failed.
    pub said: Option<String>,
    /// Other ops that an answer tells of.
    pub also: Vec<u64>,
}

impl Incoming {
    pub(crate) const NOTHING: Self = Self {
        landing: None,
        status: Status::Done,
        imm: None,
        said: None,
        also: Vec::new(),
    };

    pub(crate) const fn refused(status: Status) -> Self {
        Self {
            landing: None,
            status,
            imm: None,
            said: None,
            also: Vec::new(),
        }
    }
}

/// What became of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    /// All of it is where it belongs.
    Whole,
    /// It was thrown away, or some of it: there was no place for it, or that was taken back meanwhile.
    Dropped,
    /// The GPU whose memory it is for failed; what that answered.
    Failed(String),
}

/// What a connection tells its owner; called without any of the connection's gates held.
pub(crate) trait Handler: Send + Sync {
    /// A frame's header and body are here, its payload follows.
    fn frame(
        &self,
        conn: &Arc<Conn>,
        header: &Header,
        body: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Incoming, Violation>;

    /// The payload is through.
    fn landed(&self, conn: &Arc<Conn>, header: &Header, incoming: &Incoming, landed: Landed);

    /// A frame of this side was not sent: the GPU whose memory its payload is in failed, and answered so.
    fn unsent(&self, _op: u64, _why: String) {}

    /// The connection ended.
    fn broken(&self, why: String);
}

/// An authenticated connection that carries frames.
pub(crate) struct Conn {
    socket: Socket,
    /// Whether it carries payloads and, otherwise, descriptors.
    bulk: bool,
    out: Mutex<Out>,
    input: Mutex<Input>,
    handler: OnceLock<Weak<dyn Handler>>,
    attachment: OnceLock<Attachment>,
    /// Passed for each step that writes into memory; closed when the connection is.
    gate: Gate,
    broken: AtomicBool,
    queued: AtomicUsize,
    heard: AtomicU64,
    cpu: Tally,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `None` while another thread has it.
fn tried<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Conn {
    pub(crate) fn new(socket: Socket, bulk: bool, sending: Lane, receiving: Lane) -> Arc<Self> {
        Arc::new(Self {
            socket,
            bulk,
            out: Mutex::new(Out {
                lane: sending,
                queue: VecDeque::new(),
                started: VecDeque::new(),
                unsent: Vec::new(),
                watcher: Watcher::Reactor,
                may_be_taken: true,
                told_of: EventFlags::IN,
            }),
            input: Mutex::new(Input::new(receiving)),
            handler: OnceLock::new(),
            attachment: OnceLock::new(),
            gate: Gate::default(),
            broken: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
            cpu: Tally::default(),
        })
    }

    /// Says who is told of what arrives. Must happen before the connection is watched.
    pub(crate) fn handled_by(&self, handler: Weak<dyn Handler>) {
        let _ = self.handler.set(handler);
    }

    pub(crate) fn attach(&self, attachment: Attachment) {
        let _ = self.attachment.set(attachment);
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Payload bytes that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Counts up with everything that is received.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Whether the other end has ended the connection by now, noticed here already or not.
    pub(crate) fn is_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let looked = poll(&mut fds, Some(&now));
        self.is_broken() || looked.is_err() || fds.iter().any(|fd| fd.revents().intersects(ended))
    }

    /// CPU time that was spent on it by threads that watch it or send for it.
    pub(crate) fn cpu(&self) -> CpuSeconds {
        self.cpu.so_far()
    }

    /// Charges it with the time since then, and begins anew.
    fn charge(&self, since: &mut Instant) {
        let now = Instant::now();
        self.cpu.add(kernel_cost(now - *since));
        *since = now;
    }

    /// Queues a frame. Small ones go out at once, from the calling thread.
    pub(crate) fn send(&self, frame: Frame) {
        let short = frame.is_short();
        let mut out = locked(&self.out);
        // What is only queued was kept back for a moment.
        let alone = out.started.is_empty();
        if !self.put(&mut out, frame) {
            return;
        }
        if alone && short && self.attachment.get().is_some() {
            let mut turn = TURN;
            if self.flush(&mut out, &mut turn).is_err() {
                let _ = shutdown(&self.socket, Shutdown::Both);
            }
        }
        self.arm(&mut out);
    }

    /// Queues a frame for whoever calls [`Conn::push`] soon.
    pub(crate) fn queue(&self, frame: Frame) {
        self.put(&mut locked(&self.out), frame);
    }

    fn put(&self, out: &mut Out, frame: Frame) -> bool {
        if self.is_broken() {
            return false;
        }
        self.queued.fetch_add(frame.bytes(), Ordering::Relaxed);
        out.queue.push_back(frame);
        if out.queue.len() > MAX_QUEUED {
            // Whoever watches the socket finds it shut and ends the connection.
            let _ = shutdown(&self.socket, Shutdown::Both);
            return false;
        }
        true
    }

    /// Sends what was queued, from the calling thread, and leaves the rest to whoever watches it. Where ops are
    /// `under_way` it may keep some back until the thread waits or [`LINGER`] has passed.
    pub(crate) fn push(self: &Arc<Self>, under_way: usize) {
        // Who else has the lock sends what is queued, or sees to it that somebody does.
        let Some(mut out) = tried(&self.out) else {
            return;
        };
        let taken = self.is_taken_over(&mut out, under_way);
        if !self.keeps_back(&out, under_way) {
            self.push_out(&mut out);
        }
        drop(out);
        if let Some(attachment) = self.attachment.get().filter(|_| taken) {
            attachment.look_after(self);
        }
    }

    fn push_out(&self, out: &mut Out) {
        if out.is_idle() || self.is_broken() {
            return;
        }
        let mut since = Instant::now();
        let mut turn = PUSH;
        if self.flush(out, &mut turn).is_err() {
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        self.charge(&mut since);
        self.arm(out);
    }

    /// Takes back a frame that has not started.
    pub(crate) fn take_back(&self, kind: Kind, op: u64) {
        let mut out = locked(&self.out);
        let before: usize = out.queue.iter().map(Frame::bytes).sum();
        out.queue
            .retain(|frame| frame.kind != kind || frame.op != op);
        let after: usize = out.queue.iter().map(Frame::bytes).sum();
        self.queued.fetch_sub(before - after, Ordering::Relaxed);
        self.arm(&mut out);
    }

    pub(crate) fn rearm(&self) {
        self.arm(&mut locked(&self.out));
    }

    /// Has whoever watches it told of what there is to do for it.
    fn arm(&self, out: &mut Out) {
        let idle = out.is_idle();
        let wanted = match &mut out.watcher {
            Watcher::Reactor if idle => EventFlags::IN,
            Watcher::Reactor => EventFlags::IN | EventFlags::OUT,
            Watcher::Caller { kick, hears_room } => {
                if !idle && !*hears_room {
                    *hears_room = true;
                    kick.wake();
                }
                EventFlags::empty()
            }
            Watcher::Nobody(_) => EventFlags::empty(),
        };
        if wanted != out.told_of
            && let Some(attachment) = self.attachment.get()
        {
            out.told_of = wanted;
            attachment.tell_of(self, wanted);
        }
    }

    /// Ends the connection without telling the handler. When this returns, nothing received over it
    /// is written into memory any more.
    pub(crate) fn close(&self) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            self.answer_last(&mut locked(&self.out));
        }
        let _ = shutdown(&self.socket, Shutdown::Both);
        if let Some(attachment) = self.attachment.get() {
            attachment.detach(self);
        }
        let mut out = locked(&self.out);
        out.queue.clear();
        out.unsent.clear();
        out.started.clear();
        drop(out);
        self.gate.close();
    }

    fn fail(&self, why: String) {
        if self.broken.swap(true, Ordering::AcqRel) {
            return;
        }
        self.close();
        if let Some(handler) = self.handler.get().and_then(Weak::upgrade) {
            handler.broken(why);
        }
    }

    /// Sends and receives what the socket takes and has, at most a turn's worth of each; answers
    /// whether that was anything. It is charged with the time since then, watching for it included.
    pub(crate) fn work(self: &Arc<Self>, flags: EventFlags, since: &mut Instant) -> bool {
        self.work_until(flags, since, &|| false)
    }

    /// The same, but for what is to be sent once `left` says that the thread has left and is back soon: then
    /// it goes out with what the thread posts first.
    fn work_until(
        self: &Arc<Self>,
        flags: EventFlags,
        since: &mut Instant,
        left: &dyn Fn() -> bool,
    ) -> bool {
        let mut moved = false;
        let mut outcome = Ok(());
        if flags.contains(EventFlags::OUT) {
            outcome = self.empty(&mut moved);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && outcome.is_ok() {
            outcome = self.receive(&mut moved, since);
            if outcome.is_ok() && !left() {
                // What was received may have been answered.
                outcome = self.empty(&mut moved);
            }
        }
        if moved || outcome.is_err() {
            self.charge(since);
        }
        if let Err(why) = outcome {
            self.fail(why);
            return true;
        }
        moved
    }

    /// Sends what is queued.
    fn empty(&self, moved: &mut bool) -> Result<(), String> {
        // As in `push`.
        let Some(mut out) = tried(&self.out) else {
            return Ok(());
        };
        if out.is_idle() {
            self.arm(&mut out);
            return Ok(());
        }
        let mut turn = TURN;
        let outcome = self.flush(&mut out, &mut turn).map_err(|e| e.to_string());
        *moved |= turn < TURN;
        let unsent = std::mem::take(&mut out.unsent);
        self.arm(&mut out);
        drop(out);
        if let Some(handler) = self.handler.get().and_then(Weak::upgrade) {
            for (op, why) in unsent {
                *moved = true;
                handler.unsent(op, why);
            }
        }
        outcome
    }
}

/// So many bytes from the start on are through.
fn skip(spans: &mut VecDeque<Span>, mut through: usize) {
    while let Some(span) = spans.pop_front() {
        if through < span.len() {
            spans.push_front(span.skip(through));
            return;
        }
        through -= span.len();
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
