//! What goes over a connection once it is authenticated: frames.
//!
//! A frame is a header of [`HEADER`] bytes, a body of up to [`MAX_BODY`] bytes, and a payload of up
//! to [`MAX_PAYLOAD`]. Header and body carry a keyed tag and a number that counts up by one, so a
//! frame that was made up, changed, repeated or left out ends the connection. The payload is bulk
//! data: it is neither encrypted nor authenticated, like that of RDMA and NVMe-oF.

use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::identity::{Capability, Incarnation};
use super::provider::Segment;

/// The version of the protocol.
pub(crate) const PROTOCOL_VERSION: u16 = 4;
/// Bytes of a header.
pub(crate) const HEADER: usize = 40;
/// Bytes of a header that the tag covers.
const SEALED: usize = 24;
/// The longest message between two applications.
pub const MAX_MESSAGE: usize = 32 << 10;
/// The longest body.
pub(crate) const MAX_BODY: usize = MAX_MESSAGE + 64;
/// The longest payload.
pub(crate) const MAX_PAYLOAD: u32 = 4 << 20;
/// The most ops that one answer tells of besides its own.
pub(crate) const MAX_ALSO: usize = 256;
/// The most segments of one write or read.
pub(crate) const MAX_SEGMENTS: usize = 256;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Who this is and what it can do.
    Hello = 1,
    /// Which rails were joined.
    Ready = 2,
    /// Are you there?
    Ping = 3,
    /// Yes.
    Pong = 4,
    /// A message of the application.
    Message = 5,
    /// A barrier was reached.
    Barrier = 6,
    /// The sender ends the connection on purpose.
    Bye = 7,
    /// A rail is down at the sender's end, or worn.
    Fallen = 8,
    /// Half of a link for a rail that is to be made anew.
    Mend = 9,
    /// The other half.
    Mended = 10,
    /// The sender has joined the two halves, or could not.
    Joined = 11,
    /// Compute the checksum of parts of a region.
    Sum = 12,
    /// Here it is.
    Summed = 13,
    /// Put the payload into a region, then count a value.
    Write = 16,
    /// What became of a frame that wants an answer.
    Answer = 17,
    /// Send me parts of a region.
    Read = 18,
    /// The parts asked for.
    Data = 19,
    /// Let me map a region.
    Map = 32,
    /// Here it is, as a file descriptor.
    Mapped = 33,
    /// Let go of a region.
    Unmap = 34,
    /// The end of a pipe that is cut when nothing of yours is mapped here any more.
    Tether = 35,
}

impl Kind {
    pub(super) const ALL: [Self; 21] = [
        Self::Hello,
        Self::Ready,
        Self::Ping,
        Self::Pong,
        Self::Message,
        Self::Barrier,
        Self::Bye,
        Self::Fallen,
        Self::Mend,
        Self::Mended,
        Self::Joined,
        Self::Sum,
        Self::Summed,
        Self::Write,
        Self::Answer,
        Self::Read,
        Self::Data,
        Self::Map,
        Self::Mapped,
        Self::Unmap,
        Self::Tether,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A header as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub status: u8,
    pub body: u16,
    pub payload: u32,
    pub op: u64,
}

/// Why a frame is not acceptable; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub &'static str);

/// One direction of a connection: its key and the number of the next frame.
pub(crate) struct Lane {
    key: [u8; 32],
    next: u64,
}

impl Lane {
    pub(crate) const fn new(key: [u8; 32]) -> Self {
        Self { key, next: 0 }
    }

    /// Header and body of the next frame.
    pub(crate) fn seal(
        &mut self,
        kind: Kind,
        status: u8,
        op: u64,
        body: &[u8],
        payload: u32,
    ) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER + body.len());
        self.seal_behind(&mut frame, kind, status, op, body, payload);
        frame
    }

    /// Puts header and body of the next frame behind what is there.
    pub(crate) fn seal_behind(
        &mut self,
        frames: &mut Vec<u8>,
        kind: Kind,
        status: u8,
        op: u64,
        body: &[u8],
        payload: u32,
    ) {
        let at = frames.len();
        frames.extend_from_slice(&[kind as u8, status]);
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        frames.extend_from_slice(&length.to_le_bytes());
        frames.extend_from_slice(&payload.to_le_bytes());
        frames.extend_from_slice(&self.next.to_le_bytes());
        frames.extend_from_slice(&op.to_le_bytes());
        self.next += 1;
        let tag = tag(&self.key, &frames[at..], body);
        frames.extend_from_slice(&tag);
        frames.extend_from_slice(body);
    }

    /// Reads a header without believing it yet, to know how long the body is.
    pub(crate) fn peek(bytes: &[u8; HEADER]) -> Result<Header, Violation> {
        let mut fields = Reader::new(bytes);
        let mut read = || {
            let header = (fields.u8()?, fields.u8()?, fields.u16()?, fields.u32()?);
            let _number = fields.u64()?;
            Some((header, fields.u64()?))
        };
        let ((kind, status, body, payload), op) = read().ok_or(Violation("a short header"))?;
        let kind = Kind::of(kind).ok_or(Violation("a frame of an unknown kind"))?;
        if usize::from(body) > MAX_BODY {
            return Err(Violation("an oversize body"));
        }
        if payload > MAX_PAYLOAD {
            return Err(Violation("an oversize payload"));
        }
        Ok(Header {
            kind,
            status,
            body,
            payload,
            op,
        })
    }

    /// Checks that header and body are the next frame of this connection.
    pub(crate) fn open(&mut self, bytes: &[u8; HEADER], body: &[u8]) -> Result<(), Violation> {
        let (sealed, theirs) = bytes.split_at(SEALED);
        if !same(&tag(&self.key, sealed, body), theirs) {
            return Err(Violation("a frame with a wrong tag"));
        }
        let mut number = Reader::new(&sealed[8..]);
        if number.u64() != Some(self.next) {
            return Err(Violation("a frame out of turn"));
        }
        self.next += 1;
        Ok(())
    }
}

fn tag(key: &[u8; 32], sealed: &[u8], body: &[u8]) -> [u8; HEADER - SEALED] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(sealed);
    hasher.update(body);
    let hash = *hasher.finalize().as_bytes();
    let mut tag = [0; HEADER - SEALED];
    tag.copy_from_slice(&hash[..HEADER - SEALED]);
    tag
}

/// Compares without telling by its time where the first difference is.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// What became of a frame that wanted an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done = 0,
    NoSuchRegion = 1,
    OutOfBounds = 2,
    NotAllowed = 3,
    QueueFull = 4,
    NotMappable = 5,
    DeviceFailed = 6,
}

impl Status {
    pub(crate) const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::NoSuchRegion,
            2 => Self::OutOfBounds,
            3 => Self::NotAllowed,
            4 => Self::QueueFull,
            5 => Self::NotMappable,
            6 => Self::DeviceFailed,
            _ => return None,
        })
    }

    /// The error for the caller at the end that asked.
    pub(crate) fn error(
        self,
        peer: Incarnation,
        len: u64,
        what: &'static str,
    ) -> Result<(), FabricError> {
        Err(match self {
            Self::Done => return Ok(()),
            Self::NoSuchRegion => FabricError::NoSuchRegion { peer },
            Self::OutOfBounds => FabricError::OutOfBounds {
                start: 0,
                end: 0,
                len,
            },
            Self::NotAllowed | Self::NotMappable => FabricError::NotAllowed { what },
            Self::DeviceFailed => FabricError::GpuFailed {
                gpu: format!("a GPU of peer {peer}"),
                why: "it does not say how".into(),
            },
            Self::QueueFull => FabricError::QueueFull {
                what: "messages or values at the peer",
                limit: super::counter::MAX_COUNTERS,
            },
        })
    }
}

/// Bytes of an access with a value, and of each of its runs.
const ACCESS: usize = 31;
const RUN: usize = 12;

/// The body of a write or a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub capability: Capability,
    /// The value to count, and its transfer.
    pub imm: Option<(u32, u64)>,
    /// Offsets in the region, and lengths.
    pub runs: Vec<(u64, u32)>,
}

impl Access {
    pub(crate) fn new(
        capability: Capability,
        imm: Option<(u32, u64)>,
        segments: &[Segment],
    ) -> Self {
        Self {
            capability,
            imm,
            runs: segments.iter().map(|s| (s.remote, s.len)).collect(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(ACCESS + RUN * self.runs.len());
        out.raw(self.capability.as_bytes());
        match self.imm {
            None => out.u8(0),
            Some((imm, flight)) => out.u8(1).u32(imm).u64(flight),
        };
        out.u16(u16::try_from(self.runs.len()).unwrap_or(u16::MAX));
        for (offset, len) in &self.runs {
            out.u64(*offset).u32(*len);
        }
        out.finish()
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        let capability = Capability::from_bytes(fields.array()?);
        let imm = match fields.u8()? {
            0 => None,
            1 => Some((fields.u32()?, fields.u64()?)),
            _ => return None,
        };
        let count = usize::from(fields.u16()?);
        if count > MAX_SEGMENTS {
            return None;
        }
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            runs.push((fields.u64()?, fields.u32()?));
        }
        fields.is_done().then_some(Self {
            capability,
            imm,
            runs,
        })
    }

    /// Bytes of all runs.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, len)| u64::from(*len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lanes() -> (Lane, Lane) {
        (Lane::new([3; 32]), Lane::new([3; 32]))
    }

    fn opened(lane: &mut Lane, frame: &[u8]) -> Result<Header, Violation> {
        let (head, body) = frame.split_first_chunk().ok_or(Violation("short"))?;
        let header = Lane::peek(head)?;
        lane.open(head, body)?;
        Ok(header)
    }

    #[test]
    fn a_frame_is_accepted_once_and_in_turn() {
        let (mut ours, mut theirs) = lanes();
        let first = ours.seal(Kind::Ping, 0, 1, b"one", 0);
        let second = ours.seal(Kind::Ping, 0, 2, b"two", 0);
        assert!(opened(&mut theirs, &first).is_ok());
        let replayed = opened(&mut theirs, &first);
        assert_eq!(replayed, Err(Violation("a frame out of turn")));
        assert!(opened(&mut theirs, &second).is_ok());
    }

    #[test]
    fn a_frame_of_another_key_is_refused() {
        let mut theirs = Lane::new([4; 32]);
        let frame = lanes().0.seal(Kind::Write, 0, 1, b"body", 9);
        assert_eq!(
            opened(&mut theirs, &frame),
            Err(Violation("a frame with a wrong tag"))
        );
    }

    #[test]
    fn oversize_lengths_are_refused_before_anything_is_read() {
        let (mut ours, mut theirs) = lanes();
        let frame = ours.seal(Kind::Write, 0, 1, &[], MAX_PAYLOAD + 1);
        assert_eq!(
            opened(&mut theirs, &frame),
            Err(Violation("an oversize payload"))
        );
        let frame = ours.seal(Kind::Message, 0, 1, &vec![0; MAX_BODY + 1], 0);
        assert_eq!(
            opened(&mut theirs, &frame),
            Err(Violation("an oversize body"))
        );
    }

    proptest! {
        #[test]
        fn any_change_of_header_or_body_is_noticed(at in 0usize..HEADER + 30, bit in 0u8..8) {
            let (mut ours, mut theirs) = lanes();
            let mut frame = ours.seal(Kind::Write, 1, 77, &[5; 30], 4096);
            frame[at] ^= 1 << bit;
            prop_assert!(opened(&mut theirs, &frame).is_err());
        }

        #[test]
        fn no_body_makes_the_reader_panic_and_what_it_reads_is_what_was_written(
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Some(access) = Access::decode(&body) {
                prop_assert_eq!(access.encode(), body);
            }
        }
    }
}
