//! What a store keeps beside the bytes of an object, so that a copy of it can have the same.

use ureq::http::HeaderMap;

/// The headers that say it, besides those that begin with [`OWN`].
const KNOWN: [&str; 6] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
];
/// How headers begin that whoever wrote the object thought of.
const OWN: &str = "x-amz-meta-";
/// The most that is kept of them, in bytes: stores take 8 KiB of all headers.
const MAX_PROPERTIES: usize = 16 << 10;

/// Headers of an object, to be sent again with a copy of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties(Vec<(String, String)>);

impl Properties {
    /// Those of an answer. What no header could say again is left out.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut room = MAX_PROPERTIES;
        let mut all = Vec::new();
        for (name, value) in headers {
            let (name, Ok(value)) = (name.as_str(), value.to_str()) else {
                continue;
            };
            let size = name.len() + value.len();
            let wanted = KNOWN.contains(&name) || name.starts_with(OWN);
            if wanted && !value.is_empty() && size <= room {
                room -= size;
                all.push((name.to_owned(), value.to_owned()));
            }
        }
        Self(all)
    }

    /// Names and values.
    pub(super) fn headers(&self) -> &[(String, String)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, String)| {
            let name = ureq::http::HeaderName::from_static(name);
            (name, value.parse().expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_describes_the_bytes_is_kept_and_what_the_store_says_of_itself_is_not() {
        let all = [
            ("content-type", "text/plain".to_owned()),
            ("x-amz-meta-job", "7  of 9".to_owned()),
            ("etag", "x".to_owned()),
            ("server", "x".to_owned()),
            ("x-amz-meta-none", String::new()),
            ("x-amz-meta-long", "x".repeat(MAX_PROPERTIES)),
        ];
        let kept = Properties::of(&headers(&all));
        let expected = [
            ("content-type", "text/plain"),
            ("x-amz-meta-job", "7  of 9"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(kept.headers(), expected);
    }
}
