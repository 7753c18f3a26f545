//! Saving and restoring on real files: what was saved comes back.

use std::fs;
use std::path::Path;

use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::ckpt::{Archive, Format, SLAB, SaveError, Saver, SaverSettings, latest};
use crowfly_route::units::Bytes;

use crate::support::{alone, assert_holds, model, owned, state};
use crate::{folder, names, saver};

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
