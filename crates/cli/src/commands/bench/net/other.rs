//! The other end: a second process of this program, or one that someone started elsewhere.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crowfly_mover::bench::{Held, Host};
use crowfly_mover::fabric::rendezvous::Directory;
use crowfly_mover::fabric::{NicFilter, Settings, SharedKey, Whom};
use crowfly_route::place::Place;

use crate::failure::{Exit, Failure, errno};
use crate::interrupt;
use crate::output::Output;

/// The longest address that the second process may tell.
const MAX_LINE: u64 = 128;

/// The other end.
#[derive(Debug)]
pub struct Other {
    whom: Whom,
    started: Option<Started>,
}

/// How long the second process has to end once it need not live any more.
const FAREWELL: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(5);
/// The most that is told of what the second process said was wrong.
const MAX_SAID: u64 = 4096;

/// A second process of this program, which ends when its standard input does.
#[derive(Debug)]
struct Started {
    child: Child,
    /// Held open as long as it is to live: should this process be killed, the other ends as well.
    stdin: Option<ChildStdin>,
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + FAREWELL;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(GLANCE);
        }
        // One that was stopped does not see that it is to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Started {
    /// What it said was wrong before it ended.
    fn said(&mut self) -> String {
        drop(self.stdin.take());
        let mut said = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            // What it managed to say is as good as all of it.
            let _ = stderr.take(MAX_SAID).read_to_string(&mut said);
        }
        let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        match lines.next() {
            Some(first) => format!("it ended without telling its address: {first}"),
            None => "it ended without telling its address".to_owned(),
        }
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    let what = format!("could not {what} a second process of this program: {error}");
    let by_hand = "start `crowfly bench net --listen` by hand and name it with --peer";
    Failure::new("bench-no-second-process", Exit::Unavailable, what)
        .hint(errno::hint(error).unwrap_or(by_hand))
}

impl Other {
    /// One that listens already.
    pub fn at(whom: impl Into<Whom>) -> Self {
        Self {
            whom: whom.into(),
            started: None,
        }
    }

    /// A second process on this machine.
    pub fn start(
        key: &SharedKey,
        nics: Option<&NicFilter>,
        memory: &Place,
    ) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| failed("find", &error))?;
        let mut command = Command::new(program);
        command.args(["bench", "net", "--piped"]);
        if let Some(nics) = nics {
            command.arg("--nic").arg(nics.to_string());
        }
        command.arg("--memory").arg(memory.to_string());
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed("start", &error))?;
        let mut started = Started { child, stdin: None };
        started.stdin = started.child.stdin.take();
        let told = started.stdin.as_mut().map(|stdin| {
            let key = format!("{}\n", key.to_hex());
            stdin.write_all(key.as_bytes())
        });
        told.unwrap_or(Ok(()))
            .map_err(|error| failed("talk to", &error))?;
        let mut line = String::new();
        if let Some(stdout) = started.child.stdout.take() {
            let mut lines = BufReader::new(stdout.take(MAX_LINE));
            lines
                .read_line(&mut line)
                .map_err(|error| failed("hear", &error))?;
        }
        let address: SocketAddr = line
            .trim()
            .parse()
            .map_err(|_| failed("use", &io::Error::other(started.said())))?;
        Ok(Self {
            whom: address.to_string().as_str().into(),
            started: Some(started),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.whom.address
    }

    /// Which process it is.
    pub const fn whom(&self) -> &Whom {
        &self.whom
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        if self.is_local() {
            "a second process of this machine".to_owned()
        } else {
            self.whom.address.clone()
        }
    }

    /// Whether it is a process of this machine that was started for the purpose.
    pub const fn is_local(&self) -> bool {
        self.started.is_some()
    }
}

/// Is the other end until a signal ends it.
pub fn listen(
    settings: Settings,
    memory: Held,
    announced: Option<(String, Arc<dyn Directory>)>,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let host = Host::lending(settings, memory)?;
    let _present = match &announced {
        None => None,
        Some((name, directory)) => Some(host.announce(&**directory, name)?),
    };
    out.text(&host.address().to_string())?;
    out.note("Listening; Ctrl-C ends it.");
    let ended = AtomicBool::new(false);
    if announced.is_none() {
        host.serve(&ended);
        return Ok(Exit::Ok);
    }
    // The entry goes before the process does.
    let signal = interrupt::asks_first();
    let name = std::thread::scope(|scope| {
        let told = &ended;
        let hear = move || {
            let name = signal.recv().unwrap_or("a signal");
            told.store(true, Ordering::Release);
            name
        };
        let hearing = std::thread::Builder::new().name("crowfly-end".into());
        let heard = hearing
            .spawn_scoped(scope, hear)
            .map_err(|error| failed("start a thread of", &error))?;
        host.serve(&ended);
        Ok::<_, Failure>(heard.join().unwrap_or("a signal"))
    })?;
    Err(Failure::interrupted(name))
}

/// Is the other end of the process that started this one, until its standard input ends.
pub fn be_piped(settings: Settings, memory: Held) -> Result<Exit, Failure> {
    // Stopped as it may be, it goes with the process that it is for; where that cannot be had, its
    // standard input tells it to.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let host = Host::lending(settings, memory)?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hear = || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            ended.store(true, Ordering::Release);
        };
        let hearing = std::thread::Builder::new().name("crowfly-end".into());
        hearing
            .spawn_scoped(scope, hear)
            .map_err(|error| failed("start a thread of", &error))?;
        // Only now: whoever knows the address counts on this process to end with it.
        let mut stdout = io::stdout().lock();
        let told = writeln!(stdout, "{}", host.address()).and_then(|()| stdout.flush());
        if told.is_ok() {
            host.serve(&ended);
        }
        told.map_err(|error| Failure::output(&error))
    })?;
    Ok(Exit::Ok)
}
