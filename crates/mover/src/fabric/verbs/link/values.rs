//! Which values have arrived, although whoever sent them was never told.
//!
//! Immediate data has 32 bits, all of them the value's, so a receiver cannot tell a repeated one from a new
//! one. But a queue pair delivers in order: the values that came by a lane are the first so many of those
//! that were sent by it. A closed link tells how many that were, lane by lane, once none can come any more.

use std::collections::HashMap;

use super::super::super::fields::{Reader, Writer};
use super::super::super::provider::OpId;
use super::super::MAX_LANES;
use super::lane::Lane;

/// Values sent whose ends the engine has not heard of.
#[derive(Default)]
pub(super) struct Values(HashMap<OpId, Sent>);

/// Where a value was sent: the lane, and its ordinal number there, counted from 1.
struct Sent {
    lane: usize,
    ordinal: u64,
}

impl Values {
    /// A value is being sent by a lane.
    pub(super) fn sent(&mut self, op: OpId, at: usize, lane: &mut Lane) {
        lane.sent += 1;
        let ordinal = lane.sent;
        self.0.insert(op, Sent { lane: at, ordinal });
    }

    /// The engine has heard what became of it.
    pub(super) fn heard_of(&mut self, op: OpId) {
        self.0.remove(&op);
    }

    pub(super) fn is_in_doubt(&self, op: OpId) -> bool {
        self.0.contains_key(&op)
    }

    /// Whether a value came, by what the peer's end tells; `None` where it does not tell.
    pub(super) fn landed(&self, op: OpId, tally: &[u8]) -> Option<bool> {
        let Sent { lane, ordinal } = self.0.get(&op)?;
        let arrived = *read(tally)?.get(*lane)?;
        Some(arrived >= *ordinal)
    }
}

/// How many values came by each lane.
pub(super) fn tally(lanes: &[Lane]) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(u8::try_from(lanes.len()).unwrap_or(u8::MAX));
    for lane in lanes {
        out.u64(lane.arrived);
    }
    out.finish()
}

fn read(tally: &[u8]) -> Option<Vec<u64>> {
    let mut fields = Reader::new(tally);
    let count = usize::from(fields.u8()?);
    if count > MAX_LANES {
        return None;
    }
    fields.last_u64s(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(arrived: &[u64]) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(arrived.len() as u8);
        arrived.iter().for_each(|count| {
            out.u64(*count);
        });
        out.finish()
    }

    fn values(sent: &[(u64, usize, u64)]) -> Values {
        let sent = sent.iter();
        Values(
            sent.map(|(op, lane, ordinal)| {
                let (lane, ordinal) = (*lane, *ordinal);
                (OpId(*op), Sent { lane, ordinal })
            })
            .collect(),
        )
    }

    #[test]
    fn the_values_that_came_by_a_lane_are_the_first_of_those_that_were_sent_by_it() {
        let values = values(&[(1, 0, 1), (2, 0, 2), (3, 1, 1)]);
        let tally = told(&[1, 0]);
        let landed = |op| values.landed(OpId(op), &tally);
        assert_eq!(landed(1), Some(true));
        assert_eq!(landed(2), Some(false));
        assert_eq!(landed(3), Some(false), "another lane's count says nothing");
        assert_eq!(landed(4), None, "it was not sent by this link");
    }

    #[test]
    fn a_tally_without_the_lane_or_with_too_many_tells_nothing() {
        let values = values(&[(1, 1, 1)]);
        for tally in [told(&[7]), told(&[1; MAX_LANES + 1]), Vec::new()] {
            assert_eq!(values.landed(OpId(1), &tally), None, "{tally:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_and_what_it_reads_is_what_was_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(lanes) = read(&bytes) {
                prop_assert_eq!(told(&lanes), bytes);
            }
        }
    }
}
