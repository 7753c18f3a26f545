//! Host memory with the fabric's own paths; a GPU's with a NIC and GPUs that exist only in this process.

use crowfly_machine::gpu::fake::{FakeGpus, Model};
use crowfly_machine::gpu::{DeviceMemory, Dialect};
use crowfly_machine::verbs::Pinned;
use crowfly_machine::verbs::fake::{Asked, Behaviour, FakeNic};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::fabric::{Settings, SharedKey};

use super::*;
use crate::gpus::flush;

const LEN: usize = 1 << 20;

fn fabric(providers: Vec<Arc<dyn Provider>>) -> Fabric {
    let settings = Settings {
        providers,
        ..Settings::new(SharedKey::derive("memory"))
    };
    Fabric::new(settings).expect("a fabric")
}

fn registered(bytes: &mut [u8], kind: c_int) -> Result<Memory, NetError> {
    let (fabric, gpus) = (fabric(Vec::new()), Gpus::default());
    let (data, len) = (bytes.as_mut_ptr().cast(), bytes.len());
    // SAFETY: the bytes outlive the registration in each test, which does not touch them.
    unsafe { Memory::register(&fabric, &gpus, data, len, kind, Access::WRITE) }
}

#[test]
fn only_bytes_inside_of_the_memory_are_moved() {
    let mut bytes = vec![0u8; 4096];
    let memory = registered(&mut bytes, abi::PTR_HOST).expect("registered");
    let at = |offset: usize| std::ptr::without_provenance_mut(memory.start + offset);
    assert_eq!(memory.range(at(96), 4000).expect("inside"), 96..4096);
    assert_eq!(memory.range(at(4096), 0).expect("its end"), 4096..4096);
    assert_eq!(memory.slice(at(0), 4096).expect("inside").len(), 4096);
    for (data, len) in [
        (at(97), 4000),
        (at(0), usize::MAX),
        (at(1).wrapping_sub(2), 1),
    ] {
        let error = memory.range(data, len).expect_err("outside");
        assert_eq!(error.code(), "outside-of-memory");
    }
    memory.release().expect("released");
    let gone = memory.slice(at(0), 1).expect_err("gone");
    assert_eq!(gone.code(), "unknown-object");
    memory.release().expect("again");
}

#[test]
fn memory_of_a_kind_that_does_not_exist_is_refused() {
    let mut bytes = vec![0u8; 16];
    let error = registered(&mut bytes, 64).err().expect("refused");
    assert_eq!(
        (error.code(), error.result()),
        ("memory-type", abi::SYSTEM_ERROR)
    );
}

/// Two GPUs, a NIC, and memory of the second.
struct Machine {
    nic: FakeNic,
    gpus: Gpus,
    fabric: Fabric,
    memory: Arc<DeviceMemory>,
    world: FakeGpus,
}

impl Machine {
    fn new(name: &str, model: &Model) -> Self {
        let world = FakeGpus::plug(Dialect::Cuda, &[model.clone(), model.clone()]);
        let runtime = world.runtime().expect("a runtime");
        let gpu = runtime.open(FakeGpus::address(1)).expect("a GPU");
        let memory = DeviceMemory::allocate(&gpu, LEN).expect("memory");
        let nic = FakeNic::plug(name, Behaviour::default());
        let context = nic.verbs().open(name).expect("a device");
        let port = VerbsNic::open(&context, 1, VerbsSettings::default()).expect("a port");
        assert!(port.takes_dma_bufs());
        Self {
            fabric: fabric(vec![Arc::new(port)]),
            gpus: Gpus::of(runtime),
            nic,
            memory,
            world,
        }
    }

    fn register(&self, skip: usize, len: usize) -> Result<Memory, NetError> {
        let address = self.memory.address() + skip as u64;
        let data = std::ptr::without_provenance_mut(address as usize);
        let (fabric, gpus) = (&self.fabric, &self.gpus);
        // SAFETY: the memory of the GPU outlives the registration, and nobody looks at it.
        unsafe { Memory::register(fabric, gpus, data, len, abi::PTR_CUDA, Access::WRITE) }
    }

    fn dma_bufs(&self) -> Vec<Asked> {
        let mut asked = self.nic.asked();
        asked.retain(|asked| asked.call == "ibv_reg_dmabuf_mr");
        asked
    }
}

#[test]
fn a_gpus_memory_is_registered_through_a_dma_buf_and_given_back() {
    let machine = Machine::new("handed", &Model::default());
    let before = machine.nic.regions();
    let memory = machine.register(0, LEN).expect("registered");
    let asked = machine.dma_bufs();
    let last = asked.last().expect("asked");
    assert_eq!((last.offset, last.len), (0, LEN));
    assert_eq!(last.iova, machine.memory.address());
    assert_eq!(machine.nic.regions(), before + 1);
    let described = memory.described().expect("described");
    let descriptor = crowfly_mover::fabric::RegionDescriptor::from_bytes(&described);
    assert_eq!(*descriptor.expect("a descriptor").place(), Place::Gpu(1));
    memory.release().expect("released");
    assert_eq!(machine.nic.regions(), before);
}

#[test]
fn memory_that_starts_and_ends_within_a_page_is_registered_as_far_as_it_goes() {
    let machine = Machine::new("part", &Model::default());
    let memory = machine.register(4096 + 512, 5000).expect("registered");
    let asked = machine.dma_bufs();
    let last = asked.last().expect("asked");
    assert_eq!((last.offset, last.len), (512, 5000));
    memory.release().expect("released");
}

#[test]
fn an_address_of_no_gpu_is_refused() {
    let machine = Machine::new("nowhere", &Model::default());
    let before = machine.dma_bufs().len();
    let error = machine.register(2 * LEN, LEN).err().expect("refused");
    assert_eq!(error.code(), "memory-type");
    assert!(
        error.to_string().contains("cuPointerGetAttribute"),
        "{error}"
    );
    assert_eq!(machine.dma_bufs().len(), before);
}

#[test]
fn writes_into_a_gpu_are_flushed_where_it_needs_that_and_an_impossible_flush_is_an_error() {
    // `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`: none.
    let unordered = Model {
        writes_ordering: 0,
        ..Model::default()
    };
    let machine = Machine::new("flushed", &unordered);
    let memory = machine.register(0, LEN).expect("registered");
    let calls = || machine.world.calls();
    let flushes = || calls().get("cuFlushGPUDirectRDMAWrites").copied();
    let before = flushes().unwrap_or(0);
    flush(memory.gpu().expect("of a GPU")).expect("flushed");
    assert_eq!(flushes(), Some(before + 1));
    drop(memory);
    drop(machine);
    let deaf = Model {
        flush_options: 0,
        ..unordered
    };
    let machine = Machine::new("not-flushed", &deaf);
    let memory = machine.register(0, LEN).expect("registered");
    assert!(flush(memory.gpu().expect("of a GPU")).is_err());
}
