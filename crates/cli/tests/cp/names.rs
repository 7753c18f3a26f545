//! Names in place of addresses: a server writes down where it is, and a copy finds it.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_waive::waived;

use super::stage::{Server, cp, crowfly, document, folder, pattern, refusal};

/// Copies down from a server that is found by its name.
fn found(test: &str, directory: &str) {
    let folder = folder(test);
    let bytes = pattern(100_000);
    fs::write(folder.join("data/m"), &bytes).expect("written");
    let more = [
        "--key-file",
        "key",
        "--directory",
        directory,
        "--announce=node-7",
    ];
    let server = Server::start(&folder, &more);
    let key = ["--key-file", "key", "--directory", directory];
    let (told, status) = cp(
        &folder,
        &[&key[..], &["crowfly://@node-7/data/m", "copy"]].concat(),
    );
    assert_eq!(status, 0, "{told}");
    assert!(fs::read(folder.join("copy")).expect("there") == bytes);
    server.end("TERM");
}

#[test]
fn given_a_shared_folder_a_server_is_found_by_its_name_and_gone_when_it_ends() {
    found("cp-named", "names");
    let names = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cp-named/names");
    assert_eq!(fs::read_dir(names).expect("a folder").count(), 0);
}

struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn given_etcd_a_server_is_found_by_its_name() {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("bound").to_string()
    };
    let (clients, peers) = (free(), free());
    let data = folder("cp-etcd-data");
    let started = Command::new("etcd")
        .arg("--data-dir")
        .arg(&data)
        .args(["--listen-client-urls", &format!("http://{clients}")])
        .args(["--advertise-client-urls", &format!("http://{clients}")])
        .args(["--listen-peer-urls", &format!("http://{peers}")])
        .args(["--initial-advertise-peer-urls", &format!("http://{peers}")])
        .args(["--initial-cluster", &format!("default=http://{peers}")])
        .args(["--unsafe-no-fsync"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = started else {
        waived!("etcd is not installed (Debian: etcd-server)");
    };
    let _etcd = Etcd(child);
    let began = Instant::now();
    while std::net::TcpStream::connect(&clients).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "etcd did not start"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    // It listens before it has a leader.
    std::thread::sleep(Duration::from_secs(2));
    found("cp-etcd", &format!("etcd://{clients}/jobs"));
}

#[test]
fn given_ranks_of_a_launcher_each_is_found_by_its_number() {
    let folder = folder("cp-ranks");
    fs::write(folder.join("data/m"), "bytes").expect("written");
    let slurm = |rank: &'static str| {
        let set = [
            ("SLURM_PROCID", rank),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "77"),
        ];
        move |command: &mut Command| {
            command.envs(set);
        }
    };
    let arguments = ["--key-file", "key", "--directory", "names", "--announce"];
    let server = Server::with(&folder, &arguments, slurm("1"));
    assert!(folder.join("names/77.rank1").exists());
    let arguments = [
        "cp",
        "--json",
        "--key-file",
        "key",
        "crowfly://@rank1/data/m",
        "copy",
    ];
    let mut command = crowfly(&folder, &arguments);
    slurm("0")(&mut command);
    let output = command
        .env("CROWFLY_DIRECTORY", "names")
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", document(&output));
    assert_eq!(fs::read(folder.join("copy")).expect("there"), b"bytes");
    server.end("TERM");
}

/// The bytes that name a life of a server, exchanged for those of another.
fn reborn(entry: &str) -> String {
    let words: Vec<&str> = entry.split_whitespace().collect();
    format!("{} {} {}", words[0], "5a".repeat(16), words[2])
}

#[test]
fn given_a_server_that_is_gone_whoever_has_its_address_now_is_not_taken_for_it() {
    let folder = folder("cp-replaced");
    fs::write(folder.join("data/m"), "bytes").expect("written");
    let named = ["--key-file", "key", "--directory", "names"];
    let server = Server::start(&folder, &[&named[..], &["--announce=node"]].concat());
    let name = folder.join("names/node");
    let entry = fs::read_to_string(&name).expect("announced");
    fs::write(&name, reborn(&entry)).expect("as if it had been started anew");
    let from = ["crowfly://@node/data/m", "copy"];
    let down = [&named[..], &from].concat();
    assert_eq!(refusal(&folder, &down), ("peer-replaced".into(), 69));
    let up = [&named[..], &["data/m", "crowfly://@node/data/n"]].concat();
    assert_eq!(refusal(&folder, &up), ("peer-replaced".into(), 69));
    assert!(!folder.join("copy").exists() && !folder.join("data/n").exists());
    fs::write(&name, entry).expect("as it was");
    let (told, status) = cp(&folder, &down);
    assert_eq!(status, 0, "{told}");
    server.end("TERM");
}

#[test]
fn given_names_that_lead_nowhere_the_code_says_why() {
    let folder = folder("cp-nameless");
    fs::create_dir(folder.join("names")).expect("made");
    fs::write(folder.join("names/odd"), "no entry").expect("written");
    let of = |arguments: &[&str]| refusal(&folder, arguments);
    let from = |name: &str| format!("crowfly://@{name}/data/m");
    let in_names = |name: &str| of(&["--directory", "names", &from(name), "copy"]);
    assert_eq!(of(&[&from("x"), "copy"]), ("usage".into(), 64));
    assert_eq!(in_names("a b"), ("bad-entry-name".into(), 64));
    assert_eq!(in_names("odd"), ("bad-entry".into(), 65));
    let elsewhere = ["--directory", "http://h:1", &from("x"), "copy"];
    assert_eq!(of(&elsewhere), ("bad-directory".into(), 64));
    let nobody = ["--directory", "etcd://127.0.0.1:1", &from("x"), "copy"];
    assert_eq!(of(&nobody), ("directory-failed".into(), 66));
    assert_eq!(
        of(&["--directory", "names", "data", "copy"]),
        ("usage".into(), 64)
    );
}
