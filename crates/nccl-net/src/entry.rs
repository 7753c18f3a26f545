//! The functions that NCCL calls. Here, and nowhere above, are C's pointers: each function checks and
//! reads its arguments, calls safe code, writes its results, and lets no panic out.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::abi::{self, MAX_NICS, PropertiesV8, PropertiesV9, PropertiesV11, VirtualDevice};
use crate::device::Device;
use crate::error::NetError;
use crate::logger;
use crate::plugin::{self, LISTENING};
use crate::records::MAX_RECVS;
use crate::table::pointer;

mod messages;
mod profiler;
mod versions;

use messages::{iflush, irecv, irecv_v10, isend, isend_v10, test};

/// The most comms of a device; it ends before they do.
const MAX_COMMS: c_int = 65_536;

/// Runs the body of a function of NCCL's: what goes wrong is logged, and told as a number.
fn call(name: &str, body: impl FnOnce() -> Result<(), NetError>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(NetError::Panic(said(&*panic))));
    match outcome {
        Ok(()) => abi::SUCCESS,
        Err(error) => {
            logger::failed(name, &error);
            error.result()
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without words".into())
}

fn is_null(argument: &'static str) -> NetError {
    NetError::Argument {
        argument,
        why: "it is null".into(),
    }
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or to room for it.
unsafe fn put<T>(argument: &'static str, to: *mut T, value: T) -> Result<(), NetError> {
    let to = NonNull::new(to).ok_or_else(|| is_null(argument))?;
    // SAFETY: as the caller promises.
    unsafe { to.write(value) };
    Ok(())
}

/// The entries of an array of NCCL's.
///
/// # Safety
/// The pointer is null or to at least `count` entries that nobody changes meanwhile.
unsafe fn entries<'a, T>(
    argument: &'static str,
    at: *const T,
    count: usize,
) -> Result<&'a [T], NetError> {
    let at = NonNull::new(at.cast_mut()).ok_or_else(|| is_null(argument))?;
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(at.as_ptr(), count) })
}

/// The bytes of a handle.
///
/// # Safety
/// The pointer is null or to as many bytes as a handle has, that nobody else touches meanwhile.
unsafe fn handle_bytes<'a>(at: *mut c_void) -> Result<&'a mut [u8; abi::HANDLE], NetError> {
    // SAFETY: as the caller promises; any bytes will do.
    unsafe { at.cast::<[u8; abi::HANDLE]>().as_mut() }.ok_or_else(|| is_null("handle"))
}

fn begin(logger: abi::Logger) -> c_int {
    logger::is(logger);
    call("init", plugin::begin)
}

unsafe extern "C" fn init(logger: abi::Logger) -> c_int {
    begin(logger)
}

unsafe extern "C" fn init_v10(logger: abi::Logger, _: abi::Profiler) -> c_int {
    begin(logger)
}

unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _communicator: u64,
    _config: *const c_void,
    logger: abi::Logger,
    _: abi::Profiler,
) -> c_int {
    logger::is(logger);
    call("init", || {
        // All communicators of a process share one context, which has no state of its own.
        // SAFETY: NCCL gives room for a pointer, or null.
        unsafe { put("ctx", context, std::ptr::null_mut()) }?;
        plugin::begin()
    })
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> c_int {
    call("finalize", plugin::end)
}

unsafe extern "C" fn set_net_attr(_context: *mut c_void, _hints: *const c_void) -> c_int {
    // Hints on how the comms that follow will be used; the fabric needs none.
    abi::SUCCESS
}

unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    call("devices", || {
        let devices = plugin::running()?.devices().len();
        // SAFETY: NCCL gives room for a number, or null.
        unsafe {
            put(
                "ndev",
                count,
                c_int::try_from(devices).unwrap_or(c_int::MAX),
            )
        }
    })
}

/// What every version is told of a device. The texts live as long as the device.
fn properties(device: &Device) -> PropertiesV9 {
    let mut parts = [0; MAX_NICS];
    let count = device.parts.len().min(MAX_NICS);
    for (to, from) in parts.iter_mut().zip(&device.parts) {
        *to = *from;
    }
    let dma_bufs = if device.takes_dma_bufs() {
        abi::PTR_DMABUF
    } else {
        0
    };
    PropertiesV9 {
        name: device.name.as_ptr(),
        pci_path: device
            .pci_path
            .as_ref()
            .map_or(std::ptr::null(), |path| path.as_ptr()),
        guid: device.guid,
        ptr_support: abi::PTR_HOST | dma_bufs,
        reg_is_global: 0,
        force_flush: 0,
        speed: device.speed,
        port: device.port,
        latency: 0.0,
        max_comms: MAX_COMMS,
        max_recvs: MAX_RECVS as c_int,
        net_device_type: 0,
        net_device_version: 0,
        virtual_device: VirtualDevice {
            count: count as c_int,
            devices: parts,
        },
        max_p2p_bytes: abi::MAX_MESSAGE,
        max_coll_bytes: abi::MAX_MESSAGE,
    }
}

unsafe extern "C" fn get_properties_v8(number: c_int, to: *mut PropertiesV8) -> c_int {
    call("getProperties", || {
        let device = plugin::running()?.device(number)?;
        let all = properties(&device);
        let known = PropertiesV8 {
            name: all.name,
            pci_path: all.pci_path,
            guid: all.guid,
            ptr_support: all.ptr_support,
            reg_is_global: all.reg_is_global,
            speed: all.speed,
            port: all.port,
            latency: all.latency,
            max_comms: all.max_comms,
            max_recvs: all.max_recvs,
            net_device_type: all.net_device_type,
            net_device_version: all.net_device_version,
        };
        // SAFETY: NCCL gives room for the properties of this version, or null.
        unsafe { put("props", to, known) }
    })
}

unsafe extern "C" fn get_properties_v9(number: c_int, to: *mut PropertiesV9) -> c_int {
    call("getProperties", || {
        let device = plugin::running()?.device(number)?;
        // SAFETY: NCCL gives room for the properties of this version, or null.
        unsafe { put("props", to, properties(&device)) }
    })
}

unsafe extern "C" fn get_properties_v11(number: c_int, to: *mut PropertiesV11) -> c_int {
    call("getProperties", || {
        let device = plugin::running()?.device(number)?;
        let known = PropertiesV11 {
            v9: properties(&device),
            max_multi_request_size: 1,
        };
        // SAFETY: NCCL gives room for the properties of this version, or null.
        unsafe { put("props", to, known) }
    })
}

unsafe extern "C" fn make_v_device(number: *mut c_int, wanted: *const VirtualDevice) -> c_int {
    call("makeVDevice", || {
        // SAFETY: NCCL gives a list of devices, or null.
        let wanted = unsafe { wanted.as_ref() }.ok_or_else(|| is_null("props"))?;
        let count = usize::try_from(wanted.count).ok();
        let parts = count.and_then(|count| wanted.devices.get(..count));
        let parts = parts.ok_or_else(|| NetError::Argument {
            argument: "props",
            why: format!("it names {} devices; there can be {MAX_NICS}", wanted.count),
        })?;
        let made = match parts {
            // One alone is what it is.
            [one] => {
                plugin::running()?.device(*one)?;
                *one
            }
            several => plugin::running()?.merge(several)?,
        };
        // SAFETY: NCCL gives room for a number, or null.
        unsafe { put("d", number, made) }
    })
}

unsafe extern "C" fn listen(device: c_int, handle: *mut c_void, comm: *mut *mut c_void) -> c_int {
    call("listen", || {
        // SAFETY: NCCL gives a handle's bytes, or null.
        let bytes = unsafe { handle_bytes(handle) }?;
        if comm.is_null() {
            return Err(is_null("listenComm"));
        }
        let (number, handle) = plugin::running()?.listen(device)?;
        *bytes = handle.encode();
        // SAFETY: NCCL gives room for a pointer.
        unsafe { put("listenComm", comm, pointer(number)) }
    })
}

unsafe extern "C" fn listen_v11(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { listen(device, handle, comm) }
}

unsafe extern "C" fn connect(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _on_device: *mut *mut c_void,
) -> c_int {
    call("connect", || {
        // SAFETY: NCCL gives room for a pointer, or null.
        unsafe { put("sendComm", comm, std::ptr::null_mut()) }?;
        // SAFETY: NCCL gives a handle's bytes, the same ones each time it asks again, or null.
        let bytes = unsafe { handle_bytes(handle) }?;
        match plugin::running()?.connect(device, bytes)? {
            // SAFETY: as above.
            Some(number) => unsafe { put("sendComm", comm, pointer(number)) },
            None => Ok(()),
        }
    })
}

unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *const c_void,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    on_device: *mut *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { connect(device, handle, comm, on_device) }
}

unsafe extern "C" fn connect_v11(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    on_device: *mut *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { connect(device, handle, comm, on_device) }
}

unsafe extern "C" fn accept(
    listening: *mut c_void,
    comm: *mut *mut c_void,
    _on_device: *mut *mut c_void,
) -> c_int {
    call("accept", || {
        // SAFETY: NCCL gives room for a pointer, or null.
        unsafe { put("recvComm", comm, std::ptr::null_mut()) }?;
        match LISTENING.named(listening)?.accept()? {
            // SAFETY: as above.
            Some(number) => unsafe { put("recvComm", comm, pointer(number)) },
            None => Ok(()),
        }
    })
}

unsafe extern "C" fn reg_mr(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    call("regMr", || {
        if memory.is_null() {
            return Err(is_null("mhandle"));
        }
        // SAFETY: NCCL keeps the memory until it has deregistered it.
        let number = unsafe { plugin::register(comm, data, len, kind) }?;
        // SAFETY: NCCL gives room for a pointer.
        unsafe { put("mhandle", memory, pointer(number)) }
    })
}

unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    memory: *mut *mut c_void,
) -> c_int {
    // The fabric exports the same bytes by itself: see `gpus`.
    // SAFETY: as for this function.
    unsafe { reg_mr(comm, data, len, kind, memory) }
}

unsafe extern "C" fn dereg_mr(comm: *mut c_void, memory: *mut c_void) -> c_int {
    call("deregMr", || plugin::deregister(comm, memory))
}

unsafe extern "C" fn close_comm(comm: *mut c_void) -> c_int {
    call("close", || plugin::close(comm))
}

unsafe extern "C" fn close_listen(comm: *mut c_void) -> c_int {
    call("closeListen", || {
        LISTENING.take(comm.addr())?.close();
        Ok(())
    })
}

/// For networks whose devices move bytes by themselves, which `netDeviceType` says this is not.
fn on_device(name: &str) -> c_int {
    call(name, || {
        Err(NetError::Argument {
            argument: "comm",
            why: "no device of this plugin runs code of its own".into(),
        })
    })
}

unsafe extern "C" fn get_device_mr(
    _comm: *mut c_void,
    _memory: *mut c_void,
    _to: *mut *mut c_void,
) -> c_int {
    on_device("getDeviceMr")
}

unsafe extern "C" fn irecv_consumed(
    _comm: *mut c_void,
    _count: c_int,
    _request: *mut c_void,
) -> c_int {
    on_device("irecvConsumed")
}

/// The network's name, by which `NCCL_NET` asks for it.
const NAME: *const c_char = c"crowfly".as_ptr();
