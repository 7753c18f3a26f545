//! The `cma` path: one copy by the kernel between the memories of two processes of this host, where
//! the peer's memory is no memory file and cannot be mapped.
//!
//! Whoever's memory is to change reads the other's (`process_vm_readv`): a write is pulled by the
//! peer, a read by this process. So no process writes into another, whatever becomes of either.
//! The memory read from stays in place until the reader says that it is through; should the
//! connection end first, what was read counts for nothing.

use std::sync::Arc;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::Path;
use rustix::process::Pid;

use super::copier::Copier;
use super::error::FabricError;
use super::fields::{Reader, Writer};
use super::handshake;
use super::identity::random;
use super::memory::{Backing, peek};
use super::provider::{Endpoint, Joining, Link, Meeting, Provider, Registration, Role};
use super::region::Access;
use super::shm::endpoint::{Met, greeting, meet};
use super::stash::Expected;
use super::tcp::Sockets;
use link::CmaLink;

mod link;

/// The one "NIC" of this path.
pub(crate) const NAME: &str = "cma";
/// Bytes by which an end finds out whether it can read the other.
const PROBE: usize = 16;

/// Memory of processes of this host that the kernel copies out of.
pub(crate) struct Cma {
    pub sockets: Arc<Sockets>,
    pub copier: Arc<Copier>,
    /// The abstract name of the Unix socket that this process listens on.
    pub listening: Vec<u8>,
}

impl Provider for Cma {
    fn path(&self) -> Path {
        Path::Cma
    }

    fn class(&self) -> Class {
        Class::Direct
    }

    fn nic(&self) -> &str {
        NAME
    }

    fn register(&self, memory: &Arc<Backing>, _: Access) -> Result<Registration, Vec<Obstacle>> {
        match memory.place() {
            Place::Host(_) => Ok(Registration::by_copies(memory)),
            place => Err(vec![super::hops::no_copy(place)]),
        }
    }

    fn endpoint(&self, role: Role, _: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle> {
        let refused = |error: FabricError| {
            Obstacle::blocks(Code::NoSharedMemory, "no more rails can be set up now")
                .seen(error.code(), error.to_string())
        };
        let expected = match role {
            Role::Dialer => None,
            Role::Acceptor => Some(self.sockets.stash.expect().map_err(refused)?),
        };
        Ok(Box::new(CmaEndpoint {
            sockets: Arc::clone(&self.sockets),
            copier: Arc::clone(&self.copier),
            listening: self.listening.clone(),
            expected,
            probe: Probe::new().map_err(refused)?,
        }))
    }
}

/// Random bytes at a known address, for the peer to read.
struct Probe(Box<[u8; PROBE]>);

impl Probe {
    fn new() -> Result<Self, FabricError> {
        Ok(Self(Box::new(random()?)))
    }

    fn write(&self, out: &mut Writer) {
        out.u64(self.0.as_ptr() as u64).raw(&*self.0);
    }

    /// Whether the bytes that the peer told are where it told in that process: it is the right one,
    /// and this one may read it.
    fn check(fields: &mut Reader<'_>, process: Pid) -> Result<(), FabricError> {
        let told = fields.u64().zip(fields.array::<PROBE>());
        let Some((address, bytes)) = told else {
            return Err(handshake::protocol(
                "a process here",
                "no probe of its memory",
            ));
        };
        let what = "reading the peer's memory (process_vm_readv)";
        let seen = peek(process, address).map_err(|error| FabricError::setup(what, error))?;
        if seen != bytes {
            let other = std::io::Error::from(std::io::ErrorKind::InvalidData);
            return Err(FabricError::setup(what, other));
        }
        Ok(())
    }
}

struct CmaEndpoint {
    sockets: Arc<Sockets>,
    copier: Arc<Copier>,
    listening: Vec<u8>,
    expected: Option<Expected>,
    probe: Probe,
}

impl Endpoint for CmaEndpoint {
    fn hello(&self) -> Vec<u8> {
        let mut out = greeting(self.expected.as_ref(), &self.listening);
        self.probe.write(&mut out);
        out.finish()
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let mut fields = Reader::new(theirs);
        let Met { socket, agreed } = meet(
            &self.sockets,
            self.expected.as_ref(),
            &mut fields,
            joining.deadline,
        )?;
        let what = "asking which process the peer is";
        let process = socket
            .peer_process()
            .map_err(|error| FabricError::setup(what, error))?;
        Probe::check(&mut fields, process)?;
        let reactor = Arc::clone(&self.sockets.reactor);
        CmaLink::start(*self, socket, agreed, process, joining, &reactor)
    }
}
