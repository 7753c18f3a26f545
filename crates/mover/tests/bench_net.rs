//! Measuring between two ends of the fabric: the accounts are right, and what goes wrong is told.
//! No test asks how fast anything was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crowfly_mover::bench::{BenchError, Host, Line, MAX_SIZE, Task};
use crowfly_mover::fabric::{Fabric, Options, Settings, SharedKey};
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

const MOMENT: Duration = Duration::from_millis(20);
const PATHS: [Path; 2] = [Path::Shm, Path::Tcp];

struct Served {
    address: String,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(settings: Settings) -> Self {
        let host = Host::new(settings).expect("a host");
        let address = host.address().to_string();
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let thread = std::thread::spawn(move || host.serve(&over));
        Self {
            address,
            ended,
            thread: Some(thread),
        }
    }

    /// Ends the host, with all it serves.
    fn end(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

fn settings() -> Settings {
    Settings::new(SharedKey::derive("bench"))
}

#[test]
fn given_any_path_task_and_size_bytes_and_transfers_are_counted_exactly_and_by_that_path_alone() {
    let served = Served::new(settings());
    for path in PATHS {
        let line = Line::open(path, &served.address, &settings(), 3 << 20).expect("a line");
        for size in [1, 64, 70_000, 3 << 20] {
            for task in [Task::Write, Task::Read, Task::Both, Task::PingPong] {
                let sample = line.sample(task, size, MOMENT).expect("measured");
                assert_eq!((sample.path, sample.task), (path, task));
                assert_eq!(sample.size, Bytes(size));
                assert_eq!(sample.moved, Bytes(sample.transfers * size));
                assert!(sample.transfers > 0 && sample.seconds > 0.0);
                let receipt = &sample.receipt;
                assert!(receipt.is_whole());
                assert_eq!(receipt.requested, Bytes(size));
                assert!(receipt.shares.iter().all(|share| share.path == path));
                assert_eq!(sample.latency.is_some(), task == Task::PingPong);
                if let Some(latency) = sample.latency {
                    assert!(0.0 < latency.least && latency.least <= latency.median);
                    assert!(latency.median <= latency.p99);
                }
                assert!(sample.cpu_here.total() >= 0.0 && sample.cpu_there.total() >= 0.0);
                if task == Task::Both {
                    assert_eq!(sample.transfers % 2, 0, "as many each way");
                }
            }
        }
        let rails = line.rails();
        assert!(
            rails
                .iter()
                .all(|rail| rail.path == path && rail.down.is_none())
        );
        let read: u64 = rails.iter().map(|rail| rail.totals.read.0).sum();
        let written: u64 = rails.iter().map(|rail| rail.totals.written.0).sum();
        assert!(read > 0 && written > 0, "both directions were really used");
    }
}

#[test]
fn given_memory_that_cannot_be_mapped_its_own_path_is_measured() {
    let served = Served::new(settings());
    let line = match Line::open(Path::Cma, &served.address, &settings(), 1 << 20) {
        Ok(line) => line,
        Err(error) => crowfly_waive::waived!("no copies between processes here: {error}"),
    };
    for task in [Task::Write, Task::Read, Task::Both, Task::PingPong] {
        let sample = line.sample(task, 1 << 20, MOMENT).expect("measured");
        assert_eq!(sample.moved, Bytes(sample.transfers << 20));
        assert_eq!(sample.receipt.shares[0].path, Path::Cma);
    }
}

#[test]
fn given_two_lines_at_once_each_gets_its_own_answers() {
    let served = Served::new(settings());
    let open = |path| Line::open(path, &served.address, &settings(), 4096).expect("a line");
    let lines = PATHS.map(open);
    std::thread::scope(|scope| {
        for line in &lines {
            scope.spawn(move || {
                for _ in 0..3 {
                    let sample = line.sample(Task::PingPong, 64, MOMENT).expect("measured");
                    assert_eq!(sample.receipt.shares[0].path, line.path());
                }
            });
        }
    });
}

#[test]
fn given_a_wrong_key_nothing_is_lent() {
    let served = Served::new(settings());
    let other = Settings::new(SharedKey::derive("another"));
    let error = Line::open(Path::Tcp, &served.address, &other, 4096).expect_err("a wrong key");
    assert_eq!(error.code(), "not-authenticated");
}

#[test]
fn given_a_path_that_the_ends_do_not_have_the_refusal_is_typed() {
    let served = Served::new(settings());
    let refused = |path| {
        let error = Line::open(path, &served.address, &settings(), 4096).expect_err("no such rail");
        error.code()
    };
    assert_eq!(refused(Path::Verbs), "route-refused");
    let apart = Served::new(Settings {
        shm: false,
        ..settings()
    });
    let error = Line::open(Path::Shm, &apart.address, &settings(), 4096).expect_err("not shared");
    assert_eq!(error.code(), "route-refused");
}

#[test]
fn given_more_bytes_than_a_line_was_opened_for_or_than_any_can_the_size_is_refused() {
    let served = Served::new(settings());
    let line = Line::open(Path::Tcp, &served.address, &settings(), 4096).expect("a line");
    for error in [
        line.sample(Task::Write, 4097, MOMENT)
            .expect_err("too large"),
        Line::open(Path::Tcp, &served.address, &settings(), MAX_SIZE + 1).expect_err("too large"),
    ] {
        assert!(matches!(error, BenchError::TooLarge { .. }), "{error}");
        assert_eq!(error.code(), "bench-too-large");
    }
}

#[test]
fn given_a_host_that_goes_away_in_the_middle_the_measurement_ends_with_an_error_and_soon() {
    for path in PATHS {
        let mut served = Served::new(settings());
        let line = Line::open(path, &served.address, &settings(), 1 << 20).expect("a line");
        std::thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                loop {
                    if let Err(error) = line.sample(Task::Write, 1 << 20, MOMENT) {
                        return error;
                    }
                }
            });
            std::thread::sleep(3 * MOMENT);
            let began = Instant::now();
            served.end();
            let error = measuring.join().expect("it ends");
            assert!(began.elapsed() < crowfly_mover::bench::PATIENCE);
            assert_eq!(error.code(), "peer-lost", "{error}");
        });
    }
}

#[test]
fn given_a_peer_that_is_no_host_what_it_says_is_no_answer() {
    let stranger = Fabric::new(settings()).expect("a fabric");
    let address = stranger.address().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let peer = stranger.accept(Duration::from_secs(30)).expect("a peer");
            let options = Options::within(Duration::from_secs(30));
            peer.recv(options).wait().expect("its question");
            peer.send(b"{\"hello\": 1}", options).wait().expect("sent");
            // The other end hangs up.
            while peer.lost().is_none() {
                std::thread::sleep(MOMENT);
            }
        });
        let error = Line::open(Path::Tcp, &address, &settings(), 64).expect_err("no host");
        assert_eq!(error.code(), "bench-protocol", "{error}");
    });
}
