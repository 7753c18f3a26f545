//! Ranks of a group as threads of this process, each with a fabric of its own.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crowfly_mover::collective::{CallOptions, Group, GroupSettings};
use crowfly_mover::fabric::rendezvous::Folder;
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use crowfly_route::policy::Policy;

/// Long enough for a busy machine.
pub const SOON: CallOptions = CallOptions::within(Duration::from_secs(60));

/// How ranks are spread over hosts.
#[derive(Clone, Copy, Debug)]
pub enum Spread {
    /// All on this host, sharing memory.
    Shared,
    /// All by TCP.
    Tcp,
    /// This many to a host, hosts by TCP.
    Hosts(usize),
}

pub fn fabric(spread: Spread) -> Arc<Fabric> {
    let settings = Settings {
        shm: !matches!(spread, Spread::Tcp),
        threads: Some(1),
        ..Settings::new(SharedKey::derive("a test of collectives"))
    };
    Arc::new(Fabric::new(settings).expect("a fabric"))
}

pub fn settings(spread: Spread, rank: usize) -> GroupSettings {
    match spread {
        Spread::Shared | Spread::Tcp => GroupSettings::default(),
        Spread::Hosts(each) => GroupSettings {
            host: Some(format!("host {}", rank / each)),
            policy: Policy::Socket,
            ..GroupSettings::default()
        },
    }
}

/// Runs `body` as each of `n` ranks; answers what each answered.
pub fn ranks<T: Send + 'static>(
    n: usize,
    spread: Spread,
    body: impl Fn(&mut Group) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let folder = tempfile::tempdir().expect("a folder");
    let threads: Vec<_> = (0..n)
        .map(|rank| {
            let (path, body) = (folder.path().to_owned(), body.clone());
            thread::spawn(move || {
                let fabric = fabric(spread);
                let directory = Folder::at(path);
                let settings = settings(spread, rank);
                let mut group =
                    Group::form(fabric, &directory, "job", rank, n, settings).expect("a group");
                body(&mut group)
            })
        })
        .collect();
    let ended = threads.into_iter().map(|thread| thread.join());
    ended.map(|end| end.expect("no rank fails")).collect()
}
