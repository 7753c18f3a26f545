//! What sockets can be asked for that no library has a name for yet.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

/// `TCP_RTO_MAX_MS` of linux/tcp.h.
const RTO_MAX_MS: c_int = 44;

/// Bounds how long TCP waits before it sends again what nobody acknowledged. It doubles that time with every
/// loss, and takes for a slow network what was lost twice: without a bound, up to two minutes pass.
///
/// # Errors
/// On kernels before 6.15, which have no such choice, for less than a second, and for what is no TCP socket.
pub fn bound_backoff(socket: impl AsFd, longest: Duration) -> io::Result<()> {
    let millis = c_int::try_from(longest.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the descriptor is borrowed for the call, and the value is an integer of the length that is told.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw const millis).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::BorrowedFd;

    use super::*;

    fn bound(socket: BorrowedFd<'_>) -> c_int {
        let (mut millis, mut len) = (0, size_of::<c_int>() as socklen_t);
        // SAFETY: the descriptor is borrowed, and both are places of their own, of the length that is told.
        let told = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                RTO_MAX_MS,
                (&raw mut millis).cast(),
                &raw mut len,
            )
        };
        assert_eq!(told, 0);
        millis
    }

    #[test]
    fn a_connection_waits_no_longer_than_was_said() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("connected");
        match bound_backoff(&stream, Duration::from_secs(2)) {
            Ok(()) => assert_eq!(bound(stream.as_fd()), 2000),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
                crowfly_waive::waived!("this kernel does not bound TCP's backing off");
            }
        }
    }

    #[test]
    fn what_is_no_connection_of_tcp_is_refused() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(bound_backoff(&one, Duration::from_secs(2)).is_err());
    }
}
