//! Copies into a store of objects: in parts, checked, resumable, and with nothing left of what is not finished.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crowfly_mover::service::{Asked, Auth, Copied, Copy, Doing, End, ServiceError, Side};
use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use tempfile::TempDir;

#[path = "service_support/stage.rs"]
mod stage;
#[path = "service_support/store.rs"]
mod store;

use stage::{SOON, Stage, asked, copy, pattern};
use store::{Mood, Store};

const MIB: usize = 1 << 20;
/// Three parts, the last of them short.
const LEN: usize = 21 * MIB + 12_345;

/// A store with a bucket, and a folder of files.
struct Ground {
    store: Store,
    here: TempDir,
}

impl Ground {
    fn new() -> Self {
        let store = Store::start();
        store.bucket("b");
        Self {
            store,
            here: tempfile::tempdir().expect("a folder"),
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.here.path().join(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    fn wanted(&self, from: &str, to: &str) -> Asked {
        Asked {
            store: self.store.settings(),
            ..asked(
                Side::File(self.here.path().join(from)),
                object(to),
                true,
                Auth::Open,
            )
        }
    }

    fn up(&self, from: &str, to: &str) -> Result<Copied, ServiceError> {
        copy(self.wanted(from, to))
    }
}

fn object(text: &str) -> Side {
    Side::Object(text.parse().expect("an object"))
}

fn code(result: Result<Copied, ServiceError>) -> &'static str {
    result.map(drop).expect_err("refused").code()
}

fn settled<T: std::fmt::Debug>(result: Result<T, ServiceError>, store: &Store) -> T {
    result.unwrap_or_else(|error| panic!("{error}: {:?}", store.complaint()))
}

#[test]
fn given_a_file_it_arrives_whole_in_parts_together_and_the_store_confirms_it() {
    let ground = Ground::new();
    let bytes = pattern(LEN, 1);
    ground.file("m", &bytes);
    let copied = settled(ground.up("m", "s3://b/a b/m\u{fc}.bin"), &ground.store);
    assert!(ground.store.get("b/a b/m\u{fc}.bin").expect("there") == bytes);
    assert!(ground.store.begun().is_empty());
    assert!(
        ground.store.together.load(Ordering::SeqCst) > 1,
        "several at a time"
    );
    let writes = ground.store.writes();
    let of = |what: &str| writes.iter().filter(|line| line.contains(what)).count();
    assert_eq!(
        (of("?uploads="), of("partNumber="), writes.len()),
        (1, 3, 5)
    );
    let all = LEN as u64;
    let told = copied.legs.iter();
    let told: Vec<_> = told
        .map(|leg| (leg.doing, leg.end, leg.bytes().0))
        .collect();
    let legs = [
        (Doing::Reading, End::Here, all),
        (Doing::Crossing, End::Here, all),
    ];
    assert_eq!(told, legs);
    let receipt = &copied.receipt;
    assert!(receipt.is_whole() && receipt.cpu.total() > 0.0);
    let share = &receipt.shares[0];
    assert_eq!((share.path, share.class), (Path::Tcp, Class::Socket));
    assert_eq!(
        receipt.obstacles.last().expect("one").code.as_str(),
        "object-store"
    );
    assert!(matches!(receipt.verification, Verification::Agreed { .. }));
}

#[test]
fn given_small_and_empty_files_each_is_one_request_also_below_a_prefix() {
    let ground = Ground::new();
    let bytes = pattern(8 * MIB, 2);
    ground.file("m", &bytes);
    ground.file("none", b"");
    settled(ground.up("m", "s3://b/dir/"), &ground.store);
    settled(ground.up("none", "s3://b"), &ground.store);
    assert!(ground.store.get("b/dir/m").expect("there") == bytes);
    assert_eq!(ground.store.get("b/none"), Some(Vec::new()));
    assert_eq!(ground.store.writes(), ["PUT /b/dir/m", "PUT /b/none"]);
}

#[test]
fn given_what_a_server_has_it_goes_through_this_process_into_the_store() {
    let ground = Ground::new();
    let stage = Stage::new(true);
    let bytes = pattern(LEN, 3);
    stage.put("m", &bytes);
    let mut want = stage.asked(stage.at("data/m"), object("s3://b/m"));
    want.store = ground.store.settings();
    let copied = settled(copy(want), &ground.store);
    assert!(ground.store.get("b/m").expect("there") == bytes);
    let told = copied.legs.iter().filter(|leg| leg.bytes().0 > 0);
    let told: Vec<Doing> = told.map(|leg| leg.doing).collect();
    assert_eq!(told, [Doing::Reading, Doing::Crossing, Doing::Onward]);
    assert!(copied.receipt.is_whole());
    assert!(matches!(
        copied.receipt.verification,
        Verification::Agreed { .. }
    ));
}

#[test]
fn given_a_store_that_is_busy_or_cuts_connections_it_is_asked_again_and_the_receipt_counts_it() {
    let ground = Ground::new();
    let bytes = pattern(LEN, 4);
    ground.file("m", &bytes);
    for mood in [Mood::Busy(2), Mood::Cuts(2)] {
        ground.store.is(mood);
        let copied = settled(ground.up("m", "s3://b/m"), &ground.store);
        assert_eq!(copied.receipt.retries, 2, "{mood:?}");
        assert!(ground.store.get("b/m").expect("there") == bytes);
    }
    ground.store.is(Mood::Busy(1000));
    assert_eq!(code(ground.up("m", "s3://b/m")), "store-busy");
    assert!(ground.store.begun().is_empty(), "nothing is left");
}

#[test]
fn given_bytes_that_change_on_their_way_the_store_refuses_them_and_nothing_is_left() {
    let ground = Ground::new();
    ground.file("m", &pattern(LEN, 5));
    ground.file("small", &pattern(1000, 5));
    ground.store.is(Mood::Flips);
    for name in ["m", "small"] {
        assert_eq!(code(ground.up(name, "s3://b/m")), "data-differs");
    }
    assert!(ground.store.names().is_empty() && ground.store.begun().is_empty());
    let mut want = ground.wanted("small", "s3://b/m");
    want.verify = false;
    let copied = settled(copy(want), &ground.store);
    assert_eq!(copied.receipt.verification, Verification::NotAsked);
}

/// A copy of which three parts are there, and no more will be until the store is in another mood.
fn begun(ground: &Ground, want: &Asked) -> Copy {
    ground.store.is(Mood::Holds(3));
    let begun = Copy::start(want.clone()).expect("started");
    while begun.moved().0 < 24 << 20 {
        assert!(!begun.is_finished(), "{:?}", begun.wait().map(drop));
        std::thread::sleep(Duration::from_micros(200));
    }
    begun
}

/// Copies until three parts of it are there, and cancels.
fn begin(ground: &Ground, want: &Asked) {
    let begun = begun(ground, want);
    begun.cancel();
    // Parts that were still on their way to the store are not taken either.
    ground.store.is(Mood::Full);
    assert_eq!(code(begun.wait()), "cancelled");
    ground.store.rests();
    assert!(ground.store.get("b/m").is_none(), "nothing appears");
    ground.store.is(Mood::Well);
}

#[test]
fn given_an_interruption_nothing_is_left_at_the_store() {
    let ground = Ground::new();
    ground.file("m", &pattern(48 * MIB, 6));
    begin(&ground, &ground.wanted("m", "s3://b/m"));
    assert!(ground.store.begun().is_empty());
    let writes = ground.store.writes();
    let ended = |line: &String| line.starts_with("DELETE /b/m?uploadId=");
    let end = writes.iter().position(ended).expect("it is ended");
    // A part that was sent before that may reach the store's own threads after it, and is refused.
    let late = |line: &String| line.contains("partNumber=");
    assert!(writes[end + 1..].iter().all(late), "{writes:?}");
}

#[test]
fn given_an_interruption_the_copy_goes_on_with_the_parts_that_are_still_right() {
    for old in [false, true] {
        let ground = Ground::new();
        if old {
            ground.store.is_old();
        }
        ground.store.lists(2);
        let mut bytes = pattern(48 * MIB, 7);
        ground.file("m", &bytes);
        let mut want = ground.wanted("m", "s3://b/m");
        want.resume = true;
        begin(&ground, &want);
        assert_eq!(ground.store.begun(), [3], "these are left");
        ground.store.writes();
        // A file that changed meanwhile: its first part is another.
        bytes[5] ^= 1;
        ground.file("m", &bytes);
        let copied = settled(copy(want), &ground.store);
        let sent = ground.store.writes();
        let sent = sent
            .iter()
            .filter(|line| line.contains("partNumber"))
            .count();
        // It may have been among the three, or not.
        let right = copied.resumed.0 / (8 << 20);
        assert!((2..=3).contains(&right), "{right} parts were right");
        assert_eq!(sent as u64, 6 - right, "old: {old}");
        assert!(ground.store.get("b/m").expect("there") == bytes);
        assert!(ground.store.begun().is_empty() && copied.receipt.is_whole());
        let agreed = matches!(copied.receipt.verification, Verification::Agreed { .. });
        assert_eq!(agreed, !old, "an old store confirms nothing");
    }
}

#[test]
fn given_all_parts_are_there_already_nothing_is_sent_again() {
    let ground = Ground::new();
    let bytes = pattern(LEN, 8);
    ground.file("m", &bytes);
    let mut want = ground.wanted("m", "s3://b/m");
    want.resume = true;
    ground.store.is(Mood::Late(1000));
    assert_eq!(code(copy(want.clone())), "store-busy");
    assert_eq!(ground.store.begun(), [3]);
    ground.store.is(Mood::Well);
    let copied = settled(copy(want), &ground.store);
    assert_eq!(
        (copied.resumed.0, copied.receipt.requested.0),
        (LEN as u64, 0)
    );
    assert!(copied.receipt.is_whole() && copied.receipt.shares.is_empty());
    assert!(ground.store.get("b/m").expect("there") == bytes);
}

#[test]
fn given_something_that_must_not_be_replaced_it_stays() {
    let ground = Ground::new();
    let (small, large) = (pattern(1000, 9), pattern(LEN, 9));
    ground.file("small", &small);
    ground.file("large", &large);
    ground.store.put("b/m", b"what was there", "v1");
    for name in ["small", "large"] {
        let mut want = ground.wanted(name, "s3://b/m");
        want.replace = false;
        assert_eq!(code(copy(want)), "object-exists");
    }
    assert!(ground.store.writes().is_empty(), "nothing was sent");
    assert_eq!(ground.store.get("b/m").expect("there"), b"what was there");
    // It comes while the copy is under way.
    ground.file("m", &pattern(32 * MIB, 9));
    let mut want = ground.wanted("m", "s3://b/new");
    want.replace = false;
    let begun = begun(&ground, &want);
    ground.store.put("b/new", b"someone else's", "v1");
    ground.store.is(Mood::Well);
    assert_eq!(code(begun.wait()), "object-exists");
    assert_eq!(ground.store.get("b/new").expect("there"), b"someone else's");
    assert!(ground.store.begun().is_empty());
    settled(ground.up("small", "s3://b/m"), &ground.store);
    assert_eq!(
        ground.store.get("b/m").expect("there"),
        small,
        "replaced when it may be"
    );
}

#[test]
fn given_an_answer_that_is_lost_what_is_there_is_known_as_ones_own() {
    for old in [false, true] {
        let ground = Ground::new();
        if old {
            ground.store.is_old();
        }
        for len in [1000, LEN] {
            let bytes = pattern(len, 10);
            ground.file("m", &bytes);
            let mut want = ground.wanted("m", "s3://b/m");
            // Without this the second try would just write it once more.
            want.replace = old;
            ground.store.is(Mood::Mute(1));
            settled(copy(want), &ground.store);
            assert!(ground.store.get("b/m").expect("there") == bytes);
            assert!(ground.store.begun().is_empty());
            ground.store.remove("b/m");
        }
    }
}

#[test]
fn given_a_store_that_finds_out_late_that_it_failed_it_is_asked_again() {
    let ground = Ground::new();
    let bytes = pattern(LEN, 11);
    ground.file("m", &bytes);
    ground.store.is(Mood::Late(2));
    settled(ground.up("m", "s3://b/m"), &ground.store);
    assert!(ground.store.get("b/m").expect("there") == bytes);
    ground.store.is(Mood::Late(1000));
    assert_eq!(code(ground.up("m", "s3://b/n")), "store-busy");
    assert!(ground.store.get("b/n").is_none() && ground.store.begun().is_empty());
}

#[test]
fn given_what_cannot_be_written_each_has_its_code_and_nothing_is_left() {
    let ground = Ground::new();
    ground.file("m", &pattern(LEN, 12));
    ground.file("small", &pattern(1000, 12));
    for name in ["m", "small"] {
        assert_eq!(code(ground.up(name, "s3://none/m")), "bucket-not-found");
        for (mood, expected) in [
            (Mood::ReadOnly, "object-denied"),
            (Mood::Elsewhere, "wrong-region"),
            (Mood::Yesterday, "clock-skew"),
        ] {
            ground.store.is(mood);
            assert_eq!(code(ground.up(name, "s3://b/m")), expected);
            ground.store.is(Mood::Well);
        }
    }
    assert_eq!(code(ground.up("none", "s3://b/m")), "open-failed");
    let mut want = ground.wanted("m", "s3://b/m");
    want.policy = Policy::Require;
    assert_eq!(code(copy(want.clone())), "route-refused");
    (want.policy, want.preserve) = (Policy::Prefer, true);
    assert_eq!(code(copy(want.clone())), "not-copied");
    (want.preserve, want.from) = (false, Side::Host);
    assert_eq!(code(copy(want)), "not-copied");
    assert!(ground.store.names().is_empty() && ground.store.begun().is_empty());
}

#[test]
fn given_a_store_that_falls_silent_the_copy_ends_at_its_deadline_whichever_way_the_bytes_go() {
    let ground = Ground::new();
    ground.file("m", &pattern(1000, 13));
    ground.store.put("b/there", &pattern(100_000, 8), "v1");
    ground.store.is(Mood::Silent);
    let up = ground.wanted("m", "s3://b/m");
    let down = Asked {
        from: object("s3://b/there"),
        to: Side::Host,
        ..up.clone()
    };
    let within = Asked {
        from: object("s3://b/there"),
        ..up.clone()
    };
    for mut want in [up, down, within] {
        want.timeout = Some(Duration::from_millis(700));
        let began = Instant::now();
        assert_eq!(code(copy(want)), "deadline-exceeded");
        assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    }
}

#[test]
fn given_a_folder_all_files_below_it_become_objects_below_the_prefix_and_come_back() {
    let ground = Ground::new();
    let names = ["f/a", "f/d/b c", "f/d/e/\u{fc}", "f/empty"];
    for (index, name) in names.iter().enumerate() {
        ground.file(name, &pattern(index * 4 * MIB, 14));
    }
    fs::create_dir(ground.here.path().join("f/no files")).expect("made");
    let mut want = ground.wanted("f", "s3://b/p");
    assert_eq!(code(copy(want.clone())), "not-copied");
    want.recursive = true;
    let copied = settled(copy(want.clone()), &ground.store);
    assert_eq!((copied.files, copied.folders), (4, 0));
    let expected = ["b/p/a", "b/p/d/b c", "b/p/d/e/\u{fc}", "b/p/empty"];
    assert_eq!(ground.store.names(), expected);
    let back = Side::File(ground.here.path().join("back"));
    (want.from, want.to) = (want.to, back);
    assert_eq!(settled(copy(want.clone()), &ground.store).files, 4);
    for name in names {
        let read = |path: PathBuf| fs::read(path).expect("there");
        let back = name.replacen('f', "back", 1);
        assert!(read(ground.here.path().join(name)) == read(ground.here.path().join(back)));
    }
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"f/\xff");
    fs::write(ground.here.path().join(odd), b"x").expect("written");
    let mut want = ground.wanted("f", "s3://b/q");
    want.recursive = true;
    assert_eq!(code(copy(want)), "object-name");
    assert_eq!(ground.store.names(), expected, "nothing was sent");
}
