//! What is copied, and what the documents and receipts say of it.

use std::fs;
use std::io::Read;

use serde_json::Value;

use super::stage::{Server, cp, crowfly, entries, folder, pattern, refusal};

#[test]
fn given_a_key_that_serve_makes_files_go_both_ways_with_documents_and_metrics() {
    let folder = folder("cp-both-ways");
    let bytes = pattern(3_000_001);
    fs::write(folder.join("data/m"), &bytes).expect("written");
    let server = Server::start(&folder, &["--key-file", "key", "--memory", "pool=4MiB"]);
    let key = ["--key-file", "key"];
    let (down, status) = cp(
        &folder,
        &[&[&server.at("data/m"), "copy"], &key[..]].concat(),
    );
    assert_eq!(
        (status, &down["schema"]),
        (0, &Value::from("crowfly.copy/1")),
        "{down}"
    );
    assert_eq!(fs::read(folder.join("copy")).expect("there"), bytes);
    let receipt = &down["receipt"];
    assert_eq!(receipt["requested"], 3_000_001);
    assert_eq!(receipt["verification"]["state"], "agreed");
    assert_eq!(receipt["shares"][0]["path"], "shm");
    assert_eq!(receipt["from"], Value::from(server.at("data/m")));
    for policy in ["prefer", "socket"] {
        let to = server.at("data/up/");
        let up = [&["copy", &to, "--policy", policy, "--no-verify"], &key[..]].concat();
        let (up, status) = cp(&folder, &up);
        assert_eq!(status, 0, "{up}");
        assert_eq!(up["receipt"]["verification"]["state"], "not-asked");
        assert_eq!(fs::read(folder.join("data/up/copy")).expect("there"), bytes);
    }
    let (pool, status) = cp(&folder, &[&["copy", &server.at("pool")], &key[..]].concat());
    assert_eq!(status, 0, "{pool}");
    let (out, status) = cp(
        &folder,
        &[&[&server.at("pool"), "host:"], &key[..]].concat(),
    );
    assert_eq!((status, &out["kept"]), (0, &Value::from(false)), "{out}");
    let mut metrics = std::net::TcpStream::connect(&server.metrics).expect("connected");
    std::io::Write::write_all(&mut metrics, b"GET /metrics HTTP/1.1\r\n\r\n").expect("asked");
    let mut text = String::new();
    metrics.read_to_string(&mut text).expect("answered");
    assert!(
        text.contains("path=\"shm\",direction=\"sent\"} 3000001"),
        "{text}"
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(folder.join("key"))
            .expect("made")
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let (totals, status) = server.end("INT");
    assert_eq!(
        (status, &totals["schema"]),
        (Some(0), &Value::from("crowfly.serve/1"))
    );
    assert_eq!(totals["ended_by"], "SIGINT");
    assert_eq!(totals["connections"], 5);
    assert_eq!(totals["files"]["received-whole"], 2);
}

#[test]
fn given_a_folder_with_what_is_not_copied_the_summary_counts_it_and_says_what_it_may_be() {
    let folder = folder("cp-left-out");
    let data = folder.join("data");
    fs::write(data.join("m"), b"bytes").expect("written");
    for name in ["link", "other"] {
        std::os::unix::fs::symlink("m", data.join(name)).expect("linked");
    }
    let arguments = ["cp", "-r", "data", "copy"];
    let output = crowfly(&folder, &arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let said = "left out 2 entries: links (-L follows them), devices, sockets or pipes";
    assert!(words.join(" ").contains(said), "{text}");
    assert_eq!(entries(&folder.join("copy")), ["m"]);
    let (document, status) = cp(&folder, &["-r", "data", "again"]);
    assert_eq!((&document["skipped"], status), (&Value::from(2), 0));
    let (document, status) = cp(&folder, &["-rL", "data", "followed"]);
    assert_eq!((&document["files"], status), (&Value::from(3), 0));
    assert_eq!(entries(&folder.join("followed")), ["link", "m", "other"]);
}

#[test]
fn given_names_that_are_no_text_on_the_command_line_they_are_taken_as_they_are() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = folder("cp-no-text");
    let name = OsStr::from_bytes(b"no\xfftext");
    fs::write(folder.join("data").join(name), b"bytes").expect("written");
    let server = Server::start(&folder, &[]);
    let url = [server.at("data/").as_bytes(), name.as_bytes()].concat();
    let copies = [
        OsStr::from_bytes(b"copy\xff"),
        OsStr::from_bytes(b"again\xff"),
    ];
    let sources = [OsStr::from_bytes(&url), copies[0]];
    for (from, to) in sources.iter().zip(copies) {
        let mut command = crowfly(&folder, &["cp", "--json"]);
        let output = command.arg(from).arg(to).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(fs::read(folder.join(to)).expect("there"), b"bytes");
    }
    let (document, status) = cp(&folder, &[&server.at("data/no%FFtext"), "host:"]);
    assert_eq!(status, 0, "{document}");
    assert_eq!(document["from"], Value::from(server.at("data/no%FFtext")));
}

#[test]
fn given_two_legs_under_require_each_is_direct_and_the_receipt_says_what_lies_between() {
    let folder = folder("cp-two-legs");
    fs::write(folder.join("data/m"), pattern(3 << 20)).expect("written");
    let (copied, status) = cp(&folder, &["data/m", "copy", "--policy", "require"]);
    if copied["error"]["code"] == "route-refused" {
        let codes = copied["error"]["obstacles"].to_string();
        assert_eq!(status, 69);
        crowfly_waive::waived!("this file system takes no O_DIRECT: {codes}");
    }
    assert_eq!(status, 0, "{copied}");
    let legs = copied["legs"].as_array().expect("legs");
    let told: Vec<(&str, &str)> = legs
        .iter()
        .map(|leg| {
            let word = |value: &Value| value.as_str().map(str::to_owned);
            assert_eq!(word(&leg["shares"][0]["class"]).as_deref(), Some("direct"));
            (
                leg["doing"].as_str().expect("a word"),
                leg["end"].as_str().expect("a word"),
            )
        })
        .collect();
    assert_eq!(told, [("reading", "here"), ("writing", "here")]);
    let share = &copied["receipt"]["shares"][0];
    assert_eq!(share["class"], "staged", "the whole way passes host memory");
    let because = share["because"].as_str().expect("a reason");
    assert!(because.starts_with("every leg went straight"), "{because}");
    assert_eq!(copied["receipt"]["verification"]["state"], "computed");
}

#[test]
fn given_two_servers_of_different_keys_each_side_can_have_its_own() {
    let folder = folder("cp-two-keys");
    let bytes = pattern(300_000);
    fs::write(folder.join("data/m"), &bytes).expect("written");
    let one = Server::start(&folder, &["--key-file", "one"]);
    let other = Server::start(&folder, &["--key-file", "other"]);
    let open = Server::start(&folder, &[]);
    let own = ["--from-key-file", "one", "--to-key-file", "other"];
    for (from, to, keys, name) in [
        (&one, &other, &own[..], "a"),
        (
            &one,
            &other,
            &["--key-file", "one", "--to-key-file", "other"],
            "b",
        ),
        (
            &one,
            &other,
            &["--from-key-file", "one", "--key-file", "other"],
            "c",
        ),
        (&one, &open, &["--from-key-file", "one"], "d"),
        (&open, &other, &["--to-key-file", "other"], "e"),
    ] {
        let sides = [from.at("data/m"), to.at(&format!("data/{name}"))];
        let arguments = [&[sides[0].as_str(), &sides[1]], keys].concat();
        let (copied, status) = cp(&folder, &arguments);
        assert_eq!(status, 0, "{name}: {copied}");
        let there = fs::read(folder.join("data").join(name)).expect("there");
        assert!(there == bytes, "{name}");
    }
    let sides = [one.at("data/m"), other.at("data/f")];
    for keys in [&["--key-file", "one"][..], &own[..2], &own[2..]] {
        let arguments = [&[sides[0].as_str(), &sides[1]], keys].concat();
        let refused = refusal(&folder, &arguments);
        assert_eq!(refused, ("not-authenticated".into(), 66), "{keys:?}");
    }
}

#[test]
fn given_two_servers_a_copy_between_them_tells_all_legs_within_the_screen() {
    let folder = folder("cp-relay");
    fs::write(folder.join("data/m"), pattern(5_000_001)).expect("written");
    let key = ["--key-file", "key"];
    let (from, to) = (Server::start(&folder, &key), Server::start(&folder, &key));
    let sides = [from.at("data/m"), to.at("data/new/m")];
    let arguments = ["cp", &sides[0], &sides[1], "--key-file", "key", "-p"];
    let output = crowfly(&folder, &arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (leg, by) in [
        ("read", "source"),
        ("cross", "source"),
        ("onward", "destination"),
        ("write", "destination"),
    ] {
        let told = |line: &str| {
            let mut words = line.split_whitespace();
            (words.next(), words.next()) == (Some(leg), Some(by))
        };
        assert!(text.lines().any(told), "{leg} by {by}:\n{text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let read = |name: &str| fs::read(folder.join(name)).expect("there");
    assert!(read("data/m") == read("data/new/m"));
    let modified = |name: &str| {
        fs::metadata(folder.join(name))
            .expect("there")
            .modified()
            .ok()
    };
    assert_eq!(modified("data/m"), modified("data/new/m"));
}

#[test]
fn given_names_as_long_as_a_file_system_takes_they_are_copied_here_and_to_a_server_and_gone_on_with()
 {
    let folder = folder("cp-long-names");
    let server = Server::start(&folder, &[]);
    fs::write(folder.join("m"), "bytes").expect("written");
    // In bytes; the last one ends in a letter of two.
    for name in [
        "n".repeat(255),
        "n".repeat(240),
        format!("{}\u{e9}", "n".repeat(253)),
    ] {
        for to in [name.clone(), format!("inner/{name}")] {
            let (told, status) = cp(&folder, &["m", &to, "--resume"]);
            assert_eq!(status, 0, "{told}");
            assert_eq!(fs::read(folder.join(&to)).expect("there"), b"bytes");
        }
        let (told, status) = cp(&folder, &["m", &server.at(&format!("data/{name}"))]);
        assert_eq!(status, 0, "{told}");
        assert_eq!(
            fs::read(folder.join("data").join(&name)).expect("there"),
            b"bytes"
        );
    }
    let (told, status) = cp(&folder, &["-r", "inner", "other"]);
    assert_eq!((told["files"].as_u64(), status), (Some(3), 0), "{told}");
    let hidden = |name: &String| name.starts_with('.');
    assert!(!entries(&folder.join("other")).iter().any(hidden));
    assert_eq!(
        refusal(&folder, &["m", &"n".repeat(256)]),
        ("file-failed".into(), 73)
    );
}

#[test]
fn given_a_file_where_a_folder_would_have_to_be_it_is_named() {
    let folder = folder("cp-no-folder");
    fs::write(folder.join("m"), "bytes").expect("written");
    let (told, status) = cp(&folder, &["m", "m/inner/x"]);
    assert_eq!(
        (told["error"]["code"].as_str(), status),
        (Some("destination-occupied"), 73)
    );
    let message = told["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("`m` is a file"), "{message}");
    assert_eq!(fs::read(folder.join("m")).expect("there"), b"bytes");
}
