//! Which paths open as which checkpoints, and which are refused for what.

#[path = "checkpoint_support/files.rs"]
mod files;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crowfly_mover::checkpoint::index::TotalSize;
use crowfly_mover::checkpoint::{
    Checkpoint, CheckpointError, Kind, NamedBy, NotAFile, Note, OtherFormat, Stamp,
};
use crowfly_route::units::Bytes;
use files::write_shard;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().map(|(_, t)| t.name).collect()
}

fn file_names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint
        .files()
        .iter()
        .map(|f| f.path().file_name().unwrap().to_str().unwrap())
        .collect()
}

/// Writes `model.safetensors.index.json` with this map and total, and returns its path.
fn write_index(folder: &Path, total_size: &str, map: &[(&str, &str)]) -> PathBuf {
    let map: Vec<_> = map
        .iter()
        .map(|(tensor, file)| format!("{tensor:?}:{file:?}"))
        .collect();
    let text = format!(
        r#"{{"metadata":{{"total_size":{total_size}}},"weight_map":{{{}}}}}"#,
        map.join(",")
    );
    let path = folder.join("model.safetensors.index.json");
    fs::write(&path, text).unwrap();
    path
}

#[track_caller]
fn refused(path: impl AsRef<Path>) -> CheckpointError {
    Checkpoint::open(path).expect_err("the checkpoint must be refused")
}

/// Two shards with an index, three tensors of 4, 2 and 6 bytes.
fn sharded(folder: &Path) {
    write_shard(folder, "m-1-of-2.safetensors", &[("a", 4), ("b", 2)]);
    write_shard(folder, "m-2-of-2.safetensors", &[("c", 6)]);
    write_index(
        folder,
        "12",
        &[
            ("c", "m-2-of-2.safetensors"),
            ("a", "m-1-of-2.safetensors"),
            ("b", "m-1-of-2.safetensors"),
        ],
    );
}

// ---- what opens ----------------------------------------------------------------------------

#[test]
fn a_safetensors_file_opens_by_its_header() {
    let folder = folder();
    let path = write_shard(folder.path(), "one.safetensors", &[("w", 5), ("v", 3)]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(*checkpoint.kind(), Kind::SingleFile);
    assert_eq!(names(&checkpoint), ["w", "v"]);
    assert_eq!(checkpoint.bytes(), Bytes(8));
    assert_eq!(checkpoint.tensor_count(), 2);

    let (id, tensor) = checkpoint.get("v").unwrap();
    assert_eq!((id.file.0, id.number), (0, 1));
    let file = checkpoint.file(id.file).unwrap();
    assert_eq!(tensor.range.end, file.stamp().len);
    assert_eq!(
        file.stamp(),
        Stamp::of(&fs::File::open(&path).unwrap()).unwrap()
    );
}

#[test]
fn a_file_that_changes_afterwards_has_another_stamp() {
    let folder = folder();
    let path = write_shard(folder.path(), "one.safetensors", &[("w", 5)]);
    let before = Checkpoint::open(&path).unwrap().files()[0].stamp();
    let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(before.len - 1).unwrap();
    let after = Stamp::of(&file).unwrap();
    assert_ne!(after, before);
    assert_eq!(after.len, before.len - 1);
    assert_eq!(refused(&path).code(), "data-past-end");
}

#[test]
fn any_other_file_opens_as_raw_bytes() {
    let folder = folder();
    let path = folder.path().join("weights.bin");
    fs::write(&path, [1; 10]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(*checkpoint.kind(), Kind::Raw);
    assert_eq!(checkpoint.bytes(), Bytes(10));
    assert_eq!(checkpoint.files()[0].data(), 0..10);
    assert_eq!(checkpoint.tensor_count(), 0);

    let empty = folder.path().join("empty");
    fs::write(&empty, []).unwrap();
    assert_eq!(Checkpoint::open(&empty).unwrap().bytes(), Bytes(0));
}

#[test]
fn a_folder_opens_by_its_index_and_lists_files_by_name() {
    let folder = folder();
    sharded(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    assert_eq!(*checkpoint.kind(), Kind::Indexed { index });
    assert_eq!(
        file_names(&checkpoint),
        ["m-1-of-2.safetensors", "m-2-of-2.safetensors"]
    );
    assert_eq!(names(&checkpoint), ["a", "b", "c"]);
    assert_eq!(checkpoint.bytes(), Bytes(12));
    assert_eq!(checkpoint.notes(), []);
}

#[test]
fn an_index_may_be_named_itself() {
    let folder = folder();
    sharded(folder.path());
    let index = folder.path().join("model.safetensors.index.json");
    let checkpoint = Checkpoint::open(&index).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b", "c"]);
}

#[test]
fn the_only_index_counts_whatever_its_name_and_of_several_the_usual_one() {
    let folder = folder();
    sharded(folder.path());
    let usual = folder.path().join("model.safetensors.index.json");
    let other = folder.path().join("diffusion.safetensors.index.json");
    fs::copy(&usual, &other).unwrap();
    let kind = || Checkpoint::open(folder.path()).unwrap().kind().clone();
    assert_eq!(
        kind(),
        Kind::Indexed {
            index: usual.clone()
        }
    );
    fs::remove_file(&usual).unwrap();
    assert_eq!(
        kind(),
        Kind::Indexed {
            index: other.clone()
        }
    );
    fs::copy(&other, folder.path().join("vae.safetensors.index.json")).unwrap();
    let error = refused(folder.path());
    assert_eq!(error.code(), "several-indexes");
    assert!(error.to_string().ends_with(
        r#"several indexes: "diffusion.safetensors.index.json", "vae.safetensors.index.json""#
    ));
}

#[test]
fn a_folder_without_index_opens_all_its_files_but_hidden_ones() {
    let folder = folder();
    write_shard(folder.path(), "b.safetensors", &[("y", 1)]);
    write_shard(folder.path(), "a.safetensors", &[("x", 2)]);
    fs::write(folder.path().join("._a.safetensors"), b"resource fork").unwrap();
    fs::write(folder.path().join("config.json"), b"{}").unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(*checkpoint.kind(), Kind::Folder);
    assert_eq!(names(&checkpoint), ["x", "y"]);
}

#[test]
fn symbolic_links_are_followed_even_out_of_the_folder() {
    let (blobs, snapshot) = (folder(), folder());
    let blob = write_shard(blobs.path(), "0a1b2c", &[("w", 3)]);
    symlink(&blob, snapshot.path().join("model.safetensors")).unwrap();
    assert_eq!(names(&Checkpoint::open(snapshot.path()).unwrap()), ["w"]);
    // By its own name the blob is not known to be safetensors.
    assert_eq!(*Checkpoint::open(&blob).unwrap().kind(), Kind::Raw);
}

// ---- notes ---------------------------------------------------------------------------------

#[test]
fn a_wrong_total_is_noted_and_not_refused() {
    let folder = folder();
    write_shard(folder.path(), "a.safetensors", &[("w", 3)]);
    write_index(folder.path(), "4", &[("w", "a.safetensors")]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(
        checkpoint.notes(),
        [Note::TotalSizeDiffers {
            said: TotalSize::Bytes(4),
            found: Bytes(3)
        }]
    );
    assert_eq!(
        checkpoint.notes()[0].to_string(),
        "the index says the tensors take 4 bytes; they take 3 bytes"
    );
}

#[test]
fn files_that_the_index_does_not_name_are_noted_and_not_loaded() {
    let folder = folder();
    sharded(folder.path());
    write_shard(folder.path(), "consolidated.safetensors", &[("a", 4)]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b", "c"]);
    assert_eq!(
        checkpoint.notes(),
        [Note::NotInIndex {
            files: vec!["consolidated.safetensors".into()]
        }]
    );
}

// ---- folders that do not hold together -----------------------------------------------------

#[test]
fn a_missing_shard_is_named_with_a_tensor_that_needs_it() {
    let folder = folder();
    sharded(folder.path());
    fs::remove_file(folder.path().join("m-2-of-2.safetensors")).unwrap();
    let error = refused(folder.path());
    assert_eq!(error.code(), "missing-shard");
    let CheckpointError::MissingShard {
        shard, named_by, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(shard, "m-2-of-2.safetensors".into());
    assert!(matches!(named_by, NamedBy::Index { tensor, .. } if tensor == "c".into()));
}

#[test]
fn without_an_index_a_gap_in_the_numbering_is_a_missing_shard() {
    let folder = folder();
    write_shard(folder.path(), "m-00001-of-00002.safetensors", &[("a", 1)]);
    let error = refused(folder.path());
    assert!(
        matches!(&error, CheckpointError::MissingShard { shard, named_by: NamedBy::Siblings, .. }
            if *shard == "m-00002-of-00002.safetensors".into()),
        "{error}"
    );
}

#[test]
fn a_tensor_that_the_index_misplaces_or_invents_is_refused() {
    let folder = folder();
    write_shard(folder.path(), "1.safetensors", &[("a", 1)]);
    write_shard(folder.path(), "2.safetensors", &[("b", 1)]);
    write_index(
        folder.path(),
        "2",
        &[
            ("a", "2.safetensors"),
            ("b", "2.safetensors"),
            ("a2", "1.safetensors"),
        ],
    );
    let error = refused(folder.path());
    assert_eq!(error.code(), "tensor-not-in-shard");
    assert!(error.to_string().ends_with(
        r#"places tensor "a" in "2.safetensors", which does not hold it ("1.safetensors" does)"#
    ));

    write_index(
        folder.path(),
        "2",
        &[
            ("a", "1.safetensors"),
            ("b", "2.safetensors"),
            ("c", "2.safetensors"),
        ],
    );
    let error = refused(folder.path());
    assert_eq!(error.code(), "tensor-not-in-shard");
    assert!(
        error
            .to_string()
            .ends_with(r#"places tensor "c" in "2.safetensors", which does not hold it"#)
    );
}

#[test]
fn a_tensor_that_the_index_does_not_list_is_refused() {
    let folder = folder();
    write_shard(folder.path(), "1.safetensors", &[("a", 1), ("b", 1)]);
    write_index(folder.path(), "2", &[("a", "1.safetensors")]);
    let error = refused(folder.path());
    assert_eq!(error.code(), "tensor-not-in-index");
    assert!(error.to_string().ends_with("does not list"), "{error}");
}

#[test]
fn a_tensor_held_twice_but_listed_once_is_refused() {
    let folder = folder();
    write_shard(folder.path(), "1.safetensors", &[("a", 1)]);
    write_shard(folder.path(), "2.safetensors", &[("a", 1), ("b", 1)]);
    write_index(
        folder.path(),
        "3",
        &[("a", "1.safetensors"), ("b", "2.safetensors")],
    );
    let error = refused(folder.path());
    assert_eq!(error.code(), "tensor-not-in-index");
    assert!(
        error.to_string().ends_with(r#"places in "1.safetensors""#),
        "{error}"
    );
}

#[test]
fn without_an_index_names_must_not_collide() {
    let folder = folder();
    write_shard(folder.path(), "1.safetensors", &[("a", 1)]);
    write_shard(folder.path(), "2.safetensors", &[("a", 1)]);
    assert_eq!(refused(folder.path()).code(), "tensor-in-two-files");
}

#[test]
fn a_folder_without_safetensors_says_what_it_holds_instead() {
    let folder = folder();
    assert!(matches!(
        refused(folder.path()),
        CheckpointError::NoSafetensors {
            other_format: None,
            ..
        }
    ));
    fs::write(folder.path().join("pytorch_model.bin"), b"").unwrap();
    let error = refused(folder.path());
    assert_eq!(error.code(), "no-safetensors");
    assert!(matches!(
        error,
        CheckpointError::NoSafetensors {
            other_format: Some(OtherFormat::PyTorch),
            ..
        }
    ));
}

#[test]
fn a_bad_header_or_index_is_refused_under_its_own_code_with_the_file() {
    let folder = folder();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, b"short").unwrap();
    let error = refused(folder.path());
    assert_eq!(error.code(), "too-short");
    assert_eq!(
        error.to_string(),
        format!("the header of {path:?} is refused")
    );
    assert!(error.hint().is_some());

    write_index(folder.path(), "1", &[("w", "../x.safetensors")]);
    assert_eq!(refused(folder.path()).code(), "index-shard-is-path");
}

// ---- paths that are no files ---------------------------------------------------------------

#[test]
fn nothing_and_a_link_to_nothing_are_told_apart() {
    let folder = folder();
    let path = folder.path().join("x.safetensors");
    assert_eq!(refused(&path).code(), "not-found");
    symlink("gone", &path).unwrap();
    assert_eq!(refused(&path).code(), "dangling-link");
    assert_eq!(refused(folder.path()).code(), "dangling-link");
}

#[track_caller]
fn assert_not_a_file(path: &Path, expected: NotAFile) {
    match refused(path) {
        CheckpointError::NotAFile { kind, .. } => assert_eq!(kind, expected),
        other => panic!("{other}"),
    }
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let folder = folder();
    for name in ["pipe", "pipe.safetensors", "pipe.safetensors.index.json"] {
        let path = folder.path().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_not_a_file(&path, NotAFile::Fifo);
    }
}

#[test]
fn a_fifo_or_folder_named_as_a_shard_is_refused() {
    let folder = folder();
    let path = folder.path().join("x.safetensors");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(refused(folder.path()).code(), "not-a-file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(refused(folder.path()).code(), "not-a-file");
}

#[test]
fn sockets_and_devices_are_refused() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_not_a_file(&socket, NotAFile::Socket);
    assert_not_a_file(Path::new("/dev/null"), NotAFile::CharacterDevice);
}

#[test]
fn a_file_that_may_not_be_read_is_denied_and_not_absent() {
    if rustix::process::geteuid().is_root() {
        crowfly_waive::waived!("root may read every file");
    }
    let folder = folder();
    let path = write_shard(folder.path(), "x.safetensors", &[("w", 1)]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    assert!(matches!(
        refused(&path),
        CheckpointError::Denied { action: "open", .. }
    ));
}
