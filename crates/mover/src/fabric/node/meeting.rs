//! How two processes become peers: the greeting, the offers of rails, and the session that comes of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::policy::Policy;

use super::{Core, HANDSHAKE};
use crate::fabric::conn::Conn;
use crate::fabric::error::FabricError;
use crate::fabric::handshake::{self, Purpose, TOKEN, protocol, unreachable};
use crate::fabric::hello::{Declined, Hello, MAX_RAILS, Offer, Talk, decode_joined, encode_joined};
use crate::fabric::identity::Incarnation;
use crate::fabric::lookup;
use crate::fabric::nics::{self, Nearness, Nic, no_meeting};
use crate::fabric::peer::Peer;
use crate::fabric::provider::{Endpoint, Events, Joining, Link, Meeting, RailId, Role};
use crate::fabric::rail::{ANY_WEIGHT, Missing, Rail};
use crate::fabric::session::{Makings, Met, Parts, Session};
use crate::fabric::settings::Options;
use crate::fabric::shm;
use crate::fabric::socket::Socket;
use crate::fabric::wire::Kind;
use crate::strangers::Admitted;

impl Core {
    /// Answers a connection: a rail of a session that is being set up, or a peer's first.
    pub(super) fn greet(
        self: &Arc<Self>,
        socket: Socket,
        local: bool,
        admitted: &Admitted,
    ) -> Result<(), FabricError> {
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
        admitted.known();
        match agreed.purpose {
            Purpose::Rail => {
                self.sockets.stash.put(socket, agreed, deadline);
                Ok(())
            }
            Purpose::Control => {
                let here = socket.local_address().unwrap_or(self.address);
                let talk = Talk::new(socket, agreed, address, deadline);
                let peer = self.answer(talk, here)?;
                let is_there = |peer: &Peer| peer.lost().is_none();
                if !self.lobby.enter(peer.clone(), is_there) {
                    peer.send_away();
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
        let targets = lookup::addresses(address, deadline)?;
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
        let here = socket.local_address().unwrap_or(self.address).ip();
        let mut talk = Talk::new(socket, agreed, address.to_owned(), deadline);

        let meeting = Meeting {
            address: target,
            here,
        };
        let mut missing = self.left_out.clone();
        let mut endpoints: BTreeMap<u16, (&Nic, Box<dyn Endpoint>)> = BTreeMap::new();
        let mut offers = Vec::new();
        let suiting = self.nics.iter().filter(|nic| nic.provider.suits(&meeting));
        for (index, nic) in (0u16..).zip(suiting.take(MAX_RAILS)) {
            let provider = &nic.provider;
            match provider.endpoint(Role::Dialer, &meeting) {
                Ok(endpoint) => {
                    offers.push(Offer {
                        index,
                        path: provider.path(),
                        nic: provider.nic().to_owned(),
                        endpoint: endpoint.hello(),
                    });
                    endpoints.insert(index, (nic, endpoint));
                }
                Err(obstacle) => missing.push(Missing::new(provider.path(), obstacle)),
            }
        }
        let incarnation = self.incarnation;
        talk.say(
            Kind::Hello,
            &Hello {
                incarnation,
                offers,
                declined: Vec::new(),
            }
            .encode(),
        )?;
        let theirs = Hello::decode(&talk.hear(Kind::Hello)?)
            .ok_or(protocol(address, "a malformed greeting"))?;

        let session = self.session(theirs.incarnation, address);
        let mut joined = Vec::new();
        for offer in &theirs.offers {
            let Some((nic, endpoint)) = endpoints.remove(&offer.index) else {
                continue;
            };
            match endpoint.join(&offer.endpoint, joining(&session, offer.index, deadline)) {
                Ok(link) => joined.push((offer.index, nic, link)),
                Err(error) => missing.push(not_joined(offer, &error)),
            }
        }
        for (index, (nic, _)) in &endpoints {
            let mut declined = theirs.declined.iter();
            let why = declined.find(|declined| declined.index == *index);
            let why = why.map_or("it did not say why", |declined| declined.why.as_str());
            let provider = &nic.provider;
            missing.push(no_meeting(provider.path(), provider.nic(), why));
        }
        let numbers: Vec<u16> = joined.iter().map(|(index, ..)| *index).collect();
        talk.say(Kind::Ready, &encode_joined(&numbers))?;
        let both = decode_joined(&talk.hear(Kind::Ready)?)
            .ok_or(protocol(address, "a malformed list of rails"))?;
        let role = Role::Dialer;
        self.open(&session, Met { role, meeting }, joined, &both);
        let policy = options.policy.unwrap_or(self.settings.policy);
        self.finish(&session, talk, policy, missing)
    }

    /// The acceptor's side of setting a session up.
    fn answer(self: &Arc<Self>, mut talk: Talk, here: SocketAddr) -> Result<Peer, FabricError> {
        let address = talk.address.clone();
        let deadline = talk.deadline;
        let theirs = Hello::decode(&talk.hear(Kind::Hello)?)
            .ok_or(protocol(&address, "a malformed greeting"))?;
        let meeting = Meeting {
            address: here,
            here: here.ip(),
        };
        let mut missing = self.left_out.clone();
        let mut endpoints = Vec::new();
        let mut offers = Vec::new();
        let mut declined = Vec::new();
        let mut dealt: BTreeMap<usize, usize> = BTreeMap::new();
        for offer in &theirs.offers {
            let (at, nic) = match self.partner(offer, &meeting, &dealt) {
                Ok(partner) => partner,
                Err(why) => {
                    missing.push(no_meeting(
                        offer.path,
                        &format!("the peer's {}", offer.nic),
                        &why,
                    ));
                    let index = offer.index;
                    declined.push(Declined { index, why });
                    continue;
                }
            };
            *dealt.entry(at).or_default() += 1;
            let provider = &nic.provider;
            match provider.endpoint(Role::Acceptor, &meeting) {
                Ok(endpoint) => {
                    offers.push(Offer {
                        index: offer.index,
                        path: offer.path,
                        nic: provider.nic().to_owned(),
                        endpoint: endpoint.hello(),
                    });
                    endpoints.push((offer.clone(), nic, endpoint));
                }
                Err(obstacle) => {
                    declined.push(Declined {
                        index: offer.index,
                        why: obstacle.summary.clone(),
                    });
                    missing.push(Missing::new(provider.path(), obstacle));
                }
            }
        }
        let incarnation = self.incarnation;
        let hello = Hello {
            incarnation,
            offers,
            declined,
        };
        talk.say(Kind::Hello, &hello.encode())?;
        let dialed = decode_joined(&talk.hear(Kind::Ready)?)
            .ok_or(protocol(&address, "a malformed list of rails"))?;
        let session = self.session(theirs.incarnation, &address);
        let mut joined = Vec::new();
        for (offer, nic, endpoint) in endpoints {
            if !dialed.contains(&offer.index) {
                continue;
            }
            match endpoint.join(&offer.endpoint, joining(&session, offer.index, deadline)) {
                Ok(link) => joined.push((offer.index, nic, link)),
                Err(error) => missing.push(not_joined(&offer, &error)),
            }
        }
        let numbers: Vec<u16> = joined.iter().map(|(index, ..)| *index).collect();
        let role = Role::Acceptor;
        self.open(&session, Met { role, meeting }, joined, &numbers);
        talk.say(Kind::Ready, &encode_joined(&numbers))?;
        self.finish(&session, talk, self.settings.policy, missing)
    }

    /// The NIC of this end to join with the one offered: the one that fits best, and of those that fit
    /// as well the one with the fewest such rails.
    fn partner(
        &self,
        offer: &Offer,
        meeting: &Meeting,
        dealt: &BTreeMap<usize, usize>,
    ) -> Result<(usize, &Nic), String> {
        let mut why = format!("the other end uses no {}", offer.path);
        let nics = self.nics.iter().enumerate();
        let mut fitting = Vec::new();
        for (at, nic) in nics.filter(|(_, nic)| nic.provider.path() == offer.path) {
            match nic.provider.fit(&offer.endpoint, meeting) {
                Ok(fit) => fitting.push((fit, Reverse(dealt.get(&at)), at, nic)),
                Err(found) => why = found,
            }
        }
        // Of those that are alike the first.
        let best = fitting
            .into_iter()
            .rev()
            .max_by_key(|(fit, dealt, ..)| (*fit, *dealt));
        best.map(|(.., at, nic)| (at, nic)).ok_or(why)
    }

    fn session(&self, peer: Incarnation, address: &str) -> Arc<Session> {
        let parts = Parts {
            counters: Arc::clone(&self.counters),
            copier: Arc::clone(&self.copier),
            regions: Arc::clone(&self.sockets.regions),
            started: self.started,
            silence: self.settings.silence,
        };
        Session::new(peer, address.to_owned(), parts)
    }

    /// Gives a session the rails that both ends joined, and closes the others.
    fn open(
        &self,
        session: &Session,
        met: Met,
        joined: Vec<(u16, &Nic, Arc<dyn Link>)>,
        both: &[u16],
    ) {
        let (joined, alone): (Vec<_>, Vec<_>) = joined
            .into_iter()
            .partition(|(index, ..)| both.contains(index));
        alone.iter().for_each(|(_, _, link)| link.close());
        let topology = self.settings.topology.as_ref();
        let rate = |(_, nic, link): &(u16, &Nic, Arc<dyn Link>)| {
            nics::rate(&*nic.provider, topology.map(|t| &**t), link.nic())
        };
        let mut makings = BTreeMap::new();
        for one in &joined {
            // One that does not say counts as the slowest that does.
            let same = joined.iter().filter(|other| other.2.path() == one.2.path());
            let slowest = same.filter_map(rate).min_by(f64::total_cmp);
            let (index, nic, link) = one;
            let made = Makings {
                nic: (*nic).clone(),
                weight: rate(one).or(slowest).unwrap_or(ANY_WEIGHT),
                nearness: Arc::new(Nearness::of(link.nic(), topology)),
            };
            let rail = Rail {
                slot: *index,
                path: link.path(),
                nic: link.nic().to_owned(),
                weight: made.weight,
                nearness: Arc::clone(&made.nearness),
                load: Arc::clone(&nic.load),
                link: Arc::clone(link),
            };
            let id = RailId(u32::from(*index));
            session.scheduler.add_rail(id, rail, nic.provider.class());
            session.keep(*index, Arc::clone(link));
            makings.insert(*index, made);
        }
        session.made_by(met, makings);
    }

    /// Hands the control connection over to the reactor.
    fn finish(
        self: &Arc<Self>,
        session: &Arc<Session>,
        talk: Talk,
        policy: Policy,
        missing: Vec<Missing>,
    ) -> Result<Peer, FabricError> {
        let obstacles = missing.iter().map(|missing| missing.obstacle.clone());
        let obstacles: Vec<Obstacle> = obstacles.collect();
        let unshared = missing.iter().find_map(Missing::unshared);
        session.scheduler.is_missing(missing);
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
        let session = Arc::clone(session);
        Ok(Peer::new(session, policy, Arc::new(obstacles), unshared))
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

fn not_joined(offer: &Offer, error: &FabricError) -> Missing {
    use crowfly_route::receipt::Path;
    let code = match offer.path {
        Path::Shm | Path::Cma => Code::NoSharedMemory,
        _ => Code::RailFailed,
    };
    let what = format!("no rail by {} of {} to the peer", offer.path, offer.nic);
    let obstacle = Obstacle::blocks(code, what).seen(error.code(), error.to_string());
    let obstacle = match offer.path {
        Path::Cma => obstacle.fixed_by(Fix::by_hand(
            "Let processes of one user read each other's memory: kernel.yama.ptrace_scope=0, and in \
             a container the capability SYS_PTRACE.",
        )),
        _ => obstacle,
    };
    Missing {
        answer: error.answer().cloned(),
        ..Missing::new(offer.path, obstacle)
    }
}
