//! The functions themselves. Every pointer that comes in was handed out by this module or lies in
//! memory of the caller's: the code above promises it by its types.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::fs::FileExt;

use super::super::abi::{
    self, BATCH_COMPLETE, BatchEvent, BatchParameters, Descriptor, PARAMETER_ALLOW_COMPAT, Status,
};
use super::super::statistics::{Ways, lay_out};
use super::{Mode, State, state};
use crate::gpu::fake::{Task, World, on_stream, world};

macro_rules! begin {
    ($state:ident, $call:literal) => {
        #[allow(unused_mut, reason = "some calls only look")]
        let mut $state = state();
        if let Some(code) = $state.called($call) {
            return Status::of(code);
        }
    };
}

/// Writes an answer through a pointer of the caller's.
fn answer<T>(to: *mut T, value: T) -> Status {
    // SAFETY: the callers of this module pass writable pointers.
    unsafe { to.write(value) };
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn driver_open() -> Status {
    begin!(state, "cuFileDriverOpen");
    if state.behaviour.closes_input {
        // SAFETY: the test that asked for it puts the descriptor back.
        unsafe { libc::close(0) };
    }
    if state.behaviour.hangs {
        drop(state);
        loop {
            std::thread::park();
        }
    }
    if state.behaviour.open == 0 {
        state.opened += 1;
    }
    Status::of(state.behaviour.open)
}

pub(super) unsafe extern "C" fn driver_close() -> Status {
    begin!(state, "cuFileDriverClose");
    state.opened = state.opened.saturating_sub(1);
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn version(to: *mut c_int) -> Status {
    begin!(state, "cuFileGetVersion");
    answer(to, state.behaviour.version)
}

pub(super) unsafe extern "C" fn properties(to: *mut c_void) -> Status {
    begin!(state, "cuFileDriverGetProperties");
    let allowed = c_uint::from(!state.refused_compat) << abi::CONTROL_ALLOW_COMPAT;
    // SAFETY: the structure of the caller's is larger; the control flags are its ninth word.
    unsafe { to.cast::<c_uint>().add(7).write(allowed) };
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn peer_flags(_: c_int, flags: *mut c_uint) -> Status {
    begin!(state, "cuFileDriverGetP2PFlags");
    answer(
        flags,
        match state.behaviour.mode {
            Mode::Peer => 1 << abi::P2P_PCI,
            Mode::Module => 1 << 1,
            Mode::Posix => 0,
        },
    )
}

pub(super) unsafe extern "C" fn set_bool(parameter: c_int, value: bool) -> Status {
    begin!(state, "cuFileSetParameterBool");
    if parameter == PARAMETER_ALLOW_COMPAT {
        state.refused_compat = !value;
    }
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn set_string(_: c_int, _: *const c_char) -> Status {
    begin!(state, "cuFileSetParameterString");
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn set_statistics_level(_: c_int) -> Status {
    begin!(state, "cuFileSetStatsLevel");
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn statistics_start() -> Status {
    begin!(state, "cuFileStatsStart");
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn statistics(to: *mut c_void) -> Status {
    begin!(state, "cuFileGetStatsL3");
    let bytes = lay_out(&state.counters, state.behaviour.vectors);
    // SAFETY: the room of the caller's is larger than any layout.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn handle_register(
    handle: *mut *mut c_void,
    descriptor: *mut Descriptor,
) -> Status {
    begin!(state, "cuFileHandleRegister");
    let refuses = state.refused_compat && state.behaviour.obeys_refusal;
    if refuses && state.behaviour.mode == Mode::Posix {
        return Status::of(abi::DRIVER_NOT_INITIALIZED);
    }
    if state.behaviour.register != 0 {
        return Status::of(state.behaviour.register);
    }
    // SAFETY: the caller passes a readable descriptor with a file descriptor in it.
    let fd = unsafe { (*descriptor).handle.fd };
    let number = state.number();
    state.files.insert(number, fd);
    answer(handle, number as *mut c_void)
}

pub(super) unsafe extern "C" fn handle_deregister(handle: *mut c_void) {
    state().files.remove(&(handle as u64));
}

pub(super) unsafe extern "C" fn buffer_register(
    start: *const c_void,
    len: usize,
    _: c_int,
) -> Status {
    begin!(state, "cuFileBufRegister");
    if state.behaviour.pin == 0 {
        state.pinned.insert(start as u64, len);
    }
    Status::of(state.behaviour.pin)
}

pub(super) unsafe extern "C" fn buffer_deregister(start: *const c_void) -> Status {
    begin!(state, "cuFileBufDeregister");
    state.pinned.remove(&(start as u64));
    Status::SUCCESS
}

/// Which way the next request goes.
fn next_mode(state: &mut State) -> Mode {
    state.requests += 1;
    let one_in = state.behaviour.posix_one_in;
    match one_in > 0 && state.requests.is_multiple_of(one_in) {
        true => Mode::Posix,
        false => state.behaviour.mode,
    }
}

fn count(ways: &mut Ways, mode: Mode, aligned: bool) {
    match mode {
        Mode::Peer => ways.peer += 1,
        Mode::Module => ways.module += 1,
        Mode::Posix => ways.posix += 1,
    }
    ways.unaligned += u64::from(!aligned);
}

/// A request, without the pointers it came with.
#[derive(Clone, Copy)]
struct Request {
    file: u64,
    address: u64,
    len: usize,
    offset: i64,
    reads: bool,
}

fn move_bytes(state: &mut State, world: &mut World, request: Request) -> isize {
    let Some(fd) = state.files.get(&request.file).copied() else {
        return -5027;
    };
    let mode = next_mode(state);
    let aligned = request.len.is_multiple_of(4096) && request.offset.rem_euclid(4096) == 0;
    let len = request.len.min(state.behaviour.longest);
    // As O_DIRECT demands, whatever part of the file was asked for.
    let start = request.offset / 4096 * 4096;
    let lead = (request.offset - start) as usize;
    let mut bytes = Aligned::new(lead + len);
    if request.reads {
        count(&mut state.counters.reads, mode, aligned);
        // SAFETY: the buffer is that long.
        let read = unsafe { libc::pread(fd, bytes.start(), bytes.len(), start) };
        if read < 0 {
            return -1;
        }
        let got = (read as usize).saturating_sub(lead).min(len);
        if !crate::gpu::fake::write(world, request.address, &bytes.all()[lead..lead + got]) {
            return -5012;
        }
        return got as isize;
    }
    count(&mut state.counters.writes, mode, aligned);
    if !crate::gpu::fake::read(world, request.address, &mut bytes.all()[lead..lead + len]) {
        return -5012;
    }
    // Parts of blocks go through a buffer of the library's, and so not by O_DIRECT.
    let again = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"));
    let written =
        again.and_then(|file| file.write_at(&bytes.all()[lead..lead + len], request.offset as u64));
    written.map_or(-1, |written| written as isize)
}

/// A buffer that O_DIRECT takes.
struct Aligned {
    storage: Vec<u8>,
    lead: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let len = len.next_multiple_of(4096);
        let storage = vec![0; len + 4096];
        let lead = storage.as_ptr().align_offset(4096);
        Self { storage, lead, len }
    }

    const fn len(&self) -> usize {
        self.len
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.storage[self.lead..self.lead + self.len]
    }

    fn start(&mut self) -> *mut c_void {
        self.all().as_mut_ptr().cast()
    }
}

fn now(call: &'static str, request: Request) -> isize {
    // In the order in which work on streams takes the two.
    let (mut world, mut state) = (world(), state());
    match state.called(call) {
        Some(code) if code < 0 => {
            // SAFETY: the location of this thread's errno is always writable.
            unsafe { *libc::__errno_location() = -code };
            return -1;
        }
        Some(code) => return -(code as isize),
        None => {}
    }
    move_bytes(&mut state, &mut world, request)
}

pub(super) unsafe extern "C" fn read(
    file: *mut c_void,
    base: *mut c_void,
    len: usize,
    offset: i64,
    at: i64,
) -> isize {
    let request = Request {
        file: file as u64,
        address: base as u64 + at as u64,
        len,
        offset,
        reads: true,
    };
    now("cuFileRead", request)
}

pub(super) unsafe extern "C" fn write(
    file: *mut c_void,
    base: *const c_void,
    len: usize,
    offset: i64,
    at: i64,
) -> isize {
    let request = Request {
        file: file as u64,
        address: base as u64 + at as u64,
        len,
        offset,
        reads: false,
    };
    now("cuFileWrite", request)
}

pub(super) unsafe extern "C" fn read_vector(
    _: *mut c_void,
    _: *const c_void,
    _: usize,
    _: i64,
    _: c_uint,
) -> isize {
    // Only that it is there matters: it tells the layout of the statistics.
    -5022
}

/// The numbers of a queued request, in memory that its owner keeps until the stream is past it.
struct Later {
    file: u64,
    base: u64,
    len: *mut usize,
    offset: *mut i64,
    at: *mut i64,
    done: *mut isize,
    reads: bool,
}

// SAFETY: see above; the pointers are only used when the stream comes to the request.
unsafe impl Send for Later {}

impl Later {
    fn carry_out(&self, world: &mut World) {
        // SAFETY: the owner keeps the numbers until the stream is past the request.
        let (len, offset, at) = unsafe { (*self.len, *self.offset, *self.at) };
        let request = Request {
            file: self.file,
            address: self.base + at as u64,
            len,
            offset,
            reads: self.reads,
        };
        let moved = move_bytes(&mut state(), world, request);
        // SAFETY: as above.
        unsafe { self.done.write(moved) };
    }
}

fn later(stream: *mut c_void, request: Later) -> Status {
    let task: Task = Box::new(move |world| {
        request.carry_out(world);
        Ok(true)
    });
    match on_stream(&mut world(), stream as u64, task) {
        0 => Status::SUCCESS,
        gpu_code => Status {
            code: abi::CUDA_DRIVER_ERROR,
            gpu_code,
        },
    }
}

macro_rules! later {
    ($name:ident, $call:literal, reads: $reads:literal) => {
        pub(super) unsafe extern "C" fn $name(
            file: *mut c_void,
            base: *mut c_void,
            len: *mut usize,
            offset: *mut i64,
            at: *mut i64,
            done: *mut isize,
            stream: *mut c_void,
        ) -> Status {
            {
                begin!(_state, $call);
            }
            let request = Later {
                file: file as u64,
                base: base as u64,
                len,
                offset,
                at,
                done,
                reads: $reads,
            };
            later(stream, request)
        }
    };
}

later!(read_async, "cuFileReadAsync", reads: true);
later!(write_async, "cuFileWriteAsync", reads: false);

pub(super) unsafe extern "C" fn batch_set_up(batch: *mut *mut c_void, _: c_uint) -> Status {
    begin!(state, "cuFileBatchIOSetUp");
    let number = state.number();
    state.batches.insert(number, Vec::new());
    answer(batch, number as *mut c_void)
}

pub(super) unsafe extern "C" fn batch_submit(
    batch: *mut c_void,
    count: c_uint,
    requests: *mut BatchParameters,
    _: c_uint,
) -> Status {
    let mut world = world();
    begin!(state, "cuFileBatchIOSubmit");
    // SAFETY: the caller passes so many requests.
    let requests = unsafe { std::slice::from_raw_parts(requests, count as usize) };
    for asked in requests {
        let request = Request {
            file: asked.file as u64,
            address: asked.base as u64 + asked.memory_offset as u64,
            len: asked.len,
            offset: asked.file_offset,
            reads: asked.opcode == abi::BATCH_READ,
        };
        let moved = move_bytes(&mut state, &mut world, request);
        let event = BatchEvent {
            cookie: asked.cookie,
            status: match moved >= 0 {
                true => BATCH_COMPLETE,
                false => 0x40,
            },
            result: moved.max(0) as usize,
        };
        if let Some(events) = state.batches.get_mut(&(batch as u64)) {
            events.push(event);
        }
    }
    Status::SUCCESS
}

pub(super) unsafe extern "C" fn batch_status(
    batch: *mut c_void,
    _: c_uint,
    count: *mut c_uint,
    events: *mut BatchEvent,
    _: *mut libc::timespec,
) -> Status {
    begin!(state, "cuFileBatchIOGetStatus");
    let Some(waiting) = state.batches.get_mut(&(batch as u64)) else {
        return Status::of(5022);
    };
    // The last first, and one at a time: order is nothing to rely on.
    match waiting.pop() {
        Some(event) => {
            answer(events, event);
            answer(count, 1)
        }
        None => answer(count, 0),
    }
}

pub(super) unsafe extern "C" fn batch_destroy(batch: *mut c_void) {
    state().batches.remove(&(batch as u64));
}
