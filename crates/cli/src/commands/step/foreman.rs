//! Whoever starts ranks on this machine, hears what they do, puts another in the place of one that is
//! lost, and ends them all when the run is over or given up.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crowfly_mover::fabric::SharedKey;
use crowfly_mover::step::{MAX_LOSSES, Moment, Order, Recovery};
use rustix::process::Signal;

use super::Way;
use super::hand::{Brief, Said, Word};
use super::standing::Log;
use crate::commands::reason::{HEARSAY, known};
use crate::failure::{Exit, Failure, errno};
use crate::interrupt;
use crate::output::Output;

/// How often it is looked whether a signal came.
const GLANCE: Duration = Duration::from_millis(50);
/// How long ranks may take to end once they are through.
const FAREWELL: Duration = Duration::from_secs(5);
/// Signals by which a program ends itself. One in its place would end as it did, and others may not have
/// met it yet, so that they would not hear of the loss.
const OWN_FAULT: [Signal; 7] = [
    Signal::ABORT,
    Signal::BUS,
    Signal::FPE,
    Signal::ILL,
    Signal::SEGV,
    Signal::SYS,
    Signal::TRAP,
];
/// The folder in which ranks find each other, in the folder of the run.
const MEET: &str = "meet";

/// What is heard of a rank.
enum Heard {
    Said(Said),
    /// It says nothing any more.
    Silent,
}

/// A rank as it is seen from outside.
struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    state: State,
    /// When it was last heard, or told to go on.
    heard: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Working,
    /// It has heard that others are lost, and waits for a new group.
    Waiting,
    /// It is through.
    Through,
    /// It could not go on.
    Failed,
    /// It was killed, and nobody is in its place.
    Gone,
}

struct Foreman<'a> {
    order: &'a Order,
    way: Way,
    meet: PathBuf,
    key: SharedKey,
    workers: Vec<Worker>,
    heard: Receiver<(usize, Heard)>,
    sender: Sender<(usize, Heard)>,
    losses: u32,
    /// Since when a rank is lost whose place nobody has taken.
    vacant: Option<Instant>,
    /// What the first rank told that could not go on for another's sake, and when.
    hearsay: Option<(Instant, Failure)>,
    log: Log,
}

/// Has a run done by ranks on this machine, in the folder of the run.
pub fn run(order: &Order, way: Way, folder: &Path, out: &Output) -> Result<Log, Failure> {
    // Ranks have to be ended before the folder is removed that they work in.
    let asked = interrupt::asks_first();
    let mut foreman = Foreman::new(order, way, folder.join(MEET), SharedKey::generate()?);
    for rank in 0..order.ranks {
        let worker = foreman.start(rank)?;
        foreman.workers.push(worker);
    }
    let began = Instant::now();
    let progress = out.progress();
    progress.steps("training", order.steps);
    while !foreman.is_over() {
        if let Ok(signal) = asked.try_recv() {
            return Err(Failure::interrupted(signal));
        }
        match foreman.heard.recv_timeout(GLANCE) {
            Ok((rank, heard)) => foreman.hear(rank, heard)?,
            Err(RecvTimeoutError::Timeout) => foreman.replace()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some((_, failure)) = foreman.hearsay.take_if(|(at, _)| at.elapsed() >= HEARSAY) {
            return Err(failure);
        }
        progress.at(foreman.log.latest_step());
    }
    let log = std::mem::take(&mut foreman.log);
    Ok(log.end(began.elapsed()))
}

fn failed(what: &str, error: &io::Error) -> Failure {
    let what = format!("could not {what}: {error}");
    Failure::new("step-no-ranks", Exit::Unavailable, what).maybe_hint(errno::no_thread(error))
}

impl<'a> Foreman<'a> {
    /// One to whom nobody has been given yet.
    fn new(order: &'a Order, way: Way, meet: PathBuf, key: SharedKey) -> Self {
        let (sender, heard) = mpsc::channel();
        Self {
            order,
            way,
            meet,
            key,
            workers: Vec::new(),
            heard,
            sender,
            losses: 0,
            vacant: None,
            hearsay: None,
            log: Log::default(),
        }
    }
}

impl Foreman<'_> {
    fn start(&self, rank: u32) -> Result<Worker, Failure> {
        let brief = Brief {
            order: self.order.clone(),
            rank,
            losses: self.losses,
            meet: self.meet.clone(),
            way: self.way,
        };
        let brief = serde_json::to_string(&brief).map_err(|error| {
            let what = format!("the ranks cannot be told what to do: {error}");
            Failure::new("step-path-not-text", Exit::Usage, what)
                .hint("use folders and files whose names are UTF-8")
        })?;
        let program = std::env::current_exe().map_err(|e| failed("find this program", &e))?;
        let mut child = Command::new(program)
            .args(["step", "--started"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| failed("start a rank", &error))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut worker = Worker {
            child,
            stdin,
            state: State::Working,
            heard: Instant::now(),
        };
        worker.say(&self.key.to_hex());
        worker.say(&brief);
        let sender = self.sender.clone();
        let listen = move || {
            let lines = stdout.map(|stdout| BufReader::new(stdout).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                let said = serde_json::from_str(&line);
                let Ok(said) = said else { break };
                let _ = sender.send((rank as usize, Heard::Said(said)));
            }
            let _ = sender.send((rank as usize, Heard::Silent));
        };
        let listener = thread::Builder::new().name(format!("crowfly-rank-{rank}"));
        listener
            .spawn(listen)
            .map_err(|error| failed("start a thread that listens to a rank", &error))?;
        Ok(worker)
    }

    fn is_over(&self) -> bool {
        let over = |worker: &Worker| matches!(worker.state, State::Through | State::Gone);
        self.workers.iter().all(over)
    }

    fn hear(&mut self, rank: usize, heard: Heard) -> Result<(), Failure> {
        let Some(worker) = self.workers.get_mut(rank) else {
            return Ok(());
        };
        worker.heard = Instant::now();
        match heard {
            Heard::Said(Said::Computing) => Ok(()),
            Heard::Said(Said::Moment(moment)) => {
                match *moment {
                    Moment::Lost(_) if self.order.recovery == Recovery::Restart => {
                        worker.state = State::Waiting;
                        // A rank may be lost to others and still be there, as one that is stopped.
                        self.vacant.get_or_insert_with(Instant::now);
                    }
                    Moment::Ended { .. } => worker.state = State::Through,
                    _ => {}
                }
                self.log.add(rank, *moment);
                self.replace()
            }
            Heard::Said(Said::Failed(reason)) => {
                let failure = reason.failure(rank, "step-rank-failed");
                if !reason.is_of_others() {
                    return Err(failure);
                }
                worker.state = State::Failed;
                self.hearsay.get_or_insert((Instant::now(), failure));
                Ok(())
            }
            Heard::Silent if matches!(worker.state, State::Through | State::Failed) => Ok(()),
            Heard::Silent => self.lose(rank),
        }
    }

    /// A rank says nothing any more and was not through.
    fn lose(&mut self, rank: usize) -> Result<(), Failure> {
        let Some(worker) = self.workers.get_mut(rank) else {
            return Ok(());
        };
        let status = worker
            .child
            .wait()
            .map_err(|e| failed("see a rank end", &e))?;
        let Some(signal) = status.signal() else {
            let what = format!("rank {rank} ended without a word ({status})");
            let exit = status.code().and_then(|code| u8::try_from(code).ok());
            let exit = known(exit.unwrap_or_default());
            return Err(Failure::new("step-rank-failed", exit, what));
        };
        if OWN_FAULT.iter().any(|own| own.as_raw() == signal) {
            return Err(own_fault(rank, signal));
        }
        worker.state = State::Gone;
        worker.stdin = None;
        self.log.killed(rank, signal);
        self.losses += 1;
        let over = |worker: &Worker| matches!(worker.state, State::Through | State::Failed);
        if self.losses > MAX_LOSSES || self.workers.iter().any(over) {
            let what =
                format!("rank {rank} was ended by signal {signal}, and the run cannot go on");
            return Err(Failure::new("step-rank-lost", Exit::Io, what));
        }
        if self.order.recovery == Recovery::Restart {
            self.vacant.get_or_insert_with(Instant::now);
        }
        self.replace()
    }

    /// Once all that are left have heard of a loss, puts others in the place of the lost.
    fn replace(&mut self) -> Result<(), Failure> {
        let Some(since) = self.vacant.filter(|_| self.hearsay.is_none()) else {
            return Ok(());
        };
        // Long enough to be called upon once, as all of them are when they do not compute.
        let patience = Duration::from_secs_f64(self.order.deadline) + FAREWELL;
        let quiet = |worker: &Worker| worker.heard.max(since).elapsed() >= patience;
        let working = self.workers.iter().enumerate();
        let working = working.filter(|(_, worker)| worker.state == State::Working);
        let (silent, busy): (Vec<_>, Vec<_>) = working.partition(|(_, worker)| quiet(worker));
        if !silent.is_empty() {
            let ranks: Vec<usize> = silent.into_iter().map(|(rank, _)| rank).collect();
            return Err(silence(&ranks, patience));
        }
        if !busy.is_empty() {
            return Ok(());
        }
        if self.workers.iter().all(|w| w.state != State::Gone) {
            self.losses += 1;
            if self.losses > MAX_LOSSES {
                let what = "ranks lost each other again and again, and the run cannot go on";
                return Err(Failure::new("step-rank-lost", Exit::Io, what));
            }
        }
        for rank in 0..self.order.ranks {
            let at = rank as usize;
            match self.workers.get(at).map(|worker| worker.state) {
                Some(State::Gone) => {
                    let worker = self.start(rank)?;
                    if let Some(place) = self.workers.get_mut(at) {
                        *place = worker;
                    }
                }
                Some(State::Waiting) => {
                    let word = serde_json::to_string(&Word::Again(self.losses));
                    if let (Some(worker), Ok(word)) = (self.workers.get_mut(at), word) {
                        worker.say(&word);
                        worker.state = State::Working;
                        worker.heard = Instant::now();
                    }
                }
                _ => {}
            }
        }
        self.vacant = None;
        Ok(())
    }
}

/// A rank that ended itself.
fn own_fault(rank: usize, signal: i32) -> Failure {
    let what = format!("rank {rank} ended itself by signal {signal}");
    // As a program in Rust does where it gets not even a few bytes.
    let aborted = signal == Signal::ABORT.as_raw();
    let exit = if aborted { Exit::Unavailable } else { Exit::Io };
    let hint =
        "it got no more memory, most likely: see `ulimit -v` and the limit of its control group";
    Failure::new("step-rank-failed", exit, what).maybe_hint(aborted.then_some(hint))
}

/// Ranks that neither compute nor have heard that others are lost, or have lost them.
fn silence(ranks: &[usize], patience: Duration) -> Failure {
    let (noun, verb) = match ranks.len() {
        1 => ("rank", "says"),
        _ => ("ranks", "say"),
    };
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let what = format!(
        "{noun} {} {verb} nothing: a loss of others was not heard of within {} s",
        ranks.join(", "),
        patience.as_secs()
    );
    Failure::new("step-rank-silent", Exit::Io, what)
        .hint("it does not compute, or it would say so: is it stopped?")
}

impl Worker {
    /// Says a line. A rank that does not hear it is gone, which is noticed where it is listened to.
    fn say(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{line}");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.state == State::Through && matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::reason::{OF_OTHERS, Reason};

    /// A rank that a signal ended.
    fn ended_by(signal: i32) -> Worker {
        let mut kill = Command::new("sh");
        let kill = kill.args(["-c", &format!("ulimit -c 0; kill -{signal} $$")]);
        Worker {
            child: kill.spawn().expect("it starts"),
            stdin: None,
            state: State::Working,
            heard: Instant::now(),
        }
    }

    /// A run of two ranks that both work, one of them to be ended by nobody but itself.
    fn two_ranks<'a>(order: &'a Order) -> Foreman<'a> {
        let worker = || {
            let child = Command::new("true").spawn().expect("it starts");
            Worker {
                child,
                stdin: None,
                state: State::Working,
                heard: Instant::now(),
            }
        };
        let key = SharedKey::derive("a test of ranks that fail");
        let mut foreman = Foreman::new(order, Way::Shm, PathBuf::new(), key);
        foreman.workers = vec![worker(), worker()];
        foreman
    }

    fn order() -> Order {
        Order {
            ranks: 2,
            steps: 1,
            parameters: 8,
            layers: 1,
            seed: 1,
            batch: crowfly_route::units::Bytes(4096),
            data: Vec::new(),
            work: crowfly_mover::step::Work::Once,
            every: None,
            checkpoints: PathBuf::new(),
            recovery: Recovery::Restart,
            kill: None,
            deadline: 10.0,
            gpu: None,
        }
    }

    fn failed(code: &str, exit: Exit) -> Heard {
        Heard::Said(Said::Failed(Reason {
            code: code.to_owned(),
            message: format!("the words of {code}"),
            hint: None,
            exit: exit.status(),
        }))
    }

    #[test]
    fn given_a_rank_that_ends_itself_the_run_ends_at_once_and_given_one_that_is_killed_it_goes_on()
    {
        let order = order();
        for signal in OWN_FAULT.map(Signal::as_raw) {
            let aborted = signal == Signal::ABORT.as_raw();
            let mut foreman = two_ranks(&order);
            foreman.workers[0] = ended_by(signal);
            let own = foreman.hear(0, Heard::Silent).expect_err("its own fault");
            let exit = if aborted { Exit::Unavailable } else { Exit::Io };
            assert_eq!((own.code(), own.exit()), ("step-rank-failed", exit));
            let told = format!("rank 0 ended itself by signal {signal}");
            assert_eq!(own.message(), told);
            let of_memory = own
                .hint_text()
                .is_some_and(|hint| hint.contains("`ulimit -v`"));
            assert_eq!(of_memory, aborted);
        }
        for signal in [Signal::KILL, Signal::TERM].map(Signal::as_raw) {
            let mut foreman = two_ranks(&order);
            foreman.workers[0] = ended_by(signal);
            foreman.hear(0, Heard::Silent).expect("another is started");
            assert_eq!(foreman.workers[0].state, State::Gone);
        }
    }

    #[test]
    fn given_a_rank_that_missed_another_the_other_s_own_failure_is_told() {
        let order = order();
        let mut foreman = two_ranks(&order);
        for code in OF_OTHERS {
            let heard = foreman.hear(1, failed(code, Exit::Io));
            assert!(heard.is_ok(), "{code} is another's doing");
        }
        assert!(foreman.hear(1, Heard::Silent).is_ok(), "it has said why");
        assert!(!foreman.is_over());
        let own = foreman.hear(0, failed("setup-failed", Exit::Unavailable));
        let own = own.expect_err("its own");
        assert_eq!(own.exit(), Exit::Unavailable);
        assert_eq!(
            own.message(),
            "rank 0 could not go on: the words of setup-failed (setup-failed)"
        );
    }

    #[test]
    fn given_a_rank_that_missed_another_what_it_told_first_stays_for_where_the_other_tells_nothing()
    {
        let order = order();
        let mut foreman = two_ranks(&order);
        for code in ["ranks-lost", "collective-late"] {
            assert!(foreman.hear(1, failed(code, Exit::Io)).is_ok());
        }
        let (_, first) = foreman.hearsay.take().expect("kept");
        assert_eq!(
            first.message(),
            "rank 1 could not go on: the words of ranks-lost (ranks-lost)"
        );
    }
}
