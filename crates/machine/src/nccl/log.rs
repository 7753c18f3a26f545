//! The library's own log, the only account that it gives of how bytes go.
//!
//! The library reads its variables once, at the first call of the process. So whoever wants the log
//! sets [`settings`] before the process starts; here is only found out what was set.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The most bytes of a log that are read: the end of it, which is about the last communicators.
pub const MAX_LOG: u64 = 16 << 20;
/// How much the library says.
const LEVEL: &str = "NCCL_DEBUG";
/// Where it says it.
const FILE: &str = "NCCL_DEBUG_FILE";

/// Why there is no log to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLog {
    /// The library was not asked to say how it connects GPUs.
    Quiet,
    /// It says it on standard output.
    Printed,
}

impl fmt::Display for NoLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet => "NCCL_DEBUG is not INFO, so NCCL does not say how it connects GPUs",
            Self::Printed => "NCCL_DEBUG_FILE is not set, so NCCL says it on standard output",
        })
    }
}

/// The variables with which a process is to start whose log shall be read, one file a process in a
/// folder.
pub fn settings(folder: &Path) -> [(&'static str, String); 2] {
    let file = folder.join("nccl-%h-%p.log");
    [(LEVEL, "INFO".into()), (FILE, file.display().to_string())]
}

/// The file that this process's library writes its log into.
///
/// # Errors
/// Why there is none.
pub fn file() -> Result<PathBuf, NoLog> {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let variable = |name: &str| std::env::var(name).ok();
    named(variable, &host, std::process::id())
}

/// The file that the variables of a process name.
fn named(
    variable: impl Fn(&str) -> Option<String>,
    host: &str,
    process: u32,
) -> Result<PathBuf, NoLog> {
    let level = variable(LEVEL).unwrap_or_default();
    if !["INFO", "ABORT", "TRACE"].contains(&level.to_uppercase().as_str()) {
        return Err(NoLog::Quiet);
    }
    let pattern = variable(FILE).filter(|file| !file.is_empty());
    let pattern = pattern.ok_or(NoLog::Printed)?;
    // Host names end at the first dot there.
    let host = host.split('.').next().unwrap_or_default();
    let mut name = String::new();
    let mut rest = pattern.chars();
    while let Some(letter) = rest.next() {
        match (letter, letter == '%') {
            (_, true) => match rest.next() {
                Some('h') => name.push_str(host),
                Some('p') => name.push_str(&process.to_string()),
                Some('%') => name.push('%'),
                Some(other) => name.extend(['%', other]),
                None => name.push('%'),
            },
            (letter, false) => name.push(letter),
        }
    }
    Ok(PathBuf::from(name))
}

/// Bytes of the log so far; none where it was not begun.
pub fn len(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |facts| facts.len())
}

/// What was written into the log after its first `start` bytes: the last [`MAX_LOG`] bytes of it at
/// most, from the beginning of a line.
///
/// # Errors
/// When the file cannot be read.
pub fn read(file: &Path, start: u64) -> io::Result<Vec<u8>> {
    let mut log = File::open(file)?;
    let len = log.metadata()?.len();
    let from = start.max(len.saturating_sub(MAX_LOG));
    log.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    log.take(MAX_LOG).read_to_end(&mut bytes)?;
    if from > start {
        let line = bytes.iter().position(|byte| *byte == b'\n');
        bytes.drain(..line.map_or(bytes.len(), |end| end + 1));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<PathBuf, NoLog> {
        let variable = |name: &str| {
            let mut known = variables.iter().filter(|(known, _)| *known == name);
            known.next().map(|(_, value)| (*value).to_owned())
        };
        named(variable, "node7.example", 42)
    }

    #[test]
    fn the_file_is_the_one_that_the_variables_name_for_this_host_and_process() {
        let log = of(&[
            ("NCCL_DEBUG", "info"),
            ("NCCL_DEBUG_FILE", "/tmp/%h.%p.100%%.%q"),
        ]);
        assert_eq!(log, Ok(PathBuf::from("/tmp/node7.42.100%.%q")));
        let asked = settings(Path::new("/logs"));
        let asked: Vec<_> = asked.iter().map(|(n, v)| (*n, v.as_str())).collect();
        assert_eq!(of(&asked), Ok(PathBuf::from("/logs/nccl-node7-42.log")));
    }

    #[test]
    fn a_library_that_says_nothing_and_one_that_prints_are_two_things() {
        assert_eq!(of(&[("NCCL_DEBUG_FILE", "/tmp/x")]), Err(NoLog::Quiet));
        let warn = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "/tmp/x")];
        assert_eq!(of(&warn), Err(NoLog::Quiet));
        assert_eq!(of(&[("NCCL_DEBUG", "INFO")]), Err(NoLog::Printed));
    }

    #[test]
    fn of_a_long_log_the_end_is_read_from_the_beginning_of_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("log");
        let line = format!("{}\n", "x".repeat(1023));
        let lines = MAX_LOG as usize / line.len();
        std::fs::write(&file, format!("first\n{}last", line.repeat(lines))).expect("written");
        let read = read(&file, 0).expect("it is there");
        assert_eq!(read.len(), (lines - 1) * line.len() + 4);
        assert!(read.starts_with(b"xxx") && read.ends_with(b"\nlast"));
        let rest = super::read(&file, len(&file) - 3).expect("it is there");
        assert_eq!(rest, b"ast");
    }
}
