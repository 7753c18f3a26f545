//! How processes find each other by name, and what becomes of names left behind.

#[path = "fabric_support/pair.rs"]
mod pair;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::rendezvous::{Directory, Etcd, Folder, announce, meet};
use crowfly_mover::fabric::{Fabric, Options};
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

#[test]
fn given_an_etcd_server_then_processes_meet_and_a_successor_is_met_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (clients, peers) = (free_address(), free_address());
    let started = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder.path())
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
        crowfly_waive::waived!("etcd is not installed (Debian: etcd-server)");
    };
    let _server = Server(server);
    let directory = Etcd::new(clients, "crowfly-test/");
    let began = Instant::now();
    while directory.get("anyone").is_err() {
        assert!(began.elapsed() < SOON, "etcd did not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    meet_again(&directory);
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
