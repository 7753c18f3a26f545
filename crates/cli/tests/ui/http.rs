//! Just enough of HTTP/1.1 to ask as a browser would, or as nobody should.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header, if it was sent once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.head.lines().filter_map(|line| {
            let (other, value) = line.split_once(':')?;
            other.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        named.next().filter(|_| named.next().is_none())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The code of a refusal.
    pub fn code(&self) -> String {
        let document = self.json();
        assert_eq!(document["schema"], "crowfly.error/1");
        document["error"]["code"]
            .as_str()
            .expect("a code")
            .to_owned()
    }
}

/// Sends bytes as they are, and reads until the other side closes.
pub fn raw(port: u16, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    // A refusal may come, and the connection be closed, before all of a body was sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(answer.get(..end)?).into_owned();
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let body = answer.split_off(end + 4);
    Some(Answer { status, head, body })
}

/// Asks with headers besides those that every request has.
pub fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        head.push_str(&format!("Host: 127.0.0.1:{port}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    raw(port, &[head.as_bytes(), body].concat()).expect("an answer")
}

pub fn get(port: u16, path: &str) -> Answer {
    ask(port, "GET", path, &[], b"")
}

/// A document that is there.
pub fn json(port: u16, path: &str) -> Value {
    let answer = get(port, path);
    assert_eq!(
        answer.status,
        200,
        "{path}: {}",
        String::from_utf8_lossy(&answer.body)
    );
    answer.json()
}

/// Files as a browser's form sends them.
pub fn form(files: &[(&str, &[u8])]) -> (String, Vec<u8>) {
    const BETWEEN: &str = "----a-line-between";
    let mut body = Vec::new();
    for (name, content) in files {
        let head = format!(
            "--{BETWEEN}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
        );
        body.extend([head.as_bytes(), content, b"\r\n"].concat());
    }
    body.extend(format!("--{BETWEEN}--\r\n").into_bytes());
    (format!("multipart/form-data; boundary={BETWEEN}"), body)
}

pub fn explain(port: u16, files: &[(&str, &[u8])]) -> Answer {
    let (kind, body) = form(files);
    ask(
        port,
        "POST",
        "/api/explain",
        &[("Content-Type", &kind)],
        &body,
    )
}
