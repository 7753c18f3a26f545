//! Frames on their way out.

use super::*;
use crate::fabric::memory::gather::{self, Staged};

/// Payloads up to this size are copied behind their header, which saves a system call.
pub(super) const INLINE: usize = 8 << 10;
/// The most characters that are sent of what a GPU answered.
pub(in crate::fabric) const MAX_WHY: usize = 1024;
/// Frames go out together until they are that long.
const TOGETHER: usize = 16 << 10;
/// How bytes are sent: nothing blocks, and a closed connection is an error.
const SENDING: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

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

    /// The answer that a GPU failed, and how.
    pub(crate) fn failed(op: u64, why: &str) -> Self {
        Self {
            body: why.chars().take(MAX_WHY).collect::<String>().into_bytes(),
            ..Self::answer(op, Status::DeviceFailed)
        }
    }

    /// Whether it goes out at once, from the thread that sends it, where nothing is before it.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes() <= INLINE
    }

    pub(super) fn bytes(&self) -> usize {
        self.payload.iter().map(Span::len).sum()
    }
}

/// Frames that are being sent.
#[derive(Default)]
pub(super) struct Started {
    /// What they are, but for the payload of the last where that is long.
    head: Vec<u8>,
    sent: usize,
    payload: Staged,
    /// Goes with the one frame that there is.
    descriptor: Option<OwnedFd>,
}

impl Started {
    /// Whether a frame can go out together with those that are here.
    fn takes(&self, next: Option<&Frame>) -> bool {
        let alone = |frame: &Frame| frame.descriptor.is_some();
        let room = self.head.len() < TOGETHER && self.descriptor.is_none();
        self.head.is_empty() || (room && next.is_some_and(|next| !alone(next)))
    }

    /// Seals a frame behind those that are here, once all of its payload is where a socket takes it from.
    fn add(&mut self, lane: &mut Lane, frame: Frame) -> io::Result<()> {
        let bytes = frame.bytes();
        let payload = gather::stage(frame.payload)?;
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let sealed = lane.seal(frame.kind, frame.status, frame.op, &frame.body, length);
        match self.head.is_empty() {
            true => self.head = sealed,
            false => self.head.extend_from_slice(&sealed),
        }
        self.descriptor = frame.descriptor;
        if bytes > INLINE {
            self.payload = payload;
            return Ok(());
        }
        for span in &payload.spans {
            let at = self.head.len();
            self.head.resize(at + span.len(), 0);
            span.get(&mut self.head[at..])?;
        }
        Ok(())
    }
}

/// Who sees to what the socket has and takes.
pub(super) enum Watcher {
    /// A thread of the reactor.
    Reactor,
    /// The thread of a caller that waits for something that comes by it. It sleeps without noticing
    /// that there is room, where it last saw nothing to be sent, and is kicked when there is.
    Caller { kick: Arc<Kick>, hears_room: bool },
    /// Nobody since a caller's thread left it, which is expected back; the reactor looks after it soon.
    Nobody(Instant),
}

pub(super) struct Out {
    pub lane: Lane,
    pub queue: VecDeque<Frame>,
    pub started: Option<Started>,
    /// Frames whose payload a GPU did not give, which their owner is told of by whoever watches the socket.
    pub unsent: Vec<(u64, String)>,
    pub watcher: Watcher,
    /// What the reactor is told of.
    pub told_of: EventFlags,
}

impl Out {
    /// Whether there is nothing to be sent or told.
    pub(super) fn is_idle(&self) -> bool {
        self.started.is_none() && self.queue.is_empty() && self.unsent.is_empty()
    }

    /// A frame's payload cannot be had from its GPU: who asked for it is answered so, or who wanted to send
    /// it is told.
    fn give_up(&mut self, kind: Kind, op: u64, why: &io::Error) {
        match kind {
            Kind::Data => self.queue.push_front(Frame::failed(op, &why.to_string())),
            _ => self.unsent.push((op, why.to_string())),
        }
    }
}

impl Conn {
    /// Sends what the socket takes.
    pub(super) fn flush(&self, out: &mut Out, turn: &mut usize) -> io::Result<()> {
        loop {
            if out.started.is_none() {
                out.started = self.begin(out);
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

    /// Starts the frames that go out together: short ones one behind the other, and one whose payload
    /// is sent from where it lies as the last.
    fn begin(&self, out: &mut Out) -> Option<Started> {
        let mut started = Started::default();
        while started.takes(out.queue.front()) {
            let Some(frame) = out.queue.pop_front() else {
                break;
            };
            let (kind, op, bytes) = (frame.kind, frame.op, frame.bytes());
            match started.add(&mut out.lane, frame) {
                Ok(()) if bytes > INLINE => break,
                Ok(()) => {}
                Err(why) => out.give_up(kind, op, &why),
            }
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
        }
        (!started.head.is_empty()).then_some(started)
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
                None => self.send_head(rest, &started.payload.spans)?,
            };
            let of_head = sent.min(started.head.len() - started.sent);
            started.sent += of_head;
            self.sent_of(&mut started.payload.spans, sent - of_head);
            *turn = turn.saturating_sub(sent);
        }
        let payload = &mut started.payload.spans;
        while payload.len() > 1 && *turn > 0 {
            let sent = gather::send(self.socket.as_fd(), &[], payload, FLAGS)?;
            self.sent_of(payload, sent);
            *turn = turn.saturating_sub(sent);
        }
        while let Some(span) = payload.pop_front() {
            if *turn == 0 {
                payload.push_front(span);
                return Ok(false);
            }
            let result = span.send_to(self.socket.as_fd());
            let sent = match result {
                Ok(sent) => sent,
                Err(error) => {
                    payload.push_front(span);
                    return Err(error);
                }
            };
            self.queued.fetch_sub(sent, Ordering::Relaxed);
            *turn = turn.saturating_sub(sent);
            if sent < span.len() {
                payload.push_front(span.skip(sent));
            }
        }
        Ok(true)
    }

    /// Sends a head, together with what follows.
    fn send_head(&self, head: &[u8], payload: &VecDeque<Span>) -> io::Result<usize> {
        if payload.is_empty() {
            return Ok(rustix::net::send(&self.socket, head, SENDING)?);
        }
        gather::send(self.socket.as_fd(), head, payload, FLAGS)
    }

    /// So many bytes of a payload are out.
    fn sent_of(&self, payload: &mut VecDeque<Span>, sent: usize) {
        self.queued.fetch_sub(sent, Ordering::Relaxed);
        skip(payload, sent);
    }

    fn send_with(&self, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
        let fds = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let bytes = [io::IoSlice::new(bytes)];
        Ok(sendmsg(&self.socket, &bytes, &mut control, SENDING)?)
    }
}
