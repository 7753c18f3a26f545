//! How two processes become peers: the greeting, the offers of rails, and the session that comes of it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::policy::Policy;

use super::{Core, HANDSHAKE};
use crate::fabric::conn::Conn;
use crate::fabric::error::FabricError;
use crate::fabric::handshake::{self, Purpose, TOKEN, protocol, unreachable};
use crate::fabric::hello::{Hello, MAX_RAILS, Offer, Talk, decode_joined, encode_joined};
use crate::fabric::identity::Incarnation;
use crate::fabric::peer::Peer;
use crate::fabric::provider::{Endpoint, Events, Joining, Link, Meeting, RailId, Role};
use crate::fabric::rail::Rail;
use crate::fabric::session::Session;
use crate::fabric::settings::Options;
use crate::fabric::shm;
use crate::fabric::socket::Socket;
use crate::fabric::wire::Kind;

impl Core {
    /// Answers a connection: a rail of a session that is being set up, or a peer's first.
    pub(super) fn greet(self: &Arc<Self>, socket: Socket, local: bool) -> Result<(), FabricError> {
        let deadline = Instant::now() + HANDSHAKE;
        let address = socket
            .peer_address()
            .unwrap_or_else(|| "a process here".into());
        if local {
            shm::same_user(&socket).map_err(|error| unreachable(&address, error))?;
        } else {
            socket.tune_tcp(self.settings.silence);
        }
        let agreed = handshake::accept(&socket, &self.settings.key, &address, deadline)?;
        match agreed.purpose {
            Purpose::Rail => {
                self.sockets.stash.put(socket, agreed, deadline);
                Ok(())
            }
            Purpose::Control => {
                let here = socket.local_address().unwrap_or(self.address);
                let talk = Talk::new(socket, agreed, address, deadline);
                let peer = self.answer(talk, here)?;
                if self.unaccepted.try_send(peer.clone()).is_err() {
                    peer.close();
                }
                Ok(())
            }
        }
    }

    /// The dialer's side of setting a session up.
    pub(super) fn dial(
        self: &Arc<Self>,
        address: &str,
        options: Options,
        deadline: Instant,
    ) -> Result<Peer, FabricError> {
        let failed = |error| unreachable(address, error);
        let targets = address.to_socket_addrs().map_err(failed)?;
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        let mut found = None;
        for target in targets {
            match Socket::dial(target, None, deadline) {
                Ok(socket) => {
                    found = Some((socket, target));
                    break;
                }
                Err(error) => last = error,
            }
        }
        let Some((socket, target)) = found else {
            return Err(failed(last));
        };
        socket.tune_tcp(self.settings.silence);
        let token = [0; TOKEN];
        let (key, purpose) = (&self.settings.key, Purpose::Control);
        let agreed = handshake::dial(&socket, key, purpose, token, address, deadline)?;
        let mut talk = Talk::new(socket, agreed, address.to_owned(), deadline);

        let meeting = Meeting { address: target };
        let mut obstacles = Vec::new();
        let mut endpoints: Vec<Option<Box<dyn Endpoint>>> = Vec::new();
        let mut offers = Vec::new();
        for (index, provider) in self.providers.iter().take(MAX_RAILS).enumerate() {
            let endpoint = provider.endpoint(Role::Dialer, &meeting);
            if let Ok(endpoint) = &endpoint {
                offers.push(Offer {
                    index: index as u16,
                    path: provider.path(),
                    nic: provider.nic().to_owned(),
                    endpoint: endpoint.hello(),
                });
            }
            endpoints.push(endpoint.map_err(|obstacle| obstacles.push(obstacle)).ok());
        }
        let incarnation = self.incarnation;
        talk.say(
            Kind::Hello,
            &Hello {
                incarnation,
                offers,
            }
            .encode(),
        )?;
        let theirs = Hello::decode(&talk.hear(Kind::Hello)?)
            .ok_or(protocol(address, "a malformed greeting"))?;

        let session = self.session(theirs.incarnation, address);
        let mut joined = Vec::new();
        for offer in &theirs.offers {
            let slot = endpoints.get_mut(usize::from(offer.index));
            let Some(endpoint) = slot.and_then(Option::take) else {
                continue;
            };
            match endpoint.join(&offer.endpoint, joining(&session, offer.index, deadline)) {
                Ok(link) => joined.push((offer.index, link)),
                Err(error) => obstacles.push(not_joined(offer, &error)),
            }
        }
        let numbers: Vec<u16> = joined.iter().map(|(index, _)| *index).collect();
        talk.say(Kind::Ready, &encode_joined(&numbers))?;
        let both = decode_joined(&talk.hear(Kind::Ready)?)
            .ok_or(protocol(address, "a malformed list of rails"))?;
        self.open(&session, joined, &both);
        let policy = options.policy.unwrap_or(self.settings.policy);
        self.finish(&session, talk, policy, obstacles)
    }

    /// The acceptor's side of setting a session up.
    fn answer(self: &Arc<Self>, mut talk: Talk, here: SocketAddr) -> Result<Peer, FabricError> {
        let address = talk.address.clone();
        let deadline = talk.deadline;
        let theirs = Hello::decode(&talk.hear(Kind::Hello)?)
            .ok_or(protocol(&address, "a malformed greeting"))?;
        let meeting = Meeting { address: here };
        let mut obstacles = Vec::new();
        let mut endpoints = Vec::new();
        let mut offers = Vec::new();
        let mut turns: std::collections::BTreeMap<_, usize> = std::collections::BTreeMap::new();
        for offer in &theirs.offers {
            // The dialer's NICs of a path are dealt out over this end's, in turn.
            let fitting = self.providers.iter().filter(|p| p.path() == offer.path);
            let fitting: Vec<_> = fitting.collect();
            let turn = turns.entry(offer.path).or_default();
            let Some(provider) = fitting.get(*turn % fitting.len().max(1)) else {
                continue;
            };
            *turn += 1;
            match provider.endpoint(Role::Acceptor, &meeting) {
                Ok(endpoint) => {
                    offers.push(Offer {
                        index: offer.index,
                        path: offer.path,
                        nic: provider.nic().to_owned(),
                        endpoint: endpoint.hello(),
                    });
                    endpoints.push((offer.clone(), endpoint));
                }
                Err(obstacle) => obstacles.push(obstacle),
            }
        }
        let incarnation = self.incarnation;
        let hello = Hello {
            incarnation,
            offers,
        };
        talk.say(Kind::Hello, &hello.encode())?;
        let dialed = decode_joined(&talk.hear(Kind::Ready)?)
            .ok_or(protocol(&address, "a malformed list of rails"))?;
        let session = self.session(theirs.incarnation, &address);
        let mut joined = Vec::new();
        for (offer, endpoint) in endpoints {
            if !dialed.contains(&offer.index) {
                continue;
            }
            match endpoint.join(&offer.endpoint, joining(&session, offer.index, deadline)) {
                Ok(link) => joined.push((offer.index, link)),
                Err(error) => obstacles.push(not_joined(&offer, &error)),
            }
        }
        let numbers: Vec<u16> = joined.iter().map(|(index, _)| *index).collect();
        self.open(&session, joined, &numbers);
        talk.say(Kind::Ready, &encode_joined(&numbers))?;
        self.finish(&session, talk, self.settings.policy, obstacles)
    }

    fn session(&self, peer: Incarnation, address: &str) -> Arc<Session> {
        let counters = Arc::clone(&self.counters);
        let silence = self.settings.silence;
        Session::new(peer, address.to_owned(), counters, self.started, silence)
    }

    /// Gives a session the rails that both ends joined, and closes the others.
    fn open(&self, session: &Session, joined: Vec<(u16, Arc<dyn Link>)>, both: &[u16]) {
        for (index, link) in joined {
            if !both.contains(&index) {
                link.close();
                continue;
            }
            let mut of_path = self.providers.iter().filter(|p| p.path() == link.path());
            let class = of_path
                .next()
                .map_or(Class::Socket, |provider| provider.class());
            let mut named = self.providers.iter().filter(|p| p.nic() == link.nic());
            let rate = named.find_map(|provider| provider.line_rate());
            let rail = Rail {
                path: link.path(),
                nic: link.nic().to_owned(),
                weight: rate.unwrap_or(1.0),
                link: Arc::clone(&link),
            };
            session
                .scheduler
                .add_rail(RailId(u32::from(index)), rail, class);
            session.keep(link);
        }
    }

    /// Hands the control connection over to the reactor.
    fn finish(
        self: &Arc<Self>,
        session: &Arc<Session>,
        talk: Talk,
        policy: Policy,
        obstacles: Vec<Obstacle>,
    ) -> Result<Peer, FabricError> {
        if !session.scheduler.suits(policy) {
            session.lose("it has no rail that the policy allows");
            return Err(FabricError::Refused {
                peer: session.address.clone(),
                policy,
                obstacles,
            });
        }
        let control = Conn::new(talk.socket, true, talk.sending, talk.receiving);
        let handler: Weak<Session> = Arc::downgrade(session);
        control.handled_by(handler);
        session.controlled_by(Arc::clone(&control));
        self.reactor.watch(&control)?;
        self.sessions.insert(session);
        Ok(Peer::new(Arc::clone(session), policy, Arc::new(obstacles)))
    }
}

fn joining(session: &Arc<Session>, index: u16, deadline: Instant) -> Joining {
    let events: Arc<dyn Events> = Arc::<Session>::clone(session);
    Joining {
        peer: session.peer,
        rail: RailId(u32::from(index)),
        events: Arc::downgrade(&events),
        deadline,
    }
}

fn not_joined(offer: &Offer, error: &FabricError) -> Obstacle {
    let code = match offer.path {
        crowfly_route::receipt::Path::Shm => Code::NoSharedMemory,
        _ => Code::RailFailed,
    };
    Obstacle::blocks(
        code,
        format!("no rail by {} of {} to the peer", offer.path, offer.nic),
    )
    .seen(error.code(), error.to_string())
}
