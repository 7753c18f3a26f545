//! Real files on the file systems of this machine: what was asked arrives, and the receipt says how.

use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crowfly_mover::{
    BLOCK, Destination, Engine, HUGE_PAGE, Loaded, Piece, Region, Request, SaveRequest, Settings,
    Sink, Source, TransferError, Verify,
};
use crowfly_route::hop::{Candidate, Class, Route};
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Receipt, Verification};
use crowfly_route::units::Bytes;
use crowfly_waive::{record, waived};

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8)
        .collect()
}

struct Fixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A file below the target folder, which is on a real disk where `/tmp` may be a tmpfs.
fn file(length: usize) -> Fixture {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("data.bin");
    let bytes = pattern(length);
    let mut file = std::fs::File::create(&path).expect("a file");
    file.write_all(&bytes).expect("written");
    file.sync_all().expect("on disk");
    Fixture {
        _folder: folder,
        path,
        bytes,
    }
}

fn source(path: &FsPath) -> Arc<Source> {
    Arc::new(Source::open(path).expect("readable"))
}

/// Drops the file from the page cache; whether it worked and the file can be read directly.
fn cold_and_direct(source: &Source) -> bool {
    source.drop_cache().expect("advice");
    source.direct_obstacle().is_none() && source.cached(&(0..source.size())) == Some(0)
}

fn request(source: &Arc<Source>, range: Range<u64>) -> Request {
    let piece = Piece {
        source: Arc::clone(source),
        range,
    };
    Request::to_host(
        Place::File(source.path().display().to_string()),
        vec![piece],
    )
}

fn load(request: Request) -> Result<Loaded, TransferError> {
    Engine::default().load(request)?.wait()
}

fn paths(receipt: &Receipt) -> Vec<(Path, u64)> {
    receipt.shares.iter().map(|s| (s.path, s.bytes.0)).collect()
}

#[test]
fn given_a_cold_file_it_is_read_directly_and_the_page_cache_stays_empty() {
    let fixture = file(9 * HUGE_PAGE + 4321);
    let source = source(&fixture.path);
    if !cold_and_direct(&source) {
        waived!("no O_DIRECT, or no way to drop the page cache, here");
    }
    let size = source.size();
    let mut require = request(&source, 0..size);
    require.policy = Policy::Require;
    let loaded = load(require).expect("loads");
    assert!(loaded.regions[0].as_slice() == Some(&fixture.bytes[..]));
    let receipt = &loaded.receipt;
    assert!(receipt.is_whole());
    assert_eq!(paths(receipt), [(Path::Direct, size)]);
    assert_eq!(
        (receipt.bounced, receipt.route.class()),
        (Bytes(0), Class::Direct)
    );
    assert_eq!(
        source.cached(&(0..size)),
        Some(0),
        "the kernel agrees that the cache was not used"
    );
}

#[test]
fn given_a_warm_file_its_cached_pages_are_mapped_and_the_receipt_says_so() {
    let fixture = file(5 * HUGE_PAGE + 99);
    let source = source(&fixture.path);
    let loaded = load(request(&source, 0..source.size())).expect("loads");
    assert_eq!(paths(&loaded.receipt), [(Path::Mapped, source.size())]);
    let region = &loaded.regions[0];
    assert!(region.follows_file() && region.as_slice().is_none());
    let mut out = vec![0; fixture.bytes.len()];
    assert_eq!(region.read_at(0, &mut out).expect("still there"), out.len());
    assert!(out == fixture.bytes);
    if source.direct_obstacle().is_none() {
        assert_eq!(loaded.receipt.obstacles[0].code, Code::AlreadyCached);
    }
}

#[test]
fn every_path_delivers_the_same_bytes_for_every_awkward_range() {
    let fixture = file(3 * HUGE_PAGE + 1);
    let source = source(&fixture.path);
    let size = source.size();
    let block = BLOCK as u64;
    let huge = HUGE_PAGE as u64;
    let ranges = [
        0..0,
        0..1,
        1..2,
        size - 1..size,
        511..513,
        block - 1..block + 1,
        8..size,
        huge - 1..huge + 1,
        huge..2 * huge,
        17..2 * huge + 5,
        0..size,
    ];
    for path in [
        None,
        Some(Path::Direct),
        Some(Path::Threads),
        Some(Path::Mapped),
        Some(Path::Cached),
    ] {
        if path == Some(Path::Direct) && source.direct_obstacle().is_some() {
            record("path direct: no O_DIRECT here");
            continue;
        }
        for range in &ranges {
            let _ = source.drop_cache();
            let mut request = request(&source, range.clone());
            request.path = path;
            request.verify = Verify::Compare;
            let loaded = load(request).unwrap_or_else(|e| panic!("{path:?} {range:?}: {e}"));
            let receipt = &loaded.receipt;
            let mut out = vec![0; (range.end - range.start) as usize];
            loaded.regions[0].read_at(0, &mut out).expect("readable");
            let expected = &fixture.bytes[range.start as usize..range.end as usize];
            assert!(out == expected, "{path:?} {range:?}");
            assert!(
                receipt.is_whole(),
                "{path:?} {range:?} {:?}",
                receipt.shares
            );
            assert!(matches!(receipt.verification, Verification::Matched { .. }));
            if let (Some(path), false) =
                (path, range.is_empty() || source.direct_obstacle().is_some())
            {
                assert_eq!(paths(receipt), [(path, range.end - range.start)]);
            }
        }
    }
}

#[derive(Default)]
struct Collect {
    bytes: Mutex<Vec<u8>>,
    calls: AtomicU64,
}

impl Sink for Collect {
    fn take(&self, _piece: usize, offset: u64, bytes: &[u8]) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let at = offset as usize;
        self.bytes.lock().expect("no panics")[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[test]
fn in_transit_every_byte_is_shown_once_and_memory_stays_within_the_budget() {
    let fixture = file(20 * HUGE_PAGE + 7);
    for warm in [false, true] {
        let source = source(&fixture.path);
        if !warm {
            let _ = source.drop_cache();
        }
        let sink = Arc::new(Collect::default());
        sink.bytes
            .lock()
            .expect("no panics")
            .resize(fixture.bytes.len(), 0);
        let mut request = request(&source, 0..source.size());
        request.destination = Destination::Transit(Some(sink.clone()));
        request.verify = Verify::Compare;
        let engine = Engine::new(Settings {
            budget: Bytes(40 << 20),
            ..Settings::default()
        });
        let loaded = engine
            .load(request)
            .expect("sets up")
            .wait()
            .expect("loads");
        assert!(loaded.regions.is_empty());
        assert!(
            *sink.bytes.lock().expect("no panics") == fixture.bytes,
            "warm {warm}"
        );
        assert_eq!(sink.calls.load(Ordering::Relaxed), 21);
    }
}

#[test]
fn given_require_a_file_system_without_direct_reads_fails_before_the_first_byte() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        waived!("no /dev/shm");
    };
    let path = folder.path().join("data");
    std::fs::write(&path, pattern(10_000)).expect("written");
    let source = source(&path);
    let mut require = request(&source, 0..10_000);
    require.policy = Policy::Require;
    let error = Engine::default()
        .load(require)
        .err()
        .expect("tmpfs is memory");
    assert_eq!(error.code(), "route-refused");
    let TransferError::Refused { obstacles, .. } = error else {
        panic!("wrong kind");
    };
    assert_eq!(obstacles[0].code, Code::NoDirectIo);
    assert!(
        obstacles[0].evidence[0].shows.contains("tmpfs"),
        "{obstacles:?}"
    );

    let loaded = load(request(&source, 0..10_000)).expect("preferring takes the page cache");
    assert_eq!(paths(&loaded.receipt), [(Path::Mapped, 10_000)]);
    assert_eq!(loaded.receipt.obstacles[0].code, Code::NoDirectIo);
    assert!(
        loaded.receipt.shares[0]
            .because
            .as_deref()
            .is_some_and(|b| b.contains("O_DIRECT"))
    );
}

#[test]
fn given_require_a_file_system_without_direct_writes_fails_before_the_first_byte() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        waived!("no /dev/shm");
    };
    let fixture = file(3 * BLOCK);
    let source = source(&fixture.path);
    let loaded = load(request(&source, 0..source.size())).expect("loads");
    let region = loaded.regions[0].clone();
    let target = folder.path().join("copy");
    let error = save(&target, region.clone(), Policy::Require, None).expect_err("tmpfs is memory");
    assert_eq!(error.code(), "route-refused");
    let TransferError::Refused { obstacles, .. } = error else {
        panic!("wrong kind");
    };
    assert_eq!(obstacles[0].code, Code::NoDirectIo);
    assert_eq!(
        obstacles[0].evidence[0].shows,
        "tmpfs: files live in the page cache"
    );
    assert!(!target.exists());

    let receipt = save(&target, region, Policy::Prefer, None).expect("preferring copies");
    assert_eq!(receipt.obstacles[0].code, Code::NoDirectIo);
    assert!(std::fs::read(&target).expect("there") == fixture.bytes);
}

#[test]
fn given_require_a_warm_file_is_still_read_from_the_drive() {
    let fixture = file(2 * HUGE_PAGE);
    let source = source(&fixture.path);
    if source.direct_obstacle().is_some() {
        waived!("no O_DIRECT here");
    }
    let mut require = request(&source, 0..source.size());
    require.policy = Policy::Require;
    let loaded = load(require).expect("loads");
    assert_eq!(paths(&loaded.receipt), [(Path::Direct, source.size())]);
    assert!(loaded.regions[0].as_slice() == Some(&fixture.bytes[..]));
}

#[test]
fn what_is_no_file_is_refused_by_kind_without_blocking() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("a FIFO");
    let kind = |path: &FsPath| Source::open(path).expect_err("no file").to_string();
    assert!(kind(&fifo).ends_with("is a FIFO, not a file or block device"));
    assert!(kind(folder.path()).contains("is a directory"));
    assert!(kind(FsPath::new("/dev/null")).contains("is a character device"));
    let missing = Source::open(&folder.path().join("nothing")).expect_err("missing");
    assert_eq!(missing.code(), "open-failed");
}

#[test]
fn given_a_range_outside_of_the_file_nothing_is_read() {
    let fixture = file(100);
    let source = source(&fixture.path);
    for range in [0..101, Range { start: 50, end: 40 }, u64::MAX - 1..u64::MAX] {
        let error = Engine::default()
            .load(request(&source, range))
            .err()
            .expect("outside");
        assert_eq!(error.code(), "out-of-range");
    }
}

#[test]
fn given_a_file_that_changes_while_it_is_read_the_bytes_are_not_passed_off_as_good() {
    for (path, grow) in [
        (Some(Path::Cached), true),
        (None, true),
        (Some(Path::Cached), false),
        (None, false),
    ] {
        let fixture = file(4 * HUGE_PAGE);
        let source = source(&fixture.path);
        let mut writer = std::fs::OpenOptions::new()
            .write(true)
            .open(&fixture.path)
            .expect("writable");
        if grow {
            writer.seek(SeekFrom::End(0)).expect("seekable");
            writer.write_all(b"more").expect("grows");
        } else {
            writer.set_len(HUGE_PAGE as u64 + 5).expect("shrinks");
        }
        let mut request = request(&source, 0..source.size());
        request.path = path;
        let error = load(request).expect_err("it changed");
        let expected = if grow { "file-changed" } else { "file-shrank" };
        assert_eq!(error.code(), expected, "{path:?} {error}");
    }
}

#[test]
fn a_cancelled_or_dropped_transfer_ends_and_frees_nothing_under_the_device() {
    let fixture = file(32 * HUGE_PAGE);
    let source = source(&fixture.path);
    for _ in 0..5 {
        let _ = source.drop_cache();
        let transfer = Engine::default()
            .load(request(&source, 0..source.size()))
            .expect("sets up");
        transfer.cancel();
        match transfer.wait() {
            Err(error) => assert_eq!(error.code(), "cancelled"),
            Ok(loaded) => assert!(loaded.receipt.is_whole()),
        }
        let _ = source.drop_cache();
        drop(
            Engine::default()
                .load(request(&source, 0..source.size()))
                .expect("sets up"),
        );
    }
}

#[test]
fn pieces_of_several_files_land_in_a_region_each() {
    let (a, b) = (file(HUGE_PAGE + 3), file(77));
    let (source_a, source_b) = (source(&a.path), source(&b.path));
    let pieces = vec![
        Piece::whole(source_b.clone()),
        Piece {
            source: source_a.clone(),
            range: 5..9000,
        },
        Piece::whole(source_a),
    ];
    let loaded = load(Request::to_host(Place::File("two".into()), pieces)).expect("loads");
    let bytes = |i: usize| {
        let mut out = vec![0; loaded.regions[i].len()];
        loaded.regions[i].read_at(0, &mut out).expect("readable");
        out
    };
    assert!(bytes(0) == b.bytes && bytes(1) == a.bytes[5..9000] && bytes(2) == a.bytes);
    assert_eq!(
        loaded.receipt.requested,
        Bytes(77 + 8995 + HUGE_PAGE as u64 + 3)
    );
}

fn save(
    path: &FsPath,
    region: Region,
    policy: Policy,
    asked: Option<Path>,
) -> Result<Receipt, TransferError> {
    let request = SaveRequest {
        region,
        path: path.to_owned(),
        policy,
        path_asked: asked,
    };
    Ok(Engine::default().save(request)?.wait()?.receipt)
}

fn filled(bytes: &[u8]) -> Region {
    let mut region = Region::zeroed(bytes.len(), None).expect("memory");
    region.as_mut_slice().expect("plain").copy_from_slice(bytes);
    region
}

#[test]
fn saved_bytes_read_back_by_every_path_and_nothing_else_is_left_in_the_folder() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("out.bin");
    for length in [0, 1, 511, BLOCK, BLOCK + 1, HUGE_PAGE, 3 * HUGE_PAGE + 17] {
        let bytes = pattern(length);
        for asked in [None, Some(Path::Threads), Some(Path::Cached)] {
            let receipt = save(&path, filled(&bytes), Policy::Prefer, asked).expect("saves");
            assert!(receipt.is_whole(), "{length} {asked:?}");
            assert!(
                std::fs::read(&path).expect("there") == bytes,
                "{length} {asked:?}"
            );
        }
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
}

#[test]
fn given_a_full_disk_the_old_file_stays_and_nothing_half_written_is_left() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("out.bin");
    std::fs::write(&path, b"old").expect("written");
    // A region larger than any disk costs address space only; reserving the file finds it out.
    let Ok(region) = Region::zeroed(1 << 45, None) else {
        waived!("no 32 TiB of address space");
    };
    let error = save(&path, region, Policy::Prefer, None).expect_err("no disk holds it");
    assert_eq!(error.code(), "no-space", "{error}");
    assert_eq!(std::fs::read(&path).expect("there"), b"old");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
}

#[test]
fn given_something_at_the_path_that_is_no_file_it_is_not_replaced() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("a FIFO");
    let socket = folder.path().join("socket");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let linked = folder.path().join("linked");
    std::os::unix::fs::symlink("/dev/null", &linked).expect("a link");
    for (path, found) in [
        (fifo.as_path(), "a FIFO"),
        (socket.as_path(), "a socket"),
        (folder.path(), "a directory"),
        (FsPath::new("/dev/null"), "a character device"),
        (linked.as_path(), "a character device"),
    ] {
        let before = std::fs::symlink_metadata(path).expect("there").file_type();
        let error = save(path, filled(b"bytes"), Policy::Prefer, None).expect_err(found);
        assert_eq!(error.code(), "not-a-file", "{error}");
        assert!(error.to_string().contains(found), "{error}");
        let after = std::fs::symlink_metadata(path).expect("there").file_type();
        assert_eq!(before, after);
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        3
    );
}

#[test]
fn given_more_bytes_than_memory_has_room_for_the_load_is_refused_before_the_first() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("sparse.bin");
    let file = std::fs::File::create(&path).expect("created");
    const BYTES: u64 = 1 << 42;
    if file.set_len(BYTES).is_err() {
        waived!("the file system takes no file of 4 TiB");
    }
    let Some(room) = crowfly_machine::limits::memory_room().filter(|room| *room < BYTES) else {
        waived!("this machine has room for 4 TiB, or does not say");
    };
    let source = source(&path);
    let mut direct = request(&source, 0..BYTES);
    direct.path = Some(Path::Cached);
    let error = load(direct).expect_err("it does not fit");
    assert_eq!(error.code(), "no-host-memory", "{error}");
    assert!(
        error.to_string().contains("4398046511104 bytes do not fit"),
        "{error}"
    );
    assert!(room < BYTES && error.hint().is_some_and(|hint| hint.contains("--transit")));
}

#[test]
fn given_require_and_unaligned_memory_the_save_is_refused_and_preferring_says_why() {
    let fixture = file(3 * BLOCK);
    let source = source(&fixture.path);
    let _ = source.drop_cache();
    let mut direct = request(&source, 100..source.size());
    direct.path = Some(Path::Cached);
    let region = load(direct).expect("loads").regions.remove(0);
    let target = fixture.path.with_extension("copy");
    let error = save(&target, region.clone(), Policy::Require, None).expect_err("unaligned");
    assert_eq!(error.code(), "route-refused");
    assert!(!target.exists());
    let receipt = save(&target, region, Policy::Prefer, None).expect("copies");
    assert_eq!(receipt.obstacles[0].code, Code::Unaligned);
    assert!(std::fs::read(&target).expect("there") == fixture.bytes[100..]);
}

#[test]
fn given_a_caller_who_comes_late_the_wall_time_still_ends_with_the_last_byte() {
    let fixture = file(HUGE_PAGE);
    let source = source(&fixture.path);
    let started = Instant::now();
    let transfer = Engine::default().load(request(&source, 0..source.size()));
    let transfer = transfer.expect("starts");
    while !transfer.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let finished = started.elapsed();
    std::thread::sleep(finished + Duration::from_millis(20));
    let receipt = transfer.wait().expect("loads").receipt;
    assert!(receipt.wall_seconds > 0.0);
    assert!(receipt.wall_seconds <= finished.as_secs_f64());
}

#[test]
fn given_routes_that_became_known_meanwhile_the_receipt_names_the_one_taken() {
    let fixture = file(BLOCK);
    let source = source(&fixture.path);
    let mut cached = request(&source, 0..source.size());
    cached.path = Some(Path::Cached);
    let route = Route {
        name: "page-cache".into(),
        from: Place::Drive("nvme7".into()),
        to: Place::Host(None),
        hops: Vec::new(),
    };
    let mut transfer = Engine::default().load(cached).expect("starts");
    transfer.consider(vec![Candidate {
        route: route.clone(),
        obstacles: Vec::new(),
    }]);
    let receipt = transfer.wait().expect("loads").receipt;
    assert_eq!(receipt.route, route);
}

#[test]
fn a_mapped_range_is_read_when_it_is_touched_and_written_without_the_file() {
    let file = file(3 * BLOCK + 5);
    let source = source(&file.path);
    for range in [
        0..3 * BLOCK as u64 + 5,
        7..BLOCK as u64 + 9,
        4095..4096,
        9..9,
    ] {
        let region = source.map(range.clone()).expect("mapped");
        let mut out = vec![0; region.len()];
        let read = region.read_at(0, &mut out).expect("readable");
        assert_eq!(read as u64, range.end - range.start);
        assert_eq!(out, file.bytes[range.start as usize..range.end as usize]);
        assert_eq!(region.follows_file(), !region.is_empty());
    }
    let outside = source.map(1..3 * BLOCK as u64 + 6);
    assert_eq!(outside.expect_err("too long").code(), "out-of-range");
}
