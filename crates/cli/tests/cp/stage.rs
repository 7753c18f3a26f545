//! A folder, a server of it, and copies as processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

pub const SOON: Duration = Duration::from_secs(60);
/// Large enough to be interrupted in the middle.
pub const LARGE: u64 = 768 << 20;

pub fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("data")).expect("a folder for the test");
    folder
}

pub fn crowfly(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crowfly"));
    command.args(arguments).current_dir(folder);
    command
        .stdin(Stdio::null())
        .env("NO_COLOR", "1")
        .env_remove("CROWFLY_KEY");
    command
}

/// A running server of the folder `data`, which ends with the test.
pub struct Server {
    pub child: Option<Child>,
    url: String,
    pub metrics: String,
}

impl Server {
    pub fn start(folder: &Path, more: &[&str]) -> Self {
        Self::with(folder, more, |_| {})
    }

    /// With a change to the command, such as of its variables.
    pub fn with(folder: &Path, more: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut arguments = vec!["serve", "data", "--writable", "--json"];
        arguments.extend(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        arguments.extend(more);
        let mut command = crowfly(folder, &arguments);
        change(&mut command);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut told = BufReader::new(child.stderr.take().expect("piped"));
        let (mut url, mut metrics, mut text) = (None, None, String::new());
        loop {
            let mut line = String::new();
            let read = told.read_line(&mut line).expect("it says where");
            text.push_str(&line);
            if let Some(at) = line.strip_prefix("Serving ") {
                url = at.split(": ").next().map(str::to_owned);
            }
            if let Some(at) = line.strip_prefix("Metrics at http://") {
                metrics = at.strip_suffix("/metrics\n").map(str::to_owned);
            }
            if line.starts_with("Until interrupted") {
                break;
            }
            assert!(read > 0, "{text}");
        }
        // Whoever writes to a closed pipe would be told so.
        std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
        Self {
            child: Some(child),
            url: url.expect("an address"),
            metrics: metrics.expect("metrics"),
        }
    }

    pub fn at(&self, path: &str) -> String {
        let server = self.url.rsplit_once('/').expect("a name").0;
        format!("{server}/{path}")
    }

    /// Ends it by a signal; its document and exit status.
    pub fn end(mut self, signal: &str) -> (Value, Option<i32>) {
        let child = self.child.take().expect("it runs");
        send(&child, signal);
        let output = child.wait_with_output().expect("it ends");
        (document(&output), output.status.code())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn send(child: &Child, signal: &str) {
    let kill = format!("kill -{signal} {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.is_ok_and(|status| status.success()), "kill");
}

pub fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stdout)))
}

pub fn cp(folder: &Path, arguments: &[&str]) -> (Value, i32) {
    let mut all = vec!["cp", "--json"];
    all.extend(arguments);
    let output = crowfly(folder, &all).output().expect("it starts");
    (document(&output), output.status.code().expect("not killed"))
}

/// The stable code and the exit status of a copy that fails.
pub fn refusal(folder: &Path, arguments: &[&str]) -> (String, i32) {
    let (document, status) = cp(folder, arguments);
    assert_eq!(document["schema"], "crowfly.error/1", "{document}");
    assert_eq!(document["error"]["exit"], status);
    (
        document["error"]["code"]
            .as_str()
            .expect("a code")
            .to_owned(),
        status,
    )
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3])
        .collect()
}

pub fn large(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).expect("made");
    file.set_len(LARGE).expect("sized");
    for at in (0..LARGE).step_by(5 << 20) {
        file.write_all_at(&pattern(3_000), at).expect("written");
    }
}

pub fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

pub fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what}");
        sleep(Duration::from_millis(2));
    }
}

/// How many bytes of an unfinished file are on the disk.
pub fn begun(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let there = fs::metadata(folder.join(".copy.crowfly-journal"));
    there.map_or(0, |there| there.size())
}
