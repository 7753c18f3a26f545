//! One interface, or whichever the kernel chooses: how rails by it are found, paired and connected.

use super::host::HostMark;
use super::*;
use crate::fabric::socket::unpace;

type Dialled = (Vec<(Socket, Agreed)>, Option<HostMark>);

/// The time that connecting one rail may take.
const RAIL_TIME: Duration = Duration::from_secs(2);

/// TCP by one interface, or by whichever the kernel chooses.
pub(crate) struct Tcp {
    pub sockets: Arc<Sockets>,
    pub nic: String,
    /// The local address of the interface; the kernel's choice when `None`.
    pub source: Option<Address>,
    /// Whether the user named the interface, so that it is used whatever its subnet.
    pub asked: bool,
    /// Whether this process listens on all of its addresses.
    pub everywhere: bool,
    /// Bytes per second that the interface says.
    pub line_rate: Option<f64>,
    pub streams: usize,
}

impl Provider for Tcp {
    fn path(&self) -> Path {
        Path::Tcp
    }

    fn class(&self) -> Class {
        Class::Socket
    }

    fn nic(&self) -> &str {
        &self.nic
    }

    fn line_rate(&self) -> Option<f64> {
        self.line_rate
    }

    fn suits(&self, meeting: &Meeting) -> bool {
        // What the kernel chose carries the rail that names no interface.
        self.asked
            || self.source.is_none_or(|source| {
                !meeting.address.ip().is_loopback() && source.ip != meeting.here
            })
    }

    fn fit(&self, theirs: &[u8], meeting: &Meeting) -> Result<u8, String> {
        const SAME_KIND: u8 = 2;
        let theirs = pairing::Source::decode(theirs).ok_or("a malformed address of a rail")?;
        let Some((address, asked)) = theirs.named else {
            return match (&self.source, self.asked) {
                (None, _) => Ok(SAME_KIND),
                (Some(_), true) => Ok(0),
                (Some(_), false) => Err("it is another rail's".into()),
            };
        };
        let own = self.source.map_or(meeting.here, |source| source.ip);
        if address.reaches(own) && (self.source.is_none() || self.everywhere || self.asked) {
            return Ok(SAME_KIND - u8::from(self.source.is_none()));
        }
        if (asked || self.asked) && address.ip.is_ipv4() == own.is_ipv4() {
            return Ok(0);
        }
        Err(format!(
            "{} of the other end is not of the subnet of {}",
            self.nic, address.ip
        ))
    }

    fn register(&self, memory: &Arc<Backing>, _: Access) -> Result<Registration, Vec<Obstacle>> {
        match memory.place() {
            Place::Host(_) => Ok(Registration::by_copies(memory)),
            Place::Gpu(_) if memory.device().is_some() => Ok(Registration::by_copies(memory)),
            place => Err(vec![
                Obstacle::blocks(
                    Code::NotBuilt,
                    format!("sockets cannot reach {place} itself"),
                )
                .seen("place", place.to_string())
                .fixed_by(Fix::by_hand("Copy the bytes into host memory first.")),
            ]),
        }
    }

    fn endpoint(&self, role: Role, meeting: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle> {
        let expected = match role {
            Role::Dialer => None,
            Role::Acceptor => Some(self.sockets.stash.expect().map_err(|error| {
                Obstacle::blocks(Code::RailFailed, "no more rails can be set up now")
                    .seen("stash", error.to_string())
            })?),
        };
        Ok(Box::new(TcpEndpoint {
            sockets: Arc::clone(&self.sockets),
            nic: self.nic.clone(),
            source: self.source,
            asked: self.asked,
            line_rate: self.line_rate,
            reached: meeting.address,
            streams: self.streams.clamp(1, MAX_STREAMS),
            expected,
        }))
    }
}

struct TcpEndpoint {
    sockets: Arc<Sockets>,
    nic: String,
    source: Option<Address>,
    asked: bool,
    line_rate: Option<f64>,
    reached: SocketAddr,
    streams: usize,
    expected: Option<Expected>,
}

impl Endpoint for TcpEndpoint {
    fn hello(&self) -> Vec<u8> {
        let host = HostMark::of_this_host(&self.sockets.key);
        let Some(expected) = &self.expected else {
            let named = self.source.map(|address| (address, self.asked));
            return pairing::Source { named, host }.encode();
        };
        let mut out = Writer::default();
        let own = self
            .source
            .map(|address| SocketAddr::new(address.ip, self.reached.port()).to_string());
        out.raw(&expected.token)
            .bytes(own.unwrap_or_default().as_bytes());
        if let Some(host) = host {
            out.raw(&host.0);
        }
        out.finish()
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        let (streams, host) = match &self.expected {
            Some(expected) => {
                let theirs = pairing::Source::decode(theirs);
                (expected.take(), theirs.and_then(|theirs| theirs.host))
            }
            None => self.dial(theirs, &joining)?,
        };
        let stays_here = self.is_here(host);
        if streams.is_empty() {
            return Err(handshake::protocol(
                &self.reached.to_string(),
                "a rail without streams",
            ));
        }
        let local = streams
            .first()
            .and_then(|(socket, _)| socket.local_address());
        let nic = local.map_or(self.nic, |address| interfaces::name_of(address.ip()));
        let mut conns = Vec::with_capacity(streams.len());
        for (socket, agreed) in streams {
            socket.tune_tcp(self.sockets.silence);
            if stays_here {
                unpace(&socket);
            }
            conns.push(Conn::new(socket, true, agreed.sending, agreed.receiving));
        }
        let link = Arc::new(TcpLink {
            busy: conns.iter().map(|_| AtomicUsize::new(0)).collect(),
            conns,
            port: InterfacePort::of(&nic),
            nic,
            line_rate: self.line_rate,
            peer: joining.peer,
            rail: joining.rail,
            events: joining.events,
            regions: Arc::clone(&self.sockets.regions),
            pending: Mutex::default(),
            values: Values::default(),
            attendance: Attendance::default(),
        });
        for conn in &link.conns {
            let handler: Weak<TcpLink> = Arc::downgrade(&link);
            conn.handled_by(handler);
            self.sockets.reactor.watch(conn)?;
        }
        Ok(link)
    }
}

impl TcpEndpoint {
    /// Whether the mark is this host's.
    fn is_here(&self, host: Option<HostMark>) -> bool {
        host.is_some() && host == HostMark::of_this_host(&self.sockets.key)
    }

    /// The streams to the other end, and the mark of the host that it is on.
    fn dial(&self, theirs: &[u8], joining: &Joining) -> Result<Dialled, FabricError> {
        const MAX_ADDRESS: usize = 64;
        let mut fields = Reader::new(theirs);
        let token: Option<[u8; TOKEN]> = fields.array();
        // An end that names no address of its own is dialled where it was reached.
        let address = fields.text(MAX_ADDRESS).and_then(|text| match text {
            "" => Some(self.reached),
            text => text.parse().ok(),
        });
        let host = fields.array().map(HostMark);
        let (Some(token), Some(address)) = (token, address) else {
            return Err(handshake::protocol(
                &self.reached.to_string(),
                "no address for a rail",
            ));
        };
        let name = SocketAddr::to_string(&address);
        // A way that leads nowhere must not take the time of all the others.
        let deadline = joining.deadline.min(Instant::now() + RAIL_TIME);
        // Several streams that one thread drives gain nothing on a host, and over a veth pair the kernel,
        // which sends for them from several processors, mixes their packets up: 64 MiB writes went at 3.5
        // to 5.6 GB/s by one stream and at 2.6 to 3.7 by two, with packets sent twice (2026-11-30).
        let streams = match self.is_here(host) {
            true => self.streams.min(self.sockets.reactor.threads()),
            false => self.streams,
        };
        let mut dialled = Vec::with_capacity(streams);
        for _ in 0..streams {
            let socket = Socket::dial(address, self.source.map(|own| own.ip), deadline)
                .map_err(|error| handshake::unreachable(&name, error))?;
            let (purpose, key) = (Purpose::Rail, &self.sockets.key);
            let agreed = handshake::dial(&socket, key, purpose, token, &name, deadline)?;
            await_kept(&socket, deadline).map_err(|error| handshake::unreachable(&name, error))?;
            dialled.push((socket, agreed));
        }
        Ok((dialled, host))
    }
}
