//! A network between two fabrics that can stop or be cut.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const FLOWS: u64 = 0;
const STOPPED: u64 = 1;
const CUT: u64 = 2;

/// Passes TCP connections on to `target`.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<AtomicU64>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// Bytes that still get through before it stops.
    left: Arc<AtomicI64>,
    /// Bytes that each stream passes on in a millisecond; any number when that is 0.
    pace: Arc<AtomicU64>,
}

impl Proxy {
    pub fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(AtomicU64::new(FLOWS));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (shared, known) = (Arc::clone(&state), Arc::clone(&streams));
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let pace: Arc<AtomicU64> = Arc::default();
        let (limit, speed) = (Arc::clone(&left), Arc::clone(&pace));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
                    let (state, left) = (Arc::clone(&shared), Arc::clone(&limit));
                    let pace = Arc::clone(&speed);
                    thread::spawn(move || pass_on(from, to, &state, &left, &pace));
                }
                known.lock().expect("no panic").extend([client, server]);
            }
        });
        Self {
            address,
            state,
            streams,
            left,
            pace,
        }
    }

    /// So many bytes get through in a millisecond, by each stream; any number when that is 0.
    pub fn trickle(&self, bytes: u64) {
        self.pace.store(bytes, Ordering::SeqCst);
    }

    /// So many bytes get through from now on, of both directions, and then nothing until [`Self::go_on`]: what
    /// needs more than that cannot end before a test has done what it wants to do meanwhile.
    pub fn stop_after(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).expect("a size");
        self.left.store(bytes, Ordering::SeqCst);
    }

    /// Nothing gets through any more, and nobody is told.
    pub fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// What was held back gets through.
    pub fn go_on(&self) {
        self.left.store(i64::MAX, Ordering::SeqCst);
        self.state.store(FLOWS, Ordering::SeqCst);
    }

    /// All connections break, as when the peer's process is killed.
    pub fn cut(&self) {
        self.state.store(CUT, Ordering::SeqCst);
        for stream in self.streams.lock().expect("no panic").iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Proxy {
    /// All connections but the first so many break.
    pub fn cut_after(&self, kept: usize) {
        // Each connection has two ends here.
        for stream in self.streams.lock().expect("no panic").iter().skip(2 * kept) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    state: &AtomicU64,
    left: &AtomicI64,
    pace: &AtomicU64,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(got) => got,
        };
        let held = || match state.load(Ordering::SeqCst) {
            CUT => false,
            STOPPED => true,
            _ => left.load(Ordering::SeqCst) <= 0,
        };
        while held() {
            thread::sleep(Duration::from_millis(2));
        }
        left.fetch_sub(got as i64, Ordering::SeqCst);
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
        if let Some(millis) = (got as u64).checked_div(pace.load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(millis));
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
