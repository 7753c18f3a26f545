//! The program as its callers see it: streams, colour, exit statuses.

use std::io;
use std::process::{Command, Output, Stdio};

fn crowfly(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn given_a_reader_that_went_away_the_program_ends_quietly() {
    for arguments in [&["man"][..], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let output = run(crowfly(arguments).stdout(writer).stderr(Stdio::piped()));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn given_a_reader_that_went_away_the_status_still_tells_the_answer() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut unsure = crowfly(&["explain", "-"]);
    let output = run(unsure.stdout(writer).stderr(Stdio::piped()));
    assert_eq!(
        output.status.code(),
        Some(3),
        "nothing was given, so nothing is known"
    );
}

#[test]
fn given_json_every_command_and_every_help_is_one_document_with_a_schema() {
    for (arguments, schema) in [
        (&["man"][..], "crowfly.man/1"),
        (&["man", "load"], "crowfly.man/1"),
        (&["man", "bench", "net"], "crowfly.man/1"),
        (&["man", "bench net"], "crowfly.man/1"),
        (&["completions", "zsh"], "crowfly.completions/1"),
        (&["--help"], "crowfly.help/1"),
        (&["--version"], "crowfly.help/1"),
        (&["map"], "crowfly.map/1"),
        (&["doctor", "--list-rules"], "crowfly.rules/1"),
    ] {
        let output = run(crowfly(arguments).arg("--json"));
        let document: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!(document["schema"], schema, "{arguments:?}");
    }
}

#[test]
fn given_a_full_disk_the_failure_is_reported() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        crowfly_waive::waived!("there is no /dev/full");
    };
    let output = run(crowfly(&["man"]).stdout(full).stderr(Stdio::piped()));
    assert_eq!(output.status.code(), Some(74));
    assert!(stderr(&output).starts_with("error[output-failed]: "));
}

#[test]
fn given_a_closed_standard_output_the_lost_result_is_a_failure_and_a_chosen_null_is_not() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for arguments in ["man", "--help", "load --json \"$1\"", "map"] {
        let status = |to: &str| {
            let script = format!("exec \"$0\" {arguments} {to}");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, env!("CARGO_BIN_EXE_crowfly"), file]);
            let output = run(shell.stdin(Stdio::null()));
            (output.status.code(), stderr(&output))
        };
        let (code, told) = status(">&-");
        assert_eq!(code, Some(74), "{arguments}");
        assert!(told.starts_with("error[output-failed]: "), "{told}");
        // As the standard library opens it, and as other languages do.
        for null in [">/dev/null", "1<>/dev/null"] {
            assert_eq!(status(null), (Some(0), String::new()), "{arguments} {null}");
        }
    }
}

#[test]
fn given_json_an_error_is_one_document_on_standard_output_and_a_sentence_on_standard_error() {
    for arguments in [&["--json", "fly"][..], &["man", "--json", "--no-such-flag"]] {
        let output = run(&mut crowfly(arguments));
        assert_eq!(output.status.code(), Some(64));
        let document: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one JSON document");
        assert_eq!(document["schema"], "crowfly.error/1");
        assert_eq!(document["error"]["code"], "usage");
        assert_eq!(document["error"]["exit"], 64);
        assert!(!stdout(&output).contains('\u{1b}'));
        assert!(stderr(&output).starts_with("error: "));
    }
}

#[test]
fn given_no_json_an_error_leaves_standard_output_empty() {
    let output = run(&mut crowfly(&["man", "no-such-command"]));
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(stdout(&output), "");
    let expected = "error[usage]: crowfly has no command `no-such-command`\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn colour_is_written_to_terminals_or_on_demand_and_nowhere_else() {
    let set = |arguments: &[&str], variable: Option<(&str, &str)>| {
        let mut command = crowfly(arguments);
        command.envs(variable);
        stdout(&run(&mut command)).contains('\u{1b}')
    };
    let coloured = |arguments: &[&str], variable: Option<&'static str>| {
        set(arguments, variable.map(|variable| (variable, "1")))
    };
    assert!(
        !set(&["--help"], Some(("CLICOLOR_FORCE", "0"))),
        "0 forces nothing"
    );
    assert!(!coloured(&["--help"], None), "a pipe is no terminal");
    assert!(coloured(&["--help"], Some("CLICOLOR_FORCE")));
    assert!(coloured(&["--help", "--color=always"], None));
    assert!(!coloured(
        &["--help", "--color=never"],
        Some("CLICOLOR_FORCE")
    ));
    assert!(!coloured(&["--help"], Some("NO_COLOR")));
}

#[test]
fn given_a_folder_without_sys_it_is_no_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    for command in ["map", "doctor", "capture"] {
        let output = run(crowfly(&[command, "--root"]).arg(folder.path()));
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(66), "{command}: {told}");
        assert!(
            told.starts_with("error[root-without-sys]: "),
            "{command}: {told}"
        );
    }
}

#[test]
fn no_line_of_a_help_is_a_word_that_fell_off_the_line_before() {
    for command in ["ui", "serve", "route", "doctor", "cp", "step"] {
        let output = run(&mut crowfly(&[command, "--help"]));
        let text = stdout(&output);
        let last = text.lines().rev().take_while(|line| !line.is_empty());
        for line in last.filter(|line| !line.starts_with(' ')) {
            let alone = !line.contains(' ') && !line.ends_with(['.', ':']);
            assert!(!alone, "{command}: {line}");
        }
    }
}

#[test]
fn the_version_is_printed() {
    let output = run(&mut crowfly(&["--version"]));
    let expected = concat!("crowfly ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(stdout(&output), expected);
}

#[test]
fn given_the_name_of_standard_output_for_a_file_none_of_that_name_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut captured = crowfly(&["capture", "-o", "-"]);
    let output = run(captured.current_dir(folder.path()));
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("{"), "the snapshot");
    for arguments in [
        &["map", "--svg", "-"][..],
        &["doctor", "--html", "-"],
        &["race", "--size", "1MB", "--runs", "1", "--svg", "-"],
        &["plan", "--svg", "-"],
        &["step", "--html", "-"],
    ] {
        let output = run(crowfly(arguments).current_dir(folder.path()));
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path())
            .expect("the folder")
            .count(),
        0
    );
}
