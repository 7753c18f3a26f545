//! The functions that send, receive and flush, and ask what has ended.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crowfly_machine::gpu::Gpu;

use super::{call, entries, put};
use crate::abi;
use crate::comm::Comm;
use crate::error::NetError;
use crate::gpus::flush;
use crate::memory::Memory;
use crate::plugin::{self, COMMS, MEMORIES};
use crate::receiver::Wanted;
use crate::records::MAX_RECVS;
use crate::table::pointer;

/// The memory that NCCL names, if it names any.
fn memory(pointer: *mut c_void) -> Result<Option<Arc<Memory>>, NetError> {
    match pointer.is_null() {
        true => Ok(None),
        false => MEMORIES.named(pointer).map(Some),
    }
}

/// A size as NCCL writes it in this version.
pub(super) trait Size: Copy {
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

pub(super) unsafe extern "C" fn isend<S: Size>(
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

pub(super) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    len: usize,
    tag: c_int,
    mr: *mut c_void,
    _profiler: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { isend(comm, data, len, tag, mr, request) }
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

pub(super) unsafe extern "C" fn irecv<S: Size>(
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

pub(super) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    _profiler: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { irecv(comm, count, data, sizes, tags, mrs, request) }
}

pub(super) unsafe extern "C" fn iflush(
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

pub(super) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
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
