//! Several ranks save one state together; any number of ranks restores it.

use std::path::Path;
use std::time::{Duration, Instant};

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{
    Archive, Extent, SaveError, SaveReceipt, Saver, SaverSettings, State, TensorPart,
};
use serde_json::json;

use crate::support::{pattern, restore};
use crate::{folder, names, saver};

/// A part of a tensor: its name, the shape of the whole, offset, shape, bytes, whether all hold it.
type Sharded = (String, Vec<u64>, Vec<u64>, Vec<u64>, Vec<u8>, bool);

/// Saves a state of several ranks, each in a thread of its own; what became of each.
fn together(
    root: &Path,
    world: u32,
    settings: &SaverSettings,
    state_of: impl Fn(u32) -> Vec<Sharded> + Sync,
    who: impl Fn(u32) -> bool + Sync,
) -> Vec<Option<Result<SaveReceipt, SaveError>>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world)
            .map(|rank| {
                let (state_of, who, settings) = (&state_of, &who, settings.clone());
                scope.spawn(move || {
                    if !who(rank) {
                        return None;
                    }
                    let parts = state_of(rank);
                    let tensors = parts
                        .iter()
                        .map(
                            |(name, global, offset, shape, bytes, replicated)| TensorPart {
                                name,
                                dtype: Dtype::U8,
                                global_shape: global,
                                offset,
                                shape,
                                bytes,
                                replicated: *replicated,
                            },
                        )
                        .collect();
                    let state = State {
                        tensors,
                        objects: [
                            ("rank".to_owned(), json!(rank)),
                            ("lr".to_owned(), json!(0.5)),
                        ]
                        .into(),
                    };
                    let slice = RankSlice::new(rank, world).expect("a rank");
                    let mut saver = Saver::new(root, slice, settings).expect("a saver");
                    Some(saver.save(7, &state))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    })
}

const ROWS: u64 = 12;
const COLUMNS: u64 = 10;

/// Rank's rows of `rows`, its columns of `columns`, and `shared`, which all hold.
fn sharded(rank: u32, world: u32) -> Vec<Sharded> {
    let shape = vec![ROWS, COLUMNS];
    let whole = pattern(1, (ROWS * COLUMNS) as usize);
    let cut = |dim| {
        let part = Extent::chunk(&shape, dim, rank.into(), world.into()).expect("a part");
        let (r, c) = (part.offset[0], part.offset[1]);
        let bytes = (r..r + part.shape[0])
            .flat_map(|row| (c..c + part.shape[1]).map(move |col| row * COLUMNS + col))
            .map(|at| whole[at as usize])
            .collect();
        (part.offset, part.shape, bytes)
    };
    let (ro, rs, rb) = cut(0);
    let (co, cs, cb) = cut(1);
    vec![
        ("rows".into(), shape.clone(), ro, rs, rb, false),
        ("columns".into(), shape.clone(), co, cs, cb, false),
        (
            "shared".into(),
            shape.clone(),
            vec![0, 0],
            shape.clone(),
            whole.clone(),
            true,
        ),
        (
            "shared too".into(),
            vec![5],
            vec![0],
            vec![5],
            pattern(9, 5),
            true,
        ),
    ]
}

#[test]
fn given_several_ranks_another_number_of_ranks_restores_every_part_along_any_dimension() {
    let folder = folder();
    let settings = SaverSettings::default();
    for result in together(
        folder.path(),
        3,
        &settings,
        |rank| sharded(rank, 3),
        |_| true,
    ) {
        result.expect("took part").expect("saved");
    }
    let archive = Archive::open(folder.path()).expect("opens");
    assert_eq!(archive.files().len(), 3);
    let shared: Vec<usize> = ["shared", "shared too"]
        .iter()
        .map(|name| archive.get(name).expect("there").parts[0].file)
        .collect();
    assert_ne!(
        shared[0], shared[1],
        "replicated tensors are divided among the ranks"
    );
    let whole = pattern(1, (ROWS * COLUMNS) as usize);
    for name in ["rows", "columns", "shared"] {
        for dim in [0, 1] {
            for world in [1, 2, 4, 5] {
                for rank in 0..world {
                    let want = archive.chunk(name, dim, rank, world).expect("a part");
                    let extent = want.extent.clone().expect("a box");
                    let restored = restore(&archive, &[want]);
                    let rows = extent.offset[0]..extent.offset[0] + extent.shape[0];
                    let expected: Vec<u8> = rows
                        .flat_map(|row| {
                            let from = row * COLUMNS + extent.offset[1];
                            whole[from as usize..(from + extent.shape[1]) as usize].to_vec()
                        })
                        .collect();
                    let bytes = restored[0].bytes.as_slice().expect("plain memory");
                    assert!(bytes == expected, "{name} {extent}");
                }
            }
        }
    }
    assert_eq!(archive.objects_of(0)["rank"], json!(0));
    assert_eq!(archive.objects_of(2)["rank"], json!(2));
    assert_eq!(
        archive.objects_of(7)["rank"],
        json!(0),
        "a rank that did not save"
    );
}

#[test]
fn given_a_rank_that_never_comes_the_others_fail_in_time_and_nothing_is_published() {
    let folder = folder();
    let settings = SaverSettings {
        patience: Duration::from_millis(600),
        ..SaverSettings::default()
    };
    let results = together(
        folder.path(),
        3,
        &settings,
        |rank| sharded(rank, 3),
        |rank| rank != 1,
    );
    let code = |rank: usize| match &results[rank] {
        Some(Err(error)) => error.code().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(0), "ranks-missing");
    assert!(["leader-gone", "not-published"].contains(&code(2).as_str()));
    let error = results[0]
        .as_ref()
        .expect("took part")
        .as_ref()
        .expect_err("failed");
    assert!(error.to_string().contains("within 0.6 s: 1"), "{error}");
    assert_eq!(names(folder.path()), [".crowfly-lock"]);

    let results = together(
        folder.path(),
        2,
        &settings,
        |rank| sharded(rank, 2),
        |rank| rank == 1,
    );
    assert!(matches!(&results[1], Some(Err(error)) if error.code() == "no-leader"));
}

/// How the save of one rank ends that hears at once that others are lost.
fn hurried(root: &Path, rank: u32, world: u32) -> Result<SaveReceipt, SaveError> {
    let began = Instant::now();
    let slice = RankSlice::new(rank, world).expect("a rank");
    let settings = SaverSettings::default();
    let patience = settings.patience;
    let mut saver = Saver::new(root, slice, settings).expect("a saver");
    let pending = saver.save_async(7, &State::default()).expect("it is begun");
    pending.hurry();
    let ended = pending.wait();
    assert!(began.elapsed() < patience / 10, "{:?}", began.elapsed());
    ended
}

#[test]
fn given_ranks_that_are_known_to_be_lost_the_others_do_not_wait_for_them_and_alone_one_publishes() {
    let folder = folder();
    let ended = |rank, world| hurried(folder.path(), rank, world).expect_err("one is missing");
    assert_eq!(ended(1, 2).code(), "no-leader");
    let error = ended(0, 3);
    assert_eq!(error.code(), "ranks-missing");
    assert!(!error.to_string().contains("600 s"), "{error}");
    assert_eq!(names(folder.path()), [".crowfly-lock"]);
    hurried(folder.path(), 0, 1).expect("nothing is missing");
    assert_eq!(names(folder.path()), [".crowfly-lock", "step-7"]);
}

#[test]
fn given_ranks_that_do_not_fit_together_the_tensor_is_named_and_nothing_is_published() {
    let folder = folder();
    let settings = SaverSettings {
        patience: Duration::from_secs(10),
        ..SaverSettings::default()
    };
    let codes = |change: &(dyn Fn(u32, &mut Vec<Sharded>) + Sync)| {
        let state_of = |rank| {
            let mut parts = sharded(rank, 2);
            change(rank, &mut parts);
            parts
        };
        let results = together(folder.path(), 2, &settings, state_of, |_| true);
        let failed: Vec<(String, String)> = results
            .into_iter()
            .map(|result| result.expect("took part").expect_err("fails"))
            .map(|error| (error.code().to_owned(), error.to_string()))
            .collect();
        assert_eq!(names(folder.path()), [".crowfly-lock"]);
        assert_eq!(failed[1].0, "leader-gone");
        failed[0].clone()
    };
    let (code, message) = codes(&|rank, parts| {
        if rank == 1 {
            parts[1].1 = vec![ROWS, COLUMNS + 10];
        }
    });
    assert_eq!(code, "ranks-disagree");
    assert!(message.contains("\"columns\""), "{message}");
    let (code, message) = codes(&|_, parts| parts[2].5 = false);
    assert_eq!(code, "ranks-disagree");
    assert!(
        message.contains("\"shared\"") && message.contains("replicated"),
        "{message}"
    );
    let (code, message) = codes(&|rank, parts| {
        if rank == 1 {
            parts.remove(0);
        }
    });
    assert_eq!(code, "parts-incomplete");
    assert!(message.contains("\"rows\" hold 60 of its 120"), "{message}");
}

#[test]
fn given_a_state_that_contradicts_itself_the_tensor_is_named_before_anything_is_written() {
    let folder = folder();
    let mut saver = saver(&folder.path().join("run"), SaverSettings::default());
    let bytes = [0; 24];
    let good = TensorPart::whole("w", Dtype::F32, &[2, 3], &bytes);
    let bad = [
        TensorPart {
            bytes: &bytes[..20],
            ..good
        },
        TensorPart {
            shape: &[2, 4],
            ..good
        },
        TensorPart {
            offset: &[1, 0],
            ..good
        },
        TensorPart {
            offset: &[0],
            ..good
        },
    ];
    for part in bad {
        let state = State {
            tensors: vec![part],
            ..State::default()
        };
        let error = saver.save(1, &state).expect_err("refused");
        assert_eq!(error.code(), "bad-tensor");
        assert!(error.to_string().contains("\"w\""), "{error}");
    }
    let twice = State {
        tensors: vec![good, good],
        ..State::default()
    };
    assert_eq!(
        saver.save(1, &twice).expect_err("twice").code(),
        "bad-tensor"
    );
    let named = TensorPart {
        name: "../w",
        ..good
    };
    let state = State {
        tensors: vec![named],
        ..State::default()
    };
    assert_eq!(
        saver.save(1, &state).expect_err("a path").code(),
        "path-like-name"
    );
    assert!(!folder.path().join("run").exists());
}
