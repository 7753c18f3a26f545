//! What is kept: verified, read in parts, compared, pruned, and refused where it is damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::ckpt::{
    Archive, Change, Distance, Extent, RestoreOptions, Retention, SaverSettings, State, TensorPart,
    Want, diff, latest, list, prune, step_folder,
};
use crowfly_route::units::Bytes;

use crate::support::{assert_holds, model, owned, restore, state};
use crate::{folder, names, saver};

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
