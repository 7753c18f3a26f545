//! A process that has no descriptors left for those who want to connect: it says so, does not spin, and lets
//! them in once it has some again.

#[path = "fabric_support/cable.rs"]
mod cable;
#[path = "fabric_support/host.rs"]
mod host;
#[path = "fabric_support/pair.rs"]
mod pair;

use std::fs::File;
use std::io::BufRead;
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{Fabric, Options};
use host::{Host, on_a_host, say};
use pair::{SOON, settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const BRIEF: Duration = Duration::from_millis(500);
/// Descriptors that are enough for a fabric of one peer.
const FEW: u64 = 96;

/// CPU time of this process so far; without a descriptor to read it by.
fn spent() -> Duration {
    // SAFETY: an all-zero `timespec` is a valid value of plain integers.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes only into `time`, which outlives it.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(rc, 0);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < SOON, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process that runs short; nothing in the test run itself.
#[test]
fn runs_short_when_it_is_told() {
    if on_a_host().is_none() {
        return;
    }
    let fabric = Fabric::new(settings(true)).expect("a fabric");
    say("ready");
    let mut taken = Vec::new();
    for order in std::io::stdin().lock().lines().map_while(Result::ok) {
        match order.as_str() {
            "address" => say(&fabric.address().to_string()),
            "run short" => {
                let all = getrlimit(Resource::Nofile);
                let few = Rlimit {
                    current: Some(FEW),
                    ..all
                };
                setrlimit(Resource::Nofile, few).expect("a lower limit");
                taken.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
                say("short");
            }
            "tell" => {
                until("the shortage", || fabric.shortage().is_some());
                let why = fabric.shortage().and_then(|error| error.raw_os_error());
                let (before, began) = (spent(), Instant::now());
                let error = fabric.accept(2 * BRIEF).expect_err("nobody gets in");
                let busy = (spent() - before).as_secs_f64() / began.elapsed().as_secs_f64();
                let is_short = why == Some(libc::EMFILE);
                say(&format!("{} {is_short} {}", error.code(), busy < 0.5));
            }
            "recover" => {
                taken.clear();
                until("the end of the shortage", || fabric.shortage().is_none());
                say("roomy");
            }
            "accept" => match fabric.accept(SOON) {
                Ok(_) => say("accepted"),
                Err(error) => say(error.code()),
            },
            other => panic!("nobody knows how to {other}"),
        }
    }
}

#[test]
fn given_no_descriptors_left_it_is_said_nothing_spins_and_those_who_come_later_are_let_in() {
    let mut short = Host::start("runs_short_when_it_is_told", "west", &[]).expect("a process");
    let address = short.ask("address", SOON);
    let here = Fabric::new(settings(false)).expect("a fabric");
    let connect = |time| here.connect(address.as_str(), Options::within(time));
    let early = connect(SOON).expect("let in");
    assert_eq!(short.ask("accept", SOON), "accepted");
    for _ in 0..2 {
        assert_eq!(short.ask("run short", SOON), "short");
        short.order("tell");
        // Somebody wants to come in all the time.
        while let Err(error) = connect(BRIEF) {
            assert_eq!(error.code(), "deadline-exceeded", "{error}");
            if let Some(told) = short.hear(Duration::from_millis(1)) {
                assert_eq!(told, "cannot-accept true true");
                break;
            }
        }
        assert_eq!(short.ask("recover", SOON), "roomy");
        let late = connect(SOON).expect("let in again");
        assert_eq!(short.ask("accept", SOON), "accepted");
        assert!(early.lost().is_none(), "who was there before stays");
        late.close();
    }
}
