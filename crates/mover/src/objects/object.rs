//! One version of an object, read by ranges.

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use ureq::http;

use super::store::{Ask, Doing, Store};
use super::{ObjectError, ObjectUrl, Properties};

/// The longest version of an object that is remembered.
const MAX_VERSION: usize = 256;
/// What is read from a connection at a time: small enough to stay in a core's caches until it is copied on.
const BITE: usize = 64 << 10;

/// One version of an object.
pub(crate) struct Object {
    store: Arc<Store>,
    url: ObjectUrl,
    size: u64,
    version: String,
    properties: Properties,
}

impl Object {
    /// Looks it up.
    ///
    /// # Errors
    /// When it is not there or may not be read.
    pub(crate) fn open(
        store: &Arc<Store>,
        url: &ObjectUrl,
        until: Instant,
    ) -> Result<Self, ObjectError> {
        let ask = Ask::new(Doing::Reading, "HEAD", url, until);
        let (answer, _) = store.again((until, None), |_| {
            let mut answer = store.ask(&ask)?;
            match answer.status() {
                http::StatusCode::OK => Ok(answer),
                _ => Err(store.refused(&ask, &mut answer)),
            }
        })?;
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let size = header("content-length").and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| store.odd(url, "no length"))?;
        let version = header("etag").filter(|version| version.len() <= MAX_VERSION);
        let version = version.ok_or_else(|| store.odd(url, "no version (ETag)"))?;
        Ok(Self {
            store: Arc::clone(store),
            url: url.clone(),
            size,
            version: version.to_owned(),
            properties: Properties::of(answer.headers()),
        })
    }

    /// Looks it up, and where it is not there, whether its bucket is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn find(
        store: &Arc<Store>,
        url: &ObjectUrl,
        until: Instant,
    ) -> Result<Self, ObjectError> {
        let found = Self::open(store, url, until);
        if let Err(ObjectError::NotFound { .. }) = found {
            store.look_for_bucket(url, until)?;
        }
        found
    }

    /// Its length in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// What tells this version from others: the store's entity tag.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// What the store keeps beside its bytes.
    pub(crate) const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Bytes of its first part, of one that was written in parts; `None` where the store does not say.
    ///
    /// # Errors
    /// When there is another version, or the store does not answer.
    pub(super) fn first_part(&self, until: Instant) -> Result<Option<u64>, ObjectError> {
        let mut ask = Ask::new(Doing::Reading, "HEAD", &self.url, until);
        ask.query = &[("partNumber", "1")];
        ask.headers.push(("if-match", self.version.clone()));
        let (length, _) = self.store.again((until, None), |_| {
            let mut answer = self.store.ask(&ask)?;
            let length = answer.headers().get("content-length");
            let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
            match answer.status().as_u16() {
                200 | 206 => Ok(length),
                // A store that does not know what is asked has no parts to tell of.
                400 | 405 | 501 => Ok(None),
                _ => Err(self.store.refused(&ask, &mut answer)),
            }
        })?;
        Ok(length)
    }

    /// The bucket that it is in.
    pub(super) fn bucket(&self) -> &str {
        self.store.bucket()
    }

    /// Which one it is.
    pub(crate) const fn url(&self) -> &ObjectUrl {
        &self.url
    }

    /// Whether bytes are protected on their way.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.store.is_encrypted()
    }

    /// Reads a range of this version, in order, into `put`, which is told where in the range each piece
    /// belongs. What may pass is tried again; how often that was.
    ///
    /// # Errors
    /// When there is another version, or the store cannot be read from.
    pub(crate) fn read(
        &self,
        range: &Range<u64>,
        until: Instant,
        put: &dyn Fn(usize, &[u8]),
    ) -> Result<u64, ObjectError> {
        let once = |_| self.read_once(range, until, put);
        let ((), retries) = self.store.again((until, None), once)?;
        Ok(retries)
    }

    fn read_once(
        &self,
        range: &Range<u64>,
        until: Instant,
        put: &dyn Fn(usize, &[u8]),
    ) -> Result<(), ObjectError> {
        let last = range.end.saturating_sub(1);
        let mut ask = Ask::new(Doing::Reading, "GET", &self.url, until);
        ask.headers = vec![
            ("if-match", self.version.clone()),
            ("range", format!("bytes={}-{last}", range.start)),
        ];
        let mut answer = self.store.ask(&ask)?;
        if answer.status() != http::StatusCode::PARTIAL_CONTENT {
            return Err(self.store.refused(&ask, &mut answer));
        }
        let said = answer.headers().get("content-range");
        let said = said.and_then(|said| said.to_str().ok()).unwrap_or("");
        let asked = format!("bytes {}-{last}/{}", range.start, self.size);
        if said != asked {
            let what = "another range than was asked for";
            return Err(self.store.odd(&self.url, what));
        }
        let broken = |error| self.store.broken(&self.url, error);
        let wanted = (range.end - range.start) as usize;
        let mut body = answer.body_mut().as_reader();
        let mut bite = vec![0; BITE];
        let mut done = 0;
        while done < wanted {
            let room = BITE.min(wanted - done);
            let read = body.read(bite.get_mut(..room).unwrap_or_default());
            match read.map_err(broken)? {
                0 => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                got => {
                    put(done, bite.get(..got).unwrap_or_default());
                    done += got;
                }
            }
        }
        Ok(())
    }
}
