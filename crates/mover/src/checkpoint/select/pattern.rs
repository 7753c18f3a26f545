//! Globs over tensor names, and what to suggest where one matches nothing.

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::error::SelectError;
use crate::checkpoint::header::Tensor;
use crate::checkpoint::open::{Checkpoint, TensorId};
use crate::checkpoint::quoted::Quoted;

/// Several globs and their text.
#[derive(Clone, Debug)]
pub(super) struct Patterns {
    texts: Vec<Box<str>>,
    globs: GlobSet,
}

impl Patterns {
    pub(super) fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Self, SelectError> {
        let bad = |pattern: &str, error: &globset::Error| SelectError::BadPattern {
            pattern: pattern.into(),
            why: error.kind().to_string(),
        };
        let mut builder = GlobSetBuilder::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            builder.add(Glob::new(pattern).map_err(|error| bad(pattern, &error))?);
        }
        let texts: Vec<Box<str>> = patterns.iter().map(|p| p.as_ref().into()).collect();
        let globs = builder
            .build()
            .map_err(|error| bad(&texts.join(" "), &error))?;
        Ok(Self { texts, globs })
    }

    /// The tensors that match. A pattern without any match is an error even beside one that has
    /// some: less would be loaded than was asked for.
    pub(super) fn pick<'c>(
        &self,
        checkpoint: &'c Checkpoint,
    ) -> Result<Vec<(TensorId, Tensor<'c>)>, SelectError> {
        let mut used = vec![false; self.texts.len()];
        let mut picked = Vec::new();
        let mut matches = Vec::new();
        for (id, tensor) in checkpoint.tensors() {
            self.globs.matches_into(tensor.name, &mut matches);
            for &pattern in &matches {
                if let Some(flag) = used.get_mut(pattern) {
                    *flag = true;
                }
            }
            if !matches.is_empty() {
                picked.push((id, tensor));
            }
        }
        match self.texts.iter().zip(used).find(|(_, used)| !used) {
            Some((unused, _)) => Err(nothing_matches(unused, checkpoint)),
            None => Ok(picked),
        }
    }
}

fn nothing_matches(pattern: &str, checkpoint: &Checkpoint) -> SelectError {
    SelectError::NothingMatches {
        pattern: pattern.into(),
        tensors: checkpoint.tensor_count(),
        wider: wider(pattern, checkpoint),
        nearest: nearest(pattern, checkpoint),
    }
}

/// The pattern with stars around it, and how many tensors that matches, if any.
fn wider(pattern: &str, checkpoint: &Checkpoint) -> Option<(Quoted, usize)> {
    let core = pattern.trim_matches('*');
    if core.is_empty() {
        return None;
    }
    let widened = format!("*{core}*");
    let glob = Glob::new(&widened).ok()?.compile_matcher();
    let count = checkpoint
        .tensors()
        .filter(|(_, tensor)| glob.is_match(tensor.name))
        .count();
    (count > 0).then(|| (widened.as_str().into(), count))
}

/// The names most like the pattern, best first.
fn nearest(pattern: &str, checkpoint: &Checkpoint) -> Vec<Quoted> {
    /// Comparing is slow; a checkpoint of this many tensors repeats its names anyway.
    const MOST_COMPARED: usize = 20_000;
    const MOST_NAMED: usize = 3;
    /// Beyond this length a name is not compared, since the time grows with the square.
    const LONGEST_COMPARED: usize = 256;
    /// Jaro–Winkler similarity from which on two names look alike to a reader.
    const ALIKE: f64 = 0.75;

    let wanted = pattern.trim_matches('*');
    if wanted.len() > LONGEST_COMPARED {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = checkpoint
        .tensors()
        .take(MOST_COMPARED)
        .map(|(_, tensor)| tensor.name)
        .filter(|name| name.len() <= LONGEST_COMPARED)
        .map(|name| (strsim::jaro_winkler(wanted, name), name))
        .filter(|(score, _)| *score >= ALIKE)
        .collect();
    scored.sort_by(|(a, left), (b, right)| b.total_cmp(a).then(left.cmp(right)));
    scored
        .into_iter()
        .take(MOST_NAMED)
        .map(|(_, name)| name.into())
        .collect()
}
