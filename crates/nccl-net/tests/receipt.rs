//! Given a process whose NCCL tells the plugin of its calls, when crowfly does collectives by that NCCL, then
//! their receipts have the calls. NCCL and the GPU are made up.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_machine::gpu::{DeviceMemory, Stream};
use crowfly_machine::nccl::Part;
use crowfly_machine::nccl::fake::FakeNccl;
use crowfly_mover::collective::{
    CallOptions, DeviceGroup, Element, Group, GroupSettings, NcclCall, NcclCalls, Reduction,
};
use crowfly_mover::fabric::rendezvous::Folder;
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use crowfly_route::units::Bytes;
use libloading::Library;
use nccl_net_crowfly::abi::profiler::{About, COLLECTIVE, Collective, Event, InitV5, Profiler};

const SOON: CallOptions = CallOptions::within(Duration::from_secs(30));

/// The plugin that cargo built beside this test, loaded under another name than NCCL's.
fn load() -> &'static Profiler<InitV5, u64> {
    let test = std::env::current_exe().expect("this program");
    let path: PathBuf = test.with_file_name("libnccl_net_crowfly.so");
    // SAFETY: the plugin's initialisers are those of any Rust library.
    let library = unsafe { Library::new(path) }.expect("cargo built it");
    // SAFETY: the symbol is a table of this type, in memory that stays.
    let table = unsafe { library.get::<*const Profiler<InitV5, u64>>(b"ncclProfiler_v5\0") };
    let table: *const Profiler<InitV5, u64> = *table.expect("it is a profiler");
    std::mem::forget(library);
    // SAFETY: as above.
    unsafe { &*table }
}

/// What NCCL does when it makes a communicator of one rank.
fn begin(profiler: &Profiler<InitV5, u64>, number: u64) -> *mut c_void {
    let (mut context, mut mask): (*mut c_void, c_int) = (null_mut(), 0);
    let name = c"of a test".as_ptr();
    // SAFETY: all pointers are to what they should be, for as long as the call lasts.
    let result = unsafe { (profiler.init)(&mut context, number, &mut mask, name, 1, 1, 0, None) };
    assert_eq!(result, 0);
    context
}

/// What NCCL does when it has made an all-reduce ready.
fn tell(profiler: &Profiler<InitV5, u64>, context: *mut c_void, count: usize) {
    let event = Event::<u64> {
        kind: COLLECTIVE,
        parent: null_mut(),
        rank: 0,
        about: About {
            collective: Collective {
                sequence: 0,
                what: c"AllReduce".as_ptr(),
                from: null_mut(),
                to: null_mut(),
                count,
                root: -1,
                kind: c"ncclFloat32".as_ptr(),
                channels: 12,
                warps: 16,
                algorithm: c"NVLS".as_ptr(),
                protocol: c"SIMPLE".as_ptr(),
            },
        },
    };
    let mut handle = null_mut();
    // SAFETY: as above.
    let result = unsafe { (profiler.start_event)(context, &mut handle, &event) };
    assert_eq!(result, 0);
}

#[test]
fn given_calls_that_nccl_told_the_plugin_of_the_receipt_has_those_of_its_own_communicator() {
    let (gpus, nccl) = (FakeGpus::cuda(1), FakeNccl::plug());
    let folder = tempfile::tempdir().expect("a folder");
    let form = || {
        let fabric = Fabric::new(Settings::new(SharedKey::derive("a test of receipts")));
        let directory = Folder::at(folder.path());
        let settings = GroupSettings::default();
        let host = Group::form(
            Arc::new(fabric.expect("a fabric")),
            &directory,
            "job",
            0,
            1,
            settings,
        );
        let runtime = gpus.runtime().expect("a runtime");
        let gpu = runtime.open(FakeGpus::address(0)).expect("a GPU");
        let stream = Stream::new(&gpu).expect("a stream");
        DeviceGroup::form(host.expect("a group"), &nccl.functions(), stream, SOON).expect("formed")
    };
    let reduce = |group: &mut DeviceGroup| {
        let memory = DeviceMemory::allocate(group.stream().gpu(), 4096).expect("memory");
        let part = Part::of(&memory, 0..4096);
        let queued = group.all_reduce(part, Element::F32, Reduction::Sum, SOON);
        let receipt = group.wait(queued.expect("queued")).expect("done");
        receipt.nccl.expect("NCCL did it").calls
    };

    // Nothing has loaded the plugin yet.
    let NcclCalls::Unknown { why } = reduce(&mut form()) else {
        panic!("nobody was told")
    };
    assert!(why.starts_with("NCCL has not loaded"), "{why}");

    let profiler = load();
    let earlier = begin(profiler, 1);
    tell(profiler, earlier, 7);
    let mut group = form();
    let NcclCalls::Unknown { why } = reduce(&mut group) else {
        panic!("another communicator's calls are not this one's")
    };
    assert!(why.ends_with("nothing of this communicator"), "{why}");
    let own = begin(profiler, 2);
    tell(profiler, own, 1024);
    tell(profiler, own, 1024);
    let told = NcclCalls::Told(vec![NcclCall {
        what: "AllReduce".into(),
        numbers: "ncclFloat32".into(),
        algorithm: Some("NVLS".into()),
        protocol: Some("SIMPLE".into()),
        calls: 2,
        bytes: Some(Bytes(8192)),
        channels: 12,
    }]);
    assert_eq!(reduce(&mut group), told);
}
