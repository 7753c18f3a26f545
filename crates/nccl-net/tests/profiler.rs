//! NCCL is played by a C program (`player/events.c`) that tells the built library of its calls, in both versions
//! of the profiler interface.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crowfly_waive::waived;
use serde_json::{Value, json};

const VERSIONS: [&str; 2] = ["4", "5"];

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let path = test.with_file_name("libnccl_net_crowfly.so");
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

/// The player, in a folder of the test's own; `None` where there is no C compiler.
fn player(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/player/events.c");
    let to = folder.join("events");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    let done = cc.arg(&to).arg(source).arg("-ldl").output().ok()?;
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "the player does not compile: {said}");
    Some(to)
}

fn play(player: &Path, version: &str, scene: &str, receipts: &Path) -> Output {
    let mut command = Command::new(player);
    command.arg(library()).args([version, scene]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CROWFLY_NET_")) {
        command.env_remove(name);
    }
    let output = command
        .env("CROWFLY_NET_RECEIPTS", receipts)
        .output()
        .expect("the player runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.ends_with("done\n"), "version {version}: {said}");
    assert!(output.status.success(), "version {version}");
    output
}

fn receipts(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn given_what_nccl_tells_of_its_calls_the_receipt_has_them_with_algorithm_and_protocol() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(player) = player(folder.path()) else {
        waived!("no C compiler");
    };
    for version in VERSIONS {
        let file = folder.path().join(version);
        let played = play(&player, version, "calls", &file);
        let lines = receipts(&file);
        assert_eq!(lines.len(), 2, "version {version}: {lines:?}");
        let (closed, open) = (&lines[0], &lines[1]);
        assert_eq!(closed["schema"], "crowfly.nccl-net/1");
        assert_eq!(closed["event"], "calls");
        assert_eq!(closed["communicator"], "000000000000feed");
        assert_eq!(closed["name"], "tensor parallel");
        let shape = ["rank", "ranks", "nodes"].map(|name| closed[name].as_u64());
        assert_eq!(shape, [Some(9), Some(16), Some(2)]);
        assert_eq!(closed["closed"], true);
        assert_eq!(closed["others"], 0);
        let of = |what: &str, numbers: &str, algorithm: Option<&str>, protocol: Option<&str>| json!({"what": what, "numbers": numbers, "algorithm": algorithm, "protocol": protocol});
        let with = |mut kind: Value, calls: u64, bytes: u64, channels: u64| {
            kind["calls"] = calls.into();
            kind["bytes"] = bytes.into();
            kind["channels"] = channels.into();
            kind
        };
        let half = |protocol| of("AllReduce", "ncclBfloat16", Some("RING"), Some(protocol));
        let switch = of("AllReduce", "ncclBfloat16", Some("NVLS"), Some("SIMPLE"));
        let gathered = of("AllGather", "ncclFloat32", Some("RING"), Some("LL"));
        assert_eq!(
            closed["calls"],
            json!([
                with(half("LL128"), 3, 6000, 6),
                with(switch, 1, 2 << 20, 16),
                with(gathered, 1, 28, 1),
                with(of("Send", "ncclInt8", None, None), 2, 128, 1),
                with(of("Recv", "ncclInt8", None, None), 1, 128, 1),
            ]),
            "version {version}"
        );
        assert_eq!(open["communicator"], "000000000000beef");
        assert_eq!(open["closed"], false, "the process ended first");
        assert_eq!(open["name"], Value::Null);
        let sent = of("Broadcast", "ncclUint8", None, None);
        assert_eq!(open["calls"], json!([with(sent, 1, 5, 2)]));
        let log = String::from_utf8_lossy(&played.stderr).into_owned();
        assert!(
            log.contains(
                "communicator 000000000000feed: 3 AllReduce of ncclBfloat16 by RING LL128"
            ),
            "{log}"
        );
    }
}

#[test]
fn given_a_broken_caller_nothing_worse_comes_of_it_than_a_line_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(player) = player(folder.path()) else {
        waived!("no C compiler");
    };
    for version in VERSIONS {
        let file = folder.path().join(version);
        let played = play(&player, version, "misuse", &file);
        let log = String::from_utf8_lossy(&played.stderr).into_owned();
        assert!(log.contains("[unknown-object]"), "{log}");
        assert_eq!(receipts(&file), [] as [Value; 0]);
    }
}
