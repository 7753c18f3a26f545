//! Which object, or which of them: `s3://BUCKET/KEY`, `s3://BUCKET/PREFIX/`.

use std::fmt;
use std::str::FromStr;

use super::ObjectError;

/// The longest key, in bytes, as stores have it.
const MAX_KEY: usize = 1024;
/// The longest name of a bucket.
const MAX_BUCKET: usize = 63;

/// Which object: `s3://BUCKET/KEY`. What ends with a `/`, or is a bucket alone, is what a folder is among
/// files: all objects whose keys begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectUrl {
    bucket: String,
    key: String,
}

impl ObjectUrl {
    /// The last part of its key.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or(&self.key)
    }

    /// The bucket that it is in.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Its key; empty of a whole bucket.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether it names what is below it, and no object.
    pub fn is_folder(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// All that is below it.
    #[must_use]
    pub fn as_folder(&self) -> Self {
        let end = if self.is_folder() { "" } else { "/" };
        Self {
            bucket: self.bucket.clone(),
            key: format!("{}{end}", self.key),
        }
    }

    /// The object of this path below it.
    ///
    /// # Errors
    /// When the path is not text, or the key would be longer than stores have it.
    pub fn below(&self, path: &[u8]) -> Result<Self, ObjectError> {
        let folder = self.as_folder();
        let refused = |why| ObjectError::NoKey {
            path: String::from_utf8_lossy(path).into_owned(),
            url: folder.to_string(),
            why,
        };
        let path = std::str::from_utf8(path).map_err(|_| refused("keys are UTF-8"))?;
        if path.split('/').any(is_resolved) {
            return Err(refused(RESOLVED));
        }
        let key = format!("{}{path}", folder.key);
        match key.len() > MAX_KEY {
            true => Err(refused(LONG)),
            false => Ok(Self {
                bucket: folder.bucket,
                key,
            }),
        }
    }
}

const RESOLVED: &str = "a key with `.` or `..` between `/` cannot be asked for";

/// Whether libraries and proxies resolve this part of a key.
fn is_resolved(part: &str) -> bool {
    matches!(part, "." | "..")
}

const LONG: &str = "a key has 1024 bytes at most";

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

impl FromStr for ObjectUrl {
    type Err = ObjectError;

    fn from_str(text: &str) -> Result<Self, ObjectError> {
        let bad = |why| ObjectError::Url {
            text: text.to_owned(),
            why,
        };
        let rest = text.strip_prefix("s3://");
        let rest = rest.ok_or_else(|| bad("it is written s3://BUCKET/KEY"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || bucket.len() > MAX_BUCKET || !bucket.chars().all(plain) {
            return Err(bad(
                "a bucket has up to 63 letters, digits, `-`, `_` and `.`",
            ));
        }
        if key.len() > MAX_KEY {
            return Err(bad(LONG));
        }
        // Libraries and proxies resolve these, and would ask for another object than was signed.
        if key.split('/').any(is_resolved) {
            return Err(bad(RESOLVED));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ObjectUrl {
        text.parse().expect("an object")
    }

    #[test]
    fn an_object_has_a_bucket_and_a_key_and_nothing_that_would_be_resolved() {
        assert_eq!(url("s3://b/a/b c.bin").to_string(), "s3://b/a/b c.bin");
        assert_eq!(url("s3://b/a/b c.bin").name(), "b c.bin");
        for bad in ["s3://", "s3:///k", "s3://b/../c", "s3://b/./", "x"] {
            let error = bad.parse::<ObjectUrl>().expect_err("no object");
            assert_eq!(error.code(), "bad-object-url", "{bad}");
        }
    }

    #[test]
    fn what_is_below_a_prefix_is_so_with_and_without_its_slash() {
        for (text, folder) in [("s3://b", true), ("s3://b/x/", true), ("s3://b/x", false)] {
            assert_eq!(url(text).is_folder(), folder, "{text}");
        }
        let below = |text: &str, path: &[u8]| url(text).below(path).map(|url| url.to_string());
        assert_eq!(below("s3://b", b"a/c").expect("a key"), "s3://b/a/c");
        assert_eq!(below("s3://b/x", b"a").expect("a key"), "s3://b/x/a");
        assert_eq!(below("s3://b/x/", b"a").expect("a key"), "s3://b/x/a");
        let error = below("s3://b", b"no\xfftext").expect_err("bytes");
        assert_eq!(error.code(), "object-name");
        for resolved in [&b".."[..], b"a/../b", b"./a"] {
            let error = below("s3://b/x", resolved).expect_err("resolved");
            assert_eq!(error.code(), "object-name");
        }
        let long = [b'k'; MAX_KEY];
        assert!(below("s3://b", &long).is_ok() && below("s3://b/x", &long).is_err());
    }
}
