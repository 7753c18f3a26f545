//! What things are called: the name of an export, a path below it, and the URL of both.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
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

/// The text is no name that something could be exposed under.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no name for what a server exposes: {why}")]
pub struct BadName {
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
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = |why| {
            Err(BadName {
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

/// A path below an export that leads nowhere else: components without `.`, `..` and NUL, of any bytes
/// besides, as file systems have them. It may be empty, which stands for the export itself.
///
/// As text it is written as in a URL: `%XX` stands for a byte that is no printable text, and for `%`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(Vec<u8>);

impl RelativePath {
    /// The path that these bytes are, components parted by `/`.
    ///
    /// # Errors
    /// When it could lead elsewhere, or is too long.
    pub fn of(bytes: &[u8]) -> Result<Self, BadLocation> {
        let bad = |why| {
            Err(BadLocation {
                text: escaped(bytes),
                why,
            })
        };
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if bytes.len() > MAX_PATH {
            return bad("a path has 4000 bytes at most");
        }
        if bytes.contains(&0) {
            return bad("a path has no NUL");
        }
        let mut depth = 0;
        for component in bytes.split(|byte| *byte == b'/') {
            depth += 1;
            match component {
                b"" => return bad("a path has no empty components"),
                b"." | b".." => return bad("a path below a name has no `.` or `..`"),
                long if long.len() > MAX_COMPONENT => {
                    return bad("a component of a path has 255 bytes at most");
                }
                _ => {}
            }
        }
        if depth > MAX_DEPTH {
            return bad("a path has 64 components at most");
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path for this machine's file systems.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Whether it stands for the export itself.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One component further down.
    ///
    /// # Errors
    /// When the result is no such path.
    pub fn join(&self, component: &OsStr) -> Result<Self, BadLocation> {
        let component = component.as_bytes();
        if component.is_empty() || component.contains(&b'/') {
            return Err(BadLocation {
                text: escaped(component),
                why: "a component of a path is not empty and has no `/`",
            });
        }
        self.below(component)
    }

    /// A path further down.
    ///
    /// # Errors
    /// When the result is no such path.
    pub fn under(&self, path: &Self) -> Result<Self, BadLocation> {
        match path.is_empty() {
            true => Ok(self.clone()),
            false => self.below(&path.0),
        }
    }

    fn below(&self, rest: &[u8]) -> Result<Self, BadLocation> {
        match self.is_empty() {
            true => Self::of(rest),
            false => Self::of(&[&self.0, &b"/"[..], rest].concat()),
        }
    }

    /// Its components.
    pub fn components(&self) -> impl Iterator<Item = &OsStr> {
        let parts = self.0.split(|byte| *byte == b'/');
        parts.filter(|part| !part.is_empty()).map(OsStr::from_bytes)
    }

    /// The folder that it lies in, and its last component; `None` of the export itself.
    pub fn parted(&self) -> Option<(Self, &OsStr)> {
        if self.is_empty() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        let (folder, last) = match slash {
            Some(at) => (self.0.get(..at)?, self.0.get(at + 1..)?),
            None => (&[][..], self.0.as_slice()),
        };
        Some((Self(folder.to_vec()), OsStr::from_bytes(last)))
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&escaped(&self.0))
    }
}

impl FromStr for RelativePath {
    type Err = BadLocation;

    /// Reads it as it stands in a URL.
    fn from_str(text: &str) -> Result<Self, BadLocation> {
        Self::of(&unescaped(text.as_bytes())?)
    }
}

/// Bytes as text for a URL, which [`unescaped`] makes the same bytes again.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter == '%' || letter.is_control() {
                true => {
                    let mut room = [0; 4];
                    escape(letter.encode_utf8(&mut room).as_bytes(), &mut text);
                }
                false => text.push(letter),
            }
        }
        escape(chunk.invalid(), &mut text);
    }
    text
}

fn escape(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        text.push_str(&format!("%{byte:02X}"));
    }
}

/// The bytes that a path in a URL stands for.
fn unescaped(text: &[u8]) -> Result<Vec<u8>, BadLocation> {
    let digit = |at: Option<&u8>| at.and_then(|at| char::from(*at).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let both = digit(rest.first()).zip(digit(rest.get(1)));
        let byte = both.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        let bad = |why| BadLocation {
            text: String::from_utf8_lossy(text).into_owned(),
            why,
        };
        match byte {
            None => {
                return Err(bad(
                    "`%` is followed by two hexadecimal digits; it is itself `%25`",
                ));
            }
            Some(b'/') => return Err(bad("a component of a path has no `/`, nor as %2F")),
            Some(byte) => bytes.push(byte),
        }
        rest = rest.get(2..).unwrap_or_default();
    }
    Ok(bytes)
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
    /// The location that a URL names, which need not be text: a path has any bytes, as they are or as
    /// `%XX`.
    ///
    /// # Errors
    /// When something is missing or no location.
    pub fn of(url: &OsStr) -> Result<Self, BadLocation> {
        let url = url.as_bytes();
        let bad = |why| BadLocation {
            text: escaped(url).replace("%25", "%"),
            why,
        };
        let rest = url
            .strip_prefix(SERVED_SCHEME.as_bytes())
            .ok_or(bad("it begins with crowfly://"))?;
        let (server, below) = divided(rest);
        let server = std::str::from_utf8(server).map_err(|_| bad(NO_HOST))?;
        if let Some(why) = amiss(server) {
            return Err(bad(why));
        }
        let (name, path) = divided(below);
        let named = |error: BadLocation| bad(error.why);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        Ok(Self {
            server: server.to_owned(),
            name: String::from_utf8_lossy(name)
                .parse()
                .map_err(|error: BadName| bad(error.why))?,
            path: RelativePath::of(&unescaped(path).map_err(named)?).map_err(named)?,
            folder: below.ends_with(b"/"),
        })
    }

    /// The host without the port and the brackets of an IPv6 address.
    pub fn host(&self) -> &str {
        let host = self.server.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// What is wrong with an address, `HOST:PORT`, before anything is looked up; `None` where nothing is.
pub fn amiss(address: &str) -> Option<&'static str> {
    let parted = match address.ends_with(']') {
        true => None,
        false => address.rsplit_once(':'),
    };
    let (host, port) = parted.unwrap_or((address, ""));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%');
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let fine = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(plain),
    };
    let digits = port.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits && port.parse::<u16>().is_ok_and(|port| port > 0);
    if !fine {
        Some(NO_HOST)
    } else if parted.is_none() {
        Some("the port is missing: HOST:PORT")
    } else if !number {
        Some("the port is a number from 1 to 65535")
    } else {
        None
    }
}

const NO_HOST: &str = "the host is a name, an IPv4 address or an IPv6 address in brackets";

/// What is before the first `/`, and what is behind it.
fn divided(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'/');
    match at.and_then(|at| bytes.split_at_checked(at)) {
        Some((before, behind)) => (before, behind.get(1..).unwrap_or_default()),
        None => (bytes, &[]),
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
        Self::of(OsStr::new(text))
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
            "crowfly://host:1/x/no%FFtext/100%25/a%0Ab",
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
    fn a_path_has_any_bytes_in_its_components_as_they_are_or_as_digits() {
        let path = |url: &[u8]| {
            Location::of(OsStr::from_bytes(url))
                .expect("a location")
                .path
        };
        let bytes = b"no\xfftext/100%";
        assert_eq!(path(b"crowfly://h:1/x/no\xfftext/100%25").as_bytes(), bytes);
        assert_eq!(
            path(b"crowfly://h:1/x/n%6F%fftext/100%25").as_bytes(),
            bytes
        );
        let of = RelativePath::of(bytes).expect("a path");
        assert_eq!(of.to_string(), "no%FFtext/100%25");
        let (folder, last) = of.parted().expect("two components");
        assert_eq!(
            (folder.as_bytes(), last.as_bytes()),
            (&b"no\xfftext"[..], &b"100%"[..])
        );
        assert_eq!(folder.join(last).expect("a path"), of);
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
        let join = |component: &str| RelativePath::default().join(OsStr::new(component));
        assert!(join("../x").is_err() && join("").is_err());
        assert_eq!(join("x").expect("fine").as_bytes(), b"x");
    }

    #[test]
    fn a_location_without_its_parts_says_which_is_missing() {
        let why = |text: &str| text.parse::<Location>().expect_err("no location").why;
        assert!(why("crowfly://host/m").contains("port"));
        assert!(why("crowfly://host:0/m").contains("65535"));
        assert!(why("crowfly://host:99999/m").contains("65535"));
        assert!(why("crowfly://host:+1/m").contains("65535"));
        assert!(why("crowfly://host:/m").contains("65535"));
        assert!(why("crowfly://[::1]/m").contains("port is missing"));
        assert!(why("crowfly://::1/m").contains("brackets"));
        assert!(why("crowfly://:1/m").contains("host"));
        assert!(why("crowfly://[::g]:1/m").contains("host"));
        assert!(why("crowfly://host:1").contains("name is missing"));
        assert!(why("crowfly://host:1/.m").contains("dot"));
        assert!(why("crowfly://host:1/m/../x").contains(".."));
        assert!(why("crowfly://host:1/m/%2e%2E/x").contains(".."));
        assert!(why("crowfly://host:1/m/a%2fb").contains("%2F"));
        assert!(why("crowfly://host:1/m/%00").contains("NUL"));
        assert!(why("crowfly://host:1/m/100%").contains("%25"));
        assert!(why("crowfly://host:1/m/%+1").contains("%25"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_readers_panic_and_what_they_accept_is_harmless(
            bytes in proptest::collection::vec(prop_oneof![Just(b'/'), Just(b'%'), Just(b'.'), any::<u8>()], 0..80)
        ) {
            if let Ok(path) = RelativePath::of(&bytes) {
                prop_assert!(!path.as_bytes().starts_with(b"/"));
                prop_assert!(path.components().all(|c| c != ".." && c != "."));
                prop_assert_eq!(path.to_string().parse::<RelativePath>(), Ok(path));
            }
            let url = [b"crowfly://h:1/x/", &bytes[..]].concat();
            if let Ok(location) = Location::of(OsStr::from_bytes(&url)) {
                let again: Location = location.to_string().parse().expect("it reads back");
                prop_assert_eq!(again.path, location.path);
            }
        }
    }
}
