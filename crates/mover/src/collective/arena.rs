//! The memory of a rank that others write into and read, and where everything is in it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::call::{CALL_BYTES, Call};
use crate::fabric::{Backing, Reader, Writer};

/// Bytes of a cache line: words that different ranks write stand apart.
const LINE: usize = 64;
/// Bytes in front of each chunk.
pub(crate) const HEAD: usize = 64;
/// Chunks under way between two ranks.
pub(crate) const SLOTS: usize = 4;
/// The largest chunk: larger ones fall out of a core's cache between writing and reading.
const MOST_CHUNK: usize = 256 << 10;
/// The smallest.
const LEAST_CHUNK: usize = 8 << 10;
/// What all chunks that a rank can receive at one time may take.
const ALL_CHUNKS: usize = 64 << 20;
/// Bytes of one of the two boards: both, and the buffer they come from, fit a core's cache.
pub(crate) const BOARD: usize = 512 << 10;
/// Boards that are used in turn.
const BOARDS: usize = 2;
/// Bytes of a block of an all-reduce of many: a share of it is large beside what a wait costs, and
/// what is under way of all blocks fits a core's cache.
pub(crate) const BLOCK: usize = 256 << 10;
/// Blocks under way: so far can a rank run ahead of the slowest, which saves switches where ranks
/// share cores.
pub(crate) const BLOCKS: usize = 4;
/// The same where each has a core: more of them would be out of its caches by the time that each is used
/// again.
pub(crate) const BLOCKS_APART: usize = 2;
/// The most bytes of a post.
pub(crate) const POST: usize = 32 << 10;
/// Posts that are used in turn.
const POSTS: usize = 2;
/// Bytes that go with the head of a post, in its line.
pub(crate) const INLINE: usize = LINE - POST_HEAD;
/// Which call it is, and what is called.
const POST_HEAD: usize = size_of::<u64>() + CALL_BYTES;
/// Lines of words in front of those for each rank.
const OWN_LINES: usize = 4 + POSTS;

/// Where everything is in the arena of each rank of a group of this size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    ranks: usize,
    pub chunk: usize,
}

impl Layout {
    pub(crate) fn new(ranks: usize) -> Self {
        let chunk = ALL_CHUNKS / SLOTS / ranks.max(1);
        let chunk = chunk.clamp(LEAST_CHUNK, MOST_CHUNK) / LINE * LINE;
        Self { ranks, chunk }
    }

    /// Words that the rank itself writes, then a pair for each rank that sends to it.
    const fn words(&self) -> usize {
        (OWN_LINES + 2 * self.ranks) * LINE
    }

    const fn slot(&self) -> usize {
        HEAD + self.chunk
    }

    const fn boards(&self) -> usize {
        self.words().next_multiple_of(4096)
    }

    const fn blocks(&self) -> usize {
        self.boards() + BOARDS * BOARD
    }

    const fn posts(&self) -> usize {
        self.blocks() + BLOCKS * BLOCK
    }

    const fn slots(&self) -> usize {
        self.posts() + POSTS * POST
    }

    /// Bytes of the arena.
    pub(crate) const fn len(&self) -> usize {
        self.slots() + 2 * self.ranks * SLOTS * self.slot()
    }

    /// How far the rank has come on its board.
    pub(crate) const fn stage(&self) -> usize {
        0
    }

    const fn entry(&self) -> usize {
        LINE
    }

    /// How many blocks the rank has come to a step with.
    pub(crate) const fn progress(&self, step: Step) -> usize {
        2 * LINE + step as usize * size_of::<u64>()
    }

    /// What wakes the rank.
    pub(crate) const fn bell(&self) -> usize {
        (3 + POSTS) * LINE
    }

    /// The block in turn, of so many that are used.
    pub(crate) const fn block(&self, count: u64, of: usize) -> usize {
        self.blocks() + (count % of as u64) as usize * BLOCK
    }

    /// The head of the post in turn.
    pub(crate) const fn post_head(&self, count: u64) -> usize {
        (3 + (count % POSTS as u64) as usize) * LINE
    }

    /// Where so many bytes of the post in turn are.
    pub(crate) const fn post(&self, count: u64, len: usize) -> usize {
        if len <= INLINE {
            self.post_head(count) + POST_HEAD
        } else {
            self.posts() + (count % POSTS as u64) as usize * POST
        }
    }

    /// Chunks that a rank has put here.
    pub(crate) const fn head(&self, from: usize) -> usize {
        (OWN_LINES + 2 * from) * LINE
    }

    /// Chunks of a rank that were taken from here.
    pub(crate) const fn tail(&self, from: usize) -> usize {
        (OWN_LINES + 1 + 2 * from) * LINE
    }

    /// The board in turn.
    pub(crate) const fn board(&self, block: u64) -> usize {
        self.boards() + (block % BOARDS as u64) as usize * BOARD
    }

    /// Where the `count`-th chunk of a rank is put.
    pub(crate) const fn inbox(&self, from: usize, count: u64) -> usize {
        let slot = (count % SLOTS as u64) as usize;
        self.slots() + (from * SLOTS + slot) * self.slot()
    }

    /// Where the `count`-th chunk for a rank waits to be sent.
    pub(crate) const fn outbox(&self, to: usize, count: u64) -> usize {
        self.inbox(self.ranks + to, count)
    }
}

/// What a rank does with each block, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its numbers are there for others.
    Put,
    /// Its share is reduced, and on every board.
    Reduced,
    /// It has taken the others' shares off its own board.
    Taken,
}

/// What a rank says of the call it is in, for others on its host to look at.
pub(crate) fn say_entry(arena: &Backing, layout: &Layout, number: u64, call: &Call) {
    let Some(words) = entry(arena, layout) else {
        return;
    };
    let [sequence, rest @ ..] = words;
    // Odd while it changes.
    sequence.store(2 * number + 1, Ordering::Relaxed);
    fence(Ordering::Release);
    for (word, value) in rest.iter().zip(call.words()) {
        word.store(value, Ordering::Relaxed);
    }
    sequence.store(2 * number + 2, Ordering::Release);
}

/// What a rank calls as its call of this number; `None` when it is in another one.
pub(crate) fn read_entry(arena: &Backing, layout: &Layout, number: u64) -> Option<Call> {
    let [sequence, rest @ ..] = entry(arena, layout)?;
    let wanted = 2 * number + 2;
    if sequence.load(Ordering::Acquire) != wanted {
        return None;
    }
    let words = rest.map(|word| word.load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    (sequence.load(Ordering::Relaxed) == wanted).then(|| Call::of_words(words))
}

/// Puts a post up, whose bytes are there already.
pub(crate) fn put_up(arena: &Backing, at: usize, number: u64, call: &Call) {
    let Some([sequence, rest @ ..]) = four(arena, at) else {
        return;
    };
    for (word, value) in rest.iter().zip(call.words()) {
        word.store(value, Ordering::Relaxed);
    }
    sequence.store(number, Ordering::Release);
}

/// The number of the call that a post belongs to, and what is called.
pub(crate) fn look_up(arena: &Backing, at: usize, number: u64) -> Option<(u64, Call)> {
    let [sequence, rest @ ..] = four(arena, at)?;
    let found = sequence.load(Ordering::Acquire);
    (found >= number).then(|| {
        let words = rest.map(|word| word.load(Ordering::Relaxed));
        (found, Call::of_words(words))
    })
}

fn entry<'a>(arena: &'a Backing, layout: &Layout) -> Option<[&'a AtomicU64; 4]> {
    four(arena, layout.entry())
}

fn four(arena: &Backing, at: usize) -> Option<[&AtomicU64; 4]> {
    let word = |index: usize| arena.word(at + index * size_of::<u64>());
    Some([word(0)?, word(1)?, word(2)?, word(3)?])
}

/// What stands in front of each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Which call of the group it belongs to.
    pub number: u64,
    pub call: Call,
    /// Bytes of the chunk.
    pub len: u64,
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut out = Writer::default();
        out.u64(self.number).u64(self.len).raw(&self.call.encode());
        let mut bytes = [0; HEAD];
        for (to, from) in bytes.iter_mut().zip(out.finish()) {
            *to = from;
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let (number, len) = (fields.u64()?, fields.u64()?);
        let call = Call::decode(&fields.array::<CALL_BYTES>()?)?;
        Some(Self { number, call, len })
    }
}

/// A range of an arena as a slice of its region.
pub(crate) const fn range(start: usize, len: usize) -> Range<usize> {
    start..start + len
}

#[cfg(test)]
mod tests {
    use crowfly_route::collective::Collective;

    use super::*;
    use crate::collective::Element;
    use crate::fabric::Buffer;

    #[test]
    fn nothing_of_an_arena_overlaps_anything_else() {
        for ranks in [1, 2, 9, 64, 256] {
            let layout = Layout::new(ranks);
            let mut ranges = vec![range(layout.stage(), 8), range(layout.entry(), 32)];
            ranges.extend((0..2).map(|block| range(layout.board(block), BOARD)));
            ranges.push(range(layout.bell(), size_of::<u32>()));
            let steps = [Step::Put, Step::Reduced, Step::Taken];
            ranges.extend(steps.map(|step| range(layout.progress(step), 8)));
            let blocks = (0..BLOCKS as u64).map(|count| layout.block(count, BLOCKS));
            ranges.extend(blocks.map(|block| range(block, BLOCK)));
            for count in 0..POSTS as u64 {
                ranges.push(range(layout.post_head(count), POST_HEAD));
                ranges.push(range(layout.post(count, INLINE), INLINE));
                ranges.push(range(layout.post(count, POST), POST));
            }
            for rank in 0..ranks {
                ranges.push(range(layout.head(rank), 8));
                ranges.push(range(layout.tail(rank), 8));
                for count in 0..SLOTS as u64 {
                    ranges.push(range(layout.inbox(rank, count), HEAD + layout.chunk));
                    ranges.push(range(layout.outbox(rank, count), HEAD + layout.chunk));
                }
            }
            ranges.sort_by_key(|range| range.start);
            assert!(
                ranges.is_sorted_by(|a, b| a.end <= b.start),
                "{ranks} ranks"
            );
            assert!(ranges.last().is_some_and(|last| last.end <= layout.len()));
        }
    }

    #[test]
    fn an_entry_is_read_for_the_call_it_is_of_and_no_other() {
        let layout = Layout::new(2);
        let arena = Buffer::zeroed(layout.len(), None)
            .expect("memory")
            .into_backing();
        let call = Call::new(Collective::AllGather, Element::F16, 77);
        assert_eq!(read_entry(&arena, &layout, 0), None);
        say_entry(&arena, &layout, 3, &call);
        assert_eq!(read_entry(&arena, &layout, 3), Some(call));
        assert_eq!(read_entry(&arena, &layout, 2), None);
        let head = Head {
            number: 3,
            call,
            len: 12,
        };
        assert_eq!(Head::decode(&head.encode()), Some(head));
    }
}
