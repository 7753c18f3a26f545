//! What is refused, each with its code and status.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::stage::{Server, cp, crowfly, document, entries, folder, refusal};

#[test]
fn given_what_cannot_be_copied_each_has_its_code_and_status() {
    let folder = folder("cp-refusals");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    let server = Server::start(&folder, &["--key-file", "key"]);
    let m = server.at("data/m");
    let key = |arguments: &[&str]| refusal(&folder, &[arguments, &["--key-file", "key"]].concat());
    assert_eq!(
        key(&[&server.at("data/none"), "host:"]),
        ("not-found".into(), 66)
    );
    assert_eq!(
        key(&[&server.at("none/m"), "host:"]),
        ("no-such-name".into(), 66)
    );
    assert_eq!(
        key(&["none", &server.at("data/x")]),
        ("open-failed".into(), 66)
    );
    assert_eq!(key(&[&server.at("data"), "x"]), ("not-copied".into(), 64));
    assert_eq!(
        key(&[&server.at("data/../m"), "host:"]),
        ("bad-location".into(), 64)
    );
    assert_eq!(key(&[&m, "gpu:99"]), ("no-gpu".into(), 69));
    assert_eq!(key(&["gs://bucket/key", "host:"]), ("not-built".into(), 69));
    assert_eq!(key(&[&m, "/dev/null/below"]).1, 73);
    assert_eq!(
        refusal(&folder, &[&m, "host:"]),
        ("not-authenticated".into(), 66)
    );
    fs::write(folder.join("other"), "0".repeat(64)).expect("written");
    let chmod = |mode: &str| {
        let done = Command::new("chmod")
            .args([mode, "other"])
            .current_dir(&folder)
            .status();
        assert!(done.is_ok_and(|status| status.success()));
    };
    chmod("644");
    let other = ["--key-file", "other"];
    assert_eq!(
        refusal(&folder, &[&[&m, "host:"], &other[..]].concat()),
        ("key-exposed".into(), 66)
    );
    let certified = ["--tls-cert", "m", "--tls-key", "other", "--tls-ca", "m"];
    assert_eq!(
        refusal(&folder, &[&[&m, "host:"], &certified[..]].concat()),
        ("key-exposed".into(), 66)
    );
    chmod("600");
    let wrong = refusal(&folder, &[&[&m, "host:"], &other[..]].concat());
    assert_eq!(wrong, ("not-authenticated".into(), 66));
    fs::write(folder.join("other"), "no key").expect("written");
    assert_eq!(
        refusal(&folder, &[&[&m, "host:"], &other[..]].concat()),
        ("bad-key".into(), 65)
    );
    server.end("TERM");
    let gone = key(&[&m, "host:", "--timeout", "2s"]);
    assert_eq!(gone, ("peer-unreachable".into(), 66));
    let arguments = ["serve", "--json", "data", "--listen", "0.0.0.0:0"];
    let output = crowfly(&folder, &arguments).output().expect("it starts");
    assert_eq!(document(&output)["error"]["code"], "not-authenticated-bind");
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn given_options_that_do_not_apply_each_is_refused_by_its_name() {
    let folder = folder("cp-options");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    let server = Server::start(&folder, &[]);
    let m = server.at("data/m");
    for (arguments, name) in [
        (&["data/m", "x", "--nic", "typo"][..], "--nic"),
        (&["data/m", "x", "--key-file", "none"], "--key-file"),
        (
            &[
                "data/m",
                "x",
                "--tls-cert",
                "a",
                "--tls-key",
                "b",
                "--tls-ca",
                "c",
            ],
            "--tls-cert",
        ),
        (
            &["data/m", &m, "--from-key-file", "none"],
            "--from-key-file applies to a connection, and SRC",
        ),
        (
            &[&m, "host:", "--to-key-file", "none"],
            "--to-key-file applies to a connection, and DST",
        ),
        (&["host:", "gpu:0", "--key-file", "none"], "--key-file"),
        (&["data/m", "x", "-L"], "--recursive"),
        (&["data/m", "host:", "-p"], "permissions"),
        (&["data/m", "host:", "--resume"], "resumed"),
        (&["data/m", "x", "--policy", "socket"], "socket"),
        (&["data/m", "x", "--policy", "staged"], "policy"),
        (&[&m, "x", "--nic", "typo"], "typo"),
    ] {
        let (document, status) = cp(&folder, arguments);
        assert_eq!(status, 64, "{arguments:?}: {document}");
        let message = document["error"]["message"].as_str().expect("a sentence");
        assert!(message.contains(name), "{arguments:?}: {message}");
    }
    assert_eq!(entries(&folder), ["data"]);
    let output = crowfly(&folder, &["serve", "--json", "data/m", "--writable"]).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(64), "a file is not written to");
}

#[test]
fn given_a_link_that_leads_nowhere_as_a_destination_it_is_refused_and_stays() {
    let folder = folder("cp-dangling");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    symlink("nowhere", folder.join("link")).expect("linked");
    let refused = refusal(&folder, &["data/m", "link"]);
    assert_eq!(refused, ("destination-is-link".into(), 73));
    let link = fs::read_link(folder.join("link")).expect("a link");
    assert_eq!(link, Path::new("nowhere"));
}

#[test]
fn given_a_destination_that_cannot_be_made_it_is_named_and_the_status_is_that_of_an_output() {
    let folder = folder("cp-in-the-way");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    fs::write(folder.join("file"), b"bytes").expect("written");
    let made = Command::new("mkfifo").arg(folder.join("fifo")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let occupied = ("destination-occupied".to_owned(), 73);
    assert_eq!(refusal(&folder, &["data/m", "fifo"]), occupied);
    assert_eq!(refusal(&folder, &["data/m", "/dev/null"]), occupied);
    assert_eq!(refusal(&folder, &["-r", "data", "file"]), occupied);
    for made in [".copy.crowfly-partial", ".copy.crowfly-journal"] {
        fs::create_dir(folder.join(made)).expect("made");
        let (document, status) = cp(&folder, &["data/m", "copy", "--resume"]);
        let error = &document["error"];
        assert_eq!(
            (status, &error["code"]),
            (73, &"in-the-way".into()),
            "{error}"
        );
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(made), "{message}");
        fs::remove_dir(folder.join(made)).expect("removed");
        let _ = fs::remove_file(folder.join(".copy.crowfly-partial"));
    }
}

#[test]
fn given_a_folder_as_destination_the_file_in_it_is_what_is_told() {
    let folder = folder("cp-into");
    fs::write(folder.join("data/m"), b"bytes").expect("written");
    fs::create_dir(folder.join("into")).expect("made");
    let (told, status) = cp(&folder, &["data/m", "into"]);
    let place = format!("file:{}", folder.join("into/m").display());
    assert_eq!((status, &told["to"]), (0, &place.as_str().into()), "{told}");
    assert_eq!(told["receipt"]["to"], place);
    let server = Server::start(&folder, &["--key-file", "key"]);
    let to = server.at("data/up/");
    let (told, status) = cp(&folder, &["data/m", &to, "--key-file", "key"]);
    assert_eq!(
        (status, &told["to"]),
        (0, &server.at("data/up/m").into()),
        "{told}"
    );
}

#[test]
fn given_what_is_no_file_at_a_server_it_is_told_as_a_source_and_as_a_destination() {
    let folder = folder("cp-no-file");
    let data = folder.join("data");
    fs::write(folder.join("m"), "bytes").expect("written");
    std::os::unix::net::UnixListener::bind(data.join("socket")).expect("made");
    symlink("around", data.join("circle")).expect("linked");
    symlink("circle", data.join("around")).expect("linked");
    symlink("/etc", data.join("out")).expect("linked");
    let server = Server::start(&folder, &[]);
    let told = |arguments: &[&str]| {
        let (told, status) = cp(&folder, arguments);
        let word = |name: &str| told["error"][name].as_str().unwrap_or_default().to_owned();
        (word("code"), status, word("message"))
    };
    let at = |name: &str| server.at(&format!("data/{name}"));
    for (name, source, destination, why) in [
        (
            "socket",
            ("not-a-file", 66),
            ("destination-occupied", 73),
            "socket",
        ),
        (
            "circle",
            ("access-denied", 66),
            ("access-denied", 66),
            "circle",
        ),
        (
            "out",
            ("access-denied", 66),
            ("access-denied", 66),
            "leads out of",
        ),
    ] {
        let (code, status, message) = told(&[&at(name), "x"]);
        assert_eq!((code.as_str(), status), source, "{name}: {message}");
        assert!(message.contains(why), "{message}");
        let (code, status, message) = told(&["m", &at(name)]);
        assert_eq!((code.as_str(), status), destination, "{name}: {message}");
        assert!(message.contains(why), "{message}");
    }
    assert!(!folder.join("x").exists());
    let hidden = |name: &String| name.starts_with('.');
    assert!(!entries(&data).iter().any(hidden));
}
