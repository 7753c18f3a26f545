//! A store of objects on this host that checks who asks, and can be told to misbehave.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crowfly_mover::objects::{Credentials, StoreSettings};
use md5::{Digest, Md5};

mod duplicates;
mod listings;
mod signature;
pub mod wire;

pub use signature::{SECRET, check};

use signature::{REGION, hex};
use wire::{Answer, Request};

/// The shortest part of an object, save the last.
const SHORTEST: usize = 5 << 20;

/// What it does to reads of ranges, and to what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// So many times busy (503) first.
    Busy(usize),
    /// So many times half of the bytes, and the end of the connection.
    Cuts(usize),
    /// So many ranges of it, and then it is another version.
    Changes(usize),
    /// All of the object, whatever was asked for.
    Deaf,
    /// Nothing, for ever.
    Silent,
    /// Does what is asked, and so many times ends the connection without saying so.
    Mute(usize),
    /// One byte of what arrives is another.
    Flips,
    /// Takes no parts, and says that it is busy.
    Full,
    /// Serves so many parts and ranges, and has all others wait until it is in another mood; then they are told
    /// that it is busy. What needs more cannot end before a test has done what it wants to do meanwhile.
    Holds(usize),
    /// Writes are refused.
    ReadOnly,
    /// Says so many times that all is well, and then that it is not, when parts are put together.
    Late(usize),
    /// It is another region's.
    Elsewhere,
    /// It has another time.
    Yesterday,
    /// Listings never end.
    Endless,
    /// It copies nothing by itself.
    Lazy,
    /// It copies so many parts, and is busy from then on.
    Worn(usize),
}

#[derive(Clone)]
struct Stored {
    bytes: Vec<u8>,
    tag: String,
    crc: Option<String>,
    /// Bytes of its first part, where it was written in parts.
    first: Option<usize>,
    /// What is kept beside the bytes.
    besides: Vec<(&'static str, String)>,
}

struct Begun {
    name: String,
    checked: bool,
    parts: BTreeMap<u64, Stored>,
    besides: Vec<(&'static str, String)>,
}

struct State {
    buckets: BTreeSet<String>,
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<u64, Begun>,
    mood: Mood,
    /// Whether it knows checksums besides MD5.
    modern: bool,
    /// Keys of one answer of a listing.
    page: usize,
    /// Why the last request was turned away.
    complaint: Option<String>,
    /// Requests that changed something, or were to.
    writes: Vec<String>,
    next: u64,
}

struct Shared {
    state: Mutex<State>,
    address: String,
    sent: Arc<AtomicUsize>,
    together: Arc<AtomicUsize>,
    now: AtomicUsize,
    /// Connections whose end the store has not noticed.
    talking: AtomicUsize,
}

pub struct Store {
    shared: Arc<Shared>,
    /// Ranges that were sent.
    pub sent: Arc<AtomicUsize>,
    /// The most that were being sent at a time.
    pub together: Arc<AtomicUsize>,
}

impl Store {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                buckets: BTreeSet::new(),
                objects: BTreeMap::new(),
                uploads: BTreeMap::new(),
                mood: Mood::Well,
                modern: true,
                page: 1000,
                complaint: None,
                writes: Vec::new(),
                next: 1,
            }),
            address: listener.local_addr().expect("bound").to_string(),
            sent: Arc::default(),
            together: Arc::default(),
            now: AtomicUsize::new(0),
            talking: AtomicUsize::new(0),
        });
        let store = Self {
            shared: Arc::clone(&shared),
            sent: Arc::clone(&shared.sent),
            together: Arc::clone(&shared.together),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                shared.talking.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    serve(stream, &shared);
                    shared.talking.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        store
    }

    /// Waits until whatever was sent to it has been seen, once nobody talks to it any more.
    pub fn rests(&self) {
        use std::io::{Read, Write};
        // Whoever connected before this was let in before it.
        let mut last = TcpStream::connect(&self.shared.address).expect("it listens");
        let asked = last.write_all(b"GET /nothing HTTP/1.1\r\nhost: nobody\r\n\r\n");
        asked.expect("it hears");
        let _ = last.read(&mut [0]).expect("it answers");
        drop(last);
        let began = std::time::Instant::now();
        while self.shared.talking.load(Ordering::SeqCst) > 0 {
            assert!(began.elapsed().as_secs() < 60, "somebody still talks");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Makes a bucket.
    pub fn bucket(&self, name: &str) {
        self.state().buckets.insert(name.to_owned());
    }

    /// Puts an object there, under a name such as `bucket/key`.
    pub fn put(&self, name: &str, bytes: &[u8], version: &str) {
        let (bucket, _) = name.split_once('/').expect("a bucket and a key");
        self.bucket(bucket);
        let object = Stored {
            bytes: bytes.to_vec(),
            tag: format!("\"{version}\""),
            crc: None,
            first: None,
            besides: Vec::new(),
        };
        self.state().objects.insert(name.to_owned(), object);
    }

    /// Takes an object away.
    pub fn remove(&self, name: &str) {
        self.state().objects.remove(name);
    }

    /// The bytes of an object.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.objects.get(name).map(|object| object.bytes.clone())
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// Parts of uploads that are neither finished nor removed.
    pub fn begun(&self) -> Vec<usize> {
        let state = self.state();
        state
            .uploads
            .values()
            .map(|upload| upload.parts.len())
            .collect()
    }

    /// Requests to write, remove or begin something since the last call.
    pub fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state().writes)
    }

    pub fn is(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// Knows no checksums but MD5, as older stores.
    pub fn is_old(&self) {
        self.state().modern = false;
    }

    /// Lists so many keys at a time.
    pub fn lists(&self, keys: usize) {
        self.state().page = keys;
    }

    pub fn complaint(&self) -> Option<String> {
        self.state().complaint.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panics")
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    pub fn settings(&self) -> StoreSettings {
        StoreSettings {
            endpoint: Some(self.endpoint()),
            region: Some(REGION.into()),
            credentials: Some(Credentials {
                access_key: "someone".into(),
                secret_key: SECRET.into(),
                session_token: Some("a-token".into()),
                expires: None,
            }),
            ..StoreSettings::default()
        }
    }
}

fn serve(stream: TcpStream, shared: &Shared) {
    let Ok(mut out) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    let cut = |method: &str, length: usize| {
        let mut state = shared.state.lock().expect("no panics");
        match state.mood {
            Mood::Cuts(left) if method == "PUT" => {
                state.mood = less(left, Mood::Cuts);
                length / 2
            }
            _ => length,
        }
    };
    while let Some(request) = wire::hear(&mut reader, cut) {
        if answer(&request, &mut out, shared).is_none() {
            return;
        }
    }
}

/// Whether a request is about a part of an object, one way or the other.
fn of_a_part(request: &Request) -> bool {
    request.method == "PUT" || request.headers.contains_key("range")
}

/// Waits as long as the store holds such requests; what is answered to one that had to.
fn held(request: &Request, shared: &Shared) -> Option<Answer> {
    let holds =
        || of_a_part(request) && shared.state.lock().expect("no panics").mood == Mood::Holds(0);
    if !holds() {
        return None;
    }
    while holds() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Some(Answer::error("503 Slow Down", "SlowDown", ""))
}

/// Whether an object is there once this is done.
fn ends(request: &Request) -> bool {
    let parted = request.parameter("uploadId").is_some();
    matches!(
        (request.method.as_str(), parted),
        ("PUT", false) | ("POST", true)
    )
}

fn less(left: usize, mood: fn(usize) -> Mood) -> Mood {
    if left > 1 { mood(left - 1) } else { Mood::Well }
}

/// Answers; `None` ends the connection.
fn answer(request: &Request, out: &mut TcpStream, shared: &Shared) -> Option<()> {
    let method = request.method.as_str();
    let checked = check(request, &shared.address, "s3");
    if let Some(refusal) = held(request, shared) {
        return refusal.speak(out, method == "HEAD");
    }
    let (answer, mood) = {
        let mut state = shared.state.lock().expect("no panics");
        state.complaint = checked.clone().err();
        if matches!(method, "PUT" | "POST" | "DELETE") {
            let about = format!("{method} {}?{}", request.path, request.query);
            state.writes.push(about.trim_end_matches('?').to_owned());
        }
        let mood = state.mood;
        let answer = match checked {
            Ok(()) => state.obey(request),
            Err(_) => Answer::error("403 Forbidden", "SignatureDoesNotMatch", ""),
        };
        (answer, mood)
    };
    let bodiless = method == "HEAD";
    match mood {
        Mood::Silent if method != "HEAD" => {
            std::thread::sleep(std::time::Duration::from_secs(60));
            return None;
        }
        Mood::Mute(left) if ends(request) => {
            shared.state.lock().expect("no panics").mood = less(left, Mood::Mute);
            return None;
        }
        Mood::Cuts(_) if answer.status.starts_with("206") => {
            let half = answer.body.len() / 2;
            let cut = Answer {
                length: Some(answer.body.len()),
                body: answer.body.get(..half)?.to_vec(),
                ..answer
            };
            cut.speak(out, false)?;
            return None;
        }
        _ => {}
    }
    let large = method == "PUT" && request.body.len() > SHORTEST;
    if !large && !answer.status.starts_with("206") {
        return answer.speak(out, bodiless);
    }
    let busy = shared.now.fetch_add(1, Ordering::SeqCst) + 1;
    shared.together.fetch_max(busy, Ordering::SeqCst);
    // The first of them waits a little for whoever comes at the same time.
    for _ in 0..100 {
        if shared.together.load(Ordering::SeqCst) > 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let spoken = answer.speak(out, bodiless);
    shared.now.fetch_sub(1, Ordering::SeqCst);
    shared.sent.fetch_add(1, Ordering::SeqCst);
    spoken
}

impl State {
    /// Does what is asked, as far as the mood allows.
    fn obey(&mut self, request: &Request) -> Answer {
        let method = request.method.as_str();
        let writes = matches!(method, "PUT" | "POST" | "DELETE");
        let upload = request.parameter("uploadId");
        match self.mood {
            Mood::Elsewhere => {
                let more = "<Region>eu-other-2</Region>";
                return Answer::error("400 Bad Request", "AuthorizationHeaderMalformed", more)
                    .with("x-amz-bucket-region", "eu-other-2");
            }
            Mood::Yesterday => {
                return Answer::error("403 Forbidden", "RequestTimeTooSkewed", "")
                    .with("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
            }
            Mood::Busy(left) if matches!(method, "GET" | "PUT") => {
                self.mood = less(left, Mood::Busy);
                return Answer::error("503 Slow Down", "SlowDown", "");
            }
            Mood::Full if method == "PUT" => {
                return Answer::error("503 Slow Down", "SlowDown", "");
            }
            // What an upload is asked that was removed meanwhile may come late, and is none of those that are let by.
            Mood::Holds(left)
                if of_a_part(request)
                    && (upload.is_none() || self.uploads.contains_key(&id(upload.clone()))) =>
            {
                match left.checked_sub(1) {
                    Some(left) => self.mood = Mood::Holds(left),
                    None => return Answer::error("503 Slow Down", "SlowDown", ""),
                }
            }
            Mood::ReadOnly if writes => return Answer::error("403 Forbidden", "AccessDenied", ""),
            _ => {}
        }
        let name = request.name();
        let (bucket, key) = name.split_once('/').unwrap_or((name.as_str(), ""));
        if !self.buckets.contains(bucket) {
            return Answer::error("404 Not Found", "NoSuchBucket", "");
        }
        let about = (
            method,
            key.is_empty(),
            upload.is_some(),
            request.parameter("uploads").is_some(),
        );
        match about {
            ("HEAD", true, ..) => Answer::empty("200 OK"),
            ("HEAD" | "GET", false, false, _) => self.read(request, &name),
            ("GET", true, _, false) => self.list(request, bucket),
            ("GET", true, _, true) => self.uploads(request, bucket),
            ("GET", false, true, _) => self.parts(request),
            ("PUT", false, ..) if request.headers.contains_key("x-amz-copy-source") => {
                self.duplicate(request, name)
            }
            ("PUT", false, false, _) => self.write(request, name),
            ("POST", false, false, true) => self.begin(request, name),
            ("PUT", false, true, _) => self.part(request),
            ("POST", false, true, _) => self.complete(request, name),
            ("DELETE", false, true, _) => match self.uploads.remove(&id(upload)) {
                Some(_) => Answer::empty("204 No Content"),
                None => Answer::error("404 Not Found", "NoSuchUpload", ""),
            },
            _ => Answer::error("405 Method Not Allowed", "MethodNotAllowed", ""),
        }
    }

    fn read(&mut self, request: &Request, name: &str) -> Answer {
        let Some(object) = self.objects.get(name) else {
            return Answer::error("404 Not Found", "NoSuchKey", "");
        };
        let tagged = |status| Answer::empty(status).with("ETag", object.tag.clone());
        if request.method == "HEAD" {
            let mut answer = tagged("200 OK");
            answer.headers.extend(object.besides.iter().cloned());
            let part = request.parameter("partNumber").and(object.first);
            answer.length = Some(part.unwrap_or(object.bytes.len()));
            let asked = request.headers.contains_key("x-amz-checksum-mode");
            return match object.crc.as_ref().filter(|_| asked) {
                Some(crc) => answer.with("x-amz-checksum-crc32c", crc.clone()),
                None => answer,
            };
        }
        let changed = self.mood == Mood::Changes(0);
        if let Mood::Changes(left @ 1..) = self.mood {
            self.mood = Mood::Changes(left - 1);
        }
        if changed || request.headers.get("if-match") != Some(&object.tag) {
            return Answer::error("412 Precondition Failed", "PreconditionFailed", "");
        }
        if self.mood == Mood::Deaf {
            let mut answer = tagged("200 OK");
            answer.body.clone_from(&object.bytes);
            return answer;
        }
        let range = request.headers.get("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        let (first, last): (usize, usize) = range.expect("a range");
        let said = format!("bytes {first}-{last}/{}", object.bytes.len());
        let mut answer = tagged("206 Partial Content").with("Content-Range", said);
        answer.body = object.bytes.get(first..=last).expect("inside").to_vec();
        if let Mood::Cuts(left) = self.mood {
            self.mood = less(left, Mood::Cuts);
        }
        answer
    }

    /// What arrives, unless it has another checksum than is said of it.
    fn arrived(&self, request: &Request) -> Result<Stored, Answer> {
        let mut bytes = request.body.clone();
        if self.mood == Mood::Flips {
            bytes[0] ^= 1;
        }
        let crc = STANDARD.encode(crc32c::crc32c(&bytes).to_be_bytes());
        let said = request.headers.get("x-amz-checksum-crc32c");
        let said = said.filter(|_| self.modern);
        if said.is_some_and(|said| *said != crc) {
            return Err(Answer::error("400 Bad Request", "BadDigest", ""));
        }
        Ok(Stored {
            tag: format!("\"{}\"", hex(Md5::digest(&bytes).as_slice())),
            crc: said.cloned(),
            first: None,
            besides: duplicates::besides(request),
            bytes,
        })
    }

    fn taken(stored: &Stored) -> Answer {
        let answer = Answer::empty("200 OK").with("ETag", stored.tag.clone());
        match &stored.crc {
            Some(crc) => answer.with("x-amz-checksum-crc32c", crc.clone()),
            None => answer,
        }
    }

    fn may_not(&self, request: &Request, name: &str) -> Option<Answer> {
        let only_new = request
            .headers
            .get("if-none-match")
            .is_some_and(|tag| tag == "*");
        (only_new && self.objects.contains_key(name))
            .then(|| Answer::error("412 Precondition Failed", "PreconditionFailed", ""))
    }

    fn write(&mut self, request: &Request, name: String) -> Answer {
        if let Some(refusal) = self.may_not(request, &name) {
            return refusal;
        }
        match self.arrived(request) {
            Ok(stored) => {
                let answer = Self::taken(&stored);
                self.objects.insert(name, stored);
                answer
            }
            Err(refusal) => refusal,
        }
    }

    fn begin(&mut self, request: &Request, name: String) -> Answer {
        let id = self.next;
        self.next += 1;
        let kind = request.headers.get("x-amz-checksum-algorithm");
        let checked = self.modern && kind.is_some_and(|kind| kind == "CRC32C");
        let begun = Begun {
            name,
            checked,
            parts: BTreeMap::new(),
            besides: duplicates::besides(request),
        };
        self.uploads.insert(id, begun);
        let text = format!(
            "<InitiateMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        );
        Answer::xml("200 OK", &text)
    }

    fn part(&mut self, request: &Request) -> Answer {
        let stored = match self.arrived(request) {
            Ok(stored) => stored,
            Err(refusal) => return refusal,
        };
        let Some(begun) = self.uploads.get_mut(&id(request.parameter("uploadId"))) else {
            return Answer::error("404 Not Found", "NoSuchUpload", "");
        };
        if self.modern && stored.crc.is_some() != begun.checked {
            return Answer::error("400 Bad Request", "InvalidRequest", "");
        }
        let number = request
            .parameter("partNumber")
            .and_then(|at| at.parse().ok());
        let answer = Self::taken(&stored);
        begun.parts.insert(number.expect("a number"), stored);
        answer
    }

    fn complete(&mut self, request: &Request, name: String) -> Answer {
        if let Mood::Late(left) = self.mood {
            self.mood = less(left, Mood::Late);
            return Answer::error("200 OK", "InternalError", "");
        }
        if let Some(refusal) = self.may_not(request, &name) {
            return refusal;
        }
        let key = id(request.parameter("uploadId"));
        let Some(begun) = self.uploads.get(&key) else {
            return Answer::error("404 Not Found", "NoSuchUpload", "");
        };
        let text = String::from_utf8(request.body.clone()).expect("text");
        let field = |part: &str, name: &str| {
            let (_, rest) = part.split_once(&format!("<{name}>"))?;
            Some(rest.split_once("</")?.0.replace("&quot;", "\""))
        };
        let (mut bytes, mut tags, mut crcs) = (Vec::new(), Vec::new(), Vec::new());
        let listed: Vec<&str> = text.split("<Part>").skip(1).collect();
        for (index, part) in listed.iter().enumerate() {
            let number = field(part, "PartNumber").and_then(|at| at.parse().ok());
            let stored = number.and_then(|at: u64| begun.parts.get(&at));
            let Some(stored) =
                stored.filter(|stored| Some(&stored.tag) == field(part, "ETag").as_ref())
            else {
                return Answer::error("400 Bad Request", "InvalidPart", "");
            };
            if begun.checked && field(part, "ChecksumCRC32C") != stored.crc {
                return Answer::error("400 Bad Request", "InvalidPart", "");
            }
            if stored.bytes.len() < SHORTEST && index + 1 < listed.len() {
                return Answer::error("400 Bad Request", "EntityTooSmall", "");
            }
            bytes.extend_from_slice(&stored.bytes);
            tags.extend(Md5::digest(&stored.bytes));
            crcs.extend(crc32c::crc32c(&stored.bytes).to_be_bytes());
        }
        let count = listed.len();
        let crc = STANDARD.encode(crc32c::crc32c(&crcs).to_be_bytes());
        let object = Stored {
            first: begun.parts.values().next().map(|part| part.bytes.len()),
            besides: begun.besides.clone(),
            bytes,
            tag: format!("\"{}-{count}\"", hex(Md5::digest(&tags).as_slice())),
            crc: begun.checked.then(|| format!("{crc}-{count}")),
        };
        self.uploads.remove(&key);
        self.objects.insert(name, object);
        Answer::xml("200 OK", "<CompleteMultipartUploadResult/>")
    }
}

fn id(parameter: Option<String>) -> u64 {
    parameter.and_then(|id| id.parse().ok()).unwrap_or(0)
}
