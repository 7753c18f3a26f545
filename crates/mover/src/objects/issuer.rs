//! Who gives a key for a limited time: the machine, the container or the cluster that this process runs in,
//! the organisation that its user has signed in to, a command, or a service that exchanges a key for another.
//!
//! These are small services with answers of their own; a library that knows them all comes with a runtime and
//! a second HTTP client, or asks without deadlines.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use ureq::{Agent, Body, http};

use super::line::{Call, Line};
use super::network::{direct, endpoint, towards};
use super::{Credentials, Giver, ObjectError, StoreSettings};

mod assumed;
mod container;
mod instance;
mod process;
mod sign_in;
mod tokens;
mod web_identity;

pub use assumed::{AssumedRole, With};
pub use container::{Container, Token};
pub use instance::Instance;
pub use process::Process;
pub use sign_in::SignIn;
pub use web_identity::WebIdentity;

/// How long before its end a key is exchanged for a new one.
const AHEAD: Duration = Duration::from_secs(300);
/// The longest answer, and the longest file, that is read, in bytes.
const MAX_ANSWER: u64 = 64 << 10;
/// What stands in errors for what was asked for.
const A_KEY: &str = "a key";

/// Who gives a key for a limited time. It is asked again before the key counts no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// The metadata service of a machine in a cloud.
    Instance(Instance),
    /// The service beside a container.
    Container(Container),
    /// A role that is taken on with a token in a file, as clusters give to their pods.
    WebIdentity(WebIdentity),
    /// An organisation, with what its user's last sign-in left.
    SignIn(SignIn),
    /// A role that is taken on with a key.
    Assumed(AssumedRole),
    /// A command.
    Process(Process),
}

impl Issuer {
    /// Asks for a key, until that is hung up on.
    ///
    /// # Errors
    /// When it does not answer, or gives none.
    pub(super) fn key(
        &self,
        settings: &StoreSettings,
        line: &Line,
        until: Instant,
    ) -> Result<Credentials, ObjectError> {
        match self {
            Self::Instance(instance) => instance.key(line, until),
            Self::Container(container) => container.key(line, until),
            Self::WebIdentity(identity) => identity.key(settings, line, until),
            Self::SignIn(sign_in) => sign_in.key(settings, line, until),
            Self::Assumed(role) => role.key(settings, line, until),
            Self::Process(process) => process.key(line, until),
        }
    }
}

/// Whether a key is to be exchanged for a new one.
pub(super) fn is_due(key: &Credentials) -> bool {
    let soon = SystemTime::now() + AHEAD;
    key.expires.is_some_and(|expires| expires <= soon)
}

/// Whether a key counts no longer.
pub(super) fn is_over(key: &Credentials) -> bool {
    let now = SystemTime::now();
    key.expires.is_some_and(|expires| expires <= now)
}

/// A service that is asked for keys.
struct Service<'s> {
    agent: Agent,
    /// Scheme and host.
    base: &'s str,
    by: Giver,
    call: Call<'s>,
}

impl<'s> Service<'s> {
    /// One beside this process, which no proxy leads to.
    fn beside(base: &'s str, by: Giver, line: &'s Line) -> Result<Self, ObjectError> {
        endpoint(base)?;
        Ok(Self::asked_by(direct(), base, by, line))
    }

    /// One in the network, by the proxies that lead there.
    fn afar(
        base: &'s str,
        by: Giver,
        line: &'s Line,
        settings: &StoreSettings,
    ) -> Result<Self, ObjectError> {
        endpoint(base)?;
        let (agent, _) = towards(settings, base)?;
        Ok(Self::asked_by(agent, base, by, line))
    }

    fn asked_by(agent: Agent, base: &'s str, by: Giver, line: &'s Line) -> Self {
        Self {
            call: line.call(&agent),
            agent,
            base,
            by,
        }
    }

    /// Asks, and answers status and text.
    fn ask(
        &self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
        until: Instant,
    ) -> Result<(u16, String), ObjectError> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, value.trim());
        }
        let unaskable = |_| ObjectError::Endpoint {
            endpoint: self.base.to_owned(),
            why: "nothing can be asked of it over HTTP",
        };
        let left = until.saturating_duration_since(Instant::now());
        let left = Some(left.max(Duration::from_millis(1)));
        // A service that was asked with a body is told how long it is, also when that is nothing.
        let answer = if method == "GET" {
            let request = request.body(()).map_err(unaskable)?;
            let request = self.agent.configure_request(request);
            self.agent.run(request.timeout_global(left).build())
        } else {
            let request = request.body(body).map_err(unaskable)?;
            let request = self.agent.configure_request(request);
            self.agent.run(request.timeout_global(left).build())
        };
        let mut answer = answer.map_err(|error| self.broken(of_http(error)))?;
        let text = text(&mut answer).map_err(|error| self.broken(error))?;
        Ok((answer.status().as_u16(), text))
    }

    fn broken(&self, source: io::Error) -> ObjectError {
        ObjectError::Io {
            store: self.base.to_owned(),
            url: A_KEY.into(),
            source,
        }
    }

    fn refused(&self, what: impl Into<String>) -> ObjectError {
        ObjectError::KeyRefused {
            from: self.base.to_owned(),
            by: self.by,
            what: what.into(),
        }
    }
}

fn text(answer: &mut http::Response<Body>) -> io::Result<String> {
    let mut text = String::new();
    let body = answer.body_mut().as_reader();
    body.take(MAX_ANSWER).read_to_string(&mut text)?;
    Ok(text)
}

/// What HTTP failed by, as far as the kernel has a word for it.
pub(super) fn of_http(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(source) => source,
        ureq::Error::Timeout(_) => io::ErrorKind::TimedOut.into(),
        ureq::Error::HostNotFound => io::Error::other("there is no such host"),
        other => io::Error::other(other),
    }
}

/// The text of a file that a token is in.
fn token(path: &Path) -> Result<String, ObjectError> {
    let failed = |why: String| ObjectError::TokenFile {
        path: path.display().to_string(),
        why,
    };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MAX_ANSWER + 1).read_to_string(&mut text);
    if read.map_err(|error| failed(error.to_string()))? as u64 > MAX_ANSWER {
        return Err(failed(format!("it is longer than {MAX_ANSWER} bytes")));
    }
    match text.trim() {
        "" => Err(failed("there is nothing in it".into())),
        token => Ok(token.to_owned()),
    }
}

/// The beginning of what somebody said, as one line.
fn in_short(said: &str) -> String {
    const SHORT: usize = 200;
    let words: Vec<&str> = said.split_whitespace().collect();
    let line = words.join(" ");
    let plain = line.chars().filter(|c| !c.is_control());
    plain.take(SHORT).collect()
}

/// A time as these services and tools write it.
fn time(text: Option<&str>) -> Option<SystemTime> {
    let text = text?.trim();
    let text = text.strip_suffix("UTC").unwrap_or(text);
    humantime::parse_rfc3339_weak(text).ok()
}
