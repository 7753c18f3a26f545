//! The handles above the table of functions, held against GPUs that check what they do.

use std::sync::Arc;

use super::super::{
    DeviceMemory, Dialect, Gpu, GpuError, GpuExporter, HostRegistration, Making, PeerRefusal,
    Shared, Stream, WriteFlush,
};
use super::{FakeGpus, Model, POISON};
use crate::verbs::{ExportError, Exporter, GpuFacts, Mapping, Pinned};

const LEN: usize = 5 << 20;
/// `CUDA_ERROR_UNKNOWN`
const UNKNOWN: i32 = 999;

/// Host bytes that only devices and this test's raw copies touch.
struct Bytes(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: the tests access the bytes only by raw copies while nothing is in flight.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}
// SAFETY: the box never moves its contents.
unsafe impl Pinned for Bytes {
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Bytes {
    fn new(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self(bytes.iter().map(|b| (*b).into()).collect()))
    }

    fn get(&self) -> Vec<u8> {
        // SAFETY: no copy is in flight when the tests look.
        self.0.iter().map(|b| unsafe { *b.get() }).collect()
    }

    fn pinned(self: &Arc<Self>) -> Arc<dyn Pinned> {
        Arc::clone(self) as _
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 131 + seed * 17 + (at >> 9)) as u8)
        .collect()
}

fn open(gpus: &FakeGpus, index: usize) -> Arc<Gpu> {
    let runtime = gpus.runtime().expect("it starts");
    runtime.open(FakeGpus::address(index)).expect("it is there")
}

#[test]
fn gpus_are_listed_in_pci_order_whatever_the_runtime_numbers_them() {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &vec![Model::default(); 3]);
        let runtime = gpus.runtime().expect("it starts");
        let found = runtime.gpus().expect("three");
        let addresses: Vec<_> = found.iter().map(|gpu| gpu.address).collect();
        assert_eq!(addresses, [0, 1, 2].map(FakeGpus::address));
        let capability = found[0].compute_capability;
        let expected = (dialect == Dialect::Cuda).then_some((9, 0));
        assert_eq!(capability, expected, "HIP has no such number");
        let Err(missing) = runtime.open(FakeGpus::address(7)) else {
            panic!("there are three")
        };
        assert_eq!(missing.code(), "no-such-gpu");
        assert!(missing.to_string().contains("0000:11:00.0"), "{missing}");
    }
}

#[test]
fn given_both_dialects_bytes_go_in_across_and_out_in_the_order_of_the_stream() {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &vec![Model::default(); 2]);
        let (a, b) = (open(&gpus, 0), open(&gpus, 1));
        a.reach(&b).expect("it reaches it");
        a.reach(&b).expect("once is enough");
        let data = pattern(LEN, 1);
        let (source, back) = (Bytes::new(&data), Bytes::new(&vec![0; LEN]));
        let pins = [&source, &back].map(|m| HostRegistration::new(&a, m.pinned()).expect("pinned"));
        let on_a = DeviceMemory::allocate(&a, LEN).expect("room");
        let on_b = DeviceMemory::allocate(&b, LEN).expect("room");
        assert!(gpus.bytes(&on_a).iter().all(|byte| *byte == POISON));
        let stream = Stream::new(&a).expect("a stream");
        let first = stream
            .copy_in(&on_a, 0, &source.pinned(), 0..LEN)
            .expect("queued");
        assert!(
            !first.is_done().expect("no error"),
            "{dialect}: nothing is done yet"
        );
        let second = stream.copy_across(&on_b, 0, &on_a, 0..LEN).expect("queued");
        let third = stream
            .copy_out(&back.pinned(), 0, &on_b, 0..LEN)
            .expect("queued");
        third.wait().expect("done");
        assert!(first.is_done().expect("done") && second.is_done().expect("done"));
        assert_eq!(back.get(), data);
        assert_eq!(gpus.unpinned_bytes(), 0);
        drop((first, second, pins, on_a, on_b, stream, a, b));
        assert_eq!(gpus.alive(), 0, "{dialect}: everything was given back");
    }
}

#[test]
fn memory_is_kept_until_the_gpu_is_done_with_it() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("room");
    let stream = Stream::new(&gpu).expect("a stream");
    let host = Bytes::new(&pattern(4096, 3));
    let flight = stream
        .copy_in(&memory, 0, &host.pinned(), 0..4096)
        .expect("queued");
    let watch = Arc::downgrade(&memory);
    drop(memory);
    assert!(watch.upgrade().is_some(), "the copy holds it");
    drop(flight);
    assert!(watch.upgrade().is_none(), "dropping the copy waited for it");
}

#[test]
fn ranges_outside_of_a_memory_are_refused_before_the_runtime_is_asked() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::allocate(&gpu, 100).expect("room");
    let host = Bytes::new(&[1; 200]).pinned();
    let stream = Stream::new(&gpu).expect("a stream");
    let past = stream.copy_in(&memory, 50, &host, 0..51).map(drop);
    let wrapped = stream.copy_in(&memory, usize::MAX, &host, 0..2).map(drop);
    let host_past = stream.copy_out(&host, 150, &memory, 0..51).map(drop);
    let word = stream.write_word(&memory, 98, 1).map(drop);
    let odd = stream.write_word(&memory, 2, 1).map(drop);
    for refused in [past, wrapped, host_past, word, odd] {
        assert_eq!(refused.expect_err("outside").code(), "out-of-bounds");
    }
    assert_eq!(gpus.calls().get("cuMemcpyHtoDAsync"), None);
}

#[test]
fn memory_of_many_pieces_is_one_range_that_is_copied_and_exported_whole() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::map(&gpu, LEN, 2 << 20).expect("room");
    assert_eq!((memory.making(), memory.len()), (Making::Mapped, LEN));
    assert_eq!(gpus.calls()["cuMemCreate"], 3);
    let (data, stream) = (pattern(LEN, 5), Stream::new(&gpu).expect("a stream"));
    let host = Bytes::new(&data);
    let copy = stream
        .copy_in(&memory, 0, &host.pinned(), 0..LEN)
        .expect("queued");
    copy.wait().expect("done");
    assert_eq!(gpus.bytes(&memory), data);
    let exporter = GpuExporter::new(Arc::clone(&gpu), "gpu:0");
    assert!(!exporter.prefers_pcie_mapping());
    let len = LEN.next_multiple_of(4096) as u64;
    exporter
        .export(memory.address(), len, Mapping::Pcie)
        .expect("exported");
    let exported = gpus.exported();
    assert_eq!(
        (exported[0].start, exported[0].len, exported[0].pcie),
        (memory.address(), len, true)
    );
    drop((memory, stream, exporter, gpu));
    assert_eq!(gpus.alive(), 0);
}

#[test]
fn a_refused_export_says_what_the_driver_answered_and_a_missing_function_its_name() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("room");
    gpus.fail(
        "cuMemGetHandleForAddressRange",
        0,
        ExportError::NOT_SUPPORTED,
    );
    let exporter = GpuExporter::new(gpu, "gpu:0");
    let export = |exporter: &GpuExporter| exporter.export(memory.address(), 4096, Mapping::Default);
    let error = export(&exporter).expect_err("refused");
    assert_eq!(error.code, ExportError::NOT_SUPPORTED);
    assert!(export(&exporter).is_ok(), "the next one works");
    drop((exporter, memory));
    drop(gpus);
    let old = FakeGpus::cuda(1).without("cuMemGetHandleForAddressRange");
    let gpu = open(&old, 0);
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("room");
    let exporter = GpuExporter::new(gpu, "gpu:0");
    let error = exporter.export(memory.address(), 4096, Mapping::Default);
    let error = error.expect_err("no function");
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    assert_eq!(error.call, "cuMemGetHandleForAddressRange");
}

#[test]
fn peers_that_cannot_be_reached_are_told_apart_from_those_whose_access_fails() {
    let alone = Model {
        reachable: false,
        ..Model::default()
    };
    let gpus = FakeGpus::plug(Dialect::Cuda, &[alone, Model::default()]);
    // The runtime numbers them backwards: ordinal 0 is the second address.
    let (a, b) = (open(&gpus, 0), open(&gpus, 1));
    let refused = a.reach(&b).expect_err("cannot be reached");
    assert!(matches!(
        refused,
        PeerRefusal::Impossible {
            call: "cuDeviceCanAccessPeer"
        }
    ));
    gpus.fail("cuCtxEnablePeerAccess", 0, UNKNOWN);
    let refused = b.reach(&a).expect_err("asked to fail");
    assert!(matches!(
        refused,
        PeerRefusal::Failed(GpuError::Call { code: UNKNOWN, .. })
    ));
    b.reach(&a).expect("the next time it works");
    let foreign = open(&gpus, 0);
    assert!(a.reach(&foreign).is_ok(), "a GPU reaches itself");
}

#[test]
fn memory_of_another_process_is_the_same_memory_and_closed_before_it_is_freed() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("room");
    let opened = DeviceMemory::open(&gpu, &memory.share().expect("a handle"), 4096);
    let opened = opened.expect("opened");
    assert_eq!(opened.making(), Making::Opened);
    gpus.set_bytes(&memory, 10, b"here");
    assert_eq!(&gpus.bytes(&opened)[10..14], b"here");
    let again = opened.share().expect_err("it is another process's");
    assert_eq!(again.code(), "not-shareable");
    drop((opened, memory));
    assert_eq!(gpus.alive(), 1, "the context");
}

#[test]
fn memory_of_pieces_is_sent_piece_by_piece_and_is_the_same_memory_elsewhere() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let grain = 2 << 20;
    let len = 2 * grain + 100;
    let memory = DeviceMemory::map(&gpu, len, grain).expect("room");
    let shared = memory.share().expect("descriptors");
    let Shared::Pieces(pieces) = &shared else {
        panic!("{shared:?}")
    };
    assert_eq!(pieces.len(), 3);
    let opened = DeviceMemory::open(&gpu, &shared, len).expect("opened");
    for at in [0, grain - 2, 2 * grain + 90] {
        gpus.set_bytes(&memory, at, b"side by side");
    }
    assert!(gpus.bytes(&opened) == gpus.bytes(&memory));
    let short = DeviceMemory::open(&gpu, &shared, 4 * grain).expect_err("no such piece");
    assert_eq!(short.code(), "out-of-bounds");
    drop((opened, memory, shared));
    assert_eq!(gpus.alive(), 1, "the context");
}

#[test]
fn a_part_that_another_library_lent_is_sent_as_a_part_of_its_allocation() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let arena = DeviceMemory::allocate(&gpu, 8192).expect("room");
    // SAFETY: the arena outlives the part, which holds it.
    let part =
        unsafe { DeviceMemory::lent(&gpu, arena.address() + 4096, 4096, Arc::clone(&arena) as _) };
    let part = part.expect("its memory");
    let shared = part.share().expect("a handle");
    assert!(matches!(shared, Shared::Handle { offset: 4096, .. }));
    let opened = DeviceMemory::open(&gpu, &shared, 4096).expect("opened");
    gpus.set_bytes(&arena, 4096, b"tensor");
    assert_eq!(&gpus.bytes(&opened)[..6], b"tensor");
}

#[test]
fn lent_memory_is_checked_against_the_gpu_it_is_said_to_be_of() {
    let gpus = FakeGpus::cuda(2);
    let (a, b) = (open(&gpus, 0), open(&gpus, 1));
    let memory = DeviceMemory::allocate(&a, 4096).expect("room");
    let keeper: super::super::Keeper = Arc::clone(&memory) as _;
    // SAFETY: the keeper is the memory itself.
    let lend = |gpu: &Arc<Gpu>, address, len| unsafe {
        DeviceMemory::lent(gpu, address, len, Arc::clone(&keeper))
    };
    assert_eq!(
        lend(&a, memory.address(), 4096).expect("its own").making(),
        Making::Lent
    );
    let other = lend(&b, memory.address(), 4096).expect_err("another's");
    assert!(other.to_string().contains("device 1"), "{other}");
    let longer = lend(&a, memory.address(), 8192).expect_err("longer than it is");
    assert_eq!(longer.code(), "not-gpu-memory");
    let host = lend(&a, 4096, 1).expect_err("nobody's");
    assert!(host.to_string().contains("does not know"), "{host}");
}

#[test]
fn a_stream_waits_for_another_and_for_words_without_the_cpu() {
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &[Model::default()]);
        let gpu = open(&gpus, 0);
        let memory = DeviceMemory::allocate(&gpu, 64).expect("room");
        gpus.set_bytes(&memory, 0, &[0; 64]);
        let [first, second, third] = [0; 3].map(|_| Stream::new(&gpu).expect("a stream"));
        let host = Bytes::new(&[7; 16]).pinned();
        // Queued backwards: the third waits for a word that the second writes after the first.
        third.wait_until(&memory, 32, 5).expect("queued");
        let last = third.fill(&memory, 48..64, 9).expect("queued");
        let copy = first.copy_in(&memory, 0, &host, 0..16).expect("queued");
        second
            .wait_for(copy.event().expect("in flight"))
            .expect("queued");
        let word = second.write_word(&memory, 32, 5).expect("queued");
        last.wait().expect("nothing hangs");
        let bytes = gpus.bytes(&memory);
        assert_eq!(
            (&bytes[..16], &bytes[32..36], &bytes[48..]),
            (&[7; 16][..], &[5, 0, 0, 0][..], &[9; 16][..])
        );
        drop((copy, word));
    }
}

#[test]
fn writes_of_other_devices_are_flushed_where_that_is_needed_and_offered() {
    let model = |flush_options, writes_ordering| Model {
        flush_options,
        writes_ordering,
        ..Model::default()
    };
    let models = [model(0, 0), model(1, 0), model(1, 100)];
    let gpus = FakeGpus::plug(Dialect::Cuda, &models);
    let flushed = [0, 1, 2].map(|index| open(&gpus, index).flush_writes());
    assert!(
        matches!(flushed[0], WriteFlush::NotNeeded(_)),
        "the last model is at the first address"
    );
    assert_eq!(flushed[1], WriteFlush::Flushed);
    assert!(matches!(flushed[2], WriteFlush::Impossible(_)));
    gpus.fail("cuFlushGPUDirectRDMAWrites", 0, UNKNOWN);
    let WriteFlush::Impossible(why) = open(&gpus, 1).flush_writes() else {
        panic!("it failed")
    };
    assert!(why.contains("999"), "{why}");
}

#[test]
fn facts_for_registration_come_from_the_driver() {
    let coherent = Model {
        coherent: true,
        capability: (8, 6),
        ..Model::default()
    };
    let gpus = FakeGpus::plug(Dialect::Cuda, &[coherent]);
    let gpu = open(&gpus, 0);
    let facts = gpu.facts().for_registration();
    assert_eq!(
        facts,
        GpuFacts {
            compute_capability: Some((8, 6)),
            coherent_link: true
        }
    );
    assert!(GpuExporter::new(gpu, "gpu:0").prefers_pcie_mapping());
}

/// Everything that the module offers, once; an error of any step is handed on.
fn everything(gpus: &FakeGpus) -> Result<Vec<u8>, GpuError> {
    let runtime = gpus.runtime()?;
    let a = runtime.open(FakeGpus::address(0))?;
    let b = runtime.open(FakeGpus::address(1))?;
    let reaches = a.reach(&b);
    if let Err(PeerRefusal::Failed(error)) = reaches {
        return Err(error);
    }
    let host = Bytes::new(&pattern(8192, 2));
    let pin = HostRegistration::new(&a, host.pinned())?;
    let one = DeviceMemory::allocate(&a, 8192)?;
    let pieces = DeviceMemory::map(&b, 3 << 20, 1 << 20)?;
    let opened = DeviceMemory::open(&a, &one.share()?, 8192)?;
    let stitched = DeviceMemory::open(&b, &pieces.share()?, 3 << 20)?;
    let streams = [Stream::new(&a)?, Stream::new(&a)?];
    let copy = streams[0].copy_in(&one, 0, pin.memory(), 0..4096)?;
    if let Some(event) = copy.event() {
        streams[1].wait_for(event)?;
    }
    let across = streams[1].copy_across(&pieces, 4096, &opened, 0..4096)?;
    let out = streams[1].copy_out(pin.memory(), 4096, &stitched, 4096..8192)?;
    while !copy.is_done()? {}
    across.wait()?;
    out.wait()?;
    a.free_memory()?;
    Ok(host.get())
}

#[test]
fn whichever_call_fails_there_is_a_typed_error_and_nothing_is_left_or_freed_too_early() {
    for dialect in Dialect::ALL {
        let models = vec![Model::default(); 2];
        let counted = {
            let gpus = FakeGpus::plug(dialect, &models);
            let bytes = everything(&gpus).expect("nothing was asked to fail");
            assert_eq!(bytes[..4096], bytes[4096..]);
            assert_eq!(gpus.alive(), 0);
            gpus.calls()
        };
        let mut tried = 0;
        for (call, times) in counted {
            for nth in 0..times.min(3) {
                let gpus = FakeGpus::plug(dialect, &models);
                gpus.fail(call, nth, UNKNOWN);
                let outcome = everything(&gpus);
                tried += 1;
                if let Err(error) = outcome {
                    assert_eq!(error.answer(), Some(UNKNOWN), "{call}: {error}");
                }
            }
        }
        assert!(tried > 40, "{tried}");
    }
}

#[test]
fn a_failed_copy_shows_to_whoever_waits_for_it() {
    let gpus = FakeGpus::cuda(1);
    let gpu = open(&gpus, 0);
    let stream = Stream::new(&gpu).expect("a stream");
    let memory = DeviceMemory::allocate(&gpu, 4096).expect("room");
    gpus.fail("cuEventSynchronize", 0, UNKNOWN);
    let fill = stream.fill(&memory, 0..10, 1).expect("queued");
    let watch = Arc::downgrade(&memory);
    drop(memory);
    assert_eq!(fill.wait().expect_err("failed").answer(), Some(UNKNOWN));
    assert!(
        watch.upgrade().is_some(),
        "nobody knows whether the GPU is done with it"
    );
}

#[test]
fn an_address_leads_to_the_gpu_whose_memory_it_is_in() {
    let gpus = FakeGpus::cuda(3);
    let runtime = gpus.runtime().expect("a runtime");
    let gpu = runtime.open(FakeGpus::address(2)).expect("a GPU");
    let memory = DeviceMemory::allocate(&gpu, LEN).expect("memory");
    let (index, facts) = runtime
        .owner_of(memory.address() + LEN as u64 - 1)
        .expect("known");
    assert_eq!((index, facts.address), (2, FakeGpus::address(2)));
    let unknown = runtime.owner_of(0x10).expect_err("nobody's");
    assert_eq!(unknown.call(), Some("cuPointerGetAttribute"));
}
