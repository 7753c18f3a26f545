//! Copies from one server to another: through buffers of this process that both reach, with every leg in the
//! receipt.

use std::fs;
use std::time::Duration;

use crowfly_mover::fabric::SharedKey;
use crowfly_mover::service::{Asked, Auth, Copied, Copy, Doing, End, ServiceError, Side};
use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};

#[path = "fabric_support/proxy.rs"]
mod proxy;
#[path = "service_support/stage.rs"]
mod stage;

use proxy::Proxy;
use stage::{Stage, copy, key, pattern};

const LEN: usize = 21 * (1 << 20) + 12_345;

struct Two {
    from: Stage,
    to: Stage,
}

impl Two {
    fn new(shm: bool) -> Self {
        Self {
            from: Stage::new(shm),
            to: Stage::new(shm),
        }
    }

    fn asked(&self, from: &str, to: &str) -> Asked {
        self.from.asked(self.from.at(from), self.to.at(to))
    }

    fn copy(&self, from: &str, to: &str) -> Result<Copied, ServiceError> {
        copy(self.asked(from, to))
    }
}

fn told(copied: &Copied) -> Vec<(Doing, End, u64)> {
    let legs = copied.legs.iter().filter(|leg| leg.bytes().0 > 0);
    legs.map(|leg| (leg.doing, leg.end, leg.bytes().0))
        .collect()
}

#[test]
fn given_two_servers_a_file_goes_from_one_to_the_other_and_the_receipt_tells_all_four_legs() {
    for (shm, path, class) in [
        (true, Path::Shm, Class::Staged),
        (false, Path::Tcp, Class::Socket),
    ] {
        let two = Two::new(shm);
        let bytes = pattern(LEN, 1);
        two.from.put("m", &bytes);
        let copied = two.copy("data/m", "inbox/new/m").expect("copied");
        let there = two.to.folder.path().join("new/m");
        assert!(fs::read(there).expect("there") == bytes);
        let all = LEN as u64;
        let legs = [
            (Doing::Reading, End::There, all),
            (Doing::Crossing, End::There, all),
            (Doing::Onward, End::There, all),
            (Doing::Writing, End::There, all),
        ];
        assert_eq!(told(&copied), legs);
        let receipt = &copied.receipt;
        assert!(receipt.is_whole(), "{:?}", receipt.shares);
        let shares = receipt.shares.iter().map(|share| (share.path, share.class));
        assert_eq!(shares.collect::<Vec<_>>(), [(path, class)]);
        assert_eq!(receipt.route.class(), class);
        assert_eq!(receipt.bounced.0, all);
        assert!(matches!(receipt.verification, Verification::Agreed { .. }));
    }
}

#[test]
fn given_memory_at_either_server_it_is_read_and_written_from_here() {
    for shm in [true, false] {
        let two = Two::new(shm);
        let bytes = pattern(9 << 20, 2);
        two.from.put("m", &bytes);
        two.copy("data/m", "pool").expect("into memory");
        let back = Two {
            from: two.to,
            to: two.from,
        };
        let copied = back.copy("pool", "pool").expect("memory to memory");
        let all = 9 << 20;
        let legs = [
            (Doing::Crossing, End::Here, all),
            (Doing::Onward, End::Here, all),
        ];
        assert_eq!(told(&copied), legs);
        back.to
            .copy(back.to.at("pool"), back.to.at("inbox/out"))
            .expect("out of memory, at one server");
        assert!(fs::read(back.to.folder.path().join("out")).expect("there") == bytes);
    }
}

#[test]
fn given_a_folder_at_one_server_all_of_it_goes_to_the_other() {
    let two = Two::new(true);
    for name in ["tree/a", "tree/b/c", "tree/z"] {
        two.from.put(name, name.as_bytes());
    }
    fs::create_dir(two.from.folder.path().join("tree/empty")).expect("made");
    let mut asked = two.asked("data/tree", "inbox/tree");
    asked.recursive = true;
    asked.preserve = true;
    let copied = copy(asked).expect("copied");
    assert_eq!((copied.files, copied.folders), (3, 3));
    for name in ["tree/a", "tree/b/c", "tree/z"] {
        let there = two.to.folder.path().join(name);
        assert_eq!(fs::read(there).expect("there"), name.as_bytes());
    }
    assert!(two.to.folder.path().join("tree/empty").is_dir());
}

#[test]
fn given_an_interruption_the_next_run_goes_on_unless_the_source_changed() {
    let two = Two::new(false);
    let large = pattern(96 << 20, 3);
    two.from.put("m", &large);
    let mut asked = two.asked("data/m", "inbox/m");
    asked.resume = true;
    let source = asked.from.clone();
    // Too little gets through for it to end before it is cancelled.
    let proxy = Proxy::before(two.from.server.address());
    proxy.stop_after(48 << 20);
    let through = format!("crowfly://{}/data/m", proxy.address);
    asked.from = Side::Served(through.parse().expect("a location"));
    let begun = Copy::start(asked.clone()).expect("started");
    while begun.moved().0 < 12 << 20 {
        assert!(!begun.is_finished(), "{:?}", begun.wait().map(drop));
        std::thread::sleep(Duration::from_micros(200));
    }
    begun.cancel();
    proxy.go_on();
    let error = begun.wait().map(drop).expect_err("cancelled");
    assert_eq!(error.code(), "cancelled");
    asked.from = source;
    let copied = loop {
        match copy(asked.clone()) {
            Ok(copied) => break copied,
            // Until the server has let go of the first.
            Err(error) => assert_eq!(error.code(), "file-busy", "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(copied.resumed.0 >= 8 << 20, "{} were kept", copied.resumed);
    assert!(fs::read(two.to.folder.path().join("m")).expect("there") == large);
}

#[test]
fn given_what_cannot_go_directly_require_fails_before_the_first_byte() {
    let two = Two::new(false);
    two.from.put("m", &pattern(100, 4));
    let mut asked = two.asked("data/m", "inbox/m");
    asked.policy = Policy::Require;
    let error = copy(asked).map(drop).expect_err("tcp is not direct");
    assert_eq!(error.code(), "route-refused", "{error}");
    assert_eq!(
        fs::read_dir(two.to.folder.path())
            .expect("a folder")
            .count(),
        0
    );
}

#[test]
fn given_the_same_place_twice_or_a_place_in_it_nothing_is_copied() {
    let stage = Stage::new(true);
    stage.put("a/m", b"bytes");
    for (from, to) in [
        ("inbox/a", "inbox/a"),
        ("inbox/a", "inbox/a/b/c"),
        ("inbox", "inbox/a"),
    ] {
        let mut asked = stage.asked(stage.at(from), stage.at(to));
        asked.recursive = true;
        let error = copy(asked).map(drop).expect_err("itself");
        assert_eq!(error.code(), "not-copied", "{from} to {to}");
    }
    stage
        .copy(stage.at("data/a/m"), stage.at("inbox/b/m"))
        .expect("beside it, at one server");
}

#[test]
fn given_a_server_that_does_not_know_the_key_it_is_named() {
    let two = Two {
        from: Stage::new(true),
        to: Stage::with(true, Auth::Open, |_| {}),
    };
    two.from.put("m", b"bytes");
    let mut asked = two.asked("data/m", "inbox/m");
    asked.dialing.auth = Auth::Key(key());
    let error = copy(asked).map(drop).expect_err("another key");
    assert_eq!(error.code(), "not-authenticated");
    let address = two.to.server.address().to_string();
    assert!(error.to_string().contains(&address), "{error}");
    assert!(matches!(two.to.at("inbox"), Side::Served(_)));
}

#[test]
fn given_servers_of_two_keys_each_is_shown_its_own_and_no_other() {
    let (one, other) = (SharedKey::derive("one"), SharedKey::derive("another"));
    let auths = [Auth::Key(one), Auth::Key(other), Auth::Open];
    for (from, to) in [(0, 1), (0, 2), (2, 1)] {
        let [from, to] = [&auths[from], &auths[to]];
        let two = Two {
            from: Stage::with(true, from.clone(), |_| {}),
            to: Stage::with(true, to.clone(), |_| {}),
        };
        let bytes = pattern(300_000, 5);
        two.from.put("m", &bytes);
        let asked = |goal_auth: &Auth| {
            let mut asked = two.asked("data/m", "inbox/m");
            asked.dialing.goal_auth = Some(goal_auth.clone());
            asked
        };
        copy(asked(to)).expect("each by its own key");
        let there = two.to.folder.path().join("m");
        assert!(fs::read(there).expect("there") == bytes);
        let error = copy(asked(from)).map(drop).expect_err("the other's key");
        assert_eq!(error.code(), "not-authenticated", "{error}");
    }
}
