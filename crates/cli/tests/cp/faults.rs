//! What stays behind when one of the two ends before its time.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;

use super::stage::{
    Server, await_that, begun, cp, crowfly, document, entries, folder, large, pattern, send,
};

/// A copy that leaves what another can go on with, some of which is there already.
fn resumable(folder: &Path, from: &str) -> Child {
    let arguments = [
        "cp",
        "--json",
        "--resume",
        "--key-file",
        "key",
        from,
        "copy",
    ];
    let mut command = crowfly(folder, &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = child.spawn().expect("it starts");
    await_that("it begins", || begun(folder) > 500);
    child
}

#[test]
fn given_a_server_that_is_stopped_the_copy_ends_at_its_deadline_and_says_so() {
    let folder = folder("cp-stopped");
    large(&folder.join("data/m"));
    let server = Server::start(&folder, &["--key-file", "key"]);
    let from = server.at("data/m");
    let stopped = server.child.as_ref().expect("it runs");
    let arguments = [
        "cp",
        "--key-file",
        "key",
        "--timeout",
        "3s",
        "--resume",
        &from,
        "copy",
    ];
    for before in [true, false] {
        if before {
            send(stopped, "STOP");
        }
        let began = Instant::now();
        let mut command = crowfly(&folder, &arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().expect("it starts");
        if !before {
            await_that("it begins", || begun(&folder) > 500);
            send(stopped, "STOP");
        }
        let output = child.wait_with_output().expect("it ends");
        let took = began.elapsed();
        send(stopped, "CONT");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{said}");
        assert!(
            said.starts_with("error[deadline-exceeded]: the co"),
            "{said}"
        );
        assert!(said.contains("within 3.00 s"), "{said}");
        // Far less than forever, far more than a busy machine adds.
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

#[test]
fn given_a_server_that_is_killed_the_copy_fails_and_another_one_lets_it_go_on() {
    let folder = folder("cp-killed");
    large(&folder.join("data/m"));
    let server = Server::start(&folder, &["--key-file", "key"]);
    let child = resumable(&folder, &server.at("data/m"));
    drop(server);
    let output = child.wait_with_output().expect("it ends");
    let ended = document(&output);
    assert_eq!(ended["error"]["code"], "peer-lost", "{ended}");
    assert_eq!(output.status.code(), Some(74));
    assert!(!folder.join("copy").exists());
    let server = Server::start(&folder, &["--key-file", "key"]);
    let from = server.at("data/m");
    let (copied, status) = cp(&folder, &["--resume", "--key-file", "key", &from, "copy"]);
    assert_eq!(status, 0, "{copied}");
    assert!(
        copied["resumed"].as_u64().is_some_and(|bytes| bytes > 0),
        "{copied}"
    );
    assert_eq!(entries(&folder), ["copy", "data", "key"]);
    let read = |name: &str| fs::read(folder.join(name)).expect("there");
    assert!(read("copy") == read("data/m"));
    server.end("TERM");
}

#[test]
fn given_an_interrupted_copy_nothing_half_done_stays_at_either_end() {
    let folder = folder("cp-interrupted");
    large(&folder.join("m"));
    fs::rename(folder.join("m"), folder.join("data/m")).expect("moved");
    let server = Server::start(&folder, &["--key-file", "key"]);
    let down = [server.at("data/m"), "copy".to_owned()];
    let up = ["data/m".to_owned(), server.at("data/copy")];
    for (sides, at) in [(down, folder.clone()), (up, folder.join("data"))] {
        let mut command = crowfly(&folder, &["cp", "--json", "--key-file", "key"]);
        let child = command
            .args(&sides)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = child.spawn().expect("it starts");
        let partial = at.join(".copy.crowfly-partial");
        await_that("it begins", || partial.exists());
        sleep(Duration::from_millis(30));
        send(&child, "INT");
        let output = child.wait_with_output().expect("it ends");
        // Either it was whole before the signal, or it ends by it and leaves nothing.
        match output.status.code() {
            Some(0) => fs::remove_file(at.join("copy")).expect("whole"),
            ended => {
                assert_eq!(ended, Some(130));
                assert_eq!(document(&output)["error"]["code"], "interrupted");
            }
        }
        await_that("the unfinished file goes", || !partial.exists());
    }
    assert_eq!(entries(&folder), ["data", "key"]);
    assert_eq!(entries(&folder.join("data")), ["m"]);
    server.end("INT");
}

#[test]
fn given_a_server_that_is_interrupted_mid_copy_both_end_in_order() {
    let folder = folder("cp-server-interrupted");
    large(&folder.join("data/m"));
    let server = Server::start(&folder, &["--key-file", "key"]);
    let child = resumable(&folder, &server.at("data/m"));
    let (totals, status) = server.end("INT");
    assert_eq!(
        (status, &totals["ended_by"]),
        (Some(0), &Value::from("SIGINT"))
    );
    let output = child.wait_with_output().expect("it ends");
    // The server gives it five seconds, which is not enough on every machine.
    let document = document(&output);
    match output.status.code() {
        Some(0) => {
            let read = |name: &str| fs::read(folder.join(name)).expect("there");
            assert!(read("copy") == read("data/m"), "whole is whole");
        }
        status => {
            assert_eq!(
                (status, &document["error"]["code"]),
                (Some(74), &"server-stopping".into())
            );
        }
    }
}

#[test]
fn given_a_limit_on_the_size_of_files_both_ends_say_so_and_leave_nothing() {
    let folder = folder("cp-limited");
    fs::write(folder.join("data/m"), pattern(24_000_000)).expect("written");
    let server = Server::start(&folder, &["--key-file", "key"]);
    let program = env!("CARGO_BIN_EXE_crowfly");
    let from = server.at("data/m");
    // 20 MiB in blocks of 512 bytes: the buffers fit, the file does not.
    let script = format!("ulimit -f 40960; exec {program} cp --json --key-file key {from} copy");
    let mut limited = Command::new("sh");
    limited
        .args(["-c", &script])
        .current_dir(&folder)
        .stdin(Stdio::null());
    let output = limited.output().expect("it starts");
    assert_eq!(document(&output)["error"]["code"], "file-too-large");
    assert_eq!(output.status.code(), Some(73));
    assert_eq!(entries(&folder), ["data", "key"]);
    server.end("TERM");
}
