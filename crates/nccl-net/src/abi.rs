//! The layouts and numbers of NCCL's network plugin interface, versions 8 to 11, for 64-bit Linux.
//!
//! Written from the facts in NCCL's public headers (`plugin/net/net_v8.h` to `net_v11.h`); the tests
//! hold them against a C compiler.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

pub mod profiler;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("NCCL is a library of 64-bit machines");

/// `ncclSuccess`.
pub const SUCCESS: c_int = 0;
/// `ncclSystemError`: the machine cannot do it.
pub const SYSTEM_ERROR: c_int = 2;
/// `ncclInternalError`: a fault of this plugin.
pub const INTERNAL_ERROR: c_int = 3;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: c_int = 4;
/// `ncclInvalidUsage`: what the user set, or what the ranks do, does not fit together.
pub const INVALID_USAGE: c_int = 5;
/// `ncclRemoteError`: the other end, or the way to it.
pub const REMOTE_ERROR: c_int = 6;

/// `NCCL_LOG_WARN`.
pub const LOG_WARN: c_uint = 2;
/// `NCCL_LOG_INFO`.
pub const LOG_INFO: c_uint = 3;
/// `NCCL_INIT | NCCL_NET`, the subsystems that this plugin's lines belong to.
pub const LOG_INIT_NET: c_ulong = 0x1 | 0x10;
/// `NCCL_NET`.
pub const LOG_NET: c_ulong = 0x10;

/// `NCCL_PTR_HOST`: memory of the host.
pub const PTR_HOST: c_int = 0x1;
/// `NCCL_PTR_CUDA`: memory of a GPU.
pub const PTR_CUDA: c_int = 0x2;
/// `NCCL_PTR_DMABUF`: memory of a GPU, given as a dma-buf.
pub const PTR_DMABUF: c_int = 0x4;

/// Bytes of a handle (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE: usize = 128;
/// NICs of a virtual device (`NCCL_NET_MAX_DEVS_PER_NIC` of these versions).
pub const MAX_NICS: usize = 4;
/// `MAX_NET_SIZE`: the most bytes of one message that every version can express.
pub const MAX_MESSAGE: usize = 1 << 30;

/// `ncclDebugLogger_t`.
pub type Logger = Option<
    unsafe extern "C" fn(
        level: c_uint,
        subsystems: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
        ...
    ),
>;
/// `ncclProfilerCallback_t`, by which a network tells a profiler of events of its own; there are none.
pub type Profiler = *const c_void;

/// `ncclNetProperties_v8_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV8 {
    /// Name of the NIC, for logs.
    pub name: *const c_char,
    /// Its PCI device below `/sys`, or null.
    pub pci_path: *const c_char,
    /// The same for all functions of one chip.
    pub guid: u64,
    /// `PTR_…` bits.
    pub ptr_support: c_int,
    /// Whether registrations belong to no comm.
    pub reg_is_global: c_int,
    /// Megabits per second.
    pub speed: c_int,
    /// Number of the port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// The most comms.
    pub max_comms: c_int,
    /// The most receives of one group.
    pub max_recvs: c_int,
    /// Where the device runs; 0 is the host.
    pub net_device_type: c_int,
    /// Version of the device's code.
    pub net_device_version: c_int,
}

/// `ncclNetVDeviceProps_v9_t`, and those of 10 and 11: the NICs of a virtual device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevice {
    /// How many there are.
    pub count: c_int,
    /// Which they are.
    pub devices: [c_int; MAX_NICS],
}

/// `ncclNetProperties_v9_t` and `ncclNetProperties_v10_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV9 {
    /// Name of the NIC, for logs.
    pub name: *const c_char,
    /// Its PCI device below `/sys`, or null.
    pub pci_path: *const c_char,
    /// The same for all functions of one chip.
    pub guid: u64,
    /// `PTR_…` bits.
    pub ptr_support: c_int,
    /// Whether registrations belong to no comm.
    pub reg_is_global: c_int,
    /// Whether receives into GPUs are flushed even where the GPU would not need it.
    pub force_flush: c_int,
    /// Megabits per second.
    pub speed: c_int,
    /// Number of the port.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// The most comms.
    pub max_comms: c_int,
    /// The most receives of one group.
    pub max_recvs: c_int,
    /// Where the device runs; 0 is the host.
    pub net_device_type: c_int,
    /// Version of the device's code.
    pub net_device_version: c_int,
    /// The NICs it is made of.
    pub virtual_device: VirtualDevice,
    /// The most bytes of one message between two ranks.
    pub max_p2p_bytes: usize,
    /// The most bytes of one message of a collective network.
    pub max_coll_bytes: usize,
}

/// `ncclNetProperties_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV11 {
    /// What there was before.
    pub v9: PropertiesV9,
    /// The most requests of one multi-request.
    pub max_multi_request_size: c_int,
}

/// `init` of versions 8 and 9.
pub type InitV8 = unsafe extern "C" fn(Logger) -> c_int;
/// `init` of version 10.
pub type InitV10 = unsafe extern "C" fn(Logger, Profiler) -> c_int;
/// `init` of version 11: context, communicator, its configuration.
pub type InitV11 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *const c_void, Logger, Profiler) -> c_int;
/// `devices`.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
/// `getProperties`.
pub type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> c_int;
/// `listen`: device, handle, comm.
pub type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `listen` with a context.
pub type ListenV11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `connect`: device, handle, comm, device-side handle.
pub type Connect =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
/// `connect` with a configuration.
pub type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *const c_void,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `connect` with a context.
pub type ConnectV11 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `accept`: listening comm, comm, device-side handle.
pub type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
/// `regMr`: comm, data, size, type, handle.
pub type RegMr =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> c_int;
/// `regMrDmaBuf`: comm, data, size, type, offset, descriptor, handle.
pub type RegMrDmaBuf = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    *mut *mut c_void,
) -> c_int;
/// `deregMr`: comm, handle.
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// `isend`: comm, data, size (an `int` or a `size_t`), tag, memory, request.
pub type Isend<S> = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    S,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `isend` with a handle of the profiler before the request.
pub type IsendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `irecv`: comm, count, data, sizes, tags, memory, request.
pub type Irecv<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut S,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `irecv` with handles of the profiler before the request.
pub type IrecvV10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `iflush`: comm, count, data, sizes, memory, request.
pub type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `test`: request, done, sizes.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int;
/// `closeSend`, `closeRecv`, `closeListen`, and `finalize`.
pub type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `getDeviceMr`: comm, memory, what the device needs.
pub type GetDeviceMr = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
/// `irecvConsumed`: comm, count, request.
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
/// `makeVDevice`: number of the new device, its NICs.
pub type MakeVDevice = unsafe extern "C" fn(*mut c_int, *const VirtualDevice) -> c_int;
/// `setNetAttr`: context, hints.
pub type SetNetAttr = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;

macro_rules! tables {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[expect(missing_docs, reason = "the fields are NCCL's, in its order and by its names")]
            pub struct $name { pub name: *const c_char, $(pub $field: $type),* }

            // SAFETY: the name points to a constant, and functions can be called from any thread.
            unsafe impl Sync for $name {}
        )*
    };
}

tables! {
    /// `ncclNet_v8_t`.
    NetV8 {
        init: InitV8, devices: Devices, get_properties: GetProperties<PropertiesV8>,
        listen: Listen, connect: Connect, accept: Accept, reg_mr: RegMr,
        reg_mr_dma_buf: RegMrDmaBuf, dereg_mr: DeregMr, isend: Isend<c_int>,
        irecv: Irecv<c_int>, iflush: Iflush, test: Test, close_send: Close, close_recv: Close,
        close_listen: Close, get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed,
    }
    /// `ncclNet_v9_t`.
    NetV9 {
        init: InitV8, devices: Devices, get_properties: GetProperties<PropertiesV9>,
        listen: Listen, connect: Connect, accept: Accept, reg_mr: RegMr,
        reg_mr_dma_buf: RegMrDmaBuf, dereg_mr: DeregMr, isend: Isend<usize>,
        irecv: Irecv<usize>, iflush: Iflush, test: Test, close_send: Close, close_recv: Close,
        close_listen: Close, get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed,
        make_v_device: MakeVDevice,
    }
    /// `ncclNet_v10_t`.
    NetV10 {
        init: InitV10, devices: Devices, get_properties: GetProperties<PropertiesV9>,
        listen: Listen, connect: ConnectV10, accept: Accept, reg_mr: RegMr,
        reg_mr_dma_buf: RegMrDmaBuf, dereg_mr: DeregMr, isend: IsendV10, irecv: IrecvV10,
        iflush: Iflush, test: Test, close_send: Close, close_recv: Close, close_listen: Close,
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice,
    }
    /// `ncclNet_v11_t`.
    NetV11 {
        init: InitV11, devices: Devices, get_properties: GetProperties<PropertiesV11>,
        listen: ListenV11, connect: ConnectV11, accept: Accept, reg_mr: RegMr,
        reg_mr_dma_buf: RegMrDmaBuf, dereg_mr: DeregMr, isend: IsendV10, irecv: IrecvV10,
        iflush: Iflush, test: Test, close_send: Close, close_recv: Close, close_listen: Close,
        get_device_mr: GetDeviceMr, irecv_consumed: IrecvConsumed, make_v_device: MakeVDevice,
        finalize: Close, set_net_attr: SetNetAttr,
    }
}

#[cfg(test)]
mod tests;
