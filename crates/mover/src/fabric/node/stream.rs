//! Plain streams beside the rails, for those who move bytes themselves: in their own threads, from and
//! to memory that is not registered. They are met by the fabric's own listener and greeting, so whoever
//! has no key gets none.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::Fabric;
use crate::fabric::error::FabricError;
use crate::fabric::handshake::{self, Agreed, Purpose, TOKEN};
use crate::fabric::lookup;
use crate::fabric::socket::Socket;
use crate::fabric::stash::{Expected, await_kept};
use crate::fabric::wire::{HEADER, Kind, Lane};

/// A stream to a peer. Nothing blocks.
pub(crate) struct Stream {
    socket: Socket,
    sending: Lane,
    receiving: Lane,
}

/// What tells a stream that is expected from all others.
pub(crate) type Token = [u8; TOKEN];

/// A stream that a peer was given leave to open.
pub(crate) struct Awaited(Expected);

impl Awaited {
    /// What the peer opens it with.
    pub(crate) const fn token(&self) -> Token {
        self.0.token
    }

    /// The stream, once it is there.
    pub(crate) fn take(&self) -> Option<Stream> {
        self.0
            .take()
            .pop()
            .map(|(socket, agreed)| Stream::new(socket, agreed))
    }
}

impl Fabric {
    /// Gives leave to open one stream.
    pub(crate) fn await_stream(&self) -> Result<Awaited, FabricError> {
        self.core.sockets.stash.expect().map(Awaited)
    }

    /// Opens a stream to a peer that gave leave for it, where it was reached.
    pub(crate) fn open_stream(
        &self,
        address: &str,
        token: Token,
        deadline: Instant,
    ) -> Result<Stream, FabricError> {
        let unreachable = |error| handshake::unreachable(address, error);
        let found = lookup::addresses(address, deadline)?;
        let to = found.into_iter().next().ok_or_else(|| {
            let nowhere = io::Error::from(io::ErrorKind::AddrNotAvailable);
            handshake::unreachable(address, nowhere)
        })?;
        let socket = Socket::dial(to, None, deadline).map_err(unreachable)?;
        socket.tune_tcp(self.core.settings.silence);
        let key = &self.core.settings.key;
        let agreed = handshake::dial(&socket, key, Purpose::Rail, token, address, deadline)?;
        await_kept(&socket, deadline).map_err(unreachable)?;
        Ok(Stream::new(socket, agreed))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    fn new(socket: Socket, agreed: Agreed) -> Self {
        Self {
            socket,
            sending: agreed.sending,
            receiving: agreed.receiving,
        }
    }

    /// What goes in front of bytes: a header that the other end can check, and `body`.
    pub(crate) fn seal(&mut self, body: &[u8]) -> Vec<u8> {
        self.sending.seal(Kind::Data, 0, 0, body, 0)
    }

    /// Whether a header and its body are what the other end sealed next.
    pub(crate) fn opens(&mut self, header: &[u8; HEADER], body: &[u8]) -> bool {
        self.receiving.open(header, body).is_ok()
    }

    /// Sends what there is room for; how much that was.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(
            &self.socket,
            parts,
            &mut SendAncillaryBuffer::default(),
            flags,
        ) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what has arrived; how much that was.
    pub(crate) fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        match recv(&self.socket, out, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok((got, _)) => Ok(got),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
