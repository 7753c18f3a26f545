//! `crowfly bench collective`, small: what it prints, what it refuses, and how ranks that someone else
//! started find each other. No test asks how fast anything was.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// The command, with no launcher's variables around it.
fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(["bench", "collective"]).args(arguments);
    command.stdin(Stdio::null());
    for variable in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    command
}

fn document(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

const SMALL: [&str; 6] = ["--size", "4KiB,100000", "--rounds", "1", "--time", "1"];

#[test]
fn given_ranks_to_start_every_collective_is_right_and_says_how_it_was_done() {
    let what = "all-reduce,reduce-scatter,all-gather,broadcast,all-to-all,barrier";
    let arguments = [
        "--ranks",
        "3",
        "--what",
        what,
        "--element",
        "bf16",
        "--json",
    ];
    let output = bench(&[&arguments[..], &SMALL].concat())
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let table = document(&output);
    assert_eq!(table["schema"], "crowfly.bench-collective/1");
    assert_eq!((&table["ranks"], &table["hosts"]), (&3.into(), &1.into()));
    let points = table["points"].as_array().expect("points");
    assert_eq!(points.len(), 5 * 2 + 1, "a barrier has no size");
    for point in points {
        assert_eq!(point["wrong"], 0);
        let receipt = &point["samples"][0]["receipt"];
        assert_eq!(receipt["schema"], "crowfly.collective/1");
        assert_eq!(receipt["collective"], point["collective"]);
        assert!(
            receipt["because"]
                .as_str()
                .is_some_and(|why| !why.is_empty())
        );
        let is_bound = point["collective"] == "all-reduce";
        assert_eq!(
            point["ceiling"]["provenance"]["kind"] == "measured",
            is_bound
        );
        assert_eq!(point["share"].is_number(), is_bound);
    }
}

#[test]
fn given_tcp_all_bytes_go_by_it_and_the_algorithm_asked_for_is_used() {
    let arguments = [
        "--ranks",
        "2",
        "--path",
        "tcp",
        "--algorithm",
        "ring",
        "--json",
    ];
    let picture = folder("bench-collective-tcp").join("all-reduce.svg");
    let output = bench(&[&arguments[..], &SMALL].concat())
        .arg("--svg")
        .arg(&picture)
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let picture = fs::read_to_string(picture).expect("the picture");
    assert!(roxmltree::Document::parse(&picture).is_ok());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let counted = &document(&output)["processors"];
    assert_eq!(counted, processors, "before a rank was bound to one");
    for point in document(&output)["points"].as_array().expect("points") {
        assert_eq!(point["ceiling"]["provenance"]["kind"], "measured");
        let receipt = &point["samples"][0]["receipt"];
        assert_eq!(
            (&receipt["algorithm"], &receipt["because"]),
            (&"ring".into(), &"asked for".into())
        );
        let moved = receipt["moved"].as_array().expect("ways");
        // Half of the buffer to the other rank, and the other half back.
        assert_eq!(moved.len(), 1);
        assert_eq!(
            (&moved[0]["path"], &moved[0]["bytes"]),
            (&"tcp".into(), &point["size"])
        );
    }
}

#[test]
fn given_a_launchers_variables_each_process_is_a_rank_and_the_first_one_speaks() {
    let folder = folder("bench-collective-launched");
    let key_file = folder.join("key");
    fs::write(&key_file, "5".repeat(64)).expect("written");
    fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).expect("ours");
    let start = |rank: &str| {
        let mut command = bench(&["--json", "--folder"]);
        command
            .arg(&folder)
            .arg("--key-file")
            .arg(&key_file)
            .args(SMALL);
        command
            .env("RANK", rank)
            .env("WORLD_SIZE", "2")
            .env("LOCAL_RANK", rank);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts")
    };
    let (first, second) = (start("0"), start("1"));
    let first = first.wait_with_output().expect("ends");
    let second = second.wait_with_output().expect("ends");
    assert_eq!(
        (first.status.code(), second.status.code()),
        (Some(0), Some(0))
    );
    assert_eq!(document(&first)["ranks"], 2);
    assert!(second.stdout.is_empty());
}

#[test]
fn given_what_cannot_be_measured_it_is_refused_at_once() {
    let refused = |arguments: &[&str]| {
        let output = bench(arguments).arg("--json").output().expect("runs");
        (
            output.status.code(),
            document(&output)["error"]["message"].to_string(),
        )
    };
    let (status, message) = refused(&["--svg", "/no/such/folder/a.svg"]);
    assert_eq!(status, Some(73), "{message}");
    let (status, message) = refused(&["--size", "7"]);
    assert_eq!(status, Some(64));
    assert!(message.contains("--size 7: a buffer has 8 to"), "{message}");
    let mut command = bench(&["--json"]);
    let output = command
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(64));
    let error = document(&output)["error"]["message"].to_string();
    assert!(error.contains("--folder and --key-file"), "{error}");
    let (status, message) = refused(&[
        "--ranks",
        "2",
        "--algorithm",
        "tree",
        "--what",
        "all-gather",
    ]);
    assert_eq!(status, Some(64));
    assert!(
        message.contains("2 ranks on one host cannot do it by tree"),
        "{message}"
    );
}
