//! A rank that torchrun, mpirun or srun started: all of them find each other in a folder that they
//! share, and the first of those that are left gathers what all have to tell.
//!
//! Where a rank is lost and the launcher starts all of them again, they go on from the latest
//! checkpoint in that folder; where it does not, those that are left go on without it. What was
//! before is told by the ranks that ended then, and is in no report of those that came after.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crowfly_mover::collective::{CallOptions, Element, Group, GroupSettings, Reduction};
use crowfly_mover::fabric::rendezvous::{Folder, World};
use crowfly_mover::fabric::{Fabric, Settings};
use crowfly_mover::step::{Crew, Moment, Order, Recovery, RunError, train};

use super::attempts::Attempts;
use super::hand::{die, job};
use super::standing::Log;
use super::{Plan, StepArgs, report};
use crate::commands::key;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::render::progress::Progress;

/// How long the others wait for rank 0 to make data.
const GATHERING: Duration = Duration::from_secs(600);
/// The folder in which ranks find each other, in the folder of the run.
const MEET: &str = "meet";

/// Takes part.
pub fn run(
    args: &StepArgs,
    mut plan: Plan,
    world: &World,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let (Some(folder), Some(file)) = (&args.dir, &args.key_file) else {
        let what = "under a launcher, ranks work in --dir and find each other by --key-file";
        return Err(Failure::usage(what)
            .hint("give a folder that all of them see, and a key file that only you can read"));
    };
    plan.order.ranks = world.size;
    plan.here = false;
    plan.order.check()?;
    let attempts = Attempts::of(world);
    let restarts = attempts.again || attempts.before > 0;
    if plan.order.kill.is_some() && plan.order.recovery == Recovery::Restart && !restarts {
        let what = "under this launcher nobody takes the place of a rank that is killed";
        let failure = Failure::new("step-nobody-restarts", Exit::Usage, what);
        return Err(failure.hint(
            "choose `--after-loss shrink`, start the ranks with `--ranks`, or by torchrun with `--max-restarts`",
        ));
    }
    let folder = std::path::absolute(folder).map_err(|e| Failure::creating(folder, &e))?;
    let destination = args.destination()?;
    plan.lay_out(args, &folder)?;
    if world.rank == 0 {
        let ground = || std::fs::create_dir_all(&folder);
        ground().map_err(|error| Failure::creating(&folder, &error))?;
        if attempts.before == 0 {
            claim(&folder)?;
        }
        plan.order.check_disk(&folder, plan.made())?;
        make(&plan, &folder, attempts, out)?;
    }
    let mut settings = args.path.settings(key::from_file(file)?);
    if let Some(address) = args.address {
        settings.listen = (address, 0).into();
    }
    let progress = match world.rank {
        0 => out.progress(),
        _ => Progress::hidden(),
    };
    progress.steps("training", plan.order.steps);
    let mut hand = Launched {
        order: &plan.order,
        rank: world.rank,
        attempts,
        meet: Folder::at(folder.join(MEET)),
        settings,
        log: Log::default(),
        progress,
        lost: attempts.before > 0,
    };
    let order = plan.order.clone();
    let mut ended = train(&order, destination, &mut hand)?;
    let Launched { log, progress, .. } = hand;
    drop(progress);
    let gathered = gather(&mut ended.group, &log, order.deadline)?;
    if ended.group.rank() > 0 {
        return Ok(Exit::Ok);
    }
    report(args, &plan, &gathered, out)
}

/// Sees to it that a folder has nothing of another run.
fn claim(folder: &Path) -> Result<(), Failure> {
    for made in [super::CHECKPOINTS, super::DATA] {
        if folder.join(made).exists() {
            let shown = crate::path::shown(&folder.join(made));
            let what = format!("{shown} is there already");
            return Err(
                Failure::new("step-folder-not-empty", Exit::CannotCreate, what)
                    .hint("name a new folder: what is in one is never overwritten"),
            );
        }
    }
    Ok(())
}

/// Makes the data, unless an earlier attempt has made all of it.
fn make(plan: &Plan, folder: &Path, attempts: Attempts, out: &Output) -> Result<(), Failure> {
    if attempts.before > 0
        && let Some(shards) = &plan.shards
    {
        let sizes = shards.files().into_iter().map(std::fs::metadata);
        let found: u64 = sizes.flatten().map(|facts| facts.len()).sum();
        if found == shards.bytes().0 {
            return Ok(());
        }
        // It was killed while it made them.
        let data = folder.join(super::DATA);
        match std::fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::creating(&data, &error));
            }
            _ => {}
        }
    }
    plan.make(out)
}

/// What all ranks that are left have to tell.
fn gather(group: &mut Group, log: &Log, deadline: f64) -> Result<Log, Failure> {
    let within = CallOptions::within(Duration::from_secs_f64(deadline));
    let mine = serde_json::to_vec(log).map_err(|error| {
        let what = format!("what this rank did cannot be told: {error}");
        Failure::new("step-not-told", Exit::BadData, what)
    })?;
    let mut longest = (mine.len() as i64).to_le_bytes();
    group.all_reduce(&mut longest, Element::I64, Reduction::Max, within)?;
    let longest = usize::try_from(i64::from_le_bytes(longest)).unwrap_or(mine.len());
    let mut padded = mine;
    // White space after a document is none of it.
    padded.resize(longest, b' ');
    let mut all = vec![0; longest * group.size()];
    group.all_gather(&padded, &mut all, Element::U8, within)?;
    let mut gathered = Log::default();
    for one in all.chunks(longest.max(1)) {
        let log: Log = serde_json::from_slice(one).map_err(|error| {
            let what = format!("what a rank did cannot be read: {error}");
            Failure::new("step-not-told", Exit::BadData, what)
        })?;
        gathered.join(log);
    }
    Ok(gathered)
}

struct Launched<'a> {
    order: &'a Order,
    rank: u32,
    attempts: Attempts,
    meet: Folder,
    settings: Settings,
    log: Log,
    progress: Progress,
    lost: bool,
}

impl Crew for Launched<'_> {
    fn muster(&mut self, before: Option<Group>) -> Result<Group, RunError> {
        if let Some(mut before) = before {
            if let (true, Recovery::Restart, Some(error)) =
                (self.attempts.again, self.order.recovery, before.failure())
            {
                return Err(RunError::LeftToLauncher(Box::new(error.clone())));
            }
            let within = Duration::from_secs_f64(self.order.deadline);
            return Ok(before.shrink(CallOptions::within(within))?);
        }
        let fabric = Arc::new(Fabric::new(self.settings.clone())?);
        let settings = GroupSettings {
            time: GATHERING,
            ..GroupSettings::default()
        };
        Ok(Group::form(
            fabric,
            &self.meet,
            &job(self.attempts.before),
            self.rank as usize,
            self.order.ranks as usize,
            settings,
        )?)
    }

    fn losses_before(&self) -> u32 {
        self.attempts.before
    }

    fn tell(&mut self, moment: Moment) -> Result<(), RunError> {
        self.lost |= matches!(moment, Moment::Lost(_));
        self.log.add(self.rank as usize, moment);
        self.progress.at(self.log.latest_step());
        Ok(())
    }

    fn before_exchange(&mut self, step: u64) {
        let kill = self.order.kill.filter(|_| !self.lost);
        if kill.is_some_and(|kill| (kill.rank, kill.step) == (self.rank, step)) {
            die();
        }
    }
}
