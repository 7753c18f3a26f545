//! The functions themselves. Every pointer that comes in was handed out by this module or is
//! writable, and every handle is destroyed at most once: the code above promises it by its types,
//! and that is what the tests are about.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};

use super::super::abi::SUCCESS;
use super::super::functions::{Dialect, Functions};
use super::world::World;

mod devices;
mod memory;
mod work;

use devices::*;
use memory::*;
use work::*;

/// `CUDA_ERROR_INVALID_CONTEXT`
const INVALID_CONTEXT: c_int = 201;
/// `CUDA_ERROR_NOT_INITIALIZED`
const NOT_INITIALIZED: c_int = 3;
/// `CUDA_ERROR_INVALID_DEVICE`
const INVALID_DEVICE: c_int = 101;
/// Contexts are told from other handles by this.
const CONTEXT: u64 = 0xc0_0000;

thread_local! {
    /// Devices that are current on this thread, the innermost last.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static HIP_DEVICE: RefCell<usize> = const { RefCell::new(0) };
}

fn current(world: &World) -> Option<usize> {
    match world.dialect? {
        Dialect::Cuda => CURRENT.with_borrow(|stack| stack.last().copied()),
        Dialect::Hip => Some(HIP_DEVICE.with_borrow(|device| *device)),
    }
}

/// Counts the call and fails it when it is to fail.
macro_rules! begin {
    ($world:ident, $call:literal) => {
        let mut $world = super::super::world::world();
        if let Some(code) = $world.called($call) {
            return code;
        }
    };
}

/// Writes an answer through a pointer of the caller's.
fn answer<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the callers of this module pass writable pointers.
    unsafe { to.write(value) };
    SUCCESS
}

fn say(text: &str, to: *mut c_char, len: c_int) -> c_int {
    let room = usize::try_from(len).unwrap_or(0).saturating_sub(1);
    for (at, byte) in text.bytes().take(room).chain([0]).enumerate() {
        // SAFETY: the caller passes room for `len` bytes.
        unsafe { to.add(at).write(byte as c_char) };
    }
    SUCCESS
}

fn index(world: &World, device: c_int) -> Option<usize> {
    let device = usize::try_from(device).ok()?;
    (device < world.models.len()).then_some(device)
}

use begin;

pub(super) fn functions(dialect: Dialect, without: &[&'static str]) -> Functions {
    let mut table = Functions::empty(dialect, dialect.libraries()[0]);
    macro_rules! both {
        ($($field:ident: $call:literal),+ $(,)?) => {
            {
                $(if !without.contains(&$call) { table.$field = Some($field); })+
            }
        };
    }
    both! {
        init: "cuInit", device_count: "cuDeviceGetCount", device_get: "cuDeviceGet",
        device_name: "cuDeviceGetName", device_memory: "cuDeviceTotalMem",
        device_bus: "cuDeviceGetPCIBusId", memory_info: "cuMemGetInfo", alloc: "cuMemAlloc",
        free: "cuMemFree", host_register: "cuMemHostRegister",
        host_unregister: "cuMemHostUnregister", stream_create: "cuStreamCreate",
        stream_destroy: "cuStreamDestroy", stream_synchronize: "cuStreamSynchronize",
        stream_wait_event: "cuStreamWaitEvent", event_create: "cuEventCreate",
        event_destroy: "cuEventDestroy", event_record: "cuEventRecord",
        event_query: "cuEventQuery", event_synchronize: "cuEventSynchronize",
        copy_in: "cuMemcpyHtoDAsync", copy_out: "cuMemcpyDtoHAsync",
        copy_within: "cuMemcpyDtoDAsync", version: "cuDriverGetVersion",
        error_text: "cuGetErrorString", can_access_peer: "cuDeviceCanAccessPeer",
        fill: "cuMemsetD8Async", ipc_get: "cuIpcGetMemHandle", ipc_open: "cuIpcOpenMemHandle",
        ipc_close: "cuIpcCloseMemHandle", address_range: "cuMemGetAddressRange",
        export_handle: "cuMemExportToShareableHandle",
        import_handle: "cuMemImportFromShareableHandle", pointer_attribute: "cuPointerGetAttribute",
        pointer_set_attribute: "cuPointerSetAttribute", address_reserve: "cuMemAddressReserve",
        address_free: "cuMemAddressFree", memory_create: "cuMemCreate",
        memory_release: "cuMemRelease", memory_map: "cuMemMap", memory_unmap: "cuMemUnmap",
        memory_access: "cuMemSetAccess", memory_granularity: "cuMemGetAllocationGranularity",
        range_handle: "cuMemGetHandleForAddressRange", write_value: "cuStreamWriteValue32",
    }
    match dialect {
        Dialect::Cuda => both! {
            primary_retain: "cuDevicePrimaryCtxRetain",
            primary_release: "cuDevicePrimaryCtxRelease", context_push: "cuCtxPushCurrent",
            context_pop: "cuCtxPopCurrent", device_attribute: "cuDeviceGetAttribute",
            enable_peer_context: "cuCtxEnablePeerAccess",
            copy_between_contexts: "cuMemcpyPeerAsync", wait_value: "cuStreamWaitValue32",
            flush_writes: "cuFlushGPUDirectRDMAWrites",
        },
        Dialect::Hip => both! {
            set_device: "hipSetDevice", get_device: "hipGetDevice",
            enable_peer_device: "cuCtxEnablePeerAccess",
            copy_between_devices: "cuMemcpyPeerAsync", wait_value_masked: "cuStreamWaitValue32",
        },
    }
    table
}
