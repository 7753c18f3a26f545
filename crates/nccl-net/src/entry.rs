//! The functions that NCCL calls. Here, and nowhere above, are C's pointers: each function checks and
//! reads its arguments, calls safe code, writes its results, and lets no panic out.

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use crowfly_machine::gpu::Gpu;

use crate::abi::{self, MAX_NICS, PropertiesV8, PropertiesV9, PropertiesV11, VirtualDevice};
use crate::comm::Comm;
use crate::device::Device;
use crate::error::NetError;
use crate::gpus::flush;
use crate::logger;
use crate::memory::Memory;
use crate::plugin::{self, COMMS, LISTENING, MEMORIES};
use crate::receiver::Wanted;
use crate::records::MAX_RECVS;
use crate::table::pointer;

mod versions;

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

/// The memory that NCCL names, if it names any.
fn memory(pointer: *mut c_void) -> Result<Option<Arc<Memory>>, NetError> {
    match pointer.is_null() {
        true => Ok(None),
        false => MEMORIES.named(pointer).map(Some),
    }
}

/// A size as NCCL writes it in this version.
trait Size: Copy {
    fn bytes(self, argument: &'static str) -> Result<usize, NetError>;
}

impl Size for usize {
    fn bytes(self, _: &'static str) -> Result<usize, NetError> {
        Ok(self)
    }
}

impl Size for c_int {
    fn bytes(self, argument: &'static str) -> Result<usize, NetError> {
        usize::try_from(self).map_err(|_| NetError::Argument {
            argument,
            why: format!("{self} is no size"),
        })
    }
}

/// # Safety
/// The request is null or room for a pointer.
unsafe fn send<S: Size>(
    comm: *mut c_void,
    data: *mut c_void,
    len: S,
    tag: c_int,
    mr: *mut c_void,
    request: *mut *mut c_void,
) -> Result<(), NetError> {
    // SAFETY: as the caller promises.
    unsafe { put("request", request, std::ptr::null_mut()) }?;
    let known = COMMS.named(comm)?;
    let Comm::Send(sender) = &*known else {
        return Err(NetError::Unknown("sending comm"));
    };
    let started = sender.send(data, len.bytes("size")?, tag, memory(mr)?)?;
    let started = started.map_or(std::ptr::null_mut(), |number| {
        pointer(plugin::request(comm.addr(), number))
    });
    // SAFETY: as the caller promises.
    unsafe { put("request", request, started) }
}

unsafe extern "C" fn isend<S: Size>(
    comm: *mut c_void,
    data: *mut c_void,
    len: S,
    tag: c_int,
    mr: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives room for a pointer, or null.
    call("isend", || unsafe {
        send(comm, data, len, tag, mr, request)
    })
}

unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    tag: c_int,
    mr: *mut c_void,
    _profiler: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives room for a pointer, or null.
    call("isend", || unsafe {
        send(comm, data, len, tag, mr, request)
    })
}

/// How many receives a group has.
fn group(count: c_int) -> Result<usize, NetError> {
    let few = usize::try_from(count).ok();
    few.filter(|count| (1..=MAX_RECVS).contains(count))
        .ok_or(NetError::TooManyReceives {
            asked: count,
            limit: MAX_RECVS,
        })
}

/// # Safety
/// The arrays are null or have `count` entries each; the request is null or room for a pointer.
unsafe fn receive<S: Size>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    request: *mut *mut c_void,
) -> Result<(), NetError> {
    // What NCCL has written there says that it could do without this receive's completion; it gets
    // a request all the same.
    // SAFETY: as the caller promises.
    unsafe { put("request", request, std::ptr::null_mut()) }?;
    let n = group(count)?;
    // SAFETY: as the caller promises.
    let (data, sizes, tags, mrs) = unsafe {
        (
            entries("data", data, n)?,
            entries("sizes", sizes, n)?,
            entries("tags", tags, n)?,
            entries("mhandles", mrs, n)?,
        )
    };
    let known = COMMS.named(comm)?;
    let Comm::Receive(receiver) = &*known else {
        return Err(NetError::Unknown("receiving comm"));
    };
    let mut wanted = Vec::with_capacity(n);
    for (((data, size), tag), mr) in data.iter().zip(sizes).zip(tags).zip(mrs) {
        wanted.push(Wanted {
            data: *data,
            room: size.bytes("sizes")?,
            tag: *tag,
            memory: memory(*mr)?,
        });
    }
    let posted = receiver.receive(wanted)?;
    let posted = posted.map_or(std::ptr::null_mut(), |number| {
        pointer(plugin::request(comm.addr(), number))
    });
    // SAFETY: as the caller promises.
    unsafe { put("request", request, posted) }
}

unsafe extern "C" fn irecv<S: Size>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives arrays of that many entries and room for a pointer, or null.
    call("irecv", || unsafe {
        receive(comm, count, data, sizes, tags, mrs, request)
    })
}

unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    _profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives arrays of that many entries and room for a pointer, or null.
    call("irecv", || unsafe {
        receive(comm, count, data, sizes, tags, mrs, request)
    })
}

unsafe extern "C" fn iflush(
    comm: *mut c_void,
    count: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    mrs: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call("iflush", || {
        // No request means that there is nothing left to wait for. Host memory is coherent with NICs and
        // CPUs, and a GPU's driver flushes while it is asked.
        // SAFETY: NCCL gives room for a pointer, or null.
        unsafe { put("request", request, std::ptr::null_mut()) }?;
        COMMS.named(comm)?;
        let n = group(count)?;
        // SAFETY: NCCL gives as many as it says, or null.
        let mrs = unsafe { entries("mhandles", mrs, n) }?;
        let mut flushed: Vec<Arc<Gpu>> = Vec::new();
        for mr in mrs {
            let memory = memory(*mr)?;
            let Some(gpu) = memory.as_ref().and_then(|memory| memory.gpu()) else {
                continue;
            };
            if !flushed.iter().any(|known| Arc::ptr_eq(known, gpu)) {
                flush(gpu).map_err(|why| NetError::Memory {
                    kind: abi::PTR_CUDA,
                    why: format!("what was written into it cannot be flushed: {why}"),
                })?;
                flushed.push(Arc::clone(gpu));
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> c_int {
    call("test", || {
        // SAFETY: NCCL gives room for a number, or null.
        unsafe { put("done", done, 0) }?;
        let (comm, number) = plugin::of_request(request)?;
        let ended = match &*comm {
            Comm::Send(sender) => sender.test(number)?.map(|bytes| vec![bytes]),
            Comm::Receive(receiver) => receiver.test(number)?,
        };
        let Some(bytes) = ended else {
            return Ok(());
        };
        if !sizes.is_null() {
            for (at, bytes) in bytes.iter().enumerate() {
                let bytes = c_int::try_from(*bytes).unwrap_or(c_int::MAX);
                // SAFETY: NCCL gives room for a size of each receive of the group.
                unsafe { sizes.add(at).write(bytes) };
            }
        }
        // SAFETY: as above.
        unsafe { put("done", done, 1) }
    })
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
