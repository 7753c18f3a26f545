//! HTTP as the store of the tests hears and speaks it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// One request, with its body.
pub struct Request {
    pub method: String,
    /// As it came: escaped.
    pub path: String,
    /// As it came.
    pub query: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    /// A parameter of the query, as it was meant.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.find_map(|pair| {
            let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
            (known == name).then(|| unescaped(value))
        })
    }

    /// The bucket, or the bucket and the key, as they were meant.
    pub fn name(&self) -> String {
        unescaped(self.path.trim_start_matches('/'))
    }
}

pub(super) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = || String::from_utf8(vec![rest.next()?, rest.next()?]).ok();
        bytes.push(match byte {
            b'%' => u8::from_str_radix(&{ digits }().expect("digits"), 16).expect("digits"),
            other => other,
        });
    }
    String::from_utf8(bytes).expect("text")
}

/// The next request. Of its body `until` says how much is read before the connection is left.
pub fn hear(
    reader: &mut BufReader<TcpStream>,
    until: impl FnOnce(&str, usize) -> usize,
) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
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
    let length = headers
        .get("content-length")
        .and_then(|len| len.parse().ok());
    let length = length.unwrap_or(0);
    let mut body = vec![0; until(&method, length)];
    reader.read_exact(&mut body).ok()?;
    (body.len() == length).then_some(())?;
    Some(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body,
    })
}

/// An answer.
pub struct Answer {
    pub status: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The length that is told, where it is not that of the body.
    pub length: Option<usize>,
}

impl Answer {
    pub const fn empty(status: &'static str) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            length: None,
        }
    }

    pub fn xml(status: &'static str, body: &str) -> Self {
        Self {
            body: format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{body}").into_bytes(),
            ..Self::empty(status)
        }
    }

    /// What stores say when they refuse.
    pub fn error(status: &'static str, code: &str, more: &str) -> Self {
        let text = format!("<Error><Code>{code}</Code><Message>no</Message>{more}</Error>");
        Self::xml(status, &text)
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn speak(&self, out: &mut TcpStream, bodiless: bool) -> Option<()> {
        let length = self.length.unwrap_or(self.body.len());
        let mut head = format!("HTTP/1.1 {}\r\nContent-Length: {length}\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        out.write_all(format!("{head}\r\n").as_bytes()).ok()?;
        match bodiless {
            true => Some(()),
            false => out.write_all(&self.body).ok(),
        }
    }
}
