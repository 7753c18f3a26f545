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

/// Received at once while a header is expected: room for a dozen answers.
const PEEK: usize = 512;
/// Bytes moved for one connection before others get their turn.
const TURN: usize = 4 << 20;
/// Frames that wait to be sent before the connection is given up: its other end asks and asks and
/// reads no answer.
const MAX_QUEUED: usize = 16_384;
/// Payloads up to this size are copied behind their header, which saves a system call.
const INLINE: usize = 8 << 10;
/// Descriptors that may wait for the frame they belong to.
const MAX_DESCRIPTORS: usize = 4;

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

/// A frame to be sent. It is numbered and tagged when its turn comes, so one that has not started
/// can still be taken back.
pub(crate) struct Frame {
    pub kind: Kind,
    pub status: u8,
    pub op: u64,
    pub body: Vec<u8>,
    pub payload: VecDeque<Span>,
    pub descriptor: Option<OwnedFd>,
}

impl Frame {
    pub(crate) fn new(kind: Kind, op: u64, body: Vec<u8>) -> Self {
        Self {
            kind,
            status: 0,
            op,
            body,
            payload: VecDeque::new(),
            descriptor: None,
        }
    }

    pub(crate) fn answer(op: u64, status: Status) -> Self {
        Self {
            status: status as u8,
            ..Self::new(Kind::Answer, op, Vec::new())
        }
    }

    fn bytes(&self) -> usize {
        self.payload.iter().map(Span::len).sum()
    }
}

struct Started {
    head: Vec<u8>,
    sent: usize,
    payload: VecDeque<Span>,
    descriptor: Option<OwnedFd>,
}

struct Out {
    lane: Lane,
    queue: VecDeque<Frame>,
    started: Option<Started>,
    armed: bool,
}

struct Payload {
    header: Header,
    incoming: Incoming,
    left: usize,
    whole: bool,
}

struct Input {
    lane: Lane,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    descriptors: VecDeque<OwnedFd>,
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
            input: Mutex::new(Input {
                lane: receiving,
                buffer: vec![0; HEADER + MAX_BODY + PEEK],
                start: 0,
                end: 0,
                payload: None,
                descriptors: VecDeque::new(),
            }),
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

    /// Sends what the socket takes.
    fn flush(&self, out: &mut Out, turn: &mut usize) -> io::Result<()> {
        loop {
            if out.started.is_none() {
                let Some(frame) = out.queue.pop_front() else {
                    return Ok(());
                };
                out.started = Some(self.begin(&mut out.lane, frame));
            }
            let Some(started) = out.started.as_mut() else {
                return Ok(());
            };
            match self.advance(started, turn) {
                Ok(true) => out.started = None,
                Ok(false) => return Ok(()),
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if *turn == 0 {
                return Ok(());
            }
        }
    }

    fn begin(&self, lane: &mut Lane, frame: Frame) -> Started {
        let bytes = frame.bytes();
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut head = lane.seal(frame.kind, frame.status, frame.op, &frame.body, length);
        let mut payload = frame.payload;
        if bytes <= INLINE {
            for span in payload.drain(..) {
                let at = head.len();
                head.resize(at + span.len(), 0);
                span.get(&mut head[at..]);
            }
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
        }
        Started {
            head,
            sent: 0,
            payload,
            descriptor: frame.descriptor,
        }
    }

    /// Sends more of a started frame; answers whether all of it is out.
    fn advance(&self, started: &mut Started, turn: &mut usize) -> io::Result<bool> {
        while started.sent < started.head.len() {
            let rest = &started.head[started.sent..];
            let sent = match started.descriptor.take() {
                Some(descriptor) => {
                    let result = self.send_with(rest, descriptor.as_fd());
                    if result.as_ref().is_err_and(would_block) {
                        started.descriptor = Some(descriptor);
                    }
                    result?
                }
                None => {
                    let more = if started.payload.is_empty() {
                        SendFlags::empty()
                    } else {
                        SendFlags::MORE
                    };
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more;
                    rustix::net::send(&self.socket, rest, flags)?
                }
            };
            started.sent += sent;
            *turn = turn.saturating_sub(sent);
        }
        while let Some(span) = started.payload.pop_front() {
            if *turn == 0 {
                started.payload.push_front(span);
                return Ok(false);
            }
            let result = span.send_to(self.socket.as_fd());
            let sent = match result {
                Ok(sent) => sent,
                Err(error) => {
                    started.payload.push_front(span);
                    return Err(error);
                }
            };
            self.queued.fetch_sub(sent, Ordering::Relaxed);
            *turn = turn.saturating_sub(sent);
            if sent < span.len() {
                started.payload.push_front(span.skip(sent));
            }
        }
        Ok(true)
    }

    fn send_with(&self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let fds = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(sendmsg(
            &self.socket,
            &[io::IoSlice::new(bytes)],
            &mut control,
            flags,
        )?)
    }

    /// Takes what has arrived, up to a turn's worth.
    fn receive(self: &Arc<Self>) -> Result<(), String> {
        let handler = self.handler.get().and_then(Weak::upgrade);
        let Some(handler) = handler else {
            return Err("nobody handles it any more".into());
        };
        let mut input = locked(&self.input);
        let mut turn = TURN;
        while turn > 0 && !self.is_broken() {
            let moved = if input.payload.is_some() {
                self.receive_payload(&mut input, &*handler)
            } else {
                self.receive_head(&mut input, &*handler)
            };
            match moved {
                Ok(moved) => turn = turn.saturating_sub(moved),
                Err(Stop::NoMore) => return Ok(()),
                Err(Stop::Ended(why)) => return Err(why),
            }
        }
        Ok(())
    }

    fn receive_head(
        self: &Arc<Self>,
        input: &mut Input,
        handler: &dyn Handler,
    ) -> Result<usize, Stop> {
        let violated =
            |Violation(what): Violation| Stop::Ended(format!("it broke the protocol: {what}"));
        let have = &input.buffer[input.start..input.end];
        let mut need = HEADER;
        if let Some(head) = have.first_chunk::<HEADER>() {
            let header = Lane::peek(head).map_err(violated)?;
            need = HEADER + usize::from(header.body);
            if let Some(body) = have.get(HEADER..need) {
                input.lane.open(head, body).map_err(violated)?;
                if !self.bulk && header.payload > 0 {
                    return Err(violated(Violation("a payload where none belongs")));
                }
                let descriptor = match header.kind {
                    Kind::Mapped => input.descriptors.pop_front(),
                    _ => None,
                };
                let incoming = handler
                    .frame(self, &header, body, descriptor)
                    .map_err(violated)?;
                input.start += need;
                let whole = incoming.status == Status::Done;
                input.payload = Some(Payload {
                    left: header.payload as usize,
                    header,
                    incoming,
                    whole,
                });
                return Ok(0);
            }
        }
        if input.start > 0 {
            input.buffer.copy_within(input.start..input.end, 0);
            input.end -= input.start;
            input.start = 0;
        }
        let most = need.max(PEEK).min(input.buffer.len());
        let got = if self.bulk {
            let room = &mut input.buffer[input.end..most];
            rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT)
                .map(|(got, _)| got)
                .map_err(io::Error::from)
        } else {
            self.receive_with(input, most)
        };
        let got = arrived(got)?;
        input.end += got;
        self.heard.fetch_add(1, Ordering::Relaxed);
        Ok(got)
    }

    fn receive_with(&self, input: &mut Input, most: usize) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut input.buffer[input.end..most];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            &self.socket,
            &mut [io::IoSliceMut::new(room)],
            &mut control,
            flags,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                input.descriptors.extend(descriptors);
            }
        }
        // What nobody announced is closed here.
        input.descriptors.truncate(MAX_DESCRIPTORS);
        Ok(got.bytes)
    }

    fn receive_payload(
        self: &Arc<Self>,
        input: &mut Input,
        handler: &dyn Handler,
    ) -> Result<usize, Stop> {
        let Some(payload) = input.payload.as_mut() else {
            return Ok(0);
        };
        let mut moved = 0;
        if payload.left > 0 {
            let ahead = &input.buffer[input.start..input.end];
            let ahead = &ahead[..ahead.len().min(payload.left)];
            let buffered = !ahead.is_empty();
            let step = |span: &Span| {
                if buffered {
                    Ok(span.put(ahead))
                } else {
                    span.receive(self.socket.as_fd())
                }
            };
            let landed = payload
                .incoming
                .landing
                .as_mut()
                .and_then(|landing| self.land(landing, step));
            moved = match landed {
                Some(result) => arrived(result)?,
                None => {
                    payload.incoming.landing = None;
                    payload.whole = false;
                    if buffered {
                        ahead.len()
                    } else {
                        arrived(discard(self.socket.as_fd(), payload.left))?
                    }
                }
            };
            if buffered {
                input.start += moved;
            }
            payload.left -= moved;
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        if payload.left == 0
            && let Some(payload) = input.payload.take()
        {
            handler.landed(self, &payload.header, &payload.incoming, payload.whole);
        }
        Ok(moved)
    }

    /// One step into memory, inside all gates; `None` when one of them is shut.
    fn land(
        &self,
        landing: &mut Landing,
        step: impl FnOnce(&Span) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let _ours = self.gate.enter()?;
        let _region = landing.region.gate.enter()?;
        let _flight = match &landing.flight {
            Some(gate) => Some(gate.enter()?),
            None => None,
        };
        let span = landing.spans.front()?;
        let result = step(span);
        if let Ok(moved) = result {
            let rest = span.skip(moved);
            landing.spans.pop_front();
            if rest.len() > 0 {
                landing.spans.push_front(rest);
            }
        }
        Some(result)
    }
}

/// Why receiving stops.
enum Stop {
    /// Nothing has arrived yet.
    NoMore,
    /// The connection is at its end.
    Ended(String),
}

fn arrived(result: io::Result<usize>) -> Result<usize, Stop> {
    match result {
        Ok(0) => Err(Stop::Ended("it closed the connection".into())),
        Ok(moved) => Ok(moved),
        Err(error) if would_block(&error) => Err(Stop::NoMore),
        Err(error) => Err(Stop::Ended(error.to_string())),
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
