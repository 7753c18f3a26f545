//! An object that its store makes of another one by itself, so that no byte of it passes this process: by
//! one request where the other was written by one, and in the parts in which the other was written
//! otherwise. Then both have the same entity tag if they have the same bytes, and the copy is known to be
//! whole although nobody here has seen it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ureq::http;

use super::sums::{self, Expected, Sums, md5_in};
use super::{Fate, MAX_PARTS, MAX_TOKEN, There, Upload, time_for};
use crate::objects::answer::{child, parsed};
use crate::objects::object::Object;
use crate::objects::sign::encoded;
use crate::objects::store::{Ask, Doing};
use crate::objects::{ObjectError, ObjectUrl};

/// The most bytes that a store copies by one request.
const MAX_COPY: u64 = 5 << 30;
/// A part of what is copied in parts and was not written in parts that the store tells of, in bytes.
const PART: u64 = 256 << 20;
/// The word in the tag of an object of parts that stands in front of their number.
const PARTED: char = '-';
/// Headers by which stores say what checksum an object has, with the names that receipts have for them.
const CHECKSUMS: [(&str, &str); 5] = [
    ("x-amz-checksum-crc64nvme", "crc64nvme"),
    ("x-amz-checksum-crc32c", "crc32c"),
    ("x-amz-checksum-crc32", "crc32"),
    ("x-amz-checksum-sha256", "sha256"),
    ("x-amz-checksum-sha1", "sha1"),
];

/// What is copied, and how it is cut.
#[derive(Clone)]
pub(crate) struct Duplicate {
    object: Arc<Object>,
    cut: Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// By one request.
    Whole,
    /// In parts of so many bytes.
    Parts {
        unit: u64,
        /// Whether these are the parts that it was written in.
        as_written: bool,
    },
}

/// What says that a copy is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    /// `etag`, or the name of a checksum.
    pub algorithm: &'static str,
    /// As the store writes it.
    pub checksum: String,
    /// Whether the source has the same; otherwise it has none that could be the same.
    pub agreed: bool,
}

impl Duplicate {
    /// Looks how it was written. What must not replace anything is always put together of parts, as stores
    /// look once more when they do that.
    ///
    /// # Errors
    /// When there is another version by now, or the store does not answer.
    pub(crate) fn of(
        object: &Arc<Object>,
        replace: bool,
        until: Instant,
    ) -> Result<Self, ObjectError> {
        let (size, parts) = (object.size(), parts_in(object.version()));
        let unit = match parts {
            None => None,
            Some(parts) => {
                let first = object.first_part(until)?;
                first.filter(|unit| is_cut(size, *unit, parts))
            }
        };
        let cut = match (unit, parts) {
            (Some(unit), _) => Cut::Parts {
                unit,
                as_written: true,
            },
            (None, None) if size <= MAX_COPY && replace => Cut::Whole,
            (None, None) if size <= MAX_COPY => Cut::Parts {
                unit: size.max(1),
                as_written: true,
            },
            (None, _) => Cut::Parts {
                unit: size.div_ceil(MAX_PARTS).max(PART),
                as_written: false,
            },
        };
        Ok(Self {
            object: Arc::clone(object),
            cut,
        })
    }

    /// Bytes of a part, save the last.
    pub(super) fn unit(&self) -> u64 {
        match self.cut {
            Cut::Whole => self.object.size().max(1),
            Cut::Parts { unit, .. } => unit,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.cut == Cut::Whole
    }

    /// Whether parts of an earlier copy can be gone on with: what comes of them is known by its tag.
    pub(super) fn is_told_by_its_tag(&self) -> bool {
        let as_written = matches!(
            self.cut,
            Cut::Parts {
                as_written: true,
                ..
            }
        );
        let version = self.object.version().trim_matches('"');
        let sum = version.split_once(PARTED).map_or(version, |(sum, _)| sum);
        as_written && md5_in(sum).is_some()
    }

    pub(super) fn object(&self) -> &Arc<Object> {
        &self.object
    }
}

/// The number of parts that a tag tells of.
fn parts_in(tag: &str) -> Option<u64> {
    let (_, parts) = tag.trim_matches('"').rsplit_once(PARTED)?;
    let parts = parts.parse().ok();
    parts.filter(|parts| (1..=MAX_PARTS).contains(parts))
}

/// Whether so many bytes are so many parts of this length, the last of them perhaps shorter.
fn is_cut(size: u64, unit: u64, parts: u64) -> bool {
    (1..=MAX_COPY).contains(&unit) && size.div_ceil(unit) == parts
}

/// What the tag of the source has to be, seen from the tags of the parts of its copy; `None` where they do
/// not say.
fn told(expected: &Expected, alone: Option<&str>, source: &str) -> Option<bool> {
    let source = source.trim_matches('"');
    match parts_in(source) {
        Some(_) => expected.tag().map(|tag| tag == source),
        None => md5_in(source)
            .zip(alone.and_then(md5_in))
            .map(|(there, here)| there.eq_ignore_ascii_case(here)),
    }
}

impl Upload {
    /// Has the store copy a part, unless an earlier copy left it.
    ///
    /// # Errors
    /// When the source is another version by now, or the store refuses.
    pub(crate) fn copy(
        &self,
        from: u64,
        stop: &AtomicBool,
        until: Instant,
    ) -> Result<Fate, ObjectError> {
        let Some(source) = &self.wanted.source else {
            return Err(self.store.odd(&self.url, "nothing that could be copied"));
        };
        let number = from / self.unit + 1;
        let len = self.unit.min(self.wanted.size.saturating_sub(from));
        if let Some(found) = self.found.get(&number)
            && source.is_told_by_its_tag()
            && found.size() == len
        {
            let tag = found.tag.clone();
            self.there().insert(number, There::untold(tag));
            return Ok(Fate::There);
        }
        self.copied(source, number, (from, len), stop, until)
            .map(Fate::Sent)
    }

    fn copied(
        &self,
        source: &Duplicate,
        number: u64,
        (from, len): (u64, u64),
        stop: &AtomicBool,
        until: Instant,
    ) -> Result<u64, ObjectError> {
        let object = source.object();
        let (name, bucket) = (number.to_string(), object.bucket());
        let query = self
            .id
            .as_deref()
            .map(|id| [("partNumber", name.as_str()), ("uploadId", id)]);
        let mut ask = Ask::new(Doing::Copying, "PUT", &self.url, until);
        ask.stop = Some(stop);
        ask.query = query.as_ref().map_or(&[], |query| query);
        let key = encoded(object.url().key().as_bytes());
        ask.headers = vec![
            ("x-amz-copy-source", format!("/{bucket}/{key}")),
            ("x-amz-copy-source-if-match", object.version().to_owned()),
        ];
        // A range of a short object is refused, also where it is all of it.
        if self.id.is_some() && len < object.size() {
            let range = format!("bytes={from}-{}", from + len.saturating_sub(1));
            ask.headers.push(("x-amz-copy-source-range", range));
        }
        let (tag, retries) = self.store.again((until, Some(stop)), |_| {
            ask.until = (Instant::now() + time_for(len)).min(until);
            let mut answer = self.store.ask(&ask)?;
            let body = match answer.status() {
                http::StatusCode::OK => self.store.late(&ask, &mut answer),
                _ => Err(self.store.refused(&ask, &mut answer)),
            };
            let body = body.map_err(|error| of_source(error, object.url()))?;
            let tag = parsed(&body).and_then(|document| {
                let tag = child(document.root_element(), "ETag");
                tag.map(|tag| tag.trim().to_owned())
            });
            tag.filter(|tag| !tag.is_empty() && tag.len() <= MAX_TOKEN)
                .ok_or_else(|| self.store.odd(&self.url, "a copy without a version (ETag)"))
        })?;
        self.there().insert(number, There::untold(tag));
        Ok(retries)
    }

    /// Makes the copy appear, whole, unless its parts are other ones than those of the source; what says that
    /// it is whole, as far as `wanted`.
    ///
    /// # Errors
    /// When the store does not put it together, or its bytes are others than those of the source.
    pub(crate) fn finish_copy(
        &self,
        wanted: bool,
        stop: &AtomicBool,
        until: Instant,
    ) -> Result<Option<Confirmed>, ObjectError> {
        let Some(source) = &self.wanted.source else {
            return Err(self.store.odd(&self.url, "nothing that could be copied"));
        };
        let version = source.object().version();
        let mut same = self.is_same(version);
        if same == Some(false) && !self.found.is_empty() {
            // Parts that an earlier copy left are of another version.
            for number in self.found.keys() {
                let from = (number - 1).saturating_mul(self.unit);
                let len = self.unit.min(self.wanted.size.saturating_sub(from));
                if len > 0 {
                    self.copied(source, *number, (from, len), stop, until)?;
                }
            }
            same = self.is_same(version);
        }
        if same == Some(false) {
            return Err(self.store.differs(&self.url));
        }
        self.finish(until)?;
        match (wanted, same) {
            (false, _) => Ok(None),
            (true, Some(_)) => Ok(Some(Confirmed {
                algorithm: "etag",
                checksum: version.trim_matches('"').to_owned(),
                agreed: true,
            })),
            (true, None) => self.looked_at(source.object(), until).map(Some),
        }
    }

    fn is_same(&self, version: &str) -> Option<bool> {
        let there = self.there();
        let parts = there.values().map(|part| (&part.sums, part.tag.as_str()));
        let alone = there.values().next().filter(|_| there.len() == 1);
        told(
            &sums::together(parts),
            alone.map(|part| part.tag.as_str()),
            version,
        )
    }

    /// What the store says of the copy and of its source, where their tags tell nothing.
    fn looked_at(&self, source: &Object, until: Instant) -> Result<Confirmed, ObjectError> {
        let look = |url: &ObjectUrl, version: Option<&str>| {
            let mut ask = Ask::new(Doing::Reading, "HEAD", url, until);
            ask.headers.push(("x-amz-checksum-mode", "ENABLED".into()));
            ask.headers
                .extend(version.map(|version| ("if-match", version.to_owned())));
            let (headers, _) = self.store.again((until, None), |_| {
                let mut answer = self.store.ask(&ask)?;
                match answer.status() {
                    http::StatusCode::OK => Ok(answer.headers().clone()),
                    _ => Err(self.store.refused(&ask, &mut answer)),
                }
            })?;
            Ok(headers)
        };
        let ours = look(&self.url, None)?;
        let word = |headers: &http::HeaderMap, name: &str| {
            let value = headers.get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        if word(&ours, "content-length") != Some(self.wanted.size.to_string()) {
            return Err(self.store.differs(&self.url));
        }
        // Only what is in the same bucket is asked for by this connection.
        if source.bucket() == self.store.bucket() {
            let theirs = look(source.url(), Some(source.version()))?;
            for (header, algorithm) in CHECKSUMS {
                let both = word(&ours, header).zip(word(&theirs, header));
                if let Some((ours, theirs)) = both
                    && ours == theirs
                {
                    return Ok(Confirmed {
                        algorithm,
                        checksum: ours,
                        agreed: true,
                    });
                }
            }
        }
        let tag = word(&ours, "etag").unwrap_or_default();
        Ok(Confirmed {
            algorithm: "etag",
            checksum: tag.trim_matches('"').to_owned(),
            agreed: false,
        })
    }
}

/// What is refused because of the source tells of the source.
fn of_source(error: ObjectError, source: &ObjectUrl) -> ObjectError {
    let url = source.to_string();
    match error {
        ObjectError::Changed { .. } => ObjectError::Changed { url },
        ObjectError::NotFound { .. } => ObjectError::NotFound { url },
        other => other,
    }
}

impl There {
    /// A part of which only the tag is known.
    fn untold(tag: String) -> Self {
        Self {
            tag,
            sums: Sums { crc: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_of_how_many_parts_an_object_was_written() {
        assert_eq!(parts_in("\"0123-3\""), Some(3));
        for none in ["\"0123\"", "\"a-0\"", "\"a-10001\"", "\"a-b\"", ""] {
            assert_eq!(parts_in(none), None, "{none}");
        }
        assert!(is_cut(10, 5, 2) && is_cut(9, 5, 2) && is_cut(10, 10, 1));
        assert!(!is_cut(10, 5, 3) && !is_cut(10, 0, 1) && !is_cut(11, 5, 2));
    }

    #[test]
    fn a_copy_is_known_by_the_tags_of_its_parts_or_not_at_all() {
        let (one, two) = (sums::md5_of(b"a"), sums::md5_of(b"b"));
        let none = Sums { crc: None };
        let both = [(&none, one.as_str()), (&none, two.as_str())];
        let all = sums::together(both.into_iter());
        let whole = format!("\"{}\"", all.tag().expect("known"));
        assert_eq!(told(&all, None, &whole), Some(true));
        assert_eq!(
            told(&all, None, "\"0123456789abcdef0123456789abcdef-2\""),
            Some(false)
        );
        assert_eq!(
            told(&all, None, "\"0123456789abcdef0123456789abcdef\""),
            None
        );
        let alone = sums::together([(&none, one.as_str())].into_iter());
        assert_eq!(told(&alone, Some(&one), &one.to_uppercase()), Some(true));
        assert_eq!(told(&alone, Some(&one), &two), Some(false));
        assert_eq!(told(&alone, Some("secret"), &one), None, "no MD5");
    }
}
