//! Copies from object to object: by the store itself where it is one, and through this process otherwise.

use crowfly_mover::objects::StoreSettings;
use crowfly_mover::service::{Asked, Auth, Copied, Doing, End, ServiceError, Side};
use crowfly_route::hop::Class;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use crowfly_route::units::Bytes;

#[path = "service_support/stage.rs"]
mod stage;
#[path = "service_support/store.rs"]
mod store;

use stage::{asked, copy, pattern};
use store::{Mood, Store};

const MIB: usize = 1 << 20;
/// Four parts of this length, the last of them short.
const UNIT: usize = 6 * MIB;
const LEN: usize = 3 * UNIT + 12_345;

fn wanted(store: &Store, from: &str, to: &str) -> Asked {
    let side = |url: &str| Side::Object(url.parse().expect("an object"));
    Asked {
        store: store.settings(),
        ..asked(side(from), side(to), true, Auth::Open)
    }
}

fn settled(result: Result<Copied, ServiceError>, store: &Store) -> Copied {
    result.unwrap_or_else(|error| panic!("{error}: {:?}", store.complaint()))
}

fn code(result: Result<Copied, ServiceError>) -> &'static str {
    result.map(drop).expect_err("refused").code()
}

fn count(writes: &[String], what: &str) -> usize {
    writes.iter().filter(|line| line.contains(what)).count()
}

fn moving(copied: &Copied) -> Vec<(Doing, End, u64)> {
    let moving = copied.legs.iter().filter(|leg| leg.bytes() > Bytes(0));
    let told = moving.map(|leg| (leg.doing, leg.end, leg.bytes().0));
    told.collect()
}

#[test]
fn given_one_store_it_copies_by_itself_and_the_receipt_says_that_nothing_passed_here() {
    for (unit, requests) in [(None, 1), (Some(UNIT), 6)] {
        let store = Store::start();
        let bytes = pattern(LEN, 1);
        store.put_written("b/a b/m\u{fc}", &bytes, unit);
        store.bucket("c");
        let want = wanted(&store, "s3://b/a b/m\u{fc}", "s3://c/n");
        let copied = settled(copy(want), &store);
        assert!(store.get("c/n").expect("there") == bytes);
        assert_eq!(store.tag("c/n"), store.tag("b/a b/m\u{fc}"), "{unit:?}");
        assert_eq!(store.besides("c/n"), store.besides("b/a b/m\u{fc}"));
        assert_eq!(store.writes().len(), requests, "{unit:?}");
        let all = LEN as u64;
        assert_eq!(moving(&copied), [(Doing::Within, End::There, all)]);
        let receipt = &copied.receipt;
        assert!(receipt.is_whole() && receipt.requested == Bytes(all));
        assert_eq!(receipt.bounced, Bytes(0));
        let share = &receipt.shares[0];
        assert_eq!((share.path, share.class), (Path::Store, Class::Staged));
        assert_eq!(receipt.route.class(), Class::Staged);
        let because = share.because.as_deref().expect("why");
        assert!(because.contains("none passed this process"), "{because}");
        let tag = store.tag("c/n").expect("there");
        let expected = Verification::Agreed {
            algorithm: "etag".into(),
            checksum: tag.trim_matches('"').into(),
        };
        assert_eq!(receipt.verification, expected);
    }
}

#[test]
fn given_two_stores_or_two_keys_the_bytes_come_through_here_and_that_is_said() {
    let (one, other) = (Store::start(), Store::start());
    let bytes = pattern(LEN, 2);
    one.put_written("b/m", &bytes, None);
    other.bucket("c");
    let mut want = wanted(&one, "s3://b/m", "s3://c/n");
    want.goal_store = Some(other.settings());
    let copied = settled(copy(want.clone()), &other);
    assert!(other.get("c/n").expect("there") == bytes);
    assert_eq!(other.besides("c/n"), one.besides("b/m"));
    let all = LEN as u64;
    let through = [
        (Doing::Crossing, End::Here, all),
        (Doing::Onward, End::Here, all),
    ];
    assert_eq!(moving(&copied), through);
    let receipt = &copied.receipt;
    assert!(receipt.is_whole() && receipt.bounced == Bytes(all));
    assert_eq!(receipt.shares[0].class, Class::Socket);
    let why = |copied: &Copied| {
        let onward = copied.legs.iter().find(|leg| leg.doing == Doing::Onward);
        onward.expect("a leg").shares[0]
            .because
            .clone()
            .expect("why")
    };
    assert!(why(&copied).contains("another store"), "{}", why(&copied));
    assert!(matches!(receipt.verification, Verification::Agreed { .. }));
    // The one store, once more by a socket because that is asked for.
    one.bucket("c");
    (want.goal_store, want.policy) = (None, Policy::Socket);
    let copied = settled(copy(want), &one);
    assert_eq!(moving(&copied), through);
    assert!(why(&copied).contains("policy socket"), "{}", why(&copied));
    assert!(one.get("c/n").expect("there") == bytes);
}

#[test]
fn given_objects_below_a_prefix_all_are_copied_also_those_that_could_be_no_files() {
    let store = Store::start();
    let names = ["b/p/a", "b/p/a/b", "b/p/d//e", "b/p/empty", "b/p/folder/"];
    for (index, name) in names.iter().enumerate() {
        let bytes = pattern(index % 3 * 1000, 3);
        store.put_written(name, &bytes, None);
    }
    store.put_written("b/pq", b"not below", None);
    store.lists(2);
    let mut want = wanted(&store, "s3://b/p", "s3://b/q");
    assert_eq!(code(copy(want.clone())), "object-not-found");
    want.recursive = true;
    let copied = settled(copy(want.clone()), &store);
    assert_eq!((copied.files, copied.folders), (5, 0));
    for name in names {
        let there = name.replacen("/p", "/q", 1);
        assert_eq!(store.get(&there), store.get(name), "{there}");
    }
    assert!(store.get("b/qq").is_none());
    assert!(copied.receipt.is_whole());
    let agreed = matches!(copied.receipt.verification, Verification::Agreed { .. });
    assert!(agreed, "{:?}", copied.receipt.verification);
    store.put_written("b/p/../x", b"resolved by proxies", None);
    assert_eq!(code(copy(want)), "object-name");
}

#[test]
fn given_an_interruption_the_parts_that_are_there_are_gone_on_with_if_they_are_the_sources() {
    let bytes = pattern(LEN, 4);
    for changed in [false, true] {
        let store = Store::start();
        store.put_written("b/m", &bytes, Some(UNIT));
        let mut want = wanted(&store, "s3://b/m", "s3://b/n");
        want.resume = true;
        store.is(Mood::Worn(2));
        assert_eq!(code(copy(want.clone())), "store-busy");
        assert_eq!(store.begun(), [2], "these are left");
        assert!(store.get("b/n").is_none(), "nothing appears");
        store.is(Mood::Well);
        store.writes();
        let mut bytes = bytes.clone();
        if changed {
            // A part that is there is another one now.
            bytes.iter_mut().step_by(UNIT).for_each(|byte| *byte ^= 1);
            store.put_written("b/m", &bytes, Some(UNIT));
        }
        let copied = settled(copy(want), &store);
        assert!(store.get("b/n").expect("there") == bytes);
        let parts = count(&store.writes(), "partNumber=");
        assert_eq!(parts, if changed { 4 } else { 2 });
        assert!(store.begun().is_empty() && copied.receipt.is_whole());
        let agreed = matches!(copied.receipt.verification, Verification::Agreed { .. });
        assert!(agreed, "{:?}", copied.receipt.verification);
    }
    let store = Store::start();
    store.put_written("b/m", &bytes, Some(UNIT));
    store.is(Mood::Worn(2));
    assert_eq!(
        code(copy(wanted(&store, "s3://b/m", "s3://b/n"))),
        "store-busy"
    );
    assert!(store.begun().is_empty(), "without --resume nothing is left");
}

#[test]
fn given_what_must_not_be_replaced_it_stays_also_where_it_comes_late() {
    let store = Store::start();
    store.put_written("b/m", &pattern(1000, 5), None);
    store.put("b/n", b"what was there", "v1");
    let mut want = wanted(&store, "s3://b/m", "s3://b/n");
    want.replace = false;
    assert_eq!(code(copy(want.clone())), "object-exists");
    assert_eq!(store.get("b/n").expect("there"), b"what was there");
    assert!(store.writes().is_empty(), "nothing was asked for");
    store.remove("b/n");
    let copied = settled(copy(want), &store);
    // Stores look once more only when they put parts together.
    let writes = store.writes();
    assert_eq!((writes.len(), count(&writes, "partNumber=1")), (3, 1));
    let agreed = matches!(copied.receipt.verification, Verification::Agreed { .. });
    assert!(agreed, "{:?}", copied.receipt.verification);
}

#[test]
fn given_a_store_whose_tags_tell_nothing_the_copy_is_looked_at_and_no_more_is_claimed() {
    let store = Store::start();
    store.put("b/m", &pattern(1000, 6), "a secret of the store's");
    let copied = settled(copy(wanted(&store, "s3://b/m", "s3://b/n")), &store);
    let expected = Verification::Computed {
        algorithm: "etag".into(),
        checksum: store.tag("b/n").expect("there").trim_matches('"').into(),
    };
    assert_eq!(copied.receipt.verification, expected);
}

#[test]
fn given_what_cannot_be_copied_each_has_its_code_and_nothing_is_left() {
    let store = Store::start();
    store.put_written("b/m", &pattern(LEN, 7), Some(UNIT));
    store.put_written("b/small", &pattern(1000, 7), None);
    for name in ["s3://b/m", "s3://b/small"] {
        let to = |to: &str| copy(wanted(&store, name, to));
        assert_eq!(code(to("s3://none/n")), "bucket-not-found");
        assert_eq!(code(to(name)), "not-copied");
        for (mood, expected) in [
            (Mood::Lazy, "store-copies-nothing"),
            (Mood::Flips, "data-differs"),
            (Mood::ReadOnly, "object-denied"),
            (Mood::Worn(0), "store-busy"),
        ] {
            store.is(mood);
            assert_eq!(code(to("s3://b/n")), expected, "{name} {mood:?}");
            store.is(Mood::Well);
            assert!(store.begun().is_empty(), "{name} {mood:?}");
        }
        store.remove("b/n");
    }
    assert_eq!(
        code(copy(wanted(&store, "s3://b/none", "s3://b/n"))),
        "object-not-found"
    );
    let mut want = wanted(&store, "s3://b/m", "s3://b/n");
    want.policy = Policy::Require;
    let error = copy(want.clone()).map(drop).expect_err("refused");
    assert_eq!(error.code(), "route-refused");
    let why = error.obstacles()[0].summary.clone();
    assert!(why.contains("by itself"), "{why}");
    (want.policy, want.preserve) = (Policy::Prefer, true);
    assert_eq!(code(copy(want.clone())), "not-copied");
    let below = |from: &str, to: &str| {
        let mut want = wanted(&store, from, to);
        want.recursive = true;
        code(copy(want))
    };
    assert_eq!(below("s3://b/", "s3://b/x/"), "not-copied");
    assert_eq!(below("s3://b/none/", "s3://b/x/"), "object-not-found");
    (want.preserve, want.store) = (
        false,
        StoreSettings {
            credentials: None,
            ..store.settings()
        },
    );
    assert_eq!(code(copy(want)), "object-denied");
    assert_eq!(store.names(), ["b/m", "b/small"]);
}
