//! Several parts of memory, and some bytes before them, sent by one call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Span;
use super::device::Lease;

/// The most parts of one call; the kernel takes up to 1024.
const MAX_PARTS: usize = 64;

/// Parts of memory that a socket takes.
pub(crate) struct Staged {
    pub spans: VecDeque<Span>,
    /// Holds the buffers that parts of a GPU's memory were copied to.
    pub leases: Vec<Lease>,
}

/// Has every part in host memory: those of a GPU's memory are copied to buffers, which are held until
/// they are sent. Whether the GPU gives them is so known before a byte is announced.
///
/// # Errors
/// What the GPU answers.
pub(crate) fn stage(payload: VecDeque<Span>) -> io::Result<Staged> {
    let mut staged = Staged {
        spans: VecDeque::with_capacity(payload.len()),
        leases: Vec::new(),
    };
    for span in payload {
        match span.leased()? {
            None => staged.spans.push_back(span),
            Some((lease, copied)) => {
                staged.spans.extend(copied);
                staged.leases.push(lease);
            }
        }
    }
    Ok(staged)
}

/// Sends `head` and the start of what follows it, by a copy; answers how much of both together. All
/// parts must be of host memory.
///
/// To hand over pages instead, by MSG_ZEROCOPY, `sendfile` or `splice`, was measured between processes of
/// one host and is slower, or the kernel copies after all: `bench/results`, those named tcp-ways.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    spans: &VecDeque<Span>,
    flags: libc::c_int,
) -> io::Result<usize> {
    let nothing = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    };
    let mut parts = [nothing; MAX_PARTS];
    let mut count = 0;
    let pieces = spans.iter().take(MAX_PARTS - 1);
    if !pieces.clone().all(|span| span.backing.is_host()) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let first = (head.as_ptr().cast_mut(), head.len());
    let rest = pieces.map(|span| (span.part().pointer(), span.len()));
    let all = std::iter::once(first).chain(rest);
    for (part, (base, len)) in parts.iter_mut().zip(all.filter(|(_, len)| *len > 0)) {
        part.iov_base = base.cast();
        part.iov_len = len;
        count += 1;
    }
    // SAFETY: a message header of zeros is one with nothing in it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = count;
    // SAFETY: each part is memory of its length, that of `head` or inside a backing that `spans` keeps;
    // the kernel only reads it, and nothing of it is used after the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::fabric::Buffer;

    #[test]
    fn the_head_and_the_parts_come_out_in_order_and_the_rest_is_left() {
        let memory = Buffer::copy_of(b"abcdefghij")
            .expect("memory")
            .into_backing();
        let span = |range| memory.span(range).expect("inside");
        let spans = VecDeque::from([span(3..6), span(4..4), span(0..2)]);
        let (out, mut back) = UnixStream::pair().expect("sockets");
        let sent = send(out.as_fd(), b"head:", &spans, libc::MSG_NOSIGNAL);
        assert_eq!(sent.expect("sent"), 10);
        let mut got = [0; 10];
        back.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"head:defab");

        let many: VecDeque<Span> = (0..200).map(|at| span(at % 10..at % 10 + 1)).collect();
        let sent = send(out.as_fd(), b"", &many, libc::MSG_NOSIGNAL);
        let sent = sent.expect("sent");
        assert_eq!(sent, MAX_PARTS - 1, "no more in one call");
        let mut got = vec![0; sent];
        back.read_exact(&mut got).expect("received");
        assert!(
            got.iter()
                .zip("abcdefghij".bytes().cycle())
                .all(|(a, b)| *a == b)
        );
    }
}
