//! What became of a run: everything that its ranks told, added up.

use crowfly_mover::step::{Moment, Order, Work};
use crowfly_plan::workload::ModelSpec;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::units::Bytes;
use serde::Serialize;

use super::StepArgs;
use super::outlook::Outlook;

mod history;
mod lane;
mod log;
#[cfg(test)]
mod tests;

use history::{losses, rows, saves, unsaved};
use lane::{checkpoints, gradients, restored, storage};

pub use history::{Loss, Row, Save, Unsaved};
pub use lane::Lane;
pub use log::Log;

/// The version of the JSON form.
pub const STEP_SCHEMA: &str = "crowfly.step/1";

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
