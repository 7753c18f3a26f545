//! A signal ends every command at once, with one status, and leaves nothing half-written.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// Starts the program with the signals as a terminal gives them: whoever runs the tests may ignore
/// some, as `nohup` and the background jobs of scripts do.
fn start(arguments: &[&str], stdin: Stdio) -> Child {
    Command::new("env")
        .args([
            "--default-signal=HUP,INT,TERM",
            env!("CARGO_BIN_EXE_crowfly"),
        ])
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// Waits until the program has taken over the signals, all but a hang-up that it is to ignore.
fn await_handler(child: &Child) {
    let started = Instant::now();
    let status = format!("/proc/{}/status", child.id());
    const HUP: u64 = 1;
    const INT_AND_TERM: u64 = 1 << 1 | 1 << 14;
    let caught = || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let mask = |name| {
            let mask = status.lines().find_map(|l| l.strip_prefix(name));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .unwrap_or(0)
        };
        let (caught, ignored) = (mask("SigCgt:"), mask("SigIgn:"));
        caught & INT_AND_TERM == INT_AND_TERM && (caught | ignored) & HUP != 0
    };
    while !caught() {
        assert!(started.elapsed() < Duration::from_secs(60), "no handler");
        sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
}

fn signal_if_there(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    let mut shell = Command::new("sh");
    let sent = shell.args(["-c", &kill]).stderr(Stdio::null()).status();
    sent.expect("a shell");
}

fn end(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

#[test]
fn given_a_command_that_waits_for_its_input_every_signal_ends_it_with_a_document() {
    let waiting: [&[&str]; 6] = [
        &["map", "--json", "--from", "/dev/stdin"],
        &["map", "--json", "--snapshot", "/dev/stdin"],
        &["route", "--json", "gpu:0", "host", "--from", "/dev/stdin"],
        &["capture", "--json", "--snapshot", "/dev/stdin"],
        &["doctor", "--json", "--snapshot", "/dev/stdin"],
        &["explain", "--json", "-"],
    ];
    for arguments in waiting {
        for name in ["INT", "TERM", "HUP"] {
            let mut child = start(arguments, Stdio::piped());
            let stdin = child.stdin.take();
            await_handler(&child);
            signal(&child, name);
            let output = end(child);
            drop(stdin);
            assert_eq!(output.status.code(), Some(130), "{arguments:?} {name}");
            let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
            assert_eq!(document["error"]["code"], "interrupted");
            let message = format!("interrupted by SIG{name}");
            assert_eq!(document["error"]["message"], message);
        }
    }
}

#[test]
fn given_a_result_that_nobody_takes_the_signal_is_not_kept_waiting() {
    let mut child = start(&["capture"], Stdio::null());
    await_handler(&child);
    let mut first = [0];
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut first).expect("a result");
    signal(&child, "INT");
    // Either it was written whole before the signal, or it ends by it.
    let status = end(child).status.code();
    assert!([Some(0), Some(130)].contains(&status), "{status:?}");
}

#[test]
fn given_help_or_a_wrong_command_line_that_nobody_takes_a_signal_ends_that_too() {
    for arguments in [&["--help", "--json"][..], &["race", "--json", "--runs=no"]] {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let flags = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&writer, flags).expect("set");
        while writer.write(&[b' '; 4096]).is_ok_and(|written| written > 0) {}
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).expect("set");
        let mut command = Command::new("env");
        let program = env!("CARGO_BIN_EXE_crowfly");
        command
            .args(["--default-signal=TERM", program])
            .args(arguments);
        let command = command.stdin(Stdio::null()).stdout(writer);
        let child = command.stderr(Stdio::null()).spawn().expect("it starts");
        await_handler(&child);
        signal(&child, "TERM");
        assert_eq!(end(child).status.code(), Some(130), "{arguments:?}");
        drop(reader);
    }
}

/// At whatever moment the signal comes, it ends the command or comes too late: it never takes the word
/// from a command that then ends as if it had spoken.
#[test]
fn given_a_signal_while_a_wrong_command_line_is_reported_its_status_never_comes_without_its_words()
{
    for delay in 0..40 {
        let child = start(&["race", "--json", "--runs=no"], Stdio::null());
        sleep(Duration::from_micros(250 * delay));
        signal_if_there(&child, "TERM");
        let output = end(child);
        let status = output.status.code();
        if output.stdout.is_empty() {
            // By the signal itself, where it came before the program took it over.
            assert!(status.is_none() || status == Some(130), "{status:?}");
            continue;
        }
        let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
        let said = document["error"]["exit"].as_i64();
        let told = status.map(i64::from) == said || status == Some(130);
        assert!(told, "{said:?} said and {status:?} returned after {delay}");
    }
}

#[test]
fn given_a_background_job_of_a_script_an_interrupt_still_ends_it() {
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec \"$0\" explain -";
    command.args(["-c", script, env!("CARGO_BIN_EXE_crowfly")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.process_group(0).spawn().expect("it starts");
    let stdin = child.stdin.take();
    await_handler(&child);
    signal(&child, "INT");
    assert_eq!(end(child).status.code(), Some(130));
    drop(stdin);
}

#[test]
fn given_a_hang_up_that_the_caller_ignores_it_stays_ignored() {
    let mut command = Command::new("sh");
    let script = "trap '' HUP; exec \"$0\" explain -";
    command.args(["-c", script, env!("CARGO_BIN_EXE_crowfly")]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.process_group(0).spawn().expect("it starts");
    await_handler(&child);
    signal(&child, "HUP");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"nothing\n").expect("it still reads");
    drop(stdin);
    assert_eq!(end(child).status.code(), Some(3), "it answers");
}

#[test]
fn given_a_signal_at_any_moment_of_a_command_that_writes_the_file_is_whole_or_not_there() {
    let folder = folder("signals-files");
    let commands: [(&[&str], &str); 3] = [
        (&["map", "--svg"], "</svg>\n"),
        (&["doctor", "--html"], "</html>\n"),
        (&["capture", "-o"], "}\n"),
    ];
    for (arguments, ends) in commands {
        for delay in [0, 20, 60, 120, 250] {
            let file = folder.join("file");
            let path = file.to_str().expect("text");
            let child = start(&[arguments, &[path]].concat(), Stdio::null());
            await_handler(&child);
            sleep(Duration::from_millis(delay));
            signal(&child, "INT");
            end(child);
            if let Ok(whole) = fs::read_to_string(&file) {
                assert!(whole.ends_with(ends), "{arguments:?} after {delay} ms");
                fs::remove_file(&file).expect("removed");
            }
            let left = fs::read_dir(&folder).expect("the folder").count();
            assert_eq!(left, 0, "{arguments:?} after {delay} ms");
        }
    }
}
