//! Ranks that this process starts on this machine, as processes of this program with its own
//! arguments.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::SharedKey;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use crate::failure::{Exit, Failure};
use crate::interrupt::Leftover;

/// How long ranks may take to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often it is looked whether they have.
const GLANCE: Duration = Duration::from_millis(5);

/// The other ranks, and the folder in which all find each other.
#[derive(Debug)]
pub struct Started {
    key: SharedKey,
    children: Vec<Child>,
    folder: TempDir,
    _unfinished: Leftover,
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
    Failure::new("bench-no-ranks", Exit::Unavailable, what)
}

impl Started {
    /// Starts ranks 1 to `ranks` - 1.
    pub fn start(ranks: u32) -> Result<Self, Failure> {
        let make = || tempfile::Builder::new().prefix("crowfly-").tempdir();
        let made = Leftover::make(make, TempDir::path);
        let (folder, unfinished) = made.map_err(|e| failed("make a folder for the ranks", &e))?;
        let mut started = Self {
            key: SharedKey::generate()?,
            children: Vec::new(),
            folder,
            _unfinished: unfinished,
        };
        let program = std::env::current_exe().map_err(|e| failed("find this program", &e))?;
        for rank in 1..ranks {
            let mut child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .args(["--started", &rank.to_string(), &ranks.to_string()])
                .arg(started.folder.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| failed("start a rank", &error))?;
            let told = child.stdin.take().map(|mut stdin| {
                let key = format!("{}\n", started.key.to_hex());
                stdin.write_all(key.as_bytes())
            });
            started.children.push(child);
            told.unwrap_or(Ok(()))
                .map_err(|error| failed("talk to a rank", &error))?;
        }
        Ok(started)
    }

    /// The key that all of them share.
    pub fn key(&self) -> SharedKey {
        self.key.clone()
    }

    /// Where they find each other.
    pub fn folder(&self) -> &Path {
        self.folder.path()
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
