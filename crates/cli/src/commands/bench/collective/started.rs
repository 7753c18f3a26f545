//! Ranks that this process starts on this machine, as processes of this program with its own
//! arguments.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::SharedKey;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use crate::commands::step::ground::clean;
use crate::failure::{Exit, Failure, errno};
use crate::interrupt::Leftover;

/// How a folder in which started ranks meet begins.
const RANKS: &str = "crowfly-ranks-";
/// The file in each by which it is known for one, and whose lock says that its run goes on.
const MARK: &str = ".crowfly-ranks";
/// The folder in it in which they meet.
const MEET: &str = "meet";
/// What a rank says once it has all that it needs.
const READY: &str = "ready";
/// What stands between what happened and what to do about it.
const HINT: char = '\t';
/// The longest line that a rank may say.
const MAX_LINE: u64 = 1024;
/// How long ranks may take to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often it is looked whether they have.
const GLANCE: Duration = Duration::from_millis(5);

/// The other ranks, and the folder in which all find each other.
#[derive(Debug)]
pub struct Started {
    key: SharedKey,
    children: Vec<Child>,
    meet: PathBuf,
    _folder: TempDir,
    _unfinished: Leftover,
    _lock: File,
}

impl Drop for Started {
    fn drop(&mut self) {
        // They end with the collectives that they are part of. One that has not met this rank yet
        // would wait for it.
        let until = Instant::now() + FAREWELL;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(GLANCE);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    let what = format!("could not {what}: {error}");
    Failure::new("bench-no-ranks", Exit::Unavailable, what).maybe_hint(errno::hint(error))
}

impl Started {
    /// Starts ranks 1 to `ranks` - 1.
    pub fn start(ranks: u32) -> Result<Self, Failure> {
        let beside = std::env::temp_dir();
        clean(&beside, RANKS, MARK);
        let unmade =
            |error: io::Error| Failure::creating(&beside, &crate::file::without_path(error));
        let make = || tempfile::Builder::new().prefix(RANKS).tempdir_in(&beside);
        let (folder, unfinished) = Leftover::make(make, TempDir::path).map_err(unmade)?;
        let lock = File::create_new(folder.path().join(MARK)).map_err(unmade)?;
        // A file system without locks keeps everybody from cleaning up, and nobody from measuring.
        let _ = lock.try_lock();
        let mut started = Self {
            key: SharedKey::generate()?,
            children: Vec::new(),
            meet: folder.path().join(MEET),
            _folder: folder,
            _unfinished: unfinished,
            _lock: lock,
        };
        let mut words: Vec<(u32, Option<ChildStdout>)> = Vec::new();
        let program = std::env::current_exe().map_err(|e| failed("find this program", &e))?;
        for rank in 1..ranks {
            let mut child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .args(["--started", &rank.to_string(), &ranks.to_string()])
                .arg(&started.meet)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| failed("start a rank", &error))?;
            let told = child.stdin.take().map(|mut stdin| {
                let key = format!("{}\n", started.key.to_hex());
                stdin.write_all(key.as_bytes())
            });
            words.push((rank, child.stdout.take()));
            started.children.push(child);
            told.unwrap_or(Ok(()))
                .map_err(|error| failed("talk to a rank", &error))?;
        }
        for (rank, stdout) in words {
            hear(rank, stdout)?;
        }
        Ok(started)
    }

    /// The key that all of them share.
    pub fn key(&self) -> SharedKey {
        self.key.clone()
    }

    /// Where they find each other.
    pub fn folder(&self) -> &Path {
        &self.meet
    }
}

/// Waits until a rank has all that it needs: the others would wait a minute for one that cannot come.
fn hear(rank: u32, stdout: Option<ChildStdout>) -> Result<(), Failure> {
    let mut line = String::new();
    if let Some(stdout) = stdout {
        let mut lines = BufReader::new(stdout.take(MAX_LINE));
        lines
            .read_line(&mut line)
            .map_err(|error| failed("hear a rank", &error))?;
    }
    match line.trim() {
        READY => Ok(()),
        why => Err(not_started(rank, why)),
    }
}

/// The failure of a rank that could not start, as it told it.
fn not_started(rank: u32, told: &str) -> Failure {
    let (why, hint) = match told.split_once(HINT) {
        _ if told.is_empty() => ("it ended without a word", None),
        Some((why, hint)) => (why, Some(hint)),
        None => (told, None),
    };
    let what = format!("rank {rank} could not start: {why}");
    Failure::new("bench-no-ranks", Exit::Unavailable, what).maybe_hint(hint)
}

/// Says to whoever started this rank that it has all that it needs, or why it has not.
pub fn say(result: &Result<(), Failure>) -> Result<(), Failure> {
    let line = match result {
        Ok(()) => READY.to_owned(),
        Err(failure) => in_a_line(failure),
    };
    let mut out = io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    told.map_err(|error| Failure::output(&error))
}

/// A failure as a rank tells it: what happened, and what to do about it.
fn in_a_line(failure: &Failure) -> String {
    let plain = |text: &str| text.replace(['\n', HINT], " ");
    let what = plain(failure.message());
    match failure.hint_text() {
        Some(hint) => format!("{what}{HINT}{}", plain(hint)),
        None => what,
    }
}

/// Binds this rank to a processor of its own, as mpirun does, where there are enough; otherwise, and where the
/// system refuses, all go where the system puts them. Threads that are started later go with it.
pub fn bind(rank: usize, ranks: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|at| allowed.is_set(*at))
        .collect();
    if let Some(own) = processors.get(rank).filter(|_| ranks <= processors.len()) {
        let mut set = CpuSet::new();
        set.set(*own);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Rank, ranks and folder of a started process.
pub fn place(given: &[String]) -> Result<(usize, usize, PathBuf), Failure> {
    let bad = || Failure::usage("--started takes a rank, the number of ranks and a folder");
    let [rank, ranks, folder] = given else {
        return Err(bad());
    };
    let number = |text: &String| text.parse().map_err(|_| bad());
    Ok((number(rank)?, number(ranks)?, PathBuf::from(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_a_rank_that_could_not_start_what_it_told_is_told_with_what_helps() {
        let failure =
            Failure::new("setup-failed", Exit::Unavailable, "no\nroom").hint("make\tsome");
        let told = not_started(3, &in_a_line(&failure));
        assert_eq!(told.message(), "rank 3 could not start: no room");
        assert_eq!(told.hint_text(), Some("make some"));
        let bare = Failure::new("setup-failed", Exit::Unavailable, "no room");
        assert_eq!(not_started(1, &in_a_line(&bare)).hint_text(), None);
        let silent = not_started(1, "");
        assert_eq!(
            silent.message(),
            "rank 1 could not start: it ended without a word"
        );
    }
}
