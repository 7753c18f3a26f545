//! A command that prints a key: what other tools run as `credential_process`.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::{A_KEY, Credentials, Giver, Line, ObjectError, in_short, time};
use crate::objects::line::called_back;

/// How long it may take: it may ask its user for something.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long what it printed may be on its way once it has ended: what it started may hold on to the pipes.
const AFTERWARDS: Duration = Duration::from_millis(500);
/// The longest of what it prints that is read, in bytes.
const MAX_ANSWER: usize = super::MAX_ANSWER as usize;
/// The version of what it prints.
const VERSION: u32 = 1;

/// A command that prints a key. It is run without a shell, anew for each key, and ended with all that it started
/// when it takes too long or nobody wants the key any more.
#[derive(Clone, PartialEq, Eq)]
pub struct Process {
    program: String,
    arguments: Vec<String>,
}

impl fmt::Debug for Process {
    /// Without its arguments, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({} …)", self.program)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

impl Process {
    /// That of a command line: words with spaces between them. What stands in `"…"` or `'…'` is one word, and
    /// outside of `'…'` a `\` keeps what follows it as it is. `None` when a quotation does not end, or there is
    /// no word.
    pub fn of(line: &str) -> Option<Self> {
        let mut words = words(line)?.into_iter();
        let program = words.next().filter(|program| !program.is_empty())?;
        Some(Self {
            program,
            arguments: words.collect(),
        })
    }

    pub(super) fn key(&self, line: &Line, until: Instant) -> Result<Credentials, ObjectError> {
        let patience = Instant::now() + PATIENCE;
        let until = until.min(patience);
        let failed = |source| ObjectError::Io {
            store: self.program.clone(),
            url: A_KEY.into(),
            source,
        };
        let may_ask = has_the_terminal();
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !may_ask {
            // What it starts is found by that.
            command.process_group(0);
        }
        let mut child = command
            .spawn()
            .map_err(|error| self.refused(format!("it cannot be started: {error}")))?;
        let ended = Ended::of(&mut child, line, until).map_err(|error| {
            end_all(&mut child, may_ask);
            match error.kind() {
                io::ErrorKind::TimedOut if until == patience => {
                    self.refused(format!("it did not end within {} s", PATIENCE.as_secs()))
                }
                _ => failed(error),
            }
        })?;
        if ended.status.success() {
            return self.key_in(&ended.out);
        }
        let said = in_short(&String::from_utf8_lossy(&ended.err));
        let said = match said.as_str() {
            "" => "it said nothing",
            said => said,
        };
        Err(self.refused(format!("{}: {said}", ended.status)))
    }

    fn key_in(&self, out: &[u8]) -> Result<Credentials, ObjectError> {
        // What it printed is not repeated: there may be a secret in it.
        let printed: Printed = serde_json::from_slice(out).map_err(|_| {
            self.refused(
                "what it prints is no key: JSON with Version, AccessKeyId and SecretAccessKey",
            )
        })?;
        if printed.version != VERSION {
            let found = printed.version;
            return Err(self.refused(format!(
                "what it prints is of version {found}, not {VERSION}"
            )));
        }
        let expires = match printed.expiration {
            None => None,
            Some(text) => {
                let when = time(Some(&text)).ok_or_else(|| {
                    self.refused("the time until which its key counts is none (Expiration)")
                })?;
                Some(when)
            }
        };
        let key = Credentials {
            access_key: printed.access_key_id,
            secret_key: printed.secret_access_key,
            session_token: printed.session_token.filter(|token| !token.is_empty()),
            expires,
        };
        match super::is_over(&key) {
            true => Err(self.refused("the time of the key that it prints is over")),
            false => Ok(key),
        }
    }

    fn refused(&self, what: impl Into<String>) -> ObjectError {
        ObjectError::KeyRefused {
            from: format!("`{}`", self.program),
            by: Giver::Command,
            what: what.into(),
        }
    }
}

/// Whether this process has a terminal and may read from it. Then so may a command in the same group, and in any
/// other one it would be stopped as soon as it asks its user for something.
fn has_the_terminal() -> bool {
    std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| is_in_front(&stat))
}

/// The same by what the kernel says of a process: its group is the one that its terminal listens to.
fn is_in_front(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    // State and parent stand before them, and the session and the terminal between them.
    let mut numbers = rest.split_whitespace().skip(2).map(str::parse::<i64>);
    let (group, _, terminal) = (numbers.next(), numbers.next(), numbers.next());
    match (group, terminal, numbers.next()) {
        (Some(Ok(group)), Some(Ok(terminal)), Some(Ok(front))) => terminal != 0 && front == group,
        _ => false,
    }
}

/// Ends a command, and what it started unless that shares a group with this process: then the terminal's signals
/// reach it.
fn end_all(child: &mut Child, shares_the_group: bool) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group.filter(|_| !shares_the_group) {
        // It was not waited for, so that the number is still its own.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// What came of a command.
struct Ended {
    status: ExitStatus,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Ended {
    /// Waits for its end; an error when its time is over first, or nobody waits any more.
    fn of(child: &mut Child, line: &Line, until: Instant) -> io::Result<Self> {
        let out = child.stdout.take().map(heard).transpose()?;
        let err = child.stderr.take().map(heard).transpose()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if line.is_over() {
                return Err(called_back());
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LOOK);
        };
        if by_the_terminal(status) {
            // The same signal is on its way to this process, whose end is another one then.
            let told = Instant::now() + AFTERWARDS;
            while !line.is_over() && Instant::now() < told {
                std::thread::sleep(LOOK);
            }
            if line.is_over() {
                return Err(called_back());
            }
        }
        let until = Instant::now() + AFTERWARDS;
        let printed = |pipe: Option<Printing>| pipe.map(|pipe| pipe.by(until)).unwrap_or_default();
        let (out, err) = (printed(out), printed(err));
        Ok(Self { status, out, err })
    }
}

/// Whether a command was ended by a signal as terminals send it.
fn by_the_terminal(status: ExitStatus) -> bool {
    let ends = [Signal::INT, Signal::HUP, Signal::TERM].map(Signal::as_raw);
    // Shells tell so of what they ran.
    let told = status.code().map(|code| code - 128);
    status
        .signal()
        .or(told)
        .is_some_and(|signal| ends.contains(&signal))
}

/// What comes by a pipe, read by a thread of its own: what the command started may keep the pipe open for
/// longer than anybody waits.
struct Printing {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Ends with the pipe.
    open: Receiver<()>,
}

fn heard(mut pipe: impl Read + Send + 'static) -> io::Result<Printing> {
    let (opened, open) = sync_channel(0);
    let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
    let kept = Arc::clone(&bytes);
    std::thread::Builder::new()
        .name("crowfly-key".into())
        .spawn(move || {
            let _opened: SyncSender<()> = opened;
            let mut some = [0; 4096];
            loop {
                let read = match pipe.read(&mut some) {
                    Ok(read @ 1..) => read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Ok(_) | Err(_) => break,
                };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                // Of more than a key may have the beginning counts; the command is not held up by the rest.
                let room = MAX_ANSWER.saturating_sub(kept.len());
                kept.extend(some.iter().take(read.min(room)));
            }
        })?;
    Ok(Printing { bytes, open })
}

impl Printing {
    /// All of it, or what has come by then.
    fn by(self, until: Instant) -> Vec<u8> {
        let left = until.saturating_duration_since(Instant::now());
        let _ = self.open.recv_timeout(left);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut bytes)
    }
}

/// The words of a command line.
fn words(line: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(letters.next()?),
            (None, space) if space.is_whitespace() => all.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    all.extend(word);
    quote.is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_terminal_when_its_group_is_the_one_in_front() {
        let of = |numbers: &str| is_in_front(&format!("7 (a )b) S 1 {numbers} 4194304 100"));
        assert!(of("50 40 34816 50"));
        assert!(!of("50 40 34816 60"), "another group is in front");
        assert!(!of("50 40 0 -1"), "there is no terminal");
        assert!(!of("50 40 0 50") && !is_in_front("") && !is_in_front("7 (a) S 1 x"));
    }

    #[test]
    fn a_command_line_is_words_and_quotations() {
        let of = |line: &str| words(line).unwrap_or_default();
        assert_eq!(of("a  b\tc"), ["a", "b", "c"]);
        assert_eq!(of(r#""a b"c 'd "e' f\ g"#), ["a bc", "d \"e", "f g"]);
        assert_eq!(of(r#""a\"b\\" '' '\'"#), ["a\"b\\", "", "\\"]);
        for none in ["'a", "\"a", "a\\"] {
            assert_eq!(words(none), None, "{none}");
        }
        for none in ["", "  ", "'' a"] {
            assert!(Process::of(none).is_none(), "{none}");
        }
        let shown = format!("{:?}", Process::of("p --password x").expect("words"));
        assert!(!shown.contains("password"), "{shown}");
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_odd(line in ".{0,40}") {
            let _ = Process::of(&line);
        }
    }
}
