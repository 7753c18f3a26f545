//! The limits that a shell sets for what it starts: reported, and never the end of the process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// The program below a limit, with what stands in `folder` reachable by its name alone.
fn limited(limit: &str, arguments: &str, folder: &Path) -> Output {
    let script = format!("ulimit {limit} && exec \"$0\" {arguments}");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_crowfly")]);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    let command = command.current_dir(folder).stdin(Stdio::null());
    command.output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn given_a_limit_on_the_size_of_files_what_is_too_large_is_reported_and_not_left_behind() {
    let folder = folder("limits-file-size");
    for arguments in [
        "capture -o file",
        "map --svg file",
        "doctor --html file",
        "plan --svg file",
        "race --size 1MB --runs 1",
    ] {
        let output = limited("-f 1", arguments, &folder);
        assert_eq!(output.status.code(), Some(73), "{arguments}: {output:?}");
        let told = stderr(&output);
        assert!(told.contains("`ulimit -f`"), "{arguments}: {told}");
        let left = fs::read_dir(&folder).expect("the folder").flatten();
        let left: Vec<_> = left.filter(|e| e.file_name() != "cache").collect();
        assert!(left.is_empty(), "{arguments}: {left:?}");
    }
    let made = fs::read_dir(folder.join("cache/crowfly")).expect("the cache folder");
    assert_eq!(made.count(), 0);
}

#[test]
fn given_a_limit_on_the_size_of_files_standard_output_that_is_one_fails_as_a_full_one_does() {
    let folder = folder("limits-stdout");
    let output = limited("-f 1", "capture > file", &folder);
    assert_eq!(output.status.code(), Some(74));
    let told = stderr(&output);
    assert!(told.starts_with("error[output-failed]: "), "{told}");
    assert!(told.contains("`ulimit -f`"), "{told}");
}

#[test]
fn given_too_few_descriptors_a_look_at_a_machine_names_the_limit_and_shows_no_half_of_one() {
    let folder = folder("limits-descriptors");
    for descriptors in [4, 5, 6] {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let load = format!("load --path cached {file}");
        for arguments in ["map", "capture", "doctor", &load] {
            let output = limited(&format!("-n {descriptors}"), arguments, &folder);
            let told = stderr(&output);
            assert_eq!(
                output.status.code(),
                Some(69),
                "{descriptors}: {arguments}: {told}"
            );
            assert!(output.stdout.is_empty());
            assert!(told.contains("Too many open files"), "{told}");
            assert!(told.contains("`ulimit -n`"), "{told}");
        }
    }
}

#[test]
fn given_too_few_descriptors_a_measurement_of_two_processes_names_the_limit() {
    let folder = folder("limits-descriptors-net");
    // A second process cannot be started, and then the first can have no fabric.
    for descriptors in [6, 8, 24] {
        let bench = "bench net --size 4KiB --rounds 1 --time 1";
        let output = limited(&format!("-n {descriptors}"), bench, &folder);
        // As it was before it was broken into lines.
        let told = stderr(&output);
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(69), "{descriptors}: {told}");
        assert!(output.stdout.is_empty());
        assert!(
            told.contains("Too many open files"),
            "{descriptors}: {told}"
        );
        assert!(told.contains("`ulimit -n`"), "{descriptors}: {told}");
    }
}

#[test]
fn given_too_few_descriptors_ranks_name_the_limit_and_neither_wait_nor_take_each_other_for_far_away()
 {
    let folder = folder("limits-descriptors-ranks");
    let (bench, step) = (
        "bench collective --ranks 2 --size 1KiB --time 1 --rounds 1",
        "step --ranks 2 --steps 2 --scale 1e-6 --batch 64KiB",
    );
    for (arguments, limits) in [(bench, [9, 12, 14, 15, 20]), (step, [12, 14, 16, 20, 22])] {
        for descriptors in limits {
            let limit = format!("-n {descriptors} && set -- timeout 60");
            let script = format!("ulimit {limit} && exec \"$@\" \"$0\" {arguments}");
            let mut command = Command::new("bash");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_crowfly")]);
            command.env("XDG_CACHE_HOME", folder.join("cache"));
            let output = command.stdin(Stdio::null()).output().expect("bash starts");
            let told = stderr(&output);
            let status = output.status.code();
            assert_eq!(status, Some(69), "{descriptors}: {arguments}: {told}");
            assert!(output.stdout.is_empty());
            assert!(
                told.contains("Too many open files"),
                "{descriptors}: {told}"
            );
            assert!(told.contains("`ulimit -n`"), "{descriptors}: {told}");
        }
    }
}

#[test]
fn given_too_little_memory_ranks_name_the_limit_and_nothing_that_has_to_do_with_something_else() {
    let folder = folder("limits-ranks-memory");
    let mut refused = 0;
    // Which of the things that take memory is the first too many differs from limit to limit.
    for kibibytes in (100_000..260_000).step_by(10_000) {
        let arguments = "bench collective --ranks 3 --size 1KiB --time 1 --rounds 1";
        let output = limited(&format!("-v {kibibytes}"), arguments, &folder);
        let told = stderr(&output);
        assert!(!told.contains("host labels"), "{kibibytes}: {told}");
        // Where not even a few bytes are left no program in Rust goes on, nor do ranks say why.
        let aborted = output.status.code().is_none() && told.contains("memory allocation of");
        if output.status.success() || aborted || told.contains("(signal: 6 (SIGABRT))") {
            continue;
        }
        refused += 1;
        assert_eq!(output.status.code(), Some(69), "{kibibytes}: {told}");
        assert!(told.contains("`ulimit -v`"), "{kibibytes}: {told}");
    }
    assert!(refused > 0, "no limit was too low");
}

#[test]
fn given_too_little_memory_for_its_data_a_step_says_so_and_is_not_aborted() {
    let folder = folder("limits-memory-step");
    let step = "step --ranks 2 --steps 4 --compute 5ms";
    // What there is no room for first depends on how large the program is: threads, what the ranks share,
    // or data.
    let mut of_data = Vec::new();
    for kilobytes in [70_000, 90_000, 110_000, 150_000, 200_000] {
        let output = limited(&format!("-v {kilobytes}"), step, &folder);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(69), "{kilobytes}: {told}");
        assert!(told.starts_with("error["), "{kilobytes}: {told}");
        of_data.extend(told.contains("no-host-memory").then_some(kilobytes));
    }
    assert!(!of_data.is_empty());
}

/// A user that has no other processes, so that a limit on their number counts those of the test alone.
const NOBODY_ELSE: u32 = 61_734;

#[test]
fn given_no_more_threads_every_command_says_so_or_does_without_and_none_panics() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("limits-threads");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("set");
    fs::write(folder.join("m"), vec![7; 5_000_000]).expect("written");
    let as_nobody = |processes: usize, arguments: &str| {
        let user = NOBODY_ELSE;
        let script = format!(
            "ulimit -u {processes} && exec setpriv --reuid {user} --regid {user} --clear-groups \
             timeout 60 \"$0\" {arguments}"
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_crowfly")]);
        let cache = folder.join("cache");
        let command = command.env("XDG_CACHE_HOME", cache).env("TMPDIR", &folder);
        let command = command.current_dir(&folder).stdin(Stdio::null());
        command.output().expect("bash starts")
    };
    if as_nobody(20, "--version").status.code() != Some(0) {
        crowfly_waive::waived!("this user cannot become another one that has no processes");
    }
    let (loading, made) = (
        "load --path threads m",
        "step --scale 1e-6 --batch 64KiB --steps 2",
    );
    let cases: [(&str, &[usize]); 8] = [
        (loading, &[2, 3, 5, 12]),
        ("load --verify m", &[3, 4]),
        ("cp m copy", &[3, 4, 6]),
        ("cp crowfly://127.0.0.1:1/x copy", &[3, 5, 8]),
        ("race --size 1MB --runs 1", &[3, 4]),
        (made, &[3, 5, 8, 14, 20, 23, 26]),
        (
            "bench collective --size 4KiB --rounds 1 --time 1",
            &[3, 4, 6, 14, 17, 20],
        ),
        ("bench net --size 4KiB --rounds 1 --time 1", &[3, 5, 8]),
    ];
    for (arguments, limits) in cases {
        for limit in limits {
            let output = as_nobody(*limit, arguments);
            let told = stderr(&output);
            let status = output.status.code();
            assert!(
                !told.contains("panicked"),
                "{arguments} with {limit}: {told}"
            );
            // `timeout` and the program itself are two of the processes.
            assert_ne!(status, Some(101), "{arguments} with {limit}");
            assert_ne!(status, Some(124), "{arguments} with {limit} waits for ever");
            if told.contains("Resource temporarily unavailable") {
                assert_eq!(status, Some(69), "{arguments} with {limit}: {told}");
            }
        }
    }
}

#[test]
fn given_a_small_stack_every_command_does_what_it_does_with_a_large_one() {
    let folder = folder("limits-stack");
    fs::write(folder.join("m"), "bytes").expect("written");
    for arguments in [
        "--version",
        "cp --help",
        "no-such-command",
        "plan --json",
        "cp m copy --json",
        "cp none copy",
    ] {
        let [small, large] = ["-s 64", "-s 8192"].map(|limit| limited(limit, arguments, &folder));
        assert_eq!(
            small.status.code(),
            large.status.code(),
            "{arguments}: {small:?}"
        );
        assert_eq!(stderr(&small), stderr(&large), "{arguments}");
        let told = |output: &Output| output.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(told(&small), told(&large), "{arguments}");
    }
}

#[test]
fn given_too_few_descriptors_for_those_who_come_a_server_says_so_and_lets_them_in_later() {
    let folder = folder("limits-serve");
    fs::write(folder.join("m"), "bytes").expect("written");
    let script = "ulimit -n 110 && exec \"$0\" serve m --listen 127.0.0.1:0 --json";
    let mut server = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_crowfly")])
        .current_dir(&folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let told = BufReader::new(server.stderr.take().expect("piped"));
    let mut lines = told.lines().map_while(Result::ok);
    let mut hears = |word: &str| {
        let line = lines.find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("it ended without a word of {word}"))
    };
    let serving = hears("Serving crowfly://");
    let url = serving.split_whitespace().nth(1).expect("a URL");
    let url = url.trim_end_matches(':').to_owned();
    let address = url.trim_start_matches("crowfly://").trim_end_matches("/m");
    // Those who say nothing each hold on to a connection.
    let silent: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).expect("a port"))
        .collect();
    let why = hears("Nobody can be let in");
    let hint = "`ulimit -n`";
    assert!(why.contains("Too many open files"), "{why}");
    assert!(why.contains(hint) || hears(hint).contains(hint));
    drop(silent);
    hears("let in again");
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    let copied = command
        .args(["cp", &url, "host:"])
        .env_remove("CROWFLY_KEY");
    let copied = copied.output().expect("the program starts");
    assert_eq!(copied.status.code(), Some(0), "{}", stderr(&copied));
    let kill = format!("kill -INT {}", server.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let output = server.wait_with_output().expect("it ends");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert!(
        told["errors"]["cannot-accept"].as_u64() >= Some(1),
        "{told}"
    );
}
