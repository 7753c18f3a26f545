//! Devices, regions and queues of the fake library.
//!
//! Every pointer that comes in was handed out by this module and is destroyed at most once: the
//! code above promises it by its types, and that is what the tests are about.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Instant;

use super::super::abi;
use super::super::error::VerbsError;
use super::super::mlx5::{ACCESS_DATA_DIRECT, Mlx5};
use super::{Asked, Behaviour, DataDirectPath, refuse, wire, world};

/// A NIC that is plugged in.
pub(super) struct Nic {
    pub behaviour: Behaviour,
    pub device: Box<abi::Device>,
    pub regions: HashMap<u32, Region>,
    pub asked: Vec<Asked>,
    pub posted: u64,
    /// Until when a slow one has something to do.
    pub busy: Option<Instant>,
}

// SAFETY: the device holds no pointers that are used.
unsafe impl Send for Nic {}

/// A registered region.
#[derive(Clone, Copy)]
pub(super) struct Region {
    pub iova: u64,
    pub len: u64,
    pub access: c_uint,
}

/// A queue pair.
pub(super) struct PairState {
    pub nic: String,
    pub state: c_uint,
    pub peer: u32,
    pub send_cq: usize,
    pub recv_cq: usize,
    pub receives: VecDeque<(u64, Option<abi::Sge>)>,
    /// What a silent NIC holds, or a slow one is not through with.
    pub held: Vec<u64>,
    pub inline: u32,
}

/// A device of that name.
pub(super) fn device(name: &str) -> Box<abi::Device> {
    // SAFETY: all-zero bytes are a valid `Device`: integers and null pointers.
    let mut device: Box<abi::Device> = Box::new(unsafe { std::mem::zeroed() });
    for (to, from) in device.name.iter_mut().zip(name.bytes().take(63)) {
        *to = from as c_char;
    }
    device
}

fn name_of(device: *const abi::Device) -> String {
    // SAFETY: a device of this module, whose name ends in a zero byte.
    let name = unsafe { std::ffi::CStr::from_ptr((*device).name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

/// The NIC that an open context belongs to. Its name lies behind `abi_compat`.
pub(super) fn nic_of(context: *const abi::Context) -> String {
    // SAFETY: the context was made by `open_device`, which put a leaked-until-close name there.
    unsafe { (*(*context).abi_compat.cast::<String>()).clone() }
}

pub(super) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let mut world = world();
    let mut list: Vec<*mut abi::Device> = world
        .nics
        .values_mut()
        .map(|nic| &raw mut *nic.device)
        .collect();
    // SAFETY: the caller passes a writable integer.
    unsafe { *count = list.len() as c_int };
    list.push(std::ptr::null_mut());
    Box::leak(list.into_boxed_slice()).as_mut_ptr()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    let mut len = 0;
    // SAFETY: the list ends in a null pointer and was leaked by `get_device_list`.
    unsafe {
        while !(*list.add(len)).is_null() {
            len += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(
            list,
            len + 1,
        )));
    }
}

pub(super) unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    let name = name_of(device);
    // SAFETY: all-zero bytes are a valid `Context`: integers, null pointers, no functions.
    let mut context: Box<abi::Context> = Box::new(unsafe { std::mem::zeroed() });
    context.device = device;
    context.abi_compat = Box::into_raw(Box::new(name)).cast();
    context.ops.poll_cq = Some(wire::poll_cq);
    context.ops.req_notify_cq = Some(wire::req_notify_cq);
    context.ops.post_send = Some(wire::post_send);
    context.ops.post_recv = Some(wire::post_recv);
    Box::into_raw(context)
}

pub(super) unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: both were made by `open_device`.
    unsafe {
        drop(Box::from_raw((*context).abi_compat.cast::<String>()));
        drop(Box::from_raw(context));
    }
    0
}

pub(super) unsafe extern "C" fn query_device(
    _: *mut abi::Context,
    attr: *mut abi::DeviceAttr,
) -> c_int {
    // SAFETY: the caller passes a writable structure.
    let attr = unsafe { &mut *attr };
    attr.max_qp_wr = 1024;
    attr.max_cqe = 4096;
    attr.max_sge = 16;
    attr.max_qp_rd_atom = 16;
    attr.max_qp_init_rd_atom = 16;
    attr.max_mr_size = u64::MAX;
    attr.phys_port_cnt = 1;
    0
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut abi::Context,
    port: u8,
    attr: *mut abi::PortAttr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let world = world();
    let down = world
        .nics
        .get(&nic_of(context))
        .is_none_or(|nic| nic.behaviour.port_down);
    // SAFETY: the caller passes a writable structure.
    let attr = unsafe { &mut *attr };
    attr.state = if down { 1 } else { abi::PORT_ACTIVE };
    attr.active_mtu = 5;
    attr.max_msg_sz = 1 << 30;
    attr.gid_tbl_len = 3;
    attr.link_layer = abi::LINK_LAYER_ETHERNET;
    0
}

/// Entry 0 is RoCE v1, entry 1 is RoCE v2, both of 10.0.0.1; entry 2 is unused.
fn gid(index: u32) -> Option<abi::GidEntry> {
    let raw = std::net::Ipv4Addr::new(10, 0, 0, 1)
        .to_ipv6_mapped()
        .octets();
    let gid_type = match index {
        0 => abi::GID_TYPE_ROCE_V1,
        1 => abi::GID_TYPE_ROCE_V2,
        _ => return None,
    };
    Some(abi::GidEntry {
        gid: abi::Gid { raw },
        gid_index: index,
        port_num: 1,
        gid_type,
        ndev_ifindex: 0,
    })
}

pub(super) unsafe extern "C" fn query_gid(
    _: *mut abi::Context,
    _: u8,
    index: c_int,
    out: *mut abi::Gid,
) -> c_int {
    let entry = u32::try_from(index).ok().and_then(gid).unwrap_or_default();
    // SAFETY: the caller passes a writable address.
    unsafe { *out = entry.gid };
    0
}

pub(super) unsafe extern "C" fn query_gid_ex(
    _: *mut abi::Context,
    _: u32,
    index: u32,
    out: *mut abi::GidEntry,
    _: u32,
    _: usize,
) -> c_int {
    match gid(index) {
        // SAFETY: the caller passes a writable entry.
        Some(entry) => unsafe { *out = entry },
        None => return libc::ENODATA,
    }
    0
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    Box::into_raw(Box::new(abi::Pd { context, handle: 1 }))
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: made by `alloc_pd`.
    drop(unsafe { Box::from_raw(pd) });
    0
}

fn register(
    pd: *mut abi::Pd,
    asked: Asked,
    access: c_uint,
    refused: impl Fn(&Behaviour) -> Option<i32>,
) -> *mut abi::Mr {
    // SAFETY: made by `alloc_pd`, and its context is open.
    let context = unsafe { (*pd).context };
    let mut world = world();
    let key = world.number();
    let Some(nic) = world.nics.get_mut(&nic_of(context)) else {
        return refuse(libc::ENODEV);
    };
    nic.asked.push(asked.clone());
    if let Some(errno) = refused(&nic.behaviour) {
        return refuse(errno);
    }
    let region = Region {
        iova: asked.iova,
        len: asked.len as u64,
        access,
    };
    nic.regions.insert(key, region);
    Box::into_raw(Box::new(abi::Mr {
        context,
        pd,
        addr: asked.iova as *mut c_void,
        length: asked.len,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

/// What a call asks for.
const fn asked(
    call: &'static str,
    (offset, len): (u64, usize),
    iova: u64,
    access: c_uint,
) -> Asked {
    Asked {
        call,
        offset,
        len,
        iova,
        relaxed: access & abi::ACCESS_RELAXED_ORDERING != 0,
    }
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    address: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut abi::Mr {
    let (access, whole) = (access as c_uint, (0, len));
    let asked = asked("ibv_reg_mr", whole, address as u64, access);
    register(pd, asked, access, |nic| nic.register)
}

pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut abi::Pd,
    _: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    let asked = asked("ibv_reg_mr_iova2", (0, len), iova, access);
    let relaxed = asked.relaxed;
    register(pd, asked, access, |nic| {
        nic.register.or(nic.relaxed.filter(|_| relaxed))
    })
}

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut abi::Pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut abi::Mr {
    let access = access as c_uint;
    let asked = asked("ibv_reg_dmabuf_mr", (offset, len), iova, access);
    register(pd, asked, access, |nic| {
        // SAFETY: asks about a number; the result is only looked at.
        let open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        nic.dma_buf
            .or((!open).then_some(libc::EBADF))
            .or((nic.dma_buf_pcie_invalid && is_pcie_mapping(fd)).then_some(libc::EINVAL))
    })
}

/// libmlx5 as it would be loaded.
pub(super) fn mlx5() -> Result<Arc<Mlx5>, VerbsError> {
    Ok(Arc::new(Mlx5 {
        is_supported,
        data_direct_path,
        reg_dmabuf_mr: mlx5_reg_dmabuf_mr,
    }))
}

/// One that is older than the functions.
pub(super) fn no_mlx5() -> Result<Arc<Mlx5>, VerbsError> {
    Err(VerbsError::Unsupported {
        library: "libmlx5.so.1",
        symbol: "mlx5dv_reg_dmabuf_mr@MLX5_1.25",
        why: "undefined symbol".into(),
    })
}

fn data_direct(context: *mut abi::Context) -> DataDirectPath {
    let world = world();
    let nic = world.nics.get(&nic_of(context));
    nic.map_or(DataDirectPath::OtherMaker, |nic| nic.behaviour.data_direct)
}

unsafe extern "C" fn is_supported(device: *mut abi::Device) -> bool {
    // SAFETY: a device of this module's, whose name is a C string.
    let name = unsafe { std::ffi::CStr::from_ptr((*device).name.as_ptr()) };
    let world = world();
    let nic = world.nics.get(name.to_string_lossy().as_ref());
    nic.is_some_and(|nic| nic.behaviour.data_direct != DataDirectPath::OtherMaker)
}

unsafe extern "C" fn data_direct_path(
    context: *mut abi::Context,
    path: *mut c_char,
    room: usize,
) -> c_int {
    const AT: &std::ffi::CStr = c"/devices/pci0000:00/0000:0a:00.0";
    match data_direct(context) {
        DataDirectPath::OtherMaker | DataDirectPath::Absent => libc::ENODEV,
        _ if room < AT.count_bytes() + 1 => libc::ENOSPC,
        _ => {
            // SAFETY: there is room for it, the zero byte included.
            unsafe { std::ptr::copy_nonoverlapping(AT.as_ptr(), path, AT.count_bytes() + 1) };
            0
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "as the C function has")]
unsafe extern "C" fn mlx5_reg_dmabuf_mr(
    pd: *mut abi::Pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut abi::Mr {
    let access = access as c_uint;
    let asked = asked("mlx5dv_reg_dmabuf_mr", (offset, len), iova, access);
    register(pd, asked, access, |nic| match nic.data_direct {
        DataDirectPath::There if mlx5_access == ACCESS_DATA_DIRECT && is_for_pcie(fd) => None,
        DataDirectPath::Refused(errno) => Some(errno),
        _ => Some(libc::EINVAL),
    })
}

/// Whether a descriptor may be one of the PCIe mapping; the GPUs of this crate do not mark theirs.
fn is_for_pcie(fd: c_int) -> bool {
    let of_a_gpu = std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|name| name.to_string_lossy().contains("fake-gpu"));
    of_a_gpu || is_pcie_mapping(fd)
}

/// The tests' exporter marks the descriptor of the PCIe mapping by its file's name.
fn is_pcie_mapping(fd: c_int) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|name| name.to_string_lossy().contains("pcie"))
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: made by `register`.
    let mr = unsafe { Box::from_raw(mr) };
    let mut world = world();
    if let Some(nic) = world.nics.get_mut(&nic_of(mr.context)) {
        nic.regions.remove(&mr.rkey);
    }
    0
}

pub(super) unsafe extern "C" fn create_comp_channel(
    context: *mut abi::Context,
) -> *mut abi::CompChannel {
    // SAFETY: takes no pointers. Each read takes one event.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    Box::into_raw(Box::new(abi::CompChannel {
        context,
        fd,
        refcnt: 0,
    }))
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: made by `create_comp_channel`, with a descriptor of its own.
    unsafe {
        libc::close((*channel).fd);
        drop(Box::from_raw(channel));
    }
    0
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut abi::CompChannel,
    _: c_int,
) -> *mut abi::Cq {
    // SAFETY: all-zero bytes are a valid `Cq`: integers, null pointers and unused locks.
    let mut cq: Box<abi::Cq> = Box::new(unsafe { std::mem::zeroed() });
    cq.context = context;
    cq.channel = channel;
    cq.cqe = entries;
    let cq = Box::into_raw(cq);
    world().queues.insert(cq as usize, VecDeque::new());
    cq
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut abi::Cq) -> c_int {
    let mut world = world();
    world.queues.remove(&(cq as usize));
    world.armed.remove(&(cq as usize));
    // SAFETY: made by `create_cq`.
    drop(unsafe { Box::from_raw(cq) });
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompChannel,
    _: *mut *mut abi::Cq,
    _: *mut *mut c_void,
) -> c_int {
    let mut count = 0u64;
    // SAFETY: an event counter is read by eight bytes.
    let got = unsafe { libc::read((*channel).fd, (&raw mut count).cast(), 8) };
    if got == 8 { 0 } else { -1 }
}

pub(super) unsafe extern "C" fn ack_cq_events(_: *mut abi::Cq, _: c_uint) {}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut abi::Pd,
    init: *mut abi::QpInitAttr,
) -> *mut abi::Qp {
    // SAFETY: made by `alloc_pd`, and the caller passes a structure.
    let (context, init) = unsafe { ((*pd).context, &*init) };
    let mut world = world();
    let number = world.number();
    // SAFETY: all-zero bytes are a valid `Qp`: integers, null pointers and unused locks.
    let mut qp: Box<abi::Qp> = Box::new(unsafe { std::mem::zeroed() });
    qp.context = context;
    qp.pd = pd;
    qp.send_cq = init.send_cq;
    qp.recv_cq = init.recv_cq;
    qp.qp_num = number;
    let state = PairState {
        nic: nic_of(context),
        state: 0,
        peer: 0,
        send_cq: init.send_cq as usize,
        recv_cq: init.recv_cq as usize,
        receives: VecDeque::new(),
        held: Vec::new(),
        inline: init.cap.max_inline_data,
    };
    world.pairs.insert(number, state);
    Box::into_raw(qp)
}
