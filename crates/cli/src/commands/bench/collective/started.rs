//! Ranks that this process starts on this machine, as processes of this program with its own
//! arguments.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::SharedKey;
use crowfly_mover::fabric::rendezvous::{Directory, Folder, Presence, RendezvousError, World};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use super::JOB;
use crate::commands::reason::{HEARSAY, Reason, is_of_others};
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
/// The longest line that a rank may say.
const MAX_LINE: u64 = 4096;
/// How long ranks may take to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long after a rank's last word its end may come.
const LAST_BREATH: Duration = Duration::from_millis(500);
/// The signal that nobody can catch.
const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();
/// How often it is looked whether they have.
const GLANCE: Duration = Duration::from_millis(5);

/// The other ranks, and the folder in which all find each other.
#[derive(Debug)]
pub struct Started {
    key: SharedKey,
    /// In the order of their ranks, from 1 on.
    children: Mutex<Vec<Child>>,
    /// What each of them says, once it has said that it is ready.
    words: Mutex<Vec<Words>>,
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
        for child in self.children().iter_mut() {
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
    Failure::new("bench-no-ranks", Exit::Unavailable, what).maybe_hint(errno::no_thread(error))
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
        let started = Self::within((folder, unfinished), lock, SharedKey::generate()?);
        let mut words = Vec::new();
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
            words.push((rank as usize, child.stdout.take()));
            started.children().push(child);
            told.unwrap_or(Ok(()))
                .map_err(|error| failed("talk to a rank", &error))?;
        }
        for (rank, stdout) in words {
            let begun = Words::new(rank, stdout).begin(|| started.end(rank))?;
            started.words().push(begun);
        }
        Ok(started)
    }

    /// Nobody yet, in a folder that goes with them.
    fn within((folder, unfinished): (TempDir, Leftover), lock: File, key: SharedKey) -> Self {
        Self {
            key,
            children: Mutex::default(),
            words: Mutex::default(),
            meet: folder.path().join(MEET),
            _folder: folder,
            _unfinished: unfinished,
            _lock: lock,
        }
    }

    fn children(&self) -> MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a rank ended that says nothing any more, if it has.
    fn end(&self, rank: usize) -> Option<ExitStatus> {
        let until = Instant::now() + LAST_BREATH;
        let mut children = self.children();
        let child = children.get_mut(rank.checked_sub(1)?)?;
        loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(GLANCE),
                ended => return ended.ok().flatten(),
            }
        }
    }

    fn words(&self) -> MutexGuard<'_, Vec<Words>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the run failed: where what happened here only follows from what happened to another rank, that.
    pub fn reason(&self, here: Failure) -> Failure {
        if !is_of_others(here.code()) {
            return here;
        }
        let until = Instant::now() + HEARSAY;
        loop {
            let mut words = self.words();
            words.iter_mut().for_each(Words::listen);
            let own = words.iter().find_map(Words::own_reason);
            if let Some(own) = own {
                return own;
            }
            let silent = words.iter().all(|words| words.end.is_some());
            let mut wordless = words.iter().filter(|words| words.end == Some(None));
            let killed = wordless.find_map(|words| killed(words.rank, self.end(words.rank)?));
            drop(words);
            if killed.is_some() || silent || Instant::now() >= until {
                return here.maybe_hint(killed.as_deref());
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// The key that all of them share.
    pub fn key(&self) -> SharedKey {
        self.key.clone()
    }
}

impl Directory for Started {
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError> {
        Folder::at(&self.meet).put(name, entry)
    }

    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError> {
        Folder::at(&self.meet).hold(name, entry)
    }

    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError> {
        Folder::at(&self.meet).get(name)
    }

    /// Whoever of them has ended comes no more.
    fn missed(&self, name: &str) -> Option<String> {
        let mut words = self.words();
        let words = words.iter_mut().find(|words| {
            let rank = u32::try_from(words.rank);
            rank.is_ok_and(|rank| World::name_of(JOB, rank) == name)
        })?;
        words.listen();
        match words.end.as_ref()? {
            Some(reason) => Some(reason.message.clone()),
            None => Some(wordless(self.end(words.rank))),
        }
    }
}

/// What a rank says.
#[derive(Debug)]
struct Words {
    rank: usize,
    said: Option<BufReader<ChildStdout>>,
    /// What it said last, if that is over.
    end: Option<Option<Reason>>,
}

impl Words {
    fn new(rank: usize, stdout: Option<ChildStdout>) -> Self {
        Self {
            rank,
            said: stdout.map(BufReader::new),
            end: None,
        }
    }

    fn next(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if let Some(said) = &mut self.said {
            said.take(MAX_LINE).read_line(&mut line)?;
        }
        Ok(line)
    }

    /// Waits until a rank has all that it needs: the others would wait a minute for one that cannot come.
    fn begin(mut self, end: impl FnOnce() -> Option<ExitStatus>) -> Result<Self, Failure> {
        let line = self.next().map_err(|error| failed("hear a rank", &error))?;
        match line.trim() {
            READY => Ok(self),
            why => Err(not_started(self.rank, why, end)),
        }
    }

    /// Hears whether it could not go on, or has ended, and waits for neither.
    fn listen(&mut self) {
        let Some(said) = self.said.as_ref().filter(|_| self.end.is_none()) else {
            return;
        };
        let mut ready = [PollFd::new(said.get_ref(), PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let waits = poll(&mut ready, Some(&now)).is_ok_and(|ready| ready > 0);
        if !said.buffer().is_empty() || waits {
            let line = self.next().unwrap_or_default();
            self.end = Some(serde_json::from_str(&line).ok());
        }
    }

    /// Why it could not go on, where that was no other's doing.
    fn own_reason(&self) -> Option<Failure> {
        let reason = self.end.as_ref()?.as_ref()?;
        let own = !reason.is_of_others();
        own.then(|| reason.failure(self.rank, "bench-rank-failed"))
    }
}

/// What there is to say of a rank that told nothing.
fn wordless(end: Option<ExitStatus>) -> String {
    match end {
        Some(status) => format!("it ended without a word ({status})"),
        None => "it ended without a word".to_owned(),
    }
}

/// What there is to say where it was killed.
fn killed(rank: usize, end: ExitStatus) -> Option<String> {
    let signal = end.signal()?;
    let by = match signal {
        SIGKILL => ": by somebody, or by the kernel for want of memory",
        _ => "",
    };
    Some(format!("rank {rank} was ended by signal {signal}{by}"))
}

/// The failure of a rank that could not start, as it told it.
fn not_started(rank: usize, told: &str, end: impl FnOnce() -> Option<ExitStatus>) -> Failure {
    let told: Option<Reason> = serde_json::from_str(told).ok();
    let message = told.as_ref().map(|told| told.message.clone());
    let why = message.unwrap_or_else(|| wordless(end()));
    let what = format!("rank {rank} could not start: {why}");
    let hint = told.as_ref().and_then(|told| told.hint.as_deref());
    Failure::new("bench-no-ranks", Exit::Unavailable, what).maybe_hint(hint)
}

/// Says to whoever started this rank that it has all that it needs.
pub fn say_ready() -> Result<(), Failure> {
    say(READY).map_err(|error| Failure::output(&error))
}

/// Says to whoever started this rank why it cannot go on.
pub fn say_why(failure: &Failure) {
    let line = serde_json::to_string(&Reason::of(failure));
    // Who is not there to hear it has ended this rank.
    let _ = line.map_err(io::Error::from).and_then(|line| say(&line));
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Binds this rank to a processor of its own, as mpirun does, where there are enough, and otherwise to one that it
/// shares with the ranks next to it; where the system refuses, all go where the system puts them. Threads that are
/// started later go with it.
pub fn bind(rank: usize, ranks: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|at| allowed.is_set(*at))
        .collect();
    if let Some(own) = processors.get(processor_of(rank, ranks, processors.len())) {
        let mut set = CpuSet::new();
        set.set(*own);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Which of so many processors a rank is bound to. Without that, the system's choice of who shares one decided how
/// long the same all-reduce took: 0.63 or 0.83 ms of 1 MiB by TCP among four ranks on two (2026-11-30).
fn processor_of(rank: usize, ranks: usize, processors: usize) -> usize {
    if ranks <= processors {
        rank
    } else {
        rank * processors / ranks
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
    fn ranks_have_a_processor_each_where_there_are_enough_and_share_with_the_next_where_not() {
        let of = |ranks, processors| -> Vec<usize> {
            (0..ranks)
                .map(|rank| processor_of(rank, ranks, processors))
                .collect()
        };
        assert_eq!(of(3, 8), [0, 1, 2]);
        assert_eq!(of(4, 2), [0, 0, 1, 1]);
        assert_eq!(of(5, 2), [0, 0, 0, 1, 1]);
        assert_eq!(of(2, 0), [0, 0], "of none, which there is not either");
    }

    fn told(failure: &Failure) -> String {
        serde_json::to_string(&Reason::of(failure)).expect("it can be told")
    }

    #[test]
    fn given_a_rank_that_could_not_start_what_it_told_is_told_with_what_helps() {
        let failure =
            Failure::new("setup-failed", Exit::Unavailable, "no\nroom").hint("make\tsome");
        let unasked = || panic!("it has told why");
        let heard = not_started(3, &told(&failure), unasked);
        assert_eq!(heard.message(), "rank 3 could not start: no\nroom");
        assert_eq!(heard.hint_text(), Some("make\tsome"));
        let bare = Failure::new("setup-failed", Exit::Unavailable, "no room");
        assert_eq!(not_started(1, &told(&bare), unasked).hint_text(), None);
        let silent = |end| not_started(1, "", || end).message().to_owned();
        let wordless = "rank 1 could not start: it ended without a word";
        assert_eq!(silent(None), wordless);
        let aborted = ExitStatus::from_raw(6);
        assert_eq!(
            silent(Some(aborted)),
            format!("{wordless} (signal: 6 (SIGABRT))")
        );
    }

    /// Ranks that say lines and end, as a script in `$0` has it.
    fn ranks(lines: &[&str], end: &str) -> Started {
        let made = Leftover::make(tempfile::tempdir, TempDir::path);
        let (folder, unfinished) = made.expect("a folder");
        let lock = File::create(folder.path().join(MARK)).expect("a file");
        let key = SharedKey::derive("a test of ranks that fail");
        let started = Started::within((folder, unfinished), lock, key);
        for (rank, line) in (1..).zip(lines) {
            let mut child = Command::new("sh")
                .args(["-c", &format!("printf %s \"$0\"; {end}"), line])
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts");
            let words = Words::new(rank, child.stdout.take());
            started.children().push(child);
            let begun = words.begin(|| started.end(rank));
            started.words().push(begun.expect("it is ready"));
        }
        started
    }

    #[test]
    fn given_ranks_of_which_one_has_a_reason_of_its_own_that_is_told_and_no_other() {
        let failed = |code| {
            told(&Failure::new(
                code,
                Exit::Unavailable,
                format!("the words of {code}"),
            ))
        };
        let lines =
            ["ranks-lost", "setup-failed"].map(|code| format!("{READY}\n{}\n", failed(code)));
        let started = ranks(&lines.each_ref().map(String::as_str), "exit 0");
        let lost = Failure::new("ranks-lost", Exit::Io, "rank 2 was lost");
        let reason = started.reason(lost);
        assert_eq!(reason.code(), "bench-rank-failed");
        assert_eq!(
            reason.message(),
            "rank 2 could not go on: the words of setup-failed (setup-failed)"
        );
        let own = Failure::new("out-of-memory", Exit::Unavailable, "this one's own");
        assert_eq!(started.reason(own).code(), "out-of-memory");
        let missed = |rank| started.missed(&World::name_of(JOB, rank));
        assert_eq!(missed(2).as_deref(), Some("the words of setup-failed"));
        assert_eq!(missed(3), None);
    }

    #[test]
    fn given_a_rank_that_ended_without_a_word_nobody_waits_for_it_and_what_others_saw_is_told() {
        let started = ranks(&[&format!("{READY}\n")], "exit 5");
        let until = Instant::now() + FAREWELL;
        let missed = loop {
            match started.missed(&World::name_of(JOB, 1)) {
                None if Instant::now() < until => std::thread::sleep(GLANCE),
                missed => break missed,
            }
        };
        let wanted = "it ended without a word (exit status: 5)";
        assert_eq!(missed.as_deref(), Some(wanted));
        let lost = || Failure::new("ranks-lost", Exit::Io, "rank 1 was lost");
        let reason = started.reason(lost());
        assert_eq!((reason.code(), reason.hint_text()), ("ranks-lost", None));
        let killed = ranks(&[&format!("{READY}\n")], "kill -9 $$").reason(lost());
        assert_eq!(killed.code(), "ranks-lost");
        assert_eq!(
            killed.hint_text(),
            Some("rank 1 was ended by signal 9: by somebody, or by the kernel for want of memory")
        );
    }
}
