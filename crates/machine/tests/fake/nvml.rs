//! A management library of two GPUs that reach each other through switches, for a test that
//! compiles and loads it. It lacks most functions, as old drivers do.
//!
//! GPU 0 has two links, one of them down. GPU 1 has none, is not told its memory's size, and may
//! not be asked for its UUID.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NO_PERMISSION: c_uint = 4;

/// `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    bus_id: [c_char; 32],
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    rest: [c_ulonglong; 3],
}

/// Writes a C string that fits, as every function here is given room for 80 bytes or more.
unsafe fn say(text: &str, to: *mut c_char) -> c_uint {
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller gives room for what is written, as NVML's contract says.
        unsafe { *to.add(at) = byte as c_char };
    }
    SUCCESS
}

unsafe fn answer<T>(value: T, to: *mut T) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { *to = value };
    SUCCESS
}

/// A handle is the GPU's number and one, so that none is null.
type Device = usize;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, _: c_uint) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { say("570.86.15", to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(12_080, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(2, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut Device) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(index as Device + 1, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(_: Device, to: *mut c_char, _: c_uint) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { say("NVIDIA H100 80GB HBM3", to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(gpu: Device, to: *mut c_char, _: c_uint) -> c_uint {
    match gpu {
        // SAFETY: the caller gives room for what is written, as NVML's contract says.
        1 => unsafe { say("GPU-00000000-0000-0000-0000-000000000001", to) },
        _ => NO_PERMISSION,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(gpu: Device, to: *mut PciInfo) -> c_uint {
    let place = format!("00000000:{:02X}:00.0", 0x1a + gpu);
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { say(&place, (&raw mut (*to).bus_id).cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(gpu: Device, to: *mut Memory) -> c_uint {
    match gpu {
        // SAFETY: the caller gives room for what is written, as NVML's contract says.
        1 => unsafe { answer(80 << 30, &raw mut (*to).total) },
        _ => NOT_SUPPORTED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    _: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(9, major) | answer(0, minor) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPerformanceState(_: Device, to: *mut c_uint) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(8, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(gpu: Device, link: c_uint, to: *mut c_uint) -> c_uint {
    match (gpu, link) {
        // SAFETY: the caller gives room for what is written, as NVML's contract says.
        (1, 0..2) => unsafe { answer(1 - link, to) },
        (1, _) => INVALID_ARGUMENT,
        _ => NOT_SUPPORTED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(_: Device, _: c_uint, to: *mut c_uint) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(4, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    _: Device,
    _: c_uint,
    to: *mut PciInfo,
) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { say("00000000:05:00.0", (&raw mut (*to).bus_id).cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    _: Device,
    _: c_uint,
    to: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(2, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    gpu: Device,
    _: Device,
    capability: c_uint,
    to: *mut c_uint,
) -> c_uint {
    // Reading works from GPU 0 only; the chipset is in the way of the rest.
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(c_uint::from(gpu != 1 || capability != 0), to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    _: Device,
    _: Device,
    to: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller gives room for what is written, as NVML's contract says.
    unsafe { answer(40, to) }
}
