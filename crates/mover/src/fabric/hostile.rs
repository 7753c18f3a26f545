//! Peers that know the key and mean harm: whatever they send, memory outside of regions is never
//! touched, nothing grows without bounds, and others are served.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::fields::Writer;
use super::intruder::{Intruder, SOON, Victim, access};
use super::wire::{HEADER, Kind, Lane};
use crowfly_route::receipt::Path;

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
fn an_answer_that_tells_of_half_an_op_ends_the_connection_and_nothing_else() {
    let victim = Victim::new();
    let mut intruder = Intruder::into(&victim.fabric);
    let stream = &mut intruder.stream;
    // Ops that nobody posted are no reason.
    assert!(Intruder::send(stream, Kind::Answer, 1, &[7; 16], 0, &[]));
    assert!(Intruder::send(stream, Kind::Answer, 1, &[7; 9], 0, &[]));
    assert!(Intruder::is_hung_up_on(stream));
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
            (0..Kind::ALL.len(), any::<bool>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..80), 0u32..5000),
            1..12,
        ),
    ) {
        let path = if mapped { Path::Shm } else { Path::Tcp };
        let victim = Victim::reached(path);
        let mut intruder = Intruder::into_by(&victim.fabric, path);
        for (kind, on_stream, op, body, payload) in frames {
            let talk = if on_stream { &mut intruder.stream } else { &mut intruder.control };
            Intruder::send(talk, Kind::ALL[kind], op, &body, payload, &vec![3; payload as usize]);
        }
        victim.assert_well();
        let mut bytes = [0; 4096];
        victim.target.read_at(0, &mut bytes);
        prop_assert_eq!(bytes, [9; 4096], "nothing was written without its key");
    }

    #[test]
    fn whatever_is_asked_by_one_who_knows_the_keys_no_other_memory_is_touched(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        super::intruder::frames(&bytes);
    }
}
