//! io_uring: many requests in flight from one thread.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::{Direction, Done, Io, Op};
use crate::memory::Target;

/// A ring whose requests are owned here until the kernel is done with them.
pub(crate) struct Uring {
    ring: IoUring,
    slots: Vec<Option<Op>>,
    free: Vec<usize>,
    /// Registered memory, kept alive as long as the ring.
    registered: Vec<Target>,
}

impl Uring {
    /// A ring for at most `entries` requests in flight.
    ///
    /// # Errors
    /// `EPERM` where it is forbidden (containers, `kernel.io_uring_disabled`), `ENOSYS` where it
    /// does not exist, `ENOMEM` where the locked-memory limit is too small.
    pub(crate) fn new(entries: usize) -> io::Result<Self> {
        let entries = entries.clamp(1, 1024);
        // One thread submits and reaps: newer kernels then skip interrupting it.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries as u32)
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => IoUring::new(entries as u32),
                _ => Err(error),
            })?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Self {
            ring,
            slots: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            registered: Vec::new(),
        })
    }

    /// Registers memory, so that requests in it need no pinning of their own. The index of each
    /// target is its position.
    ///
    /// # Errors
    /// `ENOMEM` where the locked-memory limit is too small.
    pub(crate) fn register(&mut self, targets: Vec<Target>) -> io::Result<()> {
        let buffers: Vec<libc::iovec> = targets
            .iter()
            .map(|t| libc::iovec {
                iov_base: t.pointer().cast(),
                iov_len: t.len(),
            })
            .collect();
        // SAFETY: the buffers are mappings that `self.registered` keeps until after the ring is
        // closed (fields drop in order, `ring` first).
        unsafe { self.ring.submitter().register_buffers(&buffers)? };
        self.registered = targets;
        Ok(())
    }

    fn entry(op: &Op, slot: usize) -> squeue::Entry {
        let fd = Fd(op.file.as_raw_fd());
        let (pointer, len) = (op.target.pointer(), op.target.len() as u32);
        match (op.direction, op.registered) {
            (Direction::Read, Some(index)) => opcode::ReadFixed::new(fd, pointer, len, index)
                .offset(op.offset)
                .build(),
            (Direction::Read, None) => opcode::Read::new(fd, pointer, len)
                .offset(op.offset)
                .build(),
            (Direction::Write, Some(index)) => opcode::WriteFixed::new(fd, pointer, len, index)
                .offset(op.offset)
                .build(),
            (Direction::Write, None) => opcode::Write::new(fd, pointer, len)
                .offset(op.offset)
                .build(),
        }
        .user_data(slot as u64)
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        for completion in self.ring.completion() {
            let slot = completion.user_data() as usize;
            if let Some(op) = self.slots.get_mut(slot).and_then(Option::take) {
                self.free.push(slot);
                let result = usize::try_from(completion.result()).map_err(|_| -completion.result());
                done.push(Done { op, result });
            }
        }
    }
}

impl Io for Uring {
    fn submit(&mut self, op: Op) {
        let slot = self.free.pop().expect("the caller asks for room first");
        let entry = Self::entry(&op, slot);
        self.slots[slot] = Some(op);
        // SAFETY: the request's memory and file live in `slots` until its completion is reaped, and
        // dropping the ring waits for all of them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has as many entries as there are slots");
    }

    fn send(&mut self) {
        // What the kernel does not take now, it is given again when completions are waited for.
        let _ = self.ring.submit();
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn wait(&mut self, patience: Duration, done: &mut Vec<Done>) -> io::Result<()> {
        let timeout = Timespec::from(patience);
        let arguments = SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                _ => return Err(error),
            },
        }
        self.reap(done);
        Ok(())
    }
}

impl Drop for Uring {
    /// Waits until the kernel is done with every request: their memory must not be freed before.
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let mut done = Vec::new();
        let mut failures = 0;
        while self.in_flight() > 0 {
            if self.wait(PATIENCE, &mut done).is_err() {
                failures += 1;
            }
            done.clear();
            if failures > 100 {
                // The kernel no longer answers: leaking the memory is the only safe thing left.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

/// Why this thread cannot have a ring; `None` when it can.
pub(crate) fn refusal() -> Option<io::Error> {
    Uring::new(1).err()
}
