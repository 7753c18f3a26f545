//! Many distinct names in one allocation, found by number or by text.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use hashbrown::HashTable;

/// A set of names in the order they came. All text lies in one arena, and the lookup table holds
/// numbers only, so a hundred thousand names cost three allocations instead of as many.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    text: String,
    spans: Vec<Range<usize>>,
    numbers: HashTable<u32>,
    // Seeded at random: the names come from strangers, who could otherwise choose them to collide.
    hasher: RandomState,
}

impl NameTable {
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The name with this number; empty when there is none.
    pub(super) fn get(&self, number: usize) -> &str {
        text_of(&self.text, &self.spans, number)
    }

    /// The number of this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.numbers
            .find(self.hasher.hash_one(name), |&n| {
                self.get(n as usize) == name
            })
            .map(|&n| n as usize)
    }

    /// Adds a name and returns its number; `None` when it was there already, or when the table is
    /// as full as its 32-bit numbers allow.
    pub(super) fn add(&mut self, name: &str) -> Option<usize> {
        let number = self.spans.len();
        let stored = u32::try_from(number).ok()?;
        let hash = self.hasher.hash_one(name);
        let Self {
            text,
            spans,
            numbers,
            hasher,
        } = self;
        let vacant = match numbers.entry(
            hash,
            |&n| text_of(text, spans, n as usize) == name,
            |&n| hasher.hash_one(text_of(text, spans, n as usize)),
        ) {
            hashbrown::hash_table::Entry::Occupied(_) => return None,
            hashbrown::hash_table::Entry::Vacant(vacant) => vacant,
        };
        vacant.insert(stored);
        let start = text.len();
        text.push_str(name);
        spans.push(start..text.len());
        Some(number)
    }

    /// Renumbers the names: `order[new] == old`, a permutation of all numbers.
    pub(super) fn reorder(&mut self, order: &[u32]) {
        let mut new_of_old = vec![0; order.len()];
        for (new, &old) in (0..).zip(order) {
            if let Some(slot) = new_of_old.get_mut(old as usize) {
                *slot = new;
            }
        }
        for number in self.numbers.iter_mut() {
            *number = new_of_old
                .get(*number as usize)
                .copied()
                .unwrap_or_default();
        }
        self.spans = order
            .iter()
            .filter_map(|&old| self.spans.get(old as usize).cloned())
            .collect();
    }
}

fn text_of<'a>(text: &'a str, spans: &[Range<usize>], number: usize) -> &'a str {
    spans
        .get(number)
        .and_then(|span| text.get(span.clone()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_added_once_and_found_after_renumbering() {
        let mut names = NameTable::default();
        assert_eq!(names.add("b"), Some(0));
        assert_eq!(names.add("a"), Some(1));
        assert_eq!(names.add(""), Some(2));
        assert_eq!(names.add("a"), None);
        names.reorder(&[2, 1, 0]);
        assert_eq!(
            (0..3).map(|n| names.get(n)).collect::<Vec<_>>(),
            ["", "a", "b"]
        );
        assert_eq!(names.find("b"), Some(2));
        assert_eq!(names.find(""), Some(0));
        assert_eq!(names.find("c"), None);
        assert_eq!(names.get(3), "");
    }
}
