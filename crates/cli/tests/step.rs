//! `crowfly step`, small: what it tells, what a killed rank changes, and what it leaves behind. No test
//! asks how fast anything was.

use std::fs;
use std::os::unix::fs::PermissionsExt;
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

/// The command, with no launcher's variables around it.
fn step(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.arg("step").args(arguments);
    command.stdin(Stdio::null()).env("XDG_CACHE_HOME", cache);
    for variable in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    command
}

/// Little enough for any machine: 8,030 parameters in 32 layers, 6 steps.
const SMALL: [&str; 9] = [
    "--scale", "1e-6", "--batch", "64KiB", "--steps", "6", "--every", "2", "--json",
];

fn small(cache: &Path, arguments: &[&str]) -> Command {
    step(cache, &[&SMALL[..], arguments].concat())
}

fn document(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {error}"))
}

fn report(mut command: Command) -> Value {
    let output = command.output().expect("runs");
    let report = document(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    report
}

/// Bytes asked, by receipts, and due of a path; and their sum over its ways.
fn lane(lane: &Value) -> (u64, u64, u64, u64) {
    let number = |name: &str| lane[name].as_u64().expect("a number");
    let shares = lane["shares"].as_array().expect("shares");
    let sum = shares
        .iter()
        .map(|share| share["bytes"].as_u64().expect("bytes"));
    (number("asked"), number("moved"), number("due"), sum.sum())
}

fn left_in(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("crowfly")).into_iter().flatten();
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

#[test]
fn given_a_run_its_three_paths_are_told_by_receipts_that_sum_to_what_was_asked() {
    let cache = folder("step-plain");
    let report = report(small(&cache, &["--ranks", "3"]));
    assert_eq!(report["schema"], "crowfly.step/1");
    let lanes = report["lanes"].as_array().expect("lanes");
    let read = 3 * 6 * (64 << 10);
    assert_eq!(lane(&lanes[0]), (read, read, read, read), "storage");
    // Each of 3 ranks hands 8,030 gradients of 2 bytes in, six times. So few bytes everyone takes from
    // everyone; more are taken in parts.
    let (asked, moved, due, sum) = lane(&lanes[1]);
    let buffer = 2 * 8030;
    assert_eq!(asked, 3 * 6 * buffer);
    assert_eq!(due, 6 * 2 * 2 * buffer, "2 (n - 1) buffers an exchange");
    assert_eq!((moved, sum), (6 * 3 * 2 * buffer, moved));
    let (asked, moved, due, sum) = lane(&lanes[2]);
    assert!(asked > 3 * 14 * 8030, "14 bytes a parameter, three times");
    assert_eq!((moved, due, sum), (asked, asked, asked), "checkpoints");
    let steps = report["steps"].as_array().expect("steps");
    let numbers: Vec<u64> = steps
        .iter()
        .map(|s| s["step"].as_u64().expect("a step"))
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert!(
        steps
            .iter()
            .all(|step| step["ranks"] == 3 && step["again"] == 0)
    );
    assert_eq!(report["saves"].as_array().expect("saves").len(), 3);
    let shares = report["phases"].as_array().expect("phases").iter();
    let all: f64 = shares
        .map(|phase| phase["share"].as_f64().expect("a share"))
        .sum();
    assert!((all - 1.0).abs() < 1e-9, "{all}");
    let digest = &report["digest"];
    assert_eq!(
        (&digest["same"], &digest["ranks"]),
        (&true.into(), &3.into())
    );
    assert_eq!(
        left_in(&cache),
        [] as [PathBuf; 0],
        "nothing is left behind"
    );
}

#[test]
fn given_more_gradients_than_everyone_takes_from_everyone_the_least_that_there_is_is_moved() {
    let cache = folder("step-least");
    let arguments = [
        "--ranks",
        "3",
        "--scale",
        "1e-5",
        "--no-checkpoints",
        "--json",
        "--steps",
        "2",
        "--batch",
        "4096",
    ];
    let report = report(step(&cache, &arguments));
    let (_, moved, due, _) = lane(&report["lanes"][1]);
    assert_eq!((moved, due), (2 * 2 * 2 * 2 * 80_300, moved));
    assert_eq!(report["saves"], Value::Array(Vec::new()));
}

#[test]
fn given_a_killed_rank_that_comes_back_the_run_ends_with_the_same_bits() {
    let cache = folder("step-killed");
    let digest = |report: &Value| {
        report["digest"]["value"]
            .as_str()
            .expect("a digest")
            .to_owned()
    };
    let plain = report(small(&cache, &["--ranks", "3"]));
    let again = report(small(&cache, &["--ranks", "3"]));
    assert_eq!(
        digest(&plain),
        digest(&again),
        "as every run with these ranks does"
    );
    let other = report(small(&cache, &["--ranks", "3", "--seed", "2"]));
    assert_ne!(digest(&plain), digest(&other));
    for (rank, at) in [("0", "5"), ("2", "6"), ("1", "1")] {
        let killed = report(small(
            &cache,
            &["--ranks", "3", "--kill-rank", rank, "--at-step", at],
        ));
        assert_eq!(digest(&killed), digest(&plain), "rank {rank} in step {at}");
        assert_eq!(
            (&killed["digest"]["ranks"], &killed["digest"]["same"]),
            (&3.into(), &true.into())
        );
        let losses = killed["losses"].as_array().expect("losses");
        assert_eq!(losses.len(), 1);
        let loss = &losses[0];
        assert_eq!(
            loss["ranks"],
            serde_json::json!([rank.parse::<u32>().expect("a rank")])
        );
        assert_eq!(loss["signals"], serde_json::json!([9]));
        assert_eq!(loss["step"].to_string(), at);
        assert_eq!(loss["code"], "ranks-lost");
        assert_eq!(
            (&loss["survivors"], &loss["same"]),
            (&2.into(), &true.into())
        );
        assert_eq!(loss["ranks_after"], 3);
        let restored = loss["restored"].as_u64().expect("a step");
        assert!(restored < at.parse().expect("a step"));
        assert_eq!(restored % 2, 0, "a checkpoint, or the beginning");
        let (asked, moved, due, sum) = match &killed["restored"] {
            Value::Null => (0, 0, 0, 0),
            read => lane(read),
        };
        assert_eq!(asked > 0, restored > 0);
        assert_eq!((moved, due, sum), (asked, asked, asked));
    }
    assert_eq!(left_in(&cache), [] as [PathBuf; 0]);
}

#[test]
fn given_a_killed_rank_the_others_go_on_without_it_and_agree() {
    let cache = folder("step-shrunk");
    let arguments = [
        "--ranks",
        "3",
        "--kill-rank",
        "0",
        "--at-step",
        "4",
        "--after-loss",
        "shrink",
    ];
    let report = report(small(&cache, &arguments));
    assert_eq!(
        (&report["digest"]["ranks"], &report["digest"]["same"]),
        (&2.into(), &true.into())
    );
    let loss = &report["losses"][0];
    assert_eq!(
        (&loss["ranks_after"], &loss["survivors"]),
        (&2.into(), &2.into())
    );
    let steps = report["steps"].as_array().expect("steps");
    let last = steps.last().expect("steps");
    assert_eq!((&last["step"], &last["ranks"]), (&6.into(), &2.into()));
}

#[test]
fn given_html_one_page_tells_it_all_and_fetches_nothing() {
    let cache = folder("step-page");
    let file = cache.join("run.html");
    let html = file.to_str().expect("text");
    let arguments = ["--kill-rank", "1", "--at-step", "5", "--html", html];
    let report = report(small(&cache, &arguments));
    let page = fs::read_to_string(&file).expect("a page");
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme:dark"));
    for outside in [
        "<script",
        "<link",
        "<img",
        "<iframe",
        "@import",
        "url(",
        "href=\"http",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    let pictures: Vec<&str> = page.split("<svg").skip(1).collect();
    assert_eq!(pictures.len(), 4, "paths, steps, clusters, the curve");
    for picture in pictures {
        let (picture, _) = picture.split_once("</svg>").expect("an end");
        let picture = format!("<svg{picture}</svg>");
        assert!(roxmltree::Document::parse(&picture).is_ok(), "{picture}");
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }
    assert!(page.contains("a rank was lost") && page.contains("SIGKILL"));
    let digest = report["digest"]["value"].as_str().expect("a digest");
    assert!(page.contains(digest));
    for servers in ["8 servers", "64 servers", "512 servers"] {
        assert!(page.contains(servers), "{servers}");
    }
}

#[test]
fn given_people_the_text_fits_the_screen_and_names_model_scale_and_assumptions() {
    let cache = folder("step-text");
    let arguments = [
        "--scale",
        "1/1000000",
        "--batch",
        "64KiB",
        "--steps",
        "3",
        "--compute",
        "5ms",
    ];
    let output = step(&cache, &arguments).output().expect("runs");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("text");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "Training llama3-8b at scale 1/1000000: 2 ranks on 1 host, 3 steps",
        "8.03 thousand of 8.03 billion parameters",
        "a stand-in (for 5.00 ms)",
        "sum exactly to the bytes asked for",
        "What GPUDirect would change",
        "512 servers",
        "The calibrated model: plain data parallelism",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn given_the_only_rank_killed_it_begins_anew_and_ends_with_the_same_bits() {
    let cache = folder("step-alone");
    let plain = report(small(&cache, &["--ranks", "1"]));
    let killed = report(small(
        &cache,
        &["--ranks", "1", "--kill-rank", "0", "--at-step", "5"],
    ));
    assert_eq!(plain["digest"], killed["digest"]);
    assert_eq!(killed["losses"][0]["survivors"], 0);
}

#[test]
fn given_what_cannot_be_done_it_is_refused_by_code_before_anything_is_made() {
    let cache = folder("step-refused");
    let refused = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.push("--json");
        let output = step(&cache, &all).output().expect("runs");
        let error = document(&output)["error"].clone();
        (
            output.status.code(),
            error["code"].as_str().expect("a code").to_owned(),
        )
    };
    for (arguments, status, code) in [
        (&["--ranks", "0"][..], 64, "step-bad-ranks"),
        (&["--steps", "0"], 64, "step-bad-steps"),
        (&["--every", "0"], 64, "step-never-saves"),
        (&["--batch", "5000"], 64, "step-bad-batch"),
        (
            &["--ranks", "2", "--kill-rank", "2", "--at-step", "1"],
            64,
            "step-no-such-rank",
        ),
        (
            &["--kill-rank", "1", "--at-step", "99"],
            64,
            "step-no-such-step",
        ),
        (&["--kill-rank", "1"], 64, "usage"),
        (&["--scale", "0"], 64, "usage"),
        (&["--deadline", "-1"], 64, "usage"),
        (&["--deadline", "0"], 64, "step-bad-deadline"),
        (&["--model", "no-such-model"], 64, "plan-unknown-name"),
        (&["--to", "gpu:99"], 69, "no-gpu"),
        (&["--to", "peer:0000:3b:00.0"], 64, "not-a-destination"),
        (&["--data", "/no/such/data"], 66, "input-not-found"),
        (&["--data", "/dev/null"], 66, "not-a-file"),
        (&["--data", "/etc/hostname"], 65, "step-data-too-small"),
        (
            &["--model", "megatron-1t", "--scale", "0.005"],
            73,
            "disk-too-small",
        ),
    ] {
        let found = refused(arguments);
        assert_eq!(found, (Some(status), code.to_owned()), "{arguments:?}");
    }
    let full = cache.join("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("notes"), "mine").expect("written");
    let found = refused(&["--dir", full.to_str().expect("text")]);
    assert_eq!(found, (Some(73), "step-folder-not-empty".to_owned()));
    assert_eq!(left_in(&cache), [] as [PathBuf; 0]);
}

#[test]
fn given_data_of_the_user_s_it_is_read_and_a_folder_of_the_user_s_stays() {
    let cache = folder("step-given");
    let (data, dir) = (cache.join("data"), cache.join("run"));
    fs::create_dir(&data).expect("made");
    for name in ["a", "b"] {
        fs::write(data.join(name), name.repeat(100_000)).expect("written");
    }
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (data, dir) = (text(&data), text(&dir));
    let report = report(small(&cache, &["--data", &data, "--dir", &dir]));
    assert_eq!(report["about"]["made"], 0);
    let (asked, moved, ..) = lane(&report["lanes"][0]);
    assert_eq!((asked, moved), (2 * 6 * (64 << 10), asked));
    let mut steps: Vec<String> = fs::read_dir(Path::new(&dir).join("checkpoints"))
        .expect("checkpoints")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("step-"))
        .collect();
    steps.sort();
    assert_eq!(steps, ["step-4", "step-6"], "the latest two");
    assert!(fs::read_dir(&data).expect("there").count() == 2);
}

/// Waits for something that happens within a moment, and not for ever.
fn await_that(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(180),
            "never happened: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that `process` started.
fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

#[test]
fn given_a_signal_ranks_and_folder_are_gone_with_the_command() {
    let cache = folder("step-interrupted");
    for signal in ["INT", "TERM"] {
        let mut run = step(
            &cache,
            &[
                "--ranks", "3", "--scale", "1e-5", "--steps", "100000", "--every", "1",
            ],
        );
        let mut run = run
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("runs");
        let saved = || {
            left_in(&cache)
                .iter()
                .any(|run| run.join("checkpoints").exists())
        };
        await_that("a checkpoint", saved);
        let ranks = children(run.id());
        assert_eq!(ranks.len(), 3);
        let id = run.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status();
        assert!(sent.expect("kill").success());
        let ended = run.wait().expect("ends");
        assert_eq!(ended.code(), Some(130), "SIG{signal}");
        assert_eq!(left_in(&cache), [] as [PathBuf; 0], "SIG{signal}");
        let alive = |rank: &u32| Path::new(&format!("/proc/{rank}")).exists();
        assert!(!ranks.iter().any(alive), "SIG{signal}");
    }
}

#[test]
fn given_a_command_that_is_killed_its_ranks_end_and_the_next_run_tidies_up() {
    let cache = folder("step-orphans");
    let mut run = step(
        &cache,
        &["--ranks", "2", "--scale", "1e-5", "--steps", "100000"],
    );
    let mut run = run
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    await_that("two ranks", || children(run.id()).len() == 2);
    let ranks = children(run.id());
    run.kill().expect("killed");
    run.wait().expect("ended");
    let alive = |rank: &u32| {
        let status = fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
        status.contains("(crowfly)") && !status.contains(") Z ")
    };
    await_that("the ranks are gone", || !ranks.iter().any(alive));
    assert_eq!(left_in(&cache).len(), 1);
    report(small(&cache, &[]));
    assert_eq!(left_in(&cache), [] as [PathBuf; 0]);
}

#[test]
fn given_ranks_that_a_launcher_started_the_first_tells_of_all_and_a_killed_one_is_gone() {
    let cache = folder("step-launched");
    let key = cache.join("key");
    fs::write(&key, format!("{}\n", "5a".repeat(32))).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("private");
    let run = |dir: &str, more: &[&str]| -> Vec<Output> {
        let dir = cache.join(dir);
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let mut command = small(&cache, more);
                command.arg("--dir").arg(&dir).arg("--key-file").arg(&key);
                command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
                command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("runs")
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.wait_with_output().expect("ends"))
            .collect()
    };
    let outputs = run("plain", &[]);
    let first = document(&outputs[0]);
    assert_eq!(first["digest"]["ranks"], 3);
    let read = 3 * 6 * (64 << 10);
    assert_eq!(lane(&first["lanes"][0]), (read, read, read, read));
    for (rank, output) in outputs.iter().enumerate() {
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(
            output.stdout.is_empty(),
            rank > 0,
            "only the first one tells"
        );
    }
    let started = report(small(&cache, &["--ranks", "3"]));
    assert_eq!(
        started["digest"], first["digest"],
        "whoever starts the ranks"
    );
    let arguments = [
        "--kill-rank",
        "0",
        "--at-step",
        "4",
        "--after-loss",
        "shrink",
    ];
    let outputs = run("killed", &arguments);
    assert_eq!(outputs[0].status.code(), None, "killed");
    let second = document(&outputs[1]);
    let other = String::from_utf8_lossy(&outputs[2].stderr);
    let losses = &second["losses"];
    assert_eq!(second["digest"]["ranks"], 2, "{losses}; {other}");
    assert_eq!(losses[0]["ranks"], serde_json::json!([0]));
    let refused = run("refused", &["--kill-rank", "1", "--at-step", "2"]);
    let left: Vec<_> = fs::read_dir(cache.join("refused"))
        .into_iter()
        .flatten()
        .collect();
    assert!(left.is_empty(), "nothing was made");
    assert_eq!(
        document(&refused[0])["error"]["code"],
        "step-nobody-restarts"
    );
}

#[test]
fn given_a_launcher_that_starts_all_ranks_again_they_go_on_from_the_latest_checkpoint() {
    let cache = folder("step-relaunched");
    let key = cache.join("key");
    fs::write(&key, format!("{}\n", "5a".repeat(32))).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("private");
    let attempt = |count: u32| -> Vec<Output> {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let mut command = small(&cache, &["--kill-rank", "1", "--at-step", "4"]);
                let dir = cache.join("run");
                command.arg("--dir").arg(dir).arg("--key-file").arg(&key);
                command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
                command.env("TORCHELASTIC_RESTART_COUNT", count.to_string());
                command.env("TORCHELASTIC_MAX_RESTARTS", "1");
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                command.spawn().expect("runs")
            })
            .collect();
        let ended = ranks.into_iter().map(|rank| rank.wait_with_output());
        ended.map(|end| end.expect("ends")).collect()
    };
    let first = attempt(0);
    assert_eq!(first[1].status.code(), None, "killed");
    let error = &document(&first[0])["error"];
    assert_eq!(error["code"], "step-left-to-launcher");
    let message = error["message"].as_str().expect("a message");
    assert!(message.starts_with("rank 1 was lost: "), "{message}");
    assert!(
        message.ends_with("; the launcher starts all ranks again"),
        "{message}"
    );
    assert_ne!(first[0].status.code(), Some(0), "or the launcher would not");

    let second = attempt(1);
    let report = document(&second[0]);
    assert_eq!(second[0].status.code(), Some(0), "{report}");
    let steps = report["steps"].as_array().expect("steps");
    let began = steps[0]["step"].as_u64().expect("a step");
    assert!(
        began == 1 || began == 3,
        "from a checkpoint, or the beginning: {report}"
    );
    assert_eq!(began > 1, report["restored"].is_object(), "{report}");
    assert_eq!(steps.last().expect("the last")["step"], 6);
    let never_killed = self::report(small(&cache, &["--ranks", "2"]));
    assert_eq!(report["digest"], never_killed["digest"]);
}

#[test]
fn given_a_deadline_that_no_clock_counts_it_is_refused_before_anything_is_made() {
    let cache = folder("step-deadline");
    for seconds in ["1e19", "9223372036854775807", "86401", "0", "NaN"] {
        let output = small(&cache, &["--deadline", seconds])
            .output()
            .expect("runs");
        let error = &document(&output)["error"];
        assert_eq!(output.status.code(), Some(64), "{seconds}: {error}");
        assert_eq!(error["code"], "step-bad-deadline", "{seconds}");
    }
    assert!(left_in(&cache).is_empty());
}

#[test]
fn given_a_rank_that_is_stopped_the_run_ends_soon_after_its_deadline_and_names_it() {
    let cache = folder("step-stopped");
    let long = [
        "--scale",
        "1e-6",
        "--batch",
        "64KiB",
        "--steps",
        "100000",
        "--every",
        "2",
        "--json",
        "--compute",
        "20ms",
        "--deadline",
        "2",
    ];
    let mut command = step(&cache, &long);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let began = Instant::now();
    let in_steps = || {
        let saved = left_in(&cache)
            .into_iter()
            .map(|run| run.join("checkpoints"));
        saved
            .filter_map(|run| fs::read_dir(run).ok())
            .flatten()
            .count()
            > 0
    };
    while !(children(child.id()).len() == 2 && in_steps()) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let stopped = children(child.id())[1];
    let kill = |signal: &str| {
        let mut kill = Command::new("kill");
        kill.args([signal, &stopped.to_string()])
            .status()
            .expect("sent");
    };
    kill("-STOP");
    let began = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    let error = &document(&output)["error"];
    assert_eq!(output.status.code(), Some(74), "{error}");
    assert_eq!(error["code"], "step-rank-silent", "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.starts_with("rank 1 says nothing: "), "{message}");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

/// Seconds of CPU that a process has used.
fn used(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which ends with the last bracket: the 12th and 13th word, in hundredths.
    let words = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = words.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

#[test]
fn given_a_computation_longer_than_a_loss_may_go_unheard_of_the_run_goes_on() {
    let cache = folder("step-long");
    let (deadline, compute) = (Duration::from_secs(3), Duration::from_secs(12));
    let mut command = step(
        &cache,
        &[
            "--scale",
            "1e-6",
            "--batch",
            "64KiB",
            "--steps",
            "1",
            "--json",
            "--compute",
            &format!("{}s", compute.as_secs()),
            "--deadline",
            &deadline.as_secs().to_string(),
        ],
    );
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    // What comes before the computation takes less than this.
    let computing = || {
        let ranks = children(child.id());
        ranks.len() == 2 && ranks.iter().all(|rank| used(*rank) > 1.0)
    };
    await_that("both compute", computing);
    let killed = children(child.id())[1];
    let sent = Command::new("kill")
        .args(["-9", &killed.to_string()])
        .status();
    assert!(sent.expect("kill").success());
    let began = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    let report = document(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(report["about"]["steps"], 1, "{report}");
    assert!(began.elapsed() > compute, "it was done again by both");
}
