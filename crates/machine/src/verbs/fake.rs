//! NICs that exist only in this process, for tests: a table of functions that behaves as
//! libibverbs, with one wire that joins all of them and faults that can be switched on.
//!
//! Requests are carried out when they are posted, by copying, after the checks that a NIC makes:
//! keys, bounds, access, receives posted. A NIC can also fall silent, and then holds what was
//! posted until its queue pair is stopped.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::abi;
use super::completion::Status;
use super::device::Verbs;
use super::functions::Functions;

mod objects;
mod wire;

/// What a NIC does. The default does everything right.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// `ibv_reg_mr` fails with this error number.
    pub register: Option<i32>,
    /// Registering with relaxed ordering fails with this error number.
    pub relaxed: Option<i32>,
    /// `ibv_reg_dmabuf_mr` fails with this error number.
    pub dma_buf: Option<i32>,
    /// `ibv_reg_dmabuf_mr` of the descriptor that the PCIe mapping gave fails with EINVAL.
    pub dma_buf_pcie_invalid: bool,
    /// Whether it has a data-direct path, and what registering for it fails with.
    pub data_direct: DataDirectPath,
    /// Answers nothing: what is posted stays in flight until the queue pair is stopped.
    pub silent: bool,
    /// How many bytes it carries in a second, one request after the other; as many as there are when `None`.
    pub pace: Option<u64>,
    /// The request with this ordinal number, counted from 0 over the NIC, fails with this status.
    pub fail: Option<(u64, Status)>,
    /// The request with this ordinal number is carried out, but its answer is lost.
    pub unanswered: Option<u64>,
    /// The port is down.
    pub port_down: bool,
}

/// A NIC's path past the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataDirectPath {
    /// Another maker's NIC.
    #[default]
    OtherMaker,
    /// One of mlx5's, without the path.
    Absent,
    /// One of mlx5's that has it.
    There,
    /// The same, and registering for it fails with this error number.
    Refused(i32),
}

/// What a NIC was asked to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `ibv_reg_mr`, `ibv_reg_mr_iova2`, `ibv_reg_dmabuf_mr` or `mlx5dv_reg_dmabuf_mr`.
    pub call: &'static str,
    /// The offset into the dma-buf.
    pub offset: u64,
    /// The length.
    pub len: usize,
    /// The address that peers use.
    pub iova: u64,
    /// Whether relaxed ordering was asked for.
    pub relaxed: bool,
}

/// Which of the optional functions the library has.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// `ibv_reg_mr_iova2`
    pub iova2: bool,
    /// `ibv_reg_dmabuf_mr`
    pub dma_buf: bool,
    /// libmlx5
    pub mlx5: bool,
}

/// A NIC in this process, plugged out when it is dropped.
#[derive(Debug)]
pub struct FakeNic {
    name: String,
}

impl FakeNic {
    /// Plugs a NIC in. Names are shared by the whole process, so each test uses its own.
    pub fn plug(name: &str, behaviour: Behaviour) -> Self {
        world().nics.insert(
            name.to_owned(),
            objects::Nic {
                behaviour,
                device: objects::device(name),
                regions: HashMap::new(),
                asked: Vec::new(),
                posted: 0,
                busy: None,
            },
        );
        Self {
            name: name.to_owned(),
        }
    }

    /// The devices, by a library with all functions.
    pub fn verbs(&self) -> Verbs {
        self.verbs_of(Library {
            iova2: true,
            dma_buf: true,
            mlx5: true,
        })
    }

    /// The devices, by an older library.
    pub fn verbs_of(&self, library: Library) -> Verbs {
        // SAFETY: the functions below do what libibverbs documents.
        unsafe { Verbs::with(Arc::new(functions(library))) }
    }

    /// Changes what it does from now on.
    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        if let Some(nic) = world().nics.get_mut(&self.name) {
            change(&mut nic.behaviour);
        }
    }

    /// Requests that were posted to it: the ordinal number of the next one.
    pub fn requests(&self) -> u64 {
        world().nics.get(&self.name).map_or(0, |nic| nic.posted)
    }

    /// What it was asked to register, in order; including what it refused.
    pub fn asked(&self) -> Vec<Asked> {
        let world = world();
        world
            .nics
            .get(&self.name)
            .map_or(Vec::new(), |nic| nic.asked.clone())
    }

    /// Regions that are registered now.
    pub fn regions(&self) -> usize {
        world()
            .nics
            .get(&self.name)
            .map_or(0, |nic| nic.regions.len())
    }
}

impl Drop for FakeNic {
    fn drop(&mut self) {
        world().nics.remove(&self.name);
    }
}

/// Everything that exists, behind one lock: what is tested is the code above.
#[derive(Default)]
struct World {
    nics: HashMap<String, objects::Nic>,
    pairs: HashMap<u32, objects::PairState>,
    queues: HashMap<usize, VecDeque<abi::Wc>>,
    armed: HashMap<usize, bool>,
    next: u32,
}

impl World {
    fn number(&mut self) -> u32 {
        self.next += 1;
        0x100 + self.next
    }
}

fn world() -> MutexGuard<'static, World> {
    static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn functions(library: Library) -> Functions {
    Functions {
        get_device_list: objects::get_device_list,
        free_device_list: objects::free_device_list,
        open_device: objects::open_device,
        close_device: objects::close_device,
        query_device: objects::query_device,
        query_port: objects::query_port,
        query_gid: objects::query_gid,
        alloc_pd: objects::alloc_pd,
        dealloc_pd: objects::dealloc_pd,
        reg_mr: objects::reg_mr,
        dereg_mr: objects::dereg_mr,
        create_comp_channel: objects::create_comp_channel,
        destroy_comp_channel: objects::destroy_comp_channel,
        create_cq: objects::create_cq,
        destroy_cq: objects::destroy_cq,
        get_cq_event: objects::get_cq_event,
        ack_cq_events: objects::ack_cq_events,
        create_qp: objects::create_qp,
        modify_qp: wire::modify_qp,
        destroy_qp: wire::destroy_qp,
        reg_mr_iova2: library.iova2.then_some(objects::reg_mr_iova2),
        query_gid_ex: Some(objects::query_gid_ex),
        reg_dmabuf_mr: library.dma_buf.then_some(objects::reg_dmabuf_mr),
        mlx5: if library.mlx5 {
            objects::mlx5
        } else {
            objects::no_mlx5
        },
    }
}

/// Sets `errno` and returns null, as libibverbs does when it cannot make something.
fn refuse<T>(errno: i32) -> *mut T {
    // SAFETY: the location of this thread's errno is always writable.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests;
