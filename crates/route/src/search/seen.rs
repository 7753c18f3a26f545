//! What the snapshot says, with *absent*, *refused* and *not looked at* kept apart, and quoted.

use crate::obstacle::{Evidence, Obstacle};
use crate::snapshot::{Observation, Snapshot};

/// The longest quotation; a kernel command line can be 4096 characters.
const MAX_QUOTED: usize = 160;

/// A snapshot, or none where a topology came from a file without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a>(pub Option<&'a Snapshot>);

/// Whether something is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    Yes,
    No,
    /// Nobody looked, or looking was refused.
    Open,
}

impl Truth {
    pub(super) const fn of(known: Option<bool>) -> Self {
        match known {
            Some(true) => Self::Yes,
            Some(false) => Self::No,
            None => Self::Open,
        }
    }

    /// Yes when one of the two is, no when both are not.
    pub(super) const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::No, Self::No) => Self::No,
            _ => Self::Open,
        }
    }
}

impl<'a> Seen<'a> {
    pub(super) fn get(self, key: &str) -> Option<&'a Observation> {
        self.0?.get(key)
    }

    pub(super) fn text(self, key: &str) -> Option<&'a str> {
        self.0?.text(key)
    }

    /// Whether something is at a key.
    pub(super) fn exists(self, key: &str) -> Truth {
        match self.get(key) {
            Some(Observation::Value(_)) => Truth::Yes,
            Some(Observation::Absent) => Truth::No,
            _ => Truth::Open,
        }
    }

    /// Whether something is at one of the keys.
    pub(super) fn any_exists(self, keys: &[&str]) -> Truth {
        keys.iter()
            .fold(Truth::No, |truth, key| truth.or(self.exists(key)))
    }

    /// Whether anybody looked into a directory: at it, or at something in it.
    pub(super) fn looked_below(self, directory: &str) -> bool {
        let below = format!("{directory}/");
        self.0.is_some_and(|snapshot| {
            snapshot.get(directory).is_some() || snapshot.under(&below).next().is_some()
        })
    }

    /// What was seen at a key, for a person.
    pub(super) fn quote(self, key: impl Into<String>) -> Evidence {
        let key = key.into();
        let shows = self
            .get(&key)
            .map_or_else(|| "not looked at".into(), Observation::shows);
        Evidence::new(key, shortened(&shows))
    }

    /// The part of what was seen at a key that matters, or `decoded` where there is no snapshot to
    /// quote from.
    pub(super) fn quote_or(self, key: impl Into<String>, decoded: impl Into<String>) -> Evidence {
        let key = key.into();
        if self.get(&key).is_some() {
            self.quote(key)
        } else {
            Evidence::new(key, decoded)
        }
    }

    /// The kernel's release with the key it was seen at: of a copied tree there is no `uname`.
    pub(super) fn kernel(self) -> Option<(&'static str, &'a str)> {
        ["uname:release", "/proc/sys/kernel/osrelease"]
            .into_iter()
            .find_map(|key| Some((key, self.text(key)?)))
    }

    /// Whether the kernel is at least this version.
    pub(super) fn kernel_at_least(self, major: u32, minor: u32) -> Truth {
        let version = self.kernel().and_then(|(_, release)| version(release));
        Truth::of(version.map(|version| version >= (major, minor)))
    }
}

/// Major and minor number of `6.12.38-generic`, `565.57.01`.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    let number = |part: &str| {
        let digits = part
            .find(|c: char| !c.is_ascii_digit())
            .map_or(part, |end| part.get(..end).unwrap_or_default());
        digits.parse().ok()
    };
    Some((
        number(parts.next()?)?,
        parts.next().map_or(Some(0), number)?,
    ))
}

impl Obstacle {
    /// Adds evidence that is already quoted.
    pub(super) fn proved_by(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let whole = line.len() == text.len() && line.chars().count() <= MAX_QUOTED;
    if whole {
        return line.into();
    }
    let start: String = line.chars().take(MAX_QUOTED).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_kernels_and_drivers_print_them() {
        assert_eq!(version("6.12.38-generic"), Some((6, 12)));
        assert_eq!(version("565.57.01"), Some((565, 57)));
        assert_eq!(version("7.3-rc1"), Some((7, 3)));
        assert_eq!(version("6"), Some((6, 0)));
        assert_eq!(version("next"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn what_was_not_looked_at_is_neither_there_nor_absent() {
        let mut snapshot = Snapshot::new("test", "2026-01-01T00:00:00Z");
        snapshot.record("a", Observation::text("x\ny"));
        snapshot.record("b", Observation::Absent);
        snapshot.record("c", Observation::Denied);
        let seen = Seen(Some(&snapshot));
        let truths = ["a", "b", "c", "d"].map(|key| seen.exists(key));
        assert_eq!(truths, [Truth::Yes, Truth::No, Truth::Open, Truth::Open]);
        assert_eq!(seen.any_exists(&["b", "b"]), Truth::No);
        assert_eq!(seen.any_exists(&["b", "d"]), Truth::Open);
        assert_eq!(seen.any_exists(&["d", "a"]), Truth::Yes);
        let shown = ["a", "b", "c", "d"].map(|key| seen.quote(key).shows);
        assert_eq!(
            shown,
            ["x…", "absent", "permission denied", "not looked at"]
        );
    }
}
