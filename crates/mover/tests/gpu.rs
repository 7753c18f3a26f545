//! Loading into, saving from and copying between GPUs, with GPUs and a storage library that exist
//! only in this process, over real files.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::{FakeGpus, Model, POISON};
use crowfly_machine::gpu_storage::fake::{Behaviour, FakeStorage, Mode};
use crowfly_machine::gpu_storage::{Compat, Driver};
use crowfly_mover::gpu::queued::{self, StreamFile};
use crowfly_mover::gpu::{CopyRequest, DeviceMemory, Gpu, PlainCopy, Stream, To, copy};
use crowfly_mover::{
    Destination, Engine, Loaded, Piece, Region, Request, SaveRequest, Source, TransferError, Verify,
};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};
use crowfly_route::units::Bytes;

/// Odd, and over several chunks.
const LENGTH: usize = (9 << 20) + 4096 + 77;
/// More than all buffers of a copy hold at once.
const MOST: usize = (40 << 20) + 13;
/// `CUDA_ERROR_UNKNOWN`
const UNKNOWN: i32 = 999;

/// The first bytes of a sequence that repeats after no power of two.
fn content(len: usize) -> Vec<u8> {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let all = 0..MOST;
        all.map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
            .collect()
    });
    BYTES[..len].to_vec()
}

struct Disk {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Disk {
    /// A file on the disk of the build, where O_DIRECT works.
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = folder.path().join("model.bin");
        std::fs::write(&path, content(LENGTH)).expect("written");
        let disk = Self { folder, path };
        disk.source().drop_cache().expect("dropped");
        disk
    }

    fn source(&self) -> Arc<Source> {
        let file = std::fs::File::open(&self.path).expect("there");
        file.sync_all().expect("durable");
        Arc::new(Source::open(&self.path).expect("opened"))
    }

    fn request(&self, gpu: &Arc<Gpu>) -> Request {
        let from = Place::File(self.path.display().to_string());
        Request {
            destination: Destination::Gpu(Arc::clone(gpu)),
            ..Request::to_host(from, vec![Piece::whole(self.source())])
        }
    }

    fn cold(&self) {
        self.source().drop_cache().expect("dropped");
    }
}

fn open(gpus: &FakeGpus, index: usize) -> Gpu {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(index)).expect("it is there");
    Gpu::over(index as u32, device)
}

fn with_storage(gpus: &FakeGpus, storage: &FakeStorage<'_>) -> Arc<Gpu> {
    let driver = Driver::open(&storage.functions(), Compat::Refused).expect("open");
    Arc::new(open(gpus, 0).with_storage(driver))
}

fn load(request: Request) -> Result<Loaded, TransferError> {
    Engine::default().load(request)?.wait()
}

/// What the GPU's memory holds of a region.
fn held(gpus: &FakeGpus, region: &Region) -> Vec<u8> {
    let (memory, range) = region.device().expect("a GPU's");
    gpus.bytes(memory)[range].to_vec()
}

fn paths(loaded: &Loaded) -> Vec<(Path, Class, Bytes)> {
    assert!(loaded.receipt.is_whole(), "{:?}", loaded.receipt.shares);
    let shares = loaded.receipt.shares.iter();
    shares.map(|s| (s.path, s.class, s.bytes)).collect()
}

fn codes(loaded: &Loaded) -> Vec<Code> {
    loaded.receipt.obstacles.iter().map(|o| o.code).collect()
}

const ALL: Bytes = Bytes(LENGTH as u64);

#[test]
fn a_plain_copy_is_the_runtime_s_alone_from_pinned_or_from_pageable_memory() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    for (pinned, unpinned) in [(true, 0), (false, LENGTH as u64)] {
        let before = gpus.unpinned_bytes();
        let plain = PlainCopy::new(&gpu, LENGTH, pinned).expect("room");
        plain.run().expect("copied");
        assert!(gpus.bytes(plain.target()).iter().all(|byte| *byte == 0x5a));
        assert_eq!(gpus.unpinned_bytes() - before, unpinned);
    }
    gpus.fail("cuMemHostRegister", 0, UNKNOWN);
    let error = PlainCopy::new(&gpu, 4096, true).expect_err("not pinned");
    assert_eq!(error.code(), "gpu-call-failed");
    drop(gpu);
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_no_storage_library_a_load_is_staged_through_pinned_memory_and_says_so() {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &[Model::default()]);
        let disk = Disk::new();
        let gpu = Arc::new(open(&gpus, 0));
        let request = Request {
            verify: Verify::Compare,
            ..disk.request(&gpu)
        };
        let loaded = load(request).expect("loaded");
        assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH));
        assert_eq!(paths(&loaded), [(Path::Staged, Class::Staged, ALL)]);
        let receipt = &loaded.receipt;
        assert_eq!((receipt.bounced, receipt.to.clone()), (ALL, Place::Gpu(0)));
        assert_eq!(receipt.route.name, "o-direct");
        assert_eq!(receipt.route.counters().copies, 2);
        assert!(matches!(receipt.verification, Verification::Matched { .. }));
        assert_eq!(gpus.unpinned_bytes(), 0, "every buffer was pinned");
        let mut out = [0; 5];
        let read = loaded.regions[0].read_at(LENGTH - 3, &mut out);
        assert_eq!(read.expect("copied out"), 3);
        assert_eq!(out[..3], content(LENGTH)[LENGTH - 3..]);
        drop((loaded, gpu));
        assert_eq!(gpus.alive(), 0, "{dialect}");
    }
}

#[test]
fn given_the_page_cache_holds_the_file_it_comes_from_there_and_a_forced_path_is_taken() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let gpu = Arc::new(open(&gpus, 0));
    std::fs::read(&disk.path).expect("warm");
    let warm = load(disk.request(&gpu)).expect("loaded");
    assert_eq!(paths(&warm), [(Path::Cached, Class::Staged, ALL)]);
    assert!(held(&gpus, &warm.regions[0]) == content(LENGTH));
    let forced = |path| Request {
        path: Some(path),
        ..disk.request(&gpu)
    };
    let staged = load(forced(Path::Staged)).expect("loaded");
    assert_eq!(paths(&staged), [(Path::Staged, Class::Staged, ALL)]);
    let why = staged.receipt.shares[0].because.as_deref();
    assert_eq!(why, Some("path `staged` was asked for"));
    disk.cold();
    let cached = load(forced(Path::Cached)).expect("loaded");
    assert_eq!(paths(&cached), [(Path::Cached, Class::Staged, ALL)]);
    assert!(held(&gpus, &cached.regions[0]) == content(LENGTH));
    let error = load(forced(Path::Mapped)).expect_err("no core maps it");
    assert_eq!(error.code(), "path-cannot-reach");
}

#[test]
fn given_require_and_no_straight_way_it_is_refused_before_the_first_byte() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let gpu = Arc::new(open(&gpus, 0));
    let require = |path| Request {
        policy: Policy::Require,
        path,
        ..disk.request(&gpu)
    };
    let Err(TransferError::Refused { to, policy, .. }) = load(require(None)) else {
        panic!("nothing goes straight")
    };
    assert_eq!((*to, policy), (Place::Gpu(0), Policy::Require));
    assert_eq!(gpus.calls().get("cuMemcpyHtoDAsync"), None);
    let staged = load(require(Some(Path::Staged))).expect_err("contradicts");
    assert_eq!(staged.code(), "path-forbidden");
}

#[test]
fn given_a_library_that_goes_straight_nothing_bounces_and_its_counters_prove_it() {
    for (dialect, mode, path, route) in [
        (
            Dialect::Cuda,
            Mode::Peer,
            Path::CuFile,
            "gpudirect-storage-p2pdma",
        ),
        (
            Dialect::Cuda,
            Mode::Module,
            Path::CuFile,
            "gpudirect-storage",
        ),
        (Dialect::Hip, Mode::Module, Path::HipFile, "hipfile"),
    ] {
        let gpus = FakeGpus::plug(dialect, &[Model::default()]);
        let behaviour = Behaviour {
            mode,
            ..Behaviour::default()
        };
        let storage = FakeStorage::install(&gpus, dialect, behaviour);
        let disk = Disk::new();
        let gpu = with_storage(&gpus, &storage);
        let request = Request {
            policy: Policy::Require,
            verify: Verify::Compare,
            ..disk.request(&gpu)
        };
        let loaded = load(request).expect("loaded");
        assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH));
        assert_eq!(paths(&loaded), [(path, Class::Direct, ALL)]);
        assert_eq!(loaded.receipt.bounced, Bytes(0));
        assert_eq!(loaded.receipt.route.name, route);
        assert_eq!(codes(&loaded), []);
        drop((loaded, gpu));
        assert_eq!((gpus.alive(), storage.alive()), (0, 0));
    }
}

#[test]
fn ranges_around_every_edge_of_alignment_arrive_exactly_by_each_path() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let bytes = content(LENGTH);
    let grid = 2 << 20;
    let edges = [0, 1, 511, 512, 4095, 4096, 4097, grid - 1, grid, grid + 1];
    let source = disk.source();
    let mut pieces = Vec::new();
    for start in edges {
        for len in [0, 1, 4096, 4097, grid + 1] {
            let (start, end) = (start as u64, (start + len) as u64);
            pieces.push(Piece {
                source: Arc::clone(&source),
                range: start..end,
            });
        }
    }
    let tail = Piece {
        source,
        range: LENGTH as u64 - 5000..LENGTH as u64,
    };
    pieces.push(tail);
    for path in [Path::CuFile, Path::Staged, Path::Cached] {
        let request = Request {
            pieces: pieces.clone(),
            path: Some(path),
            ..disk.request(&gpu)
        };
        let loaded = load(request).expect("loaded");
        assert!(loaded.receipt.is_whole());
        for (piece, region) in pieces.iter().zip(&loaded.regions) {
            let range = piece.range.start as usize..piece.range.end as usize;
            assert!(
                held(&gpus, region) == bytes[range.clone()],
                "{path} {range:?}"
            );
        }
        assert!(loaded.receipt.shares.iter().all(|share| share.path == path));
    }
    assert_eq!(
        storage.calls()["cuFileHandleRegister"],
        1,
        "once for each file"
    );
}

#[test]
fn given_a_library_that_slips_into_host_memory_the_receipt_does_not_call_it_direct() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        posix_one_in: 3,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let loaded = load(disk.request(&gpu)).expect("the bytes are right");
    assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH));
    assert_eq!(paths(&loaded), [(Path::CuFile, Class::Staged, ALL)]);
    assert_eq!(codes(&loaded), [Code::CompatMode]);
    let request = Request {
        policy: Policy::Require,
        ..disk.request(&gpu)
    };
    let Err(TransferError::Refused { obstacles, .. }) = load(request) else {
        panic!("it was not direct")
    };
    assert_eq!(obstacles[0].code, Code::CompatMode);
}

#[test]
fn given_a_library_without_counters_nothing_is_called_direct() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        counts: false,
        version: 1140,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let loaded = load(disk.request(&gpu)).expect("loaded");
    assert_eq!(paths(&loaded), [(Path::CuFile, Class::Staged, ALL)]);
    assert_eq!(codes(&loaded), [Code::StorageUnproven]);
}

#[test]
fn given_a_library_that_refuses_on_the_way_the_rest_is_staged_or_under_require_fails() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    storage.fail("cuFileRead", 1, 5030);
    storage.fail("cuFileRead", 2, -libc::EINTR);
    let loaded = load(disk.request(&gpu)).expect("loaded");
    assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH));
    let paths: Vec<Path> = paths(&loaded).iter().map(|share| share.0).collect();
    assert_eq!(paths, [Path::CuFile, Path::Staged]);
    assert_eq!(codes(&loaded), [Code::FileNotRegistered]);
    assert!(loaded.receipt.retries >= 2);
    disk.cold();
    storage.fail("cuFileRead", 1, 5030);
    let request = Request {
        policy: Policy::Require,
        ..disk.request(&gpu)
    };
    let error = load(request).expect_err("refused");
    assert_eq!(error.code(), "storage-call-failed");
    storage.behave(|library| library.register = 5027);
    let refused = load(disk.request(&gpu)).expect("staged from the start");
    assert_eq!(refused.receipt.shares[0].path, Path::Staged);
    let why = refused.receipt.shares[0].because.as_deref().unwrap_or("");
    assert!(why.contains("refuses"), "{why}");
}

#[test]
fn short_answers_of_the_library_are_completed() {
    let gpus = FakeGpus::cuda(1);
    let behaviour = Behaviour {
        longest: 300_000,
        ..Behaviour::default()
    };
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, behaviour);
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let loaded = load(disk.request(&gpu)).expect("loaded");
    assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH));
    assert!(loaded.receipt.retries > 20);
}

#[test]
fn a_copy_that_did_nothing_is_found_by_verification() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let gpu = Arc::new(open(&gpus, 0));
    gpus.lose_copy(2);
    let request = Request {
        verify: Verify::Compare,
        ..disk.request(&gpu)
    };
    let error = load(request).expect_err("the GPU holds something else");
    assert_eq!(error.code(), "data-differs");
    gpus.lose_copy(2);
    let trusting = load(disk.request(&gpu)).expect("nobody looked");
    assert!(held(&gpus, &trusting.regions[0]).contains(&POISON));
}

#[test]
fn a_gpu_without_room_is_a_typed_error_and_nothing_is_left() {
    let small = Model {
        memory: 1 << 20,
        ..Model::default()
    };
    let gpus = FakeGpus::plug(Dialect::Cuda, &[small]);
    let disk = Disk::new();
    let gpu = Arc::new(open(&gpus, 0));
    let error = load(disk.request(&gpu)).expect_err("no room");
    assert_eq!(error.code(), "no-gpu-memory");
    assert!(error.to_string().contains("gpu:0"), "{error}");
    drop(gpu);
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn whichever_call_of_a_load_fails_it_ends_with_a_typed_error_or_the_right_bytes() {
    let disk = Disk::new();
    let run = |gpus: &FakeGpus| {
        let runtime = gpus.runtime().ok()?;
        let device = runtime.open(FakeGpus::address(0)).ok()?;
        let gpu = Arc::new(Gpu::over(0, device));
        let request = Request {
            verify: Verify::Compute,
            ..disk.request(&gpu)
        };
        Some(load(request))
    };
    let calls = {
        let gpus = FakeGpus::cuda(1);
        run(&gpus).expect("opened").expect("loaded");
        gpus.calls()
    };
    let mut failed = 0;
    for (call, times) in calls {
        for nth in 0..times.min(3) {
            let gpus = FakeGpus::cuda(1);
            gpus.fail(call, nth, UNKNOWN);
            disk.cold();
            match run(&gpus) {
                None => {}
                Some(Ok(loaded)) => assert!(held(&gpus, &loaded.regions[0]) == content(LENGTH)),
                Some(Err(error)) => {
                    failed += 1;
                    let code = error.code();
                    assert!(
                        ["gpu-call-failed", "no-gpu-memory"].contains(&code),
                        "{call}: {error}"
                    );
                    assert!(error.to_string().contains("999"), "{call}: {error}");
                }
            }
        }
    }
    assert!(failed >= 8, "{failed}");
}

#[test]
fn a_cancelled_load_leaves_nothing_in_flight() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let gpu = Arc::new(open(&gpus, 0));
    let transfer = Engine::default().load(disk.request(&gpu)).expect("started");
    transfer.cancel();
    let outcome = transfer.wait();
    assert!(outcome.is_ok() || outcome.is_err_and(|error| error.code() == "cancelled"));
    drop(gpu);
    assert_eq!(gpus.alive(), 0);
}

fn filled(gpus: &FakeGpus, gpu: &Gpu, len: usize) -> Region {
    let memory = DeviceMemory::allocate(gpu.device(), len).expect("room");
    gpus.set_bytes(&memory, 0, &content(len));
    Region::of_gpu(gpu.index(), memory).expect("an address")
}

#[test]
fn a_save_writes_the_gpus_bytes_whole_by_each_path() {
    for len in [0, 1, 4096, (2 << 20) + 1, LENGTH] {
        let gpus = FakeGpus::cuda(1);
        let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
        let disk = Disk::new();
        let gpu = with_storage(&gpus, &storage);
        let region = filled(&gpus, &gpu, len);
        for (path_asked, path, class) in [
            (None, Path::CuFile, Class::Direct),
            (Some(Path::Staged), Path::Staged, Class::Staged),
            (Some(Path::Cached), Path::Cached, Class::Staged),
        ] {
            let path_to = disk.folder.path().join("saved");
            let request = SaveRequest {
                region: region.clone(),
                path: path_to.clone(),
                policy: Policy::Prefer,
                path_asked,
            };
            let saved = Engine::default().save_from(request, &gpu).expect("started");
            let receipt = saved.wait().expect("saved").receipt;
            assert!(receipt.is_whole());
            assert!(
                receipt
                    .shares
                    .iter()
                    .all(|s| (s.path, s.class) == (path, class))
            );
            assert_eq!(receipt.from, Place::Gpu(0));
            let saved = std::fs::read(&path_to).expect("there");
            assert!(saved == content(len), "{len} by {path}");
        }
    }
}

#[test]
fn a_save_under_require_without_a_storage_library_is_refused() {
    let gpus = FakeGpus::cuda(1);
    let disk = Disk::new();
    let gpu = open(&gpus, 0);
    let request = |policy| SaveRequest {
        region: filled(&gpus, &gpu, 10_000),
        path: disk.folder.path().join("saved"),
        policy,
        path_asked: None,
    };
    let refused = Engine::default().save(request(Policy::Require)).map(drop);
    assert_eq!(refused.expect_err("not straight").code(), "route-refused");
    assert!(!disk.folder.path().join("saved").exists());
    let staged = Engine::default()
        .save(request(Policy::Prefer))
        .expect("started");
    let receipt = staged.wait().expect("saved").receipt;
    assert_eq!(receipt.shares[0].path, Path::Staged);
}

fn copied(from: &Region, to: To, policy: Policy) -> Result<Loaded, TransferError> {
    copy(CopyRequest {
        from: from.clone(),
        to,
        policy,
        candidates: Vec::new(),
    })
}

#[test]
fn a_copy_between_gpus_goes_straight_where_one_reaches_the_other() {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &vec![Model::default(); 2]);
        let (a, b) = (open(&gpus, 0), Arc::new(open(&gpus, 1)));
        let region = filled(&gpus, &a, LENGTH);
        let done = copied(&region, To::Gpu(Arc::clone(&b)), Policy::Require).expect("copied");
        assert!(held(&gpus, &done.regions[0]) == content(LENGTH));
        assert_eq!(paths(&done), [(Path::GpuCopy, Class::Direct, ALL)]);
        assert_eq!(
            (done.receipt.from, done.receipt.to),
            (Place::Gpu(0), Place::Gpu(1))
        );
        assert_eq!(done.receipt.bounced, Bytes(0));
    }
}

#[test]
fn a_copy_between_gpus_that_do_not_reach_each_other_goes_through_the_host_and_says_why() {
    let alone = Model {
        reachable: false,
        ..Model::default()
    };
    let gpus = FakeGpus::plug(Dialect::Cuda, &[alone.clone(), alone]);
    let (a, b) = (open(&gpus, 0), Arc::new(open(&gpus, 1)));
    let len = MOST;
    let region = filled(&gpus, &a, len);
    let to = || To::Gpu(Arc::clone(&b));
    let done = copied(&region, to(), Policy::Prefer).expect("copied");
    assert!(held(&gpus, &done.regions[0]) == content(len));
    assert_eq!(
        paths(&done),
        [(Path::Staged, Class::Staged, Bytes(len as u64))]
    );
    assert_eq!(
        (codes(&done), done.receipt.bounced),
        (vec![Code::GpuWithoutPeerAccess], Bytes(len as u64))
    );
    assert_eq!(gpus.unpinned_bytes(), 0);
    let Err(TransferError::Refused { obstacles, .. }) = copied(&region, to(), Policy::Require)
    else {
        panic!("it does not go straight")
    };
    assert_eq!(obstacles[0].evidence[0].at, "cuDeviceCanAccessPeer");
}

#[test]
fn copies_between_host_and_gpu_are_pinned_and_where_that_is_refused_named() {
    let gpus = FakeGpus::cuda(1);
    let gpu = Arc::new(open(&gpus, 0));
    let mut host = Region::zeroed(LENGTH, None).expect("memory");
    host.as_mut_slice()
        .expect("alone")
        .copy_from_slice(&content(LENGTH));
    let up = copied(&host, To::Gpu(Arc::clone(&gpu)), Policy::Require).expect("copied");
    assert!(held(&gpus, &up.regions[0]) == content(LENGTH));
    assert_eq!(up.receipt.route.name, "pinned");
    let down = copied(&up.regions[0], To::Host(None), Policy::Prefer).expect("copied");
    assert!(down.regions[0].as_slice() == Some(content(LENGTH).as_slice()));
    gpus.fail("cuMemHostRegister", 0, 2);
    let slow = copied(&host, To::Gpu(gpu), Policy::Prefer).expect("copied");
    assert_eq!(slow.receipt.route.name, "pageable");
    assert_eq!(codes(&slow), [Code::HostMemoryNotPinned]);
    let nothing = copied(&host, To::Host(None), Policy::Prefer).expect_err("no GPU");
    assert_eq!(nothing.code(), "route-refused");
}

#[test]
fn a_stream_goes_on_from_a_load_without_the_host() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    let file = StreamFile::new(&gpu, &disk.source()).expect("registered");
    let streams = [0; 2].map(|_| Stream::new(gpu.device()).expect("a stream"));
    let memory = DeviceMemory::allocate(gpu.device(), LENGTH).expect("room");
    let copy_of_it = DeviceMemory::allocate(gpu.device(), LENGTH).expect("room");
    let reads = file
        .read(&streams[0], &memory, 0..LENGTH, 0)
        .expect("queued");
    queued::after(&streams[0], &streams[1]).expect("ordered");
    let kernel = streams[1]
        .copy_across(&copy_of_it, 0, &memory, 0..LENGTH)
        .expect("queued");
    let word = DeviceMemory::allocate(gpu.device(), 4).expect("room");
    let said = queued::signal(&streams[1], &word, 0, 7).expect("queued");
    assert_eq!(gpus.bytes(&memory)[0], POISON, "nothing was waited for");
    said.wait().expect("done");
    assert!(gpus.bytes(&copy_of_it) == content(LENGTH));
    assert_eq!(gpus.bytes(&word), 7u32.to_le_bytes());
    kernel.wait().expect("done");
    reads.wait().expect("all arrived");
    let past = file.read(&streams[0], &memory, 0..4096, LENGTH as u64 - 10);
    assert_eq!(
        past.expect("queued").wait().expect_err("short").code(),
        "file-shrank"
    );
    let without = open(&gpus, 0);
    let refused = StreamFile::new(&without, &disk.source()).map(drop);
    assert_eq!(refused.expect_err("none").code(), "no-storage-library");
}

#[test]
fn the_file_that_is_loaded_is_never_written_to() {
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let disk = Disk::new();
    let gpu = with_storage(&gpus, &storage);
    load(disk.request(&gpu)).expect("loaded");
    let mut bytes = vec![0; LENGTH];
    let file = std::fs::File::open(&disk.path).expect("there");
    file.read_exact_at(&mut bytes, 0).expect("whole");
    assert!(bytes == content(LENGTH));
}
