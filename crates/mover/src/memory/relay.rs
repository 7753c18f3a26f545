//! Looking at bytes that may vanish while they are looked at.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::PipeFlags;

use super::{Memory, Target};

/// Copies from memory that may vanish (a cut file's mapping, an unbound device's BAR) by letting
/// the kernel read it, which answers `EFAULT` where a load would raise SIGBUS.
///
/// The kernel reads it into a pipe: no file system, no limit on the size of files, and no signal of
/// such a limit stands in the way.
pub(crate) struct Relay {
    reader: OwnedFd,
    writer: OwnedFd,
    buffer: Arc<Memory>,
}

impl Relay {
    /// The most bytes copied at a time; also what the pipe is asked to hold, which saves calls
    /// where the system allows a pipe that large.
    pub(crate) const SIZE: usize = 1 << 20;

    pub(crate) fn new() -> io::Result<Self> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = rustix::pipe::pipe_with(flags)?;
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, Self::SIZE);
        let buffer = Memory::host(Self::SIZE, None).map_err(io::Error::other)?;
        Ok(Self {
            reader,
            writer,
            buffer,
        })
    }

    /// Runs `use_bytes` on a copy of the target's bytes; the target is at most [`Relay::SIZE`] long.
    ///
    /// # Errors
    /// `EFAULT` when the memory is gone.
    pub(crate) fn bytes_of<R>(
        &mut self,
        target: &Target,
        use_bytes: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<R> {
        let copy = self.buffer.target(0..target.len().min(Self::SIZE));
        let mut done = 0;
        while done < copy.len() {
            let sent = target
                .part(done, copy.len() - done)
                .send(self.writer.as_fd())?;
            if sent == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
            self.receive(&copy.part(done, sent))?;
            done += sent;
        }
        Ok(copy.with_bytes(use_bytes))
    }

    /// Empties the pipe into a part of the buffer that is as long as what the pipe holds.
    fn receive(&self, part: &Target) -> io::Result<()> {
        let mut done = 0;
        while done < part.len() {
            match part
                .part(done, part.len() - done)
                .receive(self.reader.as_fd())?
            {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                bytes => done += bytes,
            }
        }
        Ok(())
    }
}

impl Target {
    /// Writes as much of this part as a pipe has room for.
    fn send(&self, pipe: std::os::fd::BorrowedFd<'_>) -> io::Result<usize> {
        use std::os::fd::AsRawFd;
        let written = || {
            // SAFETY: the kernel only reads inside this part; a page it cannot read gives EFAULT.
            // No reference to the bytes is made, because the memory may vanish.
            let rc = unsafe { libc::write(pipe.as_raw_fd(), self.pointer().cast(), self.len()) };
            usize::try_from(rc)
                .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
        };
        Ok(retry_on_intr(written)?)
    }

    /// Reads what a pipe holds into this part.
    fn receive(&self, pipe: std::os::fd::BorrowedFd<'_>) -> io::Result<usize> {
        let read = || {
            // SAFETY: the kernel writes only inside this part, which the caller owns.
            let part = unsafe {
                std::slice::from_raw_parts_mut(
                    self.pointer().cast::<std::mem::MaybeUninit<u8>>(),
                    self.len(),
                )
            };
            rustix::io::read(pipe, part).map(|(read, _)| read.len())
        };
        Ok(retry_on_intr(read)?)
    }
}
