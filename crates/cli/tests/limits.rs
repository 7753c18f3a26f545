//! The limits that a shell sets for what it starts: reported, and never the end of the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// The program below a limit, with what stands in `folder` reachable by its name alone.
fn limited(limit: &str, arguments: &str, folder: &Path) -> Output {
    let script = format!("ulimit {limit} && exec \"$0\" {arguments}");
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_crowfly")]);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    let command = command.current_dir(folder).stdin(Stdio::null());
    command.output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn given_a_limit_on_the_size_of_files_what_is_too_large_is_reported_and_not_left_behind() {
    let folder = folder("limits-file-size");
    for arguments in [
        "capture -o file",
        "map --svg file",
        "doctor --html file",
        "plan --svg file",
        "race --size 1MB --runs 1",
    ] {
        let output = limited("-f 1", arguments, &folder);
        assert_eq!(output.status.code(), Some(73), "{arguments}: {output:?}");
        let told = stderr(&output);
        assert!(told.contains("`ulimit -f`"), "{arguments}: {told}");
        let left = fs::read_dir(&folder).expect("the folder").flatten();
        let left: Vec<_> = left.filter(|e| e.file_name() != "cache").collect();
        assert!(left.is_empty(), "{arguments}: {left:?}");
    }
    let made = fs::read_dir(folder.join("cache/crowfly")).expect("the cache folder");
    assert_eq!(made.count(), 0);
}

#[test]
fn given_a_limit_on_the_size_of_files_standard_output_that_is_one_fails_as_a_full_one_does() {
    let folder = folder("limits-stdout");
    let output = limited("-f 1", "capture > file", &folder);
    assert_eq!(output.status.code(), Some(74));
    let told = stderr(&output);
    assert!(told.starts_with("error[output-failed]: "), "{told}");
    assert!(told.contains("`ulimit -f`"), "{told}");
}

#[test]
fn given_too_few_descriptors_a_look_at_a_machine_names_the_limit_and_shows_no_half_of_one() {
    let folder = folder("limits-descriptors");
    for descriptors in [4, 5, 6] {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let load = format!("load --path cached {file}");
        for arguments in ["map", "capture", "doctor", &load] {
            let output = limited(&format!("-n {descriptors}"), arguments, &folder);
            let told = stderr(&output);
            assert_eq!(
                output.status.code(),
                Some(69),
                "{descriptors}: {arguments}: {told}"
            );
            assert!(output.stdout.is_empty());
            assert!(told.contains("Too many open files"), "{told}");
            assert!(told.contains("`ulimit -n`"), "{told}");
        }
    }
}
