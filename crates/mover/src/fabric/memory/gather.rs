//! Several parts of memory, and some bytes before or behind them, sent or received by one call.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Span;
use super::device::Lease;

/// The most parts of one call; the kernel takes up to 1024.
const MAX_PARTS: usize = 64;

/// Parts of memory that a socket takes.
#[derive(Default)]
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
    if payload.iter().all(|span| span.backing.is_host()) {
        return Ok(Staged {
            spans: payload,
            leases: Vec::new(),
        });
    }
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

/// Sends the start of what follows one behind the other, each time some bytes and then parts of memory, by
/// a copy; answers how much of all together. All parts must be of host memory.
///
/// To hand over pages instead, by MSG_ZEROCOPY, `sendfile` or `splice`, was measured between processes of
/// one host and is slower, or the kernel copies after all: `bench/results`, those named tcp-ways.
pub(crate) fn send<'a>(
    socket: BorrowedFd<'_>,
    frames: impl Iterator<Item = (&'a [u8], &'a VecDeque<Span>)> + Clone,
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut spans = frames.clone().flat_map(|(_, spans)| spans).take(MAX_PARTS);
    if !spans.all(|span| span.backing.is_host()) {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let pieces = frames.flat_map(|(head, spans)| {
        let head = (head.as_ptr().cast_mut(), head.len());
        std::iter::once(head).chain(spans.iter().map(Span::whole))
    });
    let mut parts = Parts::of(pieces);
    let message = parts.message();
    // SAFETY: each part is memory of its length, that of a head or inside a backing that its spans keep;
    // the kernel only reads it, and nothing of it is used after the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into the parts, one behind the other, and what comes behind all of them into `tail`: so the
/// start of what follows takes no call of its own. Answers how much came, or `None` where a part is no
/// host memory that may be written.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    spans: &VecDeque<Span>,
    tail: &mut [u8],
) -> Option<io::Result<usize>> {
    let writable = |span: &Span| span.backing.is_host() && span.backing.writable;
    if !spans.iter().take(MAX_PARTS).all(writable) {
        return None;
    }
    let pieces = spans.iter().take(MAX_PARTS).map(Span::whole);
    // Only behind the last part is what comes for the tail.
    let behind = (spans.len() < MAX_PARTS).then_some((tail.as_mut_ptr(), tail.len()));
    let mut parts = Parts::of(pieces.chain(behind));
    let mut message = parts.message();
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: each part is memory of its length that may be written: that of `tail`, borrowed
    // exclusively, or inside a backing that `spans` keeps and to whose bytes no references exist.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    Some(usize::try_from(got).map_err(|_| io::Error::last_os_error()))
}

/// What one call is given.
struct Parts {
    vectors: [libc::iovec; MAX_PARTS],
    count: usize,
}

impl Parts {
    /// Those that are not empty; of more than there is room for, the first.
    fn of(all: impl Iterator<Item = (*mut u8, usize)>) -> Self {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let mut parts = Self {
            vectors: [nothing; MAX_PARTS],
            count: 0,
        };
        let filled = all.filter(|(_, len)| *len > 0);
        for (vector, (base, len)) in parts.vectors.iter_mut().zip(filled) {
            vector.iov_base = base.cast();
            vector.iov_len = len;
            parts.count += 1;
        }
        parts
    }

    /// Points into `self`, which the caller keeps where it is for as long as it is used.
    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a message header of zeros is one with nothing in it.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = self.count;
        message
    }
}

impl Span {
    fn whole(&self) -> (*mut u8, usize) {
        (self.part().pointer(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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
        let none = VecDeque::new();
        let frames: [(&[u8], _); 3] = [(b"head:", &spans), (b"", &none), (b"next:", &spans)];
        let sent = send(out.as_fd(), frames.into_iter(), libc::MSG_NOSIGNAL);
        assert_eq!(sent.expect("sent"), 20);
        let mut got = [0; 20];
        back.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"head:defabnext:defab");

        let many: VecDeque<Span> = (0..200).map(|at| span(at % 10..at % 10 + 1)).collect();
        let frames = std::iter::once((b"".as_slice(), &many));
        let sent = send(out.as_fd(), frames, libc::MSG_NOSIGNAL);
        let sent = sent.expect("sent");
        assert_eq!(sent, MAX_PARTS, "no more in one call");
        let mut got = vec![0; sent];
        back.read_exact(&mut got).expect("received");
        assert!(
            got.iter()
                .zip("abcdefghij".bytes().cycle())
                .all(|(a, b)| *a == b)
        );
    }

    #[test]
    fn what_comes_fills_the_parts_in_order_and_only_what_is_behind_them_goes_to_the_tail() {
        let memory = Buffer::copy_of(&[b'.'; 12]).expect("memory").into_backing();
        let span = |range| memory.span(range).expect("inside");
        let spans = VecDeque::from([span(6..9), span(3..3), span(1..3)]);
        let (out, back) = UnixStream::pair().expect("sockets");
        let held = |wanted: &[u8; 12]| {
            let mut held = [0; 12];
            assert!(memory.copy_out(0, &mut held, super::super::Caches::Keep));
            assert_eq!(&held, wanted);
        };
        let mut tail = [b'-'; 4];
        let nothing = receive(back.as_fd(), &spans, &mut tail).expect("host memory");
        let error = nothing.expect_err("nothing has come");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);

        (&out).write_all(b"abcd").expect("sent");
        let got = receive(back.as_fd(), &spans, &mut tail).expect("host memory");
        assert_eq!((got.expect("received"), tail), (4, *b"----"));
        held(b".d....abc...");

        (&out).write_all(b"ABCDExyzuvw").expect("sent");
        let got = receive(back.as_fd(), &spans, &mut tail).expect("host memory");
        assert_eq!(
            (got.expect("received"), tail),
            (9, *b"xyzu"),
            "no more than fits"
        );
        held(b".DE...ABC...");
    }

    #[test]
    fn given_more_parts_than_one_call_takes_nothing_of_them_goes_to_the_tail() {
        let memory = Buffer::copy_of(&[0; 100]).expect("memory").into_backing();
        let span = |at| memory.span(at..at + 1).expect("inside");
        let spans: VecDeque<Span> = (0..100).map(span).collect();
        let (out, back) = UnixStream::pair().expect("sockets");
        (&out).write_all(&[7; 100]).expect("sent");
        let mut tail = [0; 4];
        let got = receive(back.as_fd(), &spans, &mut tail).expect("host memory");
        assert_eq!((got.expect("received"), tail), (MAX_PARTS, [0; 4]));
    }

    #[test]
    fn memory_that_may_only_be_read_is_not_received_into() {
        let region = crate::Region::zeroed(4096, None).expect("memory");
        let memory = Buffer::loaded(region).expect("plain memory").into_backing();
        let spans = VecDeque::from([memory.span(0..8).expect("inside")]);
        let (_out, back) = UnixStream::pair().expect("sockets");
        assert!(receive(back.as_fd(), &spans, &mut [0; 4]).is_none());
    }
}
