//! What things are called: the name of an export, a path below it, and the URL of both.

use std::fmt;
use std::str::FromStr;

use crowfly_route::place::SERVED_SCHEME;

use super::limits::{MAX_COMPONENT, MAX_DEPTH, MAX_NAME, MAX_PATH};

/// The text names nothing that a server could expose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no location of a server: {why}")]
pub struct BadLocation {
    /// What was written.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The name of an export: letters, digits, `-`, `_` and `.`, not with a dot at its beginning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Name {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Self, BadLocation> {
        let bad = |why| {
            Err(BadLocation {
                text: text.to_owned(),
                why,
            })
        };
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() {
            bad("a name is missing")
        } else if text.len() > MAX_NAME {
            bad("a name has 64 characters at most")
        } else if text.starts_with('.') || !text.chars().all(fine) {
            bad("a name has letters, digits, `-`, `_` and `.`, not with a dot at its beginning")
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

/// A path below an export that leads nowhere else: components without `.`, `..` and NUL. It may be
/// empty, which stands for the export itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(String);

impl RelativePath {
    /// The path as text, components parted by `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for the export itself.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One component further down.
    ///
    /// # Errors
    /// When the result is no such path.
    pub fn join(&self, component: &str) -> Result<Self, BadLocation> {
        if component.contains('/') {
            return Err(BadLocation {
                text: component.to_owned(),
                why: "a component of a path has no `/`",
            });
        }
        match self.is_empty() {
            true => component.parse(),
            false => format!("{}/{component}", self.0).parse(),
        }
    }

    /// The folder that it lies in, and its last component; `None` of the export itself.
    pub fn parted(&self) -> Option<(Self, &str)> {
        if self.is_empty() {
            return None;
        }
        let (folder, last) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        Some((Self(folder.to_owned()), last))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for RelativePath {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Self, BadLocation> {
        let bad = |why| {
            Err(BadLocation {
                text: text.to_owned(),
                why,
            })
        };
        if text.is_empty() {
            return Ok(Self::default());
        }
        if text.len() > MAX_PATH {
            return bad("a path has 4000 bytes at most");
        }
        if text.contains('\0') {
            return bad("a path has no NUL");
        }
        let mut depth = 0;
        for component in text.split('/') {
            depth += 1;
            match component {
                "" => return bad("a path has no empty components"),
                "." | ".." => return bad("a path below a name has no `.` or `..`"),
                long if long.len() > MAX_COMPONENT => {
                    return bad("a component of a path has 255 bytes at most");
                }
                _ => {}
            }
        }
        if depth > MAX_DEPTH {
            return bad("a path has 64 components at most");
        }
        Ok(Self(text.to_owned()))
    }
}

/// Where something that a server exposes is: `crowfly://HOST:PORT/NAME[/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Host and port.
    pub server: String,
    /// The export.
    pub name: Name,
    /// The path below it.
    pub path: RelativePath,
    /// Whether it was written with a `/` at its end, as a folder.
    pub folder: bool,
}

impl Location {
    /// The host without the port and the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let host = self.server.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SERVED_SCHEME}{}/{}", self.server, self.name)?;
        if !self.path.is_empty() {
            write!(f, "/{}", self.path)?;
        }
        Ok(())
    }
}

impl FromStr for Location {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Self, BadLocation> {
        let bad = |why| BadLocation {
            text: text.to_owned(),
            why,
        };
        let rest = text
            .strip_prefix(SERVED_SCHEME)
            .ok_or(bad("it begins with crowfly://"))?;
        let (server, below) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = server
            .rsplit_once(':')
            .ok_or(bad("the port is missing: crowfly://HOST:PORT/NAME"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%');
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let fine = match bracketed {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(plain),
        };
        if !fine {
            return Err(bad(
                "the host is a name, an IPv4 address or an IPv6 address in brackets",
            ));
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(bad("the port is a number from 1 to 65535"));
        }
        let (name, path) = below.split_once('/').unwrap_or((below, ""));
        let named = |error: BadLocation| bad(error.why);
        let folder = below.ends_with('/');
        Ok(Self {
            server: server.to_owned(),
            name: name.parse().map_err(named)?,
            path: path
                .strip_suffix('/')
                .unwrap_or(path)
                .parse()
                .map_err(named)?,
            folder,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_location_reads_back_as_it_is_written() {
        for text in [
            "crowfly://127.0.0.1:7878/models/a/b.bin",
            "crowfly://[::1]:7878/models",
            "crowfly://node-7.cluster:1/x/with space/ü",
        ] {
            let location: Location = text.parse().expect("a location");
            assert_eq!(location.to_string(), text);
        }
        let v6: Location = "crowfly://[::1]:7878/m/".parse().expect("a location");
        assert_eq!(
            (v6.host(), v6.folder, v6.path.is_empty()),
            ("::1", true, true)
        );
    }

    #[test]
    fn what_could_lead_out_of_an_export_is_no_path() {
        for bad in [
            "..",
            "a/../b",
            "/etc/passwd",
            "a//b",
            "./a",
            "a/.",
            "a\0b",
            "a/",
        ] {
            assert!(bad.parse::<RelativePath>().is_err(), "{bad:?}");
        }
        let deep = vec!["d"; MAX_DEPTH + 1].join("/");
        assert!(deep.parse::<RelativePath>().is_err());
        assert!("x".repeat(256).parse::<RelativePath>().is_err());
        assert!(RelativePath::default().join("../x").is_err());
        assert_eq!(
            RelativePath::default().join("x").expect("fine").as_str(),
            "x"
        );
    }

    #[test]
    fn a_location_without_its_parts_says_which_is_missing() {
        let why = |text: &str| text.parse::<Location>().expect_err("no location").why;
        assert!(why("crowfly://host/m").contains("port"));
        assert!(why("crowfly://host:0/m").contains("65535"));
        assert!(why("crowfly://host:99999/m").contains("65535"));
        assert!(why("crowfly://:1/m").contains("host"));
        assert!(why("crowfly://[::g]:1/m").contains("host"));
        assert!(why("crowfly://host:1").contains("name is missing"));
        assert!(why("crowfly://host:1/.m").contains("dot"));
        assert!(why("crowfly://host:1/m/../x").contains(".."));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic_and_what_they_accept_is_harmless(text in ".{0,80}") {
            if let Ok(path) = text.parse::<RelativePath>() {
                prop_assert!(!path.as_str().starts_with('/'));
                prop_assert!(path.as_str().split('/').all(|c| c != ".." && c != "."));
            }
            let _ = format!("crowfly://{text}").parse::<Location>();
        }
    }
}
