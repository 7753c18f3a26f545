//! Which values came together with bytes, although whoever sent them was never told.
//!
//! A value has the number of its transfer, and a second one is told from it. But the bytes that go with it
//! again would be written once more, after the receiver was told that they are there and may have put others
//! in their place. So both ends remember, and a closed link tells what came.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{OPS_PER_STREAM, Op};
use crate::fabric::fields::{Reader, Writer};
use crate::fabric::gate::Gate;
use crate::fabric::provider::{MAX_TALLY, OpId};
use crate::fabric::stash::MAX_STREAMS;
use crate::fabric::waking::hold;

/// The last values of a stream that are remembered: as many as ops can be in flight by it. Those of one stream end
/// in the order in which they came, and one that is stuck loses none to others.
const MAX_KEPT: usize = OPS_PER_STREAM;
/// The values that a tally has at most.
const MAX_TOLD: usize = MAX_KEPT * MAX_STREAMS;
const _: () = assert!(size_of::<u16>() + MAX_TOLD * size_of::<u64>() <= MAX_TALLY);

/// The values of one link's ops.
#[derive(Default)]
pub(super) struct Values {
    /// Closed with the link: nothing is counted any more that it does not tell.
    gate: Gate,
    /// By stream.
    came: Mutex<[VecDeque<u64>; MAX_STREAMS]>,
    doubted: Mutex<HashSet<OpId>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Values {
    /// Counts the value that came with a peer's op by a stream; answers whether it could be, and `None` when the
    /// link was closed first.
    pub(super) fn come(
        &self,
        stream: usize,
        op: u64,
        count: impl FnOnce() -> bool,
    ) -> Option<bool> {
        // Whoever is woken by it may post, or close this very link.
        let _woken_later = hold();
        let _open = self.gate.enter()?;
        let counted = count();
        if counted && let Some(came) = locked(&self.came).get_mut(stream) {
            if came.len() >= MAX_KEPT {
                came.pop_front();
            }
            came.push_back(op);
        }
        Some(counted)
    }

    /// The link is closed: from now on no value is counted.
    pub(super) fn close(&self) {
        self.gate.close();
    }

    /// These had not come to their ends when the link was closed.
    pub(super) fn doubt<'o>(&self, pending: impl Iterator<Item = &'o Op>) {
        let valued = pending.filter(|op| op.imm.is_some() && !op.segments.is_empty());
        locked(&self.doubted).extend(valued.map(|op| op.id));
    }

    pub(super) fn is_in_doubt(&self, op: OpId) -> bool {
        locked(&self.doubted).contains(&op)
    }

    /// What came, of a closed link.
    pub(super) fn tally(&self) -> Option<Vec<u8>> {
        if !self.gate.is_closed() {
            return None;
        }
        let came = locked(&self.came);
        let mut out = Writer::default();
        let count = came.iter().map(VecDeque::len).sum::<usize>();
        out.u16(u16::try_from(count).ok()?);
        for op in came.iter().flatten() {
            out.u64(*op);
        }
        Some(out.finish())
    }

    /// Whether the value of an op came, by what the peer's end tells.
    pub(super) fn landed(op: OpId, tally: &[u8]) -> Option<bool> {
        Some(read(tally)?.contains(&op.0))
    }
}

fn read(tally: &[u8]) -> Option<Vec<u64>> {
    let mut fields = Reader::new(tally);
    let count = usize::from(fields.u16()?);
    if count > MAX_TOLD {
        return None;
    }
    fields.last_u64s(count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_came_is_told_once_the_link_is_closed_and_nothing_comes_after_that() {
        let values = Values::default();
        assert_eq!(values.come(0, 7, || true), Some(true));
        assert_eq!(
            values.come(0, 8, || false),
            Some(false),
            "it was not counted"
        );
        assert_eq!(values.tally(), None, "more may come");
        values.close();
        assert_eq!(values.come(0, 9, || panic!("it is closed")), None);
        let tally = values.tally().expect("closed");
        let landed = |op| Values::landed(OpId(op), &tally);
        assert_eq!(
            [7, 8, 9].map(landed),
            [Some(true), Some(false), Some(false)]
        );
    }

    #[test]
    fn the_tally_of_very_many_has_the_last_ones_of_each_stream_and_fits() {
        let values = Values::default();
        let comes = |stream, op| assert_eq!(values.come(stream, op, || true), Some(true));
        // A stream that is stuck, while all others go on.
        comes(0, 1);
        for op in 2..20_000 {
            comes(1 + op as usize % (MAX_STREAMS - 1), op);
        }
        values.close();
        let tally = values.tally().expect("closed");
        assert!(tally.len() <= MAX_TALLY);
        let landed = |op| Values::landed(OpId(op), &tally);
        assert_eq!(landed(1), Some(true), "it was lost to the others");
        let last = 20_000 - ((MAX_STREAMS - 1) * MAX_KEPT) as u64;
        assert!((last..20_000).all(|op| landed(op) == Some(true)));
        assert_eq!(landed(2), Some(false));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(tally in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Values::landed(OpId(1), &tally);
        }
    }
}
