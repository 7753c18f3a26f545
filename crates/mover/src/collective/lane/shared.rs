//! A lane through memory of the receiver that the sender has mapped: one copy in, and the receiver
//! takes the numbers from there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::collective::arena::{HEAD, Head, Layout, SLOTS};
use crate::collective::bell::ring;
use crate::fabric::{Backing, Caches};

pub(crate) struct SharedLane {
    layout: Layout,
    /// This rank's arena, which the other writes into.
    ours: Arc<Backing>,
    theirs: Arc<Backing>,
    me: usize,
    other: usize,
    sent: u64,
    taken: u64,
    pub sent_bytes: u64,
}

impl SharedLane {
    pub(crate) const fn new(
        layout: Layout,
        ours: Arc<Backing>,
        theirs: Arc<Backing>,
        me: usize,
        other: usize,
    ) -> Self {
        Self {
            layout,
            ours,
            theirs,
            me,
            other,
            sent: 0,
            taken: 0,
            sent_bytes: 0,
        }
    }

    pub(super) fn try_send(&mut self, head: &[u8; HEAD], bytes: &[u8]) -> bool {
        let tail = self.theirs.word(self.layout.tail(self.me));
        let tail = tail.map_or(0, |word| word.load(Ordering::Acquire));
        if self.sent.wrapping_sub(tail) >= SLOTS as u64 || bytes.len() > self.layout.chunk {
            return false;
        }
        let at = self.layout.inbox(self.me, self.sent);
        self.theirs.copy_in(at, head, Caches::Keep);
        self.theirs.copy_in(at + HEAD, bytes, Caches::Keep);
        self.sent += 1;
        self.sent_bytes += bytes.len() as u64;
        if let Some(word) = self.theirs.word(self.layout.head(self.me)) {
            word.store(self.sent, Ordering::Release);
        }
        ring([&self.theirs], &self.layout, self.me);
        true
    }

    pub(super) fn arrived(&mut self) -> Option<Option<Head>> {
        let word = self.ours.word(self.layout.head(self.other))?;
        if word.load(Ordering::Acquire) <= self.taken {
            return None;
        }
        let mut head = [0; HEAD];
        let at = self.layout.inbox(self.other, self.taken);
        self.ours.copy_out(at, &mut head, Caches::Keep);
        Some(Head::decode(&head))
    }

    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let at = self.layout.inbox(self.other, self.taken) + HEAD;
        self.ours.copy_out(at + offset, out, Caches::Keep);
    }

    pub(super) fn release(&mut self) {
        self.taken += 1;
        if let Some(word) = self.ours.word(self.layout.tail(self.other)) {
            word.store(self.taken, Ordering::Release);
        }
        ring([&self.theirs], &self.layout, self.me);
    }
}
