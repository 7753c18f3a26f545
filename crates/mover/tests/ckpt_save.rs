//! Saving and restoring on real files: what was saved comes back, by whichever ranks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::checkpoint::select::RankSlice;
use crowfly_mover::ckpt::{
    Archive, Change, Distance, Extent, Format, RestoreOptions, Retention, SLAB, SaveError,
    SaveReceipt, Saver, SaverSettings, State, TensorPart, Want, diff, latest, list, prune,
    step_folder,
};
use crowfly_route::units::Bytes;
use serde_json::json;

#[path = "ckpt_support/state.rs"]
mod support;

use support::{alone, assert_holds, model, owned, pattern, restore, state};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn saver(root: &Path, settings: SaverSettings) -> Saver {
    Saver::new(root, alone(), settings).expect("a saver")
}

#[test]
fn given_a_state_what_is_saved_is_what_is_restored_and_the_latest_is_found_by_looking() {
    let folder = folder();
    let root = folder.path().join("run");
    let mut saver = saver(&root, SaverSettings::default());
    let first = model(10);
    let receipt = saver.save(10, &state(&first)).expect("saved");
    assert_eq!(receipt.path, root.join("step-10"));
    assert!(receipt.receipt.is_whole());
    assert_eq!(receipt.receipt.requested, receipt.file_bytes);
    let bytes: usize = first.iter().map(|t| t.bytes.len()).sum();
    assert_eq!(receipt.tensor_bytes, Bytes(bytes as u64));
    assert!(
        receipt
            .restore
            .is_some_and(|cost| cost.bytes == receipt.file_bytes)
    );
    let second = model(20);
    saver.save(20, &state(&second)).expect("saved");

    assert_eq!(latest(&root).expect("listed"), Some(20));
    assert_holds(&Archive::open(&root).expect("opens"), &second);
    let earlier = Archive::open_step(&root, 10).expect("opens");
    assert!(matches!(
        earlier.format(),
        Format::Step {
            step: 10,
            world: 1,
            ..
        }
    ));
    assert_holds(&earlier, &first);
}

#[test]
fn given_a_step_each_file_is_read_by_the_plain_safetensors_reader() {
    let folder = folder();
    let tensors = model(1);
    saver(folder.path(), SaverSettings::default())
        .save(1, &state(&tensors))
        .expect("saved");
    let file = folder.path().join("step-1/rank-00000-of-00001.safetensors");
    let bytes = fs::read(file).expect("read");
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    for tensor in &tensors {
        let view = read.tensor(&tensor.name).expect("there");
        assert!(view.data() == tensor.bytes);
    }
}

#[test]
fn given_more_tensors_than_staging_the_caller_waits_and_nothing_is_lost() {
    let folder = folder();
    let large = owned("large", Dtype::U8, &[3 * SLAB + 12_345], 7);
    let settings = SaverSettings {
        staging: Bytes(SLAB),
        ..SaverSettings::default()
    };
    let mut saver = saver(folder.path(), settings);
    for step in [1, 2] {
        let pending = saver
            .save_async(step, &state(std::slice::from_ref(&large)))
            .expect("staged");
        let receipt = pending.wait().expect("saved");
        assert!(receipt.stall_seconds <= receipt.background_seconds);
    }
    assert_holds(&Archive::open(folder.path()).expect("opens"), &[large]);
}

#[test]
fn given_a_save_in_the_background_the_tensors_may_change_at_once() {
    let folder = folder();
    let mut saver = saver(folder.path(), SaverSettings::default());
    let mut tensors = model(3);
    let pending = saver.save_async(3, &state(&tensors)).expect("staged");
    for tensor in &mut tensors {
        tensor.bytes.fill(0xee);
    }
    pending.wait().expect("saved");
    assert_holds(&Archive::open(folder.path()).expect("opens"), &model(3));
}

#[test]
fn given_nobody_who_waits_the_save_still_ends_and_its_error_comes_out_of_the_next() {
    let folder = folder();
    let tensors = model(1);
    {
        let mut saver = saver(folder.path(), SaverSettings::default());
        drop(saver.save_async(1, &state(&tensors)).expect("staged"));
    }
    assert_holds(&Archive::open(folder.path()).expect("opens"), &tensors);

    let mut saver = saver(folder.path(), SaverSettings::default());
    drop(saver.save_async(1, &state(&tensors)).expect("staged"));
    let error = saver.save(2, &state(&tensors)).expect_err("step 1 exists");
    assert!(
        matches!(error, SaveError::Earlier { step: 1, .. }),
        "{error}"
    );
    assert_eq!(error.code(), "step-exists");
    saver.save(2, &state(&tensors)).expect("told once");
}

#[test]
fn given_a_step_that_exists_it_is_replaced_only_when_that_is_allowed() {
    let folder = folder();
    saver(folder.path(), SaverSettings::default())
        .save(5, &state(&model(5)))
        .expect("saved");
    let error = saver(folder.path(), SaverSettings::default())
        .save(5, &state(&model(6)))
        .expect_err("exists");
    assert_eq!(error.code(), "step-exists");
    assert_holds(&Archive::open(folder.path()).expect("opens"), &model(5));
    let replacing = SaverSettings {
        replace: true,
        ..SaverSettings::default()
    };
    saver(folder.path(), replacing)
        .save(5, &state(&model(6)))
        .expect("replaced");
    assert_holds(&Archive::open(folder.path()).expect("opens"), &model(6));
    assert_eq!(names(folder.path()), [".crowfly-lock", "step-5"]);
}

/// Everything in a folder.
fn names(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).expect("listed");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

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

/// Saves one step and gives its folder and only file.
fn saved(root: &Path) -> (PathBuf, PathBuf) {
    saver(root, SaverSettings::default())
        .save(1, &state(&model(1)))
        .expect("saved");
    let step = step_folder(root, 1);
    let file = step.join("rank-00000-of-00001.safetensors");
    (step, file)
}

#[test]
fn given_one_flipped_bit_restoring_names_the_tensor_and_verifying_names_only_it() {
    use std::os::unix::fs::FileExt;
    let folder = folder();
    let (_, path) = saved(folder.path());
    let archive = Archive::open(folder.path()).expect("opens");
    let tensor = archive.get("layers.0.weight").expect("there");
    let at = tensor.parts[0].range.end - 1;
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");

    let engine = Engine::default();
    let options = RestoreOptions::default();
    let reading = archive
        .restore(&engine, &archive.everything(), options.clone())
        .expect("starts");
    let error = reading.wait().expect_err("damaged");
    assert_eq!(error.code(), "data-differs");
    let message = error.to_string();
    assert!(
        message.contains("\"layers.0.weight\"") && message.contains("rank-00000"),
        "{message}"
    );

    let verdict = archive
        .verify(&engine, options.policy)
        .expect("starts")
        .verdict()
        .expect("read");
    assert_eq!(verdict.faults.len(), 1);
    assert!(
        verdict.faults[0]
            .to_string()
            .contains("\"layers.0.weight\"")
    );
    assert!(verdict.checked < archive.bytes());

    // What does not touch the damaged block is still to be had.
    let wants = [
        Want::whole("layers.0.bias"),
        Want::part(
            "layers.0.weight",
            Extent {
                offset: vec![0, 0],
                shape: vec![3, 801],
            },
        ),
    ];
    let tensors = model(1);
    let restored = restore(&archive, &wants);
    assert!(restored[0].bytes.as_slice().expect("plain") == tensors[2].bytes);
    assert!(restored[1].bytes.as_slice().expect("plain") == &tensors[1].bytes[..3 * 801 * 4]);
    let unchecked = RestoreOptions {
        check: false,
        ..options
    };
    let reading = archive
        .restore(&engine, &archive.everything(), unchecked)
        .expect("starts");
    let unchecked = reading.wait().expect("nobody asked");
    assert_eq!(
        (unchecked.checked, unchecked.unchecked),
        (Bytes(0), archive.bytes())
    );
}

#[test]
fn given_a_slice_only_its_own_bytes_are_read() {
    let folder = folder();
    let wide = owned("wide", Dtype::U8, &[64, 1 << 17], 3);
    saver(folder.path(), SaverSettings::default())
        .save(1, &state(std::slice::from_ref(&wide)))
        .expect("saved");
    let archive = Archive::open(folder.path()).expect("opens");
    let engine = Engine::default();
    let read = |dim, check| {
        let want = archive.chunk("wide", dim, 1, 8).expect("a part");
        let options = RestoreOptions {
            check,
            ..RestoreOptions::default()
        };
        let reading = archive.restore(&engine, &[want], options).expect("starts");
        reading
            .wait()
            .expect("restored")
            .receipt
            .expect("bytes moved")
            .requested
            .0
    };
    let (whole, part) = (8 << 20, 1 << 20);
    assert_eq!(read(0, false), part);
    assert_eq!(read(1, false), part);
    // Checksums need whole blocks: those that the rows touch, or all.
    assert!(read(0, true) <= part + 2 * (2 << 20));
    assert!((whole - (2 << 20)..=whole).contains(&read(1, true)));
}

#[test]
fn given_a_step_that_is_cut_or_lacks_a_file_it_is_passed_over_and_refused_by_name() {
    let folder = folder();
    let root = folder.path();
    let mut saver = saver(root, SaverSettings::default());
    for step in [1, 2, 3, 4] {
        saver.save(step, &state(&model(step))).expect("saved");
    }
    let file = |step| step_folder(root, step).join("rank-00000-of-00001.safetensors");
    let cut = fs::OpenOptions::new()
        .write(true)
        .open(file(4))
        .expect("opens");
    cut.set_len(100).expect("cut");
    fs::remove_file(file(3)).expect("removed");
    fs::write(
        step_folder(root, 2).join("manifest.json"),
        b"{\"schema\":\"crowfly.checkpoint/9\"}",
    )
    .expect("written");
    let code = |step| Archive::open_step(root, step).expect_err("damaged").code();
    assert_eq!(
        [code(4), code(3), code(2)],
        ["file-length", "missing-file", "manifest-schema"]
    );
    let message = Archive::open_step(root, 4)
        .expect_err("damaged")
        .to_string();
    assert!(message.contains("\"embed.weight\""), "{message}");
    assert_eq!(latest(root).expect("listed"), Some(1));
    assert_holds(&Archive::open(root).expect("opens"), &model(1));
    assert_eq!(code(9), "no-such-step");

    let pruned = prune(
        root,
        Retention {
            keep: 1,
            keep_every: None,
        },
        false,
        Duration::from_secs(5),
    )
    .expect("pruned");
    assert_eq!((pruned.kept, pruned.damaged), (vec![1], vec![2, 3, 4]));
}

#[test]
fn given_a_reader_pruning_leaves_it_its_step_and_goes_on_without_it() {
    let folder = folder();
    let root = folder.path();
    let settings = SaverSettings {
        retention: Some(Retention {
            keep: 2,
            keep_every: Some(10),
        }),
        ..SaverSettings::default()
    };
    let mut saver = saver(root, settings);
    for step in [9, 10, 11, 12] {
        saver.save(step, &state(&model(step))).expect("saved");
    }
    assert_eq!(
        names(root),
        [".crowfly-lock", "step-10", "step-11", "step-12"]
    );
    let reading = Archive::open_step(root, 11).expect("opens");
    let receipt = saver.save(13, &state(&model(13))).expect("saved");
    assert_eq!(receipt.pruned, Vec::<u64>::new(), "11 is being read");
    assert_holds(&reading, &model(11));
    drop(reading);
    let keep = Retention {
        keep: 1,
        keep_every: None,
    };
    let soon = Duration::from_secs(5);
    let dry = prune(root, keep, true, soon).expect("said");
    assert_eq!(dry.removed, [10, 11, 12]);
    assert_eq!(list(root).expect("listed").steps.len(), 4);
    assert_eq!(prune(root, keep, false, soon).expect("pruned"), dry);
    assert_eq!(names(root), [".crowfly-lock", "step-13"]);
}

#[test]
fn given_two_steps_what_was_added_removed_reshaped_and_changed_is_told_with_how_far_it_is_apart() {
    let folder = folder();
    let floats = |values: &[f32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let halves = |bits: &[u16]| {
        bits.iter()
            .flat_map(|b| b.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let (one, two) = (
        floats(&[1.0, 2.0, 3.0, f32::NAN]),
        floats(&[1.0, 5.0, -1.0, 0.0]),
    );
    // 1, 2 and 4 in bfloat16; 1, 2 and 4.5.
    let (b1, b2) = (
        halves(&[0x3f80, 0x4000, 0x4080]),
        halves(&[0x3f80, 0x4000, 0x4090]),
    );
    let whole = |name, dtype, shape, bytes| TensorPart::whole(name, dtype, shape, bytes);
    let before = State {
        tensors: vec![
            whole("float", Dtype::F32, &[4], &one),
            whole("half", Dtype::BF16, &[3], &b1),
            whole("gone", Dtype::F32, &[4], &one),
            whole("shape", Dtype::F32, &[4], &one),
            whole("same", Dtype::F32, &[2, 2], &one),
        ],
        ..State::default()
    };
    let after = State {
        tensors: vec![
            whole("float", Dtype::F32, &[4], &two),
            whole("half", Dtype::BF16, &[3], &b2),
            whole("new", Dtype::F32, &[4], &one),
            whole("shape", Dtype::F32, &[2, 2], &one),
            whole("same", Dtype::F32, &[2, 2], &one),
        ],
        ..State::default()
    };
    let mut saver = saver(folder.path(), SaverSettings::default());
    saver.save(1, &before).expect("saved");
    saver.save(2, &after).expect("saved");
    let open = |step| Archive::open_step(folder.path(), step).expect("opens");
    let found = diff(&open(1), &open(2), &Engine::default(), |_| ()).expect("compared");
    let distance = |differing, elements, max_abs, l2: f64, not_finite| {
        Change::Changed(Distance {
            differing,
            elements,
            max_abs: Some(max_abs),
            l2: Some(l2),
            not_finite,
        })
    };
    let expected = [
        ("float", distance(3, 4, 4.0, 5.0, 1)),
        ("gone", Change::Removed),
        ("half", distance(1, 3, 0.5, 0.5, 0)),
        ("new", Change::Added),
        (
            "shape",
            Change::Reshaped {
                before: (Dtype::F32, vec![4]),
                after: (Dtype::F32, vec![2, 2]),
            },
        ),
    ];
    assert_eq!(
        found.tensors,
        expected.map(|(name, change)| (name.to_owned(), change))
    );
    assert_eq!((found.same, found.compared), (1, Bytes(16 + 6 + 16)));
}

#[test]
fn given_a_header_that_says_otherwise_than_the_manifest_the_tensor_is_named() {
    let folder = folder();
    let (_, path) = saved(folder.path());
    let archive = Archive::open(folder.path()).expect("opens");
    assert!(archive.headers_that_differ().expect("read").is_empty());
    let mut bytes = fs::read(&path).expect("read");
    let name = b"layers.0.bias";
    let at = bytes
        .windows(name.len())
        .position(|window| window == name)
        .expect("in the header");
    bytes[at..at + name.len()].copy_from_slice(b"layers.0.bike");
    fs::write(&path, bytes).expect("written");
    let faults = archive.headers_that_differ().expect("read");
    let codes: Vec<&str> = faults.iter().map(|fault| fault.code()).collect();
    assert_eq!(codes, ["header-differs"]);
    assert!(faults[0].to_string().contains("\"layers.0.bias\""));
}

#[test]
fn given_a_full_or_forbidden_place_the_error_says_so_and_the_last_checkpoint_stays() {
    let folder = folder();
    let error = saver(Path::new("/proc/crowfly"), SaverSettings::default())
        .save(1, &state(&model(1)))
        .expect_err("no such place");
    assert!(["io-failed", "denied"].contains(&error.code()), "{error}");
    let blocked = folder.path().join("file");
    fs::write(&blocked, b"").expect("written");
    let error = saver(&blocked, SaverSettings::default())
        .save(1, &state(&model(1)))
        .expect_err("a file is in the way");
    assert_eq!(error.code(), "io-failed");
    fs::create_dir(folder.path().join("step-1")).expect("made");
    let error = saver(folder.path(), SaverSettings::default())
        .save(1, &state(&model(1)))
        .expect_err("somebody else's folder");
    assert_eq!(error.code(), "step-occupied");
    let impossible = SaverSettings {
        staging: Bytes(1),
        ..SaverSettings::default()
    };
    assert!(matches!(
        Saver::new(folder.path(), alone(), impossible),
        Err(SaveError::BudgetTooSmall { .. })
    ));
}
