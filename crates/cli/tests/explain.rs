//! `crowfly explain` as its callers see it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crowfly_route::fixture::machines;

/// A job over two nodes whose channels do not reach the GPUs' memory.
const STAGED_LOG: &str = "\
alpha:101:101 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
alpha:101:140 [0] NCCL INFO Using network IB
alpha:101:140 [0] NCCL INFO ncclCommInitRank comm 0x5581 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa1 - Init START
beta:202:240 [0] NCCL INFO ncclCommInitRank comm 0x7791 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xa1 - Init START
alpha:101:140 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
alpha:101:140 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
beta:202:240 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0
beta:202:240 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0
";

/// The same job where they do.
fn direct_log() -> String {
    STAGED_LOG.replace("via NET/IB/0", "via NET/IB/0/GDRDMA")
}

/// A node whose only adapter is across the sockets from its GPUs.
const FAR_MATRIX: &str = "\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tSYS\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\t0-15\t0\t\tN/A
NIC0\tSYS\tSYS\t X \t\t\t\t

NIC Legend:

  NIC0: mlx5_0
";

const GDSCHECK: &str = "\
 GDS release version: 1.13.1.3
 nvidia_fs version:  2.24 libcufile version: 2.12
 Platform: x86_64
 ============
 ENVIRONMENT:
 ============
 =====================
 DRIVER CONFIGURATION:
 =====================
 NVMe P2PDMA        : Unsupported
 NVMe               : Unsupported
 NVMeOF             : Unsupported
 =====================
 CUFILE CONFIGURATION:
 =====================
 properties.use_pci_p2pdma : false
 properties.allow_compat_mode : true
 =========
 GPU INFO:
 =========
 GPU index 0 NVIDIA H100 80GB HBM3 bar:1 bar size (MiB):131072 supports GDS, IOMMU State: Disabled
 ==============
 PLATFORM INFO:
 ==============
 IOMMU: disabled
 Platform verification succeeded
";

fn crowfly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

fn explain(folder: &Path, arguments: &[&str]) -> Output {
    let arguments = [&["explain"], arguments].concat();
    crowfly(folder, &arguments)
        .output()
        .expect("the program starts")
}

/// Explains what is fed to standard input.
fn fed(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let arguments = [&["explain"], arguments].concat();
    let mut child = crowfly(folder, &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("read to the end");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// A folder with these files in it.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        fs::write(folder.path().join(name), content).expect("written");
    }
    folder
}

/// The answer for people, with every line held to the width that was promised.
fn told(output: &Output) -> String {
    let text = text(&output.stdout);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
        assert_eq!(line, line.trim_end());
    }
    text
}

#[test]
fn given_a_log_whose_channels_bounce_the_answer_fits_one_screen_and_quotes_its_lines() {
    let folder = folder(&[("nccl.log", STAGED_LOG)]);
    let output = explain(folder.path(), &["nccl.log"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let answer = told(&output);
    assert!(answer.starts_with("staged: "), "{answer}");
    assert!(answer.contains("nccl.log:6: "), "{answer}");
    assert!(answer.lines().count() <= 50, "{answer}");
    insta::assert_snapshot!(answer);
}

#[test]
fn given_a_log_whose_channels_reach_the_gpus_the_status_is_zero() {
    let log = direct_log();
    let folder = folder(&[("nccl.log", log.as_str())]);
    let output = explain(folder.path(), &["nccl.log"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(told(&output).starts_with("direct: "));
}

#[test]
fn given_damaged_results_the_status_is_two() {
    let log = "alpha:1:9 [0] ib_plugin.c:902 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> \
               with status=4 opcode=0 len=0 vendor err 81 (Recv)\n";
    let folder = folder(&[("nccl.log", log)]);
    let output = explain(folder.path(), &["nccl.log"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(told(&output).starts_with("broken: "));
}

#[test]
fn given_a_log_and_a_matrix_the_answer_joins_them() {
    let folder = folder(&[("nccl.log", STAGED_LOG), ("topo.txt", FAR_MATRIX)]);
    let output = explain(folder.path(), &["--json", "nccl.log", "topo.txt"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["schema"], "crowfly.diagnosis/1");
    assert_eq!(document["verdict"], "staged");
    let codes: Vec<&str> = document["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| finding["code"].as_str().expect("a code"))
        .collect();
    assert!(codes.contains(&"N1") && codes.contains(&"N8"), "{codes:?}");
    let sources = document["sources"].as_array().expect("a list");
    let read = |index: usize| {
        let source = &sources[index];
        let format = source["sections"][0]["format"].as_str().map(str::to_owned);
        (source["name"].as_str().map(str::to_owned), format)
    };
    let named = |name: &str, format: &str| (Some(name.to_owned()), Some(format.to_owned()));
    assert_eq!(read(0), named("nccl.log", "nccl-log"));
    assert_eq!(read(1), named("topo.txt", "topo-matrix"));
}

#[test]
fn given_all_every_finding_tells_doubts_and_source_and_every_pair_has_a_line() {
    let folder = folder(&[("topo.txt", FAR_MATRIX)]);
    let output = explain(folder.path(), &["--all", "topo.txt"]);
    insta::assert_snapshot!(told(&output));
    let verbose = explain(folder.path(), &["--verbose", "topo.txt"]);
    assert_eq!(text(&verbose.stdout), text(&output.stdout));
}

#[test]
fn given_a_storage_check_the_answer_is_about_drives() {
    let folder = folder(&[("gds.txt", GDSCHECK)]);
    let output = explain(folder.path(), &["gds.txt"]);
    let answer = told(&output);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    assert!(answer.contains("GPU–drive"), "{answer}");
}

#[test]
fn given_standard_input_by_a_dash_or_by_nothing_the_answer_is_the_same() {
    let folder = folder(&[]);
    let (by_dash, by_nothing) = (
        fed(folder.path(), &["-"], STAGED_LOG.as_bytes()),
        fed(folder.path(), &[], STAGED_LOG.as_bytes()),
    );
    assert_eq!(by_dash.status.code(), Some(1));
    assert_eq!(text(&by_dash.stdout), text(&by_nothing.stdout));
    assert!(text(&by_dash.stdout).contains("stdin:6: "));
}

#[test]
fn given_an_unknown_paste_what_it_looked_like_and_what_is_known_are_told() {
    let paste = "Dear team,\nour job is \u{1b}[31mslow\u{1b}[0m.\u{1b}]0;owned\u{7}\nRegards\n";
    let folder = folder(&[("mail.txt", paste)]);
    let output = explain(folder.path(), &["mail.txt"]);
    assert_eq!(output.status.code(), Some(3));
    let answer = told(&output);
    assert!(!answer.contains('\u{1b}'), "{answer:?}");
    insta::assert_snapshot!(answer);

    let document = json(&explain(folder.path(), &["--json", "mail.txt"]));
    assert_eq!(document["verdict"], "insufficient-evidence");
    let unread = &document["sources"][0]["unread"];
    assert_eq!(unread["lines"], 3);
    assert_eq!(unread["first"][0]["text"], "Dear team,");
}

#[test]
fn given_escapes_in_evidence_no_terminal_sees_them_in_any_form() {
    let hostile = STAGED_LOG.replace("Using network IB", "Using network \u{1b}[2JIB\u{202e}\u{7}");
    let log = hostile.replace(
        "via NET/IB/0",
        "via NET/IB\u{1b}]8;;http://x\u{7}/0\u{9b}31m",
    );
    let folder = folder(&[("nccl.log", log.as_str())]);
    for arguments in [&["--all", "nccl.log"][..], &["--fix-script", "nccl.log"]] {
        let output = explain(folder.path(), arguments);
        let answer = text(&output.stdout);
        let harmful =
            |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!answer.contains(harmful), "{answer:?}");
    }
}

#[test]
fn given_a_dead_end_the_failure_names_it_before_anything_is_read() {
    let folder = folder(&[("nccl.log", STAGED_LOG), ("secret", "x")]);
    let made = Command::new("mkfifo")
        .arg(folder.path().join("pipe"))
        .status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    fs::create_dir(folder.path().join("logs")).expect("created");
    let mut cases = vec![
        ("no-such-file", "input-not-found", 66),
        ("logs", "input-is-directory", 66),
        ("pipe", "input-not-a-file", 66),
        ("/dev/zero", "input-not-a-file", 66),
    ];
    let secret = folder.path().join("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("set");
    if fs::File::open(&secret).is_err() {
        cases.push(("secret", "input-denied", 66));
    }
    for (name, code, status) in cases {
        let output = explain(folder.path(), &["--json", "nccl.log", name]);
        assert_eq!(output.status.code(), Some(status), "{name}");
        assert_eq!(json(&output)["error"]["code"], code, "{name}");
    }
}

#[test]
fn given_what_is_no_text_the_hint_says_how_to_unpack_it() {
    let folder = folder(&[]);
    fs::write(folder.path().join("log.xz"), b"\xfd7zXZ\0\0\0\0\0").expect("written");
    fs::write(folder.path().join("log.zip"), b"PK\x03\x04\0\0\0").expect("written");
    fs::write(folder.path().join("core"), b"\x7fELF\x02\x01\x01\0\0\0\0\0").expect("written");
    for (name, hint) in [
        ("log.xz", "`xzcat log.xz | crowfly explain -`"),
        ("log.zip", "`unzip -p log.zip | crowfly explain -`"),
    ] {
        let output = explain(folder.path(), &[name]);
        assert_eq!(output.status.code(), Some(65));
        let told = text(&output.stderr);
        assert!(told.starts_with("error[input-not-text]: "), "{told}");
        assert!(told.contains(hint), "{told}");
    }
    let output = explain(folder.path(), &["--json", "core"]);
    assert_eq!(json(&output)["error"]["code"], "input-not-text");
}

/// The text as gzip packs it.
fn packed(text: &str) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(text.as_bytes()).expect("packed");
    packer.finish().expect("packed")
}

#[test]
fn given_a_packed_log_what_is_in_it_is_read_from_a_file_and_from_standard_input() {
    let folder = folder(&[]);
    // Logs that were rotated and joined are several packs, one behind the other.
    let (front, back) = STAGED_LOG.split_at(STAGED_LOG.len() / 2);
    let mut log = packed(front);
    log.extend(packed(back));
    fs::write(folder.path().join("log.gz"), &log).expect("written");
    let document = json(&explain(folder.path(), &["--json", "log.gz"]));
    assert_eq!(document["verdict"], "staged");
    assert_eq!(document["sources"][0]["lines"], 8);
    let output = piped(folder.path(), &["explain", "--json", "-"], &log);
    assert_eq!(json(&output)["verdict"], "staged");

    fs::write(folder.path().join("half.gz"), &log[..log.len() / 3]).expect("written");
    let output = explain(folder.path(), &["--json", "half.gz"]);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(json(&output)["error"]["code"], "input-damaged");
}

/// Runs the program with these bytes on standard input, as far as it wants them.
fn piped(folder: &Path, arguments: &[&str], bytes: &[u8]) -> Output {
    let mut child = crowfly(folder, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let _ = child.stdin.take().expect("piped").write_all(bytes);
    child.wait_with_output().expect("it ends")
}

#[test]
fn given_an_endless_stream_of_no_text_it_is_refused_without_waiting_for_its_end() {
    let folder = folder(&[]);
    let endless = fs::File::open("/dev/zero").expect("every Linux has it");
    let output = crowfly(folder.path(), &["explain", "--json"])
        .stdin(endless)
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(json(&output)["error"]["code"], "input-not-text");
}

#[test]
fn given_a_snapshot_longer_than_a_paste_may_be_a_file_is_read_and_a_stream_refused_with_the_reason()
{
    const LONG: usize = 17 << 20;
    let mut machine = machines::dgx_h100();
    for at in 0..LONG / 1_000 {
        let key = format!("/sys/kernel/iommu_groups/{at}/{:0>970}", "x");
        machine.text(&key, "1");
    }
    let snapshot = machine.snapshot().to_json();
    assert!(snapshot.len() > 16 << 20);
    let folder = folder(&[("node.json", snapshot.as_str())]);
    let document = json(&explain(folder.path(), &["--json", "node.json"]));
    let pairs = document["pairs"].as_array().expect("a list");
    assert!(pairs.iter().any(|pair| pair["kind"] == "gpu-nic"));

    let output = piped(folder.path(), &["explain", "--json"], snapshot.as_bytes());
    let document = json(&output);
    assert_eq!(document["refused"][0]["code"], "kept-too-long");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn given_much_to_tell_the_summary_still_fits_one_screen() {
    let snapshot = machines::pcie_box().snapshot().to_json();
    let folder = folder(&[
        ("nccl.log", STAGED_LOG),
        ("topo.txt", FAR_MATRIX),
        ("gds.txt", GDSCHECK),
        ("node.json", snapshot.as_str()),
        ("mail.txt", "nothing that is known\n"),
    ]);
    for files in [
        &["nccl.log"][..],
        &["mail.txt"],
        &["node.json"],
        &["nccl.log", "topo.txt", "gds.txt", "node.json", "mail.txt"],
    ] {
        let output = explain(folder.path(), files);
        let lines = text(&output.stdout).lines().count();
        assert!(lines <= 24, "{files:?}: {lines} lines");
    }
}

#[test]
fn given_each_verdict_the_exit_status_tells_it() {
    let folder = folder(&[
        ("direct", direct_log().as_str()),
        ("staged", STAGED_LOG),
        (
            "socket",
            STAGED_LOG.replace("NET/IB/0", "NET/Socket/0").as_str(),
        ),
        (
            "broken",
            &format!(
                "{STAGED_LOG}alpha:101:140 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got \
                 completion from peer 10.0.0.2<45678> with status=12 opcode=0 len=0 vendor err 129 \
                 (Send) localGid fe80::1 remoteGidsfe80::2 hca mlx5_0\n"
            ),
        ),
        ("open", "NCCL version 2.21.5+cuda12.4\n"),
    ]);
    for (name, verdict, status) in [
        ("direct", "direct", 0),
        ("staged", "staged", 1),
        ("socket", "socket", 1),
        ("broken", "broken", 2),
        ("open", "insufficient-evidence", 3),
    ] {
        let output = explain(folder.path(), &["--json", name]);
        assert_eq!(json(&output)["verdict"], verdict, "{name}");
        assert_eq!(output.status.code(), Some(status), "{name}");
    }
    let output = explain(folder.path(), &["--no-such-option"]);
    assert_eq!(output.status.code(), Some(64));
    let output = explain(folder.path(), &["not there"]);
    assert_eq!(output.status.code(), Some(66));
}

#[test]
fn given_standard_input_twice_or_a_file_twice_the_first_is_refused_and_the_second_read_once() {
    let folder = folder(&[("nccl.log", STAGED_LOG)]);
    let output = explain(folder.path(), &["-", "-"]);
    assert_eq!(output.status.code(), Some(64));
    let output = explain(folder.path(), &["--json", "nccl.log", "./nccl.log"]);
    assert_eq!(json(&output)["sources"].as_array().map(Vec::len), Some(1));
    assert!(text(&output.stderr).contains("./nccl.log was given before"));
}

#[test]
fn given_a_snapshot_among_the_files_the_machine_is_judged_as_well() {
    let snapshot = machines::dgx_h100().snapshot().to_json();
    let folder = folder(&[("node.json", snapshot.as_str())]);
    let output = explain(folder.path(), &["--json", "node.json"]);
    let document = json(&output);
    let pairs = document["pairs"].as_array().expect("a list");
    assert!(
        pairs.iter().any(|pair| pair["kind"] == "gpu-nic"),
        "{pairs:?}"
    );
}

#[test]
fn given_a_snapshot_that_cannot_be_decoded_it_is_said() {
    let broken = "{\"schema\": \"crowfly.snapshot/1\", \"tool\": 7}\n";
    let folder = folder(&[("node.json", broken)]);
    let output = explain(folder.path(), &["node.json"]);
    let answer = told(&output);
    assert_eq!(output.status.code(), Some(3), "{answer}");
    assert!(
        answer.contains("node.json:1 looks like a machine"),
        "{answer}"
    );
}

#[test]
fn given_a_log_larger_than_the_memory_it_may_use_the_bound_is_kept() {
    const LINES: usize = 1_000_000;
    const MOST_KILOBYTES: u64 = 64 << 10;
    let Ok(limit) = fs::read_to_string("/proc/self/status") else {
        crowfly_waive::waived!("there is no /proc");
    };
    assert!(limit.contains("VmHWM"));
    let folder = folder(&[]);
    let mut child = crowfly(folder.path(), &["explain", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(STAGED_LOG.as_bytes()).expect("read");
    let noise: String = (0..1_000)
        .map(|i| format!("step {i}: loss 0.693147 lr 0.0001 tokens/s 123456 grad norm 1.0 and more words to read past {i}\n"))
        .collect();
    for _ in 0..LINES / 1_000 {
        stdin.write_all(noise.as_bytes()).expect("read");
    }
    // It waits for more: what it holds now is what it holds at most.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("alive");
    let peak = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmHWM:")?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        })
        .expect("a number");
    assert!(peak <= MOST_KILOBYTES, "{peak} kB");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["sources"][0]["lines"], 8 + LINES as u64);
}

#[test]
fn given_a_file_that_would_have_to_be_waited_for_it_is_refused() {
    let log = "/proc/kmsg";
    if fs::File::open(log).is_err() {
        crowfly_waive::waived!("the log of the kernel may not be read");
    }
    let started = std::time::Instant::now();
    let mut child = crowfly(Path::new("."), &["explain", log])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    while child.try_wait().expect("a child").is_none() {
        if started.elapsed() > std::time::Duration::from_secs(60) {
            child.kill().expect("ended");
            panic!("it waits");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its words");
    assert_eq!(output.status.code(), Some(66));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.starts_with("error[input-would-block]: "), "{told}");
}

#[test]
fn given_fix_script_it_names_the_command_that_wrote_it_and_the_status_is_not_the_verdicts() {
    let folder = folder(&[("nccl.log", STAGED_LOG)]);
    assert_eq!(explain(folder.path(), &["nccl.log"]).status.code(), Some(1));
    let output = explain(folder.path(), &["--fix-script", "nccl.log"]);
    assert_eq!(output.status.code(), Some(0));
    let script = text(&output.stdout);
    let mut lines = script.lines();
    assert_eq!(lines.next(), Some("#!/usr/bin/env bash"));
    let head: Vec<&str> = lines.take_while(|line| line.starts_with("# ")).collect();
    let first = "# Written by `crowfly explain --fix-script`. Nothing of it has been run.";
    assert!(
        head.first().is_some_and(|line| line.starts_with(first)),
        "{head:?}"
    );
    assert!(head.iter().all(|line| line.len() <= 100), "{head:?}");
}
