//! Made-up runs, added up.

use std::collections::BTreeSet;

use crowfly_mover::step::{Exchanged, Lost, Moved, Restored, Stepped, Times};
use crowfly_route::hop::Class;
use crowfly_route::receipt::{CpuSeconds, Path, Share};
use crowfly_route::units::BytesPerSecond;

use super::history::{losses, rows};
use super::lane::{gradients, storage};
use super::*;

const BATCH: Bytes = Bytes(1000);
const BUFFER: Bytes = Bytes(600);

fn share(path: Path, class: Class, bytes: Bytes) -> Share {
    Share {
        path,
        class,
        bytes,
        because: None,
    }
}

fn moved(shares: Vec<Share>) -> Moved {
    Moved {
        asked: BATCH,
        shares,
        bounced: Bytes(0),
        seconds: 0.5,
        cpu: CpuSeconds::default(),
        obstacles: Vec::new(),
    }
}

/// A step of one of `ranks`, which lasts a second.
fn stepped(step: u64, ranks: usize) -> Moment {
    let times = Times {
        read: 0.1,
        compute: 0.5,
        exchange: 0.2,
        update: 0.1,
        stall: 0.05,
        total: 1.0,
        ..Times::default()
    };
    let exchanged = Exchanged {
        size: BUFFER,
        ranks,
        hosts: 1,
        shares: vec![share(Path::Shm, Class::Direct, Bytes(600))],
        algorithm: "flat".into(),
        because: "the only way".into(),
        seconds: 0.2,
        waited: 0.1,
    };
    Moment::Stepped(Box::new(Stepped {
        step,
        ended: step as f64,
        times,
        read: moved(vec![share(Path::Direct, Class::Direct, BATCH)]),
        exchanged,
        passes: 1,
        flops: 8.0,
    }))
}

fn lost(step: u64, rank: usize) -> Moment {
    Moment::Lost(Lost {
        step,
        code: "ranks-lost".into(),
        what: format!("rank {rank} was lost"),
        ranks: vec![rank],
        heard_after: 0.25,
    })
}

fn restored(step: u64, ranks: usize) -> Moment {
    Moment::Restored(Box::new(Restored {
        step,
        ranks,
        seconds: 2.0,
        read_seconds: 0.5,
        read: Some(moved(vec![share(Path::Direct, Class::Direct, BATCH)])),
    }))
}

/// Two ranks do steps 1 to 3 of 4; rank 1 is killed in step 4, and both go on from step 2.
fn with_a_loss() -> Log {
    let mut log = Log::default();
    let both = |log: &mut Log, moment: Moment| {
        log.add(0, moment.clone());
        log.add(1, moment);
    };
    for step in 1..=3 {
        both(&mut log, stepped(step, 2));
    }
    log.killed(1, 9);
    log.add(0, lost(4, 1));
    both(&mut log, restored(2, 2));
    for step in 3..=4 {
        both(&mut log, stepped(step, 2));
    }
    log
}

#[test]
fn given_a_loss_its_signal_error_restore_and_repeated_steps_are_told_together() {
    let log = with_a_loss();
    let steps = rows(&log);
    let told: Vec<(u64, u32, usize)> = steps.iter().map(|r| (r.step, r.again, r.ranks)).collect();
    assert_eq!(
        told,
        [(1, 0, 2), (2, 0, 2), (3, 0, 2), (3, 1, 2), (4, 0, 2)]
    );
    let losses = losses(&log, &steps);
    let [loss] = losses.as_slice() else {
        panic!("one loss: {losses:?}");
    };
    assert_eq!(
        (loss.step, &loss.ranks, &loss.signals),
        (4, &vec![1], &vec![9])
    );
    assert_eq!(
        (loss.survivors, loss.same, loss.heard_after),
        (1, true, 0.25)
    );
    assert_eq!(
        (loss.restored, loss.redone, loss.ranks_after),
        (Some(2), 1, 2)
    );
    assert_eq!((loss.seconds, loss.bytes), (2.0, Bytes(2 * BATCH.0)));
}

#[test]
fn given_two_losses_each_has_its_own_survivors_and_restore() {
    let mut log = Log::default();
    for (killed, survivors, step) in [(2, [0, 1], 3), (0, [1, 1], 5)] {
        log.killed(killed, 9);
        for rank in BTreeSet::from(survivors) {
            log.add(rank, lost(step, killed));
        }
        for rank in BTreeSet::from(survivors) {
            log.add(rank, restored(step - 1, survivors.len()));
        }
    }
    let losses = losses(&log, &rows(&log));
    let told: Vec<(u64, usize, Option<u64>)> = losses
        .iter()
        .map(|l| (l.step, l.survivors, l.restored))
        .collect();
    assert_eq!(told, [(3, 2, Some(2)), (5, 1, Some(4))]);
    assert!(
        losses
            .iter()
            .all(|loss| loss.signals == [9] && loss.redone == 0)
    );
}

#[test]
fn phases_are_all_of_the_time_of_steps_and_of_recovery() {
    let phases = phases(&with_a_loss());
    let told: Vec<(&str, f64)> = phases
        .iter()
        .map(|phase| (phase.name, (phase.seconds * 1e6).round() / 1e6))
        .collect();
    let expected = [
        ("storage to memory", 1.0),
        ("computation (stand-in)", 6.0),
        ("gradients", 2.0),
        ("checkpoint stall", 0.5),
        ("recovery", 4.0),
        ("other", 0.5),
    ];
    assert_eq!(told, expected);
    let all: f64 = phases.iter().map(|phase| phase.share).sum();
    assert!((all - 1.0).abs() < 1e-12);
}

#[test]
fn lanes_add_receipts_up_and_say_when_they_do_not_come_to_what_was_asked() {
    let lane = storage(&with_a_loss()).settle();
    assert_eq!(
        (lane.transfers, lane.asked, lane.moved),
        (10, Bytes(10_000), Bytes(10_000))
    );
    assert!(lane.is_whole());
    assert_eq!(lane.rate, Some(BytesPerSecond(2000.0)));
    // 2 (n - 1) buffers for each of 5 exchanges of 2 ranks.
    let lane = gradients(&with_a_loss()).settle();
    assert_eq!(
        (lane.asked, lane.due, lane.moved),
        (Bytes(6000), Bytes(6000), Bytes(6000))
    );
    let mut short = Lane::new("short");
    short.transfer(&moved(vec![share(Path::Cached, Class::Staged, Bytes(999))]));
    assert!(!short.is_whole());
    assert_eq!(short.of_class(Class::Staged), Bytes(999));
}

#[test]
fn ranks_that_end_with_different_states_are_found_out() {
    let ended = |digest: &str| Moment::Ended {
        seconds: 1.0,
        digest: digest.into(),
    };
    let mut log = Log::default();
    assert!(!digest(&log).same, "nobody told");
    log.add(0, ended("a"));
    log.add(1, ended("a"));
    assert!(digest(&log).same);
    log.add(2, ended("b"));
    assert!(!digest(&log).same);
}
