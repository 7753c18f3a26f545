//! Short transfers, which the thread that starts them carries out.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::fabric::gate::Pass;
use crate::fabric::provider::Shortcut;

/// What a link answers to short transfers.
#[derive(Default)]
pub(super) struct Answers {
    answer: Mutex<Option<Result<CpuSeconds, OpError>>>,
    /// Threads that ask.
    asking: AtomicUsize,
}

impl Answers {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Result<CpuSeconds, OpError>>> {
        self.answer.lock().expect("no panic")
    }
}

impl Shortcut for Arc<Answers> {
    fn is_open(&self) -> bool {
        true
    }
    fn carry(&self, _: &Short<'_>, _: Pass<'_>) -> Option<Result<CpuSeconds, OpError>> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        self.lock().clone()
    }
}

#[test]
fn given_a_short_transfer_then_the_thread_that_starts_it_carries_it_out_and_no_longer_one() {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let left = || *world.links[0].left.lock().expect("no panic");
    let _short = world.write(HERE, None);
    assert_eq!(left(), HERE);
    let _long = world.write(HERE + 1, None);
    assert_eq!(
        left(),
        HERE,
        "the longer one is left to the link's own threads"
    );
    assert_eq!(world.given()["mlx5_0:1"], 2 * HERE + 1);
}

/// A short write, carried out before this returns where the link does that.
fn short(world: &World, local: &Arc<RegionCore>, bytes: u64) -> Option<Outcome> {
    let run = Run {
        local: 0,
        remote: 0,
        len: bytes,
    };
    let kind = Kind {
        verb: Verb::Write,
        policy: Policy::Prefer,
        local: Some(local),
        remote: Some(&local.descriptor),
    };
    let clock = || Duration::from_millis(3);
    world.scheduler.at_once(&kind, &[run], clock)
}

#[test]
fn given_a_link_that_carries_short_transfers_out_at_once_then_nothing_is_posted_and_all_is_counted()
{
    let world = World::new(&BOTH_SOCKETS[..1]);
    let local = region(HERE + 1, None);
    assert!(short(&world, &local, 1000).is_none(), "this link posts");
    let helped = CpuSeconds {
        user: 0.25,
        system: 0.5,
    };
    *world.links[0].at_once.lock() = Some(Ok(helped));
    let delivery = short(&world, &local, 1000).expect("at once").expect("well");
    assert_eq!((delivery.bytes(), delivery.cpu()), (Bytes(1000), helped));
    assert!(delivery.receipt.is_whole());
    let paths: Vec<_> = delivery.paths().collect();
    assert_eq!(paths, [(Path::Verbs, Bytes(1000))]);
    assert_eq!(delivery.nics[0].nic, "mlx5_0:1");
    assert_eq!(world.given()["mlx5_0:1"], 0);
    let totals = world.scheduler.report()[0].totals;
    assert_eq!((totals.written, totals.ops), (Bytes(1000), 1));
    assert!(short(&world, &local, HERE + 1).is_none(), "too long for it");
    assert!(short(&world, &local, 0).is_none(), "nothing to carry");
}

#[test]
fn given_as_many_threads_as_turnstiles_then_one_more_waits_for_none_of_them_and_has_its_transfer_posted()
 {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let local = region(1000, None);
    let answers = &world.links[0].at_once;
    let mut answer = answers.lock();
    *answer = Some(Ok(CpuSeconds::default()));
    std::thread::scope(|scope| {
        let carry = || short(&world, &local, 1000).expect("at once").expect("well");
        let threads = [(); AT_ONCE].map(|()| scope.spawn(carry));
        let asking = || answers.asking.load(Ordering::SeqCst);
        while asking() < AT_ONCE {
            std::thread::yield_now();
        }
        assert!(short(&world, &local, 1000).is_none(), "none is free");
        assert_eq!(asking(), AT_ONCE);
        drop(answer);
        for thread in threads {
            assert!(thread.join().expect("no panic").receipt.is_whole());
        }
    });
    let totals = world.scheduler.report()[0].totals;
    assert_eq!((totals.written, totals.ops), (Bytes(4000), 4));
}

#[test]
fn when_a_link_cannot_carry_a_short_transfer_out_then_its_error_is_the_end_and_a_broken_rail_is_not()
 {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let local = region(1000, None);
    let answer = |result| *world.links[0].at_once.lock() = Some(Err(result));
    answer(OpError::Op(FabricError::Deregistered));
    let error = short(&world, &local, 1000)
        .expect("an end")
        .expect_err("an error");
    assert_eq!(error.code(), "region-deregistered");
    answer(OpError::Rail("the cable was cut".into()));
    assert!(
        short(&world, &local, 1000).is_none(),
        "another rail may do it"
    );
    assert_eq!(world.scheduler.report()[0].totals.failed_ops, 2);
    world
        .scheduler
        .down(RailId(0), "the cable was cut", Duration::ZERO);
    answer(OpError::Op(FabricError::Deregistered));
    assert!(
        short(&world, &local, 1000).is_none(),
        "a rail that is down is not asked"
    );
}
