//! The other end: a second process of this program, or one that someone started elsewhere.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crowfly_mover::bench::{Held, Host};
use crowfly_mover::fabric::rendezvous::Directory;
use crowfly_mover::fabric::{NicFilter, Settings, SharedKey, Whom};
use crowfly_route::place::Place;

use crate::failure::{Exit, Failure};
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
        let _ = self.child.wait();
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    let what = format!("could not {what} a second process of this program: {error}");
    Failure::new("bench-no-second-process", Exit::Unavailable, what)
        .hint("start `crowfly bench net --listen` by hand and name it with --peer")
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
            .stderr(Stdio::null())
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
        let address: SocketAddr = line.trim().parse().map_err(|_| {
            let silent = io::Error::other("it ended without telling its address");
            failed("use", &silent)
        })?;
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
