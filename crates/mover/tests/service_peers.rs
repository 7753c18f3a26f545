//! Peers that break the rules, or ask for more than they may have. Each gets a typed answer or is sent
//! away, and the server goes on serving others.

use std::time::{Duration, Instant};

use crowfly_mover::fabric::{Access, Buffer, Fabric, Options, Peer, Region, Settings, SharedKey};
use crowfly_mover::service::{Answer, Auth, Part, Request, Server, Side, Wanted};
use crowfly_route::policy::Policy;

#[path = "service_support/prometheus.rs"]
mod prometheus;
#[path = "service_support/stage.rs"]
mod stage;

use stage::{SOON, Stage, copy, fabric, key, metric, pattern, scrape, settings};

/// The version of the messages.
const VERSION: u16 = 3;

/// A peer that says what it likes.
struct Raw {
    peer: Peer,
    region: Region,
    _fabric: Fabric,
}

impl Raw {
    fn new(stage: &Stage) -> Self {
        let fabric = Fabric::new(fabric(false)).expect("a fabric");
        let address = stage.server.address().to_string();
        let peer = fabric
            .connect(&address, Options::within(SOON))
            .expect("connected");
        let buffer = Buffer::zeroed(8 << 20, None).expect("memory");
        let region = fabric
            .register(buffer, Access::READ_WRITE)
            .expect("registered");
        Self {
            peer,
            region,
            _fabric: fabric,
        }
    }

    /// One that has introduced itself.
    fn begun(stage: &Stage) -> Self {
        let raw = Self::new(stage);
        assert!(matches!(
            raw.ask(1, &raw.introduction()),
            Answer::Begun { .. }
        ));
        raw
    }

    fn introduction(&self) -> Request {
        Request::Begin {
            version: VERSION,
            memory: Box::new(self.region.descriptor().clone()),
        }
    }

    fn say(&self, bytes: &[u8]) {
        self.peer.send(bytes, Options::within(SOON)).detach();
    }

    fn hear(&self) -> Option<(u64, Answer)> {
        let message = self.peer.recv(Options::within(SOON)).wait().ok()?;
        Some(Answer::decode(&message).expect("an answer"))
    }

    fn ask(&self, number: u64, request: &Request) -> Answer {
        self.say(&request.encode(number));
        let (answered, answer) = self.hear().expect("an answer");
        assert_eq!(answered, number);
        answer
    }

    fn code(&self, number: u64, request: &Request) -> String {
        match self.ask(number, request) {
            Answer::Failed { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    /// The last words of a server that sends this peer away.
    fn sent_away(&self) -> String {
        let (number, answer) = self.hear().expect("last words");
        let Answer::Failed { code, .. } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(number, 0);
        assert!(self.hear().is_none(), "the connection is over");
        code
    }
}

fn open(path: &str) -> Request {
    Request::Open {
        name: "data".parse().expect("a name"),
        path: path.parse().expect("a path"),
        policy: Policy::Prefer,
    }
}

fn still_serves(stage: &Stage) {
    stage.put("fine", b"fine");
    stage
        .copy(stage.at("data/fine"), Side::Host)
        .expect("others are served");
}

#[test]
fn given_a_path_out_of_the_folder_in_raw_bytes_the_peer_is_sent_away() {
    let stage = Stage::new(false);
    for (harmless, evil) in [("aa/secret", "../secret"), ("xtc/passwd", "/tc/passwd")] {
        let raw = Raw::begun(&stage);
        let bytes = open(harmless).encode(2);
        let at = bytes
            .windows(harmless.len())
            .position(|part| part == harmless.as_bytes());
        let at = at.expect("the path");
        let mut forged = bytes;
        forged[at..at + evil.len()].copy_from_slice(evil.as_bytes());
        raw.say(&forged);
        assert_eq!(raw.sent_away(), "protocol-violation", "{evil}");
    }
    still_serves(&stage);
}

#[test]
fn given_a_request_that_comes_again_the_peer_is_sent_away() {
    let stage = Stage::new(false);
    stage.put("m", b"bytes");
    let raw = Raw::begun(&stage);
    let request = open("m");
    assert!(matches!(raw.ask(2, &request), Answer::File { size: 5, .. }));
    raw.say(&request.encode(2));
    assert_eq!(raw.sent_away(), "protocol-violation");
    still_serves(&stage);
}

#[test]
fn given_garbage_or_no_introduction_the_peer_is_sent_away() {
    let stage = Stage::new(false);
    for message in [&b""[..], b"?", &[255; 300], &open("m").encode(1)] {
        let raw = Raw::new(&stage);
        raw.say(message);
        assert!(raw.hear().is_none(), "{message:?}");
    }
    let raw = Raw::begun(&stage);
    raw.say(&[7; 100]);
    assert_eq!(raw.sent_away(), "protocol-violation");
    still_serves(&stage);
}

#[test]
fn given_another_version_the_server_tells_its_own_and_ends() {
    let stage = Stage::new(false);
    let raw = Raw::new(&stage);
    let request = Request::Begin {
        version: 9,
        memory: Box::new(raw.region.descriptor().clone()),
    };
    let answer = raw.ask(1, &request);
    assert!(
        matches!(
            answer,
            Answer::Begun {
                version: VERSION,
                ..
            }
        ),
        "{answer:?}"
    );
    assert!(raw.hear().is_none());
}

#[test]
fn given_parts_outside_of_file_memory_or_grid_each_is_refused_and_nothing_is_written() {
    let stage = Stage::new(false);
    stage.put("m", &pattern(100, 1));
    let raw = Raw::begun(&stage);
    let Answer::File { file, .. } = raw.ask(2, &open("m")) else {
        panic!("a file");
    };
    let part = |offset, len, at| Part {
        file,
        offset,
        len,
        at,
        within_ms: 5_000,
    };
    let wrong = [
        part(0, 101, 0),
        part(1, 10, 0),
        part(4 << 20, 1, 0),
        part(u64::MAX, 1, 0),
        part(0, u32::MAX, 0),
        part(0, 100, 8 << 20),
        part(0, 100, u64::MAX),
        Part {
            file: file + 1,
            ..part(0, 100, 0)
        },
    ];
    let mut number = 3;
    for part in wrong {
        let read = Request::Read {
            part: part.clone(),
            sums: false,
        };
        assert_eq!(raw.code(number, &read), "protocol-violation", "{part:?}");
        number += 1;
    }
    let write = Request::Write {
        part: part(0, 100, 0),
        sums: Vec::new(),
    };
    assert_eq!(
        raw.code(number, &write),
        "protocol-violation",
        "open for reading"
    );
    let mut memory = [0; 100];
    raw.region.read_at(0, &mut memory);
    assert_eq!(memory, [0; 100]);
    let read = Request::Read {
        part: part(0, 100, 0),
        sums: true,
    };
    assert!(matches!(raw.ask(number + 1, &read), Answer::Sums(sums) if sums.len() == 1));
    raw.region.read_at(0, &mut memory);
    assert_eq!(memory[..], pattern(100, 1));
}

#[test]
fn given_checksums_that_do_not_fit_the_bytes_nothing_of_them_is_kept() {
    let stage = Stage::new(false);
    let raw = Raw::begun(&stage);
    let create = Request::Create {
        name: "inbox".parse().expect("a name"),
        path: "m".parse().expect("a path"),
        size: 100,
        tag: crowfly_mover::service::Tag([0; 16]),
        resume: true,
        remember: false,
        policy: Policy::Prefer,
        wanted: Wanted::default(),
    };
    let Answer::Created { file, have } = raw.ask(2, &create) else {
        panic!("created");
    };
    assert_eq!(have, []);
    let write = Request::Write {
        part: Part {
            file,
            offset: 0,
            len: 100,
            at: 0,
            within_ms: 5_000,
        },
        sums: vec![1],
    };
    assert_eq!(raw.code(3, &write), "data-differs");
    drop(raw);
    let again = Raw::begun(&stage);
    // The first peer's file is let go of when its connection ends.
    let began = Instant::now();
    let mut number = 2;
    let have = loop {
        match again.ask(number, &create) {
            Answer::Created { have, .. } => break have,
            Answer::Failed { code, .. } => assert_eq!(code, "file-busy"),
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < SOON, "never let go of");
        number += 1;
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(have, [], "the piece was not remembered");
}

#[test]
fn given_more_than_the_limits_allow_the_next_is_refused_by_name() {
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings.limits.peers = 2;
        settings.limits.files = 2;
    });
    stage.put("m", b"bytes");
    let raw = Raw::begun(&stage);
    for number in [2, 3] {
        assert!(matches!(raw.ask(number, &open("m")), Answer::File { .. }));
    }
    assert_eq!(raw.code(4, &open("m")), "too-many");
    assert_eq!(
        raw.code(5, &Request::Close { file: 99 }),
        "protocol-violation"
    );
    let first = Request::Close { file: 1 };
    assert!(matches!(raw.ask(6, &first), Answer::Account { .. }));
    assert!(matches!(raw.ask(7, &open("m")), Answer::File { .. }));
    let _second = Raw::begun(&stage);
    let error = stage.copy(stage.at("data/m"), Side::Host).map(drop);
    assert_eq!(error.expect_err("one peer too many").code(), "too-many");
}

#[test]
fn given_more_requests_under_way_than_allowed_the_next_is_refused_at_once() {
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings.limits.requests = 1;
    });
    stage.put("m", &pattern(4 << 20, 1));
    let raw = Raw::begun(&stage);
    let Answer::File { file, .. } = raw.ask(2, &open("m")) else {
        panic!("a file");
    };
    for number in 3..40 {
        let part = Part {
            file,
            offset: 0,
            len: 4 << 20,
            at: 0,
            within_ms: 5_000,
        };
        raw.say(&Request::Read { part, sums: true }.encode(number));
    }
    let answers = (3..40).map(|_| raw.hear().expect("an answer").1);
    let (mut done, mut refused) = (0, 0);
    for answer in answers {
        match answer {
            Answer::Sums(_) => done += 1,
            Answer::Failed { code, .. } if code == "too-many" => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(done > 0 && refused > 0, "{done} done, {refused} refused");
    still_serves(&stage);
}

#[test]
fn given_folders_where_nothing_may_be_made_or_changed_each_is_refused_by_name() {
    let stage = Stage::new(false);
    stage.put("tree/m", b"bytes");
    let raw = Raw::begun(&stage);
    let folder = |name: &str, path: &str, filled| Request::Folder {
        name: name.parse().expect("a name"),
        path: path.parse().expect("a path"),
        wanted: Wanted::default(),
        filled,
    };
    for (number, (name, path, filled, code)) in (2..).zip([
        ("data", "new", false, "read-only"),
        ("data", "tree", true, "read-only"),
        ("pool", "new", false, "read-only"),
        ("inbox", "", true, "access-denied"),
        ("inbox", "tree/m", false, "destination-occupied"),
        ("inbox", "tree/m/below", false, "not-found"),
        ("inbox", "none", true, "not-found"),
        ("inbox", ".x.crowfly-partial", false, "access-denied"),
    ]) {
        let answered = raw.code(number, &folder(name, path, filled));
        assert_eq!(answered, code, "{name}/{path}");
    }
    assert!(matches!(
        raw.ask(20, &folder("inbox", "new", false)),
        Answer::Made(true)
    ));
    assert!(matches!(
        raw.ask(21, &folder("inbox", "new", false)),
        Answer::Made(false)
    ));
    assert!(!stage.folder.path().join("none").exists());
}

#[test]
fn given_a_peer_that_asks_for_nothing_it_is_sent_away_after_a_while() {
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings.limits.idle = Duration::from_millis(300);
    });
    let raw = Raw::begun(&stage);
    assert!(raw.hear().is_none(), "sent away");
    let began = Instant::now();
    while metric(&stage, "crowfly_serve_connections") > 0.0 {
        assert!(began.elapsed() < SOON, "still counted");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn given_a_wrong_key_nothing_is_answered_and_the_error_says_so() {
    let stage = Stage::new(false);
    stage.put("m", b"bytes");
    let mut asked = stage.asked(stage.at("data/m"), Side::Host);
    for auth in [Auth::Open, Auth::Key(SharedKey::derive("another"))] {
        asked.dialing.auth = auth;
        let error = copy(asked.clone()).map(drop).expect_err("a stranger");
        assert_eq!(error.code(), "not-authenticated");
    }
    still_serves(&stage);
}

#[test]
fn given_an_address_that_others_reach_and_nobody_to_be_asked_the_server_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wanted = settings(folder.path(), false, Auth::Open);
    wanted.listen = "0.0.0.0:0".parse().expect("an address");
    let error = Server::start(wanted.clone())
        .map(drop)
        .expect_err("refused");
    assert_eq!(error.code(), "not-authenticated-bind");
    wanted.auth = Auth::Key(key());
    Server::start(wanted).expect("with a key");
}

#[test]
fn given_no_key_on_loopback_whoever_is_here_is_served_and_the_key_holder_is_not() {
    let stage = Stage::with(true, Auth::Open, |_| {});
    still_serves(&stage);
    let with_key = Fabric::new(Settings::new(key())).expect("a fabric");
    let address = stage.server.address().to_string();
    let error = with_key.connect(&address, Options::within(SOON)).map(drop);
    assert_eq!(error.expect_err("another key").code(), "not-authenticated");
}

#[test]
fn given_a_scrape_the_metrics_are_what_happened() {
    let stage = Stage::new(false);
    stage.put("m", &pattern(300_000, 1));
    stage.copy(stage.at("data/m"), Side::Host).expect("copied");
    stage
        .copy(stage.at("data/none"), Side::Host)
        .map(drop)
        .expect_err("nothing there");
    let text = scrape(&stage, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for line in [
        "crowfly_serve_bytes_total{peer=\"127.0.0.1\",path=\"tcp\",direction=\"sent\"} 300000",
        "crowfly_serve_files_total{direction=\"sent\",outcome=\"read\"} 1",
        "crowfly_serve_errors_total{code=\"not-found\"} 1",
        "crowfly_serve_connections_total 2",
        "crowfly_serve_request_seconds_count{verb=\"read\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\n{text}");
    }
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let families = prometheus::parsed(body).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let seconds = &families["crowfly_serve_request_seconds"];
    assert_eq!((families.len(), seconds.kind.as_str()), (9, "histogram"));
    let counts = &seconds.samples["crowfly_serve_request_seconds_count"];
    let verbs: Vec<&str> = counts
        .iter()
        .map(|(labels, _)| labels["verb"].as_str())
        .collect();
    assert!(
        verbs.contains(&"read") && verbs.contains(&"open"),
        "{verbs:?}"
    );
    assert!(scrape(&stage, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(scrape(&stage, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(9_000));
    assert!(scrape(&stage, &long).starts_with("HTTP/1.1 400 "));
    let began = Instant::now();
    let text = scrape(&stage, "GET /met");
    assert!(!text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(began.elapsed() < SOON, "whoever is slow is cut off");
}

#[test]
fn given_a_stop_under_load_peers_are_told_and_the_totals_are_those_of_all_files() {
    let stage = Stage::new(false);
    stage.put("m", &pattern(1 << 20, 1));
    stage.copy(stage.at("data/m"), Side::Host).expect("copied");
    let raw = Raw::begun(&stage);
    let began = Instant::now();
    let totals = stage.server.stop();
    assert!(began.elapsed() < SOON);
    assert_eq!(totals.files.get("sent-read"), Some(&1));
    assert!(totals.legs.iter().any(|leg| leg.bytes().0 == 1 << 20));
    let (number, answer) = raw.hear().expect("last words");
    assert_eq!(number, 0);
    assert!(matches!(answer, Answer::Failed { code, .. } if code == "server-stopping"));
}

#[test]
fn given_hundreds_of_silent_connections_whoever_knows_the_key_is_served_at_once() {
    use std::net::TcpStream;
    let stage = Stage::new(false);
    stage.put("m", b"bytes");
    let silent = |address| TcpStream::connect(address).expect("connected");
    let _held: Vec<TcpStream> = (0..270).map(|_| silent(stage.server.address())).collect();
    let metrics = stage.server.metrics_address().expect("metrics");
    let _more: Vec<TcpStream> = (0..270).map(|_| silent(metrics)).collect();
    let began = Instant::now();
    stage.copy(stage.at("data/m"), Side::Host).expect("served");
    assert!(metric(&stage, "crowfly_serve_connections_total") >= 1.0);
    // Waiting for the silent ones to be sent away would take as long as they have to introduce themselves.
    let limit = Duration::from_secs(5);
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
}
