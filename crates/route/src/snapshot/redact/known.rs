//! Names and numbers found in one place of a snapshot and replaced in others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;

use super::places::{self, Identity, Place};
use super::stand_in::{self, StandIns};
use super::{mounts, scan};
use crate::snapshot::Snapshot;

/// Directories whose entries are named by people, udev or a driver's configuration.
const NAMED: &[&str] = &["/sys/class/net/", "/sys/class/infiniband/"];
/// Shorter host and user names are not looked for elsewhere: they are parts of too many words.
const MIN_WORD: usize = 3;
/// The longest host name (RFC 1035, section 2.3.4).
const MAX_WORD: usize = 255;
/// The longest name of an RDMA device (`IB_DEVICE_NAME_MAX` of the kernel); an interface's is shorter.
const MAX_NAME: usize = 64;
/// Shorter serial numbers are not looked for elsewhere.
const MIN_SERIAL: usize = 6;
/// The most words that are looked for; a snapshot with more comes from no machine.
const MAX_WORDS: usize = 10_000;

/// What was found.
#[derive(Default)]
pub(super) struct Known {
    /// Stand-ins of host and user names in lower case: each stands for itself.
    words: BTreeMap<String, String>,
    /// The first bytes of `words` in either case and of `serials`, to pass over most of a text.
    first: BTreeSet<u8>,
    /// Serial numbers with their stand-ins by their first bytes: they stand within longer words.
    serials: HashMap<[u8; MIN_SERIAL], Vec<(String, String)>>,
    names: BTreeMap<String, String>,
}

impl Known {
    pub fn collect(snapshot: &Snapshot, stand_ins: &StandIns) -> Self {
        let mut known = Self::default();
        let found = Found::in_snapshot(snapshot);
        known.words = found.words(stand_ins);
        for serial in found.serials.into_iter().take(MAX_WORDS) {
            if let Some(start) = serial.as_bytes().first_chunk() {
                let replaced = (serial.to_owned(), stand_ins.serial(serial));
                known.serials.entry(*start).or_default().push(replaced);
            }
        }
        let words = known.words.keys().filter_map(|word| word.bytes().next());
        let words = words.flat_map(|first| [first, first.to_ascii_uppercase()]);
        let serials = known.serials.keys().map(|[first, ..]| *first);
        known.first = words.chain(serials).collect();
        for name in named(snapshot) {
            let replaced = known.rename(name, stand_ins);
            if replaced != name {
                known.names.insert(name.to_owned(), replaced);
            }
        }
        known
    }

    /// The stand-in of the word that a text starts with; `fresh` says that a word starts here.
    pub fn word(&self, rest: &str, fresh: bool) -> Option<(usize, String)> {
        let first = rest.bytes().next()?;
        self.first.contains(&first).then_some(())?;
        self.serial(rest)
            .or_else(|| fresh.then(|| self.whole_word(rest)).flatten())
    }

    fn serial(&self, rest: &str) -> Option<(usize, String)> {
        let starts_alike = self.serials.get(rest.as_bytes().first_chunk()?)?;
        let matching = starts_alike
            .iter()
            .filter(|(serial, _)| rest.starts_with(serial));
        // One serial number may be the start of another.
        let (serial, stand_in) = matching.max_by_key(|(serial, _)| serial.len())?;
        Some((serial.len(), stand_in.clone()))
    }

    /// The longest known word at the start of a text that ends where a word ends.
    fn whole_word(&self, rest: &str) -> Option<(usize, String)> {
        let ahead = rest.get(..rest.floor_char_boundary(MAX_WORD + 1))?;
        let ahead = ahead.to_ascii_lowercase();
        let mut below = Bound::Included(ahead.as_str());
        loop {
            // Any word that the text starts with is at or before what was reached in order.
            let (word, stand_in) = self
                .words
                .range::<str, _>((Bound::Unbounded, below))
                .next_back()?;
            let alike = word
                .bytes()
                .zip(ahead.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            if alike < word.len() {
                below = Bound::Included(ahead.get(..ahead.floor_char_boundary(alike))?);
                continue;
            }
            let after = rest.get(word.len()..)?;
            if !after.starts_with(|c: char| c.is_alphanumeric()) {
                return Some((word.len(), stand_in.clone()));
            }
            below = Bound::Excluded(ahead.get(..alike)?);
        }
    }

    /// The stand-in of the interface or device that a text starts with.
    pub fn name(&self, rest: &str) -> Option<(usize, String)> {
        if self.names.is_empty() {
            return None;
        }
        let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        let ahead = rest.get(..rest.floor_char_boundary(MAX_NAME + 1))?;
        let name = rest.get(..ahead.find(|c| !is_name(c)).unwrap_or(ahead.len()))?;
        Some((name.len(), self.names.get(name)?.clone()))
    }

    /// The stand-in of an interface or device.
    pub fn renamed(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// `enx0c42a11d506a` with the stand-in's digits, and host names in `node7-eth0`.
    fn rename(&self, name: &str, stand_ins: &StandIns) -> String {
        if let Some((kind, digits)) = name.rsplit_once('x')
            && let Ok(value) = u64::from_str_radix(digits, 16)
        {
            match digits.len() {
                12 => {
                    let [_, _, a, b, c, d, e, f] = value.to_be_bytes();
                    let mac = stand_ins.mac([a, b, c, d, e, f]);
                    let digits: String = mac.iter().map(|octet| format!("{octet:02x}")).collect();
                    return format!("{kind}x{digits}");
                }
                16 => return format!("{kind}x{:016x}", stand_ins.guid(value)),
                _ => {}
            }
        }
        let (mut out, mut at) = (String::new(), 0);
        while let Some((before, rest)) = name.split_at_checked(at) {
            let Some(next) = rest.chars().next() else {
                break;
            };
            let fresh = !before.ends_with(|c: char| c.is_alphanumeric());
            match self.word(rest, fresh) {
                Some((length, replaced)) => {
                    out.push_str(&replaced);
                    at += length;
                }
                None => {
                    out.push(next);
                    at += next.len_utf8();
                }
            }
        }
        out
    }
}

/// Interfaces and RDMA devices, by the keys below their directories and their listings.
fn named(snapshot: &Snapshot) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for directory in NAMED {
        let below = snapshot.under(directory);
        names.extend(below.filter_map(|(key, _)| key.get(directory.len()..)?.split('/').next()));
        let listed = snapshot.list(directory.trim_end_matches('/'));
        names.extend(listed.iter().map(String::as_str));
    }
    names
}

/// Names and serial numbers as they stand in a snapshot.
#[derive(Default)]
struct Found<'s> {
    hosts: BTreeSet<&'s str>,
    users: BTreeSet<&'s str>,
    serials: BTreeSet<&'s str>,
}

impl<'s> Found<'s> {
    fn in_snapshot(snapshot: &'s Snapshot) -> Self {
        let mut found = Self::default();
        for (key, _) in snapshot.iter() {
            found.users.extend(scan::users(key));
            let Some(text) = snapshot.text(key) else {
                continue;
            };
            match places::of(key) {
                Place::Whole(Identity::Host) => found.hosts.extend([text]),
                Place::Whole(Identity::Servers) => found.hosts.extend(scan::hosts(text)),
                Place::Whole(Identity::Serial) => found.serials.extend([text.trim()]),
                Place::Mounts => {
                    found
                        .hosts
                        .extend(mounts::servers(text).flat_map(scan::hosts));
                    found.users.extend(mounts::users(text));
                    found.users.extend(scan::users(text));
                }
                Place::Scanned { words: true, .. } => found.users.extend(scan::users(text)),
                Place::Whole(_) | Place::Scanned { .. } => {}
            }
        }
        found.hosts.retain(|host| !stand_in::is_no_host(host));
        found.users.retain(|user| *user != "root");
        found
    }

    /// The words to look for, in lower case, with their stand-ins.
    fn words(&self, stand_ins: &StandIns) -> BTreeMap<String, String> {
        let mut words = BTreeMap::new();
        for user in &self.users {
            words.insert(user.to_ascii_lowercase(), stand_ins.user(user));
        }
        for host in &self.hosts {
            let host = host.to_ascii_lowercase();
            let stand_in = stand_ins.host(&host);
            // A name with a domain is also looked for in its parts.
            if let (Some(parts), Some(replaced)) = (host.split_once('.'), stand_in.split_once('.'))
                && host.parse::<IpAddr>().is_err()
            {
                words.insert(parts.0.to_owned(), replaced.0.to_owned());
                words.insert(parts.1.to_owned(), replaced.1.to_owned());
            }
            words.insert(host, stand_in);
        }
        // Device-mapper doubles the dashes of what it joins with one.
        let doubled = |text: &str| text.replace('-', "--");
        let dashed: Vec<_> = words
            .iter()
            .filter(|(word, _)| word.contains('-'))
            .collect();
        let dashed: Vec<_> = dashed
            .iter()
            .map(|(w, s)| (doubled(w), doubled(s)))
            .collect();
        words.extend(dashed);
        let usual = |word: &String| {
            let named = word.bytes().any(|byte| byte.is_ascii_alphabetic());
            named && (MIN_WORD..=MAX_WORD).contains(&word.len())
        };
        words
            .into_iter()
            .filter(|(word, _)| usual(word))
            .take(MAX_WORDS)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(words: &[String]) -> Known {
        let words = words.iter().map(|word| (word.clone(), format!("<{word}>")));
        Known {
            words: words.collect(),
            ..Known::default()
        }
    }

    #[test]
    fn of_two_words_the_longer_is_found_and_only_where_it_ends() {
        let known = known(&["node-7".into(), "node".into(), "node-7.a.org".into()]);
        let found = |text| known.whole_word(text).map(|(length, _)| length);
        assert_eq!(found("node-7.a.org:1"), Some(12));
        assert_eq!(found("node-7.a.organ"), Some(6));
        assert_eq!(found("NODE-78"), Some(4));
        assert_eq!(found("node7"), None);
        assert_eq!(found("zebra"), None);
    }

    proptest! {
        #[test]
        fn the_longest_word_is_found_as_by_trying_each(
            words in prop::collection::vec("[abé.-]{1,6}", 0..12),
            text in "[abAé.-]{0,10}",
        ) {
            let ends = |word: &String| {
                let lower = text.to_ascii_lowercase();
                lower.strip_prefix(word.as_str()).is_some_and(|after| {
                    !after.starts_with(|c: char| c.is_alphanumeric())
                })
            };
            let longest = words.iter().filter(|word| ends(word)).map(String::len).max();
            let found = known(&words).whole_word(&text).map(|(length, _)| length);
            prop_assert_eq!(found, longest);
        }
    }
}
