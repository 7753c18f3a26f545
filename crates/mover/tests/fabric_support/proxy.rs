//! A network between two fabrics that can stop, be slow or be cut.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const FLOWS: u64 = 0;
const STOPPED: u64 = 1;
const CUT: u64 = 2;

/// What happens to bytes on their way.
struct Weather {
    state: AtomicU64,
    /// Bytes that still get through before it stops.
    left: AtomicI64,
    /// Bytes that each stream passes on in a millisecond; any number when that is 0.
    pace: AtomicU64,
    /// Whether what comes back by all connections but the first is held.
    mute: AtomicBool,
}

/// Passes TCP connections on to `target`.
pub struct Proxy {
    pub address: SocketAddr,
    weather: Arc<Weather>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let weather = Arc::new(Weather {
            state: AtomicU64::new(FLOWS),
            left: AtomicI64::new(i64::MAX),
            pace: AtomicU64::new(0),
            mute: AtomicBool::new(false),
        });
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (shared, known) = (Arc::clone(&weather), Arc::clone(&streams));
        thread::spawn(move || {
            for (number, client) in listener.incoming().flatten().enumerate() {
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                for (from, to, back) in [(&client, &server, false), (&server, &client, true)] {
                    let (from, to) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
                    let weather = Arc::clone(&shared);
                    let can_be_muted = back && number > 0;
                    thread::spawn(move || pass_on(from, to, &weather, can_be_muted));
                }
                known.lock().expect("no panic").extend([client, server]);
            }
        });
        Self {
            address,
            weather,
            streams,
        }
    }

    /// So many bytes get through from now on, of both directions, and then nothing until [`Self::go_on`]: what
    /// needs more than that cannot end before a test has done what it wants to do meanwhile.
    pub fn stop_after(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).expect("a size");
        self.weather.left.store(bytes, Ordering::SeqCst);
    }

    /// So many bytes get through in a millisecond, by each stream; any number when that is 0.
    pub fn trickle(&self, bytes: u64) {
        self.weather.pace.store(bytes, Ordering::SeqCst);
    }

    /// Whether what the target answers is held, save by the first connection, by which the two talk.
    pub fn mute(&self, whether: bool) {
        self.weather.mute.store(whether, Ordering::SeqCst);
    }

    /// Nothing gets through any more, and nobody is told.
    pub fn stop(&self) {
        self.weather.state.store(STOPPED, Ordering::SeqCst);
    }

    /// What was held back gets through.
    pub fn go_on(&self) {
        self.weather.left.store(i64::MAX, Ordering::SeqCst);
        self.weather.state.store(FLOWS, Ordering::SeqCst);
    }

    /// All connections break, as when the peer's process is killed.
    pub fn cut(&self) {
        self.weather.state.store(CUT, Ordering::SeqCst);
        self.cut_after(0);
    }

    /// All connections but the first so many break.
    pub fn cut_after(&self, kept: usize) {
        // Each connection has two ends here.
        for stream in self.streams.lock().expect("no panic").iter().skip(2 * kept) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Weather {
    fn holds(&self, can_be_muted: bool) -> bool {
        match self.state.load(Ordering::SeqCst) {
            CUT => false,
            STOPPED => true,
            _ if can_be_muted && self.mute.load(Ordering::SeqCst) => true,
            _ => self.left.load(Ordering::SeqCst) <= 0,
        }
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, weather: &Weather, can_be_muted: bool) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let got = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(got) => got,
        };
        while weather.holds(can_be_muted) {
            thread::sleep(Duration::from_millis(2));
        }
        weather.left.fetch_sub(got as i64, Ordering::SeqCst);
        if to.write_all(&buffer[..got]).is_err() {
            break;
        }
        if let Some(millis) = (got as u64).checked_div(weather.pace.load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(millis));
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
