//! The metrics over HTTP: one short answer to each short request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Metrics;
use crate::service::error::ServiceError;
use crate::strangers::Strangers;

/// The longest head of a request that is read.
const MAX_HEAD: usize = 8 << 10;
/// How long a request and its answer may take together.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Connections that may be in the middle of their exchange.
const MAX_EXCHANGES: usize = 16;
/// How often is looked whether the server stops.
const LOOK: Duration = Duration::from_millis(50);

/// Listens where the metrics are to be read.
///
/// # Errors
/// [`ServiceError::Listen`].
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ServiceError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        io::Result::Ok(listener)
    };
    listen().map_err(|source| ServiceError::Listen { address, source })
}

/// Answers until told to stop: whoever is slow is cut off, and sooner where many are.
pub(crate) fn answer(listener: &TcpListener, metrics: &Arc<Metrics>, stop: &AtomicBool) {
    let asking = Strangers::new(MAX_EXCHANGES);
    while !stop.load(Ordering::Acquire) {
        let Ok((stream, from)) = listener.accept() else {
            std::thread::sleep(LOOK);
            continue;
        };
        let Ok(admitted) = asking.admit(stream.as_fd(), Some(from.ip())) else {
            continue;
        };
        let metrics = Arc::clone(metrics);
        // Whoever asked and is not answered is told by the closed connection.
        let _ = std::thread::Builder::new()
            .name("crowfly-scrape".into())
            .spawn(move || {
                let _ = exchange(stream, &metrics);
                drop(admitted);
            });
    }
}

fn exchange(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let until = Instant::now() + EXCHANGE;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(EXCHANGE))?;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !ends(&head) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > MAX_HEAD {
            return respond(
                &mut stream,
                "400 Bad Request",
                "the request is too long or too slow\n",
            );
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            read => head.extend_from_slice(&bytes[..read]),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => respond(&mut stream, "200 OK", &metrics.text()),
        (Some("GET"), _) => respond(
            &mut stream,
            "404 Not Found",
            "the metrics are at /metrics\n",
        ),
        _ => respond(
            &mut stream,
            "405 Method Not Allowed",
            "only GET is answered\n",
        ),
    }
}

fn ends(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n")
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
