//! Trying what can hang, crash or harm the process that does it: in a child, with a time limit.
//!
//! The child is another run of the same program ([`Trial::by`] says how it is started), which calls
//! [`answer`] with the question it was given and reports each step before and after it is done. So
//! the parent knows which step a child hung or died in. The child works in an empty folder of its
//! own; what libraries leave there is read as a log and removed.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::gpu::trial::GpuQuestion;
use crate::gpu_storage::probe::StorageQuestion;

/// How long a child may take unless said otherwise. Drivers of machines with many GPUs take seconds
/// to start.
pub const LIMIT: Duration = Duration::from_secs(20);
/// The most that is read of what a child says.
const MAX_SAID: u64 = 1 << 20;
/// The most that a child may write into one file. What it says goes into one, and a library that
/// writes without end must not fill the disk before its time is over.
const MAX_WRITTEN: u64 = 16 << 20;
/// The most that is read of a log that a library left.
const MAX_LOG: u64 = 1 << 20;
/// The last lines of it that are kept.
const LOG_LINES: usize = 8;
/// How often a child is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a killed child is waited for: one that hangs in the kernel does not die.
const BURIAL: Duration = Duration::from_secs(1);

/// What a child is to try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// A storage library.
    Storage(StorageQuestion),
    /// GPUs, what they let each other do, and NICs that are to reach their memory.
    Gpus(GpuQuestion),
}

/// What came of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It began. As the last word on a step: it never ended.
    Began,
    /// It was done; what was seen.
    Done(String),
    /// It was refused.
    Refused {
        /// In words.
        why: String,
        /// The code behind it, where there is one.
        code: Option<i32>,
    },
}

/// One step of a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What was called or looked at.
    pub step: String,
    /// What came of it.
    pub answer: Answer,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with everything done that could be.
    Finished,
    /// It was killed when its time was over.
    TimedOut(Duration),
    /// By a signal, or with a status of its own.
    Died(String),
    /// It never began; why.
    NotStarted(String),
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The steps in order, each with the last word on it.
    pub steps: Vec<Step>,
    /// How the child ended.
    pub end: End,
    /// The last lines of logs that libraries left.
    pub log: Vec<String>,
}

impl Outcome {
    /// The last word on a step; `None` when it was not come to.
    pub fn answer(&self, step: &str) -> Option<&Answer> {
        let found = self.steps.iter().find(|known| known.step == step);
        found.map(|known| &known.answer)
    }

    /// What was seen in a step that was done.
    pub fn done(&self, step: &str) -> Option<&str> {
        match self.answer(step) {
            Some(Answer::Done(seen)) => Some(seen),
            _ => None,
        }
    }

    /// The step that was begun and never ended.
    pub fn unended(&self) -> Option<&str> {
        let unended = self
            .steps
            .iter()
            .find(|known| known.answer == Answer::Began);
        unended.map(|known| known.step.as_str())
    }

    fn hear(&mut self, step: Step) {
        match self.steps.iter_mut().find(|known| known.step == step.step) {
            Some(known) => *known = step,
            None => self.steps.push(step),
        }
    }
}

/// How a child of this program is started, and how long it may take.
#[derive(Clone, Debug)]
pub struct Trial {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    limit: Duration,
}

impl Trial {
    /// A child is `program arguments… QUESTION`, and has to hand `QUESTION` to [`answer`].
    pub fn by(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            limit: LIMIT,
        }
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.push(pair);
        self
    }

    /// With another time limit.
    #[must_use]
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs a child, and comes back when it has ended or its time is over.
    pub fn run(&self, question: &Question) -> Outcome {
        let mut outcome = Outcome {
            steps: Vec::new(),
            end: End::Finished,
            log: Vec::new(),
        };
        match self.tried(question, &mut outcome) {
            Ok(end) => outcome.end = end,
            Err(error) => outcome.end = End::NotStarted(error.to_string()),
        }
        outcome
    }

    fn tried(&self, question: &Question, outcome: &mut Outcome) -> std::io::Result<End> {
        let folder = tempfile::tempdir()?;
        let question = serde_json::to_string(question).map_err(std::io::Error::other)?;
        // A file takes what a child says, however much it is and whenever the child dies.
        let said = tempfile::tempfile()?;
        let mut command = Command::new(&self.program);
        // SAFETY: between fork and exec it makes two system calls and allocates nothing.
        unsafe { command.pre_exec(bound_what_is_written) };
        let mut child = command
            .args(&self.arguments)
            .arg(question)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(Stdio::null())
            .spawn()?;
        let ended = self.watch(&mut child)?;
        read_all(said, MAX_SAID)?
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .for_each(|step| outcome.hear(step));
        outcome.log = log(folder.path());
        Ok(match ended {
            None => End::TimedOut(self.limit),
            Some(status) if status.success() => End::Finished,
            Some(status) => End::Died(match status.signal() {
                Some(signal) => format!("signal {signal}"),
                None => status.to_string(),
            }),
        })
    }

    /// Waits for a child within its limit; kills it afterwards.
    fn watch(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        while started.elapsed() < self.limit {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(LOOK);
        }
        child.kill()?;
        let killed = Instant::now();
        while killed.elapsed() < BURIAL && child.try_wait()?.is_none() {
            std::thread::sleep(LOOK);
        }
        Ok(None)
    }
}

/// Holds this process and what it starts to files of [`MAX_WRITTEN`] bytes.
fn bound_what_is_written() -> std::io::Result<()> {
    let allowed = rustix::process::getrlimit(Resource::Fsize);
    let least =
        |limit: Option<u64>| Some(limit.map_or(MAX_WRITTEN, |limit| limit.min(MAX_WRITTEN)));
    let bounded = Rlimit {
        current: least(allowed.current),
        maximum: allowed.maximum,
    };
    rustix::process::setrlimit(Resource::Fsize, bounded).map_err(Into::into)
}

fn read_all(mut file: std::fs::File, limit: u64) -> std::io::Result<String> {
    use std::io::Seek;
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of the files that a child left in its folder.
fn log(folder: &Path) -> Vec<String> {
    let mut last = VecDeque::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let plain = entry.file_type().is_ok_and(|kind| kind.is_file());
        let file = plain
            .then(|| std::fs::File::open(entry.path()).ok())
            .flatten();
        let text = file.and_then(|file| read_all(file, MAX_LOG).ok());
        for line in text.unwrap_or_default().lines().map(str::trim) {
            if !line.is_empty() {
                last.push_back(line.to_owned());
            }
            if last.len() > LOG_LINES {
                last.pop_front();
            }
        }
    }
    last.into()
}

/// Reports the steps of a child.
pub(crate) struct Reporter<W> {
    to: W,
}

impl<W: Write> Reporter<W> {
    pub(crate) const fn new(to: W) -> Self {
        Self { to }
    }

    /// Does a step, and reports it before and after. `show` says what is worth knowing of it.
    pub(crate) fn step<T, E: Refusal>(
        &mut self,
        step: &str,
        act: impl FnOnce() -> Result<T, E>,
        show: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        self.say(step, Answer::Began);
        match act() {
            Ok(value) => {
                self.say(step, Answer::Done(show(&value)));
                Some(value)
            }
            Err(error) => {
                let (why, code) = (error.to_string(), error.code());
                self.say(step, Answer::Refused { why, code });
                None
            }
        }
    }

    /// Reports what was seen.
    pub(crate) fn saw(&mut self, step: &str, seen: impl Into<String>) {
        self.say(step, Answer::Done(seen.into()));
    }

    fn say(&mut self, step: &str, answer: Answer) {
        let step = Step {
            step: step.to_owned(),
            answer,
        };
        let line = serde_json::to_string(&step).unwrap_or_default();
        // A parent that no longer listens does not keep the child from ending.
        let _ = writeln!(self.to, "{line}").and_then(|()| self.to.flush());
    }
}

/// An error of a step.
pub(crate) trait Refusal: Display {
    fn code(&self) -> Option<i32>;
}

impl Refusal for std::io::Error {
    fn code(&self) -> Option<i32> {
        self.raw_os_error()
    }
}

impl Refusal for String {
    fn code(&self) -> Option<i32> {
        None
    }
}

/// Does in a child what it was asked for, and reports it to `to`, which has to be what the parent
/// reads: standard output. The process has to end afterwards: what was opened stays open.
///
/// # Errors
/// When the question is none.
pub fn answer(question: &str, to: impl Write) -> Result<(), String> {
    let question: Question = serde_json::from_str(question).map_err(|error| error.to_string())?;
    end_with_parent();
    let mut reporter = Reporter::new(to);
    match &question {
        Question::Storage(question) => {
            crate::gpu_storage::probe::child::answer(question, &mut reporter);
        }
        Question::Gpus(question) => crate::gpu::trial::answer(question, &mut reporter),
    }
    Ok(())
}

/// A child that hangs does not outlive its parent.
fn end_with_parent() {
    // SAFETY: it takes numbers only.
    let _ = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question::Storage(StorageQuestion::default())
    }

    fn shell(script: &str) -> Trial {
        // The question becomes `$0`.
        Trial::by("/bin/sh", &["-c", script])
    }

    fn line(step: &str, answer: Answer) -> String {
        let step = step.to_owned();
        serde_json::to_string(&Step { step, answer }).expect("JSON")
    }

    #[test]
    fn given_a_child_that_hangs_the_step_is_known_and_the_parent_goes_on() {
        let began = line("cuFileDriverOpen", Answer::Began);
        let done = line("library", Answer::Done("libcufile.so.0".into()));
        let child = shell(&format!(
            "echo '{done}'; echo noise; echo '{began}'; sleep 60"
        ));
        let started = Instant::now();
        let outcome = child.within(Duration::from_millis(300)).run(&question());
        assert!(started.elapsed() < Duration::from_secs(10));
        assert_eq!(outcome.end, End::TimedOut(Duration::from_millis(300)));
        assert_eq!(outcome.unended(), Some("cuFileDriverOpen"));
        assert_eq!(outcome.done("library"), Some("libcufile.so.0"));
    }

    #[test]
    fn given_a_child_that_dies_it_is_told_from_one_that_ends() {
        let died = shell("kill -SEGV $$").run(&question());
        assert_eq!(died.end, End::Died("signal 11".into()));
        let status = shell("exit 3").run(&question());
        assert_eq!(status.end, End::Died("exit status: 3".into()));
        assert_eq!(shell("exit 0").run(&question()).end, End::Finished);
        let none = Trial::by("/nowhere/to/be/found", &[]).run(&question());
        assert!(matches!(none.end, End::NotStarted(_)));
    }

    #[test]
    fn what_a_library_logs_in_the_working_folder_is_kept_and_the_folder_is_not() {
        let outcome = shell("pwd > where.log; seq 20 > cufile.log; rm where.log").run(&question());
        assert_eq!(outcome.log.last().map(String::as_str), Some("20"));
        assert_eq!(outcome.log.len(), LOG_LINES);
    }

    #[test]
    fn a_child_that_never_stops_talking_is_ended_before_it_fills_the_disk() {
        let child = shell("yes '{\"step\":\"a\",\"answer\":\"began\"}'");
        let outcome = child.run(&question());
        assert_eq!(outcome.steps.len(), 1);
        assert!(matches!(outcome.end, End::Died(_)), "{:?}", outcome.end);
    }

    #[test]
    fn the_last_word_on_a_step_counts() {
        let refused = Answer::Refused {
            why: "no".into(),
            code: Some(5033),
        };
        let (began, ended) = (line("open", Answer::Began), line("open", refused.clone()));
        let outcome = shell(&format!("echo '{began}'; echo '{ended}'")).run(&question());
        assert_eq!(outcome.answer("open"), Some(&refused));
        assert_eq!((outcome.unended(), outcome.done("open")), (None, None));
        assert_eq!(outcome.answer("read"), None);
    }

    #[test]
    fn a_question_that_is_none_is_refused() {
        assert!(answer("{}", Vec::new()).is_err());
        assert!(answer("", Vec::new()).is_err());
    }
}
