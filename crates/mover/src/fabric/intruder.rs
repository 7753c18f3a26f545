//! A peer that knows the key and means harm, and what it must not be able to do: for tests, and for the
//! fuzz target `fabric_frames`.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::SharedKey;
use super::descriptor::RegionDescriptor;
use super::fields::Reader;
use super::handshake::{self, Purpose, TOKEN};
use super::hello::{self, Hello, Talk, encode_joined};
use super::identity::Incarnation;
use super::memory::Buffer;
use super::node::Fabric;
use super::provider::Imm;
use super::region::{Access, Region};
use super::settings::{Options, Settings};
use super::socket::Socket;
use super::stash::await_kept;
use super::wire::{self, Kind};
use crowfly_route::receipt::Path;

pub(super) const SOON: Duration = Duration::from_secs(10);
/// The longest name of a socket that is looked for.
const NAME: usize = 128;

fn settings() -> Settings {
    by(Path::Tcp)
}

/// Sockets, or memory that both map.
fn by(path: Path) -> Settings {
    Settings {
        shm: path == Path::Shm,
        streams: 1,
        ..Settings::new(SharedKey::derive("hostile"))
    }
}

/// A peer that has been let in, with one stream, and can send whatever it likes.
pub(super) struct Intruder {
    pub control: Talk,
    pub stream: Talk,
}

impl Intruder {
    pub(super) fn into(fabric: &Fabric) -> Self {
        Self::into_by(fabric, Path::Tcp)
    }

    pub(super) fn into_by(fabric: &Fabric, path: Path) -> Self {
        let key = SharedKey::derive("hostile");
        let deadline = Instant::now() + SOON;
        let reach = || Socket::dial(fabric.address(), None, deadline).expect("connected");
        let dial = |socket: Socket, purpose, token: [u8; TOKEN]| {
            let agreed = handshake::dial(&socket, &key, purpose, token, "it", deadline);
            Talk::new(socket, agreed.expect("let in"), "it".into(), deadline)
        };
        let mut control = dial(reach(), Purpose::Control, [0; TOKEN]);
        let offer = hello::Offer {
            index: 0,
            path,
            nic: "evil0".into(),
            endpoint: Vec::new(),
        };
        let greeting = Hello {
            incarnation: Incarnation::draw().expect("random"),
            offers: vec![offer],
            declined: Vec::new(),
        };
        control.say(Kind::Hello, &greeting.encode()).expect("said");
        let theirs = Hello::decode(&control.hear(Kind::Hello).expect("heard")).expect("a greeting");
        let mut endpoint = Reader::new(&theirs.offers[0].endpoint);
        let token: [u8; TOKEN] = endpoint.array().expect("a token");
        let socket = match endpoint.bytes(NAME) {
            Some(name) if path == Path::Shm => Socket::dial_local(name).expect("connected"),
            _ => reach(),
        };
        let stream = dial(socket, Purpose::Rail, token);
        await_kept(&stream.socket, deadline).expect("kept");
        control
            .say(Kind::Ready, &encode_joined(&[0]))
            .expect("said");
        control.hear(Kind::Ready).expect("heard");
        Self { control, stream }
    }

    /// Sends a well-tagged frame and what follows it.
    pub(super) fn send(
        talk: &mut Talk,
        kind: Kind,
        op: u64,
        body: &[u8],
        payload: u32,
        bytes: &[u8],
    ) -> bool {
        let frame = talk.sending.seal(kind, 0, op, body, payload);
        let sent = talk.socket.write_all(&frame, talk.deadline);
        sent.and_then(|()| talk.socket.write_all(bytes, talk.deadline))
            .is_ok()
    }

    /// Whether the fabric hangs up on this connection.
    pub(super) fn is_hung_up_on(talk: &Talk) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match talk.socket.read_all(&mut bytes[..1], Instant::now() + SOON) {
                Ok(()) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::TimedOut,
            }
        }
    }
}

/// A fabric with two regions, and a friend that checks that it still works.
pub(super) struct Victim {
    pub fabric: Fabric,
    pub target: Region,
    pub secret: Region,
}

impl Victim {
    pub(super) fn new() -> Self {
        Self::reached(Path::Tcp)
    }

    pub(super) fn reached(path: Path) -> Self {
        let fabric = Fabric::new(by(path)).expect("a fabric");
        let register = |bytes: &[u8], access| {
            let buffer = Buffer::copy_of(bytes).expect("memory");
            fabric.register(buffer, access).expect("registered")
        };
        let target = register(&[1; 4096], Access::READ_WRITE);
        let secret = register(&[2; 4096], Access::LOCAL);
        Self {
            fabric,
            target,
            secret,
        }
    }

    pub(super) fn assert_well(&self) {
        let friend = Fabric::new(settings()).expect("a fabric");
        let peer = friend
            .connect(&self.fabric.address().to_string(), Options::within(SOON))
            .expect("connected");
        let buffer = Buffer::copy_of(&[9; 4096]).expect("memory");
        let source = friend.register(buffer, Access::LOCAL).expect("registered");
        peer.write_imm(
            &source.whole(),
            &self.target.descriptor().whole(),
            Imm(u32::MAX),
            Options::within(SOON),
        )
        .wait()
        .expect("written");
        let mut bytes = [0; 4096];
        self.secret.read_at(0, &mut bytes);
        assert_eq!(bytes, [2; 4096], "memory that no peer may touch");
    }
}

pub(super) fn access(descriptor: &RegionDescriptor, runs: Vec<(u64, u32)>) -> Vec<u8> {
    let capability = descriptor.capability();
    let imm = None;
    wire::Access {
        capability,
        imm,
        runs,
    }
    .encode()
}

/// Lets a peer in that sends the frames which `bytes` spell, tagged as they should be, and makes sure that
/// memory of which it was told nothing stays as it is and that others are served. Half of the bodies are
/// requests that hold the keys of regions, its own or one that no peer may touch.
///
/// # Panics
/// When something of that is not so.
pub fn frames(bytes: &[u8]) {
    static VICTIMS: [OnceLock<Victim>; 2] = [OnceLock::new(), OnceLock::new()];
    let mut spelled = bytes.iter().copied();
    let mapped = spelled.next().unwrap_or_default() & 1;
    let path = [Path::Tcp, Path::Shm][usize::from(mapped)];
    let victim = VICTIMS[usize::from(mapped)].get_or_init(|| Victim::reached(path));
    let mut intruder = Intruder::into_by(&victim.fabric, path);
    while let Some(kind) = spelled.next() {
        let mut next = || spelled.next().unwrap_or_default();
        let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
        let shape = next();
        let op = u64::from(next());
        let payload = u32::from(u16::from_le_bytes([next(), next()]));
        let length = usize::from(next());
        let body: Vec<u8> = match shape >> 1 & 3 {
            0 | 1 => spelled.by_ref().take(length).collect(),
            which => {
                let region = [&victim.target, &victim.secret][usize::from(which & 1)];
                let mut runs = Vec::new();
                for _ in 0..length % 8 {
                    let offset = u64::from(u16::from_le_bytes([next(), next()]));
                    // Now and then at the other end of what a number can say.
                    let offset = if next() > 250 {
                        u64::MAX - offset
                    } else {
                        offset
                    };
                    runs.push((offset, u32::from(u16::from_le_bytes([next(), next()]))));
                }
                access(region.descriptor(), runs)
            }
        };
        let talk = match shape & 1 {
            0 => &mut intruder.control,
            _ => &mut intruder.stream,
        };
        if !Intruder::send(talk, kind, op, &body, payload, &vec![3; payload as usize]) {
            break;
        }
    }
    drop(intruder);
    victim.assert_well();
}
