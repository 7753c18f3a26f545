//! How two processes of one host find each other's Unix socket.

use super::*;

pub(super) struct ShmEndpoint {
    pub sockets: Arc<Sockets>,
    pub copier: Arc<Copier>,
    pub listening: Vec<u8>,
    pub expected: Option<Expected>,
}

impl Endpoint for ShmEndpoint {
    fn hello(&self) -> Vec<u8> {
        let Some(expected) = &self.expected else {
            return Vec::new();
        };
        let mut out = Writer::default();
        out.raw(&expected.token).bytes(&self.listening);
        out.finish()
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let address = "the peer's Unix socket";
        let (socket, agreed) = match &self.expected {
            Some(expected) => {
                let arrived = expected.take().pop();
                arrived.ok_or(handshake::protocol(address, "a rail without a connection"))?
            }
            None => {
                let mut fields = Reader::new(theirs);
                let token: Option<[u8; TOKEN]> = fields.array();
                let (Some(token), Some(name)) = (token, fields.bytes(MAX_NAME)) else {
                    return Err(handshake::protocol(address, "no name of a Unix socket"));
                };
                let failed = |error| handshake::unreachable(address, error);
                let socket = Socket::dial_local(name).map_err(failed)?;
                same_user(&socket).map_err(failed)?;
                let (key, purpose) = (&self.sockets.key, Purpose::Rail);
                let agreed =
                    handshake::dial(&socket, key, purpose, token, address, joining.deadline)?;
                await_kept(&socket, joining.deadline).map_err(failed)?;
                (socket, agreed)
            }
        };
        let link = Arc::new_cyclic(|this| ShmLink {
            this: Weak::clone(this),
            process: socket.peer_process().ok(),
            conn: Conn::new(socket, false, agreed.sending, agreed.receiving),
            copier: Arc::clone(&self.copier),
            peer: joining.peer,
            rail: joining.rail,
            events: joining.events,
            regions: Arc::clone(&self.sockets.regions),
            gate: Gate::default(),
            state: Mutex::default(),
            withdrawn: Condvar::new(),
            mapped: Condvar::new(),
            cpu: Mutex::default(),
        });
        let handler: Weak<ShmLink> = Arc::downgrade(&link);
        link.conn.handled_by(handler);
        self.sockets.reactor.watch(&link.conn)?;
        Ok(link)
    }
}
