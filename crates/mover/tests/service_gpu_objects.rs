//! Objects into a GPU's memory and out of it, with GPUs that exist only in this process and a store on
//! this host: by way of pinned buffers, which is said, and refused where the way has to be direct.

#[path = "service_support/stage.rs"]
mod stage;
#[path = "service_support/store.rs"]
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_mover::gpu::{Gpu, Sample};
use crowfly_mover::service::{Asked, Auth, Copied, Doing, End, Leg, ServiceError, Side};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Receipt, Verification, Visibility};
use crowfly_route::units::Bytes;
use stage::{asked, copy, pattern};
use store::Store;

/// Several buffers and two parts of an upload, the last of them short and odd.
const LEN: usize = (17 << 20) + 4096 + 11;
const ALL: Bytes = Bytes(LEN as u64);
/// `CUDA_ERROR_UNKNOWN`
const UNKNOWN: i32 = 999;

fn open(gpus: &FakeGpus) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(0)).expect("it is there");
    Arc::new(Gpu::over(0, device))
}

fn object(name: &str) -> Side {
    Side::Object(format!("s3://b/{name}").parse().expect("an object"))
}

fn bucket() -> Store {
    let store = Store::start();
    store.bucket("b");
    store
}

fn wanted(store: &Store, from: Side, to: Side) -> Asked {
    Asked {
        store: store.settings(),
        ..asked(from, to, false, Auth::Open)
    }
}

fn carried(store: &Store, from: Side, to: Side) -> Result<Copied, ServiceError> {
    copy(wanted(store, from, to))
}

/// What each leg did, by what, and how straight.
fn told(legs: &[Leg]) -> Vec<(Doing, End, Path, Class, Bytes)> {
    let of = |leg: &Leg| {
        let share = &leg.shares[0];
        (leg.doing, leg.end, share.path, share.class, leg.bytes())
    };
    legs.iter().map(of).collect()
}

fn codes(receipt: &Receipt) -> Vec<Code> {
    receipt.obstacles.iter().map(|found| found.code).collect()
}

#[test]
fn given_an_object_it_comes_into_a_gpu_s_memory_by_pinned_buffers_and_is_compared_there() {
    let (gpus, store) = (FakeGpus::cuda(1), bucket());
    let gpu = open(&gpus);
    store.put("b/m", &pattern(LEN, 1), "v1");
    let copied = carried(&store, object("m"), Side::Gpu(Arc::clone(&gpu))).expect("copied");
    let (here, tcp, by_gpu) = (End::Here, Path::Tcp, Path::GpuCopy);
    assert_eq!(
        told(&copied.legs),
        [
            (Doing::Crossing, here, tcp, Class::Socket, ALL),
            (Doing::Writing, here, by_gpu, Class::Direct, ALL)
        ]
    );
    let receipt = copied.receipt;
    assert!(receipt.is_whole());
    assert_eq!((&receipt.to, receipt.bounced), (&Place::Gpu(0), ALL));
    assert_eq!(receipt.shares[0].class, Class::Socket);
    assert_eq!(codes(&receipt), [Code::ObjectStore, Code::GpuThroughHost]);
    assert!(matches!(
        receipt.verification,
        Verification::Computed { .. }
    ));
    assert!(matches!(receipt.visibility, Visibility::NotNeeded(_)));
    let counters = receipt.route.counters();
    assert_eq!(
        counters.cpu_touches, 2,
        "out of the socket, and into the buffer"
    );
    assert_eq!(gpus.unpinned_bytes(), 0, "every buffer was pinned");
    drop(gpu);
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_a_copy_into_the_gpu_that_did_nothing_the_bytes_are_not_called_right() {
    let (gpus, store) = (FakeGpus::cuda(1), bucket());
    let gpu = open(&gpus);
    store.put("b/m", &pattern(LEN, 2), "v1");
    gpus.lose_copy(1);
    let error = carried(&store, object("m"), Side::Gpu(gpu)).expect_err("a part is missing");
    assert_eq!(error.code(), "data-differs");
    assert!(error.to_string().contains("gpu:0"), "{error}");
}

#[test]
fn given_bytes_in_a_gpu_s_memory_an_object_is_made_of_them_that_the_store_confirms() {
    let (gpus, store) = (FakeGpus::cuda(1), bucket());
    let gpu = open(&gpus);
    let sample = Sample::new(&gpu, LEN, 7).expect("room");
    let made = gpus.unpinned_bytes();
    let from = Side::Loaded(sample.region.clone());
    let copied = carried(&store, from, object("up")).expect("copied");
    let (memory, _) = sample.region.device().expect("a GPU's");
    assert!(store.get("b/up").expect("there") == gpus.bytes(memory));
    let (here, tcp, by_gpu) = (End::Here, Path::Tcp, Path::GpuCopy);
    assert_eq!(
        told(&copied.legs),
        [
            (Doing::Reading, here, by_gpu, Class::Direct, ALL),
            (Doing::Crossing, here, tcp, Class::Socket, ALL)
        ]
    );
    let receipt = copied.receipt;
    assert!(receipt.is_whole());
    assert_eq!((&receipt.from, receipt.bounced), (&Place::Gpu(0), ALL));
    assert_eq!(codes(&receipt), [Code::GpuThroughHost, Code::ObjectStore]);
    let Verification::Agreed { checksum, .. } = &receipt.verification else {
        panic!("{:?}", receipt.verification)
    };
    assert_eq!(checksum, &format!("{:016x}", sample.digest));
    assert_eq!(gpus.unpinned_bytes(), made, "every buffer was pinned");
    drop((sample, gpu));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn where_the_way_has_to_be_direct_both_are_refused_before_the_first_byte_and_why_is_told() {
    let (gpus, store) = (FakeGpus::cuda(1), bucket());
    let gpu = open(&gpus);
    store.put("b/m", &pattern(LEN, 3), "v1");
    let sample = Sample::new(&gpu, 4096, 7).expect("room");
    let sides = [
        (object("m"), Side::Gpu(Arc::clone(&gpu)), "gpu:0"),
        (Side::Loaded(sample.region), object("up"), "gpu:0"),
    ];
    for (from, to, named) in sides {
        let asked = Asked {
            policy: Policy::Require,
            ..wanted(&store, from, to)
        };
        let error = copy(asked).expect_err("HTTP is no direct way");
        assert_eq!(error.code(), "route-refused");
        assert!(error.to_string().contains(named), "{error}");
        let codes: Vec<Code> = error.obstacles().iter().map(|found| found.code).collect();
        assert_eq!(codes, [Code::ObjectStore, Code::GpuThroughHost]);
    }
    assert_eq!(store.get("b/up"), None);
}

#[test]
fn what_makes_no_sense_with_objects_and_memory_is_refused_before_anybody_is_asked() {
    let (gpus, store) = (FakeGpus::cuda(1), bucket());
    let gpu = open(&gpus);
    let sample = Sample::new(&gpu, 4096, 1).expect("room");
    let (loaded, to_gpu) = (Side::Loaded(sample.region), Side::Gpu(gpu));
    let refused = |from: &Side, to: &Side, change: &dyn Fn(&mut Asked)| {
        let mut asked = wanted(&store, from.clone(), to.clone());
        change(&mut asked);
        copy(asked).expect_err("no sense").code()
    };
    let (far, plain): (Side, &dyn Fn(&mut Asked)) = (object("m"), &|_| {});
    for (from, to, change) in [
        (&to_gpu, &far, plain),
        (&far, &loaded, plain),
        (&far, &to_gpu, &|asked: &mut Asked| asked.recursive = true),
        (&far, &to_gpu, &|asked: &mut Asked| asked.resume = true),
        (&far, &to_gpu, &|asked: &mut Asked| asked.preserve = true),
        (&loaded, &far, &|asked: &mut Asked| asked.recursive = true),
        (&loaded, &far, &|asked: &mut Asked| asked.resume = true),
        (&loaded, &far, &|asked: &mut Asked| asked.preserve = true),
    ] {
        assert_eq!(refused(from, to, change), "not-copied", "{from:?} {to:?}");
    }
}

#[test]
fn whichever_call_fails_a_copy_ends_with_its_answer_or_the_right_bytes() {
    let store = bucket();
    let bytes = pattern(LEN, 9);
    store.put("b/m", &bytes, "v1");
    let run = |gpus: &FakeGpus, into: bool, arm: &dyn Fn()| {
        let gpu = open(gpus);
        let sample = Sample::new(&gpu, LEN, 5).expect("room");
        arm();
        let (from, to) = match into {
            true => (object("m"), Side::Gpu(gpu)),
            false => (Side::Loaded(sample.region.clone()), object("up")),
        };
        let mut asked = wanted(&store, from, to);
        asked.timeout = Some(Duration::from_secs(20));
        let copied = copy(asked);
        let (memory, _) = sample.region.device().expect("a GPU's");
        (copied, gpus.bytes(memory))
    };
    for into in [true, false] {
        let counted = {
            let before = std::cell::RefCell::new(BTreeMap::new());
            let gpus = FakeGpus::cuda(1);
            let (copied, _) = run(&gpus, into, &|| *before.borrow_mut() = gpus.calls());
            copied.expect("nothing was asked to fail");
            let before = before.into_inner();
            let mut after = gpus.calls();
            after.retain(|call, times| *times > before.get(call).copied().unwrap_or(0));
            after
        };
        let mut failed = 0;
        for call in counted.into_keys() {
            let gpus = FakeGpus::cuda(1);
            let (copied, held) = run(&gpus, into, &|| gpus.fail(call, 0, UNKNOWN));
            match copied {
                Ok(_) if !into => assert!(store.get("b/up") == Some(held), "{call}"),
                Ok(copied) => assert!(copied.receipt.is_whole(), "{call}"),
                Err(error) => {
                    failed += 1;
                    let codes = ["gpu-call-failed", "no-gpu-memory"];
                    assert!(codes.contains(&error.code()), "{call} {into}: {error}");
                }
            }
        }
        assert!(failed > 0, "some calls cannot be done without");
        assert_eq!(
            store.begun(),
            Vec::<usize>::new(),
            "nothing is left of parts"
        );
    }
}
