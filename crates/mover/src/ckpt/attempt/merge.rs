//! From what the ranks wrote to one manifest.

use std::collections::{BTreeMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Terms;
use crate::ckpt::error::SaveError;
use crate::ckpt::extent::Extent;
use crate::ckpt::manifest::{
    MANIFEST_SCHEMA, Manifest, PartEntry, RANK_PART_SCHEMA, RankPart, TensorEntry, file_name,
};
use crate::digest::ALGORITHM;

/// Whether a note is that of this rank in this attempt.
pub(super) fn belongs(part: &RankPart, terms: &Terms, mark: &str, rank: u32) -> Result<(), String> {
    let same = |what: &str, found: &str, expected: &str| match found == expected {
        true => Ok(()),
        false => Err(format!("its {what} is {found:?}, not {expected:?}")),
    };
    same("schema", &part.schema, RANK_PART_SCHEMA)?;
    same("attempt", &part.attempt, mark)?;
    same("step", &part.step.to_string(), &terms.step.to_string())?;
    same("rank", &part.rank.to_string(), &rank.to_string())?;
    same("world", &part.world.to_string(), &terms.world.to_string())?;
    same("file", &part.file.name, &file_name(rank, terms.world))?;
    let parts = part.tensors.values().flat_map(|tensor| &tensor.parts);
    match parts.into_iter().find(|entry| entry.file != rank) {
        Some(entry) => Err(format!("it names a part in file number {}", entry.file)),
        None => Ok(()),
    }
}

/// Puts the parts of all ranks, in the order of ranks, together.
///
/// # Errors
/// When ranks disagree about a tensor. That its parts cover it is checked when the manifest is encoded.
pub(super) fn manifest(
    parts: Vec<RankPart>,
    terms: &Terms,
    mark: &str,
) -> Result<Manifest, SaveError> {
    let mut tensors: BTreeMap<String, (u32, TensorEntry, HashSet<Extent>)> = BTreeMap::new();
    let mut files = Vec::with_capacity(parts.len());
    let mut objects = BTreeMap::new();
    let mut objects_of_ranks = BTreeMap::new();
    for part in parts {
        for (name, entry) in part.tensors {
            let Some((first, known, seen)) = tensors.get_mut(&name) else {
                let seen = entry.parts.iter().map(PartEntry::extent).collect();
                tensors.insert(name, (part.rank, entry, seen));
                continue;
            };
            let disagree = |what: String| SaveError::RanksDisagree {
                tensor: name.as_str().into(),
                first: *first,
                second: part.rank,
                what,
            };
            if (&known.dtype, &known.shape) != (&entry.dtype, &entry.shape) {
                return Err(disagree(format!(
                    "it is {} {:?} or {} {:?}",
                    known.dtype, known.shape, entry.dtype, entry.shape
                )));
            }
            if let Some(own) = entry.parts.iter().find(|own| !seen.insert(own.extent())) {
                return Err(disagree(format!(
                    "both wrote the part {}: what every rank holds is to be marked as replicated",
                    own.extent()
                )));
            }
            known.parts.extend(entry.parts);
        }
        files.push(part.file);
        if part.rank == 0 {
            objects = part.objects;
        } else if part.objects != objects {
            objects_of_ranks.insert(part.rank, part.objects);
        }
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Manifest {
        schema: MANIFEST_SCHEMA.into(),
        step: terms.step,
        world: terms.world,
        attempt: mark.into(),
        created: created.map_or(0, |since| since.as_secs()),
        algorithm: ALGORITHM.into(),
        files,
        tensors: tensors
            .into_iter()
            .map(|(name, (_, entry, _))| (name, entry))
            .collect(),
        objects,
        objects_of_ranks,
    })
}
