//! etcd, by the JSON gateway of its version 3 interface, over plain HTTP.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{Directory, Presence, RendezvousError, check_name};
use crate::fabric::lookup;

mod lease;

/// The longest answer that is read.
const MAX_ANSWER: u64 = 64 << 10;
/// The time that one request may take.
const TIME: Duration = Duration::from_secs(5);

/// How long an entry outlives its process when nobody says.
const LIVES: Duration = Duration::from_secs(5);

/// A prefix of an etcd cluster's keys.
#[derive(Clone, Debug)]
pub struct Etcd {
    /// One member, as `host:port`.
    address: String,
    /// In front of every name.
    prefix: String,
    /// How long an entry that is held outlives its process.
    lives: Duration,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    value: String,
}

impl Etcd {
    /// The cluster that a member at `address` (`host:port`) belongs to, below `prefix`.
    pub fn new(address: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            prefix: prefix.into(),
            lives: LIVES,
        }
    }

    /// With entries that outlive their process by this time, in whole seconds; etcd makes it longer
    /// when it is less than its members need to elect a leader.
    #[must_use]
    pub const fn outlived_by(mut self, time: Duration) -> Self {
        self.lives = time;
        self
    }

    fn write(&self, name: &str, entry: &str, lease: Option<&str>) -> io::Result<()> {
        let (key, value) = (self.key(name), STANDARD.encode(entry));
        let body = serde_json::json!({ "key": key, "value": value, "lease": lease.unwrap_or("0") });
        self.post("/v3/kv/put", &body.to_string()).map(drop)
    }

    fn failed(&self, source: io::Error) -> RendezvousError {
        RendezvousError::Directory {
            directory: format!("etcd at {}", self.address),
            source: Arc::new(source),
        }
    }

    fn key(&self, name: &str) -> String {
        STANDARD.encode(format!("{}{name}", self.prefix))
    }

    fn post(&self, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let mut stream = None;
        for target in lookup::found(&self.address, Instant::now() + TIME)? {
            match TcpStream::connect_timeout(&target, TIME) {
                Ok(connected) => {
                    stream = Some(connected);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let Some(mut stream) = stream else {
            return Err(last);
        };
        stream.set_read_timeout(Some(TIME))?;
        stream.set_write_timeout(Some(TIME))?;
        // HTTP/1.0: the answer comes in one piece and ends with the connection.
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len(),
        )?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        content(&answer).map(<[u8]>::to_vec)
    }
}

/// The body of an answer that says that all is well.
fn content(answer: &[u8]) -> io::Result<&[u8]> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "no HTTP answer");
    let end = answer
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .ok_or_else(invalid)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| invalid())?;
    let status = head.lines().next().unwrap_or_default();
    match status.split_whitespace().nth(1) {
        Some("200") => Ok(&answer[end + 4..]),
        Some(_) => Err(io::Error::other(status.to_owned())),
        None => Err(invalid()),
    }
}

impl Directory for Etcd {
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError> {
        check_name(name)?;
        self.write(name, entry, None)
            .map_err(|error| self.failed(error))
    }

    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError> {
        check_name(name)?;
        let end = lease::hold(self, name, entry).map_err(|error| self.failed(error))?;
        Ok(Presence::new(end))
    }

    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError> {
        check_name(name)?;
        let body = serde_json::json!({ "key": self.key(name) }).to_string();
        let bad = |why| RendezvousError::BadEntry {
            name: name.to_owned(),
            directory: format!("etcd at {}", self.address),
            why,
        };
        let answer = self
            .post("/v3/kv/range", &body)
            .map_err(|error| self.failed(error))?;
        let found: Found =
            serde_json::from_slice(&answer).map_err(|_| bad("the answer is no JSON of etcd's"))?;
        let Some(pair) = found.kvs.first() else {
            return Ok(None);
        };
        let bytes = STANDARD
            .decode(&pair.value)
            .map_err(|_| bad("it is not base64"))?;
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| bad("it is not text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_says_200_has_a_content() {
        let fine = content(b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n{}").expect("fine");
        assert_eq!(fine, b"{}");
        assert!(content(b"HTTP/1.0 503 Unavailable\r\n\r\n{}").is_err());
        assert!(content(b"\r\n\r\n").is_err() && content(b"no answer").is_err());
    }
}
