//! How processes find each other by name, and what becomes of names left behind.

#[path = "fabric_support/pair.rs"]
mod pair;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::rendezvous::{Directory, Etcd, Folder, announce, attend, meet};
use crowfly_mover::fabric::{Fabric, Imm, Options, Settings, SharedKey};
use pair::{SOON, settings};

/// Two processes meet; one is started anew under the same name and met again.
fn meet_again(directory: &dyn Directory) {
    let here = Fabric::new(settings(true)).expect("a fabric");
    let first = Fabric::new(settings(true)).expect("a fabric");
    let late = meet(&here, directory, "job.rank1", Duration::from_millis(100));
    assert_eq!(late.expect_err("not there yet").code(), "peer-late");
    announce(&first, directory, "job.rank1").expect("announced");
    let peer = meet(&here, directory, "job.rank1", SOON).expect("met");
    assert_eq!(peer.incarnation(), first.incarnation());
    drop(first);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            let second = Fabric::new(settings(true)).expect("a fabric");
            announce(&second, directory, "job.rank1").expect("announced");
            second.accept(SOON).expect("met");
            second
        });
        let peer = meet(&here, directory, "job.rank1", SOON).expect("met the successor");
        let second = second.join().expect("no panic");
        assert_eq!(peer.incarnation(), second.incarnation());
        peer.send(b"hello", Options::within(SOON))
            .wait()
            .expect("it lives");
    });
}

#[test]
fn given_a_shared_folder_then_processes_meet_and_a_successor_is_met_again() {
    let folder = tempfile::tempdir().expect("a folder");
    meet_again(&Folder::at(folder.path().join("new")));
}

#[test]
fn given_one_that_turned_this_process_away_and_left_the_error_says_that_it_was_turned_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = Folder::at(folder.path());
    let strange = Settings::new(SharedKey::derive("another job's key"));
    let other = Fabric::new(strange).expect("a fabric");
    announce(&other, &directory, "job.rank1").expect("announced");
    let here = Fabric::new(settings(true)).expect("a fabric");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            drop(other);
        });
        let refused = meet(&here, &directory, "job.rank1", Duration::from_secs(2));
        let refused = refused.expect_err("it has another key");
        assert_eq!(refused.code(), "peer-unreachable");
        let told = refused.to_string();
        assert!(told.contains("does not know this fabric's key"), "{told}");
    });
}

#[test]
fn given_a_name_or_an_entry_that_cannot_be_one_then_it_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = Folder::at(folder.path());
    for name in ["", "..", ".hidden", "a/b", "a b", &"x".repeat(200)] {
        let error = directory.put(name, "x").expect_err("no name");
        assert_eq!(error.code(), "bad-entry-name", "{name}");
    }
    let here = Fabric::new(settings(false)).expect("a fabric");
    for entry in ["", "crowfly/2 00 h:1", &"x".repeat(10_000)] {
        directory.put("someone", entry).expect("written");
        let error = meet(&here, &directory, "someone", SOON).expect_err("no entry");
        assert_eq!(error.code(), "bad-entry", "{entry}");
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").to_string()
}

/// A server of its own for a test; `None` where there is none to be had.
struct Cluster {
    server: Option<Server>,
    clients: String,
    peers: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Option<Self> {
        let mut cluster = Self {
            server: None,
            clients: free_address(),
            peers: free_address(),
            folder: tempfile::tempdir().expect("a folder"),
        };
        cluster.start().then_some(cluster)
    }

    fn start(&mut self) -> bool {
        let (clients, peers) = (&self.clients, &self.peers);
        let started = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.folder.path())
            .args(["--listen-client-urls", &format!("http://{clients}")])
            .args(["--advertise-client-urls", &format!("http://{clients}")])
            .args(["--listen-peer-urls", &format!("http://{peers}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
            .args(["--initial-cluster", &format!("default=http://{peers}")])
            .args(["--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(server) = started else {
            return false;
        };
        self.server = Some(Server(server));
        let began = Instant::now();
        while self.directory().get("anyone").is_err() {
            assert!(began.elapsed() < SOON, "etcd did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    fn directory(&self) -> Etcd {
        // The shortest that etcd grants.
        Etcd::new(self.clients.clone(), "crowfly-test/").outlived_by(Duration::from_secs(1))
    }
}

const NO_ETCD: &str = "etcd is not installed (Debian: etcd-server)";

#[test]
fn given_an_etcd_server_then_processes_meet_and_a_successor_is_met_again() {
    let Some(cluster) = Cluster::new() else {
        crowfly_waive::waived!("{NO_ETCD}");
    };
    meet_again(&cluster.directory());
}

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < SOON, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the process of the next test that is killed does.
#[test]
fn attends_until_it_is_killed() {
    let Ok(address) = std::env::var("CROWFLY_TEST_ATTEND") else {
        return;
    };
    let fabric = Fabric::new(settings(false)).expect("a fabric");
    let directory = Etcd::new(address, "crowfly-test/").outlived_by(Duration::from_secs(1));
    let _present = attend(&fabric, &directory, "mortal").expect("written");
    loop {
        let _ = fabric.accept(SOON);
    }
}

#[test]
fn given_etcd_when_a_process_is_killed_then_its_entry_vanishes_and_its_successor_has_a_new_life() {
    let Some(cluster) = Cluster::new() else {
        crowfly_waive::waived!("{NO_ETCD}");
    };
    let directory = cluster.directory();
    let start = || {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program)
            .args(["--exact", "attends_until_it_is_killed"])
            .env("CROWFLY_TEST_ATTEND", &cluster.clients)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Server(child.expect("started"))
    };
    let here = Fabric::new(settings(false)).expect("a fabric");
    let first = start();
    let peer = meet(&here, &directory, "mortal", SOON).expect("met");
    let life = peer.incarnation();
    // It is kept for longer than its lease would last by itself.
    std::thread::sleep(Duration::from_secs(5));
    assert!(directory.get("mortal").expect("asked").is_some());
    drop(first);
    wait_until("the end of the lease", || {
        directory.get("mortal").expect("asked").is_none()
    });
    wait_until("the end of the peer", || peer.lost().is_some());
    let _second = start();
    let peer = meet(&here, &directory, "mortal", SOON).expect("met its successor");
    assert_ne!(peer.incarnation(), life);
}

#[test]
fn given_etcd_that_goes_away_and_comes_back_then_peers_work_on_and_entries_are_there_again() {
    let Some(mut cluster) = Cluster::new() else {
        crowfly_waive::waived!("{NO_ETCD}");
    };
    let directory = cluster.directory();
    let there = Fabric::new(settings(false)).expect("a fabric");
    let here = Fabric::new(settings(false)).expect("a fabric");
    let presence = attend(&there, &directory, "steady").expect("written");
    let peer = meet(&here, &directory, "steady", SOON).expect("met");
    cluster.server = None;
    let error = meet(&here, &directory, "steady", SOON).expect_err("there is no etcd");
    assert_eq!(error.code(), "directory-failed");
    let told = peer.notify(Imm(1), Options::within(SOON)).wait();
    told.expect("peers need no directory once they have met");
    // A server that lost what it knew.
    cluster.folder = tempfile::tempdir().expect("a folder");
    assert!(cluster.start(), "etcd is installed");
    wait_until("the return of the entry", || {
        directory.get("steady").is_ok_and(|entry| entry.is_some())
    });
    drop(presence);
    assert_eq!(directory.get("steady").expect("asked"), None);
}

#[test]
fn given_a_folder_when_a_presence_ends_then_its_entry_goes_and_a_successors_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = Folder::at(folder.path());
    let first = directory.hold("rank0", "first").expect("written");
    let second = directory.hold("rank0", "second").expect("written over");
    drop(first);
    let left = directory.get("rank0").expect("read");
    assert_eq!(left.as_deref(), Some("second"));
    drop(second);
    assert_eq!(directory.get("rank0").expect("read"), None);
}

#[test]
fn given_no_server_then_the_error_says_where_it_was_looked_for() {
    let address = free_address();
    let error = Etcd::new(address.clone(), "x")
        .get("anyone")
        .expect_err("nobody");
    assert_eq!(error.code(), "directory-failed");
    assert!(error.to_string().contains(&address), "{error}");
}
