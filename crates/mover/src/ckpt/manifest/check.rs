//! What a manifest must fulfil: every element of every tensor lies in exactly one place.

use std::collections::BTreeSet;

use super::{
    MANIFEST_SCHEMA, MAX_FILES, MAX_PARTS, Manifest, ManifestError, Sums, TensorEntry, file_name,
};
use crate::checkpoint::dtype::Dtype;
use crate::checkpoint::header::MAX_DIMENSIONS;
use crate::ckpt::extent::Extent;
use crate::digest::ALGORITHM;

pub(super) fn manifest(manifest: &Manifest) -> Result<(), ManifestError> {
    if manifest.schema != MANIFEST_SCHEMA {
        return Err(ManifestError::Schema {
            found: manifest.schema.as_str().into(),
        });
    }
    if manifest.algorithm != ALGORITHM {
        return Err(ManifestError::Algorithm {
            found: manifest.algorithm.as_str().into(),
        });
    }
    let files = manifest.files.len();
    if files != manifest.world as usize || files == 0 || files > MAX_FILES {
        return Err(ManifestError::Files {
            files,
            world: manifest.world,
        });
    }
    for (rank, file) in (0..).zip(&manifest.files) {
        let expected = file_name(rank, manifest.world);
        if file.name != expected {
            return Err(ManifestError::FileName {
                number: rank as usize,
                found: file.name.as_str().into(),
                expected,
            });
        }
    }
    for (name, entry) in &manifest.tensors {
        tensor(name, entry, manifest)?;
    }
    Ok(())
}

fn tensor(name: &str, entry: &TensorEntry, manifest: &Manifest) -> Result<(), ManifestError> {
    let dtype = Dtype::from_name(&entry.dtype).ok_or_else(|| ManifestError::Dtype {
        tensor: name.into(),
        found: entry.dtype.as_str().into(),
    })?;
    let shape_fault = |what: String| ManifestError::Shape {
        tensor: name.into(),
        what,
    };
    if entry.shape.len() > MAX_DIMENSIONS {
        return Err(shape_fault(format!(
            "{} dimensions; at most {MAX_DIMENSIONS} are allowed",
            entry.shape.len()
        )));
    }
    dtype.bytes_of(&entry.shape).map_err(|fault| {
        shape_fault(format!(
            "{dtype} of shape {:?} has no size in bytes: {fault:?}",
            entry.shape
        ))
    })?;
    if entry.parts.len() > MAX_PARTS {
        return Err(ManifestError::TooManyParts {
            tensor: name.into(),
        });
    }
    let mut extents = Vec::with_capacity(entry.parts.len());
    for part in &entry.parts {
        let extent = part.extent();
        let file = manifest.files.get(part.file as usize);
        let inside = |bytes: u64| part.begin <= part.end && part.end <= bytes;
        if !file.is_some_and(|file| inside(file.bytes)) {
            return Err(ManifestError::OutsideFile {
                tensor: name.into(),
                part: extent,
                file: part.file,
                begin: part.begin,
                end: part.end,
            });
        }
        if !extent.fits(&entry.shape) {
            return Err(shape_fault(format!(
                "the part {extent} does not lie in a tensor of shape {:?}",
                entry.shape
            )));
        }
        let needed = dtype.bytes_of(&extent.shape).map_err(|fault| {
            shape_fault(format!(
                "the part {extent} of {dtype} has no size in bytes: {fault:?}"
            ))
        })?;
        let range = part.begin..part.end;
        let spanned = range.end - range.start;
        if needed != spanned {
            return Err(ManifestError::PartSize {
                tensor: name.into(),
                part: extent,
                needed,
                spanned,
            });
        }
        let Some(sums) = Sums::decode(&part.sums) else {
            return Err(ManifestError::BadSums {
                tensor: name.into(),
                part: extent,
            });
        };
        if sums.len() != Sums::needed(&range) {
            return Err(ManifestError::Sums {
                tensor: name.into(),
                part: extent,
                found: sums.len(),
                needed: Sums::needed(&range),
            });
        }
        extents.push(extent);
    }
    covered(name, &entry.shape, &extents)
}

/// Checks that boxes of a tensor cover it exactly once.
pub(crate) fn covered(name: &str, shape: &[u64], extents: &[Extent]) -> Result<(), ManifestError> {
    let needed = Extent::whole(shape).elements().unwrap_or(u64::MAX);
    let found = extents
        .iter()
        .map(|extent| extent.elements().unwrap_or(u64::MAX))
        .fold(0u64, u64::saturating_add);
    if let Some((first, second)) = overlap(extents) {
        return Err(ManifestError::Overlap {
            tensor: name.into(),
            first: first.clone(),
            second: second.clone(),
        });
    }
    // Without overlaps, the sum alone tells whether there is a hole.
    if found != needed {
        return Err(ManifestError::Hole {
            tensor: name.into(),
            found,
            needed,
        });
    }
    Ok(())
}

/// Two boxes that share an element, if there are such.
///
/// A sweep along the dimension in which the boxes begin at the most places: of a tensor cut into n
/// parts along any one dimension it looks at n pairs, not at n².
pub(crate) fn overlap(extents: &[Extent]) -> Option<(&Extent, &Extent)> {
    let dims = extents.first()?.shape.len();
    let starts = |dim: usize| {
        let all: BTreeSet<u64> = extents.iter().map(|e| e.along(dim).start).collect();
        all.len()
    };
    let sweep = (0..dims).max_by_key(|&dim| starts(dim)).unwrap_or(0);
    let mut order: Vec<&Extent> = extents.iter().filter(|e| !e.is_empty()).collect();
    order.sort_by_key(|extent| extent.along(sweep).start);
    let mut open: Vec<&Extent> = Vec::new();
    for extent in order {
        let start = extent.along(sweep).start;
        open.retain(|other| dims == 0 || other.along(sweep).end > start);
        if let Some(other) = open.iter().find(|other| other.intersect(extent).is_some()) {
            return Some((other, extent));
        }
        open.push(extent);
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(offset: &[u64], shape: &[u64]) -> Extent {
        Extent {
            offset: offset.to_vec(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn a_tensor_is_covered_by_a_grid_of_boxes_and_not_by_one_less_or_one_twice() {
        let mut boxes: Vec<Extent> = (0..2)
            .flat_map(|i| (0..3).map(move |j| extent(&[i * 2, j * 2], &[2, 2])))
            .collect();
        assert_eq!(covered("t", &[4, 6], &boxes), Ok(()));
        let last = boxes.pop().expect("six boxes");
        let code = |boxes: &[Extent]| covered("t", &[4, 6], boxes).map_err(|e| e.code());
        assert_eq!(code(&boxes), Err("parts-incomplete"));
        boxes.push(extent(&[1, 4], &[2, 2]));
        assert_eq!(code(&boxes), Err("parts-overlap"));
        boxes.pop();
        boxes.extend([last.clone(), last]);
        assert_eq!(code(&boxes), Err("parts-overlap"));
    }

    #[test]
    fn a_scalar_has_one_part_and_an_empty_tensor_may_have_none() {
        let scalar = extent(&[], &[]);
        assert_eq!(covered("t", &[], std::slice::from_ref(&scalar)), Ok(()));
        assert!(covered("t", &[], &[scalar.clone(), scalar]).is_err());
        assert!(covered("t", &[], &[]).is_err());
        assert_eq!(covered("t", &[0, 3], &[]), Ok(()));
    }

    proptest! {
        #[test]
        fn the_sweep_finds_an_overlap_exactly_when_some_pair_has_one(
            boxes in proptest::collection::vec(((0u64..5, 0u64..3), (0u64..5, 0u64..3)), 0..8)
        ) {
            let boxes: Vec<Extent> = boxes
                .iter()
                .map(|&((a, n), (b, m))| extent(&[a, b], &[n, m]))
                .collect();
            let some_pair = (0..boxes.len()).any(|i| {
                (0..i).any(|j| boxes[i].intersect(&boxes[j]).is_some())
            });
            prop_assert_eq!(overlap(&boxes).is_some(), some_pair);
        }
    }
}
