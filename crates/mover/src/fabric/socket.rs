//! A stream socket, TCP or Unix, that never blocks without a deadline.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crowfly_machine::sockets::bound_backoff;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt,
};

/// Has a TCP connection send as fast as the other end takes it. For those that stay on this host: over a
/// veth pair one carried 1.4 to 1.9 GB/s with BBR and 5.3 without, twice that where the receiver does
/// not sleep (2026-11-30, 2 processors).
pub(crate) fn unpace(socket: impl AsFd) {
    // Where the kernel has no such choice, it is as it was.
    let _ = sockopt::set_tcp_congestion(socket, UNPACED);
}

/// A connected stream socket in non-blocking mode.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long what was lost may wait to be sent again, where the kernel can be told. Networks that a fabric is
/// used on answer within far less.
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// Congestion control without pacing.
const UNPACED: &str = "reno";

/// A listening socket that cannot be accepted from by a program this process starts.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

impl Socket {
    /// Connects over TCP, from a local address if given.
    pub(crate) fn dial(
        to: SocketAddr,
        from: Option<IpAddr>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let fd = socket_with(family, SocketType::STREAM, FLAGS, None)?;
        if let Some(from) = from {
            rustix::net::bind(&fd, &SocketAddr::new(from, 0))?;
        }
        let socket = Self(fd);
        match connect(&socket, &to) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                socket.ready(PollFlags::OUT, deadline)?;
                sockopt::socket_error(&socket)??;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(socket)
    }

    /// Connects to a Unix socket by its abstract name.
    pub(crate) fn dial_local(name: &[u8]) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self(fd))
    }

    pub(crate) fn accepted(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Small frames at once, and an end to a connection whose data nobody acknowledges. What is lost again and
    /// again is not waited for longer and longer: with a tenth of the packets lost, a mebibyte now and then
    /// took longer than 50 s. What the kernel does not grant is not fatal.
    ///
    /// A connection that stays on this host has nothing to gain from congestion control that paces what
    /// it sends, as BBR does: loopback carried 2.5 GB/s with it, and 5 to 7 without (2026-11-30, 2
    /// processors). The one that every kernel has and lets everybody choose does not pace.
    pub(crate) fn tune_tcp(&self, silence: Duration) {
        if self.stays_here() {
            unpace(self);
        }
        let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_nodelay(self, true);
        let _ = sockopt::set_tcp_user_timeout(self, millis);
        let _ = bound_backoff(self, LONGEST_BACKOFF);
        let _ = sockopt::set_socket_keepalive(self, true);
    }

    /// Whether both ends have the same address.
    fn stays_here(&self) -> bool {
        let peer = rustix::net::getpeername(self).ok().flatten();
        let peer: Option<SocketAddr> = peer.and_then(|peer| peer.try_into().ok());
        let local = self.local_address();
        peer.zip(local).is_some_and(|(peer, local)| {
            peer.ip() == local.ip() || (peer.ip().is_loopback() && local.ip().is_loopback())
        })
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(self).ok()?.try_into().ok()
    }

    pub(crate) fn peer_address(&self) -> Option<String> {
        self.peer().map(|address| address.to_string())
    }

    /// Where the other end is; `None` of a Unix socket.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        self.peer().map(|address| address.ip())
    }

    fn peer(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(self).ok()??.try_into().ok()
    }

    /// The user at the other end of a Unix socket.
    pub(crate) fn peer_user(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(self)?.uid.as_raw())
    }

    /// The process at the other end of a Unix socket.
    pub(crate) fn peer_process(&self) -> io::Result<rustix::process::Pid> {
        Ok(sockopt::socket_peercred(self)?.pid)
    }

    fn ready(&self, flags: PollFlags, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            let timeout = Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            });
            let mut fds = [PollFd::new(self, flags)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Fills all of `out`.
    pub(crate) fn read_all(&self, mut out: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !out.is_empty() {
            match rustix::io::read(self, &mut *out) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(got) => out = &mut out[got..],
                Err(Errno::AGAIN) => self.ready(PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    pub(crate) fn write_all(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(self, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.ready(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_connection_that_stays_on_this_host_is_not_paced() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let soon = Instant::now() + Duration::from_secs(10);
        let socket = Socket::dial(address, None, soon).expect("connected");
        assert!(socket.stays_here());
        socket.tune_tcp(Duration::from_secs(10));
        let chosen = sockopt::tcp_congestion(&socket).expect("told");
        assert_eq!(chosen, UNPACED);
    }
}
