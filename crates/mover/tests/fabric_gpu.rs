//! Memory of GPUs on the fabric, with GPUs and NICs that exist only in this process: by RDMA, by the
//! copy engines of GPUs between processes of one host, and else through host memory with the reason.

#[path = "fabric_support/pair.rs"]
mod pair;

use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::{FakeGpus, Model, POISON};
use crowfly_machine::verbs::Pinned;
use crowfly_machine::verbs::fake::{Behaviour, FakeNic};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::fabric::{
    Access, Buffer, Delivery, Fabric, FabricError, Imm, Options, Region, Settings,
};
use crowfly_mover::gpu::{DeviceMemory, Gpu};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::{Memory, Place};
use crowfly_route::policy::Policy;
use crowfly_route::receipt::{Path, Verification, Visibility};
use crowfly_route::units::Bytes;
use pair::{Pair, SOON, content, empty, filled, pattern, sent, settings};

/// Odd, and over several buffers, ops and pieces.
const LEN: usize = (5 << 20) + 4096 + 13;
/// `CUDA_ERROR_UNKNOWN`
const UNKNOWN: i32 = 999;
/// A GPU before compute capability 9.0, whose driver does not order what NICs write.
fn older() -> Model {
    Model {
        capability: (8, 0),
        writes_ordering: 0,
        shows_late: true,
        ..Model::default()
    }
}

fn open(gpus: &FakeGpus, index: usize) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    let device = runtime.open(FakeGpus::address(index)).expect("it is there");
    Arc::new(Gpu::over(index as u32, device))
}

/// Memory of a GPU, registered.
fn on_gpu(fabric: &Fabric, gpu: &Gpu, len: usize, access: Access) -> (Arc<DeviceMemory>, Region) {
    let memory = DeviceMemory::allocate(gpu.device(), len).expect("room");
    let buffer = Buffer::of_gpu(gpu.index(), Arc::clone(&memory)).expect("an address");
    (memory, fabric.register(buffer, access).expect("registered"))
}

fn with_nic(settings: Settings, nic: &FakeNic, name: &str) -> Settings {
    let context = nic.verbs().open(name).expect("it is plugged in");
    let port = VerbsNic::open(&context, 1, VerbsSettings::default()).expect("a port");
    let port: Arc<dyn Provider> = Arc::new(port);
    Settings {
        providers: vec![port],
        ..settings
    }
}

/// Two processes, each with a NIC of its own.
fn by_rdma(name: &str, behaviour: &Behaviour) -> (Pair, [FakeNic; 2]) {
    let names = ["a", "b"].map(|end| format!("{name}_{end}"));
    let nics = names
        .each_ref()
        .map(|name| FakeNic::plug(name, behaviour.clone()));
    let here = with_nic(settings(false), &nics[0], &names[0]);
    let there = with_nic(settings(false), &nics[1], &names[1]);
    (Pair::with(here, there), nics)
}

fn straight() -> Options {
    Options::within(SOON).by(Policy::Require)
}

fn paths(delivery: &Delivery) -> Vec<(Path, Class, Bytes)> {
    let receipt = &delivery.receipt;
    assert!(receipt.is_whole(), "{:?}", receipt.shares);
    let shares = receipt.shares.iter();
    shares.map(|s| (s.path, s.class, s.bytes)).collect()
}

fn codes(delivery: &Delivery) -> Vec<Code> {
    delivery.receipt.obstacles.iter().map(|o| o.code).collect()
}

const ALL: Bytes = Bytes(LEN as u64);

#[test]
fn given_nics_that_take_dma_bufs_bytes_go_from_gpu_to_gpu_and_never_see_host_memory() {
    let gpus = FakeGpus::cuda(2);
    let (pair, nics) = by_rdma("gpudirect", &Behaviour::default());
    let (first, second) = (open(&gpus, 0), open(&gpus, 1));
    let (source, from) = on_gpu(&pair.here, &first, LEN, Access::LOCAL);
    let (target, to) = on_gpu(&pair.there, &second, LEN, Access::READ_WRITE);
    let bytes = pattern(LEN, 1);
    gpus.set_bytes(&source, 0, &bytes);
    let written = pair
        .to_there
        .write(&from.whole(), &sent(&to).whole(), straight())
        .wait()
        .expect("written");
    assert!(gpus.bytes(&target) == bytes);
    assert_eq!(paths(&written), [(Path::Verbs, Class::Direct, ALL)]);
    let receipt = &written.receipt;
    assert_eq!(
        (receipt.from.clone(), receipt.to.clone(), receipt.bounced),
        (Place::Gpu(0), Place::Remote(Memory::Gpu(1)), Bytes(0))
    );
    let (back, into) = on_gpu(&pair.here, &first, LEN, Access::LOCAL);
    let read = pair
        .to_there
        .read(&into.whole(), &sent(&to).whole(), straight())
        .wait()
        .expect("read");
    assert!(gpus.bytes(&back) == bytes);
    let visibility = &read.receipt.visibility;
    assert!(
        matches!(visibility, Visibility::NotNeeded(_)),
        "{visibility:?}"
    );
    for nic in &nics {
        let mut asked = nic.asked().into_iter().filter(|asked| asked.len == LEN);
        assert!(asked.all(|asked| asked.call == "ibv_reg_dmabuf_mr"));
    }
    let page = rustix::param::page_size() as u64;
    let exported = gpus.exported();
    assert_eq!(exported[0].start, source.address());
    assert_eq!(exported[0].len, (LEN as u64).next_multiple_of(page));
    drop((from, to, into, source, target, back, pair, first, second));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn memory_that_is_mapped_of_pieces_is_exported_whole_and_as_it_was_asked_for() {
    let gpus = FakeGpus::cuda(1);
    let (pair, nics) = by_rdma("pieces", &Behaviour::default());
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::map(gpu.device(), LEN, 2 << 20).expect("room");
    let start = memory.address() + 777;
    // SAFETY: the memory outlives the part, which holds it.
    let part =
        unsafe { DeviceMemory::lent(gpu.device(), start, 3 << 20, Arc::clone(&memory) as _) };
    let buffer = Buffer::of_gpu(0, part.expect("its memory")).expect("an address");
    let to = pair
        .there
        .register(buffer, Access::WRITE)
        .expect("registered");
    let bytes = pattern(3 << 20, 2);
    let from = filled(&pair.here, &bytes, Access::LOCAL);
    let written = pair
        .to_there
        .write(&from.whole(), &sent(&to).whole(), straight())
        .wait()
        .expect("written");
    assert_eq!(written.receipt.shares[0].path, Path::Verbs);
    assert!(gpus.bytes(&memory)[777..777 + (3 << 20)] == bytes);
    let exported = gpus.exported();
    assert_eq!(
        (exported[0].start, exported[0].len),
        (memory.address(), (3 << 20) + 4096)
    );
    let asked = nics[1].asked();
    let registered = asked.iter().find(|asked| asked.call == "ibv_reg_dmabuf_mr");
    let registered = registered.expect("by a dma-buf");
    assert_eq!((registered.offset, registered.iova), (777, start));
}

#[test]
fn given_a_driver_that_exports_nothing_the_peer_memory_client_serves_and_the_region_says_why() {
    let gpus = FakeGpus::cuda(1).without("cuMemGetHandleForAddressRange");
    let (pair, _nics) = by_rdma("peermem", &Behaviour::default());
    let gpu = open(&gpus, 0);
    let (source, from) = on_gpu(&pair.here, &gpu, LEN, Access::LOCAL);
    gpus.set_bytes(&source, 0, &pattern(LEN, 3));
    let to = empty(&pair.there, LEN, Access::WRITE);
    let written = pair
        .to_there
        .write(&from.whole(), &sent(&to).whole(), straight())
        .wait()
        .expect("written");
    assert_eq!(paths(&written), [(Path::Verbs, Class::Direct, ALL)]);
    assert!(content(&to) == pattern(LEN, 3));
}

#[test]
fn given_no_nic_that_reaches_the_gpu_bytes_are_staged_with_the_reason_or_refused_under_require() {
    let gpus = FakeGpus::cuda(1);
    let refusing = Behaviour {
        dma_buf: Some(libc::EOPNOTSUPP),
        register: Some(libc::EFAULT),
        ..Behaviour::default()
    };
    let names = ["bounce_a", "bounce_b"];
    let nics = names.map(|name| FakeNic::plug(name, refusing.clone()));
    let here = with_nic(settings(false), &nics[0], names[0]);
    let there = with_nic(settings(false), &nics[1], names[1]);
    let pair = Pair::with(here, there);
    let gpu = open(&gpus, 0);
    let (source, from) = on_gpu(&pair.here, &gpu, LEN, Access::LOCAL);
    let (target, to) = on_gpu(&pair.there, &gpu, LEN, Access::READ_WRITE);
    let bytes = pattern(LEN, 4);
    gpus.set_bytes(&source, 0, &bytes);
    let error = pair
        .to_there
        .write(&from.whole(), &sent(&to).whole(), straight())
        .wait()
        .expect_err("nothing goes straight");
    assert_eq!(error.code(), "route-refused");
    let whys: Vec<Code> = error.obstacles().iter().map(|o| o.code).collect();
    assert!(whys.contains(&Code::NicWithoutDmaBuf), "{whys:?}");
    assert!(whys.contains(&Code::NoPeerMemoryClient), "{whys:?}");
    assert!(
        gpus.bytes(&target).iter().all(|byte| *byte == POISON),
        "before the first byte"
    );
    let written = pair
        .to_there
        .write(
            &from.whole(),
            &sent(&to).whole(),
            Options::within(SOON).verified(),
        )
        .wait()
        .expect("written");
    assert!(gpus.bytes(&target) == bytes);
    assert_eq!(paths(&written), [(Path::Tcp, Class::Socket, ALL)]);
    let receipt = &written.receipt;
    assert_eq!(receipt.bounced, ALL);
    let because = receipt.shares[0].because.as_deref().expect("a reason");
    assert!(because.contains("dma-buf"), "{because}");
    assert!(codes(&written).contains(&Code::GpuThroughHost));
    assert!(matches!(receipt.verification, Verification::Matched { .. }));
    let counters = receipt.route.counters();
    assert_eq!((counters.copies, counters.cpu_touches), (5, 2));
    assert!(matches!(&receipt.visibility, Visibility::NotNeeded(why) if why.contains("waited")));
    assert_eq!(gpus.unpinned_bytes(), 0, "every buffer was pinned");
}

#[test]
fn a_fabric_under_require_does_not_register_what_no_nic_can_reach_directly() {
    let gpus = FakeGpus::cuda(1);
    let refusing = Behaviour {
        dma_buf: Some(libc::EOPNOTSUPP),
        register: Some(libc::EFAULT),
        ..Behaviour::default()
    };
    let nic = FakeNic::plug("strict", refusing);
    let fabric = Fabric::new(Settings {
        policy: Policy::Require,
        ..with_nic(settings(false), &nic, "strict")
    });
    let fabric = fabric.expect("a fabric");
    let gpu = open(&gpus, 0);
    let buffer = Buffer::on_gpu(&gpu, LEN).expect("room");
    let error = fabric.register(buffer, Access::WRITE).expect_err("refused");
    assert_eq!(error.code(), "registration-refused");
    assert!(
        error
            .obstacles()
            .iter()
            .any(|o| o.code == Code::NicWithoutDmaBuf)
    );
    drop(gpu);
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn given_a_gpu_that_shows_writes_late_they_are_flushed_before_the_receipt_and_it_says_how() {
    let cases: [(&[&str], &str); 2] = [
        (&[], "cuFlushGPUDirectRDMAWrites"),
        (
            &["cuFlushGPUDirectRDMAWrites"],
            "a byte fetched through late",
        ),
    ];
    for (at, (without, how)) in cases.into_iter().enumerate() {
        let mut gpus = FakeGpus::plug(Dialect::Cuda, &[older()]);
        for call in without {
            gpus = gpus.without(call);
        }
        let (pair, _nics) = by_rdma(&format!("late{at}"), &Behaviour::default());
        let gpu = open(&gpus, 0);
        let bytes = pattern(LEN, 5);
        let from = filled(&pair.there, &bytes, Access::READ);
        let (target, to) = on_gpu(&pair.here, &gpu, LEN, Access::LOCAL);
        let read = pair
            .to_there
            .read(&to.whole(), &sent(&from).whole(), straight())
            .wait()
            .expect("read");
        assert!(gpus.bytes(&target) == bytes, "{how}");
        let visibility = &read.receipt.visibility;
        assert!(
            matches!(visibility, Visibility::Flushed(said) if said.contains(how)),
            "{visibility:?}"
        );
    }
}

#[test]
fn given_neither_flush_the_receipt_says_that_nobody_knows() {
    let gpus = FakeGpus::plug(Dialect::Cuda, &[older()]).without("cuFlushGPUDirectRDMAWrites");
    let (pair, nics) = by_rdma("blind", &Behaviour::default());
    let gpu = open(&gpus, 0);
    let from = filled(&pair.there, &pattern(4096, 6), Access::READ);
    let (target, to) = on_gpu(&pair.here, &gpu, 4096, Access::LOCAL);
    nics[0].behave(|nic| nic.register = Some(libc::ENOMEM));
    let read = pair
        .to_there
        .read(&to.whole(), &sent(&from).whole(), straight())
        .wait()
        .expect("read");
    assert!(
        gpus.bytes(&target).iter().all(|byte| *byte == POISON),
        "not shown yet"
    );
    let Visibility::Unknown(why) = &read.receipt.visibility else {
        panic!("{:?}", read.receipt.visibility)
    };
    assert!(why.contains("cuFlushGPUDirectRDMAWrites"), "{why}");
}

#[test]
fn a_value_is_counted_only_when_the_gpu_sees_the_bytes_it_tells_of() {
    let gpus = FakeGpus::plug(Dialect::Cuda, &[older()]);
    let (pair, _nics) = by_rdma("told", &Behaviour::default());
    let gpu = open(&gpus, 0);
    let bytes = pattern(LEN, 7);
    let from = filled(&pair.here, &bytes, Access::LOCAL);
    let (target, to) = on_gpu(&pair.there, &gpu, LEN, Access::WRITE);
    let imm = Imm(7);
    let counter = pair.there.counter(imm);
    let written = pair
        .to_there
        .write_imm(&from.whole(), &sent(&to).whole(), imm, straight());
    counter.wait(1, SOON).expect("it came");
    assert!(gpus.bytes(&target) == bytes);
    let receipt = written.wait().expect("written").into_receipt();
    assert!(
        matches!(receipt.visibility, Visibility::Unknown(_)),
        "the writer does not know"
    );
    gpus.set_bytes(&target, 0, &vec![0; LEN]);
    let again = pair
        .to_there
        .write(&from.whole(), &sent(&to).whole(), straight());
    again.wait().expect("written");
    let said = pair.to_there.send(b"it is there", Options::within(SOON));
    said.wait().expect("sent");
    pair.to_here
        .recv(Options::within(SOON))
        .wait()
        .expect("heard");
    assert!(gpus.bytes(&target) == bytes);
}

#[test]
fn given_processes_of_one_host_one_gpu_copies_to_the_other_and_a_piece_of_both_kinds_of_memory_is_enough()
 {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &vec![Model::default(); 2]);
        let pair = Pair::new(true);
        let (first, second) = (open(&gpus, 0), open(&gpus, 1));
        let bytes = pattern(LEN, 8);
        let kinds = [
            DeviceMemory::allocate(second.device(), LEN),
            DeviceMemory::map(second.device(), LEN, 2 << 20),
        ];
        for memory in kinds {
            let memory = memory.expect("room");
            let buffer = Buffer::of_gpu(1, Arc::clone(&memory)).expect("an address");
            let to = pair
                .there
                .register(buffer, Access::READ_WRITE)
                .expect("registered");
            let (source, from) = on_gpu(&pair.here, &first, LEN, Access::LOCAL);
            gpus.set_bytes(&source, 0, &bytes);
            let written = pair
                .to_there
                .write(&from.whole(), &sent(&to).whole(), straight())
                .wait()
                .expect("written");
            assert!(gpus.bytes(&memory) == bytes);
            assert_eq!(paths(&written), [(Path::Shm, Class::Direct, ALL)]);
            let receipt = &written.receipt;
            assert_eq!(receipt.route.name, "gpu-ipc");
            assert_eq!(receipt.route.counters().cpu_touches, 0);
            assert_eq!(receipt.bounced, Bytes(0));
            assert_eq!(codes(&written), []);
            assert!(matches!(&receipt.visibility, Visibility::NotNeeded(_)));
            let (back, into) = on_gpu(&pair.here, &first, LEN, Access::LOCAL);
            let checked = straight().verified();
            let read = pair
                .to_there
                .read(&into.whole(), &sent(&to).whole(), checked);
            read.wait().expect("read");
            assert!(gpus.bytes(&back) == bytes);
            let held = to.deregister().expect("the peer has let go of it");
            assert_eq!(held.place(), &Place::Gpu(1));
        }
        drop((pair, first, second));
        assert_eq!(gpus.alive(), 0, "{dialect}");
    }
}

#[test]
fn given_gpus_that_do_not_reach_each_other_bytes_bounce_with_the_reason_and_not_at_all_under_require()
 {
    let alone = Model {
        reachable: false,
        ..Model::default()
    };
    let gpus = FakeGpus::plug(Dialect::Cuda, &[alone, Model::default()]);
    let pair = Pair::new(true);
    let (first, second) = (open(&gpus, 0), open(&gpus, 1));
    let (source, from) = on_gpu(&pair.here, &first, LEN, Access::LOCAL);
    let (target, to) = on_gpu(&pair.there, &second, LEN, Access::READ_WRITE);
    let bytes = pattern(LEN, 9);
    gpus.set_bytes(&source, 0, &bytes);
    let refused = |transfer: Result<Delivery, FabricError>| {
        let error = transfer.expect_err("nothing goes straight");
        assert_eq!(error.code(), "route-refused");
        let codes: Vec<Code> = error.obstacles().iter().map(|o| o.code).collect();
        assert!(codes.contains(&Code::GpuWithoutPeerAccess), "{codes:?}");
    };
    let there = sent(&to);
    // The first one finds it out when the memory is open, the next one knows.
    for _ in 0..2 {
        refused(
            pair.to_there
                .write(&from.whole(), &there.whole(), straight())
                .wait(),
        );
        assert!(gpus.bytes(&target).iter().all(|byte| *byte == POISON));
    }
    let written = pair
        .to_there
        .write(
            &from.whole(),
            &there.whole(),
            Options::within(SOON).verified(),
        )
        .wait()
        .expect("written");
    assert!(gpus.bytes(&target) == bytes);
    assert_eq!(paths(&written), [(Path::Shm, Class::Staged, ALL)]);
    assert_eq!(written.receipt.bounced, ALL);
    let because = written.receipt.shares[0]
        .because
        .as_deref()
        .expect("a reason");
    assert!(because.contains("does not reach"), "{because}");
    assert_eq!(gpus.unpinned_bytes(), 0);
}

#[test]
fn given_shared_host_memory_a_gpu_s_bytes_pass_a_buffer_and_the_receipt_says_so() {
    let gpus = FakeGpus::cuda(1);
    let pair = Pair::new(true);
    let gpu = open(&gpus, 0);
    let bytes = pattern(LEN, 10);
    let served = filled(&pair.there, &bytes, Access::READ_WRITE);
    let (target, to) = on_gpu(&pair.here, &gpu, LEN, Access::LOCAL);
    let read = pair
        .to_there
        .read(&to.whole(), &sent(&served).whole(), Options::within(SOON))
        .wait()
        .expect("read");
    assert!(gpus.bytes(&target) == bytes);
    assert_eq!(paths(&read), [(Path::Shm, Class::Staged, ALL)]);
    assert_eq!(read.receipt.to, Place::Gpu(0));
    assert!(codes(&read).contains(&Code::GpuThroughHost));
    assert_eq!(gpus.unpinned_bytes(), 0);
    let policy = pair
        .to_there
        .write(&to.whole(), &sent(&served).whole(), straight())
        .wait()
        .expect_err("it would bounce");
    assert_eq!(policy.code(), "route-refused");
}

#[test]
fn given_a_process_without_the_gpu_s_runtime_its_owner_stages_and_the_reason_is_told() {
    let gpus = FakeGpus::cuda(1);
    let pair = Pair::new(true);
    let gpu = open(&gpus, 0);
    let bytes = pattern(LEN, 11);
    let (source, served) = on_gpu(&pair.there, &gpu, LEN, Access::READ_WRITE);
    gpus.set_bytes(&source, 0, &bytes);
    let into = empty(&pair.here, LEN, Access::LOCAL);
    // Once when nobody knows yet, once when it is known.
    for _ in 0..2 {
        let read = pair
            .to_there
            .read(&into.whole(), &sent(&served).whole(), Options::within(SOON))
            .wait()
            .expect("read");
        assert!(content(&into) == bytes);
        assert_eq!(paths(&read), [(Path::Tcp, Class::Socket, ALL)]);
        assert_eq!(read.receipt.from, Place::Remote(Memory::Gpu(0)));
        let codes = codes(&read);
        assert!(codes.contains(&Code::GpuMemoryNotShared), "{codes:?}");
        assert!(codes.contains(&Code::GpuThroughHost), "{codes:?}");
    }
    let rails = pair.to_there.rails();
    assert!(rails.iter().all(|rail| rail.down.is_none()), "{rails:?}");
}

#[test]
fn memory_that_peers_have_open_is_closed_there_before_it_is_freed_here() {
    let gpus = FakeGpus::cuda(2);
    let pair = Pair::new(true);
    let (first, second) = (open(&gpus, 0), open(&gpus, 1));
    let (_, from) = on_gpu(&pair.here, &first, 4096, Access::LOCAL);
    let (target, to) = on_gpu(&pair.there, &second, 4096, Access::WRITE);
    let there = sent(&to);
    let write = || {
        pair.to_there
            .write(&from.whole(), &there.whole(), straight())
    };
    write().wait().expect("written");
    let calls = gpus.calls();
    assert_eq!(calls["cuIpcOpenMemHandle"], 1);
    assert_eq!(calls.get("cuIpcCloseMemHandle"), None);
    drop(to);
    assert_eq!(gpus.calls()["cuIpcCloseMemHandle"], 1);
    drop(target);
    let error = write().wait().expect_err("it is gone");
    assert_eq!(error.code(), "no-such-region");
}

#[test]
fn whichever_call_fails_a_transfer_ends_with_a_typed_error_or_the_right_bytes() {
    let bytes = pattern(LEN, 12);
    let run = |gpus: &FakeGpus, arm: &dyn Fn()| {
        let pair = Pair::new(true);
        let (first, second) = (open(gpus, 0), open(gpus, 1));
        let source = DeviceMemory::allocate(first.device(), LEN).expect("room");
        gpus.set_bytes(&source, 0, &bytes);
        let target = DeviceMemory::allocate(second.device(), LEN).expect("room");
        arm();
        let of = |gpu: &Gpu, memory: &Arc<DeviceMemory>| {
            Buffer::of_gpu(gpu.index(), Arc::clone(memory)).expect("an address")
        };
        let from = pair.here.register(of(&first, &source), Access::LOCAL);
        let to = pair
            .there
            .register(of(&second, &target), Access::READ_WRITE);
        let (from, to) = (from.expect("registered"), to.expect("registered"));
        let options = Options::within(Duration::from_secs(10)).verified();
        let written = pair
            .to_there
            .write(&from.whole(), &sent(&to).whole(), options)
            .wait();
        (written, gpus.bytes(&target))
    };
    let counted = {
        let gpus = FakeGpus::cuda(2);
        let before = std::cell::RefCell::new(std::collections::BTreeMap::new());
        let (written, _) = run(&gpus, &|| *before.borrow_mut() = gpus.calls());
        written.expect("nothing was asked to fail");
        let before = before.into_inner();
        let mut after = gpus.calls();
        after.retain(|call, times| *times > before.get(call).copied().unwrap_or(0));
        after
    };
    let mut failed = 0;
    for call in counted.into_keys() {
        for nth in 0..2 {
            let gpus = FakeGpus::cuda(2);
            let (written, held) = run(&gpus, &|| gpus.fail(call, nth, UNKNOWN));
            match written {
                Ok(delivery) => assert!(held == bytes, "{call} {nth}: {:?}", delivery.receipt),
                Err(error) => {
                    failed += 1;
                    let codes = ["gpu-call-failed", "peer-lost", "data-differs"];
                    assert!(codes.contains(&error.code()), "{call} {nth}: {error}");
                }
            }
        }
    }
    assert!(failed > 0, "some calls cannot be done without");
}

/// What one of two processes has in a GPU's memory, when a socket carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InGpu {
    Here,
    There,
}

#[test]
fn given_a_gpu_that_fails_while_a_socket_carries_its_bytes_the_transfer_ends_with_its_answer_and_the_rail_goes_on()
 {
    let calls = [
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuStreamCreate",
        "cuEventSynchronize",
    ];
    let pair = Pair::new(false);
    // Sent behind its header in one go, by one op, and by several.
    for len in [4096 + 13, (300 << 10) + 1, LEN] {
        for gpu_at in [InGpu::Here, InGpu::There] {
            for call in calls {
                for write in [true, false] {
                    fails_typed(&pair, len, gpu_at, (call, write));
                }
            }
        }
    }
}

fn fails_typed(pair: &Pair, len: usize, gpu_at: InGpu, (call, write): (&'static str, bool)) {
    let case = format!("{len} {gpu_at:?} {call} write: {write}");
    let bytes = pattern(len, 14);
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let (memory, local, remote) = match gpu_at {
        InGpu::Here => {
            let (memory, local) = on_gpu(&pair.here, &gpu, len, Access::LOCAL);
            (
                memory,
                local,
                filled(&pair.there, &bytes, Access::READ_WRITE),
            )
        }
        InGpu::There => {
            let (memory, remote) = on_gpu(&pair.there, &gpu, len, Access::READ_WRITE);
            (memory, filled(&pair.here, &bytes, Access::LOCAL), remote)
        }
    };
    gpus.set_bytes(&memory, 0, &bytes);
    let run = || {
        let options = Options::within(SOON);
        match write {
            true => pair
                .to_there
                .write(&local.whole(), &sent(&remote).whole(), options),
            false => pair
                .to_there
                .read(&local.whole(), &sent(&remote).whole(), options),
        }
        .wait()
    };
    let into_gpu = (gpu_at == InGpu::There) == write;
    let copies = match into_gpu {
        true => "cuMemcpyHtoDAsync",
        false => "cuMemcpyDtoHAsync",
    };
    gpus.fail(call, 0, UNKNOWN);
    match run() {
        Ok(_) => {
            assert_ne!(call, copies, "{case}: nothing goes without it");
            assert!(gpus.bytes(&memory) == bytes, "{case}");
        }
        Err(error) => {
            assert_eq!(error.code(), "gpu-call-failed", "{case}: {error}");
            let text = error.to_string();
            let whose = match gpu_at {
                InGpu::Here => "gpu:0 failed".to_owned(),
                InGpu::There => format!("gpu:0 of peer {} failed", pair.to_there.incarnation()),
            };
            assert!(text.starts_with(&whose), "{case}: {text}");
            assert!(text.contains("999"), "what it answered: {text}");
        }
    }
    let rails = pair.to_there.rails();
    assert!(
        rails.iter().all(|rail| rail.down.is_none()),
        "{case}: {rails:?}"
    );
    run().expect("it works again");
    assert!(gpus.bytes(&memory) == bytes, "{case}");
}
