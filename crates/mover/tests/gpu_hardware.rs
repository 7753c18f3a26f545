//! On a machine with a real GPU: the same promises as `gpu.rs` holds fakes to. Waived where there is
//! none. `just gpu-tests` runs it, and then measures rates.

use std::path::PathBuf;
use std::sync::Arc;

use crowfly_machine::trial::{self, Trial};
use crowfly_machine::verbs::{Mapping, Pinned};
use crowfly_mover::gpu::{CopyRequest, DeviceMemory, Gpu, Stream, To, copy, queued};
use crowfly_mover::{
    Destination, Engine, Piece, Region, Request, SaveRequest, Source, TransferError, Verify,
};
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification};

const LENGTH: usize = (64 << 20) + 4096 + 77;

/// Run as a child of [`gpu`].
#[test]
fn child() {
    if let Ok(question) = std::env::var("CROWFLY_QUESTION") {
        trial::answer(&question, std::io::stdout()).expect("a question");
        std::process::exit(0);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    let mut bytes: Vec<u8> = words.take(len / 8 + 1).flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

struct Disk {
    folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Disk {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let path = folder.path().join("model.bin");
        let bytes = random(seed, LENGTH);
        std::fs::write(&path, &bytes).expect("written");
        let file = std::fs::File::open(&path).expect("there");
        file.sync_all().expect("durable");
        Self {
            folder,
            path,
            bytes,
        }
    }

    fn source(&self) -> Arc<Source> {
        let source = Source::open(&self.path).expect("opened");
        source.drop_cache().expect("dropped");
        Arc::new(source)
    }
}

/// A GPU of this machine, with its storage library where it goes straight.
fn gpu(index: u32, disk: &Disk) -> Result<Arc<Gpu>, String> {
    let opened = Gpu::nth(index).map_err(|obstacles| {
        let whys: Vec<String> = obstacles.into_iter().map(|o| o.summary).collect();
        whys.join("; ")
    })?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let script = format!(
        "CROWFLY_QUESTION=\"$0\" exec \"{}\" --exact child --nocapture",
        program.display()
    );
    let trial = Trial::by("/bin/sh", &["-c", &script]);
    Ok(Arc::new(opened.find_storage(&trial, &disk.path)))
}

macro_rules! needs_gpu {
    ($index:literal, $disk:expr) => {
        match gpu($index, $disk) {
            Ok(gpu) => gpu,
            Err(why) => crowfly_waive::waived!("{why}"),
        }
    };
}

/// Leaves memory full of poison behind, which the next of that size most likely is: what was not written
/// into it shows.
fn poison(gpu: &Gpu, len: usize) {
    const POISON: u8 = 0xa5;
    let memory = DeviceMemory::allocate(gpu.device(), len).expect("room");
    let stream = Stream::new(gpu.device()).expect("a stream");
    let filled = stream.fill(&memory, 0..len, POISON).expect("queued");
    filled.wait().expect("done");
}

fn paths(gpu: &Gpu) -> Vec<Path> {
    let own = gpu.storage().map(|_| gpu.storage_path());
    own.into_iter()
        .chain([Path::Staged, Path::Cached])
        .collect()
}

fn read(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("copied out");
    bytes
}

#[test]
fn random_data_survives_a_load_and_a_save_by_each_path() {
    let disk = Disk::new(1);
    let gpu = needs_gpu!(0, &disk);
    for path in paths(&gpu) {
        poison(&gpu, LENGTH.next_multiple_of(4096));
        let request = Request {
            destination: Destination::Gpu(Arc::clone(&gpu)),
            path: Some(path),
            verify: Verify::Compare,
            ..Request::to_host(Place::File("m".into()), vec![Piece::whole(disk.source())])
        };
        let loaded = Engine::default().load(request).and_then(|t| t.wait());
        let loaded = loaded.expect("loaded");
        assert!(loaded.receipt.is_whole());
        let verified = matches!(loaded.receipt.verification, Verification::Matched { .. });
        assert!(verified, "{path}");
        assert!(read(&loaded.regions[0]) == disk.bytes, "{path}");
        let to = disk.folder.path().join("saved");
        let request = SaveRequest {
            region: loaded.regions[0].clone(),
            path: to.clone(),
            policy: Policy::Prefer,
            path_asked: Some(path),
        };
        let saved = Engine::default().save_from(request, &gpu);
        saved.and_then(|t| t.wait()).expect("saved");
        assert!(std::fs::read(&to).expect("there") == disk.bytes, "{path}");
    }
}

#[test]
fn ranges_around_every_edge_of_alignment_arrive_exactly() {
    let disk = Disk::new(2);
    let gpu = needs_gpu!(0, &disk);
    let source = disk.source();
    let grid = 2 << 20;
    let starts = [0, 1, 511, 512, 4095, 4096, 4097, grid - 1, grid, grid + 1];
    let pieces: Vec<Piece> = starts
        .iter()
        .flat_map(|start| [1, 4096, 4097, grid + 1].map(|len| (*start, *start + len)))
        .map(|(start, end)| Piece {
            source: Arc::clone(&source),
            range: start as u64..end as u64,
        })
        .collect();
    for path in paths(&gpu) {
        poison(&gpu, pieces.len() * (grid + 2 * 4096));
        let request = Request {
            destination: Destination::Gpu(Arc::clone(&gpu)),
            path: Some(path),
            ..Request::to_host(Place::File("m".into()), pieces.clone())
        };
        let loaded = Engine::default().load(request).and_then(|t| t.wait());
        for (piece, region) in pieces.iter().zip(&loaded.expect("loaded").regions) {
            let range = piece.range.start as usize..piece.range.end as usize;
            assert!(
                read(region) == disk.bytes[range.clone()],
                "{path} {range:?}"
            );
        }
    }
}

#[test]
fn under_require_a_load_is_direct_or_refused_with_the_reason() {
    let disk = Disk::new(3);
    let gpu = needs_gpu!(0, &disk);
    let request = Request {
        destination: Destination::Gpu(Arc::clone(&gpu)),
        policy: Policy::Require,
        ..Request::to_host(Place::File("m".into()), vec![Piece::whole(disk.source())])
    };
    match Engine::default().load(request).and_then(|t| t.wait()) {
        Ok(loaded) => assert!(read(&loaded.regions[0]) == disk.bytes),
        Err(TransferError::Refused { obstacles, .. }) => assert!(!obstacles.is_empty()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn what_follows_a_load_on_its_stream_finds_the_bytes_or_the_load_is_refused_with_the_reason() {
    let disk = Disk::new(6);
    let gpu = needs_gpu!(0, &disk);
    let stream = Stream::new(gpu.device()).expect("a stream");
    let copy = DeviceMemory::allocate(gpu.device(), LENGTH).expect("room");
    poison(&gpu, LENGTH.next_multiple_of(4096));
    let pieces = vec![Piece::whole(disk.source())];
    let load = match queued::load(&gpu, &stream, Place::File("m".into()), pieces) {
        Ok(load) => load,
        Err(TransferError::Refused { obstacles, .. }) => {
            assert!(!obstacles.is_empty());
            return println!("refused: {}", obstacles[0].summary);
        }
        Err(other) => panic!("{other}"),
    };
    let region = load.regions()[0].clone();
    let (memory, range) = region.device().expect("a GPU's");
    let kernel = stream.copy_across(&copy, 0, memory, range).expect("queued");
    kernel.wait().expect("done");
    let receipt = load.wait().expect("they came");
    println!("{:?}", receipt.shares);
    let copy = Region::of_gpu(0, copy).expect("an address");
    assert!(read(&copy) == disk.bytes, "it ran after the load");
}

#[test]
fn words_in_the_gpus_memory_order_its_streams_and_its_memory_is_exported() {
    let disk = Disk::new(4);
    let gpu = needs_gpu!(0, &disk);
    let [first, second] = [0; 2].map(|_| Stream::new(gpu.device()).expect("a stream"));
    let memory = DeviceMemory::allocate(gpu.device(), 2 << 20).expect("room");
    first
        .fill(&memory, 0..2 << 20, 0)
        .expect("queued")
        .wait()
        .expect("done");
    second.wait_until(&memory, 0, 7).expect("queued");
    let after = second.fill(&memory, 64..128, 9).expect("queued");
    first
        .write_word(&memory, 0, 7)
        .expect("queued")
        .wait()
        .expect("done");
    after.wait().expect("nothing hangs");
    let region = Region::of_gpu(0, Arc::clone(&memory)).expect("an address");
    assert_eq!((read(&region)[0], read(&region)[64]), (7, 9));
    let (exporter, facts) = gpu.exporter();
    let exported = exporter.export(memory.address(), 2 << 20, Mapping::Default);
    println!("dma-buf of {}: {exported:?}, {facts:?}", gpu.place());
    let pieces = DeviceMemory::map(gpu.device(), 8 << 20, 2 << 20);
    println!("mapped of pieces: {pieces:?}");
}

#[test]
fn a_copy_to_another_gpu_arrives_and_says_which_way_it_went() {
    let disk = Disk::new(5);
    let first = needs_gpu!(0, &disk);
    let second = needs_gpu!(1, &disk);
    let mut host = Region::zeroed(LENGTH, None).expect("memory");
    host.as_mut_slice()
        .expect("alone")
        .copy_from_slice(&disk.bytes);
    let to = |gpu: &Arc<Gpu>| To::Gpu(Arc::clone(gpu));
    let copied = |from, to| {
        copy(CopyRequest {
            from,
            to,
            policy: Policy::Prefer,
            candidates: Vec::new(),
        })
        .expect("copied")
    };
    let there = copied(host, to(&first));
    let across = copied(there.regions[0].clone(), to(&second));
    assert!(read(&across.regions[0]) == disk.bytes);
    println!("{:?}", across.receipt.shares);
}
