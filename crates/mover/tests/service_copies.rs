//! Copies between a server and this process, by every combination of sides.

use std::fs;

use crowfly_mover::service::{Doing, End, Side};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};

#[path = "service_support/stage.rs"]
mod stage;

use stage::{Stage, asked, copy, pattern};

const LEN: usize = 11 * (1 << 20) + 12_345;

fn agreed(verification: &Verification) -> String {
    match verification {
        Verification::Agreed { checksum, .. } => checksum.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn given_a_file_at_a_server_it_arrives_whole_by_either_path_with_both_ends_accounts() {
    for (shm, path) in [(true, Path::Shm), (false, Path::Tcp)] {
        let stage = Stage::new(shm);
        let bytes = pattern(LEN, 1);
        stage.put("m.bin", &bytes);
        let here = tempfile::tempdir().expect("a folder");
        let to = here.path().join("copy.bin");
        let copied = stage
            .copy(stage.at("data/m.bin"), Side::File(to.clone()))
            .expect("copied");
        assert_eq!(fs::read(&to).expect("there"), bytes);
        assert_eq!(fs::read_dir(here.path()).expect("a folder").count(), 1);
        assert!(copied.receipt.is_whole());
        assert_eq!(copied.receipt.requested.0, LEN as u64);
        let told = copied
            .legs
            .iter()
            .map(|leg| (leg.doing, leg.end, leg.bytes().0));
        let told: Vec<_> = told.filter(|(_, _, bytes)| *bytes > 0).collect();
        let all = LEN as u64;
        assert_eq!(
            told,
            [
                (Doing::Reading, End::There, all),
                (Doing::Crossing, End::There, all),
                (Doing::Writing, End::Here, all)
            ]
        );
        assert!(copied.receipt.shares.iter().all(|share| share.path == path));
        agreed(&copied.receipt.verification);
    }
}

#[test]
fn given_a_file_here_it_arrives_at_the_server_in_folders_that_were_not_there() {
    for shm in [true, false] {
        let stage = Stage::new(shm);
        let bytes = pattern(LEN, 2);
        let here = tempfile::tempdir().expect("a folder");
        let from = here.path().join("m.bin");
        fs::write(&from, &bytes).expect("written");
        let to = stage.at("inbox/new/below/m.bin");
        let sent = stage
            .copy(Side::File(from.clone()), to.clone())
            .expect("copied");
        let there = stage.folder.path().join("new/below/m.bin");
        assert_eq!(fs::read(&there).expect("there"), bytes);
        let back = stage.copy(to, Side::Host).expect("read back");
        assert_eq!(
            agreed(&sent.receipt.verification),
            agreed(&back.receipt.verification)
        );
        let folder = stage.copy(Side::File(from), stage.at("inbox/new"));
        folder.expect("into a folder, under its own name");
        assert!(stage.folder.path().join("new/m.bin").is_file());
    }
}

#[test]
fn given_exposed_memory_it_is_written_and_read_without_the_server_touching_a_byte() {
    for shm in [true, false] {
        let stage = Stage::new(shm);
        let bytes = pattern(9 << 20, 3);
        let here = tempfile::tempdir().expect("a folder");
        let (from, to) = (here.path().join("from"), here.path().join("to"));
        fs::write(&from, &bytes).expect("written");
        stage
            .copy(Side::File(from), stage.at("pool"))
            .expect("into memory");
        let copied = stage
            .copy(stage.at("pool"), Side::File(to.clone()))
            .expect("out of memory");
        assert_eq!(fs::read(&to).expect("there"), bytes);
        assert!(copied.legs.iter().all(|leg| leg.end == End::Here));
        let straight = stage.copy(stage.at("pool"), Side::Host).expect("measured");
        assert_eq!(straight.receipt.bounced.0, 0);
    }
}

#[test]
fn given_more_than_the_memory_holds_it_is_refused_with_both_lengths() {
    let stage = Stage::new(true);
    let here = tempfile::tempdir().expect("a folder");
    let from = here.path().join("from");
    fs::write(&from, vec![0; (9 << 20) + 1]).expect("written");
    let error = stage.copy(Side::File(from), stage.at("pool")).map(drop);
    let error = error.expect_err("too long");
    assert_eq!(error.code(), "does-not-fit");
    assert!(error.to_string().contains("9437185 bytes"), "{error}");
}

#[test]
fn given_a_folder_all_files_in_it_are_copied_both_ways_and_links_are_left_out() {
    let stage = Stage::new(true);
    let names = ["a", "b/c", "b/d/e", "empty", "z"];
    for (seed, name) in (1..).zip(names) {
        let len = if name == "empty" {
            0
        } else {
            70_000 * usize::from(seed)
        };
        stage.put(&format!("tree/{name}"), &pattern(len, seed));
    }
    std::os::unix::fs::symlink("a", stage.folder.path().join("tree/link")).expect("linked");
    let here = tempfile::tempdir().expect("a folder");
    let down = here.path().join("down");
    let mut want = stage.asked(stage.at("data/tree"), Side::File(down.clone()));
    let refused = copy(want.clone()).map(drop).expect_err("a folder");
    assert!(refused.to_string().contains("-r"), "{refused}");
    want.recursive = true;
    let copied = copy(want).expect("copied");
    assert_eq!((copied.files, copied.skipped), (5, 1));
    let mut up = stage.asked(Side::File(down), stage.at("inbox/up"));
    up.recursive = true;
    copy(up).expect("copied back");
    for name in names {
        let read =
            |folder: &str| fs::read(stage.folder.path().join(folder).join(name)).expect("there");
        assert_eq!(read("tree"), read("up"), "{name}");
    }
}

#[test]
fn given_two_files_of_this_machine_the_copy_needs_no_server() {
    let here = tempfile::tempdir().expect("a folder");
    let (from, to) = (here.path().join("from"), here.path().join("to"));
    fs::write(&from, pattern(LEN, 5)).expect("written");
    let auth = crowfly_mover::service::Auth::Open;
    let local = asked(
        Side::File(from.clone()),
        Side::File(to.clone()),
        true,
        auth.clone(),
    );
    let copied = copy(local).expect("copied");
    assert_eq!(
        fs::read(&to).expect("there"),
        fs::read(&from).expect("there")
    );
    assert!(copied.receipt.is_whole());
    let same = asked(
        Side::File(from.clone()),
        Side::File(from.clone()),
        true,
        auth,
    );
    assert_eq!(
        copy(same).map(drop).expect_err("itself").code(),
        "not-copied"
    );
    assert_eq!(fs::read(&from).expect("there").len(), LEN);
}

#[test]
fn given_policies_the_way_is_as_asked_or_refused_with_its_obstacles() {
    let stage = Stage::new(false);
    stage.put("m.bin", &pattern(100_000, 6));
    let mut want = stage.asked(stage.at("data/m.bin"), Side::Host);
    want.policy = Policy::Require;
    let error = copy(want.clone()).map(drop).expect_err("tcp is not direct");
    assert_eq!(error.code(), "route-refused");
    want.policy = Policy::Socket;
    copy(want).expect("by a socket");
    let stage = Stage::new(true);
    stage.put("m.bin", &pattern(100_000, 6));
    let mut want = stage.asked(stage.at("data/m.bin"), Side::Host);
    want.policy = Policy::Socket;
    let copied = copy(want).expect("by a socket");
    assert!(
        copied
            .receipt
            .shares
            .iter()
            .all(|share| share.path == Path::Tcp)
    );
}

#[test]
fn given_nothing_there_or_nothing_allowed_the_answer_says_which() {
    let stage = Stage::new(true);
    let file = stage.put("m.bin", b"12345");
    let code = |from, to| stage.copy(from, to).map(drop).expect_err("refused").code();
    assert_eq!(code(stage.at("data/none"), Side::Host), "not-found");
    assert_eq!(code(stage.at("nobody/m.bin"), Side::Host), "no-such-name");
    assert_eq!(code(stage.at("pool/below"), Side::Host), "not-found");
    assert_eq!(code(Side::File(file), stage.at("data/x")), "read-only");
    assert_eq!(
        code(Side::File("/no/such".into()), stage.at("inbox/x")),
        "open-failed"
    );
    assert_eq!(code(Side::Host, stage.at("inbox/x")), "not-copied");
}
