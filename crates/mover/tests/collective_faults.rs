//! Given ranks of which one dies, dawdles or does something else, when the others are in a
//! collective, then all of them get the same error within the deadline, and can go on without it.

#[path = "collective_support/ranks.rs"]
mod ranks;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crowfly_mover::collective::{
    Algorithm, CallOptions, CollectiveError, Element, Group, GroupSettings, Reduction,
};
use crowfly_mover::fabric::rendezvous::{Directory, Folder, Presence, RendezvousError};
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use ranks::{SOON, Spread, fabric, ranks, settings};
use rustix::process::{Resource, Rlimit, setrlimit};

const F32: Element = Element::F32;
const SHORTLY: Duration = Duration::from_secs(4);
/// Far beyond that, however busy the machine is: only a rank that hangs takes so long.
const FOREVER: Duration = Duration::from_secs(60);

/// What a rank is told by the variables of its process.
const PLACE: &str = "CROWFLY_TEST_COLLECTIVE";
/// The stack of each thread of such a process: far more than it needs otherwise, and too much for the C library to
/// keep for the next thread, so that memory can be given out without one more thread being had.
const STACK: u64 = 128 << 20;

/// Ranks as processes of this test's own program.
struct Processes {
    children: Vec<Child>,
    _folder: tempfile::TempDir,
}

impl Processes {
    fn start(n: usize, spread: &str, part: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let start = |rank: usize| {
            let place = format!("{}|{rank}|{n}|{spread}|{part}", folder.path().display());
            Command::new(std::env::current_exe().expect("a program"))
                .args(["--exact", "a_rank_of_another_test", "--nocapture"])
                .env(PLACE, place)
                .env("RUST_MIN_STACK", STACK.to_string())
                .env("MALLOC_ARENA_MAX", "1")
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .expect("a process")
        };
        let children = (0..n).map(start).collect();
        Self {
            children,
            _folder: folder,
        }
    }

    /// What each rank said in the end, of those that were not killed.
    fn end(mut self) -> Vec<Option<String>> {
        let mut said = Vec::new();
        for child in &mut self.children {
            let out = BufReader::new(child.stdout.take().expect("piped"));
            let lines = out.lines().map_while(Result::ok);
            let word = lines.filter_map(|line| line.split_once("SAYS ").map(|(_, w)| w.to_owned()));
            said.push(word.last());
            let _ = child.wait();
        }
        said
    }
}

/// Is no test by itself: a process that another test starts.
#[test]
fn a_rank_of_another_test() {
    let Ok(place) = std::env::var(PLACE) else {
        return;
    };
    let mut words = place.split('|');
    let mut word = || words.next().expect("a word");
    let (path, rank, n) = (word(), word(), word());
    let (spread, part) = (word(), word());
    let spread = match spread {
        "tcp" => Spread::Tcp,
        "hosts" => Spread::Hosts(2),
        _ => Spread::Shared,
    };
    let (rank, n): (usize, usize) = (
        rank.parse().expect("a number"),
        n.parse().expect("a number"),
    );
    let directory = Folder::at(path);
    let (fabric, settings) = (fabric(spread), settings(spread, rank));
    if part == "no threads" && rank == 0 {
        have_no_more_threads();
    }
    let group = Group::form(fabric, &directory, "job", rank, n, settings);
    if part == "no threads" && rank == 0 {
        let error = group.expect_err("nobody can be greeted");
        println!("SAYS {}: {error}", error.code());
        return;
    }
    let mut group = group.expect("a group");
    match part {
        "sum" => {
            let mut data = (1f32 + rank as f32).to_le_bytes().repeat(70_000);
            group
                .all_reduce(&mut data, F32, Reduction::Sum, SOON)
                .expect("reduced");
            let sums = data
                .as_chunks::<4>()
                .0
                .iter()
                .map(|sum| f32::from_le_bytes(*sum));
            assert!(sums.clone().all(|sum| sum == (n * (n + 1) / 2) as f32));
            println!("SAYS {}", n * (n + 1) / 2);
        }
        _ => until_one_is_lost(&mut group),
    }
}

/// Whether all other threads of this process sleep: those that were just started need memory of their own before.
fn all_others_sleep() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let mut others = threads
        .map(|thread| thread.expect("a thread"))
        .filter(|thread| thread.file_name() != own.as_str());
    others.all(|thread| {
        // One that has ended since needs nothing.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('S'))
    })
}

/// From now on this process has too little room for another thread's stack.
fn have_no_more_threads() {
    let until = Instant::now() + FOREVER;
    // Twice: one of them may have waited for something on its way.
    let asleep = || {
        all_others_sleep() && {
            std::thread::sleep(Duration::from_millis(20));
            all_others_sleep()
        }
    };
    while !asleep() {
        assert!(Instant::now() < until, "threads that never rest");
    }
    let sizes = std::fs::read_to_string("/proc/self/statm").expect("sizes of this process");
    let pages = sizes.split_whitespace().next().expect("the whole");
    let pages: u64 = pages.parse().expect("a number");
    let room = pages * rustix::param::page_size() as u64 + STACK / 2;
    let limit = Rlimit {
        current: Some(room),
        maximum: Some(room),
    };
    setrlimit(Resource::As, limit).expect("a lower limit");
}

/// Reduces until a rank is lost, then goes on without it.
fn until_one_is_lost(group: &mut Group) {
    let n = group.size();
    println!("READY");
    let mut data = vec![0u8; 4 * 50_000];
    let (error, called) = loop {
        let called = Instant::now();
        match group.all_reduce(&mut data, F32, Reduction::Sum, SOON) {
            Ok(_) => {}
            Err(error) => break (error, called),
        }
    };
    assert!(called.elapsed() < FOREVER, "{:?}", called.elapsed());
    let CollectiveError::RanksLost(lost) = &error else {
        panic!("{error}");
    };
    let ranks: Vec<usize> = lost.iter().map(|lost| lost.rank).collect();
    let again = group.barrier(SOON).expect_err("it no longer works");
    assert_eq!(again.to_string(), error.to_string());
    let mut left = group.shrink(SOON).expect("the others go on");
    assert_eq!(left.size(), n - 1);
    let mut data = 1f32.to_le_bytes();
    left.all_reduce(&mut data, F32, Reduction::Sum, SOON)
        .expect("reduced");
    println!("SAYS {ranks:?} {} {}", f32::from_le_bytes(data), error);
}

#[test]
fn ranks_in_processes_of_their_own_reduce() {
    for (n, spread) in [(2, "shared"), (4, "hosts"), (3, "tcp")] {
        let said = Processes::start(n, spread, "sum").end();
        let wanted = (n * (n + 1) / 2).to_string();
        assert!(
            said.iter().all(|word| word.as_ref() == Some(&wanted)),
            "{spread}: {said:?}"
        );
    }
}

#[test]
fn a_rank_that_can_have_no_thread_to_greet_others_says_so_at_once_and_does_not_wait_for_them() {
    let began = Instant::now();
    for spread in ["shared", "tcp"] {
        let mut processes = Processes::start(2, spread, "no threads");
        let mut other = processes
            .children
            .pop()
            .expect("the one that is not greeted");
        let said = processes.end().remove(0).expect("a word");
        other.kill().expect("killed");
        other.wait().expect("dead");
        let wanted =
            "setup-failed: cannot set up the fabric: starting a thread that greets who connects: ";
        assert!(said.starts_with(wanted), "{spread}: {said}");
    }
    let waited = GroupSettings::default().time;
    assert!(began.elapsed() < waited, "{:?}", began.elapsed());
}

/// A directory that knows that nobody comes any more.
struct Forsaken(Folder);

impl Directory for Forsaken {
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError> {
        self.0.put(name, entry)
    }

    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError> {
        self.0.hold(name, entry)
    }

    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError> {
        self.0.get(name)
    }

    fn missed(&self, _: &str) -> Option<String> {
        Some("it could not be started".to_owned())
    }
}

#[test]
fn a_rank_that_will_not_come_as_the_directory_knows_is_not_waited_for_and_is_named() {
    for (rank, other) in [(0, "job.rank1"), (1, "job.rank0")] {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Forsaken(Folder::at(folder.path()));
        let (fabric, settings) = (fabric(Spread::Tcp), GroupSettings::default());
        let (began, time) = (Instant::now(), settings.time);
        let formed = Group::form(fabric, &directory, "job", rank, 2, settings);
        let error = formed.expect_err("the other does not come");
        assert_eq!(error.code(), "peer-missed");
        let wanted = format!("`{other}` does not come: it could not be started");
        assert_eq!(error.to_string(), wanted);
        assert!(began.elapsed() < time, "{:?}", began.elapsed());
    }
}

#[test]
fn when_a_process_is_killed_at_any_moment_all_others_get_the_same_error_and_go_on() {
    let mut seed: u64 =
        std::env::var("CROWFLY_SEED").map_or(2026, |s| s.parse().expect("a number"));
    for spread in ["shared", "tcp", "hosts"] {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (victim, delay) = (
            (seed >> 33) as usize % 4,
            Duration::from_micros((seed >> 40) % 200_000),
        );
        let mut processes = Processes::start(4, spread, "lose");
        let mut child = processes.children.remove(victim);
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("READY") {
            line.clear();
            assert!(out.read_line(&mut line).expect("a line") > 0, "it ended");
        }
        thread::sleep(delay);
        child.kill().expect("killed");
        child.wait().expect("dead");
        let said = processes.end();
        let first = said[0].clone().expect("a word");
        assert!(
            first.starts_with(&format!("[{victim}] 3 rank {victim} was lost")),
            "{first}"
        );
        assert!(
            said.iter().all(|word| word.as_ref() == Some(&first)),
            "{spread} {delay:?}: {said:?}"
        );
    }
}

/// What every rank but the last gets, when the last one does something else; it stays until they have.
fn errors(
    n: usize,
    spread: Spread,
    last: fn(&mut Group),
    others: fn(&mut Group) -> CollectiveError,
) -> Vec<String> {
    let (through, seen) = mpsc::channel();
    let seen = Arc::new(Mutex::new(seen));
    let all = ranks(n, spread, move |group| {
        if group.rank() == n - 1 {
            last(group);
            let seen = seen.lock().expect("one rank listens");
            for _ in 1..n {
                seen.recv_timeout(FOREVER).expect("each gets an error");
            }
            return None;
        }
        let called = Instant::now();
        let error = others(group);
        assert!(called.elapsed() < FOREVER, "{:?}", called.elapsed());
        through.send(()).expect("the last one listens");
        Some(format!("{}: {error}", error.code()))
    });
    all.into_iter().flatten().collect()
}

fn reduce(group: &mut Group, count: usize) -> CollectiveError {
    let options = CallOptions::within(SHORTLY);
    let mut data = vec![0; 4 * count];
    group
        .all_reduce(&mut data, F32, Reduction::Sum, options)
        .expect_err("one does something else")
}

#[test]
fn a_rank_that_does_not_come_in_time_is_named_by_all_others() {
    for spread in [Spread::Shared, Spread::Tcp, Spread::Hosts(2)] {
        let errors = errors(3, spread, |_| {}, |group| reduce(group, 10));
        let wanted = "collective-late: call 1 of the group was not done within 4.00 s: rank 2 did not call it";
        assert_eq!(errors, [wanted, wanted], "{spread:?}");
    }
}

#[test]
fn a_rank_that_comes_late_but_in_time_is_waited_for() {
    ranks(3, Spread::Shared, |group| {
        if group.rank() == 1 {
            thread::sleep(Duration::from_millis(300));
        }
        let mut data = 1f32.to_le_bytes();
        let receipt = group
            .all_reduce(&mut data, F32, Reduction::Sum, SOON)
            .expect("reduced");
        assert_eq!(f32::from_le_bytes(data), 3.0);
        assert!(group.rank() == 1 || receipt.waited > 0.1, "{receipt:?}");
    });
}

#[test]
fn ranks_that_call_different_things_are_named_with_what_they_call() {
    type Other = (fn(&mut Group), &'static str);
    let others: [Other; 4] = [
        (
            |group| drop(reduce(group, 11)),
            "called all-reduce of 11 f32 by sum",
        ),
        (
            |group| {
                let mut data = [0; 40];
                let done = group.all_reduce(&mut data, F32, Reduction::Max, SOON);
                done.expect_err("the others sum");
            },
            "called all-reduce of 10 f32 by max",
        ),
        (
            |group| {
                let mut data = [0; 80];
                let done = group.all_reduce(&mut data, Element::F64, Reduction::Sum, SOON);
                done.expect_err("the others have singles");
            },
            "called all-reduce of 10 f64 by sum",
        ),
        (
            |group| drop(group.barrier(SOON).expect_err("the others reduce")),
            "called barrier",
        ),
    ];
    for spread in [Spread::Shared, Spread::Tcp] {
        for (other, named) in others {
            let errors = errors(3, spread, other, |group| reduce(group, 10));
            assert_eq!(errors[0], errors[1], "{spread:?}");
            assert!(
                errors[0].starts_with("collective-mismatch: "),
                "{}",
                errors[0]
            );
            assert!(errors[0].contains(named), "{} names {named}", errors[0]);
        }
    }
}

#[test]
fn a_size_that_the_other_end_does_not_expect_is_named() {
    let said = ranks(2, Spread::Tcp, |group| {
        // Rank 1 expects one number more than rank 0 sends.
        let (to, from) = ([1, 1], [1, 1 + group.rank()]);
        let (input, mut output) = ([0u8; 2], vec![0u8; from.iter().sum()]);
        let from = if group.rank() == 0 { [1, 1] } else { [2, 1] };
        let options = CallOptions::within(SHORTLY);
        let done = group.all_to_all_v((&input, &to), (&mut output, &from), Element::U8, options);
        done.err().map(|error| error.to_string())
    });
    let wrong = said[1].clone().expect("it cannot work");
    assert!(
        wrong.contains("rank 0 sent 1 bytes, rank 1 expected 2 from it"),
        "{wrong}"
    );
}

#[test]
fn a_rank_that_leaves_after_its_last_call_disturbs_nobody() {
    for spread in [Spread::Shared, Spread::Tcp] {
        ranks(4, spread, |group| {
            for way in [Algorithm::Ring, Algorithm::Tree, Algorithm::Halving] {
                let mut data = vec![0; 4 * 1000];
                group
                    .all_reduce(&mut data, F32, Reduction::Sum, SOON.by(way))
                    .expect("reduced");
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_as_soon_as_the_group_is_formed_does_not_keep_others_from_forming_it() {
    for _ in 0..20 {
        for spread in [Spread::Shared, Spread::Tcp] {
            let sizes = ranks(3, spread, |group| group.size());
            assert_eq!(sizes, [3; 3]);
        }
    }
}

#[test]
fn a_group_whose_ranks_disagreed_can_be_formed_anew_with_all_of_them() {
    ranks(3, Spread::Tcp, |group| {
        let count = 10 + group.rank() / 2;
        let error = reduce(group, count);
        assert_eq!(error.code(), "collective-mismatch");
        let mut again = group.shrink(SOON).expect("a new group");
        assert_eq!(again.size(), 3);
        again.barrier(SOON).expect("it works");
    });
}

#[test]
fn given_a_rank_with_another_key_both_ends_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let form = |rank: usize, key: &str| {
        let directory = Folder::at(folder.path());
        let fabric = Fabric::new(Settings::new(SharedKey::derive(key))).expect("a fabric");
        let settings = GroupSettings {
            time: SHORTLY,
            ..GroupSettings::default()
        };
        let formed = Group::form(Arc::new(fabric), &directory, "job", rank, 2, settings);
        formed.map(drop).expect_err("they cannot meet")
    };
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| form(0, "the key of rank 0"));
        let second = form(1, "the key of rank 1");
        (first.join().expect("no panic"), second)
    });
    assert_eq!(first.code(), "group-not-formed");
    let said = first.to_string();
    let parts = ["rank 1 did not join in time", "does not have the same key"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert!(
        second
            .to_string()
            .contains("does not know this fabric's key"),
        "{second}"
    );
}
