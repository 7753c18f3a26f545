//! What joins this rank to another: shared memory, or the fabric. Chunks arrive in the order in which
//! they were sent, some under way at a time; nothing blocks.

mod network;
mod shared;
mod stream;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

use super::arena::{HEAD, Head};
use super::receipt::PathBytes;
pub(crate) use network::{Ends, IMMS, NetworkLane};
pub(crate) use shared::SharedLane;
pub(crate) use stream::StreamLane;

/// Why a lane no longer works.
#[derive(Clone, Debug)]
pub(crate) struct Broken(pub String);

/// Bytes by the way they went.
pub(crate) type Moved = Vec<PathBytes>;

pub(crate) fn count(moved: &mut Moved, path: Path, bytes: u64) {
    match moved.iter_mut().find(|known| known.path == path) {
        Some(known) => known.bytes.0 += bytes,
        None if bytes == 0 => {}
        None => moved.push(PathBytes {
            path,
            bytes: Bytes(bytes),
        }),
    }
}

/// What joins this rank to another.
pub(crate) enum Lane {
    Shared(SharedLane),
    Network(Box<NetworkLane>),
    Stream(Box<StreamLane>),
}

impl Lane {
    /// Sends a chunk, if there is room for it; where it was not sent, the next must be the same.
    pub(crate) fn try_send(
        &mut self,
        head: &[u8; HEAD],
        bytes: &[u8],
        time: Duration,
    ) -> Result<bool, Broken> {
        match self {
            Self::Shared(lane) => Ok(lane.try_send(head, bytes)),
            Self::Network(lane) => lane.try_send(head, bytes, time),
            Self::Stream(lane) => lane.try_send(head, bytes),
        }
    }

    /// The chunk that is next, if its head has arrived; a head that makes no sense is none of ours.
    pub(crate) fn arrived(&mut self) -> Result<Option<Option<Head>>, Broken> {
        match self {
            Self::Shared(lane) => Ok(lane.arrived()),
            Self::Network(lane) => Ok(lane.arrived()),
            Self::Stream(lane) => lane.arrived(),
        }
    }

    /// Copies as much of that chunk as has arrived and `out` takes, from `offset` on, to which it has
    /// been copied before; answers how much.
    pub(crate) fn fill(&mut self, offset: usize, out: &mut [u8]) -> Result<usize, Broken> {
        match self {
            Self::Shared(lane) => lane.read(offset, out),
            Self::Network(lane) => lane.read(offset, out),
            Self::Stream(lane) => return lane.fill(out),
        }
        Ok(out.len())
    }

    /// The socket that tells of what arrives, where there is one, and whether it is to tell of room.
    pub(crate) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match self {
            Self::Shared(_) | Self::Network(_) => None,
            Self::Stream(lane) => Some((lane.socket(), lane.is_behind())),
        }
    }

    /// Makes room for another.
    pub(crate) fn release(&mut self) {
        match self {
            Self::Shared(lane) => lane.release(),
            Self::Network(lane) => lane.release(),
            Self::Stream(lane) => lane.release(),
        }
    }

    /// Whether everything that was sent has arrived.
    pub(crate) fn flushed(&mut self) -> Result<bool, Broken> {
        match self {
            Self::Shared(_) | Self::Stream(_) => Ok(true),
            Self::Network(lane) => lane.flushed(),
        }
    }

    /// What was sent since this was last asked.
    pub(crate) fn moved(&mut self, into: &mut Moved) {
        match self {
            Self::Shared(lane) => count(into, Path::Shm, std::mem::take(&mut lane.sent_bytes)),
            Self::Stream(lane) => count(into, Path::Tcp, std::mem::take(&mut lane.sent_bytes)),
            Self::Network(lane) => {
                for moved in lane.moved.drain(..) {
                    count(into, moved.path, moved.bytes.0);
                }
            }
        }
    }
}
