//! Distributed checkpoints that PyTorch 2.15 wrote: every tensor comes out, and nothing is executed.
//!
//! The fixtures were written by `fixtures/dcp/make.py`, in which every tensor counts up from a number
//! of its own.

use std::fs;
use std::path::{Path, PathBuf};

use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::ckpt::{Archive, Extent, Format, RestoreOptions, Want};
use serde_json::json;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/dcp")
        .join(name)
}

fn bytes(archive: &Archive, want: Want) -> (Dtype, Vec<u64>, Vec<u8>) {
    let reading = archive.restore(&Engine::default(), &[want], RestoreOptions::default());
    let restored = reading
        .expect("starts")
        .wait()
        .expect("restored")
        .tensors
        .remove(0);
    let bytes = restored.bytes.as_slice().expect("plain memory").to_vec();
    (restored.dtype, restored.extent.shape, bytes)
}

fn f32s(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let values = values.into_iter();
    values.flat_map(|v| (v as f32).to_le_bytes()).collect()
}

#[test]
fn given_a_checkpoint_of_one_process_every_tensor_and_every_plain_value_comes_out() {
    let archive = Archive::open(fixture("plain")).expect("opens");
    assert_eq!(*archive.format(), Format::Distributed);
    let names: Vec<&str> = archive.tensors().map(|(name, _)| name).collect();
    let expected = [
        "bias", "empty", "flags", "scalar", "turned", "view", "weight",
    ];
    assert_eq!(names, expected.map(|name| format!("model.{name}")));
    let get = |name: &str| bytes(&archive, Want::whole(format!("model.{name}")));
    assert_eq!(get("weight"), (Dtype::F32, vec![4, 6], f32s(0..24)));
    let halves =
        (10..16).flat_map(|v: u32| ((v as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec());
    assert_eq!(get("bias"), (Dtype::BF16, vec![6], halves.collect()));
    assert_eq!(
        get("scalar"),
        (Dtype::I64, vec![], 7i64.to_le_bytes().to_vec())
    );
    assert_eq!(get("empty"), (Dtype::F16, vec![0, 3], vec![]));
    assert_eq!(get("flags"), (Dtype::Bool, vec![3], vec![1, 0, 1]));
    let view = (30..40).flat_map(|v: i32| v.to_le_bytes()).collect();
    assert_eq!(get("view"), (Dtype::I32, vec![10], view));
    assert_eq!(archive.objects()["step"], json!(12));
    assert_eq!(archive.objects()["name"], json!("run"));
    assert_eq!(archive.objects()["schedule.warm"], json!(null));
    assert_eq!(archive.notes(), [""; 0]);
    let path = |name: &str| serde_json::Value::from(archive.paths()[name].clone());
    assert_eq!(path("model.weight"), json!(["model", "weight"]));
    assert_eq!(path("schedule.warm"), json!(["schedule", "warm"]));
    assert_eq!(path("step"), json!(["step"]));
}

#[test]
fn given_a_tensor_that_was_saved_transposed_its_elements_come_out_in_order() {
    let archive = Archive::open(fixture("plain")).expect("opens");
    // Counts from 20 in three rows of four, then turned.
    let at = |row: u32, column: u32| 20 + column * 4 + row;
    let all = (0..4).flat_map(|row| (0..3).map(move |column| at(row, column)));
    let whole = bytes(&archive, Want::whole("model.turned"));
    assert_eq!(whole, (Dtype::F32, vec![4, 3], f32s(all)));
    let part = Extent {
        offset: vec![1, 1],
        shape: vec![2, 2],
    };
    let some = [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(row, column)| at(row, column));
    let part = bytes(&archive, Want::part("model.turned", part));
    assert_eq!(part, (Dtype::F32, vec![2, 2], f32s(some)));
}

#[test]
fn given_a_checkpoint_of_two_ranks_its_shards_are_put_together_or_cut_anew() {
    let archive = Archive::open(fixture("sharded")).expect("opens");
    assert_eq!(archive.files().len(), 2);
    assert_eq!(archive.get("rows").expect("there").parts.len(), 2);
    let rows = bytes(&archive, Want::whole("rows"));
    assert_eq!(rows, (Dtype::F32, vec![5, 4], f32s(100..120)));
    let columns = bytes(&archive, Want::whole("columns"));
    assert_eq!(columns, (Dtype::F32, vec![4, 6], f32s(200..224)));
    let both = (300..303)
        .flat_map(|v| f64::from(v).to_le_bytes())
        .collect();
    assert_eq!(
        bytes(&archive, Want::whole("both")),
        (Dtype::F64, vec![3], both)
    );
    let third = archive.chunk("columns", 0, 1, 3).expect("a part");
    assert_eq!(
        bytes(&archive, third),
        (Dtype::F32, vec![2, 6], f32s(212..224))
    );
}

/// A copy of a fixture that may be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    for entry in fs::read_dir(fixture(name)).expect("listed") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    folder
}

fn replace(path: &Path, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len(), "pickles count their bytes");
    let mut bytes = fs::read(path).expect("read");
    let at = bytes.windows(from.len()).position(|window| window == from);
    let at = at.expect("it is in the file");
    bytes[at..at + to.len()].copy_from_slice(to);
    fs::write(path, bytes).expect("written");
}

fn refusal(folder: &Path) -> (&'static str, String) {
    let error = Archive::open(folder).expect_err("refused");
    (error.code(), error.to_string())
}

#[test]
fn given_a_pickle_that_would_call_something_it_is_refused_by_name_and_nothing_is_called() {
    let folder = copy("plain");
    let proof = folder.path().join("called");
    let attack = format!("cos\nsystem\n(X\x20\0\0\0{:32}tR.", "touch called");
    fs::write(folder.path().join(".metadata"), attack).expect("written");
    let (code, message) = refusal(folder.path());
    assert_eq!(code, "pickle-forbidden");
    assert!(message.contains("\"os\".\"system\""), "{message}");
    assert!(!proof.exists());
    // The pickles of the items are read as little.
    let folder = copy("plain");
    let item = folder.path().join("__0_0.distcp");
    replace(
        &item,
        b"torch._utils\n_rebuild_tensor_v2",
        b"torch._utilz\n_rebuild_tensor_v2",
    );
    let (code, message) = refusal(folder.path());
    assert_eq!(code, "dcp-item");
    assert!(message.contains("torch._utilz"), "{message}");
}

#[test]
fn given_damage_the_item_and_the_file_are_named() {
    let folder = copy("plain");
    fs::remove_file(folder.path().join("__0_0.distcp")).expect("removed");
    let (code, message) = refusal(folder.path());
    assert_eq!(code, "missing-file");
    assert!(
        message.contains("__0_0.distcp") && message.contains("\"model."),
        "{message}"
    );

    let folder = copy("plain");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(folder.path().join("__0_0.distcp"));
    file.expect("opens").set_len(3000).expect("cut");
    assert_eq!(refusal(folder.path()).0, "dcp-past-end");

    let folder = copy("plain");
    replace(
        &folder.path().join(".metadata"),
        b"__0_0.distcp",
        b"../_0.distcp",
    );
    assert_eq!(refusal(folder.path()).0, "dcp-file-name");

    let folder = copy("plain");
    replace(
        &folder.path().join("__0_0.distcp"),
        b"IntStorage",
        b"FooStorage",
    );
    let (code, message) = refusal(folder.path());
    assert_eq!(
        (code, message.contains("\"model.view\"")),
        ("dcp-item", true),
        "{message}"
    );

    let folder = copy("sharded");
    replace(&folder.path().join(".metadata"), b"float64", b"float99");
    assert_eq!(refusal(folder.path()).0, "pickle-forbidden");
}

#[test]
fn given_any_byte_changed_the_answer_is_a_checkpoint_or_an_error() {
    let folder = copy("sharded");
    let path = folder.path().join(".metadata");
    let good = fs::read(&path).expect("read");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        fs::write(&path, &bad).expect("written");
        let _ = Archive::open(folder.path());
        fs::write(&path, &good[..at]).expect("written");
        assert!(Archive::open(folder.path()).is_err(), "cut at {at}");
    }
}
