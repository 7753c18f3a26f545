//! Those who give keys, and a proxy, on this host.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::store::wire::{self, Answer, Request};

/// What whoever gives keys is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Giver {
    /// Gives a key that counts for so many seconds.
    For(u64),
    /// Answers with this status.
    Refuses(&'static str),
    /// Says something that is no key.
    Raves,
    /// Says nothing.
    Silent,
}

/// One that plays all services that give keys, at their paths.
pub struct Issuers {
    pub address: String,
    giver: Arc<Mutex<Giver>>,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Issuers {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let giver = Arc::new(Mutex::new(Giver::For(3600)));
        let asked: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (state, log) = (Arc::clone(&giver), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, log) = (Arc::clone(&state), Arc::clone(&log));
                std::thread::spawn(move || serve(stream, &state, &log));
            }
        });
        Self {
            address,
            giver,
            asked,
        }
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn is(&self, giver: Giver) {
        *self.giver.lock().expect("no panics") = giver;
    }

    /// What it was asked since the last call.
    pub fn asked(&self) -> Vec<Request> {
        std::mem::take(&mut self.asked.lock().expect("no panics"))
    }
}

fn serve(stream: TcpStream, giver: &Mutex<Giver>, log: &Mutex<Vec<Request>>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = wire::hear(&mut reader, |_, length| length) {
        let giver = *giver.lock().expect("no panics");
        let answer = match giver {
            Giver::Silent => {
                log.lock().expect("no panics").push(request);
                // Until whoever asked gives up.
                let _ = reader.read_line(&mut String::new());
                return None;
            }
            Giver::Refuses(status) => Answer::empty(status),
            Giver::Raves => with_body("{\"AccessKeyId\": 7}"),
            Giver::For(seconds) => given(&request, seconds),
        };
        log.lock().expect("no panics").push(request);
        answer.speak(&mut out, false)?;
    }
    Some(())
}

fn with_body(text: &str) -> Answer {
    Answer {
        body: text.as_bytes().to_vec(),
        ..Answer::empty("200 OK")
    }
}

/// The key that the store of the tests knows, in the form of whoever is asked.
fn given(request: &Request, seconds: u64) -> Answer {
    let until = SystemTime::now() + Duration::from_secs(seconds);
    let time = humantime::format_rfc3339_seconds(until);
    let roles = "/latest/meta-data/iam/security-credentials/";
    match request.path.as_str() {
        "/latest/api/token" => with_body("a word"),
        path if path == roles => with_body("a-role"),
        // By the security token service.
        "/" => Answer::xml(
            "200 OK",
            &format!(
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
                 <AccessKeyId>someone</AccessKeyId><SecretAccessKey>a secret</SecretAccessKey>\
                 <SessionToken>a-token</SessionToken><Expiration>{time}</Expiration></Credentials>\
                 </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            ),
        ),
        "/federation/credentials" => {
            let since = until.duration_since(SystemTime::UNIX_EPOCH);
            let until = since.expect("later").as_millis();
            with_body(&format!(
                "{{\"roleCredentials\": {{\"accessKeyId\": \"someone\", \
                 \"secretAccessKey\": \"a secret\", \"sessionToken\": \"a-token\", \
                 \"expiration\": {until}}}}}"
            ))
        }
        // By the machine and the container.
        _ => with_body(&format!(
            "{{\"AccessKeyId\": \"someone\", \"SecretAccessKey\": \"a secret\", \
             \"Token\": \"a-token\", \"Expiration\": \"{time}\"}}"
        )),
    }
}

/// A proxy that connects its clients to whom they name.
pub struct Way {
    pub address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Way {
    /// One that lets everybody through, or answers everybody with this status.
    pub fn start(refusal: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let log = Arc::clone(&log);
                std::thread::spawn(move || lead(stream, refusal, &log));
            }
        });
        Self { address, heads }
    }

    /// The heads of the requests that came.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panics").clone()
    }
}

fn lead(stream: TcpStream, refusal: Option<&str>, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let target = head.strip_prefix("CONNECT ")?.split_whitespace().next()?;
    let there = TcpStream::connect(target);
    log.lock().expect("no panics").push(head);
    if let Some(status) = refusal {
        out.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes())
            .ok()?;
        return Some(());
    }
    let mut there = there.ok()?;
    out.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
    let mut back = there.try_clone().ok()?;
    std::thread::spawn(move || std::io::copy(&mut back, &mut out));
    std::io::copy(&mut reader, &mut there).ok()?;
    there.shutdown(std::net::Shutdown::Write).ok()
}
