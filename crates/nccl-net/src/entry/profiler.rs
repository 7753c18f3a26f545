//! NCCL's profiler interface: the same library can be named as its profiler (`NCCL_PROFILER_PLUGIN`),
//! and NCCL looks into its network's library where none is named.
//!
//! What goes wrong here is logged and no failure of NCCL's call.

use std::ffi::CStr;

use super::*;
use crate::abi::profiler::{About, COLLECTIVE, Event, InitV4, InitV5, PAIR, Profiler};
use crate::calls::{self, COMMUNICATORS, Communicator, Kind, Told, Whose};

/// The most bytes of a name that are kept.
const MAX_NAME: usize = 128;

/// A text of NCCL's.
///
/// # Safety
/// The pointer is null or to a C string that nobody changes meanwhile.
unsafe fn text(at: *const c_char) -> Option<String> {
    let at = NonNull::new(at.cast_mut())?;
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(at.as_ptr()) }.to_bytes();
    let bytes = bytes.get(..MAX_NAME).unwrap_or(bytes);
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// What an event says of a call; `None` for those that were not asked for.
///
/// # Safety
/// What the event is about is of its kind, and its texts are C strings or null.
unsafe fn told(kind: u64, about: &About) -> Option<Told> {
    let way = |at| {
        // SAFETY: as the caller promises.
        unsafe { text(at) }
    };
    let name = |at| way(at).unwrap_or_default();
    match kind {
        COLLECTIVE => {
            // SAFETY: as the caller promises.
            let call = unsafe { about.collective };
            Some(Told {
                kind: Kind {
                    what: name(call.what),
                    numbers: name(call.kind),
                    algorithm: way(call.algorithm),
                    protocol: way(call.protocol),
                },
                count: call.count as u64,
                channels: call.channels,
            })
        }
        PAIR => {
            // SAFETY: as the caller promises.
            let call = unsafe { about.pair };
            Some(Told {
                kind: Kind {
                    what: name(call.what),
                    numbers: name(call.kind),
                    algorithm: None,
                    protocol: None,
                },
                count: call.count as u64,
                channels: call.channels,
            })
        }
        _ => None,
    }
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    number: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: abi::Logger,
) -> c_int {
    logger::is(logger);
    call("profiler init", || {
        if context.is_null() {
            return Err(is_null("context"));
        }
        let whose = Whose {
            communicator: format!("{number:016x}"),
            // SAFETY: NCCL gives a C string, or null.
            name: unsafe { text(name) },
            rank,
            ranks,
            nodes,
        };
        // SAFETY: NCCL gives room for a number, or null.
        unsafe { put("eActivationMask", mask, (COLLECTIVE | PAIR) as c_int) }?;
        let number = Communicator::begin(whose)?;
        // SAFETY: NCCL gives room for a pointer.
        unsafe { put("context", context, pointer(number)) }
    })
}

unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    number: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: abi::Logger,
) -> c_int {
    // SAFETY: as for this function.
    unsafe { init_v4(context, mask, name, number, nodes, ranks, rank, logger) }
}

unsafe extern "C" fn start_event<T: Copy + Into<u64>>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const Event<T>,
) -> c_int {
    call("startEvent", || {
        // Without a handle NCCL tells nothing more of the event, of which nothing more is asked.
        // SAFETY: NCCL gives room for a pointer, or null.
        unsafe { put("eHandle", handle, std::ptr::null_mut()) }?;
        // SAFETY: NCCL gives an event, or null.
        let event = unsafe { event.as_ref() }.ok_or_else(|| is_null("eDescr"))?;
        // SAFETY: NCCL says what the event is about, with texts of its own.
        if let Some(told) = unsafe { told(event.kind.into(), &event.about) } {
            COMMUNICATORS.named(context)?.note(told);
        }
        Ok(())
    });
    abi::SUCCESS
}

unsafe extern "C" fn stop_event(_handle: *mut c_void) -> c_int {
    abi::SUCCESS
}

unsafe extern "C" fn record_event_state(
    _handle: *mut c_void,
    _state: c_int,
    _arguments: *const c_void,
) -> c_int {
    abi::SUCCESS
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    call("profiler finalize", || {
        COMMUNICATORS.take(context.addr())?.write(true);
        Ok(())
    });
    abi::SUCCESS
}

/// Writes what NCCL told of the communicators of a rank among so many, a JSON array of receipts; answers its
/// length. Where that is more than there is room for, nothing is written.
///
/// # Safety
/// `to` has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crowfly_nccl_calls(
    rank: c_int,
    ranks: c_int,
    to: *mut u8,
    room: usize,
) -> usize {
    let told = catch_unwind(|| calls::told(rank, ranks)).unwrap_or_default();
    if told.len() <= room && !to.is_null() {
        // SAFETY: as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(told.as_ptr(), to, told.len()) };
    }
    told.len()
}

/// For NCCL 2.27.
#[unsafe(no_mangle)]
pub static ncclProfiler_v4: Profiler<InitV4, u8> = Profiler {
    name: NAME,
    init: init_v4,
    start_event: start_event::<u8>,
    stop_event,
    record_event_state,
    finalize,
};

/// For NCCL 2.28 and later.
#[unsafe(no_mangle)]
pub static ncclProfiler_v5: Profiler<InitV5, u64> = Profiler {
    name: NAME,
    init: init_v5,
    start_event: start_event::<u64>,
    stop_event,
    record_event_state,
    finalize,
};
