//! Files that are never in memory as a whole: parts that lie apart, written end to end, whole or not at all.

use std::path::Path as FsPath;
use std::sync::Arc;

use crowfly_mover::{Engine, Parts, PartsRequest, Region, SAVE_BUFFER, Saving, TransferError};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Receipt};
use crowfly_route::units::Bytes;
use crowfly_waive::waived;

const MIB: usize = 1 << 20;

/// The same bytes so many times, and some before them.
struct Repeated {
    first: Vec<u8>,
    bytes: Vec<u8>,
    times: usize,
}

impl Parts for Repeated {
    fn count(&self) -> usize {
        1 + self.times
    }

    fn part(&self, number: usize) -> &[u8] {
        match number {
            0 => &self.first,
            _ => &self.bytes,
        }
    }
}

impl Repeated {
    fn whole(&self) -> Vec<u8> {
        let mut whole = self.first.clone();
        (0..self.times).for_each(|_| whole.extend_from_slice(&self.bytes));
        whole
    }
}

/// Bytes that repeat after no power of two.
fn pattern(length: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..99_991usize)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let mut bytes = period.repeat(length.div_ceil(period.len()));
    bytes.truncate(length);
    bytes
}

fn repeated(first: usize, length: usize, times: usize) -> Repeated {
    Repeated {
        first: pattern(first),
        bytes: pattern(length),
        times,
    }
}

fn start(
    parts: impl Parts + 'static,
    path: &FsPath,
    policy: Policy,
    path_asked: Option<Path>,
) -> Result<Saving, TransferError> {
    Engine::default().save_parts(PartsRequest {
        parts: Arc::new(parts),
        path: path.to_owned(),
        policy,
        path_asked,
    })
}

fn save(parts: Repeated, path: &FsPath, asked: Option<Path>) -> Receipt {
    let saving = start(parts, path, Policy::Prefer, asked).expect("begun");
    saving.wait().expect("saved")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn alone_in(folder: &tempfile::TempDir) -> bool {
    std::fs::read_dir(folder.path()).expect("listed").count() == 1
}

#[test]
fn given_parts_of_any_size_the_file_is_their_bytes_end_to_end_by_every_path() {
    let folder = folder();
    let path = folder.path().join("out.bin");
    let shapes = [
        (0, 0, 0),
        (9, 0, 3),
        (1, 4096, 1),
        (8, 4095, 700),
        (13, SAVE_BUFFER, 1),
        (0, 7 * MIB + 3, 11),
    ];
    for (first, length, times) in shapes {
        for asked in [None, Some(Path::Threads), Some(Path::Cached)] {
            let parts = repeated(first, length, times);
            let expected = parts.whole();
            let receipt = save(parts, &path, asked);
            assert!(std::fs::read(&path).expect("there") == expected);
            assert!(receipt.is_whole(), "{:?}", receipt.shares);
            let size = Bytes(expected.len() as u64);
            assert_eq!(receipt.requested, size, "{first} {length} {times}");
            assert!(receipt.bounced >= size, "all of it was copied once");
        }
    }
    assert!(alone_in(&folder));
}

#[test]
fn given_a_file_larger_than_its_buffers_memory_does_not_grow_with_it() {
    let folder = folder();
    // In a process of its own: what other tests hold at this moment is not this save's.
    if let Ok(path) = std::env::var(LARGE) {
        let parts = repeated(4096, 4 * MIB, 16 * SAVE_BUFFER / (4 * MIB));
        save(parts, FsPath::new(&path), None);
        let most = peak();
        let allowed = 5 * SAVE_BUFFER as u64;
        assert!(most <= allowed, "{most} bytes at most, {allowed} allowed");
        return;
    }
    let path = folder.path().join("large.bin");
    let name = "given_a_file_larger_than_its_buffers_memory_does_not_grow_with_it";
    let status = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", name])
        .env(LARGE, &path)
        .stdout(std::process::Stdio::null())
        .status()
        .expect("started");
    assert!(status.success());
    let size = path.metadata().expect("there").len();
    assert_eq!(size, 4096 + 16 * SAVE_BUFFER as u64);
}

/// Names the file to the process that writes it.
const LARGE: &str = "CROWFLY_TEST_LARGE_SAVE";

/// The most memory, in bytes, that this process had at one time.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.expect("told").parse::<u64>().expect("a number") * 1024
}

#[test]
fn given_a_cancelled_or_dropped_save_the_old_file_stays_and_nothing_else() {
    let folder = folder();
    let path = folder.path().join("out.bin");
    std::fs::write(&path, b"old").expect("written");
    let begin = || start(repeated(8, 4 * MIB, 64), &path, Policy::Prefer, None).expect("begun");
    let saving = begin();
    saving.cancel();
    match saving.wait() {
        Err(TransferError::Cancelled) => {
            assert_eq!(std::fs::read(&path).expect("there"), b"old");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => waived!("the save was faster than its cancellation"),
    }
    drop(begin());
    assert_eq!(std::fs::read(&path).expect("there"), b"old");
    assert!(alone_in(&folder));
}

#[test]
fn given_what_a_killed_save_left_the_next_one_removes_it_and_nothing_that_is_anybody_elses() {
    let folder = folder();
    let path = folder.path().join("out.bin");
    let left = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, b"half").expect("written");
        path
    };
    let dead = left(".out.bin.4194305-0.crowfly");
    let living = left(".out.bin.4194305-1.crowfly");
    let others = [
        ".out.bin.mine.crowfly",
        ".out.bin.1-2-3.crowfly",
        ".out.bin.other.1-2.crowfly",
        ".out.bin.1-2",
    ]
    .map(left);
    let held = std::fs::File::open(&living).expect("there");
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    if rustix::fs::flock(&held, lock).is_err() {
        waived!("this file system has no locks");
    }
    save(repeated(3, 100, 1), &path, None);
    assert!(!dead.exists(), "its lock went with the process");
    assert!(living.exists() && others.iter().all(|other| other.exists()));
    drop(held);
    save(repeated(3, 100, 1), &path, None);
    assert!(!living.exists() && others.iter().all(|other| other.exists()));
    assert_eq!(path.metadata().expect("there").len(), 103);
}

#[test]
fn given_a_full_disk_or_no_folder_the_error_comes_before_the_first_byte() {
    let folder = folder();
    let path = folder.path().join("out.bin");
    std::fs::write(&path, b"old").expect("written");
    // It costs addresses only; reserving the file finds out that no disk holds it.
    let Ok(region) = Region::zeroed(1 << 45, None) else {
        waived!("no 32 TiB of address space");
    };
    struct Huge(Region);
    impl Parts for Huge {
        fn count(&self) -> usize {
            1
        }
        fn part(&self, _: usize) -> &[u8] {
            self.0.as_slice().expect("plain memory")
        }
    }
    let error = start(Huge(region), &path, Policy::Prefer, None).err();
    assert_eq!(error.expect("no disk holds it").code(), "no-space");
    assert_eq!(std::fs::read(&path).expect("there"), b"old");
    assert!(alone_in(&folder));
    let nowhere = folder.path().join("no").join("folder");
    let error = start(repeated(1, 1, 1), &nowhere, Policy::Prefer, None).err();
    assert_eq!(error.expect("no folder").code(), "open-failed");
    let socket = start(repeated(1, 1, 1), &path, Policy::Socket, None).err();
    assert!(matches!(socket, Some(TransferError::Refused { .. })));
}
