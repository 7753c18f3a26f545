//! Given the ranks of a group, when one sends another bytes, then they arrive as they were sent,
//! beside whatever the group calls, and a rank that does not send, does not receive or is gone is
//! named in time.

#[path = "collective_support/ranks.rs"]
mod ranks;

use std::time::{Duration, Instant};

use crowfly_mover::collective::{CallOptions, CollectiveError, Element, Reduction};
use crowfly_route::receipt::Path;
use ranks::{SOON, Spread, ranks};

/// Short enough to wait for.
const BRIEF: CallOptions = CallOptions::within(Duration::from_millis(300));

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed) % 251) as u8).collect()
}

#[test]
fn few_bytes_and_many_arrive_in_the_order_of_their_tag() {
    for (spread, way) in [(Spread::Shared, Path::Shm), (Spread::Tcp, Path::Tcp)] {
        ranks(2, spread, move |group| {
            let courier = group.courier();
            let large = 3_000_001;
            if group.rank() == 0 {
                for (tag, len) in [(1, 5), (2, 0), (1, large), (1, 8 << 10)] {
                    let sent = courier.send(1, tag, &bytes(len, len), SOON).expect("sent");
                    assert_eq!((sent.from, sent.to, sent.tag), (0, 1, tag));
                    assert_eq!(sent.size.0, len as u64);
                }
                return;
            }
            for (tag, len) in [(2, 0), (1, 5), (1, large), (1, 8 << 10)] {
                let mut out = vec![0; len];
                let got = courier
                    .receive(Some(0), tag, &mut out, SOON)
                    .expect("it came");
                assert_eq!(out, bytes(len, len));
                let moved: u64 = got.moved.iter().map(|moved| moved.bytes.0).sum();
                assert_eq!(moved, len as u64);
                if len == large {
                    assert_eq!(got.moved[0].path, way);
                }
            }
        });
    }
}

#[test]
fn ranks_that_send_to_each_other_first_do_not_wait_for_each_other() {
    ranks(2, Spread::Shared, |group| {
        let (courier, me) = (group.courier(), group.rank());
        courier
            .send(1 - me, 0, &[me as u8; 100], SOON)
            .expect("few are sent at once");
        let other = courier.clone();
        let sending = std::thread::spawn(move || other.send(1 - me, 1, &bytes(1 << 20, me), SOON));
        let mut data = 1f32.to_le_bytes();
        let sum = group.all_reduce(&mut data, Element::F32, Reduction::Sum, SOON);
        sum.expect("the group's calls go on meanwhile");
        let mut out = vec![0; 1 << 20];
        courier
            .receive(Some(1 - me), 1, &mut out, SOON)
            .expect("it came");
        assert_eq!(out, bytes(1 << 20, 1 - me));
        let mut few = [9; 100];
        courier
            .receive(Some(1 - me), 0, &mut few, SOON)
            .expect("it came");
        assert_eq!(few, [1 - me as u8; 100]);
        sending.join().expect("no panic").expect("it was received");
    });
}

#[test]
fn what_any_rank_sends_is_received_with_its_name() {
    ranks(3, Spread::Shared, |group| {
        let courier = group.courier();
        if group.rank() > 0 {
            courier
                .send(0, 4, &[group.rank() as u8], SOON)
                .expect("sent");
        } else {
            let mut from = Vec::new();
            for _ in 0..2 {
                let mut out = [0];
                let got = courier.receive(None, 4, &mut out, SOON).expect("it came");
                assert_eq!(usize::from(out[0]), got.from);
                from.push(got.from);
            }
            from.sort_unstable();
            assert_eq!(from, [1, 2]);
        }
        group.barrier(SOON).expect("all are through");
    });
}

#[test]
fn a_part_of_a_group_has_its_own_ranks_and_tags() {
    ranks(3, Spread::Shared, |group| {
        let all = group.courier();
        let part = group
            .split(u32::from(group.rank() > 0), SOON)
            .expect("a part");
        let own = part.courier();
        match group.rank() {
            1 => {
                own.send(1, 0, b"own", SOON).expect("sent");
                all.send(2, 0, b"all", SOON).expect("sent");
            }
            2 => {
                let mut out = [0; 3];
                all.receive(Some(1), 0, &mut out, SOON).expect("it came");
                assert_eq!(&out, b"all");
                own.receive(Some(0), 0, &mut out, SOON).expect("it came");
                assert_eq!(&out, b"own");
            }
            _ => {}
        }
        group.barrier(SOON).expect("all are through");
    });
}

#[test]
fn a_rank_that_does_not_send_or_receive_is_named_in_time() {
    ranks(2, Spread::Shared, |group| {
        let courier = group.courier();
        if group.rank() == 0 {
            let began = Instant::now();
            let late = courier
                .receive(Some(1), 0, &mut [0], BRIEF)
                .expect_err("nothing comes");
            assert_eq!(late.to_string(), "rank 1 did not send within 0.300 s");
            assert_eq!(late.code(), "collective-late");
            let late = courier
                .send(1, 0, &[1; 100_000], BRIEF)
                .expect_err("nobody takes it");
            assert_eq!(late.to_string(), "rank 1 did not receive within 0.300 s");
            assert!(began.elapsed() < Duration::from_secs(10));
            for rank in [0, 2] {
                let bad = courier
                    .send(rank, 0, &[1], SOON)
                    .expect_err("no such other");
                assert_eq!(
                    bad.to_string(),
                    format!("send: rank {rank} is no other one of 2")
                );
            }
        }
        group.barrier(SOON).expect("nothing is broken by that");
    });
}

#[test]
fn bytes_of_another_length_are_refused_at_both_ends() {
    ranks(2, Spread::Shared, |group| {
        let courier = group.courier();
        if group.rank() == 0 {
            let refused = courier
                .send(1, 0, &[1; 100_000], SOON)
                .expect_err("too many");
            assert_eq!(
                refused.to_string(),
                "send: rank 1 did not take what rank 0 sent"
            );
        } else {
            let wrong = courier
                .receive(Some(0), 0, &mut [0; 7], SOON)
                .expect_err("too many");
            assert_eq!(
                wrong.to_string(),
                "receive: rank 0 sent 100000 bytes by tag 0, and 7 were expected"
            );
        }
        group.barrier(SOON).expect("nothing is broken by that");
    });
}

#[test]
fn whoever_waits_for_a_rank_that_is_gone_hears_it_before_the_time_is_over() {
    let ends = ranks(2, Spread::Shared, |group| {
        group.barrier(SOON).expect("both are there");
        if group.rank() == 1 {
            return None;
        }
        let began = Instant::now();
        let lost = group
            .courier()
            .receive(Some(1), 0, &mut [0], SOON)
            .expect_err("it is gone");
        assert!(began.elapsed() < Duration::from_secs(30));
        Some(lost)
    });
    let Some(CollectiveError::RanksLost(lost)) = &ends[0] else {
        panic!("{:?}", ends[0])
    };
    assert_eq!(lost[0].rank, 1);
}
