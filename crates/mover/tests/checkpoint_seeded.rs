//! Seeded checkpoints: what is written is what was planned, and a failure leaves nothing behind.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use crowfly_mover::checkpoint::seeded::{
    MAX_SEEDED, MAX_SEEDED_SHARDS, MIN_SEEDED, Progress, SeededCheckpoint, SeededError, WriteError,
};
use crowfly_mover::checkpoint::{Checkpoint, FileNumber, Kind};
use crowfly_route::units::Bytes;
use safetensors::SafeTensors;
use xxhash_rust::xxh3::xxh3_64;

fn onwards(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_written_checkpoint_opens_with_the_size_asked_for_and_nothing_to_note() {
    let folder = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(1, Bytes(3_000_001), 4).unwrap();
    assert_eq!(seeded.bytes(), Bytes(3_000_000));
    seeded.write(folder.path(), onwards).unwrap();
    assert_eq!(
        entries(folder.path()),
        [
            "model-00001-of-00004.safetensors",
            "model-00002-of-00004.safetensors",
            "model-00003-of-00004.safetensors",
            "model-00004-of-00004.safetensors",
            "model.safetensors.index.json",
        ]
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(matches!(checkpoint.kind(), Kind::Indexed { .. }));
    assert_eq!(checkpoint.bytes(), Bytes(3_000_000));
    assert_eq!(checkpoint.notes(), []);
    assert!(
        checkpoint
            .get("model.layers.3.mlp.down_proj.weight")
            .is_some()
    );
    for ((name, len), file) in seeded.files().zip(checkpoint.files()) {
        assert_eq!(file.path().file_name().unwrap(), name);
        assert_eq!(Bytes(file.stamp().len), len);
    }
    let files: Bytes = seeded.files().map(|(_, len)| len).sum();
    assert_eq!(seeded.file_bytes(), files);
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(1, MIN_SEEDED, 1).unwrap();
    seeded.write(folder.path(), onwards).unwrap();
    let bytes = fs::read(folder.path().join("model-00001-of-00001.safetensors")).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let ours = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(theirs.len(), ours.tensor_count());
}

#[test]
fn every_byte_on_disk_can_be_foretold() {
    let folder = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(42, Bytes::mib(3), 2).unwrap();
    seeded.write(folder.path(), onwards).unwrap();
    for (number, (name, len)) in (0..).map(FileNumber).zip(seeded.files()) {
        let bytes = fs::read(folder.path().join(name)).unwrap();
        let mut foretold = vec![0; len.0 as usize + 10];
        assert_eq!(seeded.fill(number, 0, &mut foretold) as u64, len.0);
        assert!(foretold[..bytes.len()] == bytes, "{name} differs");
        assert_eq!(
            seeded.expected_checksum(number, 0..len.0),
            Some(xxh3_64(&bytes))
        );
        // Ranges across the end of the header, unaligned, empty, and at the end of the file.
        let data = bytes.len() as u64 - 1_000_000;
        for range in [3..20_003, data..data + 7, 5..5, len.0 - 1..len.0] {
            let part = &bytes[range.start as usize..range.end as usize];
            assert_eq!(seeded.expected_checksum(number, range), Some(xxh3_64(part)));
        }
    }
}

#[test]
fn nothing_is_foretold_past_the_end_or_of_a_file_that_is_not_there() {
    let seeded = SeededCheckpoint::new(42, MIN_SEEDED, 1).unwrap();
    let len = seeded.file_bytes().0;
    let mut out = [9; 4];
    assert_eq!(seeded.fill(FileNumber(0), len, &mut out), 0);
    assert_eq!(seeded.fill(FileNumber(0), u64::MAX, &mut out), 0);
    assert_eq!(seeded.fill(FileNumber(1), 0, &mut out), 0);
    assert_eq!(out, [9; 4]);
    assert_eq!(seeded.fill(FileNumber(0), len - 1, &mut out), 1);
    assert_eq!(seeded.expected_checksum(FileNumber(0), 0..len + 1), None);
    assert_eq!(seeded.expected_checksum(FileNumber(1), 0..0), None);
    let reversed = std::ops::Range { start: 2, end: 1 };
    assert_eq!(seeded.expected_checksum(FileNumber(0), reversed), None);
}

#[test]
fn another_seed_or_another_file_holds_other_bytes() {
    let tail = |seed: u64, file: u32| {
        let seeded = SeededCheckpoint::new(seed, MIN_SEEDED, 2).unwrap();
        let mut out = [0; 16];
        let len = seeded.files().nth(file as usize).unwrap().1;
        assert_eq!(seeded.fill(FileNumber(file), len.0 - 16, &mut out), 16);
        out
    };
    assert_eq!(tail(1, 0), tail(1, 0));
    assert_ne!(tail(1, 0), tail(2, 0));
    assert_ne!(tail(1, 0), tail(1, 1));
}

#[test]
fn sizes_and_numbers_of_files_out_of_range_are_refused() {
    let code = |bytes, shards| SeededCheckpoint::new(1, bytes, shards).unwrap_err().code();
    assert_eq!(code(Bytes(MIN_SEEDED.0 - 1), 1), "seeded-size");
    assert_eq!(code(Bytes(MAX_SEEDED.0 + 1), 1), "seeded-size");
    assert_eq!(code(Bytes::mib(32), 0), "seeded-shards");
    assert_eq!(code(Bytes::mib(32), MAX_SEEDED_SHARDS + 1), "seeded-shards");
    assert!(SeededCheckpoint::new(1, Bytes::mib(32), MAX_SEEDED_SHARDS).is_ok());
    // 64 MiB are 27 blocks of nine tensors, the embedding, the norm, the head and its bias.
    assert_eq!(
        SeededCheckpoint::new(1, Bytes::mib(64), 256).unwrap_err(),
        SeededError::Shards {
            shards: 256,
            most: 27 * 9 + 4
        }
    );
}

#[test]
fn progress_reaches_the_total_and_never_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(1, Bytes::mib(3), 2).unwrap();
    let mut seen = Vec::new();
    seeded
        .write(folder.path(), |progress| {
            assert_eq!(progress.total, seeded.file_bytes());
            seen.push(progress.written);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&seeded.file_bytes()));
}

#[test]
fn a_stopped_writing_leaves_nothing_behind() {
    let parent = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(1, Bytes::mib(4), 2).unwrap();
    let stop_in_the_second_file = |progress: Progress| {
        if progress.written.0 > progress.total.0 / 2 + (1 << 20) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let folder = parent.path().join("made");
    let error = seeded.write(&folder, stop_in_the_second_file).unwrap_err();
    assert_eq!(error.code(), "stopped");
    assert_eq!(entries(parent.path()), [""; 0]);

    // A folder that was there before stays.
    fs::create_dir(&folder).unwrap();
    seeded.write(&folder, stop_in_the_second_file).unwrap_err();
    assert_eq!(entries(&folder), [""; 0]);
}

#[test]
fn a_folder_with_anything_in_it_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors.index.json"), "mine").unwrap();
    let seeded = SeededCheckpoint::new(1, MIN_SEEDED, 1).unwrap();
    let error = seeded.write(folder.path(), onwards).unwrap_err();
    assert_eq!(error.code(), "folder-not-empty");
    assert_eq!(entries(folder.path()), ["model.safetensors.index.json"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let seeded = SeededCheckpoint::new(1, MIN_SEEDED, 1).unwrap();
    let path = folder.path().join("no/such/parent");
    let error = seeded.write(&path, onwards).unwrap_err();
    assert_eq!(error.code(), "write-failed");
    assert_eq!(error.to_string(), format!("cannot create {path:?}"));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(
        seeded.write(&file, onwards).unwrap_err().code(),
        "write-failed"
    );
}

#[test]
fn what_cannot_fit_is_refused_before_the_first_byte() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("made");
    let seeded = SeededCheckpoint::new(1, MAX_SEEDED, MAX_SEEDED_SHARDS).unwrap();
    match seeded.write(&folder, |_| ControlFlow::Break(())) {
        Err(WriteError::NoSpace {
            needed, available, ..
        }) => {
            assert!(needed > MAX_SEEDED && available < needed);
            assert_eq!(entries(parent.path()), [""; 0]);
        }
        Err(WriteError::Stopped { .. }) => {
            crowfly_waive::waived!("this file system has more than {MAX_SEEDED} free");
        }
        other => panic!("{other:?}"),
    }
}

/// A file system of two mebibytes in memory, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_drive_that_fills_up_meanwhile_is_named_and_left_clean() {
    let Some(disk) = SmallDisk::mount() else {
        crowfly_waive::waived!("not permitted to mount a small tmpfs");
    };
    let folder = disk.0.path().join("made");
    let seeded = SeededCheckpoint::new(1, Bytes(1_200_000), 2).unwrap();
    let filler = disk.0.path().join("filler");
    let mut filled = false;
    let error = seeded
        .write(&folder, |_| {
            if !filled {
                filled = true;
                // Fails when the drive is full, which is the point.
                let _ = fs::write(&filler, vec![0; 4 << 20]);
            }
            ControlFlow::Continue(())
        })
        .unwrap_err();
    assert!(filled);
    assert_eq!(error.code(), "no-space", "{error}");
    assert_eq!(entries(disk.0.path()), ["filler"]);

    fs::remove_file(&filler).unwrap();
    seeded.write(&folder, onwards).unwrap();
    assert_eq!(Checkpoint::open(&folder).unwrap().bytes(), seeded.bytes());
}
