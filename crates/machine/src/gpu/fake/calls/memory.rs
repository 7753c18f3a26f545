//! Memory: allocated, mapped, pinned, exported, opened.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use super::super::super::abi::{
    self, AccessDescriptor, AllocationProperties, INVALID_VALUE, IpcHandle, OUT_OF_MEMORY, SUCCESS,
};
use super::super::space::{Physical, Reserved};
use super::super::world::{Exported, INVALID_HANDLE, Mapping};
use super::{INVALID_CONTEXT, INVALID_DEVICE, answer, begin, current, index};

const GRAIN: usize = 2 << 20;

pub(super) unsafe extern "C" fn alloc(address: *mut u64, len: usize) -> c_int {
    begin!(world, "cuMemAlloc");
    let Some(gpu) = current(&world) else {
        return INVALID_CONTEXT;
    };
    if world.used(gpu) + len as u64 > world.models[gpu].memory {
        return OUT_OF_MEMORY;
    }
    let (Some(physical), Some(reserved)) = (Physical::new(len), Reserved::new(len)) else {
        return OUT_OF_MEMORY;
    };
    let start = reserved.start();
    let mapping = Mapping {
        gpu,
        len,
        physical,
        addresses: Some(reserved),
        allocated: Some(len),
        opened: false,
    };
    world.mappings.insert(start, mapping);
    answer(address, start)
}

pub(super) unsafe extern "C" fn free(address: u64) -> c_int {
    begin!(world, "cuMemFree");
    let allocated = world.mappings.get(&address).and_then(|m| m.allocated);
    if allocated.is_none() {
        return INVALID_VALUE;
    }
    // Freeing waits for the device.
    let streams: Vec<u64> = world.streams.keys().copied().collect();
    for stream in streams {
        let _ = world.drain(stream);
    }
    world.mappings.remove(&address);
    SUCCESS
}

pub(super) unsafe extern "C" fn host_register(start: *mut c_void, len: usize, _: c_uint) -> c_int {
    begin!(world, "cuMemHostRegister");
    if world.is_pinned(start as u64, len) {
        return abi::HOST_MEMORY_ALREADY_REGISTERED;
    }
    world.pinned.insert(start as u64, len);
    SUCCESS
}

pub(super) unsafe extern "C" fn host_unregister(start: *mut c_void) -> c_int {
    begin!(world, "cuMemHostUnregister");
    match world.pinned.remove(&(start as u64)) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn ipc_get(handle: *mut IpcHandle, address: u64) -> c_int {
    begin!(world, "cuIpcGetMemHandle");
    let start = match world.find(address) {
        Some((mapping, at)) if mapping.allocated.is_some() => address - at as u64,
        _ => return INVALID_VALUE,
    };
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&start.to_le_bytes());
    answer(handle, IpcHandle { bytes })
}

pub(super) unsafe extern "C" fn ipc_open(address: *mut u64, handle: IpcHandle, _: c_uint) -> c_int {
    begin!(world, "cuIpcOpenMemHandle");
    let mut start = [0; 8];
    start.copy_from_slice(&handle.bytes[..8]);
    let Some((mapping, 0)) = world.find(u64::from_le_bytes(start)) else {
        return INVALID_HANDLE;
    };
    if current(&world) != Some(mapping.gpu) {
        // A real runtime asks for peer access then; the code above opens it where it is.
        return INVALID_CONTEXT;
    }
    let (gpu, len) = (mapping.gpu, mapping.len);
    let physical = Arc::clone(&mapping.physical);
    let Some(reserved) = Reserved::new(len) else {
        return OUT_OF_MEMORY;
    };
    let start = reserved.start();
    let opened = Mapping {
        gpu,
        len,
        physical,
        addresses: Some(reserved),
        allocated: None,
        opened: true,
    };
    world.mappings.insert(start, opened);
    answer(address, start)
}

pub(super) unsafe extern "C" fn ipc_close(address: u64) -> c_int {
    begin!(world, "cuIpcCloseMemHandle");
    match world.mappings.get(&address) {
        Some(mapping) if mapping.opened => drop(world.mappings.remove(&address)),
        _ => return INVALID_VALUE,
    }
    SUCCESS
}

pub(super) unsafe extern "C" fn address_range(
    start: *mut u64,
    len: *mut usize,
    address: u64,
) -> c_int {
    begin!(world, "cuMemGetAddressRange");
    let Some((mapping, at)) = world.find(address) else {
        return INVALID_VALUE;
    };
    answer(len, mapping.len);
    answer(start, address - at as u64)
}

pub(super) unsafe extern "C" fn export_handle(
    shareable: *mut c_void,
    handle: u64,
    kind: c_int,
    _: c_ulonglong,
) -> c_int {
    begin!(world, "cuMemExportToShareableHandle");
    let piece = world
        .pieces
        .get(&handle)
        .filter(|_| kind == abi::HANDLE_POSIX_FD);
    match piece.and_then(|(_, physical)| physical.file().ok()) {
        Some(file) => answer(shareable.cast::<c_int>(), file.into_raw_fd()),
        None => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn import_handle(
    handle: *mut u64,
    shareable: *mut c_void,
    _: c_int,
) -> c_int {
    begin!(world, "cuMemImportFromShareableHandle");
    let descriptor = shareable as c_int;
    let known = world
        .pieces
        .values()
        .find(|(_, physical)| physical.is(descriptor));
    let Some((gpu, physical)) = known.map(|(gpu, physical)| (*gpu, Arc::clone(physical))) else {
        return INVALID_VALUE;
    };
    let number = world.number();
    world.pieces.insert(number, (gpu, physical));
    answer(handle, number)
}

pub(super) unsafe extern "C" fn pointer_attribute(
    to: *mut c_void,
    which: c_int,
    address: u64,
) -> c_int {
    begin!(world, "cuPointerGetAttribute");
    let Some((mapping, _)) = world.find(address) else {
        return INVALID_VALUE;
    };
    match which {
        abi::POINTER_MEMORY_TYPE => answer(to.cast::<u32>(), abi::MEMORY_TYPE_DEVICE),
        abi::POINTER_DEVICE_ORDINAL => answer(to.cast::<u32>(), mapping.gpu as u32),
        _ => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn pointer_set_attribute(
    _: *const c_void,
    which: c_int,
    at: u64,
) -> c_int {
    begin!(world, "cuPointerSetAttribute");
    match (world.find(at), which) {
        (Some(_), abi::POINTER_SYNC_MEMOPS) => SUCCESS,
        _ => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn address_reserve(
    address: *mut u64,
    len: usize,
    _: usize,
    _: u64,
    _: c_ulonglong,
) -> c_int {
    begin!(world, "cuMemAddressReserve");
    if !len.is_multiple_of(GRAIN) {
        return INVALID_VALUE;
    }
    let Some(reserved) = Reserved::new(len) else {
        return OUT_OF_MEMORY;
    };
    let start = reserved.start();
    world.reservations.insert(start, reserved);
    answer(address, start)
}

pub(super) unsafe extern "C" fn address_free(address: u64, _: usize) -> c_int {
    begin!(world, "cuMemAddressFree");
    match world.reservations.remove(&address) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn memory_create(
    handle: *mut u64,
    len: usize,
    properties: *const AllocationProperties,
    _: c_ulonglong,
) -> c_int {
    begin!(world, "cuMemCreate");
    // SAFETY: the caller passes readable properties.
    let properties = unsafe { *properties };
    let Some(gpu) = index(&world, properties.location.id) else {
        return INVALID_DEVICE;
    };
    if !len.is_multiple_of(GRAIN) || world.used(gpu) + len as u64 > world.models[gpu].memory {
        return OUT_OF_MEMORY;
    }
    let Some(physical) = Physical::new(len) else {
        return OUT_OF_MEMORY;
    };
    let number = world.number();
    world.pieces.insert(number, (gpu, physical));
    answer(handle, number)
}

pub(super) unsafe extern "C" fn memory_release(handle: u64) -> c_int {
    begin!(world, "cuMemRelease");
    match world.pieces.remove(&handle) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn memory_map(
    address: u64,
    len: usize,
    _: usize,
    handle: u64,
    _: c_ulonglong,
) -> c_int {
    begin!(world, "cuMemMap");
    let Some((gpu, physical)) = world.pieces.get(&handle) else {
        return INVALID_VALUE;
    };
    let mapping = Mapping {
        gpu: *gpu,
        len,
        physical: Arc::clone(physical),
        addresses: None,
        allocated: None,
        opened: false,
    };
    world.mappings.insert(address, mapping);
    SUCCESS
}

pub(super) unsafe extern "C" fn memory_unmap(address: u64, _: usize) -> c_int {
    begin!(world, "cuMemUnmap");
    match world.mappings.remove(&address) {
        Some(mapping) if mapping.addresses.is_none() => SUCCESS,
        _ => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn memory_access(
    address: u64,
    _: usize,
    _: *const AccessDescriptor,
    _: usize,
) -> c_int {
    begin!(world, "cuMemSetAccess");
    match world.find(address) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

pub(super) unsafe extern "C" fn memory_granularity(
    bytes: *mut usize,
    _: *const AllocationProperties,
    _: c_int,
) -> c_int {
    begin!(_world, "cuMemGetAllocationGranularity");
    answer(bytes, GRAIN)
}

pub(super) unsafe extern "C" fn range_handle(
    handle: *mut c_void,
    address: u64,
    len: usize,
    _: c_int,
    flags: c_ulonglong,
) -> c_int {
    begin!(world, "cuMemGetHandleForAddressRange");
    let Some(file) = world.file_of(address) else {
        return INVALID_VALUE;
    };
    world.exported.push(Exported {
        start: address,
        len: len as u64,
        pcie: flags == abi::RANGE_MAPPING_PCIE,
    });
    answer(handle.cast::<c_int>(), file.into_raw_fd())
}
