//! `crowfly ckpt diff BEFORE AFTER`.

use std::path::PathBuf;

use clap::Args;
use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::ckpt::{Archive, Change, comparable, diff};
use crowfly_route::units::Bytes;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::path::as_text;
use crate::render;

/// The version of the JSON form of a comparison.
pub const DIFF_SCHEMA: &str = "crowfly.ckpt-diff/1";

/// What a comparison of steps does not look at.
const UNCHECKED: &str = "the bytes were compared with each other, not with the checksums that were saved; \
    `crowfly ckpt verify` does that";

/// Arguments of `crowfly ckpt diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// The first checkpoint, in any format; of a folder of steps the latest complete one
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The second
    #[arg(value_name = "AFTER")]
    after: PathBuf,
}

/// What differs.
#[derive(Debug, Serialize)]
pub struct Comparison {
    schema: &'static str,
    /// The first checkpoint.
    #[serde(serialize_with = "as_text")]
    pub before: PathBuf,
    /// The second.
    #[serde(serialize_with = "as_text")]
    pub after: PathBuf,
    /// How many tensors are the same, bit by bit.
    pub same: usize,
    /// Bytes compared, of each.
    pub compared: Bytes,
    /// The tensors that differ.
    pub tensors: Vec<Differing>,
    /// What these do not show.
    pub notes: Vec<String>,
}

/// A tensor that differs.
#[derive(Debug, Serialize)]
pub struct Differing {
    /// Its name.
    pub name: String,
    /// `added`, `removed`, `reshaped` or `changed`.
    pub change: &'static str,
    /// What it is in the first checkpoint.
    pub before: Option<Kind>,
    /// What it is in the second.
    pub after: Option<Kind>,
    /// How many elements differ; of packed types, bytes.
    pub differing: Option<u64>,
    /// How many elements there are.
    pub elements: Option<u64>,
    /// The largest difference of two elements.
    pub max_abs: Option<f64>,
    /// The square root of the sum of all squared differences.
    pub l2: Option<f64>,
    /// Differing elements of which one is no number or infinite, and which are in neither.
    pub not_finite: Option<u64>,
}

/// What a tensor is.
#[derive(Debug, Serialize)]
pub struct Kind {
    /// The type of its elements, as safetensors names it.
    pub dtype: &'static str,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
}

impl From<&(Dtype, Vec<u64>)> for Kind {
    fn from((dtype, shape): &(Dtype, Vec<u64>)) -> Self {
        Self {
            dtype: dtype.name(),
            shape: shape.clone(),
        }
    }
}

/// Compares.
pub fn run(args: &DiffArgs, out: &mut Output) -> Result<Exit, Failure> {
    let before = super::open(&args.before, None)?;
    let after = super::open(&args.after, None)?;
    let progress = out.progress();
    progress.start("comparing", comparable(&before, &after).0);
    let found = diff(&before, &after, &Engine::default(), |done| {
        progress.at(done.0);
    })?;
    drop(progress);
    let mut notes = Vec::new();
    for (path, archive) in [(&args.before, &before), (&args.after, &after)] {
        for found in super::passed_over(path, archive)? {
            if let Err(error) = &found.manifest {
                notes.push(format!("step {} is passed over: {error}", found.step));
            }
        }
    }
    if [&before, &after]
        .iter()
        .any(|archive| super::step_of(archive).is_some())
    {
        notes.push(UNCHECKED.to_owned());
    }
    let comparison = Comparison {
        schema: DIFF_SCHEMA,
        before: before.path().to_owned(),
        after: after.path().to_owned(),
        same: found.same,
        compared: found.compared,
        tensors: found
            .tensors
            .into_iter()
            .map(|(name, change)| differing(name, &change, &before, &after))
            .collect(),
        notes,
    };
    out.show(&comparison, |columns| {
        render::ckpt::comparison(&comparison, columns)
    })?;
    Ok(Exit::Ok)
}

fn differing(name: String, change: &Change, before: &Archive, after: &Archive) -> Differing {
    let kind = |archive: &Archive| {
        let tensor = archive.get(&name)?;
        Some(Kind::from(&(tensor.dtype, tensor.shape.clone())))
    };
    let distance = match change {
        Change::Changed(distance) => Some(distance),
        _ => None,
    };
    Differing {
        change: match change {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Reshaped { .. } => "reshaped",
            Change::Changed(_) => "changed",
        },
        before: kind(before),
        after: kind(after),
        differing: distance.map(|distance| distance.differing),
        elements: distance.map(|distance| distance.elements),
        max_abs: distance.and_then(|distance| distance.max_abs),
        l2: distance.and_then(|distance| distance.l2),
        not_finite: distance.map(|distance| distance.not_finite),
        name,
    }
}
