//! Checksums by which a store and this process know that they have the same bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};

use crate::objects::sign::hex;

/// The checksum of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    /// CRC-32C, where it is made.
    pub crc: Option<u32>,
}

impl Sums {
    /// Those of some bytes.
    pub(super) fn of(bytes: &[u8], checked: bool) -> Self {
        Self {
            crc: checked.then(|| crc32c::crc32c(bytes)),
        }
    }

    /// As it stands in headers and XML.
    pub(super) fn crc_text(&self) -> Option<String> {
        self.crc.map(|crc| STANDARD.encode(crc.to_be_bytes()))
    }

    /// What an object has that is this part alone.
    pub(super) fn alone(&self) -> Expected {
        Expected {
            crc: self.crc_text(),
            tag: None,
        }
    }
}

/// The MD5 of some bytes, as it stands in the tag of a part.
pub(super) fn md5_of(bytes: &[u8]) -> String {
    hex(Md5::digest(bytes).as_slice())
}

/// The MD5 that a tag is, if it is one.
pub(super) fn md5_in(tag: &str) -> Option<&str> {
    let tag = tag.trim_matches('"');
    let is = tag.len() == 32 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    is.then_some(tag)
}

/// What a store says of an object that is whole.
#[derive(Debug)]
pub(super) struct Expected {
    crc: Option<String>,
    tag: Option<String>,
}

impl Expected {
    /// The tag that it has, as far as that is known.
    pub(super) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Whether an object with these is the one; one that says neither is not known to be.
    pub(super) fn is(&self, crc: Option<&str>, tag: Option<&str>) -> bool {
        match (self.crc.as_deref().zip(crc), self.tag.as_deref().zip(tag)) {
            (Some((expected, found)), _) => expected == found,
            (None, Some((expected, found))) => expected == found.trim_matches('"'),
            (None, None) => false,
        }
    }
}

/// What an object has whose parts are these: checksums and tags of all checksums and tags, with the number
/// of parts behind them (Amazon S3, "Checking object integrity").
pub(super) fn together<'p>(parts: impl Iterator<Item = (&'p Sums, &'p str)>) -> Expected {
    let (mut crcs, mut tags) = (Some(Vec::new()), Some(Vec::new()));
    let mut count = 0;
    for (sums, tag) in parts {
        count += 1;
        crcs = crcs.zip(sums.crc).map(|(mut all, crc)| {
            all.extend(crc.to_be_bytes());
            all
        });
        let md5 = md5_in(tag).and_then(unhex);
        tags = tags.zip(md5).map(|(mut all, md5)| {
            all.extend(md5);
            all
        });
    }
    let crc = crcs.map(|all| STANDARD.encode(crc32c::crc32c(&all).to_be_bytes()));
    Expected {
        crc: crc.map(|crc| format!("{crc}-{count}")),
        tag: tags.map(|all| format!("{}-{count}", md5_of(&all))),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2));
    pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect()
}

/// A text as it stands in XML.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('"', "&quot;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_are_those_of_the_published_examples() {
        // RFC 3720, appendix B.4: 32 bytes of zeros; RFC 1321, appendix A.5.
        let sums = Sums::of(&[0; 32], true);
        assert_eq!(sums.crc, Some(0x8a91_36aa));
        assert_eq!(sums.crc_text().as_deref(), Some("ipE2qg=="));
        assert_eq!(Sums::of(b"x", false).crc_text(), None);
        assert_eq!(md5_of(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn an_object_of_parts_is_known_by_its_checksum_or_else_by_its_tag() {
        let (one, two) = (Sums::of(b"a", true), Sums::of(b"b", true));
        let tags = [md5_of(b"a"), format!("\"{}\"", md5_of(b"b"))];
        let all = together([(&one, tags[0].as_str()), (&two, tags[1].as_str())].into_iter());
        let both = [one.crc, two.crc].map(|crc| crc.expect("made").to_be_bytes());
        let crc = STANDARD.encode(crc32c::crc32c(&both.concat()).to_be_bytes()) + "-2";
        let md5 = [Md5::digest(b"a"), Md5::digest(b"b")].concat();
        let tag = format!("\"{}-2\"", md5_of(&md5));
        assert!(all.is(Some(&crc), None) && all.is(None, Some(&tag)));
        assert!(!all.is(Some("other"), Some(&tag)), "the checksum counts");
        assert!(!all.is(None, None) && !all.is(None, Some("other")));
        let unknown = together([(&one, "no md5")].into_iter());
        assert!(!unknown.is(None, Some("no md5")));
    }

    #[test]
    fn a_tag_is_quoted_in_xml() {
        assert_eq!(escaped("\"a<b>&\""), "&quot;a&lt;b&gt;&amp;&quot;");
    }
}
