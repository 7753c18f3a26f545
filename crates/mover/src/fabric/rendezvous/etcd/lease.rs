//! An entry that vanishes with the process that wrote it: etcd forgets it unless its lease is
//! kept alive.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use super::Etcd;

/// How often a lease is kept alive in the time it would live by itself.
const BEATS: u32 = 3;

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "TTL")]
    seconds: String,
}

#[derive(Deserialize)]
struct Kept {
    result: Option<Left>,
}

#[derive(Deserialize)]
struct Left {
    /// Absent when the lease has ended.
    #[serde(rename = "TTL")]
    seconds: Option<String>,
}

/// A lease as etcd granted it.
pub(super) struct Lease {
    id: String,
    lives: Duration,
}

impl Lease {
    /// Asks for a lease of about this time; etcd grants more where it needs more.
    fn grant(etcd: &Etcd, lives: Duration) -> io::Result<Self> {
        let body = serde_json::json!({ "TTL": lives.as_secs().max(1) }).to_string();
        let granted: Granted = parse(&etcd.post("/v3/lease/grant", &body)?)?;
        let seconds: u64 = granted.seconds.parse().map_err(|_| odd())?;
        Ok(Self {
            id: granted.id,
            lives: Duration::from_secs(seconds),
        })
    }

    /// Whether it lives on.
    fn beat(&self, etcd: &Etcd) -> io::Result<bool> {
        let body = serde_json::json!({ "ID": self.id }).to_string();
        let kept: Kept = parse(&etcd.post("/v3/lease/keepalive", &body)?)?;
        let left = kept.result.and_then(|left| left.seconds);
        Ok(left.is_some_and(|seconds| seconds != "0"))
    }

    fn revoke(&self, etcd: &Etcd) {
        let body = serde_json::json!({ "ID": self.id }).to_string();
        // Where it fails, the lease ends by itself.
        let _ = etcd.post("/v3/lease/revoke", &body);
    }
}

fn parse<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> io::Result<T> {
    serde_json::from_slice(answer).map_err(|_| odd())
}

fn odd() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is none of etcd's")
}

/// Writes an entry under a new lease.
fn write(etcd: &Etcd, name: &str, entry: &str, lives: Duration) -> io::Result<Lease> {
    let lease = Lease::grant(etcd, lives)?;
    etcd.write(name, entry, Some(&lease.id))?;
    Ok(lease)
}

/// Writes an entry and keeps it there until what is answered is called.
pub(super) fn hold(
    etcd: &Etcd,
    name: &str,
    entry: &str,
) -> io::Result<impl FnOnce() + Send + use<>> {
    let lease = write(etcd, name, entry, etcd.lives)?;
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let thread = std::thread::Builder::new()
        .name("crowfly-lease".into())
        .spawn({
            let (etcd, stop) = (etcd.clone(), Arc::clone(&stop));
            let (name, entry) = (name.to_owned(), entry.to_owned());
            move || keep(&etcd, &name, &entry, lease, &stop)
        })?;
    Ok(move || {
        *stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        stop.1.notify_all();
        let _ = thread.join();
    })
}

/// Keeps a lease alive until it is told to stop. One that ended, because etcd could not be reached
/// for too long, is followed by another.
fn keep(etcd: &Etcd, name: &str, entry: &str, mut lease: Lease, stop: &(Mutex<bool>, Condvar)) {
    let mut stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*stopped {
        let waited = stop.1.wait_timeout(stopped, lease.lives / BEATS);
        stopped = waited.unwrap_or_else(PoisonError::into_inner).0;
        if *stopped {
            break;
        }
        drop(stopped);
        if let Ok(false) = lease.beat(etcd)
            && let Ok(next) = write(etcd, name, entry, etcd.lives)
        {
            lease = next;
        }
        stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
    }
    drop(stopped);
    lease.revoke(etcd);
}
