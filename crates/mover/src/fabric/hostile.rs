//! Peers that know the key and mean harm: whatever they send, memory outside of regions is never
//! touched, nothing grows without bounds, and others are served.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::descriptor::RegionDescriptor;
use super::fields::{Reader, Writer};
use super::handshake::{self, Purpose, TOKEN};
use super::hello::{Hello, Talk, encode_joined};
use super::identity::Incarnation;
use super::memory::Buffer;
use super::node::Fabric;
use super::provider::Imm;
use super::region::{Access, Region};
use super::settings::{Options, Settings};
use super::socket::Socket;
use super::stash::await_kept;
use super::wire::{self, HEADER, Kind, Lane};
use super::{SharedKey, hello};
use crowfly_route::receipt::Path;

const SOON: Duration = Duration::from_secs(10);
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
struct Intruder {
    control: Talk,
    stream: Talk,
}

impl Intruder {
    fn into(fabric: &Fabric) -> Self {
        Self::into_by(fabric, Path::Tcp)
    }

    fn into_by(fabric: &Fabric, path: Path) -> Self {
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
    fn send(talk: &mut Talk, kind: Kind, op: u64, body: &[u8], payload: u32, bytes: &[u8]) -> bool {
        let frame = talk.sending.seal(kind, 0, op, body, payload);
        let sent = talk.socket.write_all(&frame, talk.deadline);
        sent.and_then(|()| talk.socket.write_all(bytes, talk.deadline))
            .is_ok()
    }

    /// Whether the fabric hangs up on this connection.
    fn is_hung_up_on(talk: &Talk) -> bool {
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
struct Victim {
    fabric: Fabric,
    target: Region,
    secret: Region,
}

impl Victim {
    fn new() -> Self {
        Self::reached(Path::Tcp)
    }

    fn reached(path: Path) -> Self {
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

    fn assert_well(&self) {
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

fn access(descriptor: &RegionDescriptor, runs: Vec<(u64, u32)>) -> Vec<u8> {
    let capability = descriptor.capability();
    let imm = None;
    wire::Access {
        capability,
        imm,
        runs,
    }
    .encode()
}

#[test]
fn a_write_past_the_end_is_refused_and_its_payload_thrown_away() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let stream = &mut intruder.stream;
    let bodies = [
        access(victim.target.descriptor(), vec![(4095, 2)]),
        access(victim.target.descriptor(), vec![(u64::MAX, 2)]),
        access(victim.target.descriptor(), vec![(u64::MAX - 1, 2)]),
        access(victim.secret.descriptor(), vec![(0, 2)]),
    ];
    for (op, body) in bodies.iter().enumerate() {
        assert!(Intruder::send(
            stream,
            Kind::Write,
            op as u64,
            body,
            2,
            &[7, 7]
        ));
        let mut head = [0; HEADER];
        stream
            .socket
            .read_all(&mut head, stream.deadline)
            .expect("answered");
        stream.receiving.open(&head, &[]).expect("in turn");
        let header = Lane::peek(&head).expect("an answer");
        assert_eq!((header.kind, header.op), (Kind::Answer, op as u64));
        assert_ne!(header.status, 0, "{op}");
    }
    victim.assert_well();
}

#[test]
fn a_repeated_frame_ends_the_connection_and_nothing_else() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let body = access(victim.target.descriptor(), vec![(0, 1)]);
    let frame = intruder.stream.sending.seal(Kind::Write, 0, 1, &body, 1);
    let deadline = intruder.stream.deadline;
    for _ in 0..2 {
        let _ = intruder.stream.socket.write_all(&frame, deadline);
        let _ = intruder.stream.socket.write_all(&[5], deadline);
    }
    assert!(Intruder::is_hung_up_on(&intruder.stream));
    victim.assert_well();
}

#[test]
fn a_repeated_frame_by_a_unix_socket_ends_that_connection_and_nothing_else() {
    let victim = Victim::reached(Path::Shm);
    let mut intruder = Intruder::into_by(&victim.fabric, Path::Shm);
    let talk = &mut intruder.stream;
    let frame = talk.sending.seal(Kind::Unmap, 0, 1, &[], 0);
    for _ in 0..2 {
        let _ = talk.socket.write_all(&frame, talk.deadline);
    }
    assert!(Intruder::is_hung_up_on(talk));
    victim.assert_well();
}

#[test]
fn a_peer_that_asks_and_asks_and_reads_no_answer_is_given_up() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let body = access(victim.target.descriptor(), vec![(0, 4096); 256]);
    let deadline = Instant::now() + SOON;
    intruder.stream.deadline = Instant::now() + Duration::from_secs(3);
    // Each asks for a megabyte; the answers pile up in the victim's queue, which ends.
    let mut op = 0;
    while Intruder::send(&mut intruder.stream, Kind::Read, op, &body, 0, &[]) {
        op += 1;
        assert!(Instant::now() < deadline, "it takes questions without end");
    }
    assert!(op < 40_000, "{op} questions were taken");
    victim.assert_well();
}

#[test]
fn an_end_that_says_that_rails_are_down_or_asks_for_new_ones_under_old_numbers_harms_only_itself() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let part = |rail: u32, well: u8, endpoint: &[u8]| {
        let mut out = Writer::default();
        out.u32(rail).u8(well).bytes(endpoint);
        out.finish()
    };
    for rail in [0, 1, 31, 32, u32::MAX] {
        for kind in [Kind::Fallen, Kind::Mend, Kind::Joined, Kind::Mended] {
            let body = part(rail, 1, &[7; 40]);
            Intruder::send(&mut intruder.control, kind, 0, &body, 0, &[]);
        }
    }
    victim.assert_well();
    // A checksum of a region that was never told of, and one that never comes to its end.
    let mut sum = Writer::default();
    sum.raw(&[5; 16]).u8(0).u16(1).u64(0).u32(4096);
    let sum = sum.finish();
    Intruder::send(&mut intruder.control, Kind::Sum, 1, &sum, 0, &[]);
    victim.assert_well();
}

#[test]
fn an_end_that_names_runs_without_end_is_hung_up_on() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let mut sum = Writer::default();
    sum.raw(&[5; 16]).u8(0).u16(256);
    for at in 0..256 {
        sum.u64(at).u32(1);
    }
    let sum = sum.finish();
    let frame = |intruder: &mut Intruder, op| {
        // The status says that more follow.
        let talk = &mut intruder.control;
        let frame = talk.sending.seal(Kind::Sum, 1, op, &sum, 0);
        talk.socket.write_all(&frame, talk.deadline).is_ok()
    };
    let mut sent = 0u64;
    while frame(&mut intruder, sent % 16) {
        sent += 1;
        assert!(sent < 100_000, "it takes runs without end");
    }
    victim.assert_well();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn whatever_frames_come_the_fabric_serves_its_friends(
        mapped in any::<bool>(),
        frames in proptest::collection::vec(
            (0usize..19, any::<bool>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..80), 0u32..5000),
            1..12,
        ),
    ) {
        const KINDS: [Kind; 19] = [
            Kind::Hello, Kind::Ready, Kind::Ping, Kind::Message, Kind::Barrier, Kind::Write,
            Kind::Answer, Kind::Read, Kind::Data, Kind::Map, Kind::Mapped, Kind::Unmap,
            Kind::Fallen, Kind::Mend, Kind::Mended, Kind::Joined, Kind::Sum, Kind::Summed,
            Kind::Tether,
        ];
        let path = if mapped { Path::Shm } else { Path::Tcp };
        let victim = Victim::reached(path);
        let mut intruder = Intruder::into_by(&victim.fabric, path);
        for (kind, on_stream, op, body, payload) in frames {
            let talk = if on_stream { &mut intruder.stream } else { &mut intruder.control };
            Intruder::send(talk, KINDS[kind], op, &body, payload, &vec![3; payload as usize]);
        }
        victim.assert_well();
        let mut bytes = [0; 4096];
        victim.target.read_at(0, &mut bytes);
        prop_assert_eq!(bytes, [9; 4096], "nothing was written without its key");
    }
}
