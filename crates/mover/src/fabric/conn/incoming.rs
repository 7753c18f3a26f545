//! Frames on their way in, and the payloads behind them.

use super::*;
use crate::fabric::memory::gather;

/// Received at once where a header is expected, behind a payload as well: room for a hundred answers.
const PEEK: usize = 4 << 10;
/// Payload bytes that came before those who sent them are told, where more of them are coming: answers to
/// small writes go out together, and whoever has few large ones under way is not kept waiting for all.
const ANSWERED: usize = 256 << 10;
/// Descriptors that may wait for the frame they belong to.
const MAX_DESCRIPTORS: usize = 4;

pub(super) struct Payload {
    header: Header,
    incoming: Incoming,
    left: usize,
    landed: Landed,
}

pub(super) struct Input {
    lane: Lane,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    descriptors: VecDeque<OwnedFd>,
}

impl Input {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            lane,
            buffer: vec![0; HEADER + MAX_BODY + PEEK],
            start: 0,
            end: 0,
            payload: None,
            descriptors: VecDeque::new(),
        }
    }
}

impl Conn {
    /// Takes what has arrived, up to a turn's worth.
    pub(super) fn receive(
        self: &Arc<Self>,
        moved: &mut bool,
        since: &mut Instant,
    ) -> Result<(), String> {
        let handler = self.handler.get().and_then(Weak::upgrade);
        let Some(handler) = handler else {
            return Err("nobody handles it any more".into());
        };
        // Who else has the lock receives what there is.
        let Some(mut input) = tried(&self.input) else {
            return Ok(());
        };
        let mut turn = TURN;
        let mut unanswered = 0;
        while turn > 0 && !self.is_broken() {
            let step = if input.payload.is_some() {
                self.receive_payload(&mut input, &*handler, since)
            } else {
                self.receive_head(&mut input, &*handler)
            };
            match step {
                Ok(step) => {
                    *moved = true;
                    turn = turn.saturating_sub(step);
                    unanswered += step;
                    if unanswered >= ANSWERED && input.payload.is_none() {
                        unanswered = 0;
                        self.empty(moved)?;
                    }
                }
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
                    Kind::Mapped | Kind::Tether => input.descriptors.pop_front(),
                    _ => None,
                };
                let incoming = handler
                    .frame(self, &header, body, descriptor)
                    .map_err(violated)?;
                input.start += need;
                let landed = match incoming.status {
                    Status::Done => Landed::Whole,
                    _ => Landed::Dropped,
                };
                input.payload = Some(Payload {
                    left: header.payload as usize,
                    header,
                    incoming,
                    landed,
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
        since: &mut Instant,
    ) -> Result<usize, Stop> {
        let Some(payload) = input.payload.as_mut() else {
            return Ok(0);
        };
        let mut moved = 0;
        if payload.left > 0 {
            let buffered = input.start < input.end;
            let (ahead, room) = match buffered {
                true => (&input.buffer[input.start..input.end], None),
                false => {
                    (input.start, input.end) = (0, 0);
                    (Default::default(), input.buffer.get_mut(..PEEK))
                }
            };
            let ahead = &ahead[..ahead.len().min(payload.left)];
            let left = payload.left;
            let step = |spans: &VecDeque<Span>| match room {
                None => spans.front().map(|span| span.put(ahead)),
                Some(room) => self.receive_into(spans, left, room),
            };
            let landed = payload
                .incoming
                .landing
                .as_mut()
                .and_then(|landing| self.land(landing, step));
            let got = match landed {
                Some(Err(error)) if Fault::of(&error).is_some() => {
                    payload.incoming.landing = None;
                    payload.landed = Landed::Failed(error.to_string());
                    let taken = Fault::of(&error).map_or(0, |fault| fault.taken);
                    if buffered { ahead.len() } else { taken }
                }
                Some(result) => arrived(result)?,
                None => {
                    payload.incoming.landing = None;
                    if payload.landed == Landed::Whole {
                        payload.landed = Landed::Dropped;
                    }
                    if buffered {
                        ahead.len()
                    } else {
                        arrived(discard(self.socket.as_fd(), payload.left))?
                    }
                }
            };
            moved = got.min(payload.left);
            match buffered {
                true => input.start += moved,
                false => input.end = got - moved,
            }
            payload.left -= moved;
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        if payload.left == 0
            && let Some(payload) = input.payload.take()
        {
            // The account of what ends now is made up there.
            self.charge(since);
            handler.landed(self, &payload.header, &payload.incoming, payload.landed);
        }
        Ok(moved)
    }

    /// Receives what is left of a payload into memory and, where that is a host's, what follows into
    /// `room`; `None` where the memory is not of that length.
    fn receive_into(
        &self,
        spans: &VecDeque<Span>,
        left: usize,
        room: &mut [u8],
    ) -> Option<io::Result<usize>> {
        if spans.iter().map(Span::len).sum::<usize>() != left {
            return None;
        }
        let socket = self.socket.as_fd();
        gather::receive(socket, spans, room)
            .or_else(|| spans.front().map(|span| span.receive(socket)))
    }

    /// One step into memory, inside all gates; `None` when one of them is shut. It may answer more bytes
    /// than there was memory for.
    fn land(
        &self,
        landing: &mut Landing,
        step: impl FnOnce(&VecDeque<Span>) -> Option<io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        let _ours = self.gate.enter()?;
        let _region = landing.region.gate.enter()?;
        let _flight = match &landing.flight {
            Some(gate) => Some(gate.enter()?),
            None => None,
        };
        let result = step(&landing.spans)?;
        if let Ok(moved) = result {
            skip(&mut landing.spans, moved);
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
