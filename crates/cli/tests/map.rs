//! `crowfly map` as its callers see it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crowfly_route::fixture::machines;

fn map(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("map").args(arguments).stdin(Stdio::null());
    command.output().expect("the program starts")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path.to_string_lossy().into_owned()
}

#[test]
fn given_this_machine_the_map_is_one_document() {
    let output = map(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["schema"], "crowfly.map/1");
    let devices = document["devices"].as_array().expect("a list").len();
    let pairs = document["distances"].as_array().expect("a list").len();
    assert_eq!(pairs, devices * devices.saturating_sub(1) / 2);
}

#[test]
fn given_the_same_machine_as_snapshot_by_either_option_the_map_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = machines::dgx_h100().snapshot().to_json();
    let file = written(folder.path(), "dgx.json", &snapshot);
    let (from, by_snapshot) = (map(&["--from", &file]), map(&["--snapshot", &file]));
    assert_eq!(from.status.code(), Some(0), "{}", text(&from.stderr));
    assert_eq!(text(&from.stdout), text(&by_snapshot.stdout));
    assert!(text(&from.stdout).contains("NV18, 450 GB/s each way, between all of gpu0–7"));
}

#[test]
fn given_svg_the_picture_is_written_and_the_map_still_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = machines::pcie_box().snapshot().to_json();
    let file = written(folder.path(), "box.json", &snapshot);
    let picture = folder.path().join("box.svg");
    let svg = picture.to_string_lossy();
    let output = map(&["--from", &file, "--svg", &svg]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("gpu0"));
    assert!(text(&output.stderr).contains("picture written to "));
    let written = std::fs::read_to_string(&picture).expect("a picture");
    assert!(written.starts_with("<svg "));

    let output = map(&["--from", &file, "--svg", "/no/such/folder/box.svg"]);
    assert_eq!(output.status.code(), Some(73));
}

#[test]
fn given_other_programs_files_the_map_is_drawn_or_the_refusal_says_what_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let nccl = r#"<system version="1"><cpu numaid="0">
        <pci busid="0000:41:00.0" class="0x030200" vendor="0x10de" device="0x2330"
             link_speed="32.0 GT/s PCIe" link_width="16"/></cpu></system>"#;
    let file = written(folder.path(), "nccl.xml", nccl);
    let document = json(&map(&["--json", "--from", &file]));
    assert_eq!(document["devices"][0]["name"], "gpu0");
    assert_eq!(document["links"][0]["state"], "unknown");

    let file = written(folder.path(), "matrix.txt", "\tGPU0\tGPU1\n");
    let output = map(&["--json", "--from", &file]);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(json(&output)["error"]["code"], "topology-unrecognised");
    assert!(text(&output.stderr).contains("`lstopo --of xml`"));

    let file = written(
        folder.path(),
        "forged.xml",
        "<system>\u{1b}[2Jall is well</system>",
    );
    let output = map(&["--from", &file]);
    assert_eq!(output.status.code(), Some(65));
    assert!(
        !text(&output.stderr).contains('\u{1b}'),
        "{}",
        text(&output.stderr)
    );

    let output = map(&["--from", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(66));
}
