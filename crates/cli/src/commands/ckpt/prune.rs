//! `crowfly ckpt prune PATH`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::Args;
use crowfly_mover::ckpt::{Retention, prune};
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::as_text;
use crate::render;

/// The version of the JSON form of a pruning.
pub const PRUNE_SCHEMA: &str = "crowfly.ckpt-prune/1";

/// Arguments of `crowfly ckpt prune`.
#[derive(Args, Debug)]
pub struct PruneArgs {
    /// A folder of steps
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// How many of the latest complete steps stay
    #[arg(long, value_name = "N")]
    keep: NonZeroUsize,
    /// Steps that are a multiple of this stay as well
    #[arg(long, value_name = "M")]
    keep_every: Option<NonZeroU64>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// What was removed and what stays.
#[derive(Debug, Serialize)]
pub struct Pruning {
    schema: &'static str,
    /// The folder.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Whether nothing was really removed.
    pub dry_run: bool,
    /// The steps that are gone, or would be.
    pub removed: Vec<u64>,
    /// Those that stay because they are to be kept.
    pub kept: Vec<u64>,
    /// Those that would be gone if nobody were reading them.
    pub in_use: Vec<u64>,
    /// Those that are damaged, and stay.
    pub damaged: Vec<u64>,
}

/// Removes old steps.
pub fn run(args: &PruneArgs, out: &mut Output) -> Result<Exit, Failure> {
    let root = super::local(&args.path)?;
    // Before anything is made in it: a folder that is not there is no output.
    std::fs::read_dir(&root).map_err(|error| Failure::reading(&root, &error))?;
    let retention = Retention {
        keep: args.keep.get(),
        keep_every: args.keep_every.map(NonZeroU64::get),
    };
    let done = prune(&root, retention, args.dry_run, super::PATIENCE)?;
    let pruning = Pruning {
        schema: PRUNE_SCHEMA,
        path: args.path.clone(),
        dry_run: args.dry_run,
        removed: done.removed,
        kept: done.kept,
        in_use: done.in_use,
        damaged: done.damaged,
    };
    out.show(&pruning, |columns| render::ckpt::pruning(&pruning, columns))?;
    Ok(Exit::Ok)
}
