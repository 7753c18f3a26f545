//! Devices, contexts and what GPUs let each other do.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::super::super::abi::{self, Handle, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use super::super::FakeGpus;
use super::super::world::{ILLEGAL_ADDRESS, World};
use super::{
    CONTEXT, CURRENT, HIP_DEVICE, INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED, answer, begin,
    current, index, say,
};

pub(super) unsafe extern "C" fn init(_: c_uint) -> c_int {
    begin!(world, "cuInit");
    if world.dialect.is_some() {
        SUCCESS
    } else {
        NOT_INITIALIZED
    }
}

pub(super) unsafe extern "C" fn version(to: *mut c_int) -> c_int {
    begin!(_world, "cuDriverGetVersion");
    answer(to, 12_080)
}

pub(super) unsafe extern "C" fn error_text(code: c_int, text: *mut *const c_char) -> c_int {
    let said: &CStr = match code {
        OUT_OF_MEMORY => c"out of memory",
        ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        _ => c"an error that a test asked for",
    };
    answer(text, said.as_ptr())
}

pub(super) unsafe extern "C" fn device_count(count: *mut c_int) -> c_int {
    begin!(world, "cuDeviceGetCount");
    answer(count, world.models.len() as c_int)
}

pub(super) unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> c_int {
    begin!(world, "cuDeviceGet");
    match index(&world, ordinal) {
        Some(_) => answer(device, ordinal),
        None => INVALID_DEVICE,
    }
}

pub(super) unsafe extern "C" fn device_name(to: *mut c_char, len: c_int, device: c_int) -> c_int {
    begin!(world, "cuDeviceGetName");
    match index(&world, device) {
        Some(_) => say("Fake GPU", to, len),
        None => INVALID_DEVICE,
    }
}

pub(super) unsafe extern "C" fn device_bus(to: *mut c_char, len: c_int, device: c_int) -> c_int {
    begin!(world, "cuDeviceGetPCIBusId");
    // The runtime counts them from the last address on, as `CUDA_DEVICE_ORDER` may have it.
    match index(&world, device) {
        Some(at) => say(
            &FakeGpus::address(world.models.len() - 1 - at).to_string(),
            to,
            len,
        ),
        None => INVALID_DEVICE,
    }
}

pub(super) unsafe extern "C" fn device_memory(bytes: *mut usize, device: c_int) -> c_int {
    begin!(world, "cuDeviceTotalMem");
    match index(&world, device) {
        Some(at) => answer(bytes, world.models[at].memory as usize),
        None => INVALID_DEVICE,
    }
}

pub(super) unsafe extern "C" fn device_attribute(
    value: *mut c_int,
    which: c_int,
    device: c_int,
) -> c_int {
    begin!(world, "cuDeviceGetAttribute");
    let Some(model) = index(&world, device).map(|at| &world.models[at]) else {
        return INVALID_DEVICE;
    };
    let said = match which {
        abi::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => model.capability.0,
        abi::ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => model.capability.1,
        abi::ATTRIBUTE_HOST_PAGE_TABLES => c_int::from(model.coherent),
        abi::ATTRIBUTE_FLUSH_WRITES_OPTIONS => model.flush_options,
        abi::ATTRIBUTE_WRITES_ORDERING => model.writes_ordering,
        abi::ATTRIBUTE_DMA_BUF_SUPPORTED => 1,
        _ => return INVALID_VALUE,
    };
    answer(value, said)
}

pub(super) unsafe extern "C" fn primary_retain(context: *mut Handle, device: c_int) -> c_int {
    begin!(world, "cuDevicePrimaryCtxRetain");
    if index(&world, device).is_none() {
        return INVALID_DEVICE;
    }
    let handle = CONTEXT + device as u64;
    *world.contexts.entry(handle).or_default() += 1;
    answer(context, handle as Handle)
}

pub(super) unsafe extern "C" fn primary_release(device: c_int) -> c_int {
    begin!(world, "cuDevicePrimaryCtxRelease");
    match world.contexts.get_mut(&(CONTEXT + device as u64)) {
        Some(count) if *count > 0 => *count -= 1,
        _ => return INVALID_CONTEXT,
    }
    SUCCESS
}

pub(super) unsafe extern "C" fn context_push(context: Handle) -> c_int {
    begin!(world, "cuCtxPushCurrent");
    match world.contexts.get(&(context as u64)) {
        Some(count) if *count > 0 => {
            CURRENT.with_borrow_mut(|stack| stack.push((context as u64 - CONTEXT) as usize));
            SUCCESS
        }
        _ => INVALID_CONTEXT,
    }
}

pub(super) unsafe extern "C" fn context_pop(context: *mut Handle) -> c_int {
    begin!(_world, "cuCtxPopCurrent");
    match CURRENT.with_borrow_mut(Vec::pop) {
        Some(device) => answer(context, (CONTEXT + device as u64) as Handle),
        None => INVALID_CONTEXT,
    }
}

pub(super) unsafe extern "C" fn set_device(device: c_int) -> c_int {
    begin!(world, "cuCtxPushCurrent");
    match index(&world, device) {
        Some(at) => HIP_DEVICE.with_borrow_mut(|current| *current = at),
        None => return INVALID_DEVICE,
    }
    SUCCESS
}

pub(super) unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    begin!(_world, "hipGetDevice");
    answer(device, HIP_DEVICE.with_borrow(|current| *current as c_int))
}

pub(super) unsafe extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> c_int {
    begin!(world, "cuMemGetInfo");
    let Some(gpu) = current(&world) else {
        return INVALID_CONTEXT;
    };
    let memory = world.models[gpu].memory;
    answer(free, (memory - world.used(gpu)) as usize);
    answer(total, memory as usize)
}

pub(super) unsafe extern "C" fn can_access_peer(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> c_int {
    begin!(world, "cuDeviceCanAccessPeer");
    match (index(&world, device), index(&world, peer)) {
        (Some(_), Some(peer)) => answer(can, c_int::from(world.models[peer].reachable)),
        _ => INVALID_DEVICE,
    }
}

fn enable(world: &mut World, peer: usize) -> c_int {
    let Some(own) = current(world) else {
        return INVALID_CONTEXT;
    };
    if world.peers.insert((own, peer)) {
        SUCCESS
    } else {
        abi::PEER_ACCESS_ALREADY_ENABLED
    }
}

pub(super) unsafe extern "C" fn enable_peer_context(peer: Handle, _: c_uint) -> c_int {
    begin!(world, "cuCtxEnablePeerAccess");
    enable(&mut world, (peer as u64 - CONTEXT) as usize)
}

pub(super) unsafe extern "C" fn enable_peer_device(peer: c_int, _: c_uint) -> c_int {
    begin!(world, "cuCtxEnablePeerAccess");
    enable(&mut world, peer as usize)
}

pub(super) unsafe extern "C" fn flush_writes(_: c_int, _: c_int) -> c_int {
    begin!(world, "cuFlushGPUDirectRDMAWrites");
    let Some(gpu) = current(&world) else {
        return INVALID_CONTEXT;
    };
    world.show(gpu);
    SUCCESS
}
