//! Streams, events and what is queued on them.

use std::ffi::{c_int, c_uint, c_void};

use super::super::super::abi::{Handle, INVALID_VALUE, SUCCESS};
use super::super::world::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, StreamState, Task, World, on_stream, read, write,
};
use super::{INVALID_CONTEXT, answer, begin, current};

pub(super) unsafe extern "C" fn stream_create(stream: *mut Handle, _: c_uint) -> c_int {
    begin!(world, "cuStreamCreate");
    let Some(gpu) = current(&world) else {
        return INVALID_CONTEXT;
    };
    let handle = world.number();
    let state = StreamState::of(gpu);
    world.streams.insert(handle, state);
    answer(stream, handle as Handle)
}

pub(super) unsafe extern "C" fn stream_destroy(stream: Handle) -> c_int {
    begin!(world, "cuStreamDestroy");
    let _ = world.drain(stream as u64);
    match world.streams.remove(&(stream as u64)) {
        Some(_) => SUCCESS,
        None => INVALID_HANDLE,
    }
}

pub(super) unsafe extern "C" fn stream_synchronize(stream: Handle) -> c_int {
    begin!(world, "cuStreamSynchronize");
    world.drain(stream as u64)
}

pub(super) unsafe extern "C" fn stream_wait_event(
    stream: Handle,
    event: Handle,
    _: c_uint,
) -> c_int {
    begin!(world, "cuStreamWaitEvent");
    world.wait_event(stream as u64, event as u64)
}

pub(super) unsafe extern "C" fn event_create(event: *mut Handle, _: c_uint) -> c_int {
    begin!(world, "cuEventCreate");
    if current(&world).is_none() {
        return INVALID_CONTEXT;
    }
    let handle = world.number();
    world.events.insert(handle, Default::default());
    answer(event, handle as Handle)
}

pub(super) unsafe extern "C" fn event_destroy(event: Handle) -> c_int {
    begin!(world, "cuEventDestroy");
    world.destroy_event(event as u64)
}

pub(super) unsafe extern "C" fn event_record(event: Handle, stream: Handle) -> c_int {
    begin!(world, "cuEventRecord");
    world.record(event as u64, stream as u64)
}

pub(super) unsafe extern "C" fn event_query(event: Handle) -> c_int {
    begin!(world, "cuEventQuery");
    world.query(event as u64)
}

pub(super) unsafe extern "C" fn event_synchronize(event: Handle) -> c_int {
    begin!(world, "cuEventSynchronize");
    world.wait(event as u64)
}

/// Host memory that a queued copy uses. The code above keeps it mapped until the copy is done.

#[derive(Clone, Copy)]
struct Host(*mut u8);

// SAFETY: only dereferenced by a queued copy, see above.
unsafe impl Send for Host {}

impl Host {
    fn read(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: the caller of the copy keeps that many bytes mapped until it is done.
        unsafe { std::ptr::copy_nonoverlapping(self.0, bytes.as_mut_ptr(), len) };
        bytes
    }

    fn write(self, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) };
    }
}

const fn legal(done: bool) -> Result<bool, c_int> {
    if done { Ok(true) } else { Err(ILLEGAL_ADDRESS) }
}

pub(super) unsafe extern "C" fn copy_in(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: Handle,
) -> c_int {
    begin!(world, "cuMemcpyHtoDAsync");
    if world.find(to).is_none() {
        return INVALID_VALUE;
    }
    world.note_host(from as u64, len);
    let from = Host(from.cast_mut().cast());
    let lost = world.loses();
    let copy: Task = Box::new(move |world| {
        let from = from;
        legal(lost || write(world, to, &from.read(len)))
    });
    on_stream(&mut world, stream as u64, copy)
}

pub(super) unsafe extern "C" fn copy_out(
    to: *mut c_void,
    from: u64,
    len: usize,
    stream: Handle,
) -> c_int {
    begin!(world, "cuMemcpyDtoHAsync");
    if world.find(from).is_none() {
        return INVALID_VALUE;
    }
    world.note_host(to as u64, len);
    let to = Host(to.cast());
    let copy: Task = Box::new(move |world| {
        let to = to;
        let mut bytes = vec![0; len];
        let done = read(world, from, &mut bytes);
        if done {
            to.write(&bytes);
        }
        legal(done)
    });
    on_stream(&mut world, stream as u64, copy)
}

fn across(world: &mut World, to: u64, from: u64, len: usize, stream: Handle) -> c_int {
    let (Some((target, _)), Some((source, _))) = (world.find(to), world.find(from)) else {
        return INVALID_VALUE;
    };
    let (target, source) = (target.gpu, source.gpu);
    let executor = world.streams.get(&(stream as u64)).map(|state| state.gpu);
    let reaches = |world: &World, other| {
        executor.is_some_and(|own| own == other || world.peers.contains(&(own, other)))
    };
    if !reaches(world, target) || !reaches(world, source) {
        // A real runtime would copy through host memory in silence; the code above must not come
        // to that.
        return INVALID_CONTEXT;
    }
    let copy: Task = Box::new(move |world| {
        let mut bytes = vec![0; len];
        legal(read(world, from, &mut bytes) && write(world, to, &bytes))
    });
    on_stream(world, stream as u64, copy)
}

pub(super) unsafe extern "C" fn copy_within(
    to: u64,
    from: u64,
    len: usize,
    stream: Handle,
) -> c_int {
    begin!(world, "cuMemcpyDtoDAsync");
    across(&mut world, to, from, len, stream)
}

pub(super) unsafe extern "C" fn copy_between_contexts(
    to: u64,
    _: Handle,
    from: u64,
    _: Handle,
    len: usize,
    stream: Handle,
) -> c_int {
    begin!(world, "cuMemcpyPeerAsync");
    across(&mut world, to, from, len, stream)
}

pub(super) unsafe extern "C" fn copy_between_devices(
    to: u64,
    _: c_int,
    from: u64,
    _: c_int,
    len: usize,
    stream: Handle,
) -> c_int {
    begin!(world, "cuMemcpyPeerAsync");
    across(&mut world, to, from, len, stream)
}

pub(super) unsafe extern "C" fn fill(to: u64, byte: u8, len: usize, stream: Handle) -> c_int {
    begin!(world, "cuMemsetD8Async");
    let set: Task = Box::new(move |world| legal(write(world, to, &vec![byte; len])));
    on_stream(&mut world, stream as u64, set)
}

fn wait_word(world: &mut World, stream: Handle, address: u64, value: u32) -> c_int {
    let wait: Task = Box::new(move |world| {
        let mut bytes = [0; 4];
        if !read(world, address, &mut bytes) {
            return Err(ILLEGAL_ADDRESS);
        }
        Ok(u32::from_le_bytes(bytes).wrapping_sub(value) as i32 >= 0)
    });
    on_stream(world, stream as u64, wait)
}

pub(super) unsafe extern "C" fn wait_value(
    stream: Handle,
    address: u64,
    value: u32,
    _: c_uint,
) -> c_int {
    begin!(world, "cuStreamWaitValue32");
    wait_word(&mut world, stream, address, value)
}

pub(super) unsafe extern "C" fn wait_value_masked(
    stream: Handle,
    address: u64,
    value: u32,
    _: c_uint,
    _: u32,
) -> c_int {
    begin!(world, "cuStreamWaitValue32");
    wait_word(&mut world, stream, address, value)
}

pub(super) unsafe extern "C" fn write_value(
    stream: Handle,
    address: u64,
    value: u32,
    _: c_uint,
) -> c_int {
    begin!(world, "cuStreamWriteValue32");
    let set: Task = Box::new(move |world| legal(write(world, address, &value.to_le_bytes())));
    on_stream(&mut world, stream as u64, set)
}
