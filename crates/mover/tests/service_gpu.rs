//! What is in a GPU's memory, served to other processes, and samples whose bytes are known; with GPUs
//! that exist only in this process.

#[path = "service_support/authority.rs"]
mod authority;
#[path = "service_support/stage.rs"]
mod stage;

use std::sync::Arc;
use std::time::Duration;

use authority::Authority;
use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::{FakeGpus, Model};
use crowfly_machine::verbs::fake::{Behaviour, FakeNic};
use crowfly_mover::fabric::Settings;
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::gpu::{Gpu, Sample, digest_of};
use crowfly_mover::service::{Asked, Auth, Doing, Export, Leg, Side};
use crowfly_mover::{Destination, Engine, Piece, Region, Request, Source};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification, Visibility};
use crowfly_route::units::Bytes;
use stage::{Stage, copy, key, pattern};

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

/// A server and whoever copies from it, each with a NIC of its own.
struct ByRdma {
    stage: Stage,
    name: String,
    nic: FakeNic,
    _far: FakeNic,
}

fn with_nic(settings: &mut Settings, nic: &FakeNic, name: &str) {
    let context = nic.verbs().open(name).expect("it is plugged in");
    let port = VerbsNic::open(&context, 1, VerbsSettings::default()).expect("a port");
    let port: Arc<dyn Provider> = Arc::new(port);
    settings.providers.push(port);
}

impl ByRdma {
    fn new(name: &str, behaviour: &Behaviour, auth: Auth) -> Self {
        let far = format!("{name}_far");
        let plugged = FakeNic::plug(&far, behaviour.clone());
        let stage = Stage::with(false, auth, |settings| {
            with_nic(&mut settings.fabric, &plugged, &far);
        });
        Self {
            stage,
            name: name.to_owned(),
            nic: FakeNic::plug(name, behaviour.clone()),
            _far: plugged,
        }
    }

    fn asked(&self, from: Side, to: Side, policy: Policy) -> Asked {
        let mut asked = self.stage.asked(from, to);
        with_nic(&mut asked.dialing.fabric, &self.nic, &self.name);
        asked.policy = policy;
        asked
    }
}

const ALL: Bytes = Bytes(LEN as u64);

/// The leg on which bytes crossed the fabric.
fn crossing(legs: &[Leg]) -> &Leg {
    let mut crossings = legs.iter().filter(|leg| leg.doing == Doing::Crossing);
    let found = crossings.find(|leg| leg.bytes() > Bytes(0));
    found.expect("they crossed")
}

#[test]
fn given_nics_that_reach_the_gpu_a_served_file_crosses_straight_into_its_memory_and_is_compared_there()
 {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let rdma = ByRdma::new("fetch", &Behaviour::default(), Auth::Key(key()));
    rdma.stage.put("m", &pattern(LEN, 5));
    let to = Side::Gpu(Arc::clone(&gpu));
    let asked = rdma.asked(rdma.stage.at("data/m"), to, Policy::Prefer);
    let copied = copy(asked).expect("copied");
    let crossing = crossing(&copied.legs);
    let share = &crossing.shares[0];
    assert_eq!(
        (share.path, share.class, share.bytes),
        (Path::Verbs, Class::Direct, ALL)
    );
    assert_eq!(crossing.bounced, Bytes(0));
    let receipt = copied.receipt;
    assert!(receipt.is_whole());
    assert_eq!(receipt.to, Place::Gpu(0));
    // Between the server's drive and its NIC they lay in its memory, as in every such copy.
    assert_eq!(
        (receipt.bounced, receipt.shares[0].class),
        (ALL, Class::Staged)
    );
    assert!(matches!(receipt.verification, Verification::Agreed { .. }));
    assert!(matches!(receipt.visibility, Visibility::NotNeeded(_)));
    let asked = rdma.nic.asked();
    let calls = |call: &str| asked.iter().filter(|asked| asked.call == call).count();
    assert_eq!(
        calls("ibv_reg_dmabuf_mr"),
        1,
        "the buffers are the GPU's: {asked:?}"
    );
    drop((rdma, gpu));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_served_memory_and_require_not_one_byte_lies_anywhere_in_between() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let rdma = ByRdma::new("pool", &Behaviour::default(), Auth::Key(key()));
    let to = Side::Gpu(Arc::clone(&gpu));
    let asked = rdma.asked(rdma.stage.at("pool"), to, Policy::Require);
    let receipt = copy(asked).expect("copied").receipt;
    let whole = Bytes(9 << 20);
    let share = &receipt.shares[0];
    assert_eq!(
        (share.path, share.class, share.bytes),
        (Path::Verbs, Class::Direct, whole)
    );
    assert_eq!((receipt.bounced, receipt.obstacles.len()), (Bytes(0), 0));
}

#[test]
fn given_what_was_loaded_into_a_gpu_a_server_fetches_it_from_where_it_is() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let rdma = ByRdma::new("give", &Behaviour::default(), Auth::Key(key()));
    let sample = Sample::new(&gpu, LEN, 7).expect("room");
    let from = Side::Loaded(sample.region.clone());
    let asked = rdma.asked(from, rdma.stage.at("inbox/m"), Policy::Prefer);
    let copied = copy(asked).expect("copied");
    assert_eq!(crossing(&copied.legs).shares[0].path, Path::Verbs);
    let Verification::Agreed { checksum, .. } = &copied.receipt.verification else {
        panic!("{:?}", copied.receipt.verification)
    };
    assert_eq!(checksum, &format!("{:016x}", sample.digest));
    let kept = std::fs::read(rdma.stage.folder.path().join("m")).expect("there");
    let (memory, _) = sample.region.device().expect("a GPU's");
    assert!(kept == gpus.bytes(memory));
    assert_eq!(copied.receipt.from, Place::Gpu(0));
    // Into memory there, no drive is passed.
    let from = Side::Loaded(sample.region.clone());
    let asked = rdma.asked(from, rdma.stage.at("pool"), Policy::Require);
    let receipt = copy(asked).expect("copied").receipt;
    assert_eq!(
        (receipt.shares[0].class, receipt.bounced),
        (Class::Direct, Bytes(0))
    );
}

#[test]
fn given_no_nic_that_reaches_the_gpu_the_bytes_are_staged_with_the_reason_and_refused_under_require()
 {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let rdma = ByRdma::new("bounce", &Behaviour::default(), Auth::Key(key()));
    // The server's NIC takes what lies in host memory; the one here takes nothing of a GPU's.
    rdma.nic.behave(|nic| {
        nic.dma_buf = Some(libc::EOPNOTSUPP);
        nic.register = Some(libc::EFAULT);
    });
    let bytes = pattern(LEN, 6);
    rdma.stage.put("m", &bytes);
    let sample = Sample::new(&gpu, LEN, 7).expect("room");
    let made = gpus.unpinned_bytes();
    let sides = || {
        [
            (rdma.stage.at("data/m"), Side::Gpu(Arc::clone(&gpu))),
            (
                Side::Loaded(sample.region.clone()),
                rdma.stage.at("inbox/sent"),
            ),
        ]
    };
    for (from, to) in sides() {
        let error = copy(rdma.asked(from, to, Policy::Require)).expect_err("nothing goes straight");
        assert_eq!(error.code(), "registration-refused");
        let codes: Vec<Code> = error.obstacles().iter().map(|o| o.code).collect();
        assert!(codes.contains(&Code::NicWithoutDmaBuf), "{codes:?}");
        assert!(codes.contains(&Code::NoPeerMemoryClient), "{codes:?}");
    }
    assert!(!rdma.stage.folder.path().join("sent").exists());
    for (from, to) in sides() {
        let copied = copy(rdma.asked(from, to, Policy::Prefer)).expect("copied");
        let receipt = copied.receipt;
        assert!(receipt.is_whole());
        assert_eq!(
            (
                receipt.shares[0].path,
                receipt.shares[0].class,
                receipt.bounced
            ),
            (Path::Tcp, Class::Socket, ALL)
        );
        let codes: Vec<Code> = receipt.obstacles.iter().map(|o| o.code).collect();
        assert!(codes.contains(&Code::GpuThroughHost), "{codes:?}");
        assert!(matches!(receipt.verification, Verification::Agreed { .. }));
        assert_eq!(crossing(&copied.legs).bounced, ALL);
    }
    let sent = std::fs::read(rdma.stage.folder.path().join("sent")).expect("there");
    let (memory, _) = sample.region.device().expect("a GPU's");
    assert!(sent == gpus.bytes(memory));
    assert_eq!(gpus.unpinned_bytes(), made, "every buffer was pinned");
}

#[test]
fn given_processes_of_one_host_a_gpu_s_bytes_come_through_host_memory_and_that_is_said() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let stage = Stage::new(true);
    let bytes = pattern(LEN, 6);
    stage.put("m", &bytes);
    let receipt = stage.copy(stage.at("data/m"), Side::Gpu(Arc::clone(&gpu)));
    let receipt = receipt.expect("copied").receipt;
    assert!(receipt.is_whole());
    let codes: Vec<Code> = receipt.obstacles.iter().map(|o| o.code).collect();
    assert!(codes.contains(&Code::GpuThroughHost), "{codes:?}");
    assert_eq!(receipt.bounced, ALL);
    let mut asked = stage.asked(stage.at("data/m"), Side::Gpu(Arc::clone(&gpu)));
    asked.policy = Policy::Require;
    let error = copy(asked).expect_err("it would bounce");
    assert_eq!(error.code(), "route-refused");
    assert!(error.to_string().contains("gpu:0"), "{error}");
}

#[test]
fn given_a_gpu_that_shows_writes_late_they_are_flushed_before_anybody_looks_by_key_and_by_certificate()
 {
    let late = Model {
        capability: (8, 0),
        writes_ordering: 0,
        shows_late: true,
        ..Model::default()
    };
    let authority = Authority::new();
    authority.sign("server", "127.0.0.1", 4096);
    authority.sign("peer", "somebody", 4096);
    let ca = authority.ca();
    let by_certificate = (
        authority.identity("server", &ca),
        authority.identity("peer", &ca),
    );
    let by_key = (Auth::Key(key()), Auth::Key(key()));
    for (at, (server, peer)) in [by_key, by_certificate].into_iter().enumerate() {
        let gpus = FakeGpus::plug(Dialect::Cuda, std::slice::from_ref(&late));
        let gpu = open(&gpus, 0);
        let rdma = ByRdma::new(&format!("late{at}"), &Behaviour::default(), server);
        rdma.stage.put("m", &pattern(LEN, 8));
        let to = Side::Gpu(Arc::clone(&gpu));
        let mut asked = rdma.asked(rdma.stage.at("data/m"), to, Policy::Prefer);
        asked.dialing.auth = peer;
        let receipt = copy(asked)
            .expect("the bytes are compared in the GPU")
            .receipt;
        assert_eq!(
            receipt.visibility,
            Visibility::Flushed("cuFlushGPUDirectRDMAWrites".into())
        );
    }
}

#[test]
fn what_makes_no_sense_with_memory_is_refused_before_anything_is_connected() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let stage = Stage::new(false);
    let sample = Sample::new(&gpu, 4096, 1).expect("room");
    let (loaded, to_gpu) = (Side::Loaded(sample.region), Side::Gpu(gpu));
    let refused = |from: &Side, to: &Side, change: &dyn Fn(&mut Asked)| {
        let mut asked = stage.asked(from.clone(), to.clone());
        change(&mut asked);
        copy(asked).expect_err("no sense").code()
    };
    let (served, plain): (Side, &dyn Fn(&mut Asked)) = (stage.at("data/m"), &|_| {});
    let file = Side::File("m".into());
    for (from, to, change) in [
        (&loaded, &file, plain),
        (&loaded, &to_gpu, plain),
        (&to_gpu, &served, plain),
        (&served, &loaded, plain),
        (&file, &to_gpu, plain),
        (&served, &to_gpu, &|asked: &mut Asked| {
            asked.recursive = true
        }),
        (&served, &to_gpu, &|asked: &mut Asked| asked.resume = true),
        (&served, &to_gpu, &|asked: &mut Asked| asked.preserve = true),
        (&loaded, &served, &|asked: &mut Asked| {
            asked.recursive = true
        }),
        (&loaded, &served, &|asked: &mut Asked| asked.resume = true),
        (&loaded, &served, &|asked: &mut Asked| asked.preserve = true),
        (&served, &to_gpu, &|asked: &mut Asked| {
            asked.policy = Policy::Staged
        }),
    ] {
        assert_eq!(refused(from, to, change), "not-copied", "{from:?} {to:?}");
    }
}

#[test]
fn whichever_call_fails_a_copy_into_a_gpu_ends_with_a_typed_error_or_the_right_bytes() {
    let stage = Stage::new(false);
    stage.put("m", &pattern(LEN, 9));
    let run = |gpus: &FakeGpus, arm: &dyn Fn()| {
        let gpu = open(gpus, 0);
        arm();
        let mut asked = stage.asked(stage.at("data/m"), Side::Gpu(gpu));
        asked.timeout = Some(Duration::from_secs(8));
        copy(asked)
    };
    let counted = {
        let gpus = FakeGpus::cuda(1);
        let before = std::cell::RefCell::new(std::collections::BTreeMap::new());
        run(&gpus, &|| *before.borrow_mut() = gpus.calls()).expect("nothing fails");
        let before = before.into_inner();
        let mut after = gpus.calls();
        after.retain(|call, times| *times > before.get(call).copied().unwrap_or(0));
        after
    };
    let mut failed = 0;
    for call in counted.into_keys() {
        let gpus = FakeGpus::cuda(1);
        match run(&gpus, &|| gpus.fail(call, 0, 999)) {
            Ok(copied) => {
                let verified = &copied.receipt.verification;
                assert!(matches!(verified, Verification::Agreed { .. }), "{call}");
            }
            Err(error) => {
                failed += 1;
                let codes = ["gpu-call-failed", "no-gpu-memory"];
                assert!(codes.contains(&error.code()), "{call}: {error}");
            }
        }
    }
    assert!(failed > 0, "some calls cannot be done without");
}
