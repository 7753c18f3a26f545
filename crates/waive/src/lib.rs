//! A third outcome for tests: passed, failed, *waived*.
//!
//! A test that needs what this machine lacks must neither fail nor pass in silence. It calls
//! [`waived!`] with the reason and ends. The reason goes to standard error past the test runner's
//! capture, and into `waived.txt` in the target directory, where `.ci/run` counts it.
#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file below the target directory that collects the waived tests of a run.
pub const WAIVED_FILE: &str = "waived.txt";

/// Ends the test that calls it as waived, for the reason given as to `format!`.
#[macro_export]
macro_rules! waived {
    ($($reason:tt)+) => {{
        $crate::record(&::std::format!($($reason)+));
        return;
    }};
}

/// Records that the running test was waived. Prefer [`waived!`], which also ends the test.
///
/// # Panics
/// When the record cannot be written: a waived test that nobody counts would be a silent pass.
pub fn record(reason: &str) {
    // The test runner names each thread after its test.
    let thread = std::thread::current();
    let line = line(thread.name().unwrap_or("a test"), reason);
    // Written past `eprint!`, which the test runner captures.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let path = target_directory().join(WAIVED_FILE);
    append(&path, &line)
        .unwrap_or_else(|error| panic!("could not write {line:?} to {}: {error}", path.display()));
}

fn line(test: &str, reason: &str) -> String {
    let reason: Vec<&str> = reason.split_whitespace().collect();
    format!("waived: {test}: {}\n", reason.join(" "))
}

/// One write, so that lines of tests running at the same time do not mix.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// The directory above the running test that cargo marked with `CACHEDIR.TAG`.
fn target_directory() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let mut above = program.ancestors();
    above
        .find(|dir| dir.join("CACHEDIR.TAG").is_file())
        .map_or_else(std::env::temp_dir, PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waived_test_leaves_one_line_with_its_name_and_reason() {
        let path = target_directory().join(format!("waive-self-test-{}", std::process::id()));
        append(&path, &line("given_a_gpu", "no GPU\non this machine")).expect("written");
        append(&path, &line("given_a_nic", "no NIC")).expect("written");
        let written = std::fs::read_to_string(&path).expect("read back");
        std::fs::remove_file(&path).expect("removed");
        let expected = "waived: given_a_gpu: no GPU on this machine\nwaived: given_a_nic: no NIC\n";
        assert_eq!(written, expected);
    }
}
