//! `crowfly bench net`, small: what it prints, what it refuses, and that nothing of it stays behind.
//! No test asks how fast anything was.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(["bench", "net"]).args(arguments);
    command.stdin(Stdio::null());
    command
}

fn document(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

/// `crowfly bench net --listen`, killed at the end.
struct Listening {
    child: Child,
    address: String,
}

impl Listening {
    fn start(key_file: &Path) -> Self {
        Self::with(key_file, &[])
    }

    fn with(key_file: &Path, more: &[&str]) -> Self {
        let key_file = key_file.to_str().expect("text");
        let arguments = ["--listen", "127.0.0.1:0", "--key-file", key_file];
        let mut child = bench(&[&arguments[..], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut address = String::new();
        let stdout = child.stdout.take().expect("its output");
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut address).expect("its address");
        Self {
            child,
            address: address.trim().to_owned(),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

#[test]
fn given_nothing_a_second_process_is_measured_against_and_every_byte_is_accounted_for() {
    let picture = folder("bench-net-local").join("net.svg");
    let svg = picture.to_str().expect("text");
    let sizes = ["--size", "1,64,100KiB", "--rounds", "2", "--time", "5"];
    let rest = ["--path", "shm,tcp", "--both", "--json", "--svg", svg];
    let output = bench(&[&sizes[..], &rest].concat()).output().expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let survey = document(&output);
    assert_eq!(survey["schema"], "crowfly.bench-net/1");
    assert_eq!(survey["rounds"], 2);
    let points = survey["points"].as_array().expect("points");
    assert_eq!(points.len(), 2 * 3 * 4, "paths, sizes, tasks");
    for point in points {
        let samples = point["samples"].as_array().expect("samples");
        assert_eq!(samples.len(), 2);
        for sample in samples {
            let number = |name: &str| sample[name].as_u64().expect("a number");
            assert_eq!(sample["size"], point["size"]);
            assert_eq!(number("moved"), number("transfers") * number("size"));
            let receipt = &sample["receipt"];
            assert_eq!(receipt["requested"], sample["size"]);
            for share in receipt["shares"].as_array().expect("shares") {
                assert_eq!(share["path"], point["path"]);
            }
        }
        let is_trip = point["task"] == "ping-pong";
        assert_eq!(point["rate"].is_null(), is_trip);
        assert_eq!(point["latency"].is_null(), !is_trip);
        let ceiling = &point["ceiling"];
        assert_eq!(ceiling.is_null(), is_trip);
        if !is_trip {
            assert_eq!(ceiling["provenance"]["kind"], "measured");
            let share = point["share"].as_f64().expect("a share");
            assert!((0.0..=1.0).contains(&share), "{share}");
        }
    }
    let rails = survey["rails"].as_array().expect("rails");
    let paths: Vec<&str> = rails.iter().map(|rail| text(&rail["path"])).collect();
    assert_eq!(paths, ["shm", "tcp"]);
    let picture = fs::read_to_string(picture).expect("the picture");
    assert!(roxmltree::Document::parse(&picture).is_ok());
}

#[test]
fn given_memory_that_the_other_process_cannot_map_the_kernels_copy_is_measured() {
    let small = [
        "--size", "1,1MiB", "--rounds", "1", "--time", "5", "--path", "cma", "--json",
    ];
    let output = bench(&small).output().expect("runs");
    if output.status.code() == Some(69) {
        crowfly_waive::waived!("no copies between processes: {}", document(&output));
    }
    assert_eq!(output.status.code(), Some(0));
    let survey = document(&output);
    let points = survey["points"].as_array().expect("points");
    assert_eq!(points.len(), 2 * 3);
    for point in points {
        let receipt = &point["samples"][0]["receipt"];
        assert_eq!(receipt["shares"][0]["path"], "cma");
        assert_eq!(receipt["shares"][0]["class"], "direct");
    }
}

#[test]
fn given_another_process_that_listens_it_is_measured_against_with_the_key_it_made() {
    let key_file = folder("bench-net-peer").join("key");
    let listening = Listening::start(&key_file);
    let mode = fs::metadata(&key_file).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    let address = format!("crowfly://{}", listening.address);
    let key_file = key_file.to_str().expect("text");
    let common = ["--peer", &address, "--key-file", key_file, "--json"];
    let small = [
        "--size", "64", "--rounds", "1", "--time", "5", "--path", "tcp",
    ];
    let output = bench(&[&common[..], &small].concat())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let survey = document(&output);
    assert_eq!(survey["peer"], listening.address.as_str());
    let ceiling = &survey["points"][0]["ceiling"];
    assert_eq!(
        ceiling["provenance"]["kind"], "measured",
        "over loopback: {ceiling}"
    );

    let other = folder("bench-net-other-key").join("key");
    fs::write(&other, "0".repeat(64)).expect("written");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).expect("set");
    let wrong = [
        "--peer",
        &address,
        "--key-file",
        other.to_str().expect("text"),
        "--json",
    ];
    let output = bench(&wrong).output().expect("runs");
    assert_eq!(output.status.code(), Some(66));
    assert_eq!(document(&output)["error"]["code"], "not-authenticated");
}

#[test]
fn given_a_name_in_a_directory_whoever_announced_it_is_measured_against_and_nobody_else() {
    let folder = folder("bench-net-named");
    let path = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (key, names) = (path("key"), path("names"));
    let announced = ["--directory", &names, "--announce=node-3"];
    let mut listening = Listening::with(&folder.join("key"), &announced);
    let entry = folder.join("names/node-3");
    let told = fs::read_to_string(&entry).expect("it is written down before the address is told");
    assert!(told.ends_with(&listening.address), "{told}");
    let common = [
        "--peer",
        "@node-3",
        "--directory",
        &names,
        "--key-file",
        &key,
        "--json",
    ];
    let small = [
        "--size", "64", "--rounds", "1", "--time", "5", "--path", "tcp",
    ];
    let measured = || {
        let output = bench(&[&common[..], &small].concat()).output();
        let output = output.expect("runs");
        (document(&output), output.status.code())
    };
    let (survey, status) = measured();
    assert_eq!(status, Some(0), "{survey}");
    assert_eq!(survey["peer"], listening.address.as_str());
    // Its name now stands for a process that is gone.
    let words: Vec<&str> = told.split_whitespace().collect();
    let other = format!("{} {} {}", words[0], "5a".repeat(16), words[2]);
    fs::write(&entry, other).expect("written");
    let (error, status) = measured();
    assert_eq!(
        (text(&error["error"]["code"]), status),
        ("peer-replaced", Some(69))
    );
    // Ended by a signal, it takes its entry along, and nobody else's.
    fs::write(&entry, &told).expect("written");
    let term = format!("kill -TERM {}", listening.child.id());
    let sent = Command::new("sh").args(["-c", &term]).status();
    assert!(sent.expect("a shell").success());
    let status = listening.child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert!(!entry.exists());
}

#[test]
fn given_an_announcement_that_cannot_be_made_it_says_why_and_does_not_listen() {
    let key = folder("bench-net-nameless").join("key");
    let key = key.to_str().expect("text");
    let refused = |more: &[&str]| {
        let listen = ["--listen", "127.0.0.1:0", "--key-file", key, "--json"];
        let mut command = bench(&[&listen[..], more].concat());
        for variable in [
            "CROWFLY_DIRECTORY",
            "SLURM_PROCID",
            "RANK",
            "OMPI_COMM_WORLD_RANK",
        ] {
            command.env_remove(variable);
        }
        let output = command.output().expect("runs");
        (
            text(&document(&output)["error"]["code"]).to_owned(),
            output.status.code(),
        )
    };
    assert_eq!(refused(&["--announce=x"]), ("usage".into(), Some(64)));
    let etcd = ["--directory", "etcd://127.0.0.1:1"];
    assert_eq!(
        refused(&[&etcd[..], &["--announce"]].concat()),
        ("no-rank".into(), Some(64))
    );
    let refusal = refused(&[&etcd[..], &["--announce=x"]].concat());
    assert_eq!(refusal, ("directory-failed".into(), Some(66)));
    let refusal = refused(&[&etcd[..], &["--announce=a b"]].concat());
    assert_eq!(refusal, ("bad-entry-name".into(), Some(64)));
}

#[test]
fn given_a_peer_that_is_killed_in_the_middle_the_command_ends_soon_with_its_error() {
    let key_file = folder("bench-net-killed").join("key");
    let mut listening = Listening::start(&key_file);
    let key_file = key_file.to_str().expect("text");
    let address = listening.address.clone();
    let arguments = ["--peer", &address, "--key-file", key_file, "--json"];
    let long = [
        "--size", "1MiB", "--rounds", "1000", "--time", "1000", "--path", "tcp",
    ];
    let child = bench(&[&arguments[..], &long].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    std::thread::sleep(Duration::from_millis(300));
    listening.child.kill().expect("killed");
    let began = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert!(began.elapsed() < Duration::from_secs(60));
    // Killed before the first byte it could not be reached, killed later it was lost.
    let error = document(&output)["error"].clone();
    let found = (text(&error["code"]), output.status.code());
    assert!(
        [("peer-lost", Some(74)), ("peer-unreachable", Some(66))].contains(&found),
        "{error}"
    );
}

#[test]
fn given_a_peer_that_is_stopped_the_command_ends_in_time_writes_nothing_and_the_peer_serves_on() {
    let folder = folder("bench-net-stopped");
    let listening = Listening::start(&folder.join("key"));
    let path = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (key, picture) = (path("key"), path("net.svg"));
    let address = listening.address.clone();
    let measured = |more: &[&str]| {
        let common = [
            "--peer",
            &address,
            "--key-file",
            &key,
            "--json",
            "--svg",
            &picture,
        ];
        let mut command = bench(&[&common[..], more].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    };
    let long = [
        "--size", "1MiB", "--rounds", "1000", "--time", "100", "--path",
    ];
    for way in ["tcp", "shm"] {
        let child = measured(&[&long[..], &[way]].concat());
        std::thread::sleep(Duration::from_secs(2));
        kill(listening.child.id(), rustix::process::Signal::STOP);
        let began = Instant::now();
        let output = child.wait_with_output().expect("it ends");
        assert!(began.elapsed() < Duration::from_secs(60), "{way}");
        kill(listening.child.id(), rustix::process::Signal::CONT);
        // Stopped before it was reached, it was connected to and said nothing.
        let found = document(&output)["error"]["code"].clone();
        let known = ["peer-lost", "deadline-exceeded"].contains(&text(&found));
        assert!(known, "{way}: {found}");
        assert_eq!(output.status.code(), Some(74), "{way}");
        assert!(!folder.join("net.svg").exists(), "{way}");
    }
    let short = [
        "--size", "64", "--rounds", "1", "--time", "5", "--path", "tcp",
    ];
    let output = measured(&short).wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", document(&output));
    assert!(folder.join("net.svg").exists());
}

#[test]
fn given_a_peer_that_says_nothing_or_is_not_there_the_command_ends_in_time_with_its_error() {
    let folder = folder("bench-net-silent");
    let key = folder.join("key");
    fs::write(&key, "0".repeat(64)).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");
    let picture = folder.join("net.svg");
    let refused = |address: &str| {
        let (key, picture) = (key.to_str().expect("text"), picture.to_str().expect("text"));
        let arguments = [
            "--peer",
            address,
            "--key-file",
            key,
            "--svg",
            picture,
            "--json",
        ];
        let began = Instant::now();
        let output = bench(&arguments).output().expect("runs");
        assert!(began.elapsed() < Duration::from_secs(90), "{address}");
        let error = document(&output)["error"].clone();
        assert!(!folder.join("net.svg").exists(), "{address}");
        (text(&error["code"]).to_owned(), output.status.code())
    };
    // The kernel takes connections for it, and nobody ever speaks.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_address = silent.local_addr().expect("bound").to_string();
    let late = ("deadline-exceeded".to_owned(), Some(74));
    assert_eq!(refused(&silent_address), late);
    drop(silent);
    let nobody = ("peer-unreachable".to_owned(), Some(66));
    assert_eq!(refused(&silent_address), nobody);
    let unknown = ("no-such-host".to_owned(), Some(66));
    assert_eq!(refused("no-such-host.invalid:7"), unknown);
    let usage = ("usage".to_owned(), Some(64));
    for address in [
        "127.0.0.1",
        "[::1]",
        "::1:7",
        "127.0.0.1:0",
        ":7",
        "127.0.0.1:+7",
    ] {
        assert_eq!(refused(address), usage, "{address}");
    }
}

/// The process that a command started.
fn child_of(parent: u32) -> u32 {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let ids = fs::read_to_string(&children).unwrap_or_default();
        if let Some(id) = ids.split_whitespace().next() {
            return id.parse().expect("a process");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("it started no second process");
}

#[test]
fn given_a_second_process_that_is_killed_by_whatever_path_the_peer_was_lost_and_nothing_cancelled()
{
    for path in ["shm", "cma", "tcp"] {
        let long = [
            "--json", "--size", "64,1MiB", "--rounds", "1000", "--path", path,
        ];
        let mut command = bench(&[]);
        let child = command
            .args(long)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let other = child_of(child.id());
        std::thread::sleep(Duration::from_millis(700));
        kill(other, rustix::process::Signal::KILL);
        let output = child.wait_with_output().expect("it ends");
        let error = document(&output)["error"].clone();
        let found = (text(&error["code"]), output.status.code());
        let before = [
            ("bench-no-second-process", Some(69)),
            ("peer-unreachable", Some(66)),
        ];
        assert!(
            found == ("peer-lost", Some(74)) || before.contains(&found),
            "{path}: {error}"
        );
    }
}

#[test]
fn given_a_second_process_that_is_stopped_it_goes_with_the_command_that_started_it() {
    let mut child = bench(&["--rounds", "1000", "--path", "tcp"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let other = child_of(child.id());
    std::thread::sleep(Duration::from_millis(500));
    kill(other, rustix::process::Signal::STOP);
    kill(child.id(), rustix::process::Signal::INT);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let until = Instant::now() + Duration::from_secs(60);
    // Whoever adopts it may take a while to ask how it ended.
    let ended = || match fs::read_to_string(format!("/proc/{other}/stat")) {
        Ok(stat) => stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    while !ended() {
        assert!(Instant::now() < until, "it was left behind");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill(process: u32, signal: rustix::process::Signal) {
    let id = i32::try_from(process)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(id.expect("a process"), signal).expect("sent");
}

#[test]
fn given_arguments_that_make_no_sense_nothing_is_started() {
    let missing = folder("bench-net-misuse").join("none");
    let missing = missing.to_str().expect("text");
    for (arguments, status, code) in [
        (&["--size", "0"][..], 64, "usage"),
        (&["--size", "2GiB"], 64, "usage"),
        (&["--peer", "127.0.0.1:1"], 64, "usage"),
        (&["--listen", "127.0.0.1:0"], 64, "usage"),
        (&["--nic", "no-such-nic"], 64, "no-such-nic"),
        (
            &["--svg", "/no/such/folder/a.svg"],
            73,
            "output-not-created",
        ),
        (
            &["--peer", "127.0.0.1:1", "--key-file", missing],
            66,
            "input-not-found",
        ),
    ] {
        let output = bench(arguments).arg("--json").output().expect("runs");
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert_eq!(document(&output)["error"]["code"], code, "{arguments:?}");
    }
}

#[test]
fn given_a_path_that_is_not_there_by_name_it_is_an_error_that_says_why() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        crowfly_waive::waived!("this machine has an RDMA device");
    }
    let output = bench(&["--path", "verbs", "--json"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(69));
    let error = document(&output)["error"].clone();
    assert_eq!(error["code"], "route-refused");
    let obstacles = error["obstacles"].as_array().expect("obstacles");
    assert!(!obstacles.is_empty(), "the reason is told");
    assert!(obstacles.iter().all(|o| o["effect"] == "blocks"), "{error}");
}
