//! Where a name is: asked of the system, which has no time limit of its own for the answer, within a deadline.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;

use super::error::FabricError;
use super::handshake::unreachable;

/// The addresses of `host:port`.
///
/// # Errors
/// [`FabricError::NoSuchHost`] when the system knows none; that it took too long is one of
/// [`FabricError::Unreachable`].
pub(crate) fn addresses(address: &str, deadline: Instant) -> Result<Vec<SocketAddr>, FabricError> {
    found(address, deadline).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::InvalidInput => unreachable(address, error),
        // A system's number is about this process: no thread, no descriptors.
        _ if error.raw_os_error().is_some() => unreachable(address, error),
        _ => FabricError::NoSuchHost {
            address: address.to_owned(),
            source: Arc::new(error),
        },
    })
}

/// The same, with the system's answer.
pub(crate) fn found(address: &str, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(plain) = address.parse() {
        return Ok(vec![plain]);
    }
    let name = address.to_owned();
    within(deadline, move || Ok(name.to_socket_addrs()?.collect()))
}

/// What a question that cannot be given up is answered in time. Its thread ends with the answer, whenever that is.
fn within<T: Send + 'static>(
    deadline: Instant,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (said, heard) = sync_channel(1);
    std::thread::Builder::new()
        .name("crowfly-lookup".into())
        .spawn(move || drop(said.try_send(ask())))?;
    let left = deadline.saturating_duration_since(Instant::now());
    match heard.recv_timeout(left) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the look-up failed")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_need_no_look_up_and_a_name_without_a_port_is_no_address() {
        let past = Instant::now();
        for address in ["127.0.0.1:7", "[::1]:7"] {
            let plain: SocketAddr = address.parse().expect("plain");
            assert_eq!(found(address, past).expect("at once"), [plain]);
        }
        let soon = Instant::now() + Duration::from_secs(60);
        let error = addresses("localhost", soon).expect_err("no port");
        assert_eq!(error.code(), "peer-unreachable");
        let error = addresses("no-such-host.invalid:7", soon).expect_err("no host");
        assert_eq!(error.code(), "no-such-host");
    }

    #[test]
    fn a_system_that_does_not_answer_is_waited_for_until_the_deadline() {
        let (end, ended) = sync_channel::<()>(0);
        let began = Instant::now();
        let deadline = began + Duration::from_millis(50);
        let answer = within(deadline, move || Ok(ended.recv().is_ok()));
        assert_eq!(answer.expect_err("late").kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(30));
        drop(end);
    }
}
