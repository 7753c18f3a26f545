//! `crowfly ckpt`: what a folder of checkpoints holds, whether it is whole, what changed, what may go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use crowfly_mover::ckpt::{Archive, Format, Found, list};

use super::transfer;
use crate::failure::{Exit, Failure};
use crate::output::Output;

pub mod diff;
pub mod ls;
pub mod prune;
pub mod verify;

/// How long a command waits for whoever holds a folder of checkpoints.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `crowfly ckpt`.
#[derive(Args, Debug)]
pub struct CkptArgs {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// List the steps of a folder of checkpoints, or say what one checkpoint is
    Ls(ls::LsArgs),
    /// Read a checkpoint and hold every byte against the checksums that were saved
    Verify(verify::VerifyArgs),
    /// Compare two checkpoints, tensor by tensor
    Diff(diff::DiffArgs),
    /// Remove old steps, never the last good one and never one that is being read
    Prune(prune::PruneArgs),
}

/// Answers one of the questions.
pub fn run(args: &CkptArgs, out: &mut Output) -> Result<Exit, Failure> {
    match &args.question {
        Question::Ls(args) => ls::run(args, out),
        Question::Verify(args) => verify::run(args, out),
        Question::Diff(args) => diff::run(args, out),
        Question::Prune(args) => prune::run(args, out),
    }
}

/// A checkpoint by its path; of a folder of steps the one asked for, or the latest complete one.
fn open(path: &Path, step: Option<u64>) -> Result<Archive, Failure> {
    let path = local(path)?;
    Ok(match step {
        Some(step) => Archive::open_step(&path, step)?,
        None => Archive::open(&path)?,
    })
}

/// The steps of a folder of steps that are later than the one that was opened, and not complete: who asked
/// for the latest did not ask for an earlier one.
fn passed_over(path: &Path, opened: &Archive) -> Result<Vec<Found>, Failure> {
    let root = local(path)?;
    let (Some(step), true) = (step_of(opened), opened.path() != root) else {
        return Ok(Vec::new());
    };
    let mut steps = list(&root)?.steps;
    steps.retain(|found| found.step > step && found.manifest.is_err());
    Ok(steps)
}

fn local(path: &Path) -> Result<PathBuf, Failure> {
    transfer::local(path)
}

/// The step of a checkpoint, where it is one.
const fn step_of(archive: &Archive) -> Option<u64> {
    match archive.format() {
        Format::Step { step, .. } => Some(*step),
        _ => None,
    }
}
