//! `crowfly serve` and `crowfly cp` as two processes: documents, exit statuses, and what stays behind when
//! one of them ends before its time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// Large enough to be interrupted in the middle.
const LARGE: u64 = 768 << 20;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("data")).expect("a folder for the test");
    folder
}

fn crowfly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(arguments).current_dir(folder);
    command
        .stdin(Stdio::null())
        .env("NO_COLOR", "1")
        .env_remove("CROWFLY_KEY");
    command
}

/// A running server of the folder `data`, which ends with the test.
struct Server {
    child: Option<Child>,
    url: String,
    metrics: String,
}

impl Server {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let mut arguments = vec!["serve", "data", "--writable", "--json"];
        arguments.extend(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        arguments.extend(more);
        let mut command = crowfly(folder, &arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut told = BufReader::new(child.stderr.take().expect("piped"));
        let (mut url, mut metrics, mut text) = (None, None, String::new());
        loop {
            let mut line = String::new();
            let read = told.read_line(&mut line).expect("it says where");
            text.push_str(&line);
            if let Some(at) = line.strip_prefix("Serving ") {
                url = at.split(": ").next().map(str::to_owned);
            }
            if let Some(at) = line.strip_prefix("Metrics at http://") {
                metrics = at.strip_suffix("/metrics\n").map(str::to_owned);
            }
            if line.starts_with("Until interrupted") {
                break;
            }
            assert!(read > 0, "{text}");
        }
        // Whoever writes to a closed pipe would be told so.
        std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
        Self {
            child: Some(child),
            url: url.expect("an address"),
            metrics: metrics.expect("metrics"),
        }
    }

    fn at(&self, path: &str) -> String {
        let server = self.url.rsplit_once('/').expect("a name").0;
        format!("{server}/{path}")
    }

    /// Ends it by a signal; its document and exit status.
    fn end(mut self, signal: &str) -> (Value, Option<i32>) {
        let child = self.child.take().expect("it runs");
        send(&child, signal);
        let output = child.wait_with_output().expect("it ends");
        (document(&output), output.status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn send(child: &Child, signal: &str) {
    let kill = format!("kill -{signal} {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

fn cp(folder: &Path, arguments: &[&str]) -> (Value, i32) {
    let mut all = vec!["cp", "--json"];
    all.extend(arguments);
    let output = crowfly(folder, &all).output().expect("it starts");
    (document(&output), output.status.code().expect("not killed"))
}

/// The stable code and the exit status of a copy that fails.
fn refusal(folder: &Path, arguments: &[&str]) -> (String, i32) {
    let (document, status) = cp(folder, arguments);
    assert_eq!(document["schema"], "crowfly.error/1", "{document}");
    assert_eq!(document["error"]["exit"], status);
    (
        document["error"]["code"]
            .as_str()
            .expect("a code")
            .to_owned(),
        status,
    )
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3])
        .collect()
}

fn large(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).expect("made");
    file.set_len(LARGE).expect("sized");
    for at in (0..LARGE).step_by(5 << 20) {
        file.write_all_at(&pattern(3_000), at).expect("written");
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what}");
        sleep(Duration::from_millis(2));
    }
}

/// How many bytes of an unfinished file are on the disk.
fn begun(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let there = fs::metadata(folder.join(".copy.crowfly-journal"));
    there.map_or(0, |there| there.size())
}

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
    assert_eq!(key(&[&m, "gpu:0"]), ("not-built".into(), 69));
    assert_eq!(key(&["s3://bucket/key", "host:"]), ("not-built".into(), 69));
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
fn given_a_folder_with_what_is_not_copied_the_summary_counts_it_and_says_what_it_may_be() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder("cp-left-out");
    let data = folder.join("data");
    fs::write(data.join("m"), b"bytes").expect("written");
    std::os::unix::fs::symlink("m", data.join("link")).expect("linked");
    let no_text = std::ffi::OsStr::from_bytes(b"no\xfftext");
    fs::write(data.join(no_text), b"a regular file").expect("written");
    let arguments = ["cp", "-r", "data", "copy"];
    let output = crowfly(&folder, &arguments).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let said = "left out 2 entries: links, devices, or names that are no text";
    assert!(words.join(" ").contains(said), "{text}");
    assert_eq!(entries(&folder.join("copy")), ["m"]);
    let (document, status) = cp(&folder, &["-r", "data", "again"]);
    assert_eq!((&document["skipped"], status), (&Value::from(2), 0));
}

#[test]
fn given_a_server_that_is_killed_the_copy_fails_and_another_one_lets_it_go_on() {
    let folder = folder("cp-killed");
    large(&folder.join("data/m"));
    let server = Server::start(&folder, &["--key-file", "key"]);
    let from = server.at("data/m");
    let arguments = [
        "cp",
        "--json",
        "--resume",
        "--key-file",
        "key",
        &from,
        "copy",
    ];
    let mut command = crowfly(&folder, &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = child.spawn().expect("it starts");
    await_that("it begins", || begun(&folder) > 500);
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
    let from = server.at("data/m");
    let arguments = [
        "cp",
        "--json",
        "--resume",
        "--key-file",
        "key",
        &from,
        "copy",
    ];
    let mut command = crowfly(&folder, &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = child.spawn().expect("it starts");
    await_that("it begins", || begun(&folder) > 500);
    let (totals, status) = server.end("INT");
    assert_eq!(
        (status, &totals["ended_by"]),
        (Some(0), &Value::from("SIGINT"))
    );
    let output = child.wait_with_output().expect("it ends");
    let code = document(&output)["error"]["code"].to_string();
    assert!(
        ["\"server-stopping\"", "\"peer-lost\""].contains(&code.as_str()),
        "{code}"
    );
    assert_eq!(output.status.code(), Some(74));
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
