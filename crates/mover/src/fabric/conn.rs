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
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crowfly_machine::usage;
use crowfly_route::receipt::CpuSeconds;
use rustix::event::epoll::EventFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};

use super::gate::Gate;
use super::memory::{Span, discard};
use super::reactor::Attachment;
use super::region::RegionCore;
use super::socket::Socket;
use super::wire::{HEADER, Header, Kind, Lane, MAX_BODY, Status, Violation};

mod incoming;
mod outgoing;

use incoming::Input;
pub(crate) use outgoing::Frame;
use outgoing::{INLINE, Out};

/// Bytes moved for one connection before others get their turn.
const TURN: usize = 4 << 20;
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
}

impl Incoming {
    pub(crate) const NOTHING: Self = Self {
        landing: None,
        status: Status::Done,
        imm: None,
    };

    pub(crate) const fn refused(status: Status) -> Self {
        Self {
            landing: None,
            status,
            imm: None,
        }
    }
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

    /// The payload is through; `whole` unless some of it was thrown away.
    fn landed(&self, conn: &Arc<Conn>, header: &Header, incoming: &Incoming, whole: bool);

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
    cpu: Mutex<CpuSeconds>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conn {
    pub(crate) fn new(socket: Socket, bulk: bool, sending: Lane, receiving: Lane) -> Arc<Self> {
        Arc::new(Self {
            socket,
            bulk,
            out: Mutex::new(Out {
                lane: sending,
                queue: VecDeque::new(),
                started: None,
                armed: false,
            }),
            input: Mutex::new(Input::new(receiving)),
            handler: OnceLock::new(),
            attachment: OnceLock::new(),
            gate: Gate::default(),
            broken: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
            cpu: Mutex::default(),
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

    /// CPU time that the reactor's threads spent on it.
    pub(crate) fn cpu(&self) -> CpuSeconds {
        *locked(&self.cpu)
    }

    /// Queues a frame. Small ones go out at once, from the calling thread.
    pub(crate) fn send(&self, frame: Frame) {
        let bytes = frame.bytes();
        let mut out = locked(&self.out);
        if self.is_broken() {
            return;
        }
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        out.queue.push_back(frame);
        if out.queue.len() > MAX_QUEUED {
            // The reactor finds the socket shut and ends the connection.
            let _ = shutdown(&self.socket, Shutdown::Both);
            return;
        }
        let idle = out.started.is_none() && out.queue.len() == 1;
        if idle && bytes <= INLINE && self.attachment.get().is_some() {
            let mut turn = TURN;
            if self.flush(&mut out, &mut turn).is_err() {
                let _ = shutdown(&self.socket, Shutdown::Both);
            }
        }
        self.arm(&mut out);
    }

    /// Takes back a frame that has not started.
    pub(crate) fn take_back(&self, kind: Kind, op: u64) {
        let mut out = locked(&self.out);
        let before: usize = out.queue.iter().map(Frame::bytes).sum();
        out.queue
            .retain(|frame| frame.kind != kind || frame.op != op);
        let after: usize = out.queue.iter().map(Frame::bytes).sum();
        self.queued.fetch_sub(before - after, Ordering::Relaxed);
    }

    pub(crate) fn rearm(&self) {
        self.arm(&mut locked(&self.out));
    }

    fn arm(&self, out: &mut Out) {
        let wanted = out.started.is_some() || !out.queue.is_empty();
        if wanted != out.armed
            && let Some(attachment) = self.attachment.get()
        {
            out.armed = wanted;
            attachment.want_room(self, wanted);
        }
    }

    /// Ends the connection without telling the handler. When this returns, nothing received over it
    /// is written into memory any more.
    pub(crate) fn close(&self) {
        self.broken.store(true, Ordering::Release);
        let _ = shutdown(&self.socket, Shutdown::Both);
        if let Some(attachment) = self.attachment.get() {
            attachment.detach(self);
        }
        let mut out = locked(&self.out);
        out.queue.clear();
        out.started = None;
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

    /// The socket has bytes, or room, or an end.
    pub(crate) fn ready(self: &Arc<Self>, flags: EventFlags) {
        let before = usage::this_thread();
        let mut outcome = Ok(());
        if flags.contains(EventFlags::OUT) {
            let mut out = locked(&self.out);
            let mut turn = TURN;
            outcome = self.flush(&mut out, &mut turn).map_err(|e| e.to_string());
            self.arm(&mut out);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) && outcome.is_ok() {
            outcome = self.receive();
        }
        let after = usage::this_thread();
        {
            let mut cpu = locked(&self.cpu);
            cpu.user += after.user - before.user;
            cpu.system += after.system - before.system;
        }
        if let Err(why) = outcome {
            self.fail(why);
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
