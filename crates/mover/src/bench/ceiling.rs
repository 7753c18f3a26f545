//! What the machine can do without the fabric: copies in memory, and plain sockets over loopback.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crowfly_route::units::{Bytes, BytesPerSecond};

use super::BenchError;
use crate::fabric::{Caches, ask_for, copy_slice, unpace};
use crate::memory::zeros;

/// Bytes that one thread copies between two looks at the clock.
const STEP: usize = 512 << 10;
/// Bytes that are changed in place while others are fetched.
const STRIDE: usize = 256;
/// How far ahead they are fetched.
const AHEAD: usize = 2048;
/// In how many places at once memory is changed.
const PLACES: [usize; 2] = [1, 2];
/// Bytes handed to a socket at once.
const CHUNK: usize = 256 << 10;

/// The rate at which `threads` threads copy `bytes` from one piece of memory to another, again and
/// again for `time`; through the caches or past them, whichever is faster.
///
/// # Errors
/// When the system gives no threads or no memory.
pub fn copies(
    bytes: u64,
    threads: usize,
    time: Duration,
) -> Result<Option<BytesPerSecond>, BenchError> {
    let Ok(len) = usize::try_from(bytes) else {
        return Ok(None);
    };
    let share = len.div_ceil(threads.max(1)).max(1);
    let (from, mut to) = (filled(len, 1)?, filled(len, 2)?);
    let mut best: Option<BytesPerSecond> = None;
    for caches in [Caches::Keep, Caches::Pass] {
        let shares = from.chunks(share).zip(to.chunks_mut(share));
        let rate = repeated(shares, time / 2, |(from, to)| {
            for (from, to) in from.chunks(STEP).zip(to.chunks_mut(STEP)) {
                copy_slice(from, to, caches);
            }
            from.len()
        });
        best = faster(best, rate.map_err(failed)?);
    }
    Ok(best)
}

/// The rate at which `threads` threads read and write `bytes` once, again and again for `time`: from
/// one piece of memory to another or in place, in one place or in two at once, whichever is fastest.
/// What works on memory and changes all of it is hardly faster than that.
///
/// # Errors
/// When the system gives no threads or no memory.
pub fn passes(
    bytes: u64,
    threads: usize,
    time: Duration,
) -> Result<Option<BytesPerSecond>, BenchError> {
    let copied = copies(bytes, threads, time / 2)?;
    let Ok(len) = usize::try_from(bytes) else {
        return Ok(copied);
    };
    let mut all = filled(len, 1)?;
    let share = len.div_ceil(threads.max(1)).max(1);
    let mut best = copied;
    for places in PLACES {
        let changed = repeated(all.chunks_mut(share), time / 4, |share| {
            change(share, places);
            share.len()
        });
        best = faster(best, changed.map_err(failed)?);
    }
    Ok(best)
}

/// Changes every byte, as fast as memory allows: what follows is fetched meanwhile, and a core that works in
/// several places has more reads under way.
fn change(bytes: &mut [u8], places: usize) {
    let part = bytes.len().div_ceil(places).max(1);
    let mut parts: Vec<_> = bytes.chunks_mut(part).collect();
    for start in (0..part).step_by(STRIDE) {
        for part in &mut parts {
            let Some(rest) = part.get_mut(start..) else {
                continue;
            };
            let ahead = rest.get(AHEAD..(AHEAD + STRIDE).min(rest.len()));
            ask_for(ahead.unwrap_or_default());
            for byte in rest.iter_mut().take(STRIDE) {
                *byte = !*byte;
            }
        }
    }
}

fn filled(len: usize, byte: u8) -> Result<Vec<u8>, BenchError> {
    let mut all = zeros::<u8>(len).map_err(|error| failed(io::Error::other(error)))?;
    all.fill(byte);
    Ok(all)
}

fn failed(source: io::Error) -> BenchError {
    BenchError::Ceiling {
        what: "copies in memory",
        source: Arc::new(source),
    }
}

fn faster(one: Option<BytesPerSecond>, other: Option<BytesPerSecond>) -> Option<BytesPerSecond> {
    let both = one.into_iter().chain(other);
    both.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Starts one of the threads whose rate is taken together.
fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    body: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("crowfly-ceiling".into());
    thread.spawn_scoped(scope, body).map(drop)
}

/// The rate of threads that work on one share each, again and again for `time`; `pass` does so once, and
/// answers how many bytes that were.
fn repeated<T: Send>(
    shares: impl Iterator<Item = T>,
    time: Duration,
    pass: impl Fn(&mut T) -> usize + Sync,
) -> io::Result<Option<BytesPerSecond>> {
    let began = Instant::now();
    let moved = AtomicU64::new(0);
    // Fewer threads than asked for would measure something else.
    std::thread::scope(|scope| {
        for mut share in shares {
            let (moved, pass) = (&moved, &pass);
            start(scope, move || {
                // Once even where the thread gets a processor only after the time is over.
                loop {
                    moved.fetch_add(pass(&mut share) as u64, Ordering::Relaxed);
                    if began.elapsed() >= time {
                        break;
                    }
                }
            })?;
        }
        io::Result::Ok(())
    })?;
    Ok(Bytes(moved.into_inner()).per(began.elapsed().as_secs_f64()))
}

/// The rate of `streams` plain TCP connections over loopback together, for about `time`.
///
/// # Errors
/// When the system gives no sockets or threads.
pub fn streams(streams: usize, time: Duration) -> Result<Option<BytesPerSecond>, BenchError> {
    let failed = |source: std::io::Error| BenchError::Ceiling {
        what: "plain sockets over loopback",
        source: Arc::new(source),
    };
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let mut pairs = Vec::new();
    for _ in 0..streams.max(1) {
        let out = TcpStream::connect(address).map_err(failed)?;
        let (into, _) = listener.accept().map_err(failed)?;
        // Somebody else's connection would stall the threads below.
        if into.peer_addr().map_err(failed)? != out.local_addr().map_err(failed)? {
            return Err(failed(std::io::ErrorKind::ConnectionAborted.into()));
        }
        // As the fabric's own, which stay on this host as well.
        unpace(&out);
        unpace(&into);
        pairs.push((out, into));
    }
    let over = AtomicBool::new(false);
    let moved = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let started = pairs.into_iter().try_for_each(|(mut out, mut into)| {
            let (over, moved) = (&over, &moved);
            start(scope, move || {
                let chunk = vec![1u8; CHUNK];
                while out.write_all(&chunk).is_ok() && !over.load(Ordering::Relaxed) {}
                let _ = out.shutdown(Shutdown::Write);
            })?;
            start(scope, move || {
                let mut chunk = vec![0u8; CHUNK];
                while let Ok(got @ 1..) = into.read(&mut chunk) {
                    moved.fetch_add(got as u64, Ordering::Relaxed);
                }
            })
        });
        if started.is_ok() {
            std::thread::sleep(time);
        }
        over.store(true, Ordering::Relaxed);
        started
    })
    .map_err(failed)?;
    Ok(Bytes(moved.into_inner()).per(began.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_in_place_changes_every_byte() {
        for len in [0, 1, STRIDE - 1, STRIDE, 2 * STRIDE + 3, 3 * AHEAD + 1] {
            for places in PLACES {
                let mut bytes = vec![5; len];
                change(&mut bytes, places);
                assert_eq!(bytes, vec![!5; len]);
            }
        }
    }

    #[test]
    fn copies_and_streams_have_a_rate_and_no_memory_has_none() {
        let time = Duration::from_millis(20);
        for bytes in [1, 4096, 3 << 20] {
            for rate in [copies(bytes, 2, time), passes(bytes, 2, time)] {
                let rate = rate.expect("threads");
                assert!(rate.is_some_and(|rate| rate.0 > 0.0));
            }
        }
        for rate in [copies(0, 2, time), passes(0, 2, time)] {
            assert!(rate.expect("threads").is_none_or(|rate| rate.0 == 0.0));
        }
        let rate = streams(2, time).expect("sockets");
        assert!(rate.is_some_and(|rate| rate.0 > 0.0));
    }
}
