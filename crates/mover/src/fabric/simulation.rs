//! The production scheduler over simulated links: a seed decides when ops end and how, which rails
//! break and which come back, what is cancelled, what hangs for ever, and whether the peer says what came.
//! Time is virtual, so thousands of seeds run in seconds.
//!
//! Each run of the tests goes through [`SEEDS`], or as many as `CROWFLY_SIM_SEEDS` says: 10,000 in a
//! nightly one (`just simulate`).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crowfly_route::hop::Class;
use crowfly_route::obstacle::Code;
use crowfly_route::place::Place;
use crowfly_route::policy::Policy;

use super::descriptor::RegionDescriptor;
use super::error::FabricError;
use super::flight::Order;
use super::gate::Gate;
use super::identity::{Capability, Incarnation};
use super::memory::Buffer;
use super::provider::{FlightId, Imm, OpError, OpId, RailId, Run, Verb};
use super::rail::NicLoad;
use super::region::{Access, RegionCore, Registrations};
use super::scheduler::Scheduler;
use super::transfer::{Canceller, Outcome, Slot, Transfer};
use world::{Fate, Links, rail};

mod world;

/// Seeds when nobody says how many.
const SEEDS: u64 = 400;
/// How long a rail may end nothing.
const SILENCE: Duration = Duration::from_millis(400);
/// How long a rail that broke is away at the most, in steps.
const AWAY: u64 = 60;
const LEN: usize = 1 << 16;
/// Each transfer has a part of the regions to itself, so that its bytes can be told.
const PART: usize = LEN / PARTS as usize;
const PARTS: u64 = 16;
const STEP: Duration = Duration::from_millis(10);
/// How much later than its deadline a read may end: a link that does not let go is closed after
/// one second.
const LATEST: Duration = Duration::from_millis(1_100);

/// A small generator of its own, so that a seed means the same for ever.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}

struct Voyage {
    transfer: Transfer,
    id: FlightId,
    verb: Verb,
    start: usize,
    len: usize,
    deadline: Duration,
    imm: Option<Imm>,
    cancelled: bool,
}

fn region(seed: u64) -> Arc<RegionCore> {
    let mut buffer = Buffer::zeroed(LEN, None).expect("memory");
    let bytes = buffer.as_mut_slice().expect("writable");
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (at as u64 * 31 + seed) as u8;
    }
    let owner = Incarnation::from_bytes([1; 16]);
    let capability = Capability::from_bytes([2; 16]);
    let place = Place::Host(None);
    let (len, access) = (LEN as u64, Access::READ_WRITE);
    Arc::new(RegionCore {
        descriptor: RegionDescriptor::new(owner, len, access, place, capability, Vec::new()),
        backing: buffer.into_backing(),
        gate: Gate::default(),
        registrations: Registrations::default(),
    })
}

/// One world, from its seed; answers what its transfers came to.
fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let world = Arc::new(Mutex::new(Links::new(seed, LEN)));
    let mut dice = Dice(seed ^ 0x5eed);
    let scheduler = Arc::new(Scheduler::new(Incarnation::from_bytes([9; 16]), SILENCE));
    let load: Arc<NicLoad> = Arc::default();
    let rails = 1 + dice.roll(4) as u16;
    for slot in 0..rails {
        let id = RailId(u32::from(slot));
        let rail = rail(slot, id, &mut dice, &load, &world);
        scheduler.add_rail(id, rail, Class::Direct);
    }
    // Most have a control connection by which rails are made anew, and some lose it.
    let mut talks = dice.roll(6) != 0;
    if talks {
        scheduler.makes_anew(0..rails);
        world.lock().expect("no panic").fenced();
    }
    let fenced = talks;
    let hang_up = match dice.roll(3) {
        0 => STEP * dice.roll(40) as u32,
        _ => Duration::MAX,
    };
    let local = region(seed);
    let mut source = vec![0; LEN];
    let all = local.span(0..LEN).expect("all");
    all.get(&mut source).expect("host memory");
    let remote = local.descriptor.clone();
    let mut running: Vec<Voyage> = Vec::new();
    let mut outcomes: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut to_start = 1 + dice.roll(PARTS - 1) as usize;
    let mut now = Duration::ZERO;
    // A write's end is told before links have let go of its memory.
    while to_start > 0 || !running.is_empty() || scheduler.under_way() > 0 {
        assert!(now < Duration::from_secs(60), "seed {seed}: hangs");
        if to_start > 0 && dice.roll(3) == 0 {
            to_start -= 1;
            running.push(start(
                &scheduler,
                &local,
                &remote,
                &mut dice,
                to_start * PART,
                PART,
                now,
            ));
        }
        for posted in &mut running {
            if dice.roll(400) == 0 {
                posted.cancelled = true;
                posted.transfer.cancel();
            }
        }
        now += STEP;
        end_ops(&world, &scheduler, now);
        if talks && now >= hang_up {
            talks = false;
            scheduler.nothing_returns(now);
        }
        let answers = {
            let mut links = world.lock().expect("no panic");
            links.stragglers_come();
            let asked = talks || fenced && links.speaks();
            links.due_answers(asked)
        };
        for (rail, tally) in answers {
            if !talks && scheduler.doubtful().iter().any(|(known, _)| *known == rail) {
                *outcomes.entry("told by a rail").or_default() += 1;
            }
            scheduler.learns(rail, tally.as_deref(), now);
        }
        if talks {
            bring_back(&world, &scheduler, &mut dice, &load, now);
        }
        scheduler.tick(now);
        let (ended, going): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|posted| posted.transfer.is_finished());
        running = going;
        for posted in &running {
            let grace = match posted.verb {
                Verb::Write => Duration::ZERO,
                Verb::Read => LATEST,
            };
            assert!(
                now < posted.deadline + grace,
                "seed {seed}: late by more than its grace"
            );
        }
        for posted in ended {
            let (code, outlived) = judge(seed, posted, &world, &source, &local);
            *outcomes.entry(code).or_default() += 1;
            if outlived && rails == 1 {
                *outcomes.entry("outlived its only rail").or_default() += 1;
            }
        }
    }
    assert_eq!(scheduler.under_way(), 0, "seed {seed}");
    assert_eq!(load.bytes(), 0, "seed {seed}: the load of ended transfers");
    let returns = scheduler.report().iter().map(|rail| rail.returns).sum();
    outcomes.insert("returned", returns);
    let [had_not_come, had_come] = world.lock().expect("no panic").decided;
    outcomes.insert("value had not come", had_not_come);
    outcomes.insert("value had come", had_come);
    outcomes.insert("came late", world.lock().expect("no panic").came_late);
    let left = world.lock().expect("no panic").held.len();
    assert_eq!(
        left, 0,
        "seed {seed}: links hold ops of transfers that ended"
    );
    outcomes
}

/// Rails that were away long enough come back by new links; the old ones may have a last word.
fn bring_back(
    world: &Arc<Mutex<Links>>,
    scheduler: &Scheduler,
    dice: &mut Dice,
    load: &Arc<NicLoad>,
    now: Duration,
) {
    let mut links = world.lock().expect("no panic");
    let (due, away) = std::mem::take(&mut links.away)
        .into_iter()
        .partition(|(_, _, at)| *at <= now);
    links.away = away;
    let due: Vec<(u16, RailId, Duration)> = due;
    let first = links.returned;
    links.returned += due.len() as u32;
    drop(links);
    for (next, (slot, old, _)) in (first + 1..).zip(due) {
        let id = RailId(100 * next + u32::from(slot));
        let rail = rail(slot, id, dice, load, world);
        scheduler.came_back(id, rail, Class::Direct, now);
        if dice.roll(4) == 0 {
            scheduler.down(old, "its second stream broke as well", now);
        }
    }
}

fn start(
    scheduler: &Arc<Scheduler>,
    local: &Arc<RegionCore>,
    remote: &RegionDescriptor,
    dice: &mut Dice,
    start: usize,
    part: usize,
    now: Duration,
) -> Voyage {
    let len = 1 + dice.roll(part as u64) as usize;
    let verb = if dice.roll(3) == 0 {
        Verb::Read
    } else {
        Verb::Write
    };
    let imm = (verb == Verb::Write && dice.roll(4) != 0).then_some(Imm(start as u32));
    let allowed = STEP * (5 + dice.roll(400) as u32);
    let mut runs = Vec::new();
    let mut at = 0;
    while at < len {
        let run = (1 + dice.roll(4000) as usize).min(len - at);
        runs.push(Run {
            local: (start + at) as u64,
            remote: (start + at) as u64,
            len: run as u64,
        });
        at += run;
    }
    let order = Order {
        verb,
        local: Some(Arc::clone(local)),
        remote: Some(remote.clone()),
        runs,
        imm,
        policy: Policy::Prefer,
        allowed,
    };
    let slot = Arc::new(Slot::default());
    let id = scheduler.start(order, &slot, now);
    let canceller: Arc<dyn Canceller> = scheduler.clone();
    Voyage {
        transfer: Transfer::new(slot, Arc::downgrade(&canceller), id),
        id,
        verb,
        start,
        len,
        deadline: now + allowed,
        imm,
        cancelled: false,
    }
}

/// Ends the ops that are due.
fn end_ops(world: &Arc<Mutex<Links>>, scheduler: &Scheduler, now: Duration) {
    let due: Vec<(RailId, OpId)> = {
        let mut links = world.lock().expect("no panic");
        links.now = now;
        let due = links
            .held
            .iter()
            .filter(|(_, (_, at, fate))| *at <= now && !matches!(fate, Fate::Hangs));
        due.map(|(key, _)| *key).collect()
    };
    for (rail, id) in due {
        let mut links = world.lock().expect("no panic");
        let Some((op, _, fate)) = links.held.remove(&(rail, id)) else {
            continue;
        };
        let numbered = links.is_numbered(rail);
        // A rail may break before or after the bytes went.
        let goes = !matches!(fate, Fate::Refused) && links.dice.roll(8) != 0;
        if goes || matches!(fate, Fate::Done) {
            links.carry_out(rail, &op, numbered);
        }
        if matches!(fate, Fate::BreaksRail) && links.dice.roll(2) == 0 {
            // Its last op fails before the rail is known to have failed.
            drop(links);
            let error = OpError::Rail("the cable was cut".into());
            scheduler.completed(rail, id, Err(error), now);
        } else {
            drop(links);
        }
        match fate {
            Fate::BreaksRail => {
                scheduler.down(rail, "the cable was cut", now);
                let fallen = scheduler.fallen();
                let mut links = world.lock().expect("no panic");
                let known = |slot: u16| links.away.iter().any(|(away, ..)| *away == slot);
                let mut places = fallen.iter().map(|(rail, _)| (rail.0 % 100) as u16);
                let slot = places.find(|slot| !known(*slot));
                let back = now + STEP * links.dice.roll(AWAY) as u32;
                // Some stay away for good.
                if let Some(slot) = slot.filter(|_| links.dice.roll(3) != 0) {
                    links.away.push((slot, rail, back));
                }
            }
            Fate::Refused => {
                let error = FabricError::NotAllowed { what: "this" };
                scheduler.completed(rail, id, Err(OpError::Op(error)), now);
            }
            Fate::Done | Fate::Hangs => {
                scheduler.completed(rail, id, Ok(()), now);
                let mut links = world.lock().expect("no panic");
                links.doubtful.remove(&(rail, id));
            }
        }
    }
}

/// Checks what a transfer came to; answers it, and whether it ended well although a rail failed.
fn judge(
    seed: u64,
    posted: Voyage,
    world: &Arc<Mutex<Links>>,
    source: &[u8],
    local: &Arc<RegionCore>,
) -> (&'static str, bool) {
    let range = posted.start..posted.start + posted.len;
    let mut links = world.lock().expect("no panic");
    let outcome: Outcome = posted.transfer.wait();
    if outcome.is_ok() {
        // Whoever wrote it, or waited for that, does with it what they like.
        links.remote.given.insert(posted.start / PART);
    }
    let told = links.remote.told.get(&posted.id.0).copied();
    assert!(
        told.is_none_or(|(_, times)| times == 1),
        "seed {seed}: {told:?}"
    );
    match outcome {
        Ok(delivery) => {
            let receipt = &delivery.receipt;
            assert!(receipt.is_whole(), "seed {seed}: {receipt:?}");
            assert_eq!(receipt.requested.0, posted.len as u64, "seed {seed}");
            let by_nic: u64 = delivery.nics.iter().map(|nic| nic.bytes.0).sum();
            assert_eq!(by_nic, posted.len as u64, "seed {seed}");
            let mut here = vec![0; posted.len];
            local
                .span(range.clone())
                .expect("inside")
                .get(&mut here)
                .expect("host memory");
            match posted.verb {
                Verb::Write => {
                    assert_eq!(
                        links.remote.bytes[range.clone()],
                        source[range.clone()],
                        "seed {seed}"
                    );
                }
                Verb::Read => assert_eq!(here, links.remote.bytes[range.clone()], "seed {seed}"),
            }
            let told = told.map(|(imm, _)| imm);
            assert_eq!(told, posted.imm.map(|imm| imm.0), "seed {seed}");
            let fell = receipt.obstacles.iter();
            let fell = fell.filter(|obstacle| obstacle.code == Code::RailFailed);
            ("done", fell.count() > 0)
        }
        Err(error) => {
            if let Some(then) = links.remote.at_telling.get(&posted.id.0) {
                assert_eq!(
                    then[range.clone()],
                    source[range],
                    "seed {seed}: told too early"
                );
            }
            let code = error.code();
            assert!(code != "cancelled" || posted.cancelled, "seed {seed}");
            let code = match error {
                FabricError::PeerLost { why, .. } if why.contains("still on their way") => {
                    "unfenced"
                }
                FabricError::Cancelled => "cancelled",
                FabricError::Deadline { .. } => "deadline",
                FabricError::NotAllowed { .. } => "refused",
                FabricError::PeerLost { .. } => "lost",
                other => panic!("seed {seed}: {other}"),
            };
            (code, false)
        }
    }
}

/// `just simulate` asks for many more.
#[test]
fn whatever_a_seed_does_every_transfer_ends_in_time_and_whole_or_with_its_error() {
    let asked = std::env::var("CROWFLY_SIM_SEEDS").ok();
    sail(asked.map_or(SEEDS, |text| text.parse().expect("a number of seeds")));
}

fn sail(seeds: u64) {
    let mut sum: HashMap<&'static str, u64> = HashMap::new();
    for seed in 0..seeds {
        for (code, count) in run(seed) {
            *sum.entry(code).or_default() += count;
        }
    }
    // A simulation in which nothing ever goes wrong, or right, would prove nothing.
    for code in [
        "done",
        "cancelled",
        "deadline",
        "refused",
        "lost",
        "returned",
        "outlived its only rail",
        "value had not come",
        "value had come",
        "came late",
        "told by a rail",
        "unfenced",
    ] {
        assert!(
            sum.get(code).is_some_and(|count| *count > seeds / 100),
            "{code}: {sum:?}"
        );
    }
}

#[test]
fn the_same_seed_has_the_same_end() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
