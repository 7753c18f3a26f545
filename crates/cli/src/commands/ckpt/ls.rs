//! `crowfly ckpt ls PATH`.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use crowfly_mover::ckpt::{Archive, Format, Found, Manifest, StepError, Unfinished, list};
use crowfly_route::units::Bytes;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::as_text;
use crate::render;

/// The version of the JSON form of a listing.
pub const LS_SCHEMA: &str = "crowfly.ckpt-ls/1";

/// Arguments of `crowfly ckpt ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    /// A folder of steps, a step, a safetensors file or model folder, or a distributed checkpoint
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// What a path holds.
#[derive(Debug, Serialize)]
pub struct Listing {
    schema: &'static str,
    /// What was asked for.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The checkpoints, ascending by step.
    pub checkpoints: Vec<Row>,
    /// Saves that go on or were cut off.
    pub unfinished: Vec<Attempt>,
    /// What was odd, though no reason to refuse.
    pub notes: Vec<String>,
}

/// A checkpoint.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Its step, where it has one.
    pub step: Option<u64>,
    /// Where it is.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// `crowfly`, `safetensors` or `dcp`.
    pub format: &'static str,
    /// Whether all of it is there. Whether the bytes are right is for `verify` to say.
    pub complete: bool,
    /// How many ranks saved it, where that is known.
    pub world: Option<u32>,
    /// Bytes of its files.
    pub bytes: Option<Bytes>,
    /// How many tensors it holds.
    pub tensors: Option<usize>,
    /// When it was published, in seconds since 1970.
    pub created: Option<u64>,
    /// How long ago that is, in seconds.
    pub age_seconds: Option<u64>,
    /// Why it is not complete.
    pub fault: Option<Fault>,
}

/// What is wrong with a checkpoint.
#[derive(Debug, Serialize)]
pub struct Fault {
    /// The stable code.
    pub code: &'static str,
    /// In words.
    pub message: String,
}

/// A save that has no result yet, or never will.
#[derive(Debug, Serialize)]
pub struct Attempt {
    /// Its step.
    pub step: u64,
    /// Where it is.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Whether somebody is still at it.
    pub live: bool,
}

/// Lists.
pub fn run(args: &LsArgs, out: &mut Output) -> Result<Exit, Failure> {
    let path = super::local(&args.path)?;
    let mut listing = Listing {
        schema: LS_SCHEMA,
        path: args.path.clone(),
        checkpoints: Vec::new(),
        unfinished: Vec::new(),
        notes: Vec::new(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let contents = match path.is_dir() {
        true => list(&path)?,
        false => Default::default(),
    };
    if contents.steps.is_empty() && contents.unfinished.is_empty() {
        let archive = Archive::open(&path)?;
        listing.notes = archive.notes().to_vec();
        listing.checkpoints.push(alone(&archive, now));
    } else {
        listing.checkpoints = contents.steps.iter().map(|found| row(found, now)).collect();
        listing.unfinished = contents.unfinished.into_iter().map(attempt).collect();
    }
    out.show(&listing, |columns| render::ckpt::listing(&listing, columns))?;
    Ok(Exit::Ok)
}

fn attempt(unfinished: Unfinished) -> Attempt {
    Attempt {
        step: unfinished.step,
        path: unfinished.path,
        live: unfinished.live,
    }
}

fn row(found: &Found, now: u64) -> Row {
    let fault = |error: &StepError| Fault {
        code: error.code(),
        message: error.to_string(),
    };
    let (manifest, fault) = match &found.manifest {
        Ok(manifest) => (Some(manifest), None),
        Err(error) => (None, Some(fault(error))),
    };
    let bytes = |manifest: &Manifest| manifest.files.iter().map(|f| Bytes(f.bytes)).sum();
    Row {
        step: Some(found.step),
        path: found.path.clone(),
        format: "crowfly",
        complete: manifest.is_some(),
        world: manifest.map(|manifest| manifest.world),
        bytes: manifest.map(bytes),
        tensors: manifest.map(|manifest| manifest.tensors.len()),
        created: manifest.map(|manifest| manifest.created),
        age_seconds: manifest.map(|manifest| now.saturating_sub(manifest.created)),
        fault,
    }
}

fn alone(archive: &Archive, now: u64) -> Row {
    let (step, world, created) = match archive.format() {
        Format::Step {
            step,
            world,
            created,
        } => (Some(*step), Some(*world), Some(*created)),
        _ => (None, None, modified(archive.path())),
    };
    Row {
        step,
        path: archive.path().to_owned(),
        format: archive.format().word(),
        complete: true,
        world,
        bytes: Some(archive.files().iter().map(|file| file.bytes).sum()),
        tensors: Some(archive.tensors().len()),
        created,
        age_seconds: created.map(|created| now.saturating_sub(created)),
        fault: None,
    }
}

/// When what stands at a path was last changed, in seconds since 1970.
fn modified(path: &Path) -> Option<u64> {
    let modified = path.metadata().ok()?.modified().ok()?;
    Some(modified.duration_since(UNIX_EPOCH).ok()?.as_secs())
}
