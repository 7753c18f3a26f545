//! Requests to one bucket of a store.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ureq::{Agent, Body, SendBody, http};

use super::answer::{Answer, parsed, text};
use super::issuer::{is_due, is_over, of_http};
use super::line::{Line, called_back};
use super::network::{anew, towards};
use super::sign::{Signed, UNSIGNED, encoded, hashed, query};
use super::{Credentials, ObjectError, ObjectUrl, StoreSettings};

/// The region of a store that has none, and of Amazon's when nobody says.
const REGION: &str = "us-east-1";
/// What requests are signed for.
const SERVICE: &str = "s3";
/// How often a request is made again that failed by what may pass.
const AGAIN: u64 = 5;
/// How long to wait before the first of these; then twice as long each time, and each time up to half of
/// it less, so that requests that failed together do not come back together.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How often a wait looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// What is done to an object, as errors say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Reading,
    Writing,
    /// By the store itself, from another object.
    Copying,
    Listing,
}

impl Doing {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Reading => "read",
            Self::Writing => "written",
            Self::Copying => "copied",
            Self::Listing => "listed",
        }
    }
}

/// One request.
pub(super) struct Ask<'a> {
    pub doing: Doing,
    pub method: &'static str,
    /// What it is about.
    pub url: &'a ObjectUrl,
    /// Whether it goes to the bucket, and not to the object.
    pub to_bucket: bool,
    pub query: &'a [(&'a str, &'a str)],
    pub headers: Vec<(&'static str, String)>,
    /// Headers that came from elsewhere.
    pub more: &'a [(String, String)],
    pub body: &'a [u8],
    /// Ends the sending of the body early, or keeps the request from being made.
    pub stop: Option<&'a AtomicBool>,
    /// Whether it puts in order what a copy left that was hung up on, and is made all the same.
    pub tidies: bool,
    pub until: Instant,
}

impl<'a> Ask<'a> {
    pub(super) const fn new(
        doing: Doing,
        method: &'static str,
        url: &'a ObjectUrl,
        until: Instant,
    ) -> Self {
        Self {
            doing,
            method,
            url,
            to_bucket: false,
            query: &[],
            headers: Vec::new(),
            more: &[],
            body: &[],
            stop: None,
            tidies: false,
            until,
        }
    }
}

/// One bucket of a store, and the connections to it.
pub(crate) struct Store {
    agent: Agent,
    line: Line,
    settings: StoreSettings,
    /// A key that was given for a limited time.
    key: Mutex<Option<Credentials>>,
    bucket: String,
    /// Where it is, for people.
    shown: String,
    /// Scheme and host, without a `/` at the end.
    base: String,
    /// What stands in front of a key: `/`, or the bucket's name between two.
    root: String,
}

impl Store {
    /// The store that has the bucket of `url`.
    ///
    /// # Errors
    /// When the endpoint is none, or the authorities cannot be read.
    pub(crate) fn at(settings: &StoreSettings, url: &ObjectUrl) -> Result<Self, ObjectError> {
        let (base, root) = place(settings, url.bucket())?;
        let (agent, proxy) = towards(settings, &base)?;
        let shown = proxy.map_or_else(
            || base.clone(),
            |proxy| format!("{base} by the proxy {proxy}"),
        );
        Ok(Self {
            line: Line::of(&agent),
            agent,
            key: Mutex::default(),
            shown,
            settings: settings.clone(),
            bucket: url.bucket().to_owned(),
            base,
            root,
        })
    }

    /// Ends all requests that are under way, however long their answers take, and those for a key: they fail,
    /// are not made again, and no others begin, save one that tidies up. What the store does with them it does.
    pub(crate) fn hang_up(&self) {
        self.line.hang_up();
    }

    /// Whether bytes are protected on their way.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.base.starts_with("https:")
    }

    pub(super) fn region(&self) -> &str {
        self.settings.region.as_deref().unwrap_or(REGION)
    }

    /// Asks once, and answers whatever the store says.
    pub(super) fn ask(&self, ask: &Ask<'_>) -> Result<http::Response<Body>, ObjectError> {
        let left = ask.until.saturating_duration_since(Instant::now());
        let host = self.base.split_once("://").map_or("", |(_, host)| host);
        let path = match (ask.to_bucket, self.root.as_str()) {
            (false, root) => format!("{root}{}", encoded(ask.url.key().as_bytes())),
            (true, "/") => "/".to_owned(),
            (true, root) => root.trim_end_matches('/').to_owned(),
        };
        let query = query(ask.query);
        let mut headers: Vec<(&str, String)> = ask.headers.clone();
        let more = ask.more.iter();
        headers.extend(more.map(|(name, value)| (name.as_str(), value.clone())));
        headers.push(("host", host.to_owned()));
        if let Some(credentials) = &self.key(ask)? {
            let body = match self.is_encrypted() && !ask.body.is_empty() {
                true => UNSIGNED.to_owned(),
                false => hashed(ask.body),
            };
            let signed = Signed {
                method: ask.method,
                path: &path,
                query: &query,
                body: &body,
                service: SERVICE,
                region: self.region(),
                at: SystemTime::now(),
            };
            headers = signed.headers(credentials, headers);
        }
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = http::Request::builder()
            .method(ask.method)
            .uri(format!("{}{path}{mark}{query}", self.base))
            .header("accept-encoding", "identity");
        // The host is put in by whoever sends it, as it stands in the URL.
        for (name, value) in headers.iter().filter(|(name, _)| *name != "host") {
            request = request.header(*name, value);
        }
        let mut body = Sending {
            rest: ask.body,
            stop: ask.stop,
        };
        let answer = if matches!(ask.method, "PUT" | "POST") {
            let request = request.header("content-length", ask.body.len());
            let request = request.body(SendBody::from_reader(&mut body));
            let request = request.map_err(|_| unaskable(ask.url))?;
            self.send(ask, request, left)
        } else {
            let request = request.body(()).map_err(|_| unaskable(ask.url))?;
            self.send(ask, request, left)
        };
        answer.map_err(|error| match error {
            ureq::Error::ConnectProxyFailed(what) => ObjectError::ProxyRefused {
                store: self.shown.clone(),
                url: ask.url.to_string(),
                what,
            },
            other => self.broken(ask.url, of_http(other)),
        })
    }

    /// As whom to ask; nobody when that is `None`.
    fn key(&self, ask: &Ask<'_>) -> Result<Option<Credentials>, ObjectError> {
        let issuer = match (&self.settings.credentials, &self.settings.issuer) {
            (Some(key), _) => return Ok(Some(key.clone())),
            (None, None) => return Ok(None),
            (None, Some(issuer)) => issuer,
        };
        // Whoever comes meanwhile waits for the same key.
        let mut held = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        let still = held.take().filter(|key| !is_over(key));
        *held = match still {
            Some(key) if !is_due(&key) => Some(key),
            still => {
                let aside = Line::default();
                let line = if ask.tidies { &aside } else { &self.line };
                match (issuer.key(&self.settings, line, ask.until), still) {
                    (Ok(key), _) => Some(key),
                    (Err(_), Some(key)) => Some(key),
                    (Err(error), None) => return Err(error),
                }
            }
        };
        Ok(held.clone())
    }

    fn send(
        &self,
        ask: &Ask<'_>,
        request: http::Request<impl ureq::AsSendBody>,
        left: Duration,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let agent = match ask.tidies {
            // The other one may have been hung up.
            true => anew(&self.agent),
            false => self.agent.clone(),
        };
        // Whoever hangs up says so before: what is not ended by that is not begun.
        let stopped = ask.stop.is_some_and(|stop| stop.load(Ordering::Acquire));
        if stopped || !ask.tidies && self.line.is_over() {
            return Err(called_back().into());
        }
        let request = agent.configure_request(request);
        let request = request.timeout_global(Some(left.max(Duration::from_millis(1))));
        agent.run(request.build())
    }

    /// Asks again as long as it fails by what may pass, a few times, and says how often that was.
    ///
    /// # Errors
    /// The last of them.
    pub(super) fn again<T>(
        &self,
        (until, stop): (Instant, Option<&AtomicBool>),
        once: impl FnMut(u64) -> Result<T, ObjectError>,
    ) -> Result<(T, u64), ObjectError> {
        let stopped = || stop.is_some_and(|stop| stop.load(Ordering::Acquire));
        unless(|| stopped() || self.line.is_over(), until, once)
    }

    /// The same for what tidies up, which nobody calls back.
    ///
    /// # Errors
    /// The last of them.
    pub(super) fn tidy<T>(
        &self,
        until: Instant,
        once: impl FnMut(u64) -> Result<T, ObjectError>,
    ) -> Result<(T, u64), ObjectError> {
        unless(|| false, until, once)
    }

    /// The text of an answer whose status says that all is well. A store that needs long begins its answer
    /// before it knows what that will be.
    ///
    /// # Errors
    /// What the text says, or that it is half of one.
    pub(super) fn late(
        &self,
        ask: &Ask<'_>,
        answer: &mut http::Response<Body>,
    ) -> Result<String, ObjectError> {
        let body = text(answer).map_err(|error| self.broken(ask.url, error))?;
        let mut said = Answer::of(answer);
        said.take(&body);
        match (said.code.is_empty(), parsed(&body).is_some()) {
            (true, true) => Ok(body),
            (true, false) => Err(self.odd(ask.url, "half of an answer")),
            (false, _) => Err(self.meant(ask, said)),
        }
    }

    /// What an answer means that is not the one that was hoped for.
    pub(super) fn refused(&self, ask: &Ask<'_>, answer: &mut http::Response<Body>) -> ObjectError {
        self.meant(ask, Answer::of(answer))
    }

    /// What it means that a store said this.
    pub(super) fn meant(&self, ask: &Ask<'_>, said: Answer) -> ObjectError {
        let (store, url) = (self.shown.clone(), ask.url.to_string());
        let ours = self.region();
        let elsewhere = said.region.as_deref().is_some_and(|is| is != ours);
        if elsewhere && matches!(said.status, 301 | 307 | 400 | 403) || said.status == 301 {
            return ObjectError::WrongRegion {
                bucket: self.bucket.clone(),
                asked: ours.to_owned(),
                is: said.region,
            };
        }
        if let Some(seconds) = said.skew() {
            return ObjectError::ClockSkew { store, seconds };
        }
        let (status, code) = (said.status, said.code.clone());
        match (status, code.as_str()) {
            (_, "NoSuchBucket") => ObjectError::NoBucket {
                store,
                bucket: self.bucket.clone(),
            },
            (_, "NoSuchUpload") => ObjectError::UploadGone { store, url },
            (404, _) if ask.doing == Doing::Writing && matches!(ask.method, "PUT" | "POST") => {
                // What is to be written cannot be missing: what it goes into is.
                match ask.query.iter().any(|(name, _)| *name == "uploadId") {
                    true => ObjectError::UploadGone { store, url },
                    false => ObjectError::NoBucket {
                        store,
                        bucket: self.bucket.clone(),
                    },
                }
            }
            (404, _) => ObjectError::NotFound { url },
            (401 | 403, _) => ObjectError::Denied {
                store,
                url,
                doing: ask.doing.word(),
                status,
                code,
                who: match (&self.settings.credentials, &self.settings.issuer) {
                    (None, None) => "it was asked without a key",
                    _ => "it was asked with a key",
                },
            },
            (400, "BadDigest" | "XAmzContentSHA256Mismatch" | "InvalidDigest") => {
                ObjectError::Differs { store, url }
            }
            (501, _) | (_, "NotImplemented") if ask.doing == Doing::Copying => {
                ObjectError::CopiesNothing { store, url }
            }
            (412, _) if ask.doing == Doing::Writing => ObjectError::Exists { url },
            (412, _) => ObjectError::Changed { url },
            (200, "") => self.odd(ask.url, "all of it where a range was asked for"),
            (429 | 500..=599, _)
            | (
                _,
                "SlowDown"
                | "InternalError"
                | "RequestTimeout"
                | "OperationAborted"
                | "ConditionalRequestConflict",
            ) => ObjectError::Busy {
                store,
                url,
                status,
                code,
            },
            _ => self.odd(ask.url, said.to_string()),
        }
    }

    /// Whether the bucket is there, as far as the store says.
    ///
    /// # Errors
    /// [`ObjectError::NoBucket`] when it is not.
    pub(super) fn look_for_bucket(
        &self,
        url: &ObjectUrl,
        until: Instant,
    ) -> Result<(), ObjectError> {
        let mut ask = Ask::new(Doing::Reading, "HEAD", url, until);
        ask.to_bucket = true;
        match self.ask(&ask)?.status().as_u16() {
            404 => Err(ObjectError::NoBucket {
                store: self.shown.clone(),
                bucket: self.bucket.clone(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn broken(&self, url: &ObjectUrl, source: io::Error) -> ObjectError {
        ObjectError::Io {
            store: self.shown.clone(),
            url: url.to_string(),
            source,
        }
    }

    pub(super) fn odd(&self, url: &ObjectUrl, what: impl Into<String>) -> ObjectError {
        ObjectError::Odd {
            store: self.shown.clone(),
            url: url.to_string(),
            what: what.into(),
        }
    }

    /// The bucket's name.
    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(super) fn differs(&self, url: &ObjectUrl) -> ObjectError {
        ObjectError::Differs {
            store: self.shown.clone(),
            url: url.to_string(),
        }
    }
}

fn unaskable(url: &ObjectUrl) -> ObjectError {
    ObjectError::Url {
        text: url.to_string(),
        why: "it cannot be asked for over HTTP",
    }
}

/// Asks again until it is called off.
fn unless<T>(
    off: impl Fn() -> bool,
    until: Instant,
    mut once: impl FnMut(u64) -> Result<T, ObjectError>,
) -> Result<(T, u64), ObjectError> {
    let mut wait = FIRST_WAIT;
    let mut retries = 0;
    loop {
        let error = match once(retries) {
            Ok(done) => return Ok((done, retries)),
            Err(error) => error,
        };
        let left = until.saturating_duration_since(Instant::now());
        if retries >= AGAIN || left <= wait || off() || !error.may_pass() {
            return Err(error);
        }
        let resumes = Instant::now() + wait.mul_f64(1.0 - spread() / 2.0);
        while !off() && Instant::now() < resumes {
            let rest = resumes.saturating_duration_since(Instant::now());
            std::thread::sleep(rest.min(LOOK));
        }
        wait *= 2;
        retries += 1;
    }
}

/// A body on its way, which can be called back.
struct Sending<'b> {
    rest: &'b [u8],
    stop: Option<&'b AtomicBool>,
}

impl Read for Sending<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(called_back());
        }
        self.rest.read(room)
    }
}

/// Some part of one, another one for each request: how much of a wait is left out.
fn spread() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    f64::from(now.unwrap_or_default().subsec_micros() % 1000) / 1000.0
}

/// Scheme and host to ask, and what stands in front of a key there. A store of one's own has its buckets
/// in the path; Amazon's has them in the host, save those whose dots no certificate is for.
fn place(settings: &StoreSettings, bucket: &str) -> Result<(String, String), ObjectError> {
    let Some(endpoint) = &settings.endpoint else {
        let region = settings.region.as_deref().unwrap_or(REGION);
        return Ok(match bucket.contains('.') {
            true => (
                format!("https://s3.{region}.amazonaws.com"),
                format!("/{bucket}/"),
            ),
            false => (
                format!("https://{bucket}.s3.{region}.amazonaws.com"),
                "/".to_owned(),
            ),
        });
    };
    Ok((super::network::endpoint(endpoint)?, format!("/{bucket}/")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn once_it_was_hung_up_nothing_is_asked_any_more_save_what_tidies_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("set");
        let settings = StoreSettings {
            endpoint: Some(format!("http://{}", listener.local_addr().expect("bound"))),
            ..StoreSettings::default()
        };
        let url: ObjectUrl = "s3://b/m".parse().expect("an object");
        let store = Store::at(&settings, &url).expect("a store");
        store.hang_up();
        store.hang_up();
        let began = Instant::now();
        let soon = || Instant::now() + Duration::from_secs(30);
        let mut ask = Ask::new(Doing::Reading, "HEAD", &url, soon());
        let asked = store.again((soon(), None), |_| store.ask(&ask).map(drop));
        assert_eq!(asked.expect_err("it is over").code(), "store-unreachable");
        assert!(listener.accept().is_err(), "nobody connected");
        assert!(began.elapsed() < Duration::from_secs(10), "nor waited");
        (ask.tidies, ask.until) = (true, Instant::now() + Duration::from_millis(200));
        let tidied = store.tidy(ask.until, |_| store.ask(&ask).map(drop));
        assert!(tidied.is_err(), "nobody answered");
        assert!(listener.accept().is_ok(), "but it was asked");
    }

    #[test]
    fn a_bucket_is_in_the_host_of_amazons_store_and_in_the_path_of_others() {
        let mut settings = StoreSettings::default();
        let at = |settings: &StoreSettings, bucket: &str| {
            let (base, root) = place(settings, bucket).expect("a place");
            format!("{base} {root}")
        };
        assert_eq!(at(&settings, "b"), "https://b.s3.us-east-1.amazonaws.com /");
        assert_eq!(
            at(&settings, "b.c"),
            "https://s3.us-east-1.amazonaws.com /b.c/"
        );
        settings.endpoint = Some("http://10.0.0.1:9000/".into());
        assert_eq!(at(&settings, "b"), "http://10.0.0.1:9000 /b/");
        for bad in ["10.0.0.1", "http://", "http://a/b", "ftp://a", "http://u@h"] {
            settings.endpoint = Some(bad.into());
            let error = place(&settings, "b").expect_err("no endpoint");
            assert_eq!(error.code(), "bad-endpoint", "{bad}");
        }
    }
}
