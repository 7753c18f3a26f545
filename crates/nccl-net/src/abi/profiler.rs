//! The layouts of NCCL's profiler interface, versions 4 and 5, as far as this plugin reads them.
//!
//! Written from the facts in NCCL's public headers (`plugin/profiler/profiler_v4.h` and
//! `profiler_v5.h`); the tests hold them against a C compiler.

use std::ffi::{c_char, c_int, c_void};

use super::{Close, Logger};

/// `ncclProfileColl`: the host has made a collective ready.
pub const COLLECTIVE: u64 = 1 << 1;
/// `ncclProfileP2p`: the same of a send or a receive.
pub const PAIR: u64 = 1 << 2;

/// What is said of a collective, in both versions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Counts those of its kind in the communicator.
    pub sequence: u64,
    /// Its name, such as `AllReduce`.
    pub what: *const c_char,
    /// Where it takes numbers from.
    pub from: *const c_void,
    /// Where it puts them.
    pub to: *mut c_void,
    /// Numbers, as its caller counts them.
    pub count: usize,
    /// The rank that it begins at or ends at.
    pub root: c_int,
    /// The kind of numbers, such as `ncclFloat32`.
    pub kind: *const c_char,
    /// Channels that it goes by.
    pub channels: u8,
    /// Warps of each.
    pub warps: u8,
    /// The algorithm, such as `RING`.
    pub algorithm: *const c_char,
    /// The protocol, such as `SIMPLE`.
    pub protocol: *const c_char,
}

/// What is said of a send or a receive, in both versions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// `Send` or `Recv`.
    pub what: *const c_char,
    /// Where the numbers are.
    pub at: *mut c_void,
    /// Their kind.
    pub kind: *const c_char,
    /// How many there are.
    pub count: usize,
    /// The other rank.
    pub peer: c_int,
    /// Channels that it goes by.
    pub channels: u8,
}

/// What an event is about, by its type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union About {
    /// Of [`COLLECTIVE`].
    pub collective: Collective,
    /// Of [`PAIR`].
    pub pair: Pair,
}

/// `ncclProfilerEventDescr_v4_t` where `T` is `u8`, `ncclProfilerEventDescr_v5_t` where it is `u64`; the
/// end of the latter is left out.
#[repr(C)]
pub struct Event<T> {
    /// One of the bits above, or of those that were not asked for.
    pub kind: T,
    /// The event that it is part of.
    pub parent: *const c_void,
    /// This process's rank in the communicator.
    pub rank: c_int,
    /// The rest.
    pub about: About,
}

/// `init` of version 4: context, mask of events, name and number of the communicator, nodes, ranks, rank.
pub type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;
/// `init` of version 5, which has the number earlier.
pub type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;
/// `startEvent`: context, handle of the event, what it is about.
pub type StartEvent<T> =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Event<T>) -> c_int;
/// `recordEventState`: handle, state, its arguments.
pub type RecordEventState = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;

/// `ncclProfiler_v4_t` and `ncclProfiler_v5_t`.
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the fields are NCCL's, in its order and by its names"
)]
pub struct Profiler<I, T> {
    pub name: *const c_char,
    pub init: I,
    pub start_event: StartEvent<T>,
    pub stop_event: Close,
    pub record_event_state: RecordEventState,
    pub finalize: Close,
}

// SAFETY: the name points to a constant, and functions can be called from any thread.
unsafe impl<I, T> Sync for Profiler<I, T> {}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn an_event_has_the_layout_of_its_version() {
        assert_eq!(offset_of!(Event<u8>, parent), 8);
        assert_eq!(offset_of!(Event<u8>, rank), 16);
        assert_eq!(offset_of!(Event<u8>, about), 24);
        assert_eq!(offset_of!(Event<u64>, about), 24);
        assert_eq!(offset_of!(Collective, count), 32);
        assert_eq!(offset_of!(Collective, kind), 48);
        assert_eq!(offset_of!(Collective, channels), 56);
        assert_eq!(offset_of!(Collective, algorithm), 64);
        assert_eq!(offset_of!(Collective, protocol), 72);
        assert_eq!(offset_of!(Pair, count), 24);
        assert_eq!(offset_of!(Pair, channels), 36);
        assert_eq!(size_of::<Profiler<InitV4, u8>>(), 6 * size_of::<usize>());
    }
}
