//! Copies out of a store of objects: by signed ranges of one version, several at a time, resumable, and with a
//! receipt that says what HTTP costs.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crowfly_mover::objects::{Credentials, StoreSettings};
use crowfly_mover::service::{Asked, Auth, Copied, Copy, Doing, End, ServiceError, Side};
use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};

#[path = "service_support/stage.rs"]
mod stage;
#[path = "service_support/store.rs"]
mod store;

use stage::{Stage, asked, copy, pattern};
use store::{Mood, Store};

const LEN: usize = 21 * (1 << 20) + 12_345;

fn object(text: &str) -> Side {
    Side::Object(text.parse().expect("an object"))
}

fn wanted(store: &Store, from: &str, to: Side) -> Asked {
    Asked {
        store: store.settings(),
        ..asked(object(from), to, true, Auth::Open)
    }
}

fn down(store: &Store, from: &str, to: Side) -> Result<Copied, ServiceError> {
    copy(wanted(store, from, to))
}

fn code(result: Result<Copied, ServiceError>) -> &'static str {
    result.map(drop).expect_err("refused").code()
}

#[test]
fn given_an_object_it_arrives_whole_by_ranges_together_and_the_receipt_says_what_http_costs() {
    let store = Store::start();
    let here = tempfile::tempdir().expect("a folder");
    let bytes = pattern(LEN, 1);
    store.put("models/a b/mü.bin", &bytes, "v1");
    let copied = down(
        &store,
        "s3://models/a b/mü.bin",
        Side::File(here.path().into()),
    );
    let copied = copied.unwrap_or_else(|error| panic!("{error}: {:?}", store.complaint()));
    assert!(fs::read(here.path().join("mü.bin")).expect("there") == bytes);
    assert_eq!(
        store.sent.load(Ordering::SeqCst),
        6,
        "one request for each part"
    );
    assert!(
        store.together.load(Ordering::SeqCst) > 1,
        "several at a time"
    );
    let told = copied
        .legs
        .iter()
        .map(|leg| (leg.doing, leg.end, leg.bytes().0));
    let all = LEN as u64;
    let legs = [
        (Doing::Crossing, End::Here, all),
        (Doing::Writing, End::Here, all),
    ];
    assert_eq!(told.collect::<Vec<_>>(), legs);
    let receipt = &copied.receipt;
    assert!(receipt.is_whole());
    let share = &receipt.shares[0];
    assert_eq!((share.path, share.class), (Path::Tcp, Class::Socket));
    assert!(
        receipt.route.counters().cpu_touches >= 2,
        "{:?}",
        receipt.route
    );
    assert!(receipt.cpu.total() > 0.0);
    assert_eq!(receipt.obstacles[0].code.as_str(), "object-store");
    assert!(matches!(
        receipt.verification,
        Verification::Computed { .. }
    ));
}

#[test]
fn given_an_object_and_a_server_it_goes_through_this_process_to_there() {
    let store = Store::start();
    let stage = Stage::new(true);
    let bytes = pattern(LEN, 2);
    store.put("b/m", &bytes, "v1");
    let mut want = stage.asked(object("s3://b/m"), stage.at("inbox/m"));
    want.store = store.settings();
    let copied = copy(want).expect("copied");
    assert!(fs::read(stage.folder.path().join("m")).expect("there") == bytes);
    let told = copied.legs.iter().filter(|leg| leg.bytes().0 > 0);
    let told: Vec<Doing> = told.map(|leg| leg.doing).collect();
    assert_eq!(told, [Doing::Crossing, Doing::Onward, Doing::Writing]);
    assert!(matches!(
        copied.receipt.verification,
        Verification::Agreed { .. }
    ));
}

#[test]
fn given_a_store_that_is_busy_or_cuts_connections_it_is_asked_again_and_the_receipt_counts_it() {
    let store = Store::start();
    let bytes = pattern(LEN, 3);
    store.put("b/m", &bytes, "v1");
    let here = tempfile::tempdir().expect("a folder");
    for mood in [Mood::Busy(2), Mood::Cuts(2)] {
        store.is(mood);
        let to = here.path().join("m");
        let copied = down(&store, "s3://b/m", Side::File(to.clone())).expect("in the end");
        assert_eq!(copied.receipt.retries, 2, "{mood:?}");
        assert!(fs::read(to).expect("there") == bytes);
    }
    store.is(Mood::Busy(100));
    assert_eq!(code(down(&store, "s3://b/m", Side::Host)), "store-busy");
}

#[test]
fn given_an_interruption_the_copy_goes_on_with_the_same_version_alone() {
    let store = Store::start();
    let bytes = pattern(96 << 20, 4);
    store.put("b/m", &bytes, "v1");
    let here = tempfile::tempdir().expect("a folder");
    let to = here.path().join("m");
    let mut want = wanted(&store, "s3://b/m", Side::File(to.clone()));
    want.resume = true;
    store.is(Mood::Holds(4));
    let begun = Copy::start(want.clone()).expect("started");
    while begun.moved().0 < 12 << 20 {
        assert!(!begun.is_finished(), "{:?}", begun.wait().map(drop));
        std::thread::sleep(Duration::from_micros(200));
    }
    begun.cancel();
    store.is(Mood::Well);
    assert_eq!(code(begun.wait()), "cancelled");
    store.put("b/m", &bytes, "v2");
    assert_eq!(code(copy(want.clone())), "source-changed");
    store.put("b/m", &bytes, "v1");
    let copied = copy(want).expect("goes on");
    assert!(copied.resumed.0 >= 8 << 20, "{} were kept", copied.resumed);
    assert!(fs::read(to).expect("there") == bytes);
}

#[test]
fn given_a_version_that_changes_in_the_middle_nothing_appears() {
    let store = Store::start();
    store.put("b/m", &pattern(LEN, 5), "v1");
    store.is(Mood::Changes(3));
    let here = tempfile::tempdir().expect("a folder");
    let to = Side::File(here.path().join("m"));
    assert_eq!(code(down(&store, "s3://b/m", to)), "object-changed");
    assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), 0);
}

#[test]
fn given_what_cannot_be_read_each_has_its_code_and_nothing_appears() {
    let store = Store::start();
    store.put("b/m", &pattern(100_000, 7), "v1");
    let here = tempfile::tempdir().expect("a folder");
    let to = || Side::File(here.path().join("m"));
    assert_eq!(code(down(&store, "s3://b/none", to())), "object-not-found");
    assert_eq!(code(down(&store, "s3://none/m", to())), "bucket-not-found");
    assert_eq!(code(down(&store, "s3://b/", to())), "not-copied");
    let with = |change: &dyn Fn(&mut StoreSettings)| {
        let mut want = wanted(&store, "s3://b/m", to());
        change(&mut want.store);
        code(copy(want))
    };
    let key = |secret: &str| {
        Some(Credentials {
            access_key: "someone".into(),
            secret_key: secret.into(),
            session_token: None,
            expires: None,
        })
    };
    assert_eq!(
        with(&|store| store.credentials = key("a guess")),
        "object-denied"
    );
    assert_eq!(with(&|store| store.credentials = None), "object-denied");
    assert_eq!(
        with(&|store| store.region = Some("elsewhere".into())),
        "object-denied"
    );
    assert_eq!(
        with(&|store| store.endpoint = Some("nowhere".into())),
        "bad-endpoint"
    );
    let nobody = Some("http://127.0.0.1:1".to_owned());
    assert_eq!(
        with(&|store| store.endpoint = nobody.clone()),
        "store-unreachable"
    );
    store.is(Mood::Deaf);
    assert_eq!(code(down(&store, "s3://b/m", to())), "store-answer");
    store.is(Mood::Well);
    let mut want = wanted(&store, "s3://b/m", to());
    want.policy = Policy::Require;
    assert_eq!(code(copy(want.clone())), "route-refused");
    want.policy = Policy::Prefer;
    want.preserve = true;
    assert_eq!(code(copy(want.clone())), "not-copied");
    (want.preserve, want.replace) = (false, false);
    assert_eq!(code(copy(want)), "not-copied");
    let up = wanted(&store, "s3://b/m", object("s3://b/m"));
    assert_eq!(code(copy(up)), "not-copied");
    assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), 0);
}

#[test]
fn given_an_empty_object_an_empty_file_appears() {
    let store = Store::start();
    store.put("b/empty", b"", "v1");
    let here = tempfile::tempdir().expect("a folder");
    let to = here.path().join("m");
    down(&store, "s3://b/empty", Side::File(to.clone())).expect("copied");
    assert_eq!(fs::metadata(to).expect("there").len(), 0);
}

#[test]
fn given_a_prefix_all_below_it_comes_in_the_folders_that_the_names_tell_of() {
    let store = Store::start();
    store.lists(2);
    let names = ["a/b/c", "a/b/d e+f", "a/empty/", "z&<", "ü%20"];
    for name in names {
        let bytes: &[u8] = if name.ends_with('/') {
            b""
        } else {
            name.as_bytes()
        };
        store.put(&format!("b/p/{name}"), bytes, "v1");
    }
    store.put("b/pq", b"beside it", "v1");
    let here = tempfile::tempdir().expect("a folder");
    for prefix in ["s3://b/p", "s3://b/p/"] {
        let to = here.path().join("to");
        let mut want = wanted(&store, prefix, Side::File(to.clone()));
        want.recursive = true;
        let copied = copy(want).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((copied.files, copied.folders), (4, 4));
        for name in names.iter().filter(|name| !name.ends_with('/')) {
            assert_eq!(fs::read(to.join(name)).expect("there"), name.as_bytes());
        }
        assert!(to.join("a/empty").is_dir());
        fs::remove_dir_all(to).expect("removed");
    }
    let mut want = wanted(&store, "s3://b/p", Side::Host);
    want.recursive = true;
    assert_eq!(copy(want.clone()).expect("read").files, 4);
    want.from = object("s3://b/none");
    assert_eq!(code(copy(want.clone())), "object-not-found");
    (want.from, want.to) = (object("s3://b"), Side::File(here.path().join("all")));
    assert_eq!(copy(want).expect("all of the bucket").files, 5);
}

#[test]
fn given_names_that_lead_out_or_clash_nothing_is_copied() {
    let here = tempfile::tempdir().expect("a folder");
    for names in [
        ["../out", "x"],
        ["a", "a/b"],
        ["a//b", "x"],
        ["/etc/x", "x"],
    ] {
        let store = Store::start();
        for name in names {
            store.put(&format!("b/{name}"), b"bytes", "v1");
        }
        let mut want = wanted(&store, "s3://b", Side::File(here.path().join("to")));
        want.recursive = true;
        assert_eq!(code(copy(want)), "object-name", "{names:?}");
    }
    assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), 0);
}

#[test]
fn given_a_listing_that_does_not_end_it_is_told_of() {
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    store.is(Mood::Endless);
    let mut want = wanted(&store, "s3://b", Side::Host);
    want.recursive = true;
    assert_eq!(code(copy(want)), "store-answer");
}

#[test]
fn given_a_store_of_another_region_or_time_the_error_says_so() {
    let store = Store::start();
    store.put("b/m", b"bytes", "v1");
    let said = |mood| {
        store.is(mood);
        let error = down(&store, "s3://b/m", Side::Host)
            .map(drop)
            .expect_err("refused");
        (error.code(), error.to_string())
    };
    let (code, text) = said(Mood::Elsewhere);
    assert_eq!(code, "wrong-region");
    assert!(text.contains("eu-test-1 but in eu-other-2"), "{text}");
    let (code, text) = said(Mood::Yesterday);
    assert_eq!(code, "clock-skew");
    assert!(text.contains("ahead of that of"), "{text}");
}
