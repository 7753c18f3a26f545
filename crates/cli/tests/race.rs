//! `crowfly race`, small: what it prints, and what it leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

fn race(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("race").args(arguments);
    command.stdin(Stdio::null()).env("XDG_CACHE_HOME", cache);
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn document(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

fn left_in(cache: &Path) -> Vec<String> {
    let entries = fs::read_dir(cache.join("crowfly")).expect("the cache folder");
    entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into()
        })
        .collect()
}

/// Waits for something that the program does within a moment, and not for ever.
fn await_that(holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "never happened"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn given_a_cache_folder_with_escapes_in_its_name_the_notes_reach_the_terminal_without_them() {
    let cache = folder("race-escapes").join("a\u{1b}[31mb".repeat(12));
    let output = run(&mut race(
        &cache,
        &["--size", "1MB", "--runs", "1", "--color", "always"],
    ));
    assert_eq!(output.status.code(), Some(0));
    let notes = String::from_utf8(output.stderr).expect("text");
    assert!(
        notes.starts_with("Making a checkpoint of 1.00 MB"),
        "{notes}"
    );
    assert!(!notes.contains('\u{1b}'), "{notes}");
    assert!(
        notes.lines().all(|line| line.chars().count() <= 100),
        "{notes}"
    );
}

#[test]
fn given_no_path_a_checkpoint_is_made_raced_over_and_removed() {
    let cache = folder("race-made");
    let picture = cache.join("race.svg");
    let svg = picture.to_str().expect("text");
    let arguments = ["--size", "3MB", "--runs", "2", "--json", "--svg", svg];
    let output = run(&mut race(&cache, &arguments));
    assert_eq!(output.status.code(), Some(0));
    let race = document(&output);
    assert_eq!(race["schema"], "crowfly.race/1");
    let lanes = race["lanes"].as_array().expect("lanes");
    let names: Vec<&str> = lanes.iter().filter_map(|l| l["name"].as_str()).collect();
    for way in ["threads", "mapped", "cached"] {
        assert!(names.contains(&way), "{way} is missing of {names:?}");
    }
    for lane in lanes {
        let receipts = lane["receipts"].as_array().expect("receipts");
        assert_eq!(receipts.len(), 2);
        for receipt in receipts {
            assert_eq!(receipt["requested"], race["bytes"]);
        }
    }
    assert!(left_in(&cache).is_empty(), "{:?}", left_in(&cache));
    let picture = fs::read_to_string(picture).expect("the picture");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
}

#[test]
fn given_keep_the_checkpoint_is_used_again() {
    let cache = folder("race-kept");
    let once = ["--size", "1MB", "--runs", "1", "--json", "--keep"];
    let first = document(&run(&mut race(&cache, &once)));
    assert_eq!(left_in(&cache), ["race-1000000"]);
    let again = run(&mut race(&cache, &once[..5]));
    assert!(String::from_utf8_lossy(&again.stderr).contains("kept earlier"));
    assert_eq!(document(&again)["from"], first["from"]);
    assert_eq!(left_in(&cache), ["race-1000000"]);
}

#[test]
fn given_races_that_keep_at_once_all_end_well_and_one_checkpoint_stays() {
    let cache = folder("race-kept-at-once");
    let keep = ["--size", "1MB", "--runs", "1", "--json", "--keep"];
    let start = || {
        let mut race = race(&cache, &keep);
        let piped = race.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().expect("the program starts")
    };
    let races = [start(), start(), start()];
    for race in races {
        let output = race.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(document(&output)["bytes"], 1_000_000);
    }
    assert_eq!(left_in(&cache), ["race-1000000"]);
    let shard = cache.join("crowfly/race-1000000/model-00002-of-00004.safetensors");
    fs::write(shard, "").expect("cut");
    let refused = run(&mut race(&cache, &keep));
    assert_eq!(refused.status.code(), Some(65));
    assert_eq!(document(&refused)["error"]["code"], "kept-damaged");
}

#[test]
fn given_a_size_or_a_picture_that_cannot_be_the_race_does_not_start() {
    let cache = folder("race-refused");
    let cases = [
        (&["--size", "1"][..], 64, "seeded-size"),
        (&["--size", "1 parsec"], 64, "usage"),
        (&["--runs", "0"], 64, "usage"),
        (
            &["--size", "1MB", "--svg", "/no/such/folder/race.svg"],
            73,
            "output-not-created",
        ),
    ];
    for (arguments, status, code) in cases {
        let output = run(race(&cache, arguments).arg("--json"));
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert_eq!(document(&output)["error"]["code"], code, "{arguments:?}");
    }
}

#[test]
fn given_ctrl_c_the_race_stops_and_removes_its_checkpoint() {
    let cache = folder("race-interrupted");
    // More rounds than anyone would wait for.
    let arguments = ["--size", "1MB", "--runs", "1000", "--json"];
    let child = race(&cache, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let checkpoint_is_made = || {
        let folders = fs::read_dir(cache.join("crowfly")).into_iter().flatten();
        let index = |folder: fs::DirEntry| folder.path().join("model.safetensors.index.json");
        folders.flatten().map(index).any(|index| index.exists())
    };
    await_that(checkpoint_is_made);
    let kill = format!("kill -INT {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(document(&output)["error"]["code"], "interrupted");
    assert!(left_in(&cache).is_empty(), "{:?}", left_in(&cache));
}

#[test]
fn given_a_signal_while_the_checkpoint_is_made_nothing_of_it_stays_even_if_it_was_to_be_kept() {
    let cache = folder("race-interrupted-early");
    let child = race(&cache, &["--size", "3GB", "--keep", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    await_that(|| cache.join("crowfly").is_dir() && !left_in(&cache).is_empty());
    let kill = format!("kill -TERM {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
    let output = child.wait_with_output().expect("it ends");
    if output.status.code() == Some(73) {
        crowfly_waive::waived!("the disk has no space for 3 GB");
    }
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(
        document(&output)["error"]["message"],
        "interrupted by SIGTERM"
    );
    assert!(left_in(&cache).is_empty(), "{:?}", left_in(&cache));
}

#[test]
fn given_no_home_the_checkpoint_lies_in_a_folder_of_the_users_own() {
    let shared = folder("race-no-home");
    let arguments = ["--size", "1MB", "--runs", "1", "--json"];
    let mut command = race(&shared, &arguments);
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    let raced = run(command.env("TMPDIR", &shared));
    let from = document(&raced)["from"].as_str().map(str::to_owned);
    let private = shared.join("crowfly-");
    let start = format!("file:{}", private.display());
    assert!(from.is_some_and(|from| from.starts_with(&start)));
}
