//! Loads in the order of a stream, with GPUs and a storage library that exist only in this process: what is
//! queued behind one finds the bytes in place, and nothing is done in another way in its stead.

use std::sync::Arc;

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::{FakeGpus, POISON};
use crowfly_machine::gpu_storage::fake::{Behaviour, FakeStorage};
use crowfly_machine::gpu_storage::{Compat, Driver};
use crowfly_mover::gpu::queued::{self, QueuedLoad};
use crowfly_mover::gpu::{DeviceMemory, Gpu, Stream};
use crowfly_mover::{Piece, Region, Source, TransferError};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Visibility};
use crowfly_route::units::Bytes;

/// Odd, and over two requests.
const LEN: usize = (17 << 20) + 4096 + 77;
/// What a drive reads at once.
const BLOCK: u64 = 4096;
/// `CUDA_ERROR_UNKNOWN`
const UNKNOWN: i32 = 999;

fn content() -> Vec<u8> {
    (0..LEN)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
        .collect()
}

struct Disk {
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Disk {
    /// A file on the disk of the build, where O_DIRECT works.
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let bytes = content();
        std::fs::write(folder.path().join("m"), &bytes).expect("written");
        Self { folder, bytes }
    }

    fn source(&self) -> Arc<Source> {
        Arc::new(Source::open(&self.folder.path().join("m")).expect("opened"))
    }

    fn pieces(&self, ranges: &[(u64, u64)]) -> Vec<Piece> {
        let source = self.source();
        let piece = |(start, end): &(u64, u64)| Piece {
            source: Arc::clone(&source),
            range: *start..*end,
        };
        ranges.iter().map(piece).collect()
    }
}

fn open(gpus: &FakeGpus) -> Gpu {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(0)).expect("it is there");
    Gpu::over(0, device)
}

fn with_storage(gpus: &FakeGpus, storage: &FakeStorage<'_>) -> Arc<Gpu> {
    let driver = Driver::open(&storage.functions(), Compat::Refused).expect("open");
    Arc::new(open(gpus).with_storage(driver))
}

fn queue(gpu: &Arc<Gpu>, stream: &Stream, pieces: Vec<Piece>) -> Result<QueuedLoad, TransferError> {
    queued::load(gpu, stream, Place::File("m".into()), pieces)
}

fn codes(error: &TransferError) -> Vec<Code> {
    match error {
        TransferError::Refused { obstacles, .. } => obstacles.iter().map(|o| o.code).collect(),
        other => panic!("{other}"),
    }
}

/// What the GPU's memory holds of a region.
fn held(gpus: &FakeGpus, region: &Region) -> Vec<u8> {
    let (memory, range) = region.device().expect("a GPU's");
    gpus.bytes(memory)[range].to_vec()
}

#[test]
fn what_follows_on_the_stream_finds_the_bytes_though_nobody_waited_and_the_receipt_proves_the_way()
{
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &[Default::default()]);
        let storage = FakeStorage::install(&gpus, dialect, Behaviour::default());
        let disk = Disk::new();
        let gpu = with_storage(&gpus, &storage);
        let stream = Stream::new(gpu.device()).expect("a stream");
        let load = queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64)])).expect("queued");
        let (memory, range) = load.regions()[0].device().expect("a GPU's");
        assert_eq!(gpus.bytes(memory)[0], POISON, "nothing was waited for");
        let copy = DeviceMemory::allocate(gpu.device(), LEN).expect("room");
        let kernel = stream.copy_across(&copy, 0, memory, range).expect("queued");
        kernel.wait().expect("done");
        assert!(load.is_done());
        assert!(gpus.bytes(&copy) == disk.bytes);
        let regions = load.regions().to_vec();
        let receipt = load.wait().expect("they came");
        assert!(receipt.is_whole());
        let path = match dialect {
            Dialect::Cuda => Path::CuFile,
            Dialect::Hip => Path::HipFile,
        };
        let share = &receipt.shares[0];
        assert_eq!(
            (share.path, share.class, share.bytes),
            (path, Class::Direct, Bytes(LEN as u64))
        );
        assert_eq!(
            (receipt.policy, receipt.bounced),
            (Policy::Require, Bytes(0))
        );
        assert_eq!(receipt.route.counters().cpu_touches, 0);
        let said = &receipt.visibility;
        assert!(matches!(said, Visibility::NotNeeded(why) if why.contains("stream")));
        assert!(held(&gpus, &regions[0]) == disk.bytes);
        drop((regions, copy, stream, gpu));
        assert_eq!((gpus.alive(), storage.alive()), (0, 0), "{dialect}");
    }
}

#[test]
fn ranges_around_every_edge_of_a_block_arrive_exactly_and_what_was_read_beside_them_is_counted() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let stream = Stream::new(gpu.device()).expect("a stream");
    let end = LEN as u64;
    let edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, end - 1, end];
    let mut ranges = Vec::new();
    for start in edges {
        ranges.extend(
            edges
                .iter()
                .filter(|end| **end >= start)
                .map(|end| (start, *end)),
        );
    }
    let load = queue(&gpu, &stream, disk.pieces(&ranges)).expect("queued");
    let regions = load.regions().to_vec();
    let receipt = load.wait().expect("they came");
    let mut read = 0;
    for ((start, end), region) in ranges.iter().zip(&regions) {
        let expected = &disk.bytes[*start as usize..*end as usize];
        assert!(held(&gpus, region) == expected, "{start}..{end}");
        if end > start {
            read += end.next_multiple_of(BLOCK) - start / BLOCK * BLOCK;
        }
    }
    let asked: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    assert_eq!(receipt.requested, Bytes(asked));
    assert_eq!(receipt.overread, Bytes(read - asked));
}

#[test]
fn given_no_straight_way_it_is_refused_with_the_reason_before_anything_is_queued() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let refused = |gpu: &Arc<Gpu>| {
        let stream = Stream::new(gpu.device()).expect("a stream");
        let error = queue(gpu, &stream, disk.pieces(&[(0, 4096)])).map(drop);
        let error = error.expect_err("no way");
        assert_eq!(error.code(), "route-refused", "{error}");
        codes(&error)
    };
    let without = Arc::new(open(&gpus));
    assert_eq!(refused(&without), [Code::NoStorageLibrary]);
    // An older version.
    let behaviour = Behaviour {
        queues: false,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let old = with_storage(&gpus, &storage);
    assert_eq!(refused(&old), [Code::StorageDriverRefused]);
    drop((without, old));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_a_library_that_slips_into_host_memory_or_cannot_tell_its_way_nothing_is_called_direct() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let run = |behaviour: Behaviour| {
        let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
        let gpu = with_storage(&gpus, &storage);
        let stream = Stream::new(gpu.device()).expect("a stream");
        queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64)]))
            .expect("queued")
            .wait()
    };
    let slips = Behaviour {
        posix_one_in: 2,
        ..Behaviour::default()
    };
    let error = run(slips).expect_err("half of it took a detour");
    assert_eq!(error.code(), "route-refused");
    assert_eq!(codes(&error), [Code::CompatMode]);
    let silent = Behaviour {
        counts: false,
        ..Behaviour::default()
    };
    let receipt = run(silent).expect("they came");
    assert_eq!(receipt.shares[0].class, Class::Staged);
    assert_eq!(receipt.obstacles[0].code, Code::StorageUnproven);
}

#[test]
fn given_a_file_that_is_changed_meanwhile_waiting_says_so() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let stream = Stream::new(gpu.device()).expect("a stream");
    let load = queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64)])).expect("queued");
    std::fs::write(disk.folder.path().join("m"), vec![0; LEN + 1]).expect("written");
    assert_eq!(load.wait().expect_err("torn").code(), "file-changed");
    let outside = queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64 + 2)])).map(drop);
    assert_eq!(outside.expect_err("too far").code(), "out-of-range");
}

#[test]
fn whichever_call_fails_waiting_says_so_or_the_bytes_are_right_and_dropping_leaves_nothing() {
    let disk = Disk::new();
    let calls: [&'static str; 7] = [
        "cuMemAlloc",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuFileReadAsync",
        "cuFileHandleRegister",
    ];
    let mut failed = 0;
    for call in calls {
        let gpus = FakeGpus::cuda(1);
        let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
        let gpu = with_storage(&gpus, &storage);
        match call.starts_with("cuFile") {
            true => storage.fail(call, 0, 5030),
            false => gpus.fail(call, 0, UNKNOWN),
        }
        let Ok(stream) = Stream::new(gpu.device()) else {
            assert_eq!(call, "cuStreamCreate");
            continue;
        };
        let load = queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64)]));
        let ended = load.and_then(|load| {
            let region = load.regions()[0].clone();
            load.wait().map(|_| held(&gpus, &region))
        });
        match ended {
            Ok(bytes) => assert!(bytes == disk.bytes, "{call}"),
            Err(error) => {
                failed += 1;
                assert!(!error.code().is_empty(), "{call}: {error}");
            }
        }
    }
    assert!(failed > 3, "most of them cannot be done without");
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let gpu = with_storage(&gpus, &storage);
    let stream = Stream::new(gpu.device()).expect("a stream");
    drop(queue(&gpu, &stream, disk.pieces(&[(0, LEN as u64)])).expect("queued"));
    drop((stream, gpu));
    assert_eq!((gpus.alive(), storage.alive()), (0, 0));
}
