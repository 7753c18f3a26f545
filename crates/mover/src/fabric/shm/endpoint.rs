//! How two processes of one host find each other's Unix socket.

use super::*;
use crate::fabric::handshake::Agreed;

/// A connection to a process of this host and of the same user.
pub(in crate::fabric) struct Met {
    pub socket: Socket,
    pub agreed: Agreed,
}

/// What an end says first: the acceptor, where it can be dialled and as what.
pub(in crate::fabric) fn greeting(expected: Option<&Expected>, listening: &[u8]) -> Writer {
    let mut out = Writer::default();
    if let Some(expected) = expected {
        out.raw(&expected.token).bytes(listening);
    }
    out
}

/// The connection to the other end: dialled as it greeted, or that by which it dialled this end.
pub(in crate::fabric) fn meet(
    sockets: &Sockets,
    expected: Option<&Expected>,
    theirs: &mut Reader<'_>,
    deadline: Instant,
) -> Result<Met, FabricError> {
    let address = "the peer's Unix socket";
    if let Some(expected) = expected {
        let arrived = expected.take().pop();
        let (socket, agreed) =
            arrived.ok_or(handshake::protocol(address, "a rail without a connection"))?;
        return Ok(Met { socket, agreed });
    }
    let token: Option<[u8; TOKEN]> = theirs.array();
    let (Some(token), Some(name)) = (token, theirs.bytes(MAX_NAME)) else {
        return Err(handshake::protocol(address, "no name of a Unix socket"));
    };
    let failed = |error| handshake::unreachable(address, error);
    let socket = Socket::dial_local(name).map_err(failed)?;
    same_user(&socket).map_err(failed)?;
    let (key, purpose) = (&sockets.key, Purpose::Rail);
    let agreed = handshake::dial(&socket, key, purpose, token, address, deadline)?;
    await_kept(&socket, deadline).map_err(failed)?;
    Ok(Met { socket, agreed })
}

pub(super) struct ShmEndpoint {
    pub sockets: Arc<Sockets>,
    pub copier: Arc<Copier>,
    pub listening: Vec<u8>,
    pub devices: Arc<Devices>,
    pub expected: Option<Expected>,
}

impl Endpoint for ShmEndpoint {
    fn hello(&self) -> Vec<u8> {
        greeting(self.expected.as_ref(), &self.listening).finish()
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let Met { socket, agreed } = meet(
            &self.sockets,
            self.expected.as_ref(),
            &mut Reader::new(theirs),
            joining.deadline,
        )?;
        let (hold, theirs) =
            tether::tether().map_err(|error| FabricError::setup("a pipe", error))?;
        let link = Arc::new_cyclic(|this| ShmLink {
            this: Weak::clone(this),
            conn: Conn::new(socket, false, agreed.sending, agreed.receiving),
            copier: Arc::clone(&self.copier),
            peer: joining.peer,
            rail: joining.rail,
            events: joining.events,
            regions: Arc::clone(&self.sockets.regions),
            devices: Arc::clone(&self.devices),
            gate: Gate::with_turnstiles(),
            state: Mutex::new(State {
                hold: Some(hold),
                ..State::default()
            }),
            withdrawn: Condvar::new(),
            mapped: Condvar::new(),
            attendance: Attendance::default(),
            cpu: Tally::default(),
        });
        let handler: Weak<ShmLink> = Arc::downgrade(&link);
        link.conn.handled_by(handler);
        self.sockets.reactor.watch(&link.conn)?;
        // Before anything is asked for.
        link.conn.send(Frame {
            descriptor: Some(theirs),
            ..Frame::new(Kind::Tether, 0, Vec::new())
        });
        Ok(link)
    }
}
