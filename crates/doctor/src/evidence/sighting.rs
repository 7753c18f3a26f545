//! The same fact seen many times: counted, with the first line and who said it.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;

use super::cite::{Cite, Located};

/// Most speakers remembered of one fact; a job with more is still counted in full.
pub const MAX_SPEAKERS: usize = 16_384;

/// One process that wrote into a log, by its place in the log's list of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ProcessId(pub u32);

/// A fact, the first line that said it, how often it was said, and by whom.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sighting<T> {
    /// The fact.
    pub what: T,
    /// The first line that said it.
    pub first: Cite,
    /// How many lines said it.
    pub count: u64,
    /// Which processes said it, in order, at most [`MAX_SPEAKERS`]; empty where no one was named.
    pub by: Vec<ProcessId>,
}

impl<T> Sighting<T> {
    fn hear(&mut self, speaker: Option<ProcessId>) {
        self.count = self.count.saturating_add(1);
        let Some(speaker) = speaker else { return };
        if let Err(at) = self.by.binary_search(&speaker)
            && self.by.len() < MAX_SPEAKERS
        {
            self.by.insert(at, speaker);
        }
    }
}

/// Distinct facts in the order first seen, at most a given number of them.
///
/// Facts are told apart by a key, which need not be all of the fact.
#[derive(Clone, Debug)]
pub(crate) struct Tally<T, K = T> {
    seen: Vec<Sighting<T>>,
    index: HashMap<K, usize>,
    limit: usize,
    beyond: u64,
}

impl<T, K: Eq + Hash> Tally<T, K> {
    /// An empty tally that keeps at most `limit` distinct facts.
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self {
            seen: Vec::new(),
            index: HashMap::new(),
            limit,
            beyond: 0,
        }
    }

    /// Counts a fact by its key; only a new one is built and cited.
    pub(crate) fn see_as<Q>(
        &mut self,
        key: &Q,
        by: impl Into<Option<ProcessId>>,
        build: impl FnOnce() -> Located<T>,
    ) where
        K: Borrow<Q>,
        Q: ?Sized + Hash + Eq + ToOwned<Owned = K>,
    {
        if let Some(sighting) = self.index.get(key).and_then(|at| self.seen.get_mut(*at)) {
            sighting.hear(by.into());
        } else if self.seen.len() < self.limit {
            self.index.insert(key.to_owned(), self.seen.len());
            let Located { value, cite } = build();
            self.seen.push(Sighting {
                what: value,
                first: cite,
                count: 1,
                by: by.into().into_iter().collect(),
            });
        } else {
            self.beyond += 1;
        }
    }

    /// How many lines said something new after the limit was reached.
    pub(crate) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The facts in the order first seen.
    pub(crate) fn into_seen(self) -> Vec<Sighting<T>> {
        self.seen
    }
}

impl<T: Clone + Eq + Hash> Tally<T> {
    /// Counts a fact that is its own key.
    pub(crate) fn see(
        &mut self,
        what: T,
        by: impl Into<Option<ProcessId>>,
        cite: impl FnOnce() -> Cite,
    ) {
        self.see_as(&what, by, || cite().of(what.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::cite::LineNumber;

    fn cite(line: u64) -> Cite {
        Cite::new("log".into(), LineNumber(line), "said")
    }

    #[test]
    fn a_fact_said_again_is_counted_and_keeps_its_first_line() {
        let mut tally = Tally::with_limit(8);
        for (line, speaker) in [(1, 4), (2, 4), (3, 0), (4, 4)] {
            tally.see("NCCL_IB_DISABLE", ProcessId(speaker), || cite(line));
        }
        let seen = tally.into_seen();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].count, seen[0].first.line), (4, LineNumber(1)));
        assert_eq!(seen[0].by, [ProcessId(0), ProcessId(4)]);
    }

    #[test]
    fn past_the_limit_new_facts_are_counted_but_not_kept() {
        let mut tally = Tally::with_limit(1);
        for what in ["a", "b", "c", "a"] {
            tally.see(what, ProcessId(0), || cite(1));
        }
        assert_eq!(tally.beyond(), 2);
        assert_eq!(tally.into_seen().len(), 1);
    }
}
