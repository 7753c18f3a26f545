//! What is in a GPU's memory, served to other processes, and samples whose bytes are known; with GPUs
//! that exist only in this process.

#[path = "service_support/stage.rs"]
mod stage;

use std::sync::Arc;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_mover::gpu::{Gpu, Sample, digest_of};
use crowfly_mover::service::{Auth, Export, Side};
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source};
use crowfly_route::place::Place;
use crowfly_route::receipt::Verification;
use stage::{Stage, key, pattern};

/// Odd, and over several parts.
const LEN: usize = (5 << 20) + 4096 + 11;

fn open(gpus: &FakeGpus, index: usize) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(index)).expect("it is there");
    Arc::new(Gpu::over(index as u32, device))
}

/// A file's bytes in a GPU's memory.
fn loaded(gpu: &Arc<Gpu>, bytes: &[u8]) -> Region {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().join("weights");
    std::fs::write(&path, bytes).expect("written");
    let source = Arc::new(Source::open(&path).expect("opened"));
    let request = Request {
        destination: Destination::Gpu(Arc::clone(gpu)),
        ..Request::to_host(Place::File("weights".into()), vec![Piece::whole(source)])
    };
    let transfer = Engine::default().load(request).expect("started");
    transfer.wait().expect("loaded").regions.remove(0)
}

#[test]
fn given_a_file_in_a_gpu_s_memory_others_copy_it_from_there_and_cannot_change_it() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let bytes = pattern(LEN, 3);
    let region = loaded(&gpu, &bytes);
    let (memory, range) = region.device().expect("a GPU's");
    let memory = Arc::clone(memory);
    for shm in [true, false] {
        let stage = Stage::with(shm, Auth::Key(key()), |settings| {
            settings.exports.push(Export::Loaded {
                name: "weights".parse().expect("a name"),
                region: region.clone(),
            });
        });
        let target = stage.folder.path().join("copy");
        let copied = stage.copy(stage.at("weights"), Side::File(target.clone()));
        let receipt = copied.expect("copied").receipt;
        assert!(std::fs::read(&target).expect("there") == bytes, "shm {shm}");
        assert!(matches!(receipt.verification, Verification::Agreed { .. }));
        let written = stage.copy(Side::File(target), stage.at("weights"));
        assert!(written.is_err(), "it can only be read");
        assert!(gpus.bytes(&memory)[range.clone()] == bytes);
    }
    drop((region, memory, gpu));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn a_sample_has_the_checksum_that_it_says_wherever_it_is_copied_to() {
    let gpus = FakeGpus::cuda(2);
    let gpu = open(&gpus, 0);
    let sample = Sample::new(&gpu, LEN, 7).expect("room");
    assert_eq!(digest_of(&sample.region).expect("read"), sample.digest);
    let again = Sample::new(&open(&gpus, 1), LEN, 7).expect("room");
    assert_eq!(again.digest, sample.digest, "it follows from the seed");
    let other = Sample::new(&gpu, LEN, 8).expect("room");
    assert_ne!(other.digest, sample.digest);
    let (memory, _) = sample.region.device().expect("a GPU's");
    gpus.set_bytes(memory, LEN - 1, &[0, 0][..1]);
    let changed = digest_of(&sample.region).expect("read");
    let was_zero = gpus.bytes(again.region.device().expect("a GPU's").0)[LEN - 1] == 0;
    assert_eq!(changed == sample.digest, was_zero);
}
