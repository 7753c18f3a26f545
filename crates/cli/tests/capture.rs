//! `crowfly capture`, from a machine to a file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crowfly_route::snapshot::Snapshot;
use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// A machine with one network adapter, in a directory.
fn machine(test: &str) -> PathBuf {
    let root = folder(test).join("root");
    let (class, bus) = (root.join("sys/class/net"), root.join("sys/bus/pci/devices"));
    let function = root.join("sys/devices/pci0000:00/0000:00:03.0");
    let interface = function.join("net/eth0");
    for directory in [&class, &bus, &interface] {
        fs::create_dir_all(directory).expect("created");
    }
    for (file, text) in [
        (function.join("vendor"), "0x15b3\n"),
        (function.join("device"), "0x1021\n"),
        (function.join("class"), "0x020000\n"),
        (interface.join("address"), "0c:42:a1:1d:50:6a\n"),
        (interface.join("mtu"), "9000\n"),
    ] {
        fs::write(file, text).expect("written");
    }
    let target = "../../../devices/pci0000:00/0000:00:03.0";
    symlink(target, bus.join("0000:00:03.0")).expect("linked");
    symlink(
        "../../devices/pci0000:00/0000:00:03.0/net/eth0",
        class.join("eth0"),
    )
    .expect("linked");
    symlink("../../../0000:00:03.0", interface.join("device")).expect("linked");
    root
}

fn capture(arguments: &[&str], root: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command
        .arg("capture")
        .arg("--root")
        .arg(root)
        .args(arguments);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command.output().expect("the program starts")
}

const ADDRESS: &str = "/sys/class/net/eth0/address";

#[test]
fn given_no_file_the_snapshot_is_the_output_and_the_summary_is_a_note() {
    let output = capture(&[], &machine("capture-stdout"));
    assert_eq!(output.status.code(), Some(0));
    let snapshot = Snapshot::from_json(&output.stdout).expect("a snapshot and nothing else");
    assert!(snapshot.redacted);
    assert_eq!(snapshot.text("/sys/class/net/eth0/mtu"), Some("9000"));
    let address = snapshot.text(ADDRESS).expect("an address");
    assert!(address.starts_with("02:"), "{address}");
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(note.starts_with("Captured "), "{note}");
}

#[test]
fn given_a_file_it_is_replaced_and_the_summary_is_the_output() {
    let root = machine("capture-file");
    let file = root.with_file_name("snapshot.json");
    fs::write(&file, "old").expect("written");
    let name = file.to_str().expect("a name");
    let output = capture(&["--unredacted", "--json", "-o", name], &root);
    assert_eq!(output.status.code(), Some(0));
    let snapshot = Snapshot::from_json(&fs::read(&file).expect("there")).expect("a snapshot");
    assert!(!snapshot.redacted);
    assert_eq!(snapshot.text(ADDRESS), Some("0c:42:a1:1d:50:6a"));
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(document["schema"], "crowfly.capture/1");
    assert_eq!(document["observations"], snapshot.len());
    assert_eq!(document["nics"], 1);
    let siblings = fs::read_dir(file.parent().expect("a folder")).expect("a folder");
    assert_eq!(
        siblings.count(),
        2,
        "the root, the snapshot and nothing else"
    );
}

#[test]
fn given_one_salt_two_captures_fit_together_and_given_none_they_do_not() {
    let root = machine("capture-salt");
    let address = |arguments: &[&str]| {
        let output = capture(arguments, &root);
        let snapshot = Snapshot::from_json(&output.stdout).expect("a snapshot");
        snapshot.text(ADDRESS).expect("an address").to_owned()
    };
    assert_eq!(address(&["--salt", "7"]), address(&["--salt", "7"]));
    assert_ne!(address(&["--salt", "7"]), address(&["--salt", "8"]));
    assert_ne!(address(&[]), address(&[]));
}

#[test]
fn given_a_snapshot_it_is_redacted_without_looking_at_this_machine() {
    let root = machine("capture-again");
    let file = root.with_file_name("raw.json");
    let raw = capture(&["--unredacted"], &root);
    fs::write(&file, &raw.stdout).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command
        .args(["capture", "--quiet", "--snapshot"])
        .arg(&file);
    let output = command.output().expect("the program starts");
    let raw = Snapshot::from_json(&raw.stdout).expect("a snapshot");
    let redacted = Snapshot::from_json(&output.stdout).expect("a snapshot");
    assert!(redacted.redacted);
    assert_eq!(redacted.len(), raw.len());
    assert_ne!(redacted.text(ADDRESS), raw.text(ADDRESS));
    assert!(output.stderr.is_empty());
}

#[test]
fn given_a_device_to_write_to_or_no_machine_to_look_at_the_failure_has_its_code() {
    let root = machine("capture-refused");
    for (arguments, root, code, status) in [
        (
            ["--json", "-o", "/dev/null"],
            root.as_path(),
            "output-not-a-file",
            73,
        ),
        (
            ["--json", "-o", "/no/such/file"],
            root.as_path(),
            "output-not-created",
            73,
        ),
        (
            ["--json", "-o", "unused"],
            Path::new("/dev/null"),
            "root-unreadable",
            66,
        ),
    ] {
        let output = capture(&arguments, root);
        assert_eq!(output.status.code(), Some(status), "{code}");
        let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(document["error"]["code"], code);
    }
}
