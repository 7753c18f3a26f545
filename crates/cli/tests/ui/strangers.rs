//! Who is turned away, and what a request may not do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::http::{ask, explain, form, get, json, raw};
use super::served::{Served, command};

#[test]
fn given_another_name_for_the_loopback_nothing_is_answered() {
    let served = Served::dgx();
    let port = served.port;
    for host in [
        "evil.example",
        "evil.example:2769",
        "127.0.0.1",
        "localhost:1",
        "",
    ] {
        for path in ["/", "/assets/app.js", "/api/machine", "/no-such"] {
            let answer = ask(port, "GET", path, &[("Host", host)], b"");
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (403, "ui-foreign-host"),
                "{host}"
            );
        }
    }
    let without = raw(port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").expect("an answer");
    assert_eq!(without.status, 403);
    for own in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        assert_eq!(
            ask(port, "GET", "/", &[("Host", &own)], b"").status,
            200,
            "{own}"
        );
    }
}

#[test]
fn given_another_page_that_asks_in_the_readers_browser_it_is_refused() {
    let served = Served::dgx();
    for header in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        let answer = ask(served.port, "POST", "/api/machine", &[header], b"{}");
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (403, "ui-foreign-origin"),
            "{header:?}"
        );
    }
    let followed = ask(
        served.port,
        "GET",
        "/",
        &[("Sec-Fetch-Site", "cross-site")],
        b"",
    );
    assert_eq!(followed.status, 200, "a link to the page may be followed");
}

#[test]
fn every_answer_says_what_may_be_done_with_it() {
    let served = Served::dgx();
    for path in ["/", "/assets/page.css", "/api/about", "/no-such"] {
        let answer = get(served.port, path);
        let policy = answer.header("content-security-policy").expect("a policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(
            !policy.contains("unsafe-eval") && !policy.contains("http"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(
            answer.header("cross-origin-resource-policy"),
            Some("same-origin")
        );
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[test]
fn other_methods_and_other_places_are_refused_with_a_document() {
    let served = Served::dgx();
    for (method, path) in [
        ("POST", "/"),
        ("PUT", "/api/machine"),
        ("DELETE", "/api/route"),
        ("POST", "/api/plan"),
        ("GET", "/api/explain"),
        ("OPTIONS", "/api/machine"),
        ("TRACE", "/"),
    ] {
        let answer = ask(served.port, method, path, &[], b"");
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (405, "ui-method"),
            "{method} {path}"
        );
    }
    for path in [
        "/favicon.ico",
        "/assets/",
        "/assets/..%2fmain.rs",
        "/assets/%2e%2e/x",
        "/api",
        "/etc/passwd",
    ] {
        let answer = get(served.port, path);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (404, "ui-nothing-there"),
            "{path}"
        );
    }
    for request in [
        &b"nonsense\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ] {
        let answer = raw(served.port, request);
        assert!(answer.is_none_or(|answer| answer.status == 400 || answer.status == 505));
    }
    assert_eq!(get(served.port, "/").status, 200, "it goes on");
}

#[test]
fn given_bodies_without_end_they_are_refused_and_memory_stays_bounded() {
    let served = Served::dgx();
    let port = served.port;
    let announced = ask(
        port,
        "POST",
        "/api/machine",
        &[("Content-Length", "9999999999")],
        b"",
    );
    assert_eq!(announced.status, 413);
    let (kind, body) = form(&[("huge.log", &vec![b'x'; 65 << 20])]);
    let head = format!(
        "POST /api/explain HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    // Whoever goes on sending may find the connection closed before the refusal was read.
    if let Some(answer) = raw(port, &[head.as_bytes(), &body].concat()) {
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (413, "ui-too-large")
        );
    }
    let many: Vec<(&str, &[u8])> = (0..65).map(|_| ("a.log", &b"x"[..])).collect();
    assert_eq!(explain(port, &many).status, 400);
    assert_eq!(explain(port, &[]).status, 400);
    let broken = ask(
        port,
        "POST",
        "/api/explain",
        &[("Content-Type", "multipart/form-data; boundary=x")],
        b"--x\r\n",
    );
    assert_eq!(
        (broken.status, broken.code().as_str()),
        (400, "ui-bad-form")
    );
    let long = format!("/api/route?from={}&to=host", "a".repeat(5000));
    assert_eq!(get(port, &long).status, 400);
    let resident = served.resident();
    assert!(resident < 512 << 20, "{resident} bytes");
    assert_eq!(get(port, "/").status, 200, "it goes on");
}

#[test]
fn given_a_file_that_is_no_machine_or_text_it_is_refused_by_name() {
    let served = Served::dgx();
    let machine = |body: &[u8]| ask(served.port, "POST", "/api/machine", &[], body);
    for body in [
        &b"{}"[..],
        b"<xml",
        b"\x7fELF",
        b"{\"schema\":\"crowfly.snapshot/99\"}",
    ] {
        let answer = machine(body);
        assert_eq!(answer.status, 422, "{body:?}");
        answer.code();
    }
    let program = explain(
        served.port,
        &[("a.out", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0")],
    );
    assert_eq!(
        (program.status, program.code().as_str()),
        (422, "input-not-text")
    );
}

#[test]
fn given_connections_that_say_nothing_others_are_answered_and_they_are_closed() {
    let served = Served::dgx();
    let mut silent: Vec<TcpStream> = (0..32)
        .map(|_| TcpStream::connect(("127.0.0.1", served.port)).expect("taken"))
        .collect();
    silent[0]
        .write_all(b"GET / HTTP/1.1\r\nHost: ")
        .expect("sent");
    assert_eq!(get(served.port, "/").status, 200);
    let started = Instant::now();
    // One that sent half a head, one that sent nothing.
    for stream in silent.iter_mut().take(2) {
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("set");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(40), "{waited:?}");
    }
}

#[test]
fn given_many_questions_at_once_each_has_its_own_answer() {
    let served = Served::dgx();
    let port = served.port;
    let answered: Vec<_> = std::thread::scope(|scope| {
        let ask = |servers: u32| {
            let path = format!("/api/plan?server=dgx-h100&model=70b&servers={servers}");
            json(port, &path)["document"]["cluster"]["servers"].as_u64()
        };
        let asking: Vec<_> = (1..=24)
            .map(|servers| scope.spawn(move || ask(servers)))
            .collect();
        asking
            .into_iter()
            .map(|one| one.join().expect("answered"))
            .collect()
    });
    let expected: Vec<_> = (1..=24).map(Some).collect();
    assert_eq!(answered, expected);
}

#[test]
fn signals_end_it_with_their_status_whatever_it_is_doing() {
    for signal in ["INT", "TERM", "HUP"] {
        let served = Served::dgx();
        let _open = TcpStream::connect(("127.0.0.1", served.port)).expect("taken");
        assert_eq!(served.ended_by(signal), Some(130), "{signal}");
    }
}

#[test]
fn given_a_port_that_is_taken_the_refusal_says_so_and_without_one_another_is_used() {
    let other = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = other.local_addr().expect("an address").port().to_string();
    let output = command(&["ui", "--port", &port, "--json", "--server", "dgx-h100"]);
    assert_eq!(output.status.code(), Some(69));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(document["error"]["code"], "ui-not-listening");
    let hint = document["error"]["hint"].as_str().expect("a hint");
    assert!(hint.contains("--port 0"), "{hint}");
}

#[test]
fn given_a_machine_that_is_not_there_no_page_is_served() {
    for (arguments, status) in [
        (&["--from", "/no/such/file"][..], 66),
        (&["--server", "dgx-h10"], 64),
        (&["--snapshot", "/dev/null"], 66),
    ] {
        let output = command(&[&["ui", "--port", "0"], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn asked_to_open_the_page_it_hands_its_address_to_the_desktop() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let (opener, told) = (folder.path().join("xdg-open"), folder.path().join("told"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" > {0}.part; mv {0}.part {0}\n",
        told.display()
    );
    std::fs::write(&opener, script).expect("written");
    std::fs::set_permissions(&opener, PermissionsExt::from_mode(0o755)).expect("set");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.path().display());
    let served = Served::with_path(&path, &["--server", "dgx-h100", "--open"]);
    let started = Instant::now();
    while !told.exists() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "nothing was opened"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = std::fs::read_to_string(&told).expect("told");
    assert_eq!(told.trim(), format!("http://127.0.0.1:{}/", served.port));
}

#[test]
fn given_hundreds_of_half_requests_an_honest_reader_is_answered_at_once() {
    let served = Served::dgx();
    let half = |body: bool| {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).expect("connected");
        let head = match body {
            false => "GET / HTTP/1.1\r\nHost: 127".to_owned(),
            true => format!(
                "POST /api/machine HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 9\r\n\r\n{{",
                served.port
            ),
        };
        let _ = stream.write_all(head.as_bytes());
        stream
    };
    let _held: Vec<TcpStream> = (0..300).map(|number| half(number % 2 == 0)).collect();
    let began = Instant::now();
    assert_eq!(get(served.port, "/").status, 200);
    // The server waits ten seconds for the rest of a head.
    let limit = Duration::from_secs(9);
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
}

#[test]
fn what_cannot_be_read_is_refused_with_a_document_like_everything_else() {
    let served = Served::dgx();
    let port = served.port;
    for path in [
        "/api/route",
        "/api/route?from=gpu:0",
        "/api/machine?server=dgx-h100",
        "/api/machine?machine=here&machine=here",
    ] {
        let answer = get(port, path);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "ui-bad-question"),
            "{path}"
        );
    }
    let answer = ask(
        port,
        "POST",
        "/api/explain",
        &[("Content-Type", "text/plain")],
        b"x",
    );
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "ui-bad-form")
    );
}
