//! A store of objects on this host that checks who asks, and can be told to misbehave.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crowfly_mover::objects::{Credentials, StoreSettings};
use ring::{digest, hmac};

const SECRET: &str = "a secret";
const REGION: &str = "eu-test-1";

/// What it does to reads of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// So many times busy (503) first.
    Busy(usize),
    /// So many times half of the bytes, and the end of the connection.
    Cuts(usize),
    /// All of the object, whatever was asked for.
    Deaf,
    /// Nothing, for ever.
    Silent,
}

struct State {
    objects: HashMap<String, (Vec<u8>, String)>,
    mood: Mood,
    /// Why the last request was turned away.
    complaint: Option<String>,
}

pub struct Store {
    state: Arc<Mutex<State>>,
    address: String,
    /// Ranges that were sent.
    pub sent: Arc<AtomicUsize>,
    /// The most that were being sent at a time.
    pub together: Arc<AtomicUsize>,
}

impl Store {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let state = Arc::new(Mutex::new(State {
            objects: HashMap::new(),
            mood: Mood::Well,
            complaint: None,
        }));
        let (sent, together) = (Arc::default(), Arc::default());
        let store = Self {
            state: Arc::clone(&state),
            address: address.clone(),
            sent: Arc::clone(&sent),
            together: Arc::clone(&together),
        };
        std::thread::spawn(move || {
            let now = Arc::new(AtomicUsize::new(0));
            for stream in listener.incoming().flatten() {
                let shared = (Arc::clone(&state), Arc::clone(&sent), Arc::clone(&together));
                let (now, address) = (Arc::clone(&now), address.clone());
                std::thread::spawn(move || serve(stream, &address, &shared, &now));
            }
        });
        store
    }

    /// Puts an object there, under a path such as `bucket/key`.
    pub fn put(&self, path: &str, bytes: &[u8], version: &str) {
        let object = (bytes.to_vec(), format!("\"{version}\""));
        self.state().objects.insert(format!("/{path}"), object);
    }

    pub fn is(&self, mood: Mood) {
        self.state().mood = mood;
    }

    pub fn complaint(&self) -> Option<String> {
        self.state().complaint.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panics")
    }

    pub fn settings(&self) -> StoreSettings {
        StoreSettings {
            endpoint: Some(format!("http://{}", self.address)),
            region: Some(REGION.into()),
            credentials: Some(Credentials {
                access_key: "someone".into(),
                secret_key: SECRET.into(),
                session_token: Some("a token".into()),
            }),
        }
    }
}

type Shared = (Arc<Mutex<State>>, Arc<AtomicUsize>, Arc<AtomicUsize>);

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

fn hear(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(':') {
            None => break,
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
        }
    }
    Some(Request {
        method,
        path,
        headers,
    })
}

fn serve(stream: TcpStream, address: &str, shared: &Shared, now: &AtomicUsize) {
    let Ok(mut out) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    while let Some(request) = hear(&mut reader) {
        if answer(&request, address, &mut out, shared, now).is_none() {
            return;
        }
    }
}

/// Answers; `None` ends the connection.
fn answer(
    request: &Request,
    address: &str,
    out: &mut TcpStream,
    (state, sent, together): &Shared,
    now: &AtomicUsize,
) -> Option<()> {
    let mut head = |status: &str, more: &str, len: usize| {
        let text = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {len}\r\n\r\n");
        out.write_all(text.as_bytes()).ok()
    };
    let checked = signed_well(request, address);
    let (object, mood) = {
        let mut state = state.lock().expect("no panics");
        state.complaint = checked.clone().err();
        let mood = state.mood;
        if request.method == "GET" {
            state.mood = match mood {
                Mood::Busy(1) | Mood::Cuts(1) => Mood::Well,
                Mood::Busy(left) => Mood::Busy(left - 1),
                Mood::Cuts(left) => Mood::Cuts(left - 1),
                other => other,
            };
        }
        (state.objects.get(&request.path).cloned(), mood)
    };
    if checked.is_err() {
        return head("403 Forbidden", "", 0);
    }
    let Some((bytes, version)) = object else {
        return head("404 Not Found", "", 0);
    };
    let version_line = format!("ETag: {version}\r\n");
    if request.method == "HEAD" {
        return head("200 OK", &version_line, bytes.len());
    }
    if request.headers.get("if-match") != Some(&version) {
        return head("412 Precondition Failed", "", 0);
    }
    match mood {
        Mood::Busy(_) => return head("503 Slow Down", "", 0),
        Mood::Deaf => {
            head("200 OK", &version_line, bytes.len())?;
            return out.write_all(&bytes).ok();
        }
        Mood::Silent => {
            std::thread::sleep(std::time::Duration::from_secs(60));
            return None;
        }
        Mood::Well | Mood::Cuts(_) => {}
    }
    let range = request.headers.get("range")?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    let part = bytes.get(first..=last)?;
    let said = format!(
        "{version_line}Content-Range: bytes {first}-{last}/{}\r\n",
        bytes.len()
    );
    head("206 Partial Content", &said, part.len())?;
    if let Mood::Cuts(_) = mood {
        let _ = out.write_all(part.get(..part.len() / 2)?);
        return None;
    }
    let busy = now.fetch_add(1, Ordering::SeqCst) + 1;
    together.fetch_max(busy, Ordering::SeqCst);
    // The first of them waits a little for whoever comes at the same time.
    for _ in 0..100 {
        if together.load(Ordering::SeqCst) > 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let written = out.write_all(part).ok();
    now.fetch_sub(1, Ordering::SeqCst);
    sent.fetch_add(1, Ordering::SeqCst);
    written
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Works the signature out once more from what came over the wire.
fn signed_well(request: &Request, address: &str) -> Result<(), String> {
    let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
    if header("host") != address {
        return Err(format!("another host: {}", header("host")));
    }
    let authorization = header("authorization");
    let field = |name: &str| {
        let at = authorization.find(name).ok_or(format!("no {name}"))?;
        let value = authorization[at + name.len()..].split(',').next();
        Ok::<_, String>(value.unwrap_or_default().to_owned())
    };
    let (credential, names, signature) = (
        field("Credential=")?,
        field("SignedHeaders=")?,
        field("Signature=")?,
    );
    for name in [
        "host",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
    ] {
        if !names.split(';').any(|signed| signed == name) {
            return Err(format!("{name} is not signed"));
        }
    }
    let date = header("x-amz-date");
    let day = date.get(..8).ok_or("no date")?;
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    if credential != format!("someone/{scope}") {
        return Err(format!("another scope: {credential}"));
    }
    let lines: String = names
        .split(';')
        .map(|name| format!("{name}:{}\n", header(name)))
        .collect();
    let canonical = format!(
        "{}\n{}\n\n{lines}\n{names}\n{}",
        request.method,
        request.path,
        header("x-amz-content-sha256")
    );
    let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}");
    let sign = |key: &[u8], text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    };
    let key = sign(format!("AWS4{SECRET}").as_bytes(), day);
    let key = sign(&sign(&sign(&key, REGION), "s3"), "aws4_request");
    match hex(&sign(&key, &text)) == signature {
        true => Ok(()),
        false => Err("another signature".into()),
    }
}
