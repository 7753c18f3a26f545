//! Which rails carry what, over links that take everything and end nothing by themselves.

use std::collections::BTreeMap;

use crowfly_route::fixture::machines::dgx_h100;
use crowfly_route::hop::Route;
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::{CpuSeconds, Path, Visibility};
use crowfly_route::units::{Bytes, NumaNode};

use super::*;
use crate::fabric::descriptor::RegionDescriptor;
use crate::fabric::gate::Gate;
use crate::fabric::identity::Capability;
use crate::fabric::memory::Buffer;
use crate::fabric::nics::Nearness;
use crate::fabric::plan::Kind;
use crate::fabric::port::PortCount;
use crate::fabric::provider::{
    Chore, Limits, Link, Op, Posted, Refusal, Registration, Release, Run, Short, Verb,
};
use crate::fabric::rail::NicLoad;
use crate::fabric::region::{Access, RegionCore, Registered, Registrations};
use crate::fabric::transfer::{Checked, Delivery};

const MIB: u64 = 1 << 20;

/// A link that keeps what it is given.
struct Kept {
    path: Path,
    nic: String,
    ops: Mutex<Vec<Op>>,
    /// What its port has counted as sent; `None` where it has no counters.
    counted: Mutex<Option<u64>>,
    /// Whether it is at its end and has not said so yet.
    dead: std::sync::atomic::AtomicBool,
    /// Bytes whose move was left to the thread that started the transfer, and which that thread saw to.
    left: Arc<Mutex<u64>>,
    /// What it answers to short transfers that it could carry out at once, if it could.
    at_once: Mutex<Option<Result<CpuSeconds, OpError>>>,
    /// CPU time that it says to have used.
    used: Mutex<f64>,
    /// What happens while it is being closed.
    closing: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Link for Kept {
    fn path(&self) -> Path {
        self.path
    }
    fn nic(&self) -> &str {
        &self.nic
    }
    fn limits(&self) -> Limits {
        Limits {
            op_bytes: 64 << 10,
            segments: 1,
            ops: 4096,
            bytes: 1 << 40,
            imm_once: true,
        }
    }
    fn reaches(
        &self,
        _: Option<&RegionCore>,
        _: Option<&RegionDescriptor>,
    ) -> Result<(), Vec<Obstacle>> {
        Ok(())
    }
    fn route(&self, _: Verb, from: Place, to: Place) -> Route {
        Route {
            name: "kept".into(),
            from,
            to,
            hops: Vec::new(),
        }
    }
    fn post(&self, op: Op) -> Result<Posted, Refusal> {
        if self.dead.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Refusal::Failed(OpError::Rail("no lane is left".into())));
        }
        self.ops.lock().expect("no panic").push(op);
        Ok(Posted::InFlight)
    }
    fn post_here(&self, op: Op, chores: &mut Vec<Chore>) -> Result<Posted, Refusal> {
        let (left, bytes) = (Arc::clone(&self.left), op.bytes());
        chores.push(Box::new(move || *left.lock().expect("no panic") += bytes));
        self.post(op)
    }
    fn at_once(&self, _: &Short<'_>) -> Option<Result<CpuSeconds, OpError>> {
        self.at_once.lock().expect("no panic").clone()
    }
    fn cancel(&self, _: OpId) -> Release {
        Release::Now
    }
    fn cpu(&self) -> CpuSeconds {
        CpuSeconds {
            user: *self.used.lock().expect("no panic"),
            system: 0.0,
        }
    }
    fn close(&self) {
        let closing = self.closing.lock().expect("no panic").take();
        if let Some(closing) = closing {
            closing();
        }
    }
    fn port_counters(&self) -> Result<PortCount, String> {
        let counted = self.counted.lock().expect("no panic");
        let sent = counted.ok_or("it has no counters")?;
        Ok(PortCount {
            received: Bytes(0),
            sent: Bytes(sent),
        })
    }
}

struct World {
    scheduler: Arc<Scheduler>,
    links: Vec<Arc<Kept>>,
}

impl World {
    /// Rails by path, NIC and weight, on a machine whose distances are known.
    fn new(rails: &[(Path, &str, f64)]) -> Self {
        Self::sharing(rails, &Arc::default())
    }

    fn sharing(rails: &[(Path, &str, f64)], load: &Arc<NicLoad>) -> Self {
        let machine = Arc::new(dgx_h100().topology());
        let scheduler =
            Scheduler::new(Incarnation::from_bytes([7; 16]), Duration::from_millis(500));
        let mut links = Vec::new();
        for (slot, (path, nic, weight)) in (0u16..).zip(rails) {
            let link = Arc::new(Kept {
                path: *path,
                nic: (*nic).to_owned(),
                ops: Mutex::default(),
                counted: Mutex::new(Some(0)),
                dead: false.into(),
                left: Arc::default(),
                at_once: Mutex::default(),
                used: Mutex::default(),
                closing: Mutex::default(),
            });
            let rail = Rail {
                slot,
                path: *path,
                nic: (*nic).to_owned(),
                weight: *weight,
                nearness: Arc::new(Nearness::of(nic, Some(&machine))),
                // The first rail is the one whose NIC others use as well.
                load: if slot == 0 {
                    Arc::clone(load)
                } else {
                    Arc::default()
                },
                link: Arc::clone(&link) as _,
            };
            scheduler.add_rail(RailId(u32::from(slot)), rail, Class::Direct);
            links.push(link);
        }
        let scheduler = Arc::new(scheduler);
        Self { scheduler, links }
    }

    fn write(&self, bytes: u64, node: Option<u32>) -> Arc<Slot> {
        self.start(Verb::Write, region(bytes, node), bytes)
    }

    fn start(&self, verb: Verb, local: Arc<RegionCore>, bytes: u64) -> Arc<Slot> {
        let order = Order {
            verb,
            remote: Some(local.descriptor.clone()),
            local: Some(local),
            runs: vec![Run {
                local: 0,
                remote: 0,
                len: bytes,
            }],
            imm: None,
            policy: Policy::Prefer,
            allowed: Duration::from_secs(1),
        };
        let slot = Arc::new(Slot::default());
        self.scheduler.start(order, &slot, Duration::ZERO);
        slot
    }

    /// Bytes that each link was given, by NIC.
    fn given(&self) -> BTreeMap<&str, u64> {
        let bytes = |link: &Kept| -> u64 {
            let ops = link.ops.lock().expect("no panic");
            ops.iter().map(Op::bytes).sum()
        };
        self.links
            .iter()
            .map(|l| (l.nic.as_str(), bytes(l)))
            .collect()
    }

    /// Everything ends well; the ports count what `counts` makes of the bytes they were given.
    fn finish(&self, slot: &Slot, counts: impl Fn(&str, u64) -> Option<u64>) -> Delivery {
        for (rail, link) in (0u32..).zip(&self.links) {
            let ops = std::mem::take(&mut *link.ops.lock().expect("no panic"));
            let bytes = ops.iter().map(Op::bytes).sum();
            *link.counted.lock().expect("no panic") = counts(&link.nic, bytes);
            for op in ops {
                let at = Duration::from_millis(1);
                self.scheduler.completed(RailId(rail), op.id, Ok(()), at);
            }
        }
        slot.take().expect("it ended").expect("and well")
    }
}

fn region(bytes: u64, node: Option<u32>) -> Arc<RegionCore> {
    let len = usize::try_from(bytes).expect("small");
    let place = Place::Host(node.map(NumaNode));
    let buffer = Buffer::claiming(len, place.clone());
    Arc::new(RegionCore {
        descriptor: RegionDescriptor::new(
            Incarnation::from_bytes([7; 16]),
            bytes,
            Access::READ_WRITE,
            place,
            Capability::from_bytes([2; 16]),
            Vec::new(),
        ),
        backing: buffer.into_backing(),
        gate: Gate::default(),
        registrations: Registrations::default(),
    })
}

const BOTH_SOCKETS: [(Path, &str, f64); 4] = [
    (Path::Verbs, "mlx5_0:1", 50e9),
    (Path::Verbs, "mlx5_1:1", 50e9),
    (Path::Verbs, "mlx5_4:1", 50e9),
    (Path::Verbs, "mlx5_5:1", 50e9),
];

#[test]
fn given_memory_of_a_numa_node_then_its_own_nics_share_the_bytes_and_the_others_are_named() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, Some(1));
    let given = world.given();
    assert_eq!(given["mlx5_0:1"] + given["mlx5_1:1"], 0);
    assert_eq!((given["mlx5_4:1"], given["mlx5_5:1"]), (4 * MIB, 4 * MIB));
    let delivery = world.finish(&slot, |_, bytes| Some(bytes));
    let left_out: Vec<_> = delivery.left_out.iter().map(|l| l.nic.as_str()).collect();
    assert_eq!(left_out, ["mlx5_0:1", "mlx5_1:1"]);
    assert!(delivery.left_out[0].why.contains("NUMA node"));
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
    *world.links[0].at_once.lock().expect("no panic") = Some(Ok(helped));
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
fn when_a_link_cannot_carry_a_short_transfer_out_then_its_error_is_the_end_and_a_broken_rail_is_not()
 {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let local = region(1000, None);
    let answer = |result| *world.links[0].at_once.lock().expect("no panic") = Some(Err(result));
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

#[test]
fn when_transfers_overlap_then_their_receipts_share_the_links_cpu_time_and_lose_none() {
    let world = World::new(&BOTH_SOCKETS[..1]);
    let used = |seconds| *world.links[0].used.lock().expect("no panic") = seconds;
    let early = world.write(1000, None);
    used(8.0);
    let late = world.write(1000, None);
    used(10.0);
    let late_cpu = {
        // The second ends first, all of its bytes with it.
        let op = world.links[0].ops.lock().expect("no panic").remove(1);
        world
            .scheduler
            .completed(RailId(0), op.id, Ok(()), Duration::ZERO);
        late.take().expect("it ended").expect("well").cpu().total()
    };
    used(11.0);
    let early_cpu = world.finish(&early, |_, bytes| Some(bytes)).cpu().total();
    assert!((late_cpu - 1.0).abs() < 1e-9, "{late_cpu}");
    assert!((early_cpu - 10.0).abs() < 1e-9, "{early_cpu}");
}

#[test]
fn given_memory_anywhere_then_all_nics_share_the_bytes() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, None);
    assert!(world.given().values().all(|bytes| *bytes == 2 * MIB));
    assert!(
        world
            .finish(&slot, |_, bytes| Some(bytes))
            .left_out
            .is_empty()
    );
}

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
fn bytes_are_shared_out_by_what_each_nic_can_carry() {
    let world = World::new(&[
        (Path::Verbs, "mlx5_0:1", 150e9),
        (Path::Verbs, "mlx5_1:1", 50e9),
    ]);
    let _slot = world.write(8 * MIB, None);
    let given = world.given();
    assert_eq!((given["mlx5_0:1"], given["mlx5_1:1"]), (6 * MIB, 2 * MIB));
}

#[test]
fn what_a_nic_carries_for_other_peers_counts_against_it() {
    let load = Arc::default();
    let rails = [BOTH_SOCKETS[0], BOTH_SOCKETS[1]];
    let other = World::sharing(&rails[..1], &load);
    let busy = other.write(4 * MIB, None);
    let world = World::sharing(&rails, &load);
    let _slot = world.write(4 * MIB, None);
    assert_eq!(world.given()["mlx5_1:1"], 4 * MIB, "the idle one first");
    other.finish(&busy, |_, bytes| Some(bytes));
    assert_eq!(load.bytes(), 0);
}

#[test]
fn the_ports_counters_agree_disagree_or_are_not_there_and_each_is_told_from_the_others() {
    let world = World::new(&BOTH_SOCKETS);
    let slot = world.write(8 * MIB, None);
    let delivery = world.finish(&slot, |nic, bytes| match nic {
        "mlx5_0:1" => Some(bytes + 1000),
        "mlx5_1:1" => Some(0),
        "mlx5_4:1" => None,
        _ => Some(bytes),
    });
    let checked: Vec<&Checked> = delivery.nics.iter().map(|nic| &nic.checked).collect();
    let counted = |bytes| Bytes(bytes);
    assert_eq!(
        checked[0],
        &Checked::Agrees {
            counted: counted(2 * MIB + 1000)
        }
    );
    assert_eq!(
        checked[1],
        &Checked::Disagrees {
            counted: counted(0)
        }
    );
    assert!(matches!(checked[2], Checked::Unavailable { why } if why == "it has no counters"));
    assert_eq!(
        checked[3],
        &Checked::Agrees {
            counted: counted(2 * MIB)
        }
    );
    let small = world.write(1000, None);
    let delivery = world.finish(&small, |_, bytes| Some(bytes));
    let small = &delivery.nics[0].checked;
    assert!(matches!(small, Checked::Unavailable { why } if why.contains("smaller")));
}

#[test]
fn a_better_path_that_is_missing_is_an_obstacle_of_every_receipt_and_a_worse_one_is_not() {
    let world = World::new(&[(Path::Tcp, "eno1", 1.25e9)]);
    let missing = |path, code| Missing {
        path,
        obstacle: Obstacle::blocks(code, "it is missing").seen("a test", "missing"),
    };
    world.scheduler.is_missing(vec![
        missing(Path::Verbs, Code::PortDown),
        missing(Path::Tcp, Code::OddRate),
    ]);
    let slot = world.write(MIB, None);
    let receipt = world.finish(&slot, |_, bytes| Some(bytes)).into_receipt();
    let codes: Vec<_> = receipt.obstacles.iter().map(|o| o.code).collect();
    assert_eq!(codes, [Code::PortDown]);
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
fn whether_a_gpu_sees_what_was_read_into_it_is_what_the_least_certain_nic_said() {
    let unknown = Visibility::Unknown("no read through the NIC was done".into());
    let fine = Visibility::NotNeeded("the GPU orders the NIC's writes".into());
    for said in [[&fine, &fine], [&fine, &unknown], [&unknown, &fine]] {
        // Both are as far from the GPU, so both carry.
        let world = World::new(&BOTH_SOCKETS[2..]);
        let mut region = Arc::into_inner(region(8 * MIB, None)).expect("nobody else has it");
        region.backing = Buffer::claiming(8 << 20, Place::Gpu(0)).into_backing();
        for (link, visibility) in world.links.iter().zip(said) {
            region.registrations.done.push(Registered {
                path: Path::Verbs,
                nic: link.nic.clone(),
                registration: Registration {
                    address: 0,
                    key: Vec::new(),
                    keep: Arc::new(()),
                    obstacles: Vec::new(),
                    visibility: visibility.clone(),
                    flush: None,
                },
            });
        }
        let slot = world.start(Verb::Read, Arc::new(region), 8 * MIB);
        let delivery = world.finish(&slot, |_, bytes| Some(bytes));
        assert_eq!(delivery.nics.len(), 2);
        let doubtful = said.contains(&&unknown);
        let expected = if doubtful { &unknown } else { &fine };
        assert_eq!(&delivery.receipt.visibility, expected);
    }
}
