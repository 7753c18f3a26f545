//! A running `crowfly ui`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A page that is served until this is dropped.
pub struct Served {
    child: Child,
    pub port: u16,
    pub document: Value,
}

/// The program without what the environment says about colour, and with the signals as a terminal
/// gives them.
fn crowfly() -> Command {
    let mut command = Command::new("env");
    command.args([
        "--default-signal=HUP,INT,TERM",
        env!("CARGO_BIN_EXE_crowfly"),
    ]);
    command.stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

/// What a command prints with `--json`, and how it ends.
pub fn command(arguments: &[&str]) -> Output {
    let mut command = crowfly();
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// The document of a command that ends well.
pub fn document(arguments: &[&str]) -> Value {
    let output = command(&[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {said}"))
}

impl Served {
    /// A page that starts with a DGX H100 of the catalogue.
    pub fn dgx() -> Self {
        Self::with(&["--server", "dgx-h100"])
    }

    /// A page on any free port.
    pub fn with(arguments: &[&str]) -> Self {
        Self::with_path(&std::env::var("PATH").unwrap_or_default(), arguments)
    }

    /// The same for a reader whose programs are found elsewhere.
    pub fn with_path(path: &str, arguments: &[&str]) -> Self {
        let mut child = crowfly()
            .env("PATH", path)
            .args(["ui", "--port", "0", "--json"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut text = String::new();
        for line in &mut lines {
            let line = line.expect("text");
            text.push_str(&line);
            if line == "}" {
                break;
            }
        }
        let document: Value = serde_json::from_str(&text).expect("one document");
        let port = document["port"]
            .as_u64()
            .and_then(|port| u16::try_from(port).ok());
        Self {
            child,
            port: port.expect("a port"),
            document,
        }
    }

    /// Sends a signal and waits for the end.
    pub fn ended_by(mut self, signal: &str) -> Option<i32> {
        let kill = format!("kill -{signal} {}", self.child.id());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill");
        self.child.wait().expect("it ends").code()
    }

    /// Bytes of memory that it holds.
    pub fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.expect("a number") * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
