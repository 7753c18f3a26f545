//! An object that is being written: in one request where it is small, in parts where it is not. Nothing
//! appears under its name before all of it is there.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::{Body, http};

use self::sums::Sums;
use self::unfinished::Found;
use super::answer::{child, parsed};
use super::store::{Ask, Doing, Store};
use super::{ObjectError, ObjectUrl, Properties};

mod sums;
mod unfinished;
mod within;

pub(crate) use within::{Confirmed, Duplicate};

/// The longest object that a store takes, in bytes.
const MAX_OBJECT: u64 = 5 << 40;
/// The most parts of one object.
const MAX_PARTS: u64 = 10_000;
/// A part of an object, in bytes: larger ones need more memory, smaller ones more requests. What is not
/// longer is written by one request.
const PART: u64 = 8 << 20;
/// What parts grow by where there would be too many of them; a multiple of what a copy moves at a time.
const STEP: u64 = 4 << 20;
/// What the parts that are under way may need of memory together, in bytes.
const MEMORY: u64 = 512 << 20;
/// The slowest a body may be sent, in bytes per second, before its request is given up.
const SLOWEST: u64 = 64 << 10;
/// How long a store may take to put the parts of an object together.
const COMPLETION: Duration = Duration::from_secs(600);
/// How long it may take to remove what was begun.
const REMOVAL: Duration = Duration::from_secs(5);
/// The longest word of a store that is sent back to it.
const MAX_TOKEN: usize = 2048;

/// How long a store may be silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// How an object of this length is cut.
fn unit(size: u64) -> u64 {
    size.div_ceil(MAX_PARTS).next_multiple_of(STEP).max(PART)
}

/// Parts of an object of this length that may be under way at a time, of those that are wanted.
pub(crate) fn at_a_time(size: u64, wanted: usize) -> usize {
    let fit = usize::try_from(MEMORY / unit(size)).unwrap_or(usize::MAX);
    wanted.min(fit).max(1)
}

/// How long it may take to write so many bytes: a store may be as silent as any other end, and slower.
pub(crate) fn time_for(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(bytes / SLOWEST)
}

/// What is to be written, and how.
pub(crate) struct Wanted {
    /// Its length in bytes.
    pub size: u64,
    /// Whether to go on with what an earlier upload left, and to leave what is unfinished.
    pub resume: bool,
    /// Whether the store is to check what arrives.
    pub checked: bool,
    /// Whether something may be replaced.
    pub replace: bool,
    /// What the store is to keep beside the bytes.
    pub properties: Properties,
    /// What the store is to copy by itself; `None` where this process sends the bytes.
    pub source: Option<Duplicate>,
}

impl Wanted {
    /// Whether parts of an earlier upload can be gone on with.
    fn can_go_on(&self) -> bool {
        let told = |source: &Duplicate| source.is_told_by_its_tag();
        self.resume && self.source.as_ref().is_none_or(told)
    }
}

/// What became of a part.
pub(crate) enum Fate {
    /// It was sent, after so many failures.
    Sent(u64),
    /// The same bytes were there already.
    There,
}

/// A part that is there.
#[derive(Clone)]
struct There {
    tag: String,
    sums: Sums,
}

/// An object that is being written.
pub(crate) struct Upload {
    store: Arc<Store>,
    url: ObjectUrl,
    wanted: Wanted,
    unit: u64,
    /// What the store calls it; `None` of one that is a single request.
    id: Option<String>,
    /// Whether each part says what checksum it has.
    checked: bool,
    /// Parts that an earlier upload left.
    found: BTreeMap<u64, Found>,
    there: Mutex<BTreeMap<u64, There>>,
    /// Whether the store confirmed the checksum of every part.
    confirmed: AtomicBool,
    whole: AtomicBool,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({})", self.url)
    }
}

impl Upload {
    /// Begins, or goes on.
    ///
    /// # Errors
    /// When the object is too long, is there and must not be replaced, or the store refuses.
    pub(crate) fn begin(
        store: &Arc<Store>,
        url: &ObjectUrl,
        wanted: Wanted,
        until: Instant,
    ) -> Result<Self, ObjectError> {
        if wanted.size > MAX_OBJECT {
            return Err(ObjectError::TooLarge {
                url: url.to_string(),
                bytes: wanted.size,
                most: MAX_OBJECT,
            });
        }
        let mut upload = Self {
            store: Arc::clone(store),
            url: url.clone(),
            unit: (wanted.source.as_ref()).map_or_else(|| unit(wanted.size), Duplicate::unit),
            id: None,
            checked: wanted.checked,
            found: BTreeMap::new(),
            there: Mutex::default(),
            confirmed: AtomicBool::new(true),
            whole: AtomicBool::new(false),
            wanted,
        };
        // What would be refused at the end is better refused before anything is sent.
        if !upload.wanted.replace && upload.is_taken(until)? {
            return Err(ObjectError::Exists {
                url: url.to_string(),
            });
        }
        let whole = match &upload.wanted.source {
            Some(source) => source.is_whole(),
            None => upload.wanted.size <= upload.unit,
        };
        if whole {
            return Ok(upload);
        }
        let earlier = match upload.wanted.can_go_on() {
            true => unfinished::find(store, url, until)?,
            false => None,
        };
        // What the store copies has no checksums of this process's.
        let copies = upload.wanted.source.is_some();
        let earlier = earlier.filter(|earlier| !(copies && earlier.checked));
        match earlier {
            Some(earlier) => {
                upload.checked &= earlier.checked;
                upload.found = earlier.parts;
                upload.id = Some(earlier.id);
            }
            None => upload.id = Some(upload.create(until)?),
        }
        Ok(upload)
    }

    /// Whether the store copies it by itself.
    pub(crate) const fn is_copied(&self) -> bool {
        self.wanted.source.is_some()
    }

    /// How many bytes a part has, save the last.
    pub(crate) const fn unit(&self) -> u64 {
        self.unit
    }

    /// Which object it will be.
    pub(crate) const fn url(&self) -> &ObjectUrl {
        &self.url
    }

    /// Whether bytes are protected on their way.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.store.is_encrypted()
    }

    /// Whether the store confirmed the checksum of all that arrived.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.checked && self.confirmed.load(Ordering::Acquire)
    }

    fn there(&self) -> MutexGuard<'_, BTreeMap<u64, There>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<'a>(&'a self, method: &'static str, until: Instant) -> Ask<'a> {
        Ask::new(Doing::Writing, method, &self.url, until)
    }

    fn is_taken(&self, until: Instant) -> Result<bool, ObjectError> {
        let ask = self.ask("HEAD", until);
        let (taken, _) = self.store.again((until, None), |_| {
            let mut answer = self.store.ask(&ask)?;
            match answer.status().as_u16() {
                200 => Ok(true),
                404 => Ok(false),
                _ => Err(self.store.refused(&ask, &mut answer)),
            }
        })?;
        Ok(taken)
    }

    fn create(&self, until: Instant) -> Result<String, ObjectError> {
        let mut ask = self.ask("POST", until);
        ask.query = &[("uploads", "")];
        ask.more = self.wanted.properties.headers();
        if self.checked {
            ask.headers
                .push(("x-amz-checksum-algorithm", "CRC32C".into()));
        }
        let (body, _) = self.store.again((until, None), |_| {
            let mut answer = self.store.ask(&ask)?;
            match answer.status() {
                http::StatusCode::OK => self.store.late(&ask, &mut answer),
                _ => Err(self.store.refused(&ask, &mut answer)),
            }
        })?;
        let id = parsed(&body).and_then(|document| {
            let id = child(document.root_element(), "UploadId");
            id.map(str::to_owned)
        });
        id.filter(|id| !id.is_empty() && id.len() <= MAX_TOKEN)
            .ok_or_else(|| self.store.odd(&self.url, "an upload without a name"))
    }

    /// Writes the part that begins at `range.start`, unless it is there already. `stop` ends it early.
    ///
    /// # Errors
    /// When the store refuses, or something else arrives than was sent.
    pub(crate) fn put(
        &self,
        range: &Range<u64>,
        bytes: &[u8],
        stop: &AtomicBool,
        until: Instant,
    ) -> Result<Fate, ObjectError> {
        let number = range.start / self.unit + 1;
        let sums = Sums::of(bytes, self.checked);
        if let Some(found) = self.found.get(&number)
            && found.holds(bytes, &sums)
        {
            let tag = found.tag.clone();
            self.there().insert(number, There { tag, sums });
            return Ok(Fate::There);
        }
        let number_text = number.to_string();
        let query = self
            .id
            .as_deref()
            .map(|id| [("partNumber", number_text.as_str()), ("uploadId", id)]);
        let mut ask = self.ask("PUT", until);
        ask.query = query.as_ref().map_or(&[], |query| query);
        (ask.body, ask.stop) = (bytes, Some(stop));
        if let Some(crc) = sums.crc_text() {
            ask.headers.push(("x-amz-checksum-crc32c", crc));
        }
        let whole = self.id.is_none();
        if whole {
            ask.more = self.wanted.properties.headers();
        }
        if whole && !self.wanted.replace {
            ask.headers.push(("if-none-match", "*".into()));
        }
        let (tag, retries) = self.store.again((until, Some(stop)), |tries| {
            ask.until = (Instant::now() + time_for(bytes.len() as u64)).min(until);
            let mut answer = self.store.ask(&ask)?;
            match answer.status().as_u16() {
                200 | 204 => self.accepted(&answer, &sums),
                // An answer that was lost may have been that it is there.
                409 | 412 if tries > 0 && whole && self.is_ours(until, &sums.alone())? => {
                    Ok(String::new())
                }
                _ => Err(self.store.refused(&ask, &mut answer)),
            }
        })?;
        if whole {
            self.whole.store(true, Ordering::Release);
        }
        self.there().insert(number, There { tag, sums });
        Ok(Fate::Sent(retries))
    }

    /// The tag that a store gave to what it took.
    fn accepted(&self, answer: &http::Response<Body>, sums: &Sums) -> Result<String, ObjectError> {
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        match header("x-amz-checksum-crc32c").zip(sums.crc_text()) {
            Some((there, here)) if there != here => return Err(self.store.differs(&self.url)),
            Some(_) => {}
            None => self.confirmed.store(false, Ordering::Release),
        }
        let tag = header("etag").filter(|tag| tag.len() <= MAX_TOKEN);
        let tag = tag.ok_or_else(|| self.store.odd(&self.url, "no version (ETag)"))?;
        Ok(tag.to_owned())
    }

    /// Makes it appear, whole.
    ///
    /// # Errors
    /// When the store does not put it together.
    pub(crate) fn finish(&self, until: Instant) -> Result<(), ObjectError> {
        let Some(id) = self.id.as_deref() else {
            return Ok(());
        };
        let until = until.max(Instant::now() + COMPLETION);
        let parts = self.there().clone();
        let mut body = String::from("<CompleteMultipartUpload>");
        for (number, part) in &parts {
            let crc = part.sums.crc_text().map_or_else(String::new, |crc| {
                format!("<ChecksumCRC32C>{crc}</ChecksumCRC32C>")
            });
            let tag = sums::escaped(&part.tag);
            body.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag>{crc}</Part>"
            ));
        }
        body.push_str("</CompleteMultipartUpload>");
        let mut ask = self.ask("POST", until);
        let query = [("uploadId", id)];
        ask.query = &query;
        ask.body = body.as_bytes();
        ask.headers.push(("content-type", "application/xml".into()));
        if !self.wanted.replace {
            ask.headers.push(("if-none-match", "*".into()));
        }
        let expected = sums::together(parts.values().map(|part| (&part.sums, part.tag.as_str())));
        self.store.again((until, None), |tries| {
            let mut answer = self.store.ask(&ask)?;
            let status = answer.status();
            let refused = match status {
                http::StatusCode::OK => match self.store.late(&ask, &mut answer) {
                    Ok(_) => return Ok(()),
                    Err(said) => said,
                },
                _ => self.store.refused(&ask, &mut answer),
            };
            let lost = matches!(
                refused,
                ObjectError::UploadGone { .. } | ObjectError::Exists { .. }
            );
            match lost && tries > 0 && self.is_ours(until, &expected)? {
                true => Ok(()),
                false => Err(refused),
            }
        })?;
        self.whole.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether what is there now under the name is what was sent: an answer that said so may have been lost.
    fn is_ours(&self, until: Instant, expected: &sums::Expected) -> Result<bool, ObjectError> {
        let mut ask = self.ask("HEAD", until);
        ask.headers.push(("x-amz-checksum-mode", "ENABLED".into()));
        let answer = self.store.ask(&ask)?;
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let size = header("content-length").and_then(|size| size.parse().ok());
        Ok(answer.status() == http::StatusCode::OK
            && size == Some(self.wanted.size)
            && expected.is(header("x-amz-checksum-crc32c"), header("etag")))
    }

    /// Has the store remove what was begun.
    fn remove(&self, id: &str) -> Result<(), ObjectError> {
        let until = Instant::now() + REMOVAL;
        let mut ask = self.ask("DELETE", until);
        let query = [("uploadId", id)];
        (ask.query, ask.tidies) = (&query, true);
        let (removed, _) = self.store.tidy(until, |_| {
            let mut answer = self.store.ask(&ask)?;
            match answer.status().as_u16() {
                200 | 204 | 404 => Ok(()),
                _ => Err(self.store.refused(&ask, &mut answer)),
            }
        })?;
        Ok(removed)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let whole = self.whole.load(Ordering::Acquire);
        if let Some(id) = self
            .id
            .take()
            .filter(|_| !whole && !self.wanted.can_go_on())
        {
            // A store that cannot be told keeps the parts, and --resume goes on with them.
            let _ = self.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_where_there_would_be_too_many_and_fewer_of_them_are_under_way() {
        assert_eq!((unit(0), unit(1 << 30)), (PART, PART));
        assert_eq!(unit(PART * MAX_PARTS), PART);
        assert_eq!(unit(PART * MAX_PARTS + 1), PART + STEP);
        let largest = unit(MAX_OBJECT);
        assert!(MAX_OBJECT.div_ceil(largest) <= MAX_PARTS && largest < 5 << 30);
        assert_eq!((at_a_time(1 << 30, 16), at_a_time(MAX_OBJECT, 16)), (16, 1));
    }
}
