//! What has come for this process and was not received yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::mesh::{OFFER, TAKEN};
use super::INLINE;
use crate::collective::error::CollectiveError;
use crate::fabric::{FabricError, Reader, RegionDescriptor, Writer};

/// The most parcels of one rank that wait here; what comes beyond is refused.
const MAX_WAITING: usize = 1024;
/// Looks for ranks that are gone, which wake nobody.
const NAP: Duration = Duration::from_millis(20);

/// Where the bytes of a parcel are.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Here.
    Inline(Vec<u8>),
    /// At the sender, until it is told that they were taken.
    Lent(RegionDescriptor),
}

/// What a rank has sent.
#[derive(Debug)]
pub(crate) struct Parcel {
    group: u64,
    tag: u64,
    /// The sender's own number of it.
    pub(super) number: u64,
    pub(super) len: u64,
    pub(super) content: Content,
}

impl Parcel {
    /// The message that tells of a parcel.
    pub(super) fn offer(
        group: u64,
        tag: u64,
        number: u64,
        len: u64,
        content: &Content,
    ) -> Result<Vec<u8>, CollectiveError> {
        let mut out = Writer::default();
        out.u8(OFFER).u64(group).u64(tag).u64(number).u64(len);
        match content {
            Content::Inline(bytes) => out.u8(0).bytes(bytes),
            Content::Lent(region) => out
                .u8(1)
                .bytes(&region.to_bytes().map_err(FabricError::from)?),
        };
        Ok(out.finish())
    }

    /// The message that a parcel was taken, or refused.
    pub(super) fn taken(number: u64, good: bool) -> Vec<u8> {
        let mut out = Writer::default();
        out.u8(TAKEN).u64(number).u8(u8::from(good));
        out.finish()
    }

    fn decode(fields: &mut Reader<'_>) -> Option<Self> {
        let (group, tag) = (fields.u64()?, fields.u64()?);
        let (number, len) = (fields.u64()?, fields.u64()?);
        let content = match fields.u8()? {
            0 => Content::Inline(fields.bytes(INLINE)?.to_vec()),
            1 => {
                let region = fields.bytes(usize::from(u16::MAX))?;
                Content::Lent(RegionDescriptor::from_bytes(region).ok()?)
            }
            _ => return None,
        };
        let held = match &content {
            Content::Inline(bytes) => bytes.len() as u64,
            Content::Lent(region) => region.len(),
        };
        (held == len).then_some(Self {
            group,
            tag,
            number,
            len,
            content,
        })
    }
}

#[derive(Debug, Default)]
struct State {
    /// By the rank that sent them, in their order.
    waiting: BTreeMap<usize, VecDeque<Parcel>>,
    /// What receivers said of this rank's own: by rank and number, whether it was taken.
    answers: BTreeMap<(usize, u64), bool>,
}

/// Parcels between this rank and others.
#[derive(Debug, Default)]
pub(crate) struct PostOffice {
    state: Mutex<State>,
    came: Condvar,
    next: AtomicU64,
}

impl PostOffice {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a parcel of this rank.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A parcel has come; the answer to one that there is no room for.
    pub(crate) fn offered(&self, from: usize, fields: &mut Reader<'_>) -> Option<Vec<u8>> {
        let parcel = Parcel::decode(fields)?;
        let mut state = self.state();
        let waiting = state.waiting.entry(from).or_default();
        if waiting.len() >= MAX_WAITING {
            return Some(Parcel::taken(parcel.number, false));
        }
        waiting.push_back(parcel);
        drop(state);
        self.came.notify_all();
        None
    }

    /// A rank says what became of a parcel of this one.
    pub(crate) fn answered(&self, from: usize, fields: &mut Reader<'_>) {
        if let (Some(number), Some(good)) = (fields.u64(), fields.u8()) {
            let mut state = self.state();
            // Few bytes are sent without waiting for an answer, which nobody asks for then.
            while state.answers.len() >= MAX_WAITING {
                state.answers.pop_first();
            }
            state.answers.insert((from, number), good != 0);
            drop(state);
            self.came.notify_all();
        }
    }

    /// Lets go of what came for a group that is no more.
    pub(crate) fn forget(&self, group: u64) {
        for waiting in self.state().waiting.values_mut() {
            waiting.retain(|parcel| parcel.group != group);
        }
    }

    /// Wakes those that wait, for a rank that is gone.
    pub(crate) fn look_again(&self) {
        self.came.notify_all();
    }

    /// Waits for what `find` finds; `None` when the time is over, or there is nobody it could come
    /// from.
    fn wait<T>(
        &self,
        until: Instant,
        gone: impl Fn() -> bool,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.state();
        loop {
            // Who is gone may have sent before.
            let hopeless = gone();
            if let Some(found) = find(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || hopeless {
                return None;
            }
            let waited = self.came.wait_timeout(state, left.min(NAP));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn await_taken(
        &self,
        by: usize,
        number: u64,
        until: Instant,
        gone: impl Fn() -> bool,
    ) -> Option<bool> {
        self.wait(until, gone, |state| state.answers.remove(&(by, number)))
    }

    /// The first parcel by a tag of any of some ranks, with the rank.
    pub(super) fn await_parcel(
        &self,
        group: u64,
        from: &[usize],
        tag: u64,
        until: Instant,
        gone: impl Fn() -> bool,
    ) -> Option<(usize, Parcel)> {
        self.wait(until, gone, |state| {
            from.iter().find_map(|rank| {
                let waiting = state.waiting.get_mut(rank)?;
                let fits = |parcel: &Parcel| parcel.group == group && parcel.tag == tag;
                let at = waiting.iter().position(fits)?;
                Some((*rank, waiting.remove(at)?))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(tag: u64, number: u64, bytes: &[u8]) -> Vec<u8> {
        let content = Content::Inline(bytes.to_vec());
        Parcel::offer(7, tag, number, bytes.len() as u64, &content).expect("it is small")
    }

    fn deliver(office: &PostOffice, message: &[u8]) -> Option<Vec<u8>> {
        office.offered(1, &mut Reader::new(&message[1..]))
    }

    fn take(office: &PostOffice, group: u64, tag: u64) -> Option<(usize, Vec<u8>)> {
        let (rank, parcel) = office.await_parcel(group, &[0, 1], tag, Instant::now(), || false)?;
        match parcel.content {
            Content::Inline(bytes) => Some((rank, bytes)),
            Content::Lent(_) => None,
        }
    }

    #[test]
    fn parcels_of_a_tag_are_taken_in_their_order_and_no_others() {
        let office = PostOffice::default();
        for (tag, bytes) in [(1, b"a"), (2, b"b"), (1, b"c")] {
            assert_eq!(deliver(&office, &offer(tag, 0, bytes)), None);
        }
        assert_eq!(take(&office, 8, 1), None, "another group's");
        assert_eq!(take(&office, 7, 1), Some((1, b"a".to_vec())));
        assert_eq!(take(&office, 7, 1), Some((1, b"c".to_vec())));
        assert_eq!(take(&office, 7, 1), None);
        assert_eq!(take(&office, 7, 2), Some((1, b"b".to_vec())));
    }

    #[test]
    fn what_makes_no_sense_is_ignored_and_what_is_too_much_is_refused() {
        let office = PostOffice::default();
        let whole = offer(1, 0, b"four");
        for len in 1..whole.len() {
            assert_eq!(deliver(&office, &whole[..len]), None);
        }
        let mut lies = whole.clone();
        lies[25] = 5;
        assert_eq!(deliver(&office, &lies), None);
        assert_eq!(take(&office, 7, 1), None);
        for number in 0..MAX_WAITING as u64 {
            assert_eq!(deliver(&office, &offer(1, number, b"x")), None);
        }
        let refused = deliver(&office, &offer(1, 9999, b"x"));
        assert_eq!(refused, Some(Parcel::taken(9999, false)));
    }

    #[test]
    fn answers_that_nobody_asks_for_do_not_pile_up() {
        let office = PostOffice::default();
        for number in 0..3 * MAX_WAITING as u64 {
            office.answered(1, &mut Reader::new(&Parcel::taken(number, true)[1..]));
        }
        assert_eq!(office.state().answers.len(), MAX_WAITING);
        let last = 3 * MAX_WAITING as u64 - 1;
        let taken = |number| office.await_taken(1, number, Instant::now(), || false);
        assert_eq!((taken(last), taken(last)), (Some(true), None));
    }
}
