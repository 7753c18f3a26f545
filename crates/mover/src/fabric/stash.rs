//! Connections that were accepted for a rail and wait until their session joins it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::error::FabricError;
use super::handshake::{Agreed, TOKEN};
use super::identity::random;
use super::socket::Socket;

/// The most connections that one rail can have.
pub(crate) const MAX_STREAMS: usize = 16;
/// The most rails that can be waited for at one time.
const MAX_EXPECTED: usize = 1024;

/// What a dialer hears when its connection is kept.
const KEPT: u8 = 1;

type Arrived = Vec<(Socket, Agreed)>;

/// Connections that wait to be joined, by the token of their rail.
#[derive(Default)]
pub(crate) struct Stash(Mutex<HashMap<[u8; TOKEN], Arrived>>);

/// Leave to arrive, as long as it lives.
pub(crate) struct Expected {
    stash: Arc<Stash>,
    pub token: [u8; TOKEN],
}

impl Stash {
    fn locked(&self) -> MutexGuard<'_, HashMap<[u8; TOKEN], Arrived>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects connections for a new rail.
    pub(crate) fn expect(self: &Arc<Self>) -> Result<Expected, FabricError> {
        let token = random()?;
        let mut known = self.locked();
        if known.len() >= MAX_EXPECTED {
            return Err(FabricError::QueueFull {
                what: "rails being set up",
                limit: MAX_EXPECTED,
            });
        }
        known.insert(token, Vec::new());
        drop(known);
        Ok(Expected {
            stash: Arc::clone(self),
            token,
        })
    }

    /// Keeps a connection that is expected and tells its dialer so; drops any other.
    pub(crate) fn put(&self, socket: Socket, agreed: Agreed, deadline: Instant) {
        if let Some(arrived) = self.locked().get_mut(&agreed.token)
            && arrived.len() < MAX_STREAMS
        {
            // One byte into an empty buffer does not block.
            if socket.write_all(&[KEPT], deadline).is_ok() {
                arrived.push((socket, agreed));
            }
        }
    }
}

/// Waits until the acceptor has put a connection where its session will find it.
pub(crate) fn await_kept(socket: &Socket, deadline: Instant) -> io::Result<()> {
    let mut byte = [0];
    socket.read_all(&mut byte, deadline)?;
    if byte == [KEPT] {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::InvalidData))
}

impl Expected {
    pub(crate) fn take(&self) -> Arrived {
        let mut known = self.stash.locked();
        known
            .get_mut(&self.token)
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.stash.locked().remove(&self.token);
    }
}
