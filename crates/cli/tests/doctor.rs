//! `crowfly doctor` as its callers see it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crowfly_route::fixture::{Fixture, NicModel, gen4, gen5, machines};

fn crowfly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command
        .arg("doctor")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

fn doctor(folder: &Path, arguments: &[&str]) -> Output {
    crowfly(folder, arguments)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// A folder with the machine's snapshot in `node.json`.
fn folder(machine: &Fixture) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), machine);
    folder
}

fn write(folder: &Path, machine: &Fixture) {
    // As a whole, because somebody may be watching it.
    let (new, file) = (folder.join("new"), folder.join("node.json"));
    fs::write(&new, machine.snapshot().to_json()).expect("written");
    fs::rename(new, file).expect("moved");
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

/// A server that waits for its GPUs: a switch with a drive and an adapter and a free slot behind one
/// socket, and a free root port at the other.
fn without_gpus() -> Fixture {
    let mut machine = Fixture::new();
    let (near, far) = (machine.socket(), machine.socket());
    let port = machine.root_port(near, gen5(16));
    let switch = machine.switch(port, gen5(16));
    let slot = machine.slot(switch, gen4(4));
    machine.nvme(slot, "nvme0");
    let slot = machine.slot(switch, gen5(16));
    machine.nic(slot, "mlx5_0", &NicModel::CONNECTX7);
    machine.slot(switch, gen5(16));
    machine.root_port(far, gen5(16));
    machine.text("kconfig:CONFIG_PCI_P2PDMA", "y");
    machine
}

#[test]
fn given_this_machine_the_answer_is_one_document_whatever_is_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = doctor(folder.path(), &["--json"]);
    let status = output.status.code().expect("a status");
    assert!((0..=3).contains(&status), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["schema"], "crowfly.diagnosis/1");
    let expected = match document["verdict"].as_str() {
        Some("direct") => 0,
        Some("direct-but-slow" | "staged" | "socket") => 1,
        Some("broken") => 2,
        _ => 3,
    };
    assert_eq!(status, expected);
    assert_eq!(document["sources"], serde_json::json!([]));
    assert!(document["host"]["devices"].is_string());
}

#[test]
fn given_a_machine_without_gpus_the_answer_says_what_each_slot_would_allow() {
    let folder = folder(&without_gpus());
    let output = doctor(folder.path(), &["--snapshot", "node.json"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    insta::assert_snapshot!(told(&output));

    let document = json(&doctor(
        folder.path(),
        &["--json", "--snapshot", "node.json"],
    ));
    let slots = document["host"]["slots"]["slots"]
        .as_array()
        .expect("a list");
    let ways = |free: &serde_json::Value| -> Vec<(String, String)> {
        let others = free["others"].as_array().expect("a list").iter();
        let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
        others
            .map(|other| (word(&other["name"]), word(&other["standing"])))
            .collect()
    };
    let free: Vec<_> = slots
        .iter()
        .filter(|slot| slot["taken_by"].is_null())
        .collect();
    let pair = |name: &str, standing: &str| (name.to_owned(), standing.to_owned());
    assert_eq!(free.len(), 2);
    // Behind the switch the traffic turns round; from the other socket it passes both CPUs.
    let relation = |slot: &serde_json::Value| slot["others"][0]["relation"].clone();
    let (behind, across) = match relation(free[0]) == "PIX" {
        true => (free[0], free[1]),
        false => (free[1], free[0]),
    };
    assert_eq!(relation(behind), "PIX");
    assert_eq!(
        ways(behind),
        [pair("mlx5_0", "open"), pair("nvme0", "open")]
    );
    assert_eq!(relation(across), "SYS");
    let link = &behind["link"];
    assert_eq!(
        (&link["generation"], &link["width"]),
        (&5.into(), &16.into())
    );
}

#[test]
fn given_a_kernel_without_p2pdma_no_slot_is_promised_anything() {
    let mut machine = without_gpus();
    machine.text("kconfig:CONFIG_PCI_P2PDMA", "n");
    let folder = folder(&machine);
    let document = json(&doctor(
        folder.path(),
        &["--json", "--snapshot", "node.json"],
    ));
    let slots = document["host"]["slots"]["slots"]
        .as_array()
        .expect("a list");
    for slot in slots {
        let drive = slot["others"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|o| o["name"] == "nvme0");
        if let Some(drive) = drive {
            assert_eq!(drive["standing"], "blocked", "{slot}");
        }
    }
}

#[test]
fn given_a_plain_user_what_could_not_be_looked_at_is_told_with_the_way_to_look() {
    let mut machine = without_gpus();
    machine.as_plain_user();
    let folder = folder(&machine);
    let answer = told(&doctor(folder.path(), &["--snapshot", "node.json"]));
    assert!(
        answer.contains("access control (ACS) of PCIe ports"),
        "{answer}"
    );
    assert!(answer.contains("run as root"), "{answer}");
}

#[test]
fn given_a_machine_with_gpus_each_pair_is_judged_and_no_slot_is_guessed_at() {
    let folder = folder(&machines::pcie_box());
    let document = json(&doctor(
        folder.path(),
        &["--json", "--snapshot", "node.json"],
    ));
    assert!(document["host"]["slots"].is_null());
    let pairs = document["pairs"].as_array().expect("a list");
    for kind in ["gpu-gpu", "gpu-nic", "gpu-drive"] {
        assert!(pairs.iter().any(|pair| pair["kind"] == kind), "{kind}");
    }
}

#[test]
fn given_more_evidence_after_the_machine_all_of_it_is_read() {
    let folder = folder(&machines::pcie_box());
    fs::write(
        folder.path().join("cmdline"),
        "BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on\n",
    )
    .expect("written");
    let output = doctor(
        folder.path(),
        &["--json", "--snapshot", "node.json", "cmdline"],
    );
    let document = json(&output);
    assert_eq!(document["sources"][0]["name"], "cmdline");
    assert_eq!(
        document["sources"][0]["sections"][0]["format"],
        "kernel-cmdline"
    );
}

#[test]
fn given_html_the_report_stands_alone_and_draws_the_affected_pairs() {
    let folder = folder(&machines::pcie_box());
    let output = doctor(
        folder.path(),
        &["--snapshot", "node.json", "--html", "report.html"],
    );
    assert!(text(&output.stderr).contains("report written to report.html"));
    let page = fs::read_to_string(folder.path().join("report.html")).expect("written");
    for loads in ["<script", "<link", "<img", "src=", "@import", "url("] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert!(page.contains("<svg "));
    assert!(page.contains("class=\"mark\""));
    assert!(page.contains("default-src 'none'"));
    let document = json(&doctor(
        folder.path(),
        &["--json", "--snapshot", "node.json"],
    ));
    for finding in document["findings"].as_array().expect("a list") {
        let code = finding["code"].as_str().expect("a code");
        assert!(page.contains(&format!("<h3>{code} ")), "{code}");
    }
}

#[test]
fn given_names_and_addresses_the_report_shows_stand_ins_unless_it_is_told_not_to() {
    let mut machine = machines::pcie_box();
    machine.text("/proc/sys/kernel/hostname", "paris-gpu-17");
    machine.text("/sys/module/nvidia_fs/version", "2.24");
    machine.text("/sys/module/nvidia_fs", "");
    machine.text(
        "/proc/self/mountinfo",
        "1 0 0:1 / / rw - rootfs rootfs rw\n\
         2 1 259:1 / /home/carla/data rw shared:2 - ext4 /dev/nvme0n1 rw,data=writeback\n",
    );
    machine.text(
        "/proc/cmdline",
        "root=/dev/sda1 ip=10.20.30.41 host=paris-gpu-17",
    );
    let folder = folder(&machine);
    let identifying = ["paris-gpu-17", "carla", "10.20.30.4"];
    let report = |more: &[&str]| {
        let mut arguments = vec!["--snapshot", "node.json", "--html", "report.html"];
        arguments.extend(more);
        doctor(folder.path(), &arguments);
        fs::read_to_string(folder.path().join("report.html")).expect("written")
    };
    let (shared, kept) = (report(&[]), report(&["--unredacted"]));
    for words in identifying {
        assert!(!shared.contains(words), "{words}");
    }
    assert!(identifying.iter().any(|words| kept.contains(words)));
    assert!(shared.contains("stand-ins"));
    assert!(kept.contains("not replaced"));
    let verdict = |page: &str| {
        page.split("<h1>")
            .nth(1)
            .map(|h| h.split("</h1>").next().map(str::to_owned))
    };
    assert_eq!(verdict(&shared), verdict(&kept));
}

#[test]
fn given_hostile_names_in_evidence_the_report_runs_none_of_them() {
    let folder = folder(&machines::pcie_box());
    let log = "a:1:1 [0] NCCL INFO Using network <script>alert(1)</script>\n\
               a:1:1 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n\
               a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/<img src=x>/0\n";
    fs::write(folder.path().join("nccl.log"), log).expect("written");
    doctor(
        folder.path(),
        &[
            "--snapshot",
            "node.json",
            "nccl.log",
            "--html",
            "report.html",
        ],
    );
    let page = fs::read_to_string(folder.path().join("report.html")).expect("written");
    assert!(!page.contains("<script") && !page.contains("<img"));
}

#[test]
fn given_fix_script_a_script_that_bash_accepts_is_all_that_is_printed_and_nothing_is_run() {
    let mut machine = machines::pcie_box();
    machine.text("/proc/sys/kernel/numa_balancing", "1");
    let folder = folder(&machine);
    let output = doctor(folder.path(), &["--snapshot", "node.json", "--fix-script"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let script = text(&output.stdout);
    assert!(script.starts_with("#!/usr/bin/env bash\n"));
    assert!(script.contains("\nset -uo pipefail\n"));
    fs::write(folder.path().join("fix.sh"), &script).expect("written");
    let checked = Command::new("bash")
        .arg("-n")
        .arg(folder.path().join("fix.sh"))
        .output();
    let Ok(checked) = checked else {
        crowfly_waive::waived!("there is no bash");
    };
    assert!(
        checked.status.success(),
        "{}{script}",
        text(&checked.stderr)
    );
    // What it sets is told with the way back.
    assert!(script.contains("# undo: sudo sysctl kernel.numa_balancing="));
    insta::assert_snapshot!(script);
}

#[test]
fn given_a_rule_its_page_is_printed_and_given_none_the_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = doctor(folder.path(), &["--list-rules"]);
    assert_eq!(list.status.code(), Some(0));
    let list = told(&list);
    assert!(
        list.lines().filter(|line| line.starts_with("  ")).count() >= 65,
        "{list}"
    );

    let page = doctor(folder.path(), &["--rule", "n1"]);
    assert_eq!(page.status.code(), Some(0));
    let by_id = told(&page);
    let by_name = told(&doctor(folder.path(), &["--rule", "gpu-nic-too-far"]));
    assert_eq!(by_id, by_name);
    assert!(
        by_id.starts_with("N1 gpu-nic-too-far: NCCL and RCCL\n"),
        "{by_id}"
    );

    let rules = json(&doctor(folder.path(), &["--json", "--list-rules"]));
    assert_eq!(rules["schema"], "crowfly.rules/1");
    for rule in rules["rules"].as_array().expect("a list") {
        let id = rule["id"].as_str().expect("an id");
        let page = json(&doctor(folder.path(), &["--json", "--rule", id]));
        assert_eq!(page["schema"], "crowfly.rule/1");
        assert_eq!(page["name"], rule["name"]);
        assert!(page["condition"].is_string(), "{id}");
    }
}

#[test]
fn given_a_rule_that_does_not_exist_similar_ones_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = doctor(folder.path(), &["--rule", "K99"]);
    assert_eq!(output.status.code(), Some(64));
    let told = text(&output.stderr);
    assert!(told.contains("there is no rule `K99`"), "{told}");
    assert!(told.contains("K14 "), "{told}");
}

#[test]
fn given_arguments_that_exclude_each_other_the_command_line_makes_no_sense() {
    let folder = tempfile::tempdir().expect("a folder");
    for arguments in [
        &["--watch", "--json"][..],
        &["--watch=0"],
        &["--html", "x", "--fix-script"],
        &["--list-rules", "--rule", "N1"],
        &["--watch=1", "-"],
    ] {
        let output = doctor(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn given_watch_a_change_is_told_and_an_interrupt_ends_it() {
    let mut machine = machines::pcie_box();
    let folder = folder(&machine);
    let mut child = crowfly(folder.path(), &["--snapshot", "node.json", "--watch=1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let looked = lines.find(|line| line.starts_with("looked at node.json"));
    assert!(looked.is_some(), "the first answer is whole");
    machine.text("/proc/sys/kernel/numa_balancing", "1");
    write(folder.path(), &machine);
    let changed: Vec<String> = lines
        .by_ref()
        .skip_while(|line| !line.starts_with("after "))
        .take(2)
        .collect();
    assert!(changed[1].contains("K10 "), "{changed:?}");
    let interrupted = Command::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status();
    assert!(interrupted.is_ok_and(|status| status.success()));
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}
