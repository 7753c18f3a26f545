//! `crowfly plan`: whether the straight way matters for a cluster and a model, what it costs, what
//! to buy.

use clap::{Args, Subcommand};
use crowfly_plan::catalog::Used;
use crowfly_route::topology::Topology;

use crate::failure::{Exit, Failure};
use crate::output::Output;

mod answered;
mod assess;
mod buy;
mod catalog;
mod collective;
mod data;
mod ranges;
mod scenario;
mod simulate;

pub use answered::{Answered, Export, ExportPicture};
pub use buy::Shape;

/// Arguments of `crowfly plan`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    mut_args(|option| ranges::told("", option)),
    mut_subcommands(ranges::told_in)
)]
pub struct PlanArgs {
    /// Another question than whether the straight way matters
    #[command(subcommand)]
    question: Option<Question>,
    #[command(flatten)]
    assess: assess::AssessArgs,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// How large a checkpoint is, how long it stalls training and how long a restore takes
    Checkpoint(data::CheckpointArgs),
    /// How often to write checkpoints, and what interruptions cost
    Interval(data::IntervalArgs),
    /// What training reads, against what the store serves and the CPUs decode
    Loading(data::LoadingArgs),
    /// How much storage keeps a checkpoint's stall below what is allowed
    Storage(data::StorageArgs),
    /// The fabric to buy: switches, cables, ports left, power, cost
    Fabric(buy::FabricArgs),
    /// Which cloud shape has which direct path
    Shapes(buy::ShapesArgs),
    /// How long one collective takes, by every algorithm
    Collective(collective::CollectiveArgs),
    /// Simulate the flows of a fabric: collectives, checkpoints, failed links, slow servers
    Simulate(simulate::SimulateArgs),
    /// What the planner knows, with sources and confidence
    Catalog(catalog::CatalogArgs),
    /// Published measurements beside what the planner predicts of them
    Validate(catalog::ValidateArgs),
    /// Claims about GPUDirect that are wrong, and what is right
    Claims(catalog::ClaimsArgs),
}

/// Each entry once.
fn once(mut used: Vec<Used>) -> Vec<Used> {
    let mut seen = Vec::new();
    used.retain(|entry| {
        let key = (entry.kind, entry.id.clone());
        let new = !seen.contains(&key);
        seen.push(key);
        new
    });
    used
}

/// Answers.
pub fn run(args: &PlanArgs, out: &mut Output) -> Result<Exit, Failure> {
    let answered = args.answer(None)?;
    match &args.question {
        None => args.assess.export.write(answered, out),
        Some(question) => question.export().write(&answered, out),
    }
}

impl PlanArgs {
    /// The answer. `machine` takes the place of a file that would be named by `--from-snapshot`.
    pub fn answer(&self, machine: Option<&Topology>) -> Result<Answered, Failure> {
        match &self.question {
            None => assess::answer(&self.assess, machine),
            Some(Question::Checkpoint(args)) => data::checkpoint(args, machine),
            Some(Question::Interval(args)) => data::interval(args),
            Some(Question::Loading(args)) => data::loading(args, machine),
            Some(Question::Storage(args)) => data::storage(args),
            Some(Question::Fabric(args)) => buy::fabric(args, machine),
            Some(Question::Shapes(args)) => buy::shapes(args),
            Some(Question::Collective(args)) => collective::answer(args, machine),
            Some(Question::Simulate(args)) => simulate::answer(args, machine),
            Some(Question::Catalog(args)) => catalog::list(args),
            Some(Question::Validate(args)) => catalog::validate(args),
            Some(Question::Claims(args)) => Ok(catalog::claims(args)),
        }
    }
}

impl Question {
    const fn export(&self) -> &Export {
        match self {
            Self::Checkpoint(args) => &args.export,
            Self::Interval(args) => &args.export,
            Self::Loading(args) => &args.export,
            Self::Storage(args) => &args.export,
            Self::Fabric(args) => &args.export,
            Self::Shapes(args) => &args.export,
            Self::Collective(args) => &args.export,
            Self::Simulate(args) => &args.export,
            Self::Catalog(args) => &args.export,
            Self::Validate(args) => &args.export,
            Self::Claims(args) => &args.export,
        }
    }
}
