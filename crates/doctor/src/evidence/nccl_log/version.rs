//! Which library wrote a log, and which release of it.

use std::fmt;

use serde::Serialize;

/// The two libraries that share NCCL's log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Library {
    /// NVIDIA's.
    Nccl,
    /// AMD's.
    Rccl,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nccl => "NCCL",
            Self::Rccl => "RCCL",
        })
    }
}

/// A release number such as 2.27.5. RCCL counts as the NCCL release that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Release {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Release {
    /// A release by its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.major, self.minor, self.patch))
    }
}

/// A version line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LibraryVersion {
    /// Which library.
    pub library: Library,
    /// Its release.
    pub release: Release,
    /// What follows the release (`+cuda12.9`, `-HEAD:271856d`).
    pub build: String,
}

impl LibraryVersion {
    /// Reads `NCCL version 2.27.3+cuda12.9` or `RCCL version : 2.22.3-HEAD:271856d` anywhere in a
    /// line.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (library, rest) = [
            ("RCCL version", Library::Rccl),
            ("NCCL version", Library::Nccl),
        ]
        .into_iter()
        .find_map(|(name, library)| Some((library, text.split_once(name)?.1)))?;
        let number = rest
            .trim_start_matches([' ', ':', '\t'])
            .split_whitespace()
            .next()?;
        let end = number
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(number.len());
        let (digits, build) = number.split_at(end);
        let mut parts = digits
            .trim_end_matches('.')
            .split('.')
            .map(|p| p.parse::<u32>().ok());
        let release = Release::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(())?;
        Some(Self {
            library,
            release,
            build: build.trim_end_matches([',', ';', ')']).to_owned(),
        })
    }
}

impl fmt::Display for LibraryVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.library, self.release, self.build)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_lines_of_both_libraries_read() {
        let read = |text| LibraryVersion::parse(text).map(|v| v.to_string());
        assert_eq!(
            read("NCCL version 2.7.8+cuda10.2").as_deref(),
            Some("NCCL 2.7.8+cuda10.2")
        );
        assert_eq!(
            read("RCCL version : 2.22.3-HEAD:271856d").as_deref(),
            Some("RCCL 2.22.3-HEAD:271856d")
        );
        assert_eq!(
            read("h:1:1 [0] NCCL INFO RCCL version 2.18.3+hip6.0 HEAD:2f6d59e").as_deref(),
            Some("RCCL 2.18.3+hip6.0")
        );
        assert_eq!(
            read("remote process exited, NCCL version 2.27.3").as_deref(),
            Some("NCCL 2.27.3")
        );
        for none in [
            "NCCL version",
            "NCCL version x",
            "NCCL version 2.7",
            "NCCL version 2.7.8.9",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn releases_order_by_number_not_by_text() {
        assert!(Release::new(2, 9, 9) < Release::new(2, 10, 3));
    }
}
