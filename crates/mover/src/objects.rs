//! Objects in stores that speak S3's protocol, read by ranges: each request is signed, and names the
//! version of the object that it is of.
//!
//! Nothing is read from the environment here: whoever asks says where the store is and who they are.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};

use ureq::http;
use ureq::{Agent, Body};

mod sign;

pub use sign::Credentials;

use sign::{Signed, encoded};

/// The longest key, in bytes, as stores have it.
const MAX_KEY: usize = 1024;
/// The longest name of a bucket.
const MAX_BUCKET: usize = 63;
/// The longest version of an object that is remembered.
const MAX_VERSION: usize = 256;
/// What is read from a connection at a time: small enough to stay in a core's caches until it is copied on.
const BITE: usize = 64 << 10;
/// How often a request is made again that failed by what may pass.
const AGAIN: u32 = 3;
/// How long to wait before the first of these; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The text names no object.
    #[error("`{text}` names no object: {why}")]
    Url {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The endpoint is none.
    #[error("`{endpoint}` is no endpoint of a store: {why}")]
    Endpoint {
        /// What was written.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The store has no such object.
    #[error("there is no {url}")]
    NotFound {
        /// The object.
        url: String,
    },
    /// The store does not let this process read it.
    #[error("{store} does not let {url} be read (status {status}; {who})")]
    Denied {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// HTTP's number.
        status: u16,
        /// As whom it was asked.
        who: &'static str,
    },
    /// It is not the version any more that was opened.
    #[error("{url} changed while it was read")]
    Changed {
        /// The object.
        url: String,
    },
    /// The store answered something else than was asked for.
    #[error("{store} answered {url} with {what}")]
    Odd {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// What it answered.
        what: String,
    },
    /// The store cannot be reached, or the connection broke.
    #[error("cannot read {url} from {store}: {source}")]
    Io {
        /// Where the store is.
        store: String,
        /// The object.
        url: String,
        /// How it failed.
        source: io::Error,
    },
}

impl ObjectError {
    /// A stable code for JSON output and exit status.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "bad-object-url",
            Self::Endpoint { .. } => "bad-endpoint",
            Self::NotFound { .. } => "object-not-found",
            Self::Denied { .. } => "object-denied",
            Self::Changed { .. } => "object-changed",
            Self::Odd { .. } => "store-answer",
            Self::Io { .. } => "store-unreachable",
        }
    }
}

/// Which object: `s3://BUCKET/KEY`.
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
}

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
        if key.is_empty() || key.ends_with('/') {
            return Err(bad("the key of one object is missing"));
        }
        if key.len() > MAX_KEY {
            return Err(bad("a key has 1024 bytes at most"));
        }
        // Libraries and proxies resolve these, and would ask for another object than was signed.
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(bad(
                "a key with `.` or `..` between `/` cannot be asked for",
            ));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// Where a store is, and as whom it is asked.
#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`; Amazon's when `None`.
    pub endpoint: Option<String>,
    /// The region, which is part of each signature; `us-east-1` when `None`.
    pub region: Option<String>,
    /// Who asks; nobody in particular when `None`, and then nothing is signed.
    pub credentials: Option<Credentials>,
}

const REGION: &str = "us-east-1";

/// One version of an object.
pub(crate) struct Object {
    agent: Agent,
    settings: StoreSettings,
    url: ObjectUrl,
    /// Scheme and host, without a `/` at the end.
    base: String,
    /// The path as it is asked for and signed.
    path: String,
    size: u64,
    version: String,
}

/// What reading a range took besides the bytes.
pub(crate) struct Fetched {
    pub retries: u64,
}

impl Object {
    /// Looks it up.
    ///
    /// # Errors
    /// When it is not there or may not be read, or the store is none.
    pub(crate) fn open(
        settings: &StoreSettings,
        url: &ObjectUrl,
        until: Instant,
    ) -> Result<Self, ObjectError> {
        let (base, path) = place(settings, url)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .build();
        let mut object = Self {
            agent: config.into(),
            settings: settings.clone(),
            url: url.clone(),
            base,
            path,
            size: 0,
            version: String::new(),
        };
        let answer = object.ask("HEAD", None, until)?;
        if answer.status() != http::StatusCode::OK {
            return Err(object.refused(answer.status().as_u16()));
        }
        let header = |name: &str| answer.headers().get(name)?.to_str().ok();
        let size = header("content-length").and_then(|size| size.parse().ok());
        object.size = size.ok_or_else(|| object.odd("no length"))?;
        let version = header("etag").filter(|version| version.len() <= MAX_VERSION);
        let version = version.ok_or_else(|| object.odd("no version (ETag)"))?;
        object.version = version.to_owned();
        Ok(object)
    }

    /// Its length in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// What tells this version from others: the store's entity tag.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Which one it is.
    pub(crate) const fn url(&self) -> &ObjectUrl {
        &self.url
    }

    /// Whether bytes are protected on their way.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.base.starts_with("https:")
    }

    /// Reads a range of this version, in order, into `put`, which is told where in the range each piece
    /// belongs. What may pass is tried again.
    ///
    /// # Errors
    /// When there is another version, or the store cannot be read from.
    pub(crate) fn read(
        &self,
        range: &Range<u64>,
        until: Instant,
        put: &dyn Fn(usize, &[u8]),
    ) -> Result<Fetched, ObjectError> {
        let mut wait = FIRST_WAIT;
        let mut retries = 0;
        loop {
            let error = match self.read_once(range, until, put) {
                Ok(()) => return Ok(Fetched { retries }),
                Err(error) => error,
            };
            let left = until.saturating_duration_since(Instant::now());
            if !may_pass(&error) || retries >= u64::from(AGAIN) || left <= wait {
                return Err(error);
            }
            std::thread::sleep(wait);
            wait *= 2;
            retries += 1;
        }
    }

    fn read_once(
        &self,
        range: &Range<u64>,
        until: Instant,
        put: &dyn Fn(usize, &[u8]),
    ) -> Result<(), ObjectError> {
        let mut answer = self.ask("GET", Some(range), until)?;
        match answer.status().as_u16() {
            206 => {}
            412 => {
                return Err(ObjectError::Changed {
                    url: self.url.to_string(),
                });
            }
            status => return Err(self.refused(status)),
        }
        let said = answer.headers().get("content-range");
        let said = said.and_then(|said| said.to_str().ok()).unwrap_or("");
        let asked = format!("bytes {}-{}/{}", range.start, range.end - 1, self.size);
        if said != asked {
            return Err(self.odd("another range than was asked for"));
        }
        let wanted = (range.end - range.start) as usize;
        let mut body = answer.body_mut().as_reader();
        let mut bite = vec![0; BITE];
        let mut done = 0;
        while done < wanted {
            let room = BITE.min(wanted - done);
            let read = body.read(bite.get_mut(..room).unwrap_or_default());
            match read.map_err(|error| self.broken(error))? {
                0 => return Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
                got => {
                    put(done, bite.get(..got).unwrap_or_default());
                    done += got;
                }
            }
        }
        Ok(())
    }

    fn ask(
        &self,
        method: &str,
        range: Option<&Range<u64>>,
        until: Instant,
    ) -> Result<http::Response<Body>, ObjectError> {
        let left = until.saturating_duration_since(Instant::now());
        let range = range.map(|range| format!("bytes={}-{}", range.start, range.end - 1));
        let host = self.base.split_once("://").map_or("", |(_, host)| host);
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{}", self.base, self.path))
            .header("accept-encoding", "identity");
        let mut headers: Vec<(&str, String)> = vec![("host", host.to_owned())];
        if let Some(range) = range {
            headers.push(("if-match", self.version.clone()));
            headers.push(("range", range));
        }
        if let Some(credentials) = &self.settings.credentials {
            let signed = Signed {
                method,
                path: &self.path,
                region: self.settings.region.as_deref().unwrap_or(REGION),
                at: SystemTime::now(),
            };
            headers = signed.headers(credentials, headers);
        }
        // The host is put in by whoever sends it, as it stands in the URL.
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, value);
        }
        let request = request.body(()).map_err(|_| ObjectError::Url {
            text: self.url.to_string(),
            why: "it cannot be asked for over HTTP",
        })?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(left.max(Duration::from_millis(1))))
            .build();
        self.agent.run(request).map_err(|error| match error {
            ureq::Error::Io(source) => self.broken(source),
            ureq::Error::Timeout(_) => self.broken(io::ErrorKind::TimedOut.into()),
            ureq::Error::HostNotFound => self.broken(io::Error::other("there is no such host")),
            other => self.broken(io::Error::other(other)),
        })
    }

    fn store(&self) -> String {
        self.base.clone()
    }

    fn broken(&self, source: io::Error) -> ObjectError {
        ObjectError::Io {
            store: self.store(),
            url: self.url.to_string(),
            source,
        }
    }

    fn odd(&self, what: impl Into<String>) -> ObjectError {
        ObjectError::Odd {
            store: self.store(),
            url: self.url.to_string(),
            what: what.into(),
        }
    }

    fn refused(&self, status: u16) -> ObjectError {
        let (store, url) = (self.store(), self.url.to_string());
        match status {
            404 => ObjectError::NotFound { url },
            401 | 403 => ObjectError::Denied {
                store,
                url,
                status,
                who: match self.settings.credentials {
                    Some(_) => "it was asked with a key",
                    None => "it was asked without a key",
                },
            },
            301 | 307 => self.odd(format!("status {status}: the bucket is in another region")),
            200 => self.odd("all of it where a range was asked for"),
            status => self.odd(format!("status {status}")),
        }
    }
}

/// Whether it may go better another time: a broken connection, or a store that is busy.
fn may_pass(error: &ObjectError) -> bool {
    match error {
        ObjectError::Io { source, .. } => source.kind() != io::ErrorKind::TimedOut,
        ObjectError::Odd { what, .. } => what.starts_with("status 5"),
        _ => false,
    }
}

/// Scheme and host to ask, and the path of an object there. A store of one's own has its buckets in the
/// path; Amazon's has them in the host, save those whose dots no certificate is for.
fn place(settings: &StoreSettings, url: &ObjectUrl) -> Result<(String, String), ObjectError> {
    let (bucket, key) = (&url.bucket, encoded(url.key.as_bytes()));
    let Some(endpoint) = &settings.endpoint else {
        let region = settings.region.as_deref().unwrap_or(REGION);
        return Ok(match bucket.contains('.') {
            true => (
                format!("https://s3.{region}.amazonaws.com"),
                format!("/{bucket}/{key}"),
            ),
            false => (
                format!("https://{bucket}.s3.{region}.amazonaws.com"),
                format!("/{key}"),
            ),
        });
    };
    let bad = |why| ObjectError::Endpoint {
        endpoint: endpoint.clone(),
        why,
    };
    let whole = endpoint.strip_suffix('/').unwrap_or(endpoint);
    let host = whole
        .strip_prefix("http://")
        .or_else(|| whole.strip_prefix("https://"));
    let host = host.ok_or_else(|| bad("it begins with http:// or https://"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '[' | ']');
    match !host.is_empty() && host.chars().all(plain) {
        true => Ok((whole.to_owned(), format!("/{bucket}/{key}"))),
        false => Err(bad("behind the scheme are a host and perhaps a port")),
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
        for bad in [
            "s3://",
            "s3://b",
            "s3://b/",
            "s3://b/x/",
            "s3:///k",
            "s3://b/../c",
            "x",
        ] {
            let error = bad.parse::<ObjectUrl>().expect_err("no object");
            assert_eq!(error.code(), "bad-object-url", "{bad}");
        }
    }

    #[test]
    fn a_bucket_is_in_the_host_of_amazons_store_and_in_the_path_of_others() {
        let mut settings = StoreSettings::default();
        let at =
            |settings: &StoreSettings, text: &str| place(settings, &url(text)).expect("a place");
        let amazons = "https://b.s3.us-east-1.amazonaws.com".to_owned();
        assert_eq!(at(&settings, "s3://b/a b"), (amazons, "/a%20b".into()));
        let (base, path) = at(&settings, "s3://b.c/k");
        assert_eq!(
            (base.as_str(), path.as_str()),
            ("https://s3.us-east-1.amazonaws.com", "/b.c/k")
        );
        settings.endpoint = Some("http://10.0.0.1:9000/".into());
        let (base, path) = at(&settings, "s3://b/k");
        assert_eq!(
            (base.as_str(), path.as_str()),
            ("http://10.0.0.1:9000", "/b/k")
        );
        for bad in ["10.0.0.1", "http://", "http://a/b", "ftp://a", "http://u@h"] {
            settings.endpoint = Some(bad.into());
            let error = place(&settings, &url("s3://b/k")).expect_err("no endpoint");
            assert_eq!(error.code(), "bad-endpoint", "{bad}");
        }
    }
}
