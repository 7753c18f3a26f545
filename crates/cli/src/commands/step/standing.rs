//! What became of a run: everything that its ranks told, added up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crowfly_mover::step::{Lost, Moment, Moved, Order, Restored, Saved, Stepped, Times, Work};
use crowfly_plan::workload::ModelSpec;
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::Share;
use crowfly_route::units::{Bytes, BytesPerSecond};
use serde::{Deserialize, Serialize};

use super::StepArgs;
use super::outlook::Outlook;

/// The version of the JSON form.
pub const STEP_SCHEMA: &str = "crowfly.step/1";

/// All that ranks told, in the order in which it was heard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Log {
    entries: Vec<(usize, Moment)>,
    /// Ranks that were ended, and by which signal.
    killed: Vec<(usize, i32)>,
    /// From the start of the ranks to the end of the run.
    seconds: f64,
    latest: u64,
}

impl Log {
    /// The run is over, and took so long.
    pub fn end(mut self, took: Duration) -> Self {
        self.seconds = took.as_secs_f64();
        self
    }

    /// A rank told something.
    pub fn add(&mut self, rank: usize, moment: Moment) {
        if let Moment::Stepped(stepped) = &moment {
            self.latest = self.latest.max(stepped.step);
        }
        self.entries.push((rank, moment));
    }

    /// A rank was ended by a signal.
    pub fn killed(&mut self, rank: usize, signal: i32) {
        self.killed.push((rank, signal));
    }

    /// The latest step that any rank did.
    pub const fn latest_step(&self) -> u64 {
        self.latest
    }

    /// What another one heard as well.
    pub fn join(&mut self, other: Self) {
        self.latest = self.latest.max(other.latest);
        self.entries.extend(other.entries);
        self.killed.extend(other.killed);
    }

    /// The steps that ranks did.
    pub fn steps(&self) -> impl Iterator<Item = (usize, &Stepped)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Stepped(stepped) => Some((*rank, &**stepped)),
                _ => None,
            })
    }

    fn saves(&self) -> impl Iterator<Item = (usize, &Saved)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Saved(saved) => Some((*rank, &**saved)),
                _ => None,
            })
    }

    fn restores(&self) -> impl Iterator<Item = (usize, &Restored)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Restored(restored) => Some((*rank, &**restored)),
                _ => None,
            })
    }

    fn losses(&self) -> impl Iterator<Item = (usize, &Lost)> {
        self.entries
            .iter()
            .filter_map(|(rank, moment)| match moment {
                Moment::Lost(lost) => Some((*rank, lost)),
                _ => None,
            })
    }
}

/// What a run was about.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// The model.
    pub model: String,
    /// Its parameters.
    pub model_parameters: f64,
    /// The part of them that was run, as it was typed.
    pub scale: String,
    /// The same as a number.
    pub scale_value: f64,
    /// Parameters that were run.
    pub parameters: u64,
    /// Layers that they were spread over.
    pub layers: u32,
    /// Gradients that each rank exchanged in a step.
    pub gradient_bytes: Bytes,
    /// Tensors of a checkpoint.
    pub checkpoint_bytes: Bytes,
    /// Ranks at the beginning.
    pub ranks: u32,
    /// Whether all of them were started on this machine by the command itself.
    pub here: bool,
    /// Steps.
    pub steps: u64,
    /// What each rank read in a step.
    pub batch: Bytes,
    /// Where to.
    pub to: String,
    /// Data that was made for the run; 0 when it was given.
    pub made: Bytes,
    /// How much was computed.
    pub work: Work,
    /// Steps between checkpoints; none when `None`.
    pub every: Option<u64>,
    /// What happens when a rank is lost.
    pub after_loss: &'static str,
    /// What everything made up followed from.
    pub seed: u64,
    /// Processors of this machine.
    pub processors: usize,
    /// Programs that wanted to run at the end, over a minute; unknown where the system does not say.
    pub load: Option<f64>,
}

impl About {
    pub(super) fn new(
        order: &Order,
        model: &ModelSpec,
        args: &StepArgs,
        made: Bytes,
        here: bool,
    ) -> Self {
        Self {
            model: model.name.clone(),
            model_parameters: model.params,
            scale: args.scale.to_string(),
            scale_value: args.scale.value(),
            parameters: order.parameters,
            layers: order.layers,
            gradient_bytes: order.gradient_bytes(),
            checkpoint_bytes: order.checkpoint_bytes(),
            ranks: order.ranks,
            here,
            steps: order.steps,
            batch: order.batch,
            to: args.to.to_string(),
            made,
            work: order.work,
            every: order.every,
            after_loss: order.recovery.as_str(),
            seed: order.seed,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load: crowfly_machine::usage::load_average(),
        }
    }
}

/// One of the three paths, over all ranks and steps.
#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    /// What went which way.
    pub name: &'static str,
    /// Transfers, or exchanges, of all ranks.
    pub transfers: u64,
    /// Bytes asked for; of gradients, what each rank handed in.
    pub asked: Bytes,
    /// Bytes that the receipts tell; of gradients, what ranks sent or took.
    pub moved: Bytes,
    /// What they must come to: what was asked for; of gradients, the least that an all-reduce moves.
    pub due: Bytes,
    /// Seconds in which ranks waited for it, over all of them.
    pub seconds: f64,
    /// Seconds of the transfers themselves, where they go on while ranks compute.
    pub transfer_seconds: f64,
    /// Bytes over the seconds of the transfers of one rank.
    pub rate: Option<BytesPerSecond>,
    /// CPU seconds, where receipts tell them.
    pub cpu_seconds: Option<f64>,
    /// Bytes by the way they went.
    pub shares: Vec<Share>,
    /// Bytes that passed an intermediate buffer in host RAM.
    pub bounced: Bytes,
}

impl Lane {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            transfers: 0,
            asked: Bytes(0),
            moved: Bytes(0),
            due: Bytes(0),
            seconds: 0.0,
            transfer_seconds: 0.0,
            rate: None,
            cpu_seconds: None,
            shares: Vec::new(),
            bounced: Bytes(0),
        }
    }

    fn share(&mut self, share: &Share) {
        self.moved += share.bytes;
        let same = |known: &&mut Share| {
            (known.path, known.class, &known.because) == (share.path, share.class, &share.because)
        };
        match self.shares.iter_mut().find(same) {
            Some(known) => known.bytes += share.bytes,
            None => self.shares.push(share.clone()),
        }
    }

    fn transfer(&mut self, moved: &Moved) {
        self.transfers += 1;
        self.asked += moved.asked;
        self.due += moved.asked;
        self.bounced += moved.bounced;
        self.transfer_seconds += moved.seconds;
        *self.cpu_seconds.get_or_insert(0.0) += moved.cpu.total();
        moved.shares.iter().for_each(|share| self.share(share));
    }

    fn settle(mut self) -> Self {
        self.rate = self.asked.per(self.transfer_seconds);
        self.shares
            .sort_by_key(|share| std::cmp::Reverse(share.bytes));
        self
    }

    /// Bytes of a class.
    pub fn of_class(&self, class: Class) -> Bytes {
        let shares = self.shares.iter().filter(|share| share.class == class);
        shares.map(|share| share.bytes).sum()
    }

    /// Whether the receipts come to what they must.
    pub const fn is_whole(&self) -> bool {
        self.moved.0 == self.due.0
    }
}

/// Where the time of ranks went.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// On what.
    pub name: &'static str,
    /// Seconds over all ranks.
    pub seconds: f64,
    /// The same as a part of all phases.
    pub share: f64,
    /// Seconds in a step of one rank, on average.
    pub per_step: f64,
}

/// A step, over the ranks that did it together.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which, counted from 1.
    pub step: u64,
    /// How often it was done before, in vain.
    pub again: u32,
    /// Ranks.
    pub ranks: usize,
    /// Where the time went: the mean over ranks.
    pub times: Times,
    /// All of the step at the slowest rank.
    pub slowest: f64,
}

/// A checkpoint, over the ranks that saved it.
#[derive(Clone, Debug, Serialize)]
pub struct Save {
    /// After which step.
    pub step: u64,
    /// Ranks that told of it.
    pub ranks: usize,
    /// How long training stood still for it at the rank that did so longest.
    pub stall: f64,
    /// From the call until it was published.
    pub background: f64,
    /// Bytes of all files.
    pub bytes: Bytes,
}

/// A checkpoint that was not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsaved {
    /// After which step.
    pub step: u64,
    /// Who told of it.
    pub rank: usize,
    /// The code of the error.
    pub code: String,
    /// The error in words.
    pub what: String,
}

/// A rank that was lost, and what followed.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// In which step.
    pub step: u64,
    /// The ranks, by the numbers that they had in their group.
    pub ranks: Vec<usize>,
    /// The signals that ended them, where somebody saw.
    pub signals: Vec<i32>,
    /// The code of the error that the others got.
    pub code: String,
    /// The error in words.
    pub what: String,
    /// How many got it.
    pub survivors: usize,
    /// Whether all of them got the same.
    pub same: bool,
    /// The longest that one waited for it, from its call on.
    pub heard_after: f64,
    /// Ranks that went on.
    pub ranks_after: usize,
    /// The step whose checkpoint was restored; 0 for the state that the run began with.
    pub restored: Option<u64>,
    /// Steps that were done again.
    pub redone: u64,
    /// From the error until the last rank had its state.
    pub seconds: f64,
    /// Of these, reading the checkpoint, at the slowest rank.
    pub read_seconds: f64,
    /// Bytes that all ranks read for it.
    pub bytes: Bytes,
}

/// The state that the ranks ended with.
#[derive(Clone, Debug, Serialize)]
pub struct Digest {
    /// The checksum, of the first rank.
    pub value: String,
    /// Ranks that told theirs.
    pub ranks: usize,
    /// Whether all are the same.
    pub same: bool,
}

/// What became of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// [`STEP_SCHEMA`].
    pub schema: &'static str,
    /// What it was about.
    pub about: About,
    /// Hosts that the ranks were on.
    pub hosts: usize,
    /// From the start of the ranks to the end of the run, in seconds.
    pub seconds: f64,
    /// Storage to memory, gradients, checkpoints.
    pub lanes: [Lane; 3],
    /// Restores, where there were any.
    pub restored: Option<Lane>,
    /// Where the time of the ranks went.
    pub phases: Vec<Phase>,
    /// Every step.
    pub steps: Vec<Row>,
    /// Floating point operations of the stand-in of one rank in a step.
    pub flops_per_step: f64,
    /// How the gradients were exchanged, and why so.
    pub exchange: Option<(String, String)>,
    /// Every checkpoint.
    pub saves: Vec<Save>,
    /// Those that were not published.
    pub unsaved: Vec<Unsaved>,
    /// Every loss.
    pub losses: Vec<Loss>,
    /// The state at the end.
    pub digest: Digest,
    /// What stood in the way of straighter transfers.
    pub obstacles: Vec<Obstacle>,
    /// What GPUDirect would change.
    pub outlook: Outlook,
}

impl Standing {
    /// Adds everything up.
    pub fn new(about: About, log: &Log, outlook: Outlook) -> Self {
        let lanes = [storage(log), gradients(log), checkpoints(log)].map(Lane::settle);
        let steps = rows(log);
        let first = log.steps().next().map(|(_, stepped)| stepped);
        let exchange = first.map(|stepped| {
            let exchanged = &stepped.exchanged;
            (exchanged.algorithm.clone(), exchanged.because.clone())
        });
        let hosts = match about.here {
            // Ranks that share no memory count as apart, wherever they are.
            true => 1,
            false => first.map_or(1, |stepped| stepped.exchanged.hosts),
        };
        Self {
            schema: STEP_SCHEMA,
            hosts,
            seconds: log.seconds.max(longest(log)),
            flops_per_step: first.map_or(0.0, |stepped| stepped.flops),
            phases: phases(log),
            restored: restored(log),
            lanes,
            exchange,
            saves: saves(log),
            unsaved: unsaved(log),
            losses: losses(log, &steps),
            digest: digest(log),
            obstacles: obstacles(log),
            steps,
            about,
            outlook,
        }
    }

    /// Whether all ranks ended with the same state, and all receipts come to what was asked.
    pub fn is_sound(&self) -> bool {
        let [storage, gradients, checkpoints] = &self.lanes;
        let whole = storage.is_whole() && checkpoints.is_whole();
        let restored = self.restored.as_ref().is_none_or(Lane::is_whole);
        self.digest.same && whole && restored && gradients.moved >= gradients.due
    }
}

fn longest(log: &Log) -> f64 {
    let ends = log.entries.iter().filter_map(|(_, moment)| match moment {
        Moment::Ended { seconds, .. } => Some(*seconds),
        _ => None,
    });
    ends.fold(0.0, f64::max)
}

fn storage(log: &Log) -> Lane {
    let mut lane = Lane::new("storage to memory");
    for (_, stepped) in log.steps() {
        lane.transfer(&stepped.read);
        lane.seconds += stepped.times.read;
    }
    lane
}

fn gradients(log: &Log) -> Lane {
    let mut lane = Lane::new("gradients");
    // By the size of the group: 2 (n - 1) buffers over n ranks is the least that an all-reduce moves.
    let mut least: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, stepped) in log.steps() {
        let exchanged = &stepped.exchanged;
        lane.transfers += 1;
        lane.asked += exchanged.size;
        let ranks = exchanged.ranks.max(1) as u64;
        *least.entry(ranks).or_default() += 2 * (ranks - 1) * exchanged.size.0;
        lane.seconds += exchanged.seconds;
        lane.transfer_seconds += exchanged.seconds;
        exchanged.shares.iter().for_each(|share| lane.share(share));
    }
    lane.due = least.iter().map(|(ranks, sum)| Bytes(sum / ranks)).sum();
    lane
}

fn checkpoints(log: &Log) -> Lane {
    let mut lane = Lane::new("checkpoints");
    for (_, saved) in log.saves() {
        lane.transfer(&saved.written);
    }
    lane.seconds = log.steps().map(|(_, stepped)| stepped.times.stall).sum();
    lane
}

fn restored(log: &Log) -> Option<Lane> {
    let mut lane = Lane::new("checkpoints read back");
    for (_, restored) in log.restores() {
        if let Some(read) = &restored.read {
            lane.transfer(read);
            lane.seconds += restored.read_seconds;
        }
    }
    (lane.transfers > 0).then(|| lane.settle())
}

fn phases(log: &Log) -> Vec<Phase> {
    let mut sums = [
        ("storage to memory", 0.0),
        ("GPU to the stand-in", 0.0),
        ("computation (stand-in)", 0.0),
        ("gradients", 0.0),
        ("checkpoint stall", 0.0),
        ("recovery", 0.0),
        ("other", 0.0),
    ];
    let mut count = 0u64;
    for (_, stepped) in log.steps() {
        count += 1;
        let times = &stepped.times;
        let known = [
            times.read,
            times.fetch,
            times.compute + times.update,
            times.exchange,
            times.stall,
            0.0,
        ];
        let other = (times.total - known.iter().sum::<f64>()).max(0.0);
        let all = known.into_iter().chain([other]);
        sums.iter_mut()
            .zip(all)
            .for_each(|((_, sum), time)| *sum += time);
    }
    let recovery: f64 = log.restores().map(|(_, restored)| restored.seconds).sum();
    if let Some((_, sum)) = sums.iter_mut().find(|(name, _)| *name == "recovery") {
        *sum = recovery;
    }
    let total: f64 = sums.iter().map(|(_, sum)| sum).sum();
    let phase = |(name, seconds): (&'static str, f64)| Phase {
        name,
        seconds,
        share: if total > 0.0 { seconds / total } else { 0.0 },
        per_step: seconds / count.max(1) as f64,
    };
    let happened = |phase: &Phase| phase.seconds > 0.0;
    sums.into_iter().map(phase).filter(happened).collect()
}

fn rows(log: &Log) -> Vec<Row> {
    // A rank that does a step again belongs to the next time that it is done.
    let mut done: BTreeMap<(u64, u32), Vec<&Stepped>> = BTreeMap::new();
    let mut order: Vec<(u64, u32)> = Vec::new();
    let mut restores = 0;
    let mut groups_restored: BTreeSet<usize> = BTreeSet::new();
    for (rank, moment) in &log.entries {
        match moment {
            Moment::Restored(_) => {
                // Each rank tells of each restore once; the first one begins the next attempt.
                if groups_restored.is_empty() || !groups_restored.insert(*rank) {
                    groups_restored.clear();
                    restores += 1;
                }
                groups_restored.insert(*rank);
            }
            Moment::Stepped(stepped) => {
                let at = (stepped.step, restores);
                if !order.contains(&at) {
                    order.push(at);
                }
                done.entry(at).or_default().push(stepped);
            }
            _ => {}
        }
    }
    let row = |at: &(u64, u32)| {
        let together = done.get(at)?;
        let again = order
            .iter()
            .filter(|(step, time)| *step == at.0 && *time < at.1);
        Some(Row {
            step: at.0,
            again: u32::try_from(again.count()).unwrap_or(u32::MAX),
            ranks: together.len(),
            times: mean(together),
            slowest: together.iter().map(|s| s.times.total).fold(0.0, f64::max),
        })
    };
    order.iter().filter_map(row).collect()
}

fn mean(steps: &[&Stepped]) -> Times {
    let of = |time: fn(&Times) -> f64| {
        let sum: f64 = steps.iter().map(|stepped| time(&stepped.times)).sum();
        sum / steps.len().max(1) as f64
    };
    Times {
        read: of(|t| t.read),
        fetch: of(|t| t.fetch),
        compute: of(|t| t.compute),
        exchange: of(|t| t.exchange),
        update: of(|t| t.update),
        stall: of(|t| t.stall),
        total: of(|t| t.total),
    }
}

fn saves(log: &Log) -> Vec<Save> {
    let mut saves: Vec<Save> = Vec::new();
    let mut by: Vec<BTreeSet<usize>> = Vec::new();
    for (rank, saved) in log.saves() {
        // The same step may be saved again after a loss, by the same ranks.
        let known = saves
            .iter()
            .zip(&by)
            .position(|(save, by)| save.step == saved.step && !by.contains(&rank));
        let at = known.unwrap_or_else(|| {
            saves.push(Save {
                step: saved.step,
                ranks: 0,
                stall: 0.0,
                background: 0.0,
                bytes: Bytes(0),
            });
            by.push(BTreeSet::new());
            saves.len() - 1
        });
        if let (Some(save), Some(by)) = (saves.get_mut(at), by.get_mut(at)) {
            by.insert(rank);
            save.ranks += 1;
            save.stall = save.stall.max(saved.stall);
            save.background = save.background.max(saved.background);
            save.bytes += saved.written.asked;
        }
    }
    saves
}

fn unsaved(log: &Log) -> Vec<Unsaved> {
    let entries = log.entries.iter();
    let told = entries.filter_map(|(rank, moment)| match moment {
        Moment::NotSaved { step, code, what } => Some(Unsaved {
            step: *step,
            rank: *rank,
            code: code.clone(),
            what: what.clone(),
        }),
        _ => None,
    });
    told.collect()
}

/// The losses, each with the errors that survivors got and the restores that followed.
fn losses(log: &Log, steps: &[Row]) -> Vec<Loss> {
    let mut losses: Vec<Loss> = Vec::new();
    let mut heard: BTreeSet<usize> = BTreeSet::new();
    let mut signals = log.killed.iter();
    for (rank, lost) in log.losses() {
        if losses.is_empty() || !heard.insert(rank) {
            heard = BTreeSet::from([rank]);
            losses.push(Loss {
                step: lost.step,
                ranks: lost.ranks.clone(),
                signals: Vec::new(),
                code: lost.code.clone(),
                what: lost.what.clone(),
                survivors: 0,
                same: true,
                heard_after: 0.0,
                ranks_after: 0,
                restored: None,
                redone: 0,
                seconds: 0.0,
                read_seconds: 0.0,
                bytes: Bytes(0),
            });
        }
        if let Some(loss) = losses.last_mut() {
            loss.survivors += 1;
            loss.same &= (&loss.code, &loss.what) == (&lost.code, &lost.what);
            loss.heard_after = loss.heard_after.max(lost.heard_after);
        }
    }
    for loss in &mut losses {
        let ended = signals.by_ref().take(loss.ranks.len().max(1));
        loss.signals = ended.map(|(_, signal)| *signal).collect();
    }
    // The only rank of a run has nobody who hears of its loss.
    losses.extend(signals.map(|(rank, signal)| Loss {
        step: 0,
        ranks: vec![*rank],
        signals: vec![*signal],
        code: String::new(),
        what: "nobody was left to hear of it".into(),
        survivors: 0,
        same: true,
        heard_after: 0.0,
        ranks_after: 0,
        restored: None,
        redone: 0,
        seconds: 0.0,
        read_seconds: 0.0,
        bytes: Bytes(0),
    }));
    let mut at = 0;
    let mut told: BTreeSet<usize> = BTreeSet::new();
    for (rank, restored) in log.restores() {
        if told.contains(&rank) {
            told.clear();
            at += 1;
        }
        told.insert(rank);
        let Some(loss) = losses.get_mut(at) else {
            break;
        };
        loss.restored = Some(restored.step);
        loss.ranks_after = restored.ranks;
        loss.seconds = loss.seconds.max(restored.seconds);
        loss.read_seconds = loss.read_seconds.max(restored.read_seconds);
        loss.bytes += restored.read.as_ref().map_or(Bytes(0), |read| read.asked);
    }
    let repeated = steps.iter().filter(|row| row.again > 0).count() as u64;
    if let [only] = losses.as_mut_slice() {
        only.redone = repeated;
    } else {
        for loss in &mut losses {
            let restored = loss.restored.unwrap_or_default();
            loss.redone = loss.step.saturating_sub(1).saturating_sub(restored);
        }
    }
    losses
}

fn digest(log: &Log) -> Digest {
    let ends = log.entries.iter().filter_map(|(_, moment)| match moment {
        Moment::Ended { digest, .. } => Some(digest),
        _ => None,
    });
    let all: Vec<&String> = ends.collect();
    let first = all.first().copied();
    Digest {
        value: first.cloned().unwrap_or_default(),
        ranks: all.len(),
        same: first.is_some_and(|first| all.iter().all(|other| *other == first)),
    }
}

fn obstacles(log: &Log) -> Vec<Obstacle> {
    let reads = log.steps().map(|(_, stepped)| &stepped.read);
    let writes = log.saves().map(|(_, saved)| &saved.written);
    let mut obstacles: Vec<Obstacle> = Vec::new();
    for obstacle in reads.chain(writes).flat_map(|moved| &moved.obstacles) {
        if !obstacles.iter().any(|known| known.code == obstacle.code) {
            obstacles.push(obstacle.clone());
        }
    }
    obstacles
}
