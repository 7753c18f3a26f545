//! Files numbered as parts of a whole: `model-00002-of-00004.safetensors`.
//!
//! Without an index nothing else tells that a part is missing, and the rest would load as if it were
//! the whole model.

use std::collections::BTreeMap;
use std::collections::HashSet;

use crate::checkpoint::index::{MAX_SHARDS, SHARD_SUFFIX};

/// A part's name taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    stem: &'a str,
    number: usize,
    of: usize,
    digits: usize,
}

impl<'a> Part<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let whole = name.strip_suffix(SHARD_SUFFIX)?;
        let (rest, of) = whole.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = number.len();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(number) || !is_number(of) || of.len() != digits {
            return None;
        }
        let part = Self {
            stem,
            number: number.parse().ok()?,
            of: of.parse().ok()?,
            digits,
        };
        // A larger count is more likely part of a name than a number of files.
        (part.of <= MAX_SHARDS).then_some(part)
    }

    fn name_of(&self, number: usize) -> String {
        let Self {
            stem, of, digits, ..
        } = self;
        format!("{stem}-{number:0digits$}-of-{of:0digits$}{SHARD_SUFFIX}")
    }
}

/// The first part that its siblings' names call for and that is not among `names`.
pub(super) fn first_missing(names: &[&str]) -> Option<String> {
    let mut wholes: BTreeMap<(&str, usize), (Part<'_>, HashSet<usize>)> = BTreeMap::new();
    for part in names.iter().filter_map(|name| Part::parse(name)) {
        let (_, numbers) = wholes
            .entry((part.stem, part.of))
            .or_insert_with(|| (part, HashSet::new()));
        numbers.insert(part.number);
    }
    wholes.values().find_map(|(part, numbers)| {
        // Most writers count from 1, a few from 0.
        let first = usize::from(!numbers.contains(&0));
        (first..first + part.of)
            .find(|number| !numbers.contains(number))
            .map(|number| part.name_of(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_numbering_is_named() {
        let names = [
            "m-00001-of-00003.safetensors",
            "m-00003-of-00003.safetensors",
        ];
        assert_eq!(
            first_missing(&names).as_deref(),
            Some("m-00002-of-00003.safetensors")
        );
    }

    #[test]
    fn complete_sets_and_unnumbered_files_lack_nothing() {
        for names in [
            &[
                "m-00001-of-00002.safetensors",
                "m-00002-of-00002.safetensors",
            ][..],
            &["m-0-of-2.safetensors", "m-1-of-2.safetensors"],
            &["vae.safetensors", "state-of-art.safetensors"],
            &["a-1-of-99999999.safetensors", "x-01-of-2.safetensors"],
            &[],
        ] {
            assert_eq!(first_missing(names), None, "{names:?}");
        }
    }
}
