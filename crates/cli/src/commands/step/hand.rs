//! A rank that another process of this program started: what the two say to each other, and the
//! rank's side of it. Each word is a line of JSON.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crowfly_mover::collective::{CallOptions, CollectiveError, Group, GroupSettings};
use crowfly_mover::fabric::Fabric;
use crowfly_mover::fabric::rendezvous::Folder;
use crowfly_mover::step::{Crew, Moment, Order, Recovery, RunError, train};
use serde::{Deserialize, Serialize};

use super::Way;
use crate::commands::key;
use crate::commands::reason::Reason;
use crate::failure::{Exit, Failure, errno};

/// How often a rank that computes says so: several times within the shortest time after which one that
/// says nothing is given up.
const BEAT: Duration = Duration::from_secs(1);

/// What a rank is told at its start, after the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Brief {
    /// What is to be done.
    pub order: Order,
    /// Which rank it is.
    pub rank: u32,
    /// How often ranks were lost before.
    pub losses: u32,
    /// The folder in which ranks find each other.
    pub meet: PathBuf,
    /// The way between them.
    pub(super) way: Way,
}

/// What a rank is told later on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Everyone is there to form a group again, for the so manieth time.
    Again(u32),
}

/// What a rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// What happened.
    Moment(Box<Moment>),
    /// It computes; said again and again as long as it does, for it says nothing else meanwhile.
    Computing,
    /// Why it cannot go on.
    Failed(Reason),
}

impl Said {
    /// Says it on standard output.
    fn say(&self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }
}

/// The name under which ranks meet after so many losses.
pub fn job(losses: u32) -> String {
    format!("step-{losses}")
}

/// Kills this process, as the system would that has no memory left: nothing is tidied up.
pub fn die() {
    let myself = rustix::process::getpid();
    let _ = rustix::process::kill_process(myself, rustix::process::Signal::KILL);
}

/// Is a rank, as standard input says, to its end. What goes wrong is told to whoever started it.
pub fn be_started() -> Exit {
    match started() {
        Ok(()) => Exit::Ok,
        Err(failure) => {
            // Who is not there to hear it has ended this rank.
            let _ = Said::Failed(Reason::of(&failure)).say();
            failure.exit()
        }
    }
}

fn started() -> Result<(), Failure> {
    let key = key::from_stdin()?;
    let mut line = String::new();
    let unread = |error: &dyn std::fmt::Display| {
        let what = format!("what this rank is to do cannot be read: {error}");
        Failure::new("step-bad-brief", Exit::BadData, what)
    };
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|e| unread(&e))?;
    let brief: Brief = serde_json::from_str(&line).map_err(|e| unread(&e))?;
    let (order, gpu) = (brief.order.clone(), brief.order.gpu);
    let destination = super::destination(gpu, order.data.first().map(PathBuf::as_path))?;
    let mut hand = Hand {
        settings: brief.way.settings(key),
        losses: brief.losses,
        brief,
        words: words()?,
        computing: computing()?,
    };
    train(&order, destination, &mut hand)?;
    Ok(())
}

/// The words of whoever started this rank, as they come. When these end, so does the rank: whoever
/// started it is gone, and with it the folder that the rank works in.
fn words() -> Result<Receiver<Word>, Failure> {
    let (sender, receiver) = mpsc::channel();
    let hear = move || {
        for line in io::stdin().lock().lines() {
            let word = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(word) = word else { break };
            if sender.send(word).is_err() {
                return;
            }
        }
        std::process::exit(Exit::Interrupted.status().into());
    };
    start("crowfly-words", "hears", hear)?;
    Ok(receiver)
}

/// Whoever started this rank is told again and again that it computes, as long as what this answers
/// is set.
fn computing() -> Result<Arc<AtomicBool>, Failure> {
    let computing = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&computing);
    let tell = move || {
        loop {
            thread::sleep(BEAT);
            if told.load(Ordering::Relaxed) && Said::Computing.say().is_err() {
                return;
            }
        }
    };
    start("crowfly-beat", "tells", tell)?;
    Ok(computing)
}

/// Starts a thread that has to do with whoever started this rank.
fn start(name: &str, does: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().name(name.into()).spawn(body);
    started.map(drop).map_err(|error| {
        let what =
            format!("could not start a thread that {does} whoever started this rank: {error}");
        Failure::new("step-no-ranks", Exit::Unavailable, what).maybe_hint(errno::no_thread(&error))
    })
}

/// The crew of a rank that was started.
struct Hand {
    brief: Brief,
    settings: crowfly_mover::fabric::Settings,
    losses: u32,
    words: Receiver<Word>,
    /// Whether this rank computes.
    computing: Arc<AtomicBool>,
}

impl Hand {
    fn patience(&self) -> Duration {
        // Others may still be waiting for what was being saved.
        Duration::from_secs_f64(self.brief.order.deadline) * 2 + Duration::from_secs(30)
    }

    fn form(&self) -> Result<Group, CollectiveError> {
        let fabric = Arc::new(Fabric::new(self.settings.clone())?);
        let settings = GroupSettings {
            time: self.patience(),
            ..GroupSettings::default()
        };
        Group::form(
            fabric,
            &Folder::at(&self.brief.meet),
            &job(self.losses),
            self.brief.rank as usize,
            self.brief.order.ranks as usize,
            settings,
        )
    }
}

impl Crew for Hand {
    fn muster(&mut self, before: Option<Group>) -> Result<Group, RunError> {
        let Some(mut before) = before else {
            return Ok(self.form()?);
        };
        if self.brief.order.recovery == Recovery::Shrink {
            let within = Duration::from_secs_f64(self.brief.order.deadline);
            return Ok(before.shrink(CallOptions::within(within))?);
        }
        // Until all of them have heard of the loss the old group stays: who left it would count as
        // lost too.
        // Some may compute for long before they hear of it; whoever started the ranks knows for how
        // long to wait, and this process ends with it.
        let word = self.words.recv();
        let Ok(Word::Again(losses)) = word else {
            return Err(RunError::Abandoned);
        };
        drop(before);
        self.losses = losses;
        Ok(self.form()?)
    }

    fn losses_before(&self) -> u32 {
        self.brief.losses
    }

    fn tell(&mut self, moment: Moment) -> Result<(), RunError> {
        let said = Said::Moment(Box::new(moment));
        said.say().map_err(|_| RunError::Abandoned)
    }

    fn before_computation(&mut self, _step: u64) {
        self.computing.store(true, Ordering::Relaxed);
    }

    fn before_exchange(&mut self, step: u64) {
        self.computing.store(false, Ordering::Relaxed);
        let Some(kill) = self.brief.order.kill else {
            return;
        };
        // Only once: the step comes again after the loss.
        if self.brief.losses == 0
            && self.losses == 0
            && (kill.rank, kill.step) == (self.brief.rank, step)
        {
            die();
        }
    }
}
