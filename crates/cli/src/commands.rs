//! The commands, one file each.
//!
//! A command is an `Args` struct and `run(args, out) -> Result<Exit, Failure>`. It asks the
//! libraries for a value and hands the value to [`Output::show`], which prints it as text or JSON.

use clap::Subcommand;

use crate::failure::{Exit, Failure};
use crate::output::Output;

pub mod bench;
pub mod capture;
pub mod ckpt;
mod completions;
mod connection;
pub mod cp;
mod directory;
pub mod doctor;
pub mod explain;
pub mod gpu;
mod key;
pub mod load;
mod man;
pub mod map;
pub mod plan;
pub mod race;
mod reason;
pub mod route;
pub mod serve;
pub mod step;
mod store;
mod transfer;
pub mod ui;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Race the same bytes along every way this machine offers
    Race(race::RaceArgs),
    /// Draw the devices of a machine and what lies between them
    Map(map::MapArgs),
    /// Plan every way between two places, with what stands in it
    Route(route::RouteArgs),
    /// Find out whether data goes the straight way here, and if not, why and what helps
    Doctor(doctor::DoctorArgs),
    /// Say what logs, command output and snapshots show about the way data goes
    Explain(explain::ExplainArgs),
    /// Load a checkpoint or a file, and print the receipt
    Load(load::LoadArgs),
    /// Copy files between machines, processes and memory, and print the receipt
    Cp(cp::CpArgs),
    /// Serve files, folders and memory of this machine to `crowfly cp` elsewhere
    Serve(serve::ServeArgs),
    /// List, verify, compare and prune checkpoints
    Ckpt(ckpt::CkptArgs),
    /// Plan a cluster: whether the straight way matters, what it costs, what to buy
    Plan(Box<plan::PlanArgs>),
    /// Run training steps in small: storage, gradients, checkpoints, a rank that is killed; and report
    Step(Box<step::StepArgs>),
    /// Measure what the engine does against what the machine can do
    Bench(Box<bench::BenchArgs>),
    /// Serve a page to play with: routes, the planner, findings
    Ui(ui::UiArgs),
    /// Record what this machine shows, redacted, to look at elsewhere or to send to someone
    Capture(capture::CaptureArgs),
    /// Print the completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    Man(man::ManArgs),
}

impl Command {
    /// Does it.
    pub fn run(self, out: &mut Output) -> Result<Exit, Failure> {
        match self {
            Self::Race(args) => race::run(&args, out),
            Self::Map(args) => map::run(&args, out),
            Self::Route(args) => route::run(&args, out),
            Self::Doctor(args) => doctor::run(&args, out),
            Self::Explain(args) => explain::run(&args, out),
            Self::Load(args) => load::run(&args, out),
            Self::Cp(args) => cp::run(&args, out),
            Self::Serve(args) => serve::run(&args, out),
            Self::Ckpt(args) => ckpt::run(&args, out),
            Self::Plan(args) => plan::run(&args, out),
            Self::Step(args) => step::run(&args, out),
            Self::Bench(args) => bench::run(&args, out),
            Self::Ui(args) => ui::run(&args, out),
            Self::Capture(args) => capture::run(&args, out),
            Self::Completions(args) => completions::run(&args, out),
            Self::Man(args) => man::run(&args, out),
        }
    }
}
