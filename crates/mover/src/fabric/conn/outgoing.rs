//! Frames on their way out.

use super::*;
use crate::fabric::memory::gather;

/// Payloads up to this size are copied behind their header, which saves a system call.
pub(super) const INLINE: usize = 8 << 10;
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

    /// Whether it goes out at once, from the thread that sends it, where nothing is before it.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes() <= INLINE
    }

    pub(super) fn bytes(&self) -> usize {
        self.payload.iter().map(Span::len).sum()
    }
}

pub(super) struct Started {
    head: Vec<u8>,
    sent: usize,
    payload: VecDeque<Span>,
    descriptor: Option<OwnedFd>,
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
    pub watcher: Watcher,
    /// What the reactor is told of.
    pub told_of: EventFlags,
}

impl Out {
    /// Whether there is nothing to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.started.is_none() && self.queue.is_empty()
    }
}

impl Conn {
    /// Sends what the socket takes.
    pub(super) fn flush(&self, out: &mut Out, turn: &mut usize) -> io::Result<()> {
        loop {
            if out.started.is_none() {
                let Some(frame) = out.queue.pop_front() else {
                    return Ok(());
                };
                out.started = Some(self.begin(&mut out.lane, frame)?);
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

    fn begin(&self, lane: &mut Lane, frame: Frame) -> io::Result<Started> {
        let bytes = frame.bytes();
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut head = lane.seal(frame.kind, frame.status, frame.op, &frame.body, length);
        let mut payload = frame.payload;
        if bytes <= INLINE {
            for span in payload.drain(..) {
                let at = head.len();
                head.resize(at + span.len(), 0);
                span.get(&mut head[at..])?;
            }
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
        }
        Ok(Started {
            head,
            sent: 0,
            payload,
            descriptor: frame.descriptor,
        })
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
                None => self.send_head(rest, &started.payload)?,
            };
            let of_head = sent.min(started.head.len() - started.sent);
            started.sent += of_head;
            self.sent_of(&mut started.payload, sent - of_head);
            *turn = turn.saturating_sub(sent);
        }
        while started.payload.len() > 1 && *turn > 0 {
            let Some(sent) = gather::send(self.socket.as_fd(), &[], &started.payload, FLAGS) else {
                break;
            };
            let sent = sent?;
            self.sent_of(&mut started.payload, sent);
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

    /// Sends a head, together with what follows where that is host memory.
    fn send_head(&self, head: &[u8], payload: &VecDeque<Span>) -> io::Result<usize> {
        if payload.is_empty() {
            return Ok(rustix::net::send(&self.socket, head, SENDING)?);
        }
        match gather::send(self.socket.as_fd(), head, payload, FLAGS) {
            Some(sent) => sent,
            None => Ok(rustix::net::send(
                &self.socket,
                head,
                SENDING | SendFlags::MORE,
            )?),
        }
    }

    /// So many bytes of a payload are out.
    fn sent_of(&self, payload: &mut VecDeque<Span>, mut sent: usize) {
        self.queued.fetch_sub(sent, Ordering::Relaxed);
        while let Some(span) = payload.pop_front() {
            if sent < span.len() {
                payload.push_front(span.skip(sent));
                return;
            }
            sent -= span.len();
        }
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
