//! Which tensors a selection picks, and which byte ranges that is.

#[path = "checkpoint_support/files.rs"]
mod files;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crowfly_mover::checkpoint::select::{
    FileSelection, MAX_RANKS, NEAR, Placed, RankSlice, SelectError, Selection, Selector,
};
use crowfly_mover::checkpoint::{Checkpoint, FileNumber};
use crowfly_route::units::Bytes;
use files::write_shard;
use proptest::prelude::*;

/// Two files: `a.safetensors` with layers of 8 + 4 bytes, `b.safetensors` with a head of 16.
fn two_files(folder: &Path) -> Checkpoint {
    write_shard(
        folder,
        "a.safetensors",
        &[
            ("model.layers.0.weight", 8),
            ("model.layers.0.bias", 4),
            ("model.layers.1.weight", 8),
            ("model.layers.1.bias", 4),
        ],
    );
    write_shard(folder, "b.safetensors", &[("lm_head.weight", 16)]);
    Checkpoint::open(folder).unwrap()
}

fn names<'c>(checkpoint: &'c Checkpoint, selection: &Selection) -> Vec<&'c str> {
    let mut names = Vec::new();
    for file in &selection.files {
        let header = checkpoint.file(file.file).unwrap().header().unwrap();
        for placed in &file.tensors {
            names.push(header.tensor(placed.number as usize).unwrap().name);
        }
    }
    names
}

fn glob(patterns: &[&str]) -> Selector {
    Selector::default().tensors(patterns).unwrap()
}

#[test]
fn everything_is_one_range_for_each_file() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let selection = Selector::default().select(&checkpoint).unwrap();
    let ranges: Vec<_> = selection.files.iter().map(|f| f.ranges.clone()).collect();
    assert_eq!(
        ranges,
        [
            vec![checkpoint.files()[0].data()],
            vec![checkpoint.files()[1].data()]
        ]
    );
    assert_eq!(selection.bytes(), Bytes(40));
    assert_eq!(selection.tensor_bytes, Bytes(40));
    assert_eq!(selection.tensor_count(), 5);
}

#[test]
fn a_pattern_picks_by_name_and_leaves_out_files_without_a_match() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let selection = glob(&["*.bias"])
        .near(Bytes(0))
        .select(&checkpoint)
        .unwrap();
    assert_eq!(
        names(&checkpoint, &selection),
        ["model.layers.0.bias", "model.layers.1.bias"]
    );
    let start = checkpoint.files()[0].data().start;
    assert_eq!(
        selection.files,
        [FileSelection {
            file: FileNumber(0),
            ranges: vec![start + 8..start + 12, start + 20..start + 24],
            tensors: vec![Placed { number: 1, at: 0 }, Placed { number: 3, at: 4 }],
        }]
    );
    assert_eq!(selection.bytes(), Bytes(8));
}

#[test]
fn near_tensors_share_a_range_and_the_gap_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let start = checkpoint.files()[0].data().start;
    let joined = glob(&["*.bias"])
        .near(Bytes(8))
        .select(&checkpoint)
        .unwrap();
    assert_eq!(joined.files[0].ranges, vec![start + 8..start + 24]);
    assert_eq!(
        joined.files[0].tensors,
        [Placed { number: 1, at: 0 }, Placed { number: 3, at: 12 }]
    );
    assert_eq!((joined.bytes(), joined.tensor_bytes), (Bytes(16), Bytes(8)));

    let apart = glob(&["*.bias"])
        .near(Bytes(7))
        .select(&checkpoint)
        .unwrap();
    assert_eq!(apart.files[0].ranges.len(), 2);
}

#[test]
fn by_default_gaps_of_up_to_a_block_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_shard(
        folder.path(),
        "a.safetensors",
        &[
            ("x1", 1),
            ("gap", NEAR.0),
            ("x2", 1),
            ("wide gap", NEAR.0 + 1),
            ("x3", 1),
        ],
    );
    let selection = glob(&["x?"])
        .select(&Checkpoint::open(path).unwrap())
        .unwrap();
    let lengths: Vec<_> = selection.files[0]
        .ranges
        .iter()
        .map(|r| r.end - r.start)
        .collect();
    assert_eq!(lengths, [NEAR.0 + 2, 1]);
}

#[test]
fn empty_tensors_are_selected_without_a_range() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_shard(
        folder.path(),
        "a.safetensors",
        &[("e", 0), ("w", 2), ("f", 0)],
    );
    let checkpoint = Checkpoint::open(path).unwrap();
    let selection = Selector::default().select(&checkpoint).unwrap();
    let at: Vec<_> = selection.files[0].tensors.iter().map(|t| t.at).collect();
    assert_eq!(at, [0, 0, 2]);
    let empty = glob(&["e"]).select(&checkpoint).unwrap();
    assert_eq!((empty.tensor_count(), empty.bytes()), (1, Bytes(0)));
    assert!(empty.files[0].ranges.is_empty());
}

#[test]
fn several_patterns_add_up_and_none_at_all_pick_everything() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let both = glob(&["lm_*", "*.{0,7}.*"]).select(&checkpoint).unwrap();
    assert_eq!(
        names(&checkpoint, &both),
        [
            "model.layers.0.weight",
            "model.layers.0.bias",
            "lm_head.weight"
        ]
    );
    assert_eq!(glob(&[]).select(&checkpoint).unwrap().tensor_count(), 5);
}

#[test]
fn a_pattern_without_a_match_is_an_error_with_suggestions() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let error = glob(&["layers.1"]).select(&checkpoint).unwrap_err();
    assert_eq!(error.code(), "nothing-matches");
    assert_eq!(
        error.to_string(),
        r#"no tensor's name matches "layers.1", of 5 tensors; "*layers.1*" would match 2"#
    );
    let error = glob(&["lm_haed.weight"]).select(&checkpoint).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"no tensor's name matches "lm_haed.weight", of 5 tensors; the nearest: "lm_head.weight""#
    );
}

#[test]
fn one_pattern_without_a_match_is_an_error_beside_one_that_has_some() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let error = glob(&["*", "zzz"]).select(&checkpoint).unwrap_err();
    assert_eq!(
        error,
        SelectError::NothingMatches {
            pattern: "zzz".into(),
            tensors: 5,
            wider: None,
            nearest: vec![],
        }
    );
}

#[test]
fn a_broken_pattern_is_an_error() {
    let error = Selector::default().tensors(&["a["]).unwrap_err();
    assert_eq!(error.code(), "bad-pattern");
    assert!(error.to_string().starts_with(r#""a[" is not a pattern"#));
}

#[test]
fn a_raw_file_is_one_range_and_has_nothing_to_choose_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("raw");
    fs::write(&path, [0; 9]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let selection = Selector::default().select(&checkpoint).unwrap();
    assert_eq!(selection.files[0].ranges, vec![0..9]);
    for selector in [
        glob(&["*"]),
        Selector::default().slice(RankSlice::new(0, 1).unwrap()),
    ] {
        assert_eq!(selector.select(&checkpoint).unwrap_err().code(), "raw-file");
    }
    fs::write(&path, []).unwrap();
    let empty = Selector::default()
        .select(&Checkpoint::open(&path).unwrap())
        .unwrap();
    assert_eq!(empty.bytes(), Bytes(0));
    assert!(empty.files[0].ranges.is_empty());
}

// ---- one rank's share ----------------------------------------------------------------------

fn share<'c>(checkpoint: &'c Checkpoint, slice: &str) -> Vec<&'c str> {
    let selection = Selector::default()
        .slice(slice.parse().unwrap())
        .select(checkpoint)
        .unwrap();
    names(checkpoint, &selection)
}

#[test]
fn shares_are_dealt_from_the_largest_with_ties_by_name_and_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_shard(
        folder.path(),
        "a.safetensors",
        &[("d", 4), ("c", 5), ("b", 5), ("a", 5), ("e", 3)],
    );
    let checkpoint = Checkpoint::open(path).unwrap();
    // a → 0, b → 1, c → 0 (tie), d → 1 (5 < 10), e → 1 (9 < 10).
    assert_eq!(share(&checkpoint, "0/2"), ["c", "a"]);
    assert_eq!(share(&checkpoint, "1/2"), ["d", "b", "e"]);
}

#[test]
fn shares_do_not_depend_on_how_the_model_is_cut_into_files() {
    let tensors = [("d", 4), ("c", 5), ("b", 5), ("a", 5), ("e", 3)];
    let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_shard(whole.path(), "a.safetensors", &tensors);
    for (number, tensor) in tensors.into_iter().enumerate() {
        write_shard(cut.path(), &format!("{number}.safetensors"), &[tensor]);
    }
    let whole = Checkpoint::open(whole.path()).unwrap();
    let cut = Checkpoint::open(cut.path()).unwrap();
    for slice in ["0/3", "1/3", "2/3"] {
        let set = |names: Vec<&str>| {
            names
                .into_iter()
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(set(share(&whole, slice)), set(share(&cut, slice)));
    }
}

#[test]
fn a_rank_without_a_tensor_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = two_files(folder.path());
    let slice: RankSlice = "6/1000000".parse().unwrap();
    let error = Selector::default()
        .slice(slice)
        .select(&checkpoint)
        .unwrap_err();
    assert_eq!(error, SelectError::EmptyShare { slice, tensors: 5 });
    assert_eq!(
        error.to_string(),
        "no tensor falls to rank 6/1000000: there are only 5 selected"
    );
}

#[test]
fn ranks_count_from_zero_and_are_bounded() {
    assert_eq!("3/4".parse(), RankSlice::new(3, 4));
    for text in [
        "4/4",
        "1/0",
        "0/0",
        "-1/4",
        "1",
        "a/b",
        "",
        "1/2/3",
        "0/1000001",
    ] {
        let error = text.parse::<RankSlice>().unwrap_err();
        assert_eq!(error.given, text.into());
        assert_eq!(error.code(), "bad-rank-slice");
    }
    assert!(RankSlice::new(0, MAX_RANKS).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shares_partition_the_tensors_and_balance_their_bytes(
        sizes in proptest::collection::vec(0..1000_u64, 1..40),
        ranks in 1..9_u32,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let named: Vec<_> = (0..sizes.len()).map(|n| format!("t{n}")).collect();
        let tensors: Vec<_> = named.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
        let checkpoint =
            Checkpoint::open(write_shard(folder.path(), "a.safetensors", &tensors)).unwrap();
        let mut seen = BTreeSet::new();
        let mut heaviest = 0;
        for rank in 0..ranks {
            let slice = RankSlice::new(rank, ranks).unwrap();
            match Selector::default().slice(slice).near(Bytes(0)).select(&checkpoint) {
                Ok(selection) => {
                    for name in names(&checkpoint, &selection) {
                        prop_assert!(seen.insert(name.to_owned()), "{} twice", name);
                    }
                    prop_assert_eq!(selection.bytes(), selection.tensor_bytes);
                    heaviest = heaviest.max(selection.bytes().0);
                }
                Err(error) => prop_assert_eq!(error.code(), "empty-share"),
            }
        }
        prop_assert_eq!(seen.len(), sizes.len());
        // No rank holds more than the average and the largest tensor together.
        let average = sizes.iter().sum::<u64>() / u64::from(ranks);
        prop_assert!(heaviest <= average + sizes.iter().max().unwrap());
    }

    #[test]
    fn every_selected_tensor_lies_where_its_place_says(
        sizes in proptest::collection::vec(0..50_u64, 1..30),
        chosen in proptest::collection::vec(any::<bool>(), 30),
        near in 0..60_u64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let named: Vec<_> = (0..sizes.len())
            .map(|n| format!("{}{n}", if chosen[n] { "yes" } else { "no" }))
            .collect();
        let tensors: Vec<_> = named.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
        let path = write_shard(folder.path(), "a.safetensors", &tensors);
        let checkpoint = Checkpoint::open(path).unwrap();
        let Ok(selection) = glob(&["yes*"]).near(Bytes(near)).select(&checkpoint) else {
            prop_assert!(!chosen[..sizes.len()].contains(&true));
            return Ok(());
        };
        let file = &selection.files[0];
        for pair in file.ranges.windows(2) {
            prop_assert!(pair[1].start > pair[0].end + near);
        }
        let offsets: Vec<u64> = file.ranges.iter().cloned().flatten().collect();
        let header = checkpoint.files()[0].header().unwrap();
        for placed in &file.tensors {
            let tensor = header.tensor(placed.number as usize).unwrap();
            let at = placed.at as usize;
            let laid = &offsets[at..at + tensor.bytes() as usize];
            prop_assert!(laid.iter().copied().eq(tensor.range.clone()));
        }
        prop_assert_eq!(file.tensors.len(), chosen[..sizes.len()].iter().filter(|&&c| c).count());
    }
}
