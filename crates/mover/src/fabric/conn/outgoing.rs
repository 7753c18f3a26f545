//! Frames on their way out.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::*;
use crate::fabric::memory::gather::{self, Staged};

/// Payloads up to this size are copied behind their header, which saves a system call.
pub(super) const INLINE: usize = 8 << 10;
/// The most characters that are sent of what a GPU answered.
pub(in crate::fabric) const MAX_WHY: usize = 1024;
/// Frames that wait to be sent before each op that went well is answered by itself: those that are counted.
pub(super) const CALM: usize = 64;
/// Short frames are joined until they are that long.
const TOGETHER: usize = 16 << 10;
/// Frames with payloads of their own go out by one call until they are that long.
const BY_ONE_CALL: usize = 256 << 10;
/// So much is kept back for one call by who posts again and again and waits in between.
const KEPT_BACK: usize = BY_ONE_CALL;
/// Ops on their way from which on more may be kept back: their ends come meanwhile.
const AHEAD: usize = 2;
/// How long after its last wait somebody is expected to wait again at once.
pub(super) const AT_ONCE: Duration = Duration::from_micros(100);
/// How bytes are sent: nothing blocks, and a closed connection is an error.
const SENDING: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

thread_local! {
    /// Connections by which the thread keeps something back.
    static KEPT: RefCell<Vec<Weak<Conn>>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread waited for a transfer since it last took a connection over from the reactor.
    static WAITED: Cell<bool> = const { Cell::new(false) };
}

/// The thread waits for the end of a transfer, come already or not.
pub(in crate::fabric) fn waits() {
    let _ = WAITED.try_with(|waited| waited.set(true));
}

/// Sends what the thread has kept back, before it waits for anything at all.
pub(in crate::fabric) fn send_kept_back() {
    // A thread whose own memory is gone already keeps nothing back.
    let kept = KEPT.try_with(RefCell::take).unwrap_or_default();
    for conn in kept.iter().filter_map(Weak::upgrade) {
        conn.push_out(&mut locked(&conn.out));
    }
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

    /// Has the answer that an op went well tell of another one as well; whether it can.
    fn answers_also(&mut self, op: u64) -> bool {
        let done = self.kind == Kind::Answer && self.status == Status::Done as u8;
        let can = done && self.body.len() < MAX_ALSO * size_of::<u64>();
        if can {
            self.body.extend_from_slice(&op.to_le_bytes());
        }
        can
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
    /// What is not sent yet.
    fn rest(&self) -> (&[u8], &VecDeque<Span>) {
        let head = self.head.get(self.sent..).unwrap_or_default();
        (head, &self.payload.spans)
    }

    fn left(&self) -> usize {
        let (head, spans) = self.rest();
        head.len() + spans.iter().map(Span::len).sum::<usize>()
    }

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
        let (kind, status, op) = (frame.kind, frame.status, frame.op);
        lane.seal_behind(&mut self.head, kind, status, op, &frame.body, length);
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
    pub started: VecDeque<Started>,
    /// Frames whose payload a GPU did not give, which their owner is told of by whoever watches the socket.
    pub unsent: Vec<(u64, String)>,
    pub watcher: Watcher,
    /// Whether a caller's thread that has more under way may take it over from the reactor: not again
    /// before one has watched it, or those who never do would leave it to nobody each time they post.
    pub may_be_taken: bool,
    /// What the reactor is told of.
    pub told_of: EventFlags,
}

impl Out {
    /// Whether there is nothing to be sent or told.
    pub(super) fn is_idle(&self) -> bool {
        self.started.is_empty() && self.queue.is_empty() && self.unsent.is_empty()
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
    /// Queues the answer that an op went well, together with those that are queued already: hardly one of
    /// them is waited for alone.
    pub(crate) fn queue_done(&self, op: u64) {
        let mut out = locked(&self.out);
        let few = out.queue.len() <= CALM;
        let last = out.queue.back_mut().filter(|_| few);
        if !last.is_some_and(|last| last.answers_also(op)) {
            self.put(&mut out, Frame::answer(op, Status::Done));
        }
    }

    /// What came and went well is answered before the connection ends, although the thread that would have
    /// sent it did not come back.
    pub(super) fn answer_last(&self, out: &mut Out) {
        let answers = out.queue.iter().all(|frame| frame.kind == Kind::Answer);
        if out.started.is_empty() && answers {
            // Whether the other end takes them is its own affair.
            let _ = self.flush(out, &mut PUSH.clone());
        }
    }

    /// Keeps what is queued back for more, where that is better: ops before it are on their way, so
    /// `under_way` in all, and who waits for them will be back at once, with others or to wait again.
    pub(super) fn keeps_back(self: &Arc<Self>, out: &Out, under_way: usize) -> bool {
        let back = match out.watcher {
            Watcher::Nobody(since) => since.elapsed() < AT_ONCE,
            Watcher::Reactor | Watcher::Caller { .. } => false,
        };
        let before = under_way.saturating_sub(out.queue.len());
        let room = self.queued() < KEPT_BACK && !out.queue.is_empty();
        back && out.started.is_empty() && before >= AHEAD && room && self.keep_back()
    }

    /// Has the thread send what is queued before it waits for anything; whether it can.
    pub(super) fn keep_back(self: &Arc<Self>) -> bool {
        let remember = |kept: &RefCell<Vec<Weak<Self>>>| {
            let mut kept = kept.borrow_mut();
            let known = |known: &Weak<Self>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(self));
            if !kept.iter().any(known) {
                kept.push(Arc::downgrade(self));
            }
        };
        KEPT.try_with(remember).is_ok()
    }

    /// Takes the connection from the reactor for a thread that waits for what it posts, with ops before that
    /// under way; whether it did, and has to have it looked after. Otherwise the reactor would end each of
    /// them before the thread comes to wait for it, and the two be in each other's way for ever.
    pub(super) fn is_taken_over(&self, out: &mut Out, under_way: usize) -> bool {
        let reactors = matches!(out.watcher, Watcher::Reactor) && self.attachment.get().is_some();
        let taken = reactors
            && out.may_be_taken
            && under_way > AHEAD
            && WAITED.try_with(Cell::take).unwrap_or_default();
        if taken {
            out.may_be_taken = false;
            out.watcher = Watcher::Nobody(Instant::now());
            self.arm(out);
        }
        taken
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&self, out: &mut Out, turn: &mut usize) -> io::Result<()> {
        loop {
            let mut together: usize = out.started.iter().map(Started::left).sum();
            while together < BY_ONE_CALL && out.started.len() < self.frames_of_one_call() {
                let Some(started) = self.begin(out) else {
                    break;
                };
                together += started.left();
                out.started.push_back(started);
            }
            if out.started.is_empty() {
                return Ok(());
            }
            match self.advance(&mut out.started) {
                Ok(sent) => *turn = turn.saturating_sub(sent),
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if *turn == 0 {
                return Ok(());
            }
        }
    }

    /// A descriptor goes with bytes of its own frame.
    const fn frames_of_one_call(&self) -> usize {
        if self.bulk { 8 } else { 1 }
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

    /// Sends more of the started frames; answers how much.
    fn advance(&self, started: &mut VecDeque<Started>) -> io::Result<usize> {
        let Some(first) = started.front_mut() else {
            return Ok(0);
        };
        let sent = match first.descriptor.take() {
            Some(descriptor) => {
                let result = self.send_with(&first.head[first.sent..], descriptor.as_fd());
                if result.as_ref().is_err_and(would_block) {
                    first.descriptor = Some(descriptor);
                }
                result?
            }
            None => self.send_all(started)?,
        };
        let mut through = sent;
        while let Some(first) = started.front_mut() {
            let of_head = through.min(first.head.len() - first.sent);
            first.sent += of_head;
            through -= of_head;
            let payload: usize = first.payload.spans.iter().map(Span::len).sum();
            let of_payload = through.min(payload);
            self.queued.fetch_sub(of_payload, Ordering::Relaxed);
            skip(&mut first.payload.spans, of_payload);
            through -= of_payload;
            if first.left() > 0 {
                break;
            }
            started.pop_front();
        }
        Ok(sent)
    }

    fn send_all(&self, started: &VecDeque<Started>) -> io::Result<usize> {
        if let Some(only) = started.front().filter(|_| started.len() == 1)
            && only.payload.spans.is_empty()
        {
            let head = &only.head[only.sent..];
            return Ok(rustix::net::send(&self.socket, head, SENDING)?);
        }
        gather::send(
            self.socket.as_fd(),
            started.iter().map(Started::rest),
            FLAGS,
        )
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
