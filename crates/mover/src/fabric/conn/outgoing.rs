//! Frames on their way out.

use super::*;

/// Payloads up to this size are copied behind their header, which saves a system call.
pub(super) const INLINE: usize = 8 << 10;

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

pub(super) struct Out {
    pub lane: Lane,
    pub queue: VecDeque<Frame>,
    pub started: Option<Started>,
    pub armed: bool,
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
}
