//! `crowfly load`, from files on disk to documents and exit statuses.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const HEADER: &str = concat!(
    r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
    r#""b":{"dtype":"U8","shape":[],"data_offsets":[24,25]}}"#
);

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

fn safetensors(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    fs::write(path, bytes).expect("written");
}

fn load(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("load").arg(path).args(arguments);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command.output().expect("the program starts")
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// The stable code and the exit status of a load that fails.
fn refusal(arguments: &[&str], path: &Path) -> (String, i32) {
    let mut all = vec!["--json"];
    all.extend(arguments);
    let output = load(&all, path);
    let document = document(&output);
    assert_eq!(document["schema"], "crowfly.error/1");
    let status = output.status.code().expect("not killed");
    assert_eq!(document["error"]["exit"], status);
    let code = document["error"]["code"].as_str().expect("a code");
    (code.to_owned(), status)
}

#[test]
fn given_a_checkpoint_its_tensors_are_listed_in_file_order() {
    let path = folder("list").join("m.safetensors");
    safetensors(&path, HEADER, &[7; 25]);
    let listed = document(&load(&["--list", "--json"], &path));
    assert_eq!(listed["schema"], "crowfly.tensors/1");
    assert_eq!(listed["bytes"], 25);
    let start = 8 + HEADER.len();
    let expected = json!([
        {"name": "a", "dtype": "F32", "shape": [2, 3], "bytes": 24, "file": 0, "offset": start},
        {"name": "b", "dtype": "U8", "shape": [], "bytes": 1, "file": 0, "offset": start + 24},
    ]);
    assert_eq!(listed["tensors"], expected);

    let text = load(&["--list"], &path);
    let text = String::from_utf8_lossy(&text.stdout);
    let expected = format!(
        "tensor  dtype  shape   size\n\
         a       F32    2×3     24 B\n\
         b       U8     scalar   1 B\n\
         \n\
         2 tensors, 25 B in 1 file of {}\n",
        path.display()
    );
    assert_eq!(text, expected);
}

#[test]
fn given_a_checkpoint_the_receipt_sums_to_what_was_asked_for_by_every_path() {
    let path = folder("paths").join("m.bin");
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|n| (n % 251) as u8).collect();
    fs::write(&path, &bytes).expect("written");
    let mut checksums = Vec::new();
    for way in ["direct", "threads", "mapped", "cached"] {
        let output = load(&["--json", "--verify", "--path", way], &path);
        let document = document(&output);
        if document["error"]["code"] == "route-refused" && way == "direct" {
            crowfly_waive::waived!("the file system of the target directory refuses O_DIRECT");
        }
        assert_eq!(output.status.code(), Some(0), "{way}: {document}");
        let receipt = &document["receipt"];
        let shares = receipt["shares"].as_array().expect("shares");
        let sum: u64 = shares.iter().filter_map(|s| s["bytes"].as_u64()).sum();
        assert_eq!(sum, bytes.len() as u64, "{way}");
        assert_eq!(receipt["verification"]["state"], "matched", "{way}");
        checksums.push(receipt["verification"]["checksum"].to_string());
    }
    checksums.dedup();
    assert_eq!(checksums.len(), 1, "one source, one checksum");
}

#[test]
fn given_bytes_in_transit_none_are_kept_and_all_are_counted() {
    let path = folder("transit").join("m.bin");
    fs::write(&path, vec![1; 3_000_000]).expect("written");
    let output = load(&["--json", "--transit", "--budget", "64MB"], &path);
    let document = document(&output);
    assert_eq!(document["kept"], false, "{document}");
    assert_eq!(document["receipt"]["requested"], 3_000_000);
}

#[test]
fn given_a_path_that_is_not_text_every_document_still_comes_out() {
    let name = OsStr::from_bytes(b"bad\xff.safetensors");
    let file = folder("load-not-text").join(name);
    safetensors(&file, HEADER, &[7; 25]);
    for arguments in [&["--json"][..], &["--json", "--list"]] {
        let output = load(arguments, &file);
        assert_eq!(output.status.code(), Some(0));
        let shown = document(&output)["path"].as_str().map(str::to_owned);
        let end = "load-not-text/bad\u{fffd}.safetensors";
        assert!(shown.is_some_and(|path| path.ends_with(end)));
    }
}

#[test]
fn bad_input_is_refused_with_its_code_and_status() {
    let folder = folder("bad");
    let file = |name: &str, header: &str, data: usize| {
        let path = folder.join(name);
        safetensors(&path, header, &vec![0; data]);
        path
    };
    let empty = folder.join("empty.safetensors");
    File::create(&empty).expect("created");
    let fifo = folder.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let bare = folder.join("bare");
    fs::create_dir(&bare).expect("created");

    let looped = folder.join("loop");
    std::os::unix::fs::symlink("loop", &looped).expect("linked");

    let cases: [(&str, i32, PathBuf); 12] = [
        ("io-failed", 66, looped),
        ("io-failed", 66, folder.join("x".repeat(300))),
        ("not-a-file", 66, "/proc/self/status".into()),
        ("not-a-file", 66, "/proc/self/mem".into()),
        (
            "not-a-file",
            66,
            "/sys/kernel/mm/transparent_hugepage/enabled".into(),
        ),
        ("not-found", 66, folder.join("absent")),
        ("not-a-file", 66, fifo),
        ("no-safetensors", 65, bare),
        ("too-short", 65, empty),
        ("not-an-object", 65, file("list.safetensors", "[]", 0)),
        ("data-past-end", 65, file("cut.safetensors", HEADER, 24)),
        ("trailing-bytes", 65, file("long.safetensors", HEADER, 26)),
    ];
    for (code, status, path) in cases {
        let expected = (code.to_owned(), status);
        assert_eq!(refusal(&[], &path), expected, "{}", path.display());
        assert_eq!(refusal(&["--list"], &path), expected, "{}", path.display());
    }
}

#[test]
fn given_a_place_that_is_no_file_of_this_machine_it_is_said_that_only_such_are_read() {
    for place in [
        "s3://bucket/m",
        "http://host/m",
        "https://host/m",
        "gpu:0",
        "drive:nvme0",
    ] {
        let output = load(&["--json"], Path::new(place));
        assert_eq!(output.status.code(), Some(64), "{place}");
        let error = document(&output)["error"].clone();
        assert_eq!(error["code"], "usage");
        let message =
            format!("{place} is no file or folder of this machine, and only such are read");
        assert_eq!(error["message"], message.as_str());
        let hint = error["hint"].as_str().expect("a way out");
        let way_out = match place {
            "s3://bucket/m" => "`crowfly cp s3://bucket/m gpu:N`",
            _ => "copy it to a drive",
        };
        assert!(hint.contains(way_out), "{hint}");
    }
    let file = folder("places").join("m.bin");
    fs::write(&file, [1; 100]).expect("written");
    for scheme in ["file:", "file://"] {
        let place = format!("{scheme}{}", file.display());
        let loaded = document(&load(&["--json"], Path::new(&place)));
        assert_eq!(loaded["receipt"]["requested"], 100);
        assert_eq!(
            loaded["receipt"]["from"],
            format!("file:{}", file.display()).as_str()
        );
    }
}

#[test]
fn given_a_budget_that_is_too_small_both_sizes_have_their_unit() {
    let file = folder("budget").join("m.bin");
    fs::write(&file, [1; 100]).expect("written");
    let output = load(&["--json", "--transit", "--budget", "4KiB"], &file);
    assert_eq!(output.status.code(), Some(64));
    let error = document(&output)["error"].clone();
    assert_eq!(error["code"], "budget-too-small");
    let message = error["message"].as_str().expect("text");
    assert!(
        message.ends_with(" bytes of memory at least, not 4096 bytes"),
        "{message}"
    );
}

#[test]
fn a_destination_or_policy_that_cannot_be_met_is_refused_before_the_first_byte() {
    let path = folder("refused").join("m.bin");
    fs::write(&path, [1; 100]).expect("written");
    let refused = |arguments: &[&str]| refusal(arguments, &path);
    assert_eq!(refused(&["--to", "gpu:0"]), ("no-gpu".into(), 69));
    assert_eq!(
        refused(&["--to", "nic:eth0"]),
        ("not-a-destination".into(), 64)
    );
    assert_eq!(refused(&["--to", "nowhere"]), ("usage".into(), 64));
    assert_eq!(
        refused(&["--policy", "socket"]),
        ("route-refused".into(), 69)
    );
    assert_eq!(
        refused(&["--policy", "require", "--path", "cached"]),
        ("path-forbidden".into(), 64)
    );
    assert_eq!(
        refused(&["--policy", "staged", "--path", "direct"]),
        ("path-forbidden".into(), 64)
    );
    let hint = |arguments: &[&str]| {
        let all = [&["--json"], arguments].concat();
        document(&load(&all, &path))["error"]["hint"].clone()
    };
    for (arguments, able) in [
        (
            &["--path", "peer"][..],
            "paths that can: direct, threads, mapped, cached",
        ),
        (
            &["--transit", "--path", "mapped"],
            "paths that can: direct, threads, cached",
        ),
        (
            &["--transit", "--path", "peer"],
            "paths that can: direct, threads, cached",
        ),
    ] {
        assert_eq!(refused(arguments), ("path-cannot-reach".into(), 64));
        assert_eq!(hint(arguments), able, "{arguments:?}");
    }
    for budget in ["0", "1MB", "35651583"] {
        let refusal = refused(&["--transit", "--budget", budget]);
        assert_eq!(refusal, ("budget-too-small".into(), 64), "{budget}");
    }
    for size in ["-1", "1e99GiB", "99999999999TB", "nan"] {
        let budget = format!("--budget={size}");
        assert_eq!(
            refused(&["--transit", &budget]),
            ("usage".into(), 64),
            "{size}"
        );
    }
    assert_eq!(refused(&["--tensors", "*"]), ("raw-file".into(), 64));
    assert_eq!(refused(&["--shard", "1/2"]), ("raw-file".into(), 64));
}

#[test]
fn given_ctrl_c_a_load_stops_and_says_so() {
    // Sparse, and so large that no machine is done with it before the signal.
    let path = folder("interrupt").join("m.bin");
    let file = File::create(&path).expect("created");
    if file.set_len(1 << 40).is_err() {
        crowfly_waive::waived!("the file system holds no sparse file of 1 TiB");
    }
    let child = Command::new(env!("CARGO_BIN_EXE_crowfly"))
        .args(["load", "--transit", "--json"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let handler_is_set = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.expect("the program runs");
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 0b10 != 0)
    };
    while !handler_is_set() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
    let output = child.wait_with_output().expect("it ends");
    fs::remove_file(&path).expect("removed");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(document(&output)["error"]["code"], "interrupted");
}
