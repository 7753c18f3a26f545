//! What the two ends of a comm write into each other's memory and send each other: untrusted, bounded,
//! fixed layouts. A record carries a checksum, so that one that is only partly there is not taken for
//! the whole.

use crowfly_mover::fabric::{MAX_DESCRIPTOR, Reader, RegionDescriptor, Writer};
use xxhash_rust::xxh3::xxh3_64;

/// The most receives of one group.
pub(crate) const MAX_RECVS: usize = 8;
/// Receives, each of a group, that one comm may have under way. NCCL asks for 32 requests by comm,
/// and may have that many for each receive of a group.
pub(crate) const SLOTS: usize = 32 * MAX_RECVS;
/// Bytes between two postings.
pub(crate) const POSTING: usize = 256;
/// Bytes between two arrivals.
pub(crate) const ARRIVAL: usize = 64;
/// Bytes of the sender's ring, into which the receiver writes postings.
pub(crate) const POSTINGS: usize = SLOTS * POSTING;
/// Bytes of the receiver's ring, into which the sender writes arrivals.
pub(crate) const ARRIVALS: usize = SLOTS * MAX_RECVS * ARRIVAL;
/// Bytes of a ticket.
pub(crate) const TICKET: usize = 16;

const SUM: usize = size_of::<u64>();
const HELLO: &[u8; 18] = b"crowfly nccl-net 1";
const WELCOME: u8 = 1;
const ANNOUNCE: u8 = 2;
const FORGET: u8 = 3;

fn sealed(mut record: Writer) -> Vec<u8> {
    let mut bytes = record.finish();
    let sum = xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The fields of a record of this length in front of its checksum, if that is right.
fn opened(bytes: &[u8], len: usize) -> Option<Reader<'_>> {
    let (record, rest) = bytes.split_at_checked(len)?;
    let sum = rest.first_chunk::<SUM>()?;
    (xxh3_64(record) == u64::from_le_bytes(*sum)).then(|| Reader::new(record))
}

/// One receive of a group: where its bytes are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    /// The receiver's memory, by its number.
    pub region: u32,
    pub tag: i32,
    /// Bytes from the start of the memory.
    pub offset: u64,
    pub room: u64,
}

/// A group of receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub number: u64,
    pub receives: Vec<Posted>,
}

impl Posting {
    const HEAD: usize = size_of::<u64>() + 1;
    const EACH: usize = 2 * size_of::<u32>() + 2 * size_of::<u64>();

    /// Where it is in the ring.
    pub(crate) const fn place(number: u64) -> usize {
        (number % SLOTS as u64) as usize * POSTING
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.number).u8(self.receives.len() as u8);
        for receive in &self.receives {
            out.u32(receive.region)
                .u32(receive.tag.cast_unsigned())
                .u64(receive.offset)
                .u64(receive.room);
        }
        sealed(out)
    }

    /// The posting of this number, if it is there as a whole.
    pub(crate) fn decode(bytes: &[u8; POSTING], number: u64) -> Option<Self> {
        let mut head = Reader::new(bytes);
        let (found, count) = (head.u64()?, usize::from(head.u8()?));
        if found != number || count == 0 || count > MAX_RECVS {
            return None;
        }
        let mut fields = opened(bytes, Self::HEAD + count * Self::EACH)?;
        let (number, _) = (fields.u64()?, fields.u8()?);
        let mut receives = Vec::with_capacity(count);
        for _ in 0..count {
            receives.push(Posted {
                region: fields.u32()?,
                tag: fields.u32()?.cast_signed(),
                offset: fields.u64()?,
                room: fields.u64()?,
            });
        }
        Some(Self { number, receives })
    }
}

/// The bytes of one receive of a group are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The posting's number.
    pub number: u64,
    /// Which of its receives.
    pub index: usize,
    /// How many bytes came; `None` when the sender had more than there was room for.
    pub bytes: Option<u64>,
}

impl Arrival {
    const LEN: usize = 2 * size_of::<u64>() + 2;

    /// Where it is in the ring.
    pub(crate) const fn place(number: u64, index: usize) -> usize {
        ((number % SLOTS as u64) as usize * MAX_RECVS + index) * ARRIVAL
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(self.number)
            .u64(self.bytes.unwrap_or(0))
            .u8(self.index as u8)
            .u8(u8::from(self.bytes.is_some()));
        sealed(out)
    }

    /// The arrival for this receive, if it is there as a whole.
    pub(crate) fn decode(bytes: &[u8; ARRIVAL], number: u64, index: usize) -> Option<Self> {
        let mut fields = opened(bytes, Self::LEN)?;
        let (found, len) = (fields.u64()?, fields.u64()?);
        let (at, fits) = (usize::from(fields.u8()?), fields.u8()? != 0);
        (found == number && at == index).then_some(Self {
            number,
            index,
            bytes: fits.then_some(len),
        })
    }
}

/// The first message of whoever connects.
#[derive(Debug)]
pub(crate) struct Hello {
    /// Which handle led here.
    pub ticket: [u8; TICKET],
    /// Where the receiver writes postings.
    pub postings: RegionDescriptor,
}

impl Hello {
    pub(crate) fn encode(ticket: &[u8; TICKET], postings: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(HELLO).raw(ticket).bytes(postings);
        out.finish()
    }

    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(message);
        let hello: [u8; HELLO.len()] = fields.array()?;
        let ticket = fields.array()?;
        let postings = region(&mut fields, POSTINGS)?;
        (hello == *HELLO).then_some(Self { ticket, postings })
    }
}

fn region(fields: &mut Reader<'_>, len: usize) -> Option<RegionDescriptor> {
    let descriptor = RegionDescriptor::from_bytes(fields.bytes(MAX_DESCRIPTOR)?).ok()?;
    (descriptor.len() >= len as u64).then_some(descriptor)
}

/// What a receiver tells its sender.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The connection is accepted; where arrivals are written.
    Welcome(RegionDescriptor),
    /// Postings can name this memory from now on.
    Announce(u32, RegionDescriptor),
    /// No posting names it any more.
    Forget(u32),
}

impl Notice {
    pub(crate) fn welcome(arrivals: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(WELCOME).bytes(arrivals);
        out.finish()
    }

    pub(crate) fn announce(number: u32, memory: &[u8]) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(ANNOUNCE).u32(number).bytes(memory);
        out.finish()
    }

    pub(crate) fn forget(number: u32) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(FORGET).u32(number);
        out.finish()
    }

    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(message);
        let notice = match fields.u8()? {
            WELCOME => Self::Welcome(region(&mut fields, ARRIVALS)?),
            ANNOUNCE => Self::Announce(fields.u32()?, region(&mut fields, 0)?),
            FORGET => Self::Forget(fields.u32()?),
            _ => return None,
        };
        fields.is_done().then_some(notice)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_slot<const N: usize>(record: &[u8]) -> [u8; N] {
        let mut slot = [0; N];
        slot[..record.len()].copy_from_slice(record);
        slot
    }

    fn posting(number: u64, count: usize) -> Posting {
        let one = |index: usize| Posted {
            region: index as u32,
            tag: -7 + index as i32,
            offset: 4096 * index as u64,
            room: 1 << 40,
        };
        Posting {
            number,
            receives: (0..count).map(one).collect(),
        }
    }

    #[test]
    fn the_largest_records_fit_their_slots() {
        let most = posting(u64::MAX, MAX_RECVS).encode();
        assert!(most.len() <= POSTING, "{}", most.len());
        let arrival = Arrival {
            number: u64::MAX,
            index: MAX_RECVS - 1,
            bytes: Some(u64::MAX),
        };
        assert!(arrival.encode().len() <= ARRIVAL);
        assert_eq!(Posting::place(SLOTS as u64), 0);
        assert_eq!(Posting::place(SLOTS as u64 - 1) + POSTING, POSTINGS);
        let last = Arrival::place(SLOTS as u64 - 1, MAX_RECVS - 1);
        assert_eq!(last + ARRIVAL, ARRIVALS);
    }

    #[test]
    fn an_empty_ring_holds_no_record() {
        assert_eq!(Posting::decode(&[0; POSTING], 0), None);
        assert_eq!(Arrival::decode(&[0; ARRIVAL], 0, 0), None);
    }

    #[test]
    fn a_record_of_another_round_is_none() {
        let slot = in_slot(&posting(3, 2).encode());
        assert_eq!(Posting::decode(&slot, 3), Some(posting(3, 2)));
        assert_eq!(Posting::decode(&slot, 3 + SLOTS as u64), None);
        let arrival = Arrival {
            number: 9,
            index: 2,
            bytes: None,
        };
        let slot = in_slot(&arrival.encode());
        assert_eq!(Arrival::decode(&slot, 9, 2), Some(arrival));
        assert_eq!(Arrival::decode(&slot, 9, 1), None);
        assert_eq!(Arrival::decode(&slot, 9 + SLOTS as u64, 2), None);
    }

    proptest! {
        #[test]
        fn a_record_that_is_partly_there_is_none(
            number: u64, count in 1..=MAX_RECVS, cut in 0usize..POSTING, before: [u8; 32],
        ) {
            let whole = posting(number, count).encode();
            let mut slot = [0; POSTING];
            for (to, from) in slot.iter_mut().zip(before.iter().cycle()) {
                *to = *from;
            }
            let old = slot;
            let cut = cut.min(whole.len());
            slot[..cut].copy_from_slice(&whole[..cut]);
            let same = slot[..whole.len()] == whole[..];
            prop_assert_eq!(Posting::decode(&slot, number).is_some(), same, "{:?}", old);
        }

        #[test]
        fn nothing_that_a_peer_writes_or_sends_makes_a_reader_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..600), number: u64,
        ) {
            let mut posting = [0; POSTING];
            let mut arrival = [0; ARRIVAL];
            posting.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            arrival.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            let _ = Posting::decode(&posting, number);
            let _ = Arrival::decode(&arrival, number, 0);
            let _ = Hello::decode(&bytes);
            let _ = Notice::decode(&bytes);
        }
    }
}
