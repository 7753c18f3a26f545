//! A device's part of the fabric: where its listening comms are found, and who comes to them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::{
    self, Fabric, FabricError, Options, Peer, Settings as FabricSettings, Transfer,
};
use crowfly_route::policy::Policy;

use crate::account::Direction;
use crate::comm::{Line, locked};
use crate::device::Device;
use crate::error::NetError;
use crate::handle::{Handle, MAX_ADDRESSES};
use crate::receiver::Receiver;
use crate::records::{Hello, Notice, POSTINGS, TICKET};
use crate::ring::Incoming;
use crate::sender::Sender;
use crate::settings::Settings;

/// How long whoever connects may take to say which handle led it here.
const GREETING: Duration = Duration::from_secs(30);
/// Connections that have not said it yet; more wait inside of the fabric.
const MAX_GREETING: usize = 256;
/// Connections that wait for one listening comm.
const MAX_ARRIVED: usize = 256;
/// How long one try to connect by one address may take.
const TRY: Duration = Duration::from_secs(10);
/// How long to wait before the first new try, and the longest wait.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A device's part of the fabric.
pub(crate) struct Door {
    /// The device's name.
    pub device: String,
    pub fabric: Fabric,
    pub policy: Policy,
    pub timeout: Duration,
    addresses: Vec<IpAddr>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    greeting: Vec<(Peer, Transfer<Vec<u8>>)>,
    /// Who came, by ticket; an entry for each listening comm.
    arrived: HashMap<[u8; TICKET], VecDeque<(Peer, Hello)>>,
}

impl Door {
    pub(crate) fn open(device: &Device, settings: &Settings) -> Result<Arc<Self>, NetError> {
        let addresses = match settings.address {
            Some(address) => vec![address],
            None => addresses(device)?,
        };
        let listen = match (settings.address, addresses.first()) {
            (Some(address), _) => address,
            (None, Some(IpAddr::V6(_))) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            (None, _) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let fabric = Fabric::new(FabricSettings {
            listen: SocketAddr::new(listen, 0),
            nics: device.filter.clone(),
            topology: device.topology.clone(),
            shm: settings.local,
            silence: settings.silence,
            policy: settings.policy,
            providers: device.providers(),
            ..FabricSettings::new(settings.key.clone())
        })?;
        Ok(Arc::new(Self {
            device: device.name.to_string_lossy().into_owned(),
            fabric,
            policy: settings.policy,
            timeout: settings.timeout,
            addresses,
            waiting: Mutex::default(),
        }))
    }

    /// A new listening comm's handle.
    pub(crate) fn listen(&self) -> Result<Handle, NetError> {
        let mut ticket = [0; TICKET];
        rustix::rand::getrandom(&mut ticket, rustix::rand::GetRandomFlags::empty()).map_err(
            |error| FabricError::Setup {
                what: "drawing a ticket",
                source: Arc::new(error.into()),
            },
        )?;
        locked(&self.waiting)
            .arrived
            .insert(ticket, VecDeque::new());
        Ok(Handle {
            ticket,
            listener: self.fabric.incarnation(),
            addresses: self.addresses.clone(),
            port: self.fabric.address().port(),
        })
    }

    /// Nobody listens by this ticket any more.
    pub(crate) fn stop_listening(&self, ticket: &[u8; TICKET]) {
        let arrived = locked(&self.waiting).arrived.remove(ticket);
        for (peer, _) in arrived.into_iter().flatten() {
            peer.close();
        }
    }

    /// The next that came with this ticket, if one has come.
    pub(crate) fn accept(
        self: &Arc<Self>,
        ticket: &[u8; TICKET],
    ) -> Result<Option<Receiver>, NetError> {
        loop {
            let next = {
                let mut waiting = locked(&self.waiting);
                waiting.look(&self.fabric);
                let arrived = waiting.arrived.get_mut(ticket);
                arrived
                    .ok_or(NetError::Unknown("listening comm"))?
                    .pop_front()
            };
            let Some((peer, hello)) = next else {
                return Ok(None);
            };
            // Whoever gave up meanwhile is passed over: its end tries again, or says why not.
            if peer.lost().is_none() {
                let line = Line::new(Arc::clone(self), peer, Direction::Receive);
                return Receiver::new(line, &hello.postings).map(Some);
            }
        }
    }

    /// Connects to where a handle leads, and waits until the other end has accepted. May take as
    /// long as a connection may take: called by a thread of its own.
    pub(crate) fn connect(self: &Arc<Self>, handle: &Handle) -> Result<Sender, NetError> {
        let until = Instant::now() + self.timeout;
        let peer = self.reach(handle, until)?;
        let postings = Incoming::new(&self.fabric, POSTINGS)?;
        let hello = Hello::encode(&handle.ticket, &postings.described()?);
        let left =
            |until: Instant| Options::within(until.saturating_duration_since(Instant::now()));
        peer.send(&hello, left(until)).wait()?;
        // The other rank accepts when it comes to it.
        let welcome = peer.recv(left(until)).wait()?;
        let Some(Notice::Welcome(arrivals)) = Notice::decode(&welcome) else {
            return Err(NetError::Protocol("it did not answer the greeting"));
        };
        let line = Line::new(Arc::clone(self), peer, Direction::Send);
        Sender::new(line, postings, &arrivals)
    }

    /// Tries each address until one leads to the process that gave the handle.
    fn reach(&self, handle: &Handle, until: Instant) -> Result<Peer, NetError> {
        let mut pause = AGAIN.0;
        loop {
            let mut last = NetError::Handle("it names no address");
            for target in handle.targets() {
                let left = until.saturating_duration_since(Instant::now()).min(TRY);
                let address = target.to_string();
                match self
                    .fabric
                    .connect(&address, Options::within(left).by(self.policy))
                {
                    Ok(peer) if peer.incarnation() == handle.listener => return Ok(peer),
                    // Such as another host's bridge with the same address as one here.
                    Ok(stranger) => {
                        stranger.close();
                        last = NetError::Stranger { address };
                    }
                    Err(
                        error @ (FabricError::Refused { .. }
                        | FabricError::NotAuthenticated { .. }
                        | FabricError::WrongVersion { .. }),
                    ) => return Err(error.into()),
                    Err(error) => last = error.into(),
                }
            }
            if Instant::now() + pause >= until || handle.addresses.is_empty() {
                return Err(last);
            }
            // Its queue of connections may be full.
            std::thread::sleep(pause);
            pause = (pause * 2).min(AGAIN.1);
        }
    }
}

impl Waiting {
    /// Takes in who came, without waiting for anybody.
    fn look(&mut self, fabric: &Fabric) {
        while self.greeting.len() < MAX_GREETING
            && let Ok(peer) = fabric.accept(Duration::ZERO)
        {
            let hello = peer.recv(Options::within(GREETING));
            self.greeting.push((peer, hello));
        }
        for (peer, hello) in self
            .greeting
            .extract_if(.., |(_, hello)| hello.is_finished())
        {
            let hello = hello
                .wait()
                .ok()
                .and_then(|message| Hello::decode(&message));
            let queue = hello.as_ref().and_then(|h| self.arrived.get_mut(&h.ticket));
            match (hello, queue) {
                (Some(hello), Some(queue)) if queue.len() < MAX_ARRIVED => {
                    queue.push_back((peer, hello));
                }
                // A stranger, or somebody for whom nobody listens any more.
                _ => peer.close(),
            }
        }
    }
}

/// Where other ranks are told to connect to: interfaces that were asked for first, the loopback only
/// where there is nothing else.
fn addresses(device: &Device) -> Result<Vec<IpAddr>, NetError> {
    let mut all = fabric::reachable().map_err(|error| FabricError::Setup {
        what: "listing the interfaces",
        source: Arc::new(error),
    })?;
    all.sort_by_key(|known| device.filter.says(&known.name) != Some(true));
    if all.iter().any(|known| !known.address.is_loopback()) {
        all.retain(|known| !known.address.is_loopback());
    }
    // One socket listens for all of them, so they are of one family.
    let v6 = all.first().is_some_and(|first| first.address.is_ipv6());
    let found = all.into_iter().map(|known| known.address);
    Ok(found
        .filter(|address| address.is_ipv6() == v6)
        .take(MAX_ADDRESSES)
        .collect())
}
