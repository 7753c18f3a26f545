//! Rails that fail, hang or come back while transfers are under way.

use super::*;

#[test]
fn when_the_near_nics_fail_then_the_far_ones_finish_and_the_receipt_says_so() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, Some(1));
    for near in [2, 3] {
        world
            .scheduler
            .down(RailId(near), "the cable was cut", Duration::ZERO);
        world.links[near as usize]
            .ops
            .lock()
            .expect("no panic")
            .clear();
    }
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    let by_nic: Vec<_> = delivery
        .nics
        .iter()
        .map(|n| (n.nic.as_str(), n.bytes.0))
        .collect();
    assert_eq!(by_nic, [("mlx5_0:1", 4 * MIB), ("mlx5_1:1", 4 * MIB)]);
    // The first one's half went to the second, and then all of it to the far ones.
    let pieces = 8 * MIB / (64 << 10);
    assert_eq!(delivery.receipt.retries, pieces / 2 + pieces);
    let failed = delivery.receipt.obstacles.iter();
    assert_eq!(failed.filter(|o| o.code == Code::RailFailed).count(), 2);
}

#[test]
fn given_a_link_that_takes_its_time_to_close_when_its_rail_fails_then_what_goes_by_others_ends_meanwhile()
 {
    let world = World::new(&BOTH_SOCKETS[..2]);
    let slot = world.write(8 * MIB, None);
    let (scheduler, other) = (Arc::clone(&world.scheduler), Arc::clone(&world.links[1]));
    *world.links[0].closing.lock().expect("no panic") = Some(Box::new(move || {
        let (ended, all) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for op in std::mem::take(&mut *other.ops.lock().expect("no panic")) {
                scheduler.completed(RailId(1), op.id, Ok(()), Duration::ZERO);
            }
            ended.send(scheduler.report()[1].totals.written)
        });
        let went = all.recv_timeout(Duration::from_secs(20));
        assert_eq!(
            went,
            Ok(Bytes(4 * MIB)),
            "they waited for the link to close"
        );
    }));
    let why = "the cable was cut";
    world.scheduler.down(RailId(0), why, Duration::ZERO);
    assert!(world.links[0].closing.lock().expect("no panic").is_none());
    world.links[0].ops.lock().expect("no panic").clear();
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    let by_nic: Vec<_> = delivery.nics.iter().map(|n| n.bytes.0).collect();
    assert_eq!(by_nic, [8 * MIB], "the other one carried all of it");
}

#[test]
fn when_a_link_was_closed_then_who_tells_the_peer_is_called_at_once_and_only_then() {
    let world = World::new(&BOTH_SOCKETS[..2]);
    world.scheduler.makes_anew(0..2);
    let (fallen, told) = std::sync::mpsc::channel();
    let scheduler = Arc::downgrade(&world.scheduler);
    world.scheduler.rings(move || {
        let closed = scheduler.upgrade().expect("it rings").take_closed();
        let rails: Vec<RailId> = closed.iter().map(|(rail, _)| *rail).collect();
        fallen.send(rails).expect("somebody listens");
    });
    let _slot = world.write(MIB, None);
    world.scheduler.tick(Duration::from_millis(1));
    assert!(told.try_recv().is_err(), "nothing was closed");
    for _ in 0..2 {
        let why = "the cable was cut";
        world.scheduler.down(RailId(1), why, Duration::ZERO);
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [[RailId(1)]]);
}

#[test]
fn a_rail_that_comes_back_carries_what_is_left_and_its_account_goes_on() {
    let world = World::new(&BOTH_SOCKETS[..2]);
    let slot = world.write(8 * MIB, None);
    let load: Arc<NicLoad> = Arc::default();
    world
        .scheduler
        .down(RailId(0), "the cable was cut", Duration::ZERO);
    assert_eq!(world.scheduler.fallen(), [(RailId(0), false)]);
    world.links[0].ops.lock().expect("no panic").clear();
    let rail = Rail {
        slot: 0,
        path: Path::Verbs,
        nic: "mlx5_0:1".into(),
        weight: 50e9,
        nearness: Arc::default(),
        load: Arc::clone(&load),
        link: Arc::clone(&world.links[0]) as _,
    };
    world
        .scheduler
        .came_back(RailId(9), rail, Class::Direct, Duration::ZERO);
    assert!(world.scheduler.fallen().is_empty());
    // What the old link says late is about the old link.
    world
        .scheduler
        .down(RailId(0), "its other stream broke", Duration::ZERO);
    assert!(world.scheduler.fallen().is_empty());
    let again = world.write(2 * MIB, None);
    assert!(load.bytes() > 0, "it carries new transfers");
    let ops = std::mem::take(&mut *world.links[0].ops.lock().expect("no panic"));
    for op in ops {
        world
            .scheduler
            .completed(RailId(9), op.id, Ok(()), Duration::ZERO);
    }
    for slot in [slot, again] {
        let delivery = match slot.take() {
            Some(outcome) => outcome.expect("well"),
            None => world.finish(&slot, |_, bytes| Some(bytes)),
        };
        assert!(delivery.receipt.is_whole());
    }
    let reports = world.scheduler.report();
    assert_eq!((reports.len(), reports[0].returns), (2, 1));
    let sum: u64 = reports.iter().map(|r| r.totals.written.0).sum();
    assert_eq!(sum, 10 * MIB);
    assert_eq!(reports[0].down, None);
}

#[test]
fn a_link_that_refuses_before_it_says_that_it_is_down_costs_one_retry_and_not_the_transfer() {
    let world = World::new(&BOTH_SOCKETS[..2]);
    world.links[0]
        .dead
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let slot = world.write(8 * MIB, None);
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    assert_eq!(delivery.receipt.retries, 1);
    assert_eq!(delivery.nics.len(), 1);
    assert_eq!(world.scheduler.fallen(), [(RailId(0), false)]);
}

#[test]
fn a_rail_by_which_nothing_ends_is_given_up_when_another_could_carry_on_and_not_otherwise() {
    let later = Duration::from_millis(600);
    let alone = World::new(&BOTH_SOCKETS[..1]);
    let slot = alone.write(MIB, None);
    alone.scheduler.tick(later);
    assert!(alone.scheduler.fallen().is_empty(), "there is no other");
    alone.finish(&slot, |_, bytes| Some(bytes));

    let world = World::new(&BOTH_SOCKETS[..2]);
    let slot = world.write(8 * MIB, None);
    let op = world.links[1].ops.lock().expect("no panic").remove(0);
    let soon = Duration::from_millis(400);
    world.scheduler.completed(RailId(1), op.id, Ok(()), soon);
    world.scheduler.tick(later);
    assert_eq!(world.scheduler.fallen(), [(RailId(0), false)]);
    world.links[0].ops.lock().expect("no panic").clear();
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    assert_eq!(
        (delivery.nics.len(), delivery.nics[0].bytes.0),
        (1, 8 * MIB)
    );
    let summary = &delivery.receipt.obstacles[0].evidence[0].shows;
    assert!(summary.contains("0.5 s"), "{summary}");
}

#[test]
fn thousands_that_wait_are_late_at_one_time_and_all_are_told() {
    let world = World::new(&[(Path::Tcp, "eno1", 1.25e9)]);
    // The first one has all the room that there is.
    let slots: Vec<_> = std::iter::once(world.write(256 * MIB, None))
        .chain((1..MAX_FLIGHTS).map(|_| world.write(MIB / 16, None)))
        .collect();
    let before = crowfly_machine::usage::this_thread();
    world.scheduler.tick(Duration::from_secs(2));
    let after = crowfly_machine::usage::this_thread();
    // A look for each of them among all took seconds.
    assert!(after.user - before.user < 1.0, "{before:?} to {after:?}");
    for slot in &slots {
        let outcome = slot.take().expect("ended");
        assert_eq!(outcome.expect_err("late").code(), "deadline-exceeded");
    }
    assert_eq!(world.scheduler.under_way(), 0);
    // Nothing is left of them: whatever comes next goes at once.
    let slot = world.write(MIB, None);
    world.finish(&slot, |_, bytes| Some(bytes));
}
