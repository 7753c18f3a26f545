//! Copies that meet trouble: every one ends in a typed error in time, leaves nothing half-done under the
//! file's name, and goes on later where that was asked for.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crowfly_mover::service::{Asked, Auth, Copy, ServiceError, Side};

#[path = "fabric_support/proxy.rs"]
mod proxy;
#[path = "service_support/stage.rs"]
mod stage;

use proxy::Proxy;
use stage::{SOON, Stage, copy, key, metric, pattern};

/// Large enough to be interrupted in the middle.
const LARGE: u64 = 160 << 20;
/// So much of it gets through before it is interrupted.
const HALF: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// A large file, mostly holes, with bytes of its own here and there.
fn large(path: &Path, seed: u8) {
    fs::create_dir_all(path.parent().expect("inside")).expect("made");
    let file = File::create(path).expect("made");
    file.set_len(LARGE).expect("sized");
    for part in (0..LARGE).step_by(7 << 20) {
        file.write_all_at(&pattern(5_000, seed), part)
            .expect("written");
    }
}

/// A stage with a network in front of it that can fail.
struct Net {
    stage: Stage,
    proxy: Proxy,
    here: tempfile::TempDir,
}

impl Net {
    fn new() -> Self {
        let stage = Stage::new(false);
        let proxy = Proxy::before(stage.server.address());
        Self {
            stage,
            proxy,
            here: tempfile::tempdir().expect("a folder"),
        }
    }

    fn through(&self, name: &str) -> Side {
        through(&self.proxy, name)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn entries(&self) -> Vec<String> {
        entries(self.here.path())
    }
}

/// What a server has, by a network that can fail.
fn through(proxy: &Proxy, name: &str) -> Side {
    let url = format!("crowfly://{}/{name}", proxy.address);
    Side::Served(url.parse().expect("a location"))
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

/// Starts, and waits until so much has moved. What goes through `proxy` cannot end before that goes on, is cut
/// or stops for good: too few bytes get through.
fn begun(asked: Asked, moved: u64, proxy: &Proxy) -> Copy {
    proxy.stop_after(HALF);
    let copy = Copy::start(asked).expect("started");
    let began = Instant::now();
    while copy.moved().0 < moved {
        assert!(!copy.is_finished(), "{:?}", copy.wait().map(drop));
        assert!(began.elapsed() < SOON, "it does not move");
        std::thread::sleep(Duration::from_micros(200));
    }
    copy
}

fn failed(copy: Copy) -> ServiceError {
    copy.wait().map(drop).expect_err("it cannot succeed")
}

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).expect("there") == fs::read(b).expect("there")
}

#[test]
fn given_a_server_that_is_gone_mid_copy_it_fails_at_once_and_a_later_run_goes_on() {
    let net = Net::new();
    let source = net.stage.folder.path().join("m");
    large(&source, 1);
    let to = net.at("m");
    let mut asked = net
        .stage
        .asked(net.through("data/m"), Side::File(to.clone()));
    asked.resume = true;
    // A silence would be noticed only much later.
    asked.dialing.fabric.silence = 2 * SOON;
    let copy_of = begun(asked.clone(), 12 * MIB, &net.proxy);
    let began = Instant::now();
    net.proxy.cut();
    assert_eq!(failed(copy_of).code(), "peer-lost");
    assert!(began.elapsed() < SOON, "at once");
    assert_eq!(net.entries(), [".m.crowfly-journal", ".m.crowfly-partial"]);
    asked.from = net.stage.at("data/m");
    let copied = copy(asked).expect("goes on");
    assert!(copied.resumed.0 >= 8 * MIB, "{} were kept", copied.resumed);
    assert_eq!(copied.resumed.0 + copied.receipt.requested.0, LARGE);
    assert_eq!(net.entries(), ["m"]);
    assert!(same(&source, &to));
}

#[test]
fn given_a_server_that_is_told_to_stop_mid_copy_the_copy_comes_to_its_end() {
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings.limits.grace = SOON
    });
    let source = stage.folder.path().join("m");
    large(&source, 5);
    let here = tempfile::tempdir().expect("a folder");
    let to = here.path().join("m");
    let proxy = Proxy::before(stage.server.address());
    let asked = stage.asked(through(&proxy, "data/m"), Side::File(to.clone()));
    let copy_of = begun(asked, 8 * MIB, &proxy);
    let Stage {
        server,
        folder: _there,
        ..
    } = stage;
    let stopping = std::thread::spawn(move || server.stop());
    proxy.go_on();
    copy_of.wait().expect("finished");
    let totals = stopping.join().expect("stopped");
    assert!(same(&source, &to));
    assert_eq!(totals.files.get("sent-read"), Some(&1));
}

#[test]
fn given_a_server_whose_grace_is_over_what_is_still_under_way_is_told() {
    let grace = Duration::from_millis(1);
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings.limits.grace = grace
    });
    large(&stage.folder.path().join("m"), 6);
    let here = tempfile::tempdir().expect("a folder");
    let proxy = Proxy::before(stage.server.address());
    let asked = stage.asked(through(&proxy, "data/m"), Side::File(here.path().join("m")));
    let copy_of = begun(asked, MIB, &proxy);
    let Stage {
        server,
        folder: _there,
        ..
    } = stage;
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < SOON);
    let code = failed(copy_of).code();
    assert!(["server-stopping", "peer-lost"].contains(&code), "{code}");
    assert_eq!(entries(here.path()), [""; 0]);
}

#[test]
fn given_a_client_that_is_gone_mid_upload_nothing_appears_and_a_later_run_goes_on() {
    let net = Net::new();
    let source = net.at("m");
    large(&source, 2);
    let mut asked = net
        .stage
        .asked(Side::File(source.clone()), net.through("inbox/up/m"));
    asked.resume = true;
    let copy_of = begun(asked.clone(), 12 * MIB, &net.proxy);
    net.proxy.cut();
    assert_eq!(failed(copy_of).code(), "peer-lost");
    let there = net.stage.folder.path().join("up");
    assert_eq!(
        entries(&there),
        [".m.crowfly-journal", ".m.crowfly-partial"]
    );
    asked.to = net.stage.at("inbox/up/m");
    let began = Instant::now();
    let copied = loop {
        match copy(asked.clone()) {
            Ok(copied) => break copied,
            // Until the server has noticed that the first connection is gone.
            Err(error) => assert_eq!(error.code(), "file-busy"),
        }
        assert!(began.elapsed() < SOON, "busy for ever");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(copied.resumed.0 >= 8 * MIB, "{} were kept", copied.resumed);
    assert_eq!(entries(&there), ["m"]);
    assert!(same(&source, &there.join("m")));
}

#[test]
fn given_no_wish_to_resume_a_lost_upload_leaves_nothing_at_the_server() {
    let net = Net::new();
    let source = net.at("m");
    large(&source, 3);
    let asked = net
        .stage
        .asked(Side::File(source), net.through("inbox/up/m"));
    let copy_of = begun(asked, 12 * MIB, &net.proxy);
    net.proxy.cut();
    assert_eq!(failed(copy_of).code(), "peer-lost");
    let there = net.stage.folder.path().join("up");
    let began = Instant::now();
    while !entries(&there).is_empty() {
        assert!(began.elapsed() < SOON, "{:?} stay", entries(&there));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn given_a_black_hole_the_copy_ends_in_time_whichever_way_the_bytes_go() {
    let net = Net::new();
    large(&net.stage.folder.path().join("m"), 4);
    large(&net.at("up"), 4);
    let sides = [
        (net.through("data/m"), Side::File(net.at("m"))),
        (Side::File(net.at("up")), net.through("inbox/new")),
        (net.through("data/m"), Side::Host),
    ];
    for (from, to) in sides {
        net.proxy.go_on();
        let mut asked = net.stage.asked(from, to);
        asked.timeout = Some(SOON);
        let copy_of = begun(asked, 8 * MIB, &net.proxy);
        let began = Instant::now();
        net.proxy.stop();
        let error = failed(copy_of);
        assert_eq!(error.code(), "peer-lost", "{error}");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
        assert_eq!(net.entries(), ["up"]);
        // Half open: the server has to notice by itself.
        while metric(&net.stage, "crowfly_serve_connections") > 0.0 {
            assert!(began.elapsed() < SOON, "never noticed");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(metric(&net.stage, "crowfly_serve_open_files"), 0.0);
    }
}

#[test]
fn given_less_time_than_a_silence_takes_to_notice_the_deadline_ends_the_copy() {
    let net = Net::new();
    large(&net.stage.folder.path().join("m"), 5);
    let mut asked = net.stage.asked(net.through("data/m"), Side::Host);
    asked.dialing.fabric.silence = 2 * SOON;
    asked.timeout = Some(Duration::from_millis(1_000));
    let began = Instant::now();
    net.proxy.stop_after(HALF);
    let error = copy(asked).map(drop).expect_err("it cannot be done");
    assert_eq!(error.code(), "deadline-exceeded", "{error}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn given_a_black_hole_before_the_connection_or_nobody_at_all_it_ends_in_time() {
    let net = Net::new();
    net.proxy.stop();
    let mut asked = net.stage.asked(net.through("data/m"), Side::Host);
    asked.timeout = Some(Duration::from_millis(600));
    let began = Instant::now();
    assert_eq!(
        copy(asked.clone()).map(drop).expect_err("silence").code(),
        "deadline-exceeded"
    );
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let url = format!("crowfly://{address}/data/m");
    asked.from = Side::Served(url.parse().expect("a location"));
    assert_eq!(
        copy(asked).map(drop).expect_err("nobody").code(),
        "peer-unreachable"
    );
}

#[test]
fn given_a_peer_that_takes_nothing_any_more_the_others_are_served_meanwhile() {
    let net = Net::new();
    large(&net.stage.folder.path().join("m"), 6);
    let mut asked = net.stage.asked(net.through("data/m"), Side::Host);
    asked.dialing.fabric.silence = SOON;
    let slow = begun(asked, 4 * MIB, &net.proxy);
    net.proxy.stop();
    let began = Instant::now();
    for _ in 0..3 {
        net.stage
            .copy(net.stage.at("data/m"), Side::Host)
            .expect("served meanwhile");
    }
    assert!(began.elapsed() < SOON);
    slow.cancel();
    net.proxy.cut();
    failed(slow);
}

#[test]
fn given_a_source_that_is_written_to_meanwhile_nothing_appears() {
    let net = Net::new();
    let there = net.stage.folder.path().join("m");
    large(&there, 7);
    let append = |path: &Path| {
        let mut file = File::options().append(true).open(path).expect("opened");
        file.write_all(b"more").expect("written");
    };
    let asked = net
        .stage
        .asked(net.through("data/m"), Side::File(net.at("down")));
    let copy_of = begun(asked, 8 * MIB, &net.proxy);
    append(&there);
    net.proxy.go_on();
    assert_eq!(failed(copy_of).code(), "file-changed");
    assert_eq!(net.entries(), [""; 0]);
    large(&net.at("up"), 8);
    let asked = net
        .stage
        .asked(Side::File(net.at("up")), net.through("inbox/up"));
    let copy_of = begun(asked, 8 * MIB, &net.proxy);
    append(&net.at("up"));
    net.proxy.go_on();
    assert_eq!(failed(copy_of).code(), "file-changed");
    assert!(!net.stage.folder.path().join("up").exists());
}

#[test]
fn given_a_source_that_changed_since_the_interruption_the_copy_does_not_go_on() {
    let net = Net::new();
    let there = net.stage.folder.path().join("m");
    large(&there, 9);
    let to = net.at("m");
    let mut asked = net
        .stage
        .asked(net.through("data/m"), Side::File(to.clone()));
    asked.resume = true;
    let copy_of = begun(asked.clone(), 8 * MIB, &net.proxy);
    copy_of.cancel();
    net.proxy.go_on();
    assert_eq!(failed(copy_of).code(), "cancelled");
    File::options()
        .write(true)
        .open(&there)
        .expect("opened")
        .write_all_at(b"other", 3 * MIB)
        .expect("changed");
    let error = copy(asked.clone()).map(drop).expect_err("another source");
    assert_eq!(error.code(), "source-changed");
    asked.resume = false;
    copy(asked).expect("anew");
    assert_eq!(net.entries(), ["m"]);
    assert!(same(&there, &to));
}

#[test]
fn given_memory_as_a_source_resuming_is_refused_for_it_has_no_version() {
    let stage = Stage::new(true);
    let here = tempfile::tempdir().expect("a folder");
    let mut asked = stage.asked(stage.at("pool"), Side::File(here.path().join("m")));
    asked.resume = true;
    assert_eq!(
        copy(asked).map(drop).expect_err("no version").code(),
        "source-changed"
    );
}

#[test]
fn given_a_cancelled_copy_nothing_stays_unless_it_is_to_be_resumed() {
    let net = Net::new();
    large(&net.stage.folder.path().join("m"), 10);
    for (resume, left) in [(false, 0), (true, 2)] {
        let mut asked = net
            .stage
            .asked(net.through("data/m"), Side::File(net.at("m")));
        asked.resume = resume;
        let copy_of = begun(asked, 8 * MIB, &net.proxy);
        copy_of.cancel();
        net.proxy.go_on();
        assert_eq!(failed(copy_of).code(), "cancelled");
        assert_eq!(net.entries().len(), left, "{:?}", net.entries());
    }
}

/// A small file system of its own, where this process may mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .output();
    }
}

#[test]
fn given_a_disk_that_is_full_at_the_receiver_both_ends_say_so_and_leave_nothing() {
    let Some(small) = Small::mount() else {
        crowfly_waive::waived!("this process may not mount a small file system");
    };
    let folder = small.0.path().to_owned();
    let stage = Stage::with(false, Auth::Key(key()), |settings| {
        settings
            .exports
            .push(crowfly_mover::service::Export::Folder {
                name: "small".parse().expect("a name"),
                path: folder.clone(),
                writable: true,
            });
    });
    let from = stage.put("m", &pattern(16 << 20, 1));
    let error = stage.copy(Side::File(from), stage.at("small/m")).map(drop);
    assert_eq!(error.expect_err("full there").code(), "no-space");
    let error = stage
        .copy(stage.at("data/m"), Side::File(folder.join("m")))
        .map(drop);
    assert_eq!(error.expect_err("full here").code(), "no-space");
    assert_eq!(entries(&folder), [""; 0]);
    stage.put("fits", &pattern(1 << 20, 1));
    let fits = stage.copy(stage.at("data/fits"), Side::File(folder.join("fits")));
    fits.expect("what fits is copied");
}
