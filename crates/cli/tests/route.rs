//! `crowfly route` as its callers see it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crowfly_route::fixture::machines;

fn route(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("route").args(arguments).stdin(Stdio::null());
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
fn given_this_machine_the_ways_of_a_file_into_host_memory_are_one_document() {
    let output = route(&["--json", "Cargo.toml", "host"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["schema"], "crowfly.route/1");
    let from = document["from"].as_str().expect("a place");
    assert!(
        from.starts_with("file:/") && from.ends_with("/Cargo.toml"),
        "{from}"
    );
    let ways = document["ways"].as_array().expect("a list");
    assert!(
        ways.iter().any(|way| way["name"] == "page-cache"),
        "{ways:?}"
    );
}

#[test]
fn given_this_machine_a_gpu_that_may_not_exist_is_an_answer_and_no_error() {
    let output = route(&["--json", "Cargo.toml", "gpu:0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let ways = json(&output);
    for way in ways["ways"].as_array().expect("a list") {
        let named = way["obstacles"].as_array().expect("a list").iter();
        let blocked = named
            .filter(|obstacle| obstacle["effect"] == "blocks")
            .count();
        assert_eq!(way["standing"] == "blocked", blocked > 0, "{way}");
    }
}

#[test]
fn given_a_snapshot_the_numbers_of_a_way_stand_beside_its_hops() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(
        folder.path(),
        "dgx.json",
        &machines::dgx_h100().snapshot().to_json(),
    );
    let by_snapshot = route(&["--json", "--snapshot", &file, "drive:nvme0", "gpu:0"]);
    let by_from = route(&["--json", "--from", &file, "drive:nvme0", "gpu:0"]);
    assert_eq!(
        by_snapshot.status.code(),
        Some(0),
        "{}",
        text(&by_snapshot.stderr)
    );
    assert_eq!(text(&by_snapshot.stdout), text(&by_from.stdout));
    let document = json(&by_snapshot);
    let way = &document["ways"][0];
    assert_eq!(way["name"], "o-direct");
    assert_eq!(way["standing"], "open");
    assert_eq!(way["class"], "staged");
    let counters = serde_json::json!({
        "copies": 2, "cpu_touches": 0, "pcie_hops": 4, "host_ram_passes": 2,
    });
    assert_eq!(way["counters"], counters);
    assert_eq!(way["hops"].as_array().map(Vec::len), Some(2));
    assert_eq!(way["shared_links"][0], "0000:10:01.0–0000:11:00.0 Gen5 x16");
}

#[test]
fn given_nccls_file_what_it_does_not_tell_is_not_looked_at() {
    let folder = tempfile::tempdir().expect("a folder");
    let nccl = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
        <pci busid="0000:11:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
          <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="90" rank="0" gdr="1"/></pci>
          <pci busid="0000:13:00.0" class="0x020700" vendor="0x15b3" device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">
            <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic></pci>
        </pci></cpu></system>"#;
    let file = written(folder.path(), "nccl.xml", nccl);
    let output = route(&["--json", "--from", &file, "nic:mlx5_0", "gpu:0"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = json(&output);
    let named = |way: &&serde_json::Value| way["name"] == "gpudirect-rdma";
    let ways = document["ways"].as_array().expect("a list");
    let direct = ways.iter().find(named).expect("planned");
    assert_eq!(direct["standing"], "unproven");
    assert_eq!(direct["counters"]["pcie_hops"], 2);
}

#[test]
fn given_a_device_that_does_not_exist_the_error_tells_the_nearest_and_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(
        folder.path(),
        "dgx.json",
        &machines::dgx_h100().snapshot().to_json(),
    );
    let output = route(&["--json", "--snapshot", &file, "drive:nvme00", "gpu:0"]);
    assert_eq!(output.status.code(), Some(66));
    let error = &json(&output)["error"];
    assert_eq!(error["code"], "no-such-device");
    let hint = error["hint"].as_str().expect("a hint");
    assert!(hint.starts_with("did you mean drive:nvme0"), "{hint}");

    for (from, to, status) in [
        ("gpu:0", "gpu:0", 64),
        ("file:m", "gpu:0", 64),
        ("nonsense", "gpu:0", 64),
        ("/data/m", "remote:gpu:0", 64),
    ] {
        let output = route(&["--snapshot", &file, from, to]);
        assert_eq!(output.status.code(), Some(status), "{from} to {to}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn given_this_machine_a_start_that_is_not_there_is_no_way_but_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let (absent, empty) = (folder.path().join("absent"), folder.path());
    for (start, code) in [
        (absent.as_path(), "input-not-found"),
        (empty, "input-is-directory"),
    ] {
        let start = start.to_str().expect("text");
        let output = route(&["--json", start, "host"]);
        assert_eq!(output.status.code(), Some(66), "{start}");
        assert_eq!(json(&output)["error"]["code"], code);
    }
}

#[test]
fn given_a_server_of_the_catalogue_its_ways_are_told_with_what_was_assumed() {
    let output = route(&[
        "--json",
        "gpu:0",
        "remote:gpu:0",
        "--server",
        "aws-p6e-gb200",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let ways = json(&output)["ways"].as_array().expect("a list").len();
    assert!(ways > 2, "{ways}");
    let told = text(&output.stderr);
    assert!(told.contains("slots: which slot a device is in"), "{told}");
    assert!(
        told.contains("server aws-p6e-gb200: the catalogue's entry is unverified"),
        "{told}"
    );
    let unknown = route(&["--json", "gpu:0", "host", "--server", "dgx-h10"]);
    assert_eq!(unknown.status.code(), Some(64));
    assert_eq!(json(&unknown)["error"]["code"], "plan-unknown-name");
}
