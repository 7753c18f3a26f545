//! What is written is what is read, and nothing that is read makes the readers panic.

use std::ffi::OsStr;

use proptest::prelude::*;

use super::*;
use crate::fabric::{Access, Buffer, Fabric, Settings, SharedKey};

fn descriptor() -> Box<RegionDescriptor> {
    let settings = Settings {
        shm: false,
        ..Settings::new(SharedKey::derive("messages"))
    };
    let fabric = Fabric::new(settings).expect("a fabric");
    let buffer = Buffer::zeroed(4096, None).expect("memory");
    let region = fabric.register(buffer, Access::READ).expect("registered");
    Box::new(region.descriptor().clone())
}

fn a_part() -> Part {
    Part {
        file: 7,
        offset: PART * 3,
        len: 99,
        at: PART,
        within_ms: 1_500,
    }
}

fn requests() -> Vec<Request> {
    let name: Name = "models".parse().expect("a name");
    let path: RelativePath = "a/b.bin".parse().expect("a path");
    vec![
        Request::Begin {
            version: VERSION,
            memory: descriptor(),
        },
        Request::Open {
            name: name.clone(),
            path: path.clone(),
            policy: Policy::Require,
        },
        Request::List {
            name: name.clone(),
            path: RelativePath::default(),
            after: OsStr::from_bytes(b"no\xfftext").to_owned(),
            follow: true,
        },
        Request::Read {
            part: a_part(),
            sums: true,
        },
        Request::Create {
            name: name.clone(),
            path: path.clone(),
            size: 1 << 40,
            tag: Tag([3; 16]),
            resume: true,
            remember: false,
            policy: Policy::Socket,
            wanted: Wanted {
                of: Attributes::new(0o750, -1, 999_999_999),
                preserved: true,
            },
        },
        Request::Folder {
            name: name.clone(),
            path: path.clone(),
            wanted: Wanted::default(),
            filled: true,
        },
        Request::Forget {
            name: name.clone(),
            path,
        },
        Request::Write {
            part: a_part(),
            sums: vec![1, u64::MAX],
        },
        Request::Commit { file: 1 },
        Request::Close { file: u32::MAX },
        Request::Sums {
            name,
            offset: 0,
            len: 5,
        },
    ]
}

fn attributes() -> Attributes {
    Attributes::new(0o644, 1 << 40, 5).expect("permissions and a time")
}

fn answers() -> Vec<Answer> {
    let entry = |name: &str, kind| Entry {
        name: name.into(),
        kind,
        size: 17,
        attributes: attributes(),
        id: 3,
    };
    vec![
        Answer::Failed {
            code: "not-found".into(),
            message: "there is no `x`".into(),
        },
        Answer::Begun {
            version: VERSION,
            requests: 16,
        },
        Answer::File {
            file: 1,
            size: 2,
            tag: Tag([4; 16]),
            attributes: None,
        },
        Answer::Folder(attributes()),
        Answer::Made(true),
        Answer::Memory(descriptor()),
        Answer::Entries {
            entries: vec![entry("a", Kind::File), entry("d", Kind::Folder)],
            more: true,
            skipped: 3,
        },
        Answer::Created {
            file: 2,
            have: vec![0..PART, 2 * PART..3 * PART],
        },
        Answer::Sums(vec![7]),
        Answer::Account {
            digest: Some(9),
            legs: "[]".into(),
        },
        Answer::Account {
            digest: None,
            legs: String::new(),
        },
    ]
}

#[test]
fn every_message_reads_back_as_it_was_written() {
    for (number, request) in (1..).zip(requests()) {
        assert_eq!(
            Request::decode(&request.encode(number)),
            Ok((number, request))
        );
    }
    for (number, answer) in (1..).zip(answers()) {
        assert_eq!(Answer::decode(&answer.encode(number)), Ok((number, answer)));
    }
}

#[test]
fn a_message_that_is_cut_or_has_something_left_over_is_refused() {
    for request in requests() {
        let bytes = request.encode(1);
        for cut in 0..bytes.len() {
            assert!(
                Request::decode(&bytes[..cut]).is_err(),
                "{request:?} at {cut}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(
            Request::decode(&longer),
            Err(BadMessage::Field),
            "{request:?}"
        );
    }
}

#[test]
fn oversize_lengths_and_unknown_kinds_are_refused_by_name() {
    let long = vec![0; MAX_FRAME + 1];
    assert_eq!(
        Request::decode(&long),
        Err(BadMessage::TooLong(MAX_FRAME + 1))
    );
    let mut unknown = 5_u64.to_le_bytes().to_vec();
    unknown.push(77);
    assert_eq!(Request::decode(&unknown), Err(BadMessage::Kind(77)));
    let mut open = 1_u64.to_le_bytes().to_vec();
    open.extend([2, 255, 255]);
    open.extend([b'a'; 70]);
    assert_eq!(
        Request::decode(&open),
        Err(BadMessage::Field),
        "a name of 65535 bytes"
    );
}

#[test]
fn a_listing_that_would_lead_a_copy_elsewhere_is_refused() {
    for name in ["..", "a/b", "", ".", "/etc"] {
        let answer = Answer::Entries {
            entries: vec![Entry {
                name: name.into(),
                kind: Kind::File,
                size: 0,
                attributes: attributes(),
                id: 3,
            }],
            more: false,
            skipped: 0,
        };
        let read = Answer::decode(&answer.encode(1));
        assert_eq!(read, Err(BadMessage::Field), "{name:?}");
    }
}

#[test]
fn ranges_that_overlap_or_go_backwards_are_refused() {
    #[expect(
        clippy::reversed_empty_ranges,
        clippy::single_range_in_vec_init,
        reason = "the refusal is the point"
    )]
    let wrong: [Vec<Range<u64>>; 3] = [vec![5..4], vec![0..2, 1..3], vec![4..4]];
    for have in wrong {
        let answer = Answer::Created { file: 1, have };
        assert_eq!(Answer::decode(&answer.encode(1)), Err(BadMessage::Field));
    }
}

#[test]
fn an_error_is_cut_between_characters() {
    let answer = Answer::Failed {
        code: "x".into(),
        message: "ü".repeat(MAX_TEXT),
    };
    let (_, read) = Answer::decode(&answer.encode(1)).expect("readable");
    let Answer::Failed { message, .. } = read else {
        panic!("a failure");
    };
    assert_eq!(message.len(), MAX_TEXT);
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(
        kind in 0u8..13,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut message = 1_u64.to_le_bytes().to_vec();
        message.push(kind);
        message.extend_from_slice(&bytes);
        if let Ok((number, request)) = Request::decode(&message) {
            prop_assert_eq!(request.encode(number), message.clone());
        }
        if let Ok((number, answer)) = Answer::decode(&message) {
            prop_assert_eq!(Answer::decode(&answer.encode(number)), Ok((number, answer)));
        }
    }
}
